"""Application events and triggers in a memory store. The same rules as the function library of the Valkey store.

Each method is one atomic step under the store's lock; `now` (microseconds) comes from the store.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import orjson

from pyrula.contracts.store import Bell, BellKind, Listener
from pyrula.contracts.triggers import NewEvent, ReadyBatch, StoredEvent, TriggerState
from pyrula.workflows.stores.memory.bells import Exchange

__all__ = ["EventCalls"]

_CHANNEL: Final = "{$events}"  # no workflow can have this name
_REFUSED_KEPT: Final = 100


@dataclass(slots=True)
class _Trigger:
    """Where a trigger stands. Times in microseconds."""

    seen: int  # the number of the last event it was given
    lent: dict[int, int] = field(default_factory=dict)  # event number: when its lease runs out
    batches: dict[str, list[bytes]] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    ended: dict[int, list[bytes]] = field(default_factory=dict)
    ready: dict[int, int] = field(default_factory=dict)
    numbers: int = 0
    refused: list[bytes] = field(default_factory=list)

    def end_batch(self, key: str, now: int) -> None:
        self.numbers += 1
        self.ended[self.numbers] = self.batches.pop(key)
        del self.waiting[key]
        self.ready[self.numbers] = now

    def refuse(self, refusals: Sequence[bytes]) -> None:
        for each in refusals:
            if each not in self.refused:
                self.refused.insert(0, each)
        del self.refused[_REFUSED_KEPT:]


class EventCalls:
    """The part of the memory store that keeps events; see `pyrula.contracts.triggers.Events`."""

    _lock: threading.Lock
    _exchange: Exchange
    event_ttl: float

    def __init__(self) -> None:
        super().__init__()
        self._log: dict[int, StoredEvent] = {}
        self._ids: dict[str, int] = {}
        self._last = 0
        self._triggers: dict[str, _Trigger] = {}
        self._numbers: dict[str, int] = {}  # of triggers that were forgotten: a number is never given out twice

    def _now(self) -> int:
        raise NotImplementedError

    async def emit(self, events: Sequence[NewEvent]) -> list[bool]:
        """Keep events; False for one whose id is known."""
        with self._lock:
            now = self._now()
            new = [self._kept(event, now) for event in events]
            oldest = now - int(self.event_ttl * 1_000_000)
            for number in [number for number, event in self._log.items() if event.at < oldest]:
                del self._ids[self._log.pop(number).event_id]
            self._exchange.ring(Bell(BellKind.LOOK, _CHANNEL))
            return new

    def _kept(self, event: NewEvent, now: int) -> bool:
        if event.event_id in self._ids:
            return False
        self._last += 1
        self._ids[event.event_id] = self._last
        self._log[self._last] = StoredEvent(str(self._last), event.event_id, event.name, event.payload, now)
        return True

    async def events_read(self, trigger: str, *, limit: int, lease_ms: int) -> Sequence[StoredEvent]:
        """Lend events to one caller."""
        with self._lock:
            now = self._now()
            state = self._triggers.get(trigger)
            if state is None:
                state = self._triggers[trigger] = _Trigger(self._last, numbers=self._numbers.get(trigger, 0))
            again = [number for number, until in sorted(state.lent.items()) if until <= now]
            for number in [number for number in again if number not in self._log]:
                again.remove(number)
                del state.lent[number]
            fresh = [number for number in self._log if number > state.seen]
            found = [*again, *fresh][:limit]
            for number in found:
                state.lent[number] = now + lease_ms * 1000
                state.seen = max(state.seen, number)
            return [self._log[number] for number in found]

    async def events_done(self, trigger: str, positions: Sequence[str], refusals: Sequence[bytes] = ()) -> None:
        """These events need not be lent again."""
        with self._lock:
            state = self._triggers.get(trigger)
            if state is not None:
                for position in positions:
                    state.lent.pop(int(position), None)
                state.refuse(refusals)

    async def batch_add(
        self, trigger: str, events: Sequence[tuple[str, str, bytes]], *, max_size: int, max_wait_ms: int
    ) -> int:
        """Put lent events into batches, each once."""
        with self._lock:
            now = self._now()
            state = self._triggers.get(trigger)
            added = 0
            for position, key, raw in events if state is not None else ():
                assert state is not None
                if state.lent.pop(int(position), None) is None:
                    continue
                added += 1
                batch = state.batches.setdefault(key, [])
                batch.append(raw)
                state.waiting.setdefault(key, now + max_wait_ms * 1000)
                if len(batch) >= max_size:
                    state.end_batch(key, now)
            return added

    async def batch_due(self, trigger: str, *, limit: int, lease_ms: int) -> tuple[Sequence[ReadyBatch], int | None]:
        """Lend batches that have ended."""
        with self._lock:
            now = self._now()
            state = self._triggers.get(trigger)
            if state is None:
                return [], None
            over = sorted((until, key) for key, until in state.waiting.items() if until <= now)
            for _, key in over[:limit]:
                state.end_batch(key, now)
            numbers = sorted((since, number) for number, since in state.ready.items() if since <= now)[:limit]
            for _, number in numbers:
                state.ready[number] = now + lease_ms * 1000
            nearest = min([*state.waiting.values(), *state.ready.values()], default=None)
            return [ReadyBatch(number, list(state.ended[number])) for _, number in numbers], nearest

    async def batch_done(self, trigger: str, numbers: Sequence[int], refusals: Sequence[bytes] = ()) -> None:
        """These batches need not be lent again."""
        with self._lock:
            state = self._triggers.get(trigger)
            if state is not None:
                for number in numbers:
                    state.ended.pop(number, None)
                    state.ready.pop(number, None)
                state.refuse(refusals)

    async def trigger_list(self) -> list[TriggerState]:
        """All triggers that the store knows."""
        with self._lock:
            return [
                TriggerState(
                    name,
                    sum(number > state.seen for number in self._log),
                    len(state.lent),
                    len(state.waiting),
                    len(state.ready),
                    tuple(orjson.loads(each) for each in state.refused),
                )
                for name, state in sorted(self._triggers.items())
            ]

    async def trigger_seek(self, trigger: str, since: int | None) -> bool:
        """Have a trigger go over what is kept."""
        with self._lock:
            state = self._triggers.get(trigger)
            if state is None:
                return False
            earlier = [number for number, event in self._log.items() if since is not None and event.at < since]
            state.seen = max(earlier, default=0)
            self._exchange.ring(Bell(BellKind.LOOK, _CHANNEL))
            return True

    async def trigger_drop(self, trigger: str) -> bool:
        """Forget a trigger."""
        with self._lock:
            state = self._triggers.pop(trigger, None)
            if state is not None:
                self._numbers[trigger] = state.numbers
            return state is not None

    def event_bells(self) -> AbstractAsyncContextManager[Listener]:
        """A listener for news of events."""
        return _bells(self._exchange)


@asynccontextmanager
async def _bells(exchange: Exchange) -> AsyncIterator[Listener]:
    with exchange.workers([_CHANNEL]) as mailbox:
        yield mailbox
