"""One question to a server over a connection of its own: whether it is there, and what it is.

Plain blocking sockets and no driver: a start asks every millisecond, and may be the first thing that a
process does. Nothing here starts, stops or waits.
"""

from __future__ import annotations

import enum
import socket
from typing import BinaryIO

__all__ = ["Address", "Presence", "ask", "presence"]

# The path of a unix socket, or a host and a port.
Address = str | tuple[str, int]


class Presence(enum.Enum):
    """What answers at an address."""

    ABSENT = "absent"
    SILENT = "silent"
    LOADING = "loading"
    READY = "ready"


def ask(address: Address, command: str, *, timeout: float = 1.0) -> str:
    """Send one command of plain words; return its reply as text: an error with its `-`, an array by lines.

    Raises `OSError` when nobody listens, and `TimeoutError` or `ConnectionError` (both are `OSError`s) when
    no whole reply comes within `timeout` seconds for each read.
    """
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(address)
        connection.sendall(command.encode() + b"\r\n")
        with connection.makefile("rb") as replies:
            return _read_reply(replies)


def _read_reply(replies: BinaryIO) -> str:
    head = replies.readline()
    if not head.endswith(b"\n"):
        raise ConnectionError("the server hung up")
    kind, line = head[:1], head[1:].rstrip(b"\r\n")
    if kind == b"$":
        return replies.read(int(line) + 2)[:-2].decode()
    if kind == b"*":
        return "\n".join([_read_reply(replies) for _ in range(int(line))])
    return ("-" if kind == b"-" else "") + line.decode()


def presence(address: Address, *, timeout: float = 1.0) -> Presence:
    """Tell whether a server answers at `address`; one that wants a password first counts as ready."""
    try:
        reply = ask(address, "PING", timeout=timeout)
    except (TimeoutError, BlockingIOError):  # the latter: too many wait to be accepted
        return Presence.SILENT
    except OSError:
        return Presence.ABSENT
    return Presence.LOADING if reply.startswith("-LOADING") else Presence.READY
