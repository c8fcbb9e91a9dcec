"""A TCP proxy before a server that a test can make fail: cut, frozen, slow, or losing just one reply.

Runs in the test's own loop, as one task group. It knows nothing of the protocol but what a test asks it
to look for in the bytes.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream

from pyrula.testing.servers import PrivateServer

__all__ = ["Loss", "Proxy"]

_CHUNK: Final = 65536
_GONE: Final = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class Loss:
    """One reply to be lost: the first that follows a request with `pattern` in it; then the connection is cut.

    `kept` bytes of the reply pass. `done` is set when it has happened: the server has served the request.
    """

    def __init__(self, pattern: bytes, kept: int) -> None:
        self.pattern = re.compile(pattern)
        self.kept = kept
        self.done = anyio.Event()


class _Pair:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, near: SocketStream, far: ByteStream) -> None:
        self.proxy = proxy
        self.near = near
        self.far = far
        self.losing: Loss | None = None

    async def run(self) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._requests, group.cancel_scope)
            group.start_soon(self._replies, group.cancel_scope)
        with anyio.CancelScope(shield=True):
            await self.far.aclose()
            await self.near.aclose()

    async def _requests(self, scope: anyio.CancelScope) -> None:
        with suppress(*_GONE):
            while True:
                data = await self.near.receive(_CHUNK)
                await self.proxy.passage()
                for loss in self.proxy.losses:
                    if self.losing is None and loss.pattern.search(data):
                        self.losing = loss
                if self.losing is not None and self.losing in self.proxy.losses:
                    self.proxy.losses.remove(self.losing)
                await self.far.send(data)
        scope.cancel()

    async def _replies(self, scope: anyio.CancelScope) -> None:
        with suppress(*_GONE):
            while True:
                data = await self.far.receive(_CHUNK)
                await self.proxy.passage()
                if self.losing is not None:
                    await self.near.send(data[: self.losing.kept])
                    self.reset()
                    self.losing.done.set()
                    break
                await self.near.send(data)
        scope.cancel()

    def reset(self) -> None:
        """Let the client's end break, not end."""
        raw = self.near.extra(SocketAttribute.raw_socket)
        with suppress(OSError):  # it has just ended by itself
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Proxy:
    """Passes connections on to a server, as long as the test lets it."""

    def __init__(self, server: PrivateServer) -> None:
        self._address = server.address  # on a port: a cancelled read of a unix socket may break anyio's asyncio loop
        assert not isinstance(self._address, str), "the server must listen on a port"
        self._pairs: dict[_Pair, anyio.CancelScope] = {}
        self._open = anyio.Event()
        self._open.set()
        self.port = 0
        self.delay = 0.0
        """Seconds that each piece of data waits, either way."""
        self.down = False
        """New connections are closed at once."""
        self.losses: list[Loss] = []
        self.accepted = 0

    @classmethod
    @asynccontextmanager
    async def before(cls, server: PrivateServer) -> AsyncIterator[Proxy]:
        """A proxy before this server, while entered."""
        proxy = cls(server)
        async with (
            await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
            anyio.create_task_group() as group,
        ):
            proxy.port = listener.extra(SocketAttribute.local_port)
            group.start_soon(listener.serve, proxy._serve)
            yield proxy
            group.cancel_scope.cancel()

    @property
    def url(self) -> str:
        """How a store reaches the server through it."""
        return f"redis://127.0.0.1:{self.port}"

    def lose(self, pattern: bytes, *, kept: int = 0) -> Loss:
        """Lose the reply to the next request that this pattern is found in."""
        loss = Loss(pattern, kept)
        self.losses.append(loss)
        return loss

    def cut(self) -> None:
        """Break all connections."""
        for pair, scope in list(self._pairs.items()):
            pair.reset()
            scope.cancel()

    def freeze(self) -> None:
        """Pass nothing on; connections stay open, and new ones are taken."""
        self._open = anyio.Event()

    def thaw(self) -> None:
        """Pass on what has waited, and all that comes."""
        self._open.set()

    async def passage(self) -> None:
        """Wait as long as data has to."""
        if self.delay:
            await anyio.sleep(self.delay)
        await self._open.wait()

    async def _serve(self, near: SocketStream) -> None:
        self.accepted += 1
        if self.down:
            await near.aclose()
            return
        try:
            far = await anyio.connect_tcp(*self._address)
        except OSError:  # the server is down
            await near.aclose()
            return
        pair = _Pair(self, near, far)
        with anyio.CancelScope() as scope:
            self._pairs[pair] = scope
            try:
                await pair.run()
            finally:
                del self._pairs[pair]
                with anyio.CancelScope(shield=True):
                    await near.aclose()
                    await far.aclose()
