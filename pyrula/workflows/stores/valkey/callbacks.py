"""A link driven by its loop: for loops that call back when a socket can be read or written.

Replies are handed out inside the callback, so a call costs one turn of the loop and no task of its own.
"""

from __future__ import annotations

import socket
import weakref
from typing import Final

from anyio.lowlevel import current_token

from pyrula.workflows.stores.valkey.dial import Dialled
from pyrula.workflows.stores.valkey.link import Breakage, Link, Owner
from pyrula.workflows.stores.valkey.loops import CallbackLoop, Slot, callback_loop
from pyrula.workflows.stores.valkey.turns import TurnLink

__all__ = ["CallbackLink", "open_link"]


def open_link(dialled: Dialled, owner: Owner) -> Link:
    """A link of the kind that the running loop can drive best."""
    loop = callback_loop(current_token().native_token)
    if loop is not None:
        try:
            return CallbackLink(dialled, owner, loop)
        except NotImplementedError:  # a loop on completion ports
            pass
    return TurnLink(dialled, owner)


_ON_LIBUV: Final = ("uvloop", "winloop")


class CallbackLink(Link):
    """Driven by the loop: it calls back when the socket can be read or written.

    The loop holds the link as long as the socket is registered there, so the link holds the loop weakly.
    """

    __slots__ = ("_fd", "_joining", "_loop")

    def __init__(self, dialled: Dialled, owner: Owner, loop: CallbackLoop) -> None:
        super().__init__(dialled, owner)
        self._loop = weakref.ref(loop)
        self._fd = self._sock.fileno()
        self._joining = False
        on_libuv = type(loop).__module__.partition(".")[0] in _ON_LIBUV
        loop.add_reader(self._fd, self._receive_on_libuv if on_libuv else self.receive)

    def _running(self) -> CallbackLoop:
        loop = self._loop()
        assert loop is not None  # only its own callbacks and tasks get here
        return loop

    def _receive_on_libuv(self) -> None:
        """Read, and when the socket has an error read to the end.

        These loops call back once for a socket with an error (a reset connection) and never again.
        """
        self.receive()
        if self.breakage is None and self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            while self.receive():
                pass
            self.fail(Breakage(f"the connection to {self.label} was reset"))

    def slot(self) -> Slot:
        return self._loop().create_future()  # type: ignore[union-attr]  # alive: its own task is here

    def send(self, data: bytes) -> None:
        if self._joining or self._rest is not None:
            self._out.append(data)
            if len(self._out) >= self._chunk and self._rest is None:
                self._flush()
        elif self._seal is None:
            self._transmit(data)
        else:
            self._out.append(data)
            self._flush()

    def _woke(self, callers: int) -> None:
        # The woken callers run in the loop's next turn, and this callback after the last of them.
        if not self._joining:
            self._joining = True
            self._running().call_soon(self._joined)

    def _joined(self) -> None:
        self._joining = False
        if self._rest is None:
            self._flush()

    def _blocked(self) -> None:
        self._running().add_writer(self._fd, self._writable)

    def _writable(self) -> None:
        if self._go_on() and self.breakage is None:
            self._running().remove_writer(self._fd)

    def _detach(self) -> None:
        loop = self._loop()
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._fd)
            loop.remove_writer(self._fd)
