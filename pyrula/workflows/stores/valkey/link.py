"""One logged-in connection: sends at once or joins what is queued, parses what comes, breaks once.

Two kinds, for what a loop offers: a `CallbackLink` is driven by the loop's own callbacks, a `TurnLink`
by the callers themselves, who take turns at reading for everyone. Neither owns a task. Here is what
both share. What a reply means is the owner's business: a link hands over its parser when something came.
"""

from __future__ import annotations

import ssl
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

from anyio.lowlevel import current_token
from libvalkey import ProtocolError

from pyrula.workflows.stores.valkey.dial import Dialled, QuietSocket, Seal
from pyrula.workflows.stores.valkey.loops import Slot, run_soon

__all__ = ["Breakage", "Link", "Owner"]

_RECEIVE: Final = 65536
_JOIN: Final = 3
"""From so many callers woken by one read on, their next commands are joined."""
_CHUNK: Final = 16
"""So many joined commands are sent without waiting for more, so that the server works meanwhile."""


class Breakage:
    """Why a link broke; stands in for the reply in every slot that was still waiting."""

    __slots__ = ("cause", "message", "timed_out")

    def __init__(self, message: str, cause: BaseException | None = None, *, timed_out: bool = False) -> None:
        self.message = message
        self.cause = cause
        self.timed_out = timed_out


class Owner(ABC):
    """Whoever reads the replies of a link. A link holds its owner weakly, and an owner that goes takes it along."""

    @abstractmethod
    def take(self, gets: Callable[[], Any]) -> int:
        """Consume replies until `gets` gives `PENDING`; the number of callers woken by them."""

    @abstractmethod
    def lost(self, breakage: Breakage) -> None:
        """The link broke; called once, and nothing comes from it any more."""


class Link(ABC):
    """What both kinds share: the socket, the bytes that wait, the parser, the end."""

    __slots__ = (
        "__weakref__",
        "_chunk",
        "_feed",
        "_gets",
        "_out",
        "_owner",
        "_rest",
        "_seal",
        "_sock",
        "_token",
        "breakage",
        "label",
        "moved",
    )

    def __init__(self, dialled: Dialled, owner: Owner) -> None:
        self._sock: QuietSocket = dialled.sock
        self._seal: Seal | None = dialled.seal
        self._feed = dialled.reader.feed
        self._gets = dialled.reader.gets
        self._owner = weakref.ref(owner)
        self._out: list[bytes] = []  # whole commands, not sealed yet
        self._chunk = _CHUNK
        self._rest: memoryview | None = None  # what the socket did not take; sealed
        self._token: weakref.ref[Any] = weakref.ref(current_token().native_token)
        self.label = dialled.label
        self.breakage: Breakage | None = None
        self.moved = False
        """Bytes went or came since the owner last looked."""

    @abstractmethod
    def slot(self) -> Slot:
        """A slot that is awaited on this link."""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Send whole commands: at once, or with those of others that are about to be sent. Never waits."""

    @abstractmethod
    def _blocked(self) -> None:
        """The socket takes no more; `_rest` is to go on when it does."""

    @abstractmethod
    def _woke(self, callers: int) -> None:
        """So many callers have been woken."""

    @abstractmethod
    def _detach(self) -> None:
        """Forget the socket; it is about to be closed."""

    def fail(self, breakage: Breakage) -> None:
        """Break: close the socket and tell the owner. Later calls change nothing."""
        if self.breakage is not None:
            return
        self.breakage = breakage
        self._out.clear()
        self._rest = None
        self._detach()
        self._sock.close()
        owner = self._owner()
        if owner is not None:
            owner.lost(breakage)

    def close(self) -> None:
        """Break on purpose, from a task of any loop; callers that still wait learn it in their own."""
        if self._token() is current_token().native_token:
            self._close()
        else:
            self.abandon()

    def abandon(self) -> None:
        """The same for where no loop may run, as in a finalizer: the link's own loop closes it soon."""
        token = self._token()
        if token is None or not run_soon(token, self._close):
            # The loop is over, and nobody waits there any more.
            self.breakage = Breakage(f"the connection to {self.label} was closed")
            self._sock.close()

    def _close(self) -> None:
        self.fail(Breakage(f"the connection to {self.label} was closed"))

    def receive(self) -> bool:
        """Take what the socket has and pass it on; False when there was nothing, or the link broke. Never waits."""
        try:
            data = self._sock.recv(_RECEIVE)
            if self._seal is not None and data:
                data = self._seal.open(data)
                if reply := self._seal.outgoing():
                    self._transmit(reply)
                if not data:
                    return True
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:  # ssl.SSLError is one
            self.fail(Breakage(f"the connection to {self.label} broke: {_reason(error)}", error))
            return False
        if not data:
            self.fail(Breakage(f"{self.label} closed the connection"))
            return False
        self.moved = True
        self._feed(data)
        owner = self._owner()
        if owner is None:
            return False  # it has just gone, and this link is about to be closed
        try:
            woken = owner.take(self._gets)
        except (ProtocolError, LookupError) as error:
            self.fail(Breakage(f"{self.label} sent what no command asked for", error))
            return False
        self.expect(woken)
        return True

    def expect(self, callers: int) -> None:
        """So many callers were just woken and are about to send: join what they do."""
        if callers >= _JOIN:
            # As few pieces as the bound allows, and none of them a small remainder.
            pieces = -(-callers // _CHUNK)
            self._chunk = -(-callers // pieces)
            self._woke(callers)

    def _flush(self) -> None:
        """Send everything that is queued, as one. Nothing may be blocked."""
        out = self._out
        if out:
            data = out[0] if len(out) == 1 else b"".join(out)
            out.clear()
            try:
                self._transmit(data if self._seal is None else self._seal.seal(data))
            except ssl.SSLError as error:
                self.fail(Breakage(f"the connection to {self.label} broke: {_reason(error)}", error))

    def _transmit(self, data: bytes) -> None:
        """Hand sealed bytes to the socket, behind those that are still waiting."""
        if self._rest is not None:
            self._rest = memoryview(b"".join((self._rest, data)))
            return
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self.fail(Breakage(f"the connection to {self.label} broke: {_reason(error)}", error))
            return
        if sent != len(data):
            self._rest = memoryview(data)[sent:]
            self._blocked()

    def _go_on(self) -> bool:
        """Send more of what was blocked; True when nothing is left of it."""
        rest = self._rest
        if rest is None:
            return True
        try:
            sent = self._sock.send(rest)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self.fail(Breakage(f"the connection to {self.label} broke: {_reason(error)}", error))
            return True
        self.moved = True
        if sent != len(rest):
            self._rest = rest[sent:]
            return False
        self._rest = None
        self._flush()
        return self._rest is None


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
