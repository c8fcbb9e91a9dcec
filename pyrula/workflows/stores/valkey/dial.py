"""How a connection to a Valkey server begins: the socket, TLS, the login.

Loop-neutral: a non-blocking socket and the two waits that every loop offers. What is dialled is
handed over to a `Link`; no command of the store is sent here.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Sequence
from typing import Any, Final

import anyio
import anyio.to_thread
from libvalkey import ProtocolError, Reader, ReplyError, pack_command

from pyrula.contracts.errors import ConfigurationError, StoreUnavailable
from pyrula.workflows.stores.valkey.address import Address

__all__ = ["PENDING", "ConnectionBroken", "Dialled", "LoginRefused", "QuietSocket", "Seal", "dial"]

PENDING: Final[Any] = object()
"""What the parser's `gets` gives while no whole reply is there."""

_NOT_READY: Final = ("LOADING", "MASTERDOWN", "CLUSTERDOWN", "BUSY", "TRYAGAIN")
_RECEIVE: Final = 65536


class ConnectionBroken(StoreUnavailable):
    """The connection broke while a call waited for its reply; whether it took effect is not known.

    Every mutating function of the library may be sent twice, so the wire repeats such a call once.
    """

    code = "connection_broken"


class LoginRefused(StoreUnavailable):
    """The server answers and refuses this login, database or protocol. Trying again does not help."""

    code = "login_refused"


class QuietSocket(socket.socket):
    """A socket that closes itself when its loop was left without a word.

    A store need not be closed, and nobody should be warned about a socket that they never saw.
    """

    def __del__(self) -> None:
        self.close()


class Seal:
    """TLS over buffers: what goes out is sealed, what comes in is opened. No I/O."""

    def __init__(self, context: ssl.SSLContext, hostname: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=hostname)

    def handshake(self) -> bool:
        """One step of the handshake: True when it is done. `outgoing` may have to be sent either way."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def put(self, data: bytes) -> None:
        """Bytes that came from the socket, not to be opened yet."""
        self._incoming.write(data)

    def outgoing(self) -> bytes:
        """What TLS itself wants sent."""
        return self._outgoing.read()

    def seal(self, data: bytes) -> bytes:
        """The bytes to send for this plain text."""
        done = self._tls.write(data)
        if done < len(data):
            view = memoryview(data)
            while done < len(data):
                done += self._tls.write(view[done:])
        return self._outgoing.read()

    def open(self, data: bytes) -> bytes:
        """The plain text of what came from the socket; empty while a record is incomplete.

        Raises `ssl.SSLError`; its subclass `SSLZeroReturnError` when the server ended TLS.
        """
        self._incoming.write(data)
        chunks: list[bytes] = []
        while True:
            try:
                chunk = self._tls.read(_RECEIVE)
            except ssl.SSLWantReadError:
                return b"".join(chunks)
            if not chunk:
                if chunks:
                    return b"".join(chunks)
                raise ssl.SSLZeroReturnError(ssl.SSL_ERROR_ZERO_RETURN, "the server ended TLS")
            chunks.append(chunk)


class Dialled:
    """A connection that is logged in: the socket, its parser, and TLS where there is any."""

    __slots__ = ("label", "reader", "seal", "sock")

    def __init__(self, sock: QuietSocket, reader: Reader, seal: Seal | None, label: str) -> None:
        self.sock = sock
        self.reader = reader
        self.seal = seal
        self.label = label

    async def send(self, data: bytes) -> None:
        """Send all of it, before a link takes over."""
        view = memoryview(data if self.seal is None else self.seal.seal(data))
        await _send(self.sock, view)

    async def reply(self) -> object:
        """The next reply, before a link takes over. Raises `ConnectionResetError` at the end of the stream."""
        while (value := self.reader.gets()) is PENDING:
            data = await _receive(self.sock)
            self.reader.feed(data if self.seal is None else self.seal.open(data))
        return value


async def dial(address: Address, *, timeout: float, client_name: str) -> Dialled:
    """Connect and log in, within `timeout` seconds.

    Raises `LoginRefused` when another attempt would end the same way, else `StoreUnavailable`;
    `ConfigurationError` when the certificates cannot be read.
    """
    label = address.label
    context = await anyio.to_thread.run_sync(_tls_context, address) if address.tls else None
    sock: QuietSocket | None = None
    try:
        with anyio.fail_after(timeout):
            sock = await _connect(address, timeout)
            seal = await _handshake(sock, Seal(context, address.host)) if context is not None else None
            dialled = Dialled(sock, Reader(notEnoughData=PENDING), seal, label)
            await _login(dialled, address, client_name)
    except TimeoutError as error:
        _close(sock)
        raise StoreUnavailable(f"no answer from Valkey at {label} within {timeout:.3g} s") from error
    except ssl.SSLError as error:
        _close(sock)
        reason = error.reason or "the other side speaks no TLS"
        raise LoginRefused(f"TLS with {label} failed: {reason}") from error
    except ProtocolError as error:
        _close(sock)
        raise LoginRefused(f"what answers at {label} does not speak Valkey's protocol") from error
    except (OSError, UnicodeError) as error:  # a host name that no resolver takes is a UnicodeError
        _close(sock)
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise StoreUnavailable(f"cannot reach Valkey at {label}: {reason}") from error
    except BaseException:
        _close(sock)
        raise
    return dialled


def _close(sock: QuietSocket | None) -> None:
    if sock is not None:
        sock.close()


async def _connect(address: Address, timeout: float) -> QuietSocket:
    """A connected socket, to the first of the host's addresses that answers."""
    if address.path is not None:
        return await _open(socket.AF_UNIX, address.path)
    found = await anyio.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    failure: OSError | None = None
    for family, _, _, _, target in found:
        try:
            # An address that swallows packets must not use up the time of the one after it.
            with anyio.fail_after(timeout / len(found)):
                return await _open(family, target)
        except OSError as error:  # TimeoutError is one
            failure = failure or error
    raise failure or OSError(errno.EADDRNOTAVAIL, "the host has no address")


async def _open(family: int, target: Any) -> QuietSocket:
    sock = QuietSocket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if family != socket.AF_UNIX:
            _tune(sock)
        code = sock.connect_ex(target)
        if code in (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EINTR) and family != socket.AF_UNIX:
            await anyio.wait_writable(sock)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
    except BaseException:
        sock.close()
        raise
    return sock


def _tune(sock: socket.socket) -> None:
    """No waiting for more to send; and a peer that is gone without a word is noticed within a minute."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # not on every platform
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _tls_context(address: Address) -> ssl.SSLContext:
    try:
        return address.ssl_context()
    except OSError as error:  # ssl.SSLError is one
        files = ", ".join(name for name in (address.ca_certs, address.certfile, address.keyfile) if name)
        raise ConfigurationError(
            f"the certificates for Valkey at {address.label} cannot be read ({files}): {error.strerror or error}"
        ) from error


async def _handshake(sock: QuietSocket, seal: Seal) -> Seal:
    while True:
        done = seal.handshake()
        if data := seal.outgoing():
            await _send(sock, memoryview(data))
        if done:
            return seal
        seal.put(await _receive(sock))


async def _send(sock: socket.socket, view: memoryview) -> None:
    while view:
        try:
            view = view[sock.send(view) :]
        except BlockingIOError:
            await anyio.wait_writable(sock)


async def _receive(sock: socket.socket) -> bytes:
    await anyio.wait_readable(sock)
    while True:
        try:
            data = sock.recv(_RECEIVE)
        except BlockingIOError:
            await anyio.wait_readable(sock)
            continue
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "closed by the server")
        return data


async def _login(dialled: Dialled, address: Address, client_name: str) -> None:
    """Log in, choose the database and see that the server serves; one round trip.

    The protocol stays RESP2, where nothing comes that was not asked for: the parser gives pushes of
    RESP3 as plain lists, which could not be told from replies.
    """
    commands: list[tuple[str | int, ...]] = []
    if address.username is not None:
        commands.append(("AUTH", address.username, address.password or ""))
    elif address.password is not None:
        commands.append(("AUTH", address.password))
    if address.db:
        commands.append(("SELECT", address.db))
    commands.append(("CLIENT", "SETNAME", client_name))
    commands.append(("PING",))
    await dialled.send(b"".join(pack_command(command) for command in commands))
    replies = [await dialled.reply() for _ in commands]
    _judge(dialled.label, commands, replies)


def _judge(label: str, commands: Sequence[tuple[str | int, ...]], replies: Sequence[object]) -> None:
    for command, reply in zip(commands, replies, strict=True):
        if not isinstance(reply, ReplyError):
            continue
        text = str(reply)
        if text.startswith(_NOT_READY):
            raise StoreUnavailable(f"Valkey at {label} is not ready: {text}") from reply
        if text.startswith("NOAUTH"):
            raise LoginRefused(f"Valkey at {label} asks for a password, and the URL has none") from reply
        if text.startswith(("NOPERM", "MISCONF")) and command[0] in ("CLIENT", "PING"):
            continue  # a user without these rights can do its work all the same; a full disk can be read
        if command[0] == "AUTH":
            raise LoginRefused(f"Valkey at {label} refused the login: {text}") from reply
        raise LoginRefused(f"Valkey at {label} refused {command[0]}: {text}") from reply
    if replies[-1] != b"PONG" and not isinstance(replies[-1], ReplyError):
        raise LoginRefused(f"what answers at {label} does not speak Valkey's protocol")
