"""One logged-in connection: sends at once or joins what is queued, parses what comes, breaks once.

Two kinds, for what a loop offers: `CallbackLink` is driven by the loop's own callbacks, `TurnLink` by
the callers themselves, who take turns at reading for everyone. Neither owns a task. What a reply
means is the owner's business: a link hands over its parser whenever something came.
"""

from __future__ import annotations

import ssl
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import Any, Final

import anyio
from anyio.lowlevel import cancel_shielded_checkpoint, current_token
from libvalkey import ProtocolError

from pyrula.workflows.stores.valkey.dial import Dialled, QuietSocket, Seal
from pyrula.workflows.stores.valkey.loops import CallbackLoop, Slot, callback_loop, run_soon

__all__ = ["Breakage", "CallbackLink", "Link", "Owner", "TurnLink", "TurnSlot", "open_link"]

_RECEIVE: Final = 65536
_JOIN: Final = 3
"""From so many callers woken by one read on, their next commands are joined."""
_CHUNK: Final = 12
"""So many joined commands are sent without waiting for more, so that the server works meanwhile."""


class Breakage:
    """Why a link broke; stands in for the reply in every slot that was still waiting."""

    __slots__ = ("cause", "message", "timed_out")

    def __init__(self, message: str, cause: BaseException | None = None, *, timed_out: bool = False) -> None:
        self.message = message
        self.cause = cause
        self.timed_out = timed_out


class Owner(ABC):
    """Whoever reads the replies of a link."""

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
        self._owner = owner
        self._out: list[bytes] = []  # whole commands, not sealed yet
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
        """A read has woken so many callers."""

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
        self._owner.lost(breakage)

    def close(self) -> None:
        """Break on purpose, from a task of any loop; callers that still wait learn it in their own."""
        token = self._token()
        if token is current_token().native_token:
            self._close()
        elif token is None or not run_soon(token, self._close):
            # The loop is over, and nobody waits there any more.
            self.breakage = Breakage(f"the connection to {self.label} was closed")
            self._sock.close()

    def _close(self) -> None:
        self.fail(Breakage(f"the connection to {self.label} was closed"))

    def receive(self) -> None:
        """Take what the socket has and pass it on. Never waits."""
        try:
            data = self._sock.recv(_RECEIVE)
            if self._seal is not None and data:
                data = self._seal.open(data)
                if reply := self._seal.outgoing():
                    self._transmit(reply)
                if not data:
                    return
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:  # ssl.SSLError is one
            self.fail(Breakage(f"the connection to {self.label} broke: {_reason(error)}", error))
            return
        if not data:
            self.fail(Breakage(f"{self.label} closed the connection"))
            return
        self.moved = True
        self._feed(data)
        try:
            woken = self._owner.take(self._gets)
        except (ProtocolError, LookupError) as error:
            self.fail(Breakage(f"{self.label} sent what no command asked for", error))
            return
        if woken >= _JOIN:
            self._woke(woken)

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


def open_link(dialled: Dialled, owner: Owner) -> Link:
    """A link of the kind that the running loop can drive best."""
    loop = callback_loop(current_token().native_token)
    if loop is not None:
        try:
            return CallbackLink(dialled, owner, loop)
        except NotImplementedError:  # a loop on completion ports
            pass
    return TurnLink(dialled, owner)


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
        loop.add_reader(self._fd, self.receive)

    def _running(self) -> CallbackLoop:
        loop = self._loop()
        assert loop is not None  # only its own callbacks and tasks get here
        return loop

    def slot(self) -> Slot:
        return self._loop().create_future()  # type: ignore[union-attr]  # alive: its own task is here

    def send(self, data: bytes) -> None:
        if self._joining or self._rest is not None:
            self._out.append(data)
            if len(self._out) >= _CHUNK and self._rest is None:
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


class TurnSlot:
    """A reply's place on a `TurnLink`. Whoever awaits it may have to read or write for all."""

    __slots__ = ("_link", "abandoned", "event", "filled", "value")

    def __init__(self, link: TurnLink) -> None:
        self._link = link
        self.filled = False
        self.abandoned = False
        self.value: Any = None
        self.event: anyio.Event | None = None

    def done(self) -> bool:
        return self.filled or self.abandoned

    def set_result(self, result: Any, /) -> None:
        self.filled = True
        self.value = result
        if self.event is not None:
            self.event.set()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._link.turn(self)


class TurnLink(Link):
    """Driven by its callers: one of them reads for all until its own reply is there, then the next.

    Two duties, each had by one caller at most: `_reader` waits for what comes, `_writer` sends what the
    socket did not take at once. `_followers` wait for their reply or for a duty, in the order they came.
    """

    __slots__ = ("_expected", "_flushing", "_followers", "_new_event", "_reader", "_writer")

    def __init__(self, dialled: Dialled, owner: Owner) -> None:
        super().__init__(dialled, owner)
        # The loop's own kind of event: asking which loop runs, for each event, costs as much as the event.
        self._new_event: Callable[[], anyio.Event] = type(anyio.Event())
        self._followers: dict[TurnSlot, None] = {}
        self._reader: TurnSlot | None = None
        self._writer: TurnSlot | None = None
        self._flushing = False
        self._expected = 0  # callers woken by the last read that have not sent since

    def slot(self) -> TurnSlot:
        return TurnSlot(self)

    def send(self, data: bytes) -> None:
        if self._rest is not None:
            self._out.append(data)
        elif self._expected > 1 or self._out:
            self._expected -= 1
            self._out.append(data)
            if self._expected <= 0 or len(self._out) >= _CHUNK:
                self._flush()
        elif self._seal is None:
            self._expected = 0
            self._transmit(data)
        else:
            self._expected = 0
            self._out.append(data)
            self._flush()

    def _woke(self, callers: int) -> None:
        self._expected = callers

    def _blocked(self) -> None:
        """The caller whose bytes blocked goes on with them as soon as it awaits its slot."""

    def _detach(self) -> None:
        anyio.notify_closing(self._sock)

    def turn(self, slot: TurnSlot) -> Generator[Any, Any, Any]:
        """Do what has to be done until the slot is filled. A bare generator: half the price of a coroutine."""
        try:
            if self._out and not self._flushing and self._rest is None:
                yield from self._flush_after_others().__await__()
            while not slot.filled:
                if self._rest is not None and (self._writer is None or self._writer is slot):
                    yield from self._write(slot).__await__()
                elif self._reader is None or self._reader is slot:
                    yield from self._read(slot).__await__()
                else:
                    slot.event = event = self._new_event()
                    self._followers[slot] = None
                    yield from event.wait().__await__()
        finally:
            slot.abandoned = True
            self._followers.pop(slot, None)
            if self._reader is slot or self._writer is slot or self._rest is not None:
                self._hand_over(slot)
        return slot.value

    async def _flush_after_others(self) -> None:
        """Let the callers that were woken together come, then send what they have queued.

        The last of them to send flushes; this is for when not all do. A turn of the loop may run this
        caller before the others, so one turn in which nobody came proves nothing.
        """
        self._flushing = True
        try:
            idle = 0
            while idle < 2 and self._expected > 0:
                expected = self._expected
                await cancel_shielded_checkpoint()
                idle = idle + 1 if self._expected == expected else 0
        finally:
            self._flushing = False
            self._expected = 0
            if self._rest is None:
                self._flush()

    async def _read(self, slot: TurnSlot) -> None:
        self._reader = slot
        try:
            while not slot.filled:
                await anyio.wait_readable(self._sock)
                self.receive()
                if self._rest is not None and self._writer is None:
                    return  # TLS wants to send
        except anyio.ClosedResourceError:
            return  # the link broke under another caller, and the slot says so

    async def _write(self, slot: TurnSlot) -> None:
        self._writer = slot
        try:
            while not self._go_on():
                await anyio.wait_writable(self._sock)
        except anyio.ClosedResourceError:
            return  # the link broke under another caller, and the slot says so
        self._writer = None

    def _hand_over(self, slot: TurnSlot) -> None:
        """The caller leaves: each duty it had goes to a follower."""
        if self._reader is slot:
            self._reader = self._next()
        if self._writer is slot or (self._writer is None and self._rest is not None):
            self._writer = self._next()
            if self._writer is None and self._rest is not None:
                # A command cut in two, and nobody to send its other half: it must never take effect later.
                self.fail(Breakage(f"a call to {self.label} was cancelled half sent"))

    def _next(self) -> TurnSlot | None:
        """The follower that came first, woken for a duty."""
        while self._followers:
            slot = next(iter(self._followers))
            del self._followers[slot]
            if not slot.filled and slot.event is not None:
                slot.event.set()  # it sees its duty when it runs
                return slot
        return None
