"""A link driven by its callers: for loops that have tasks and nothing else.

Whoever waits for a reply may have to read for all, to go on with a blocked write, or to flush what
was joined; a caller that leaves hands its duty to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import anyio
from anyio.lowlevel import cancel_shielded_checkpoint

from pyrula.workflows.stores.valkey.dial import Dialled
from pyrula.workflows.stores.valkey.link import Breakage, Link, Owner

__all__ = ["TurnLink", "TurnSlot"]


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
            if self._expected <= 0 or len(self._out) >= self._chunk:
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
