"""Application events and triggers in Valkey. The decisions are in the function library; here are the calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import orjson

from pyrula.contracts.store import Bell, BellKind, Listener
from pyrula.contracts.triggers import NewEvent, ReadyBatch, StoredEvent, TriggerState
from pyrula.workflows.stores.valkey.pubsub import Listener as Channel
from pyrula.workflows.stores.valkey.server import Server

__all__ = ["EventCalls"]


class EventCalls:
    """The part of the Valkey store that keeps events; see `pyrula.contracts.triggers.Events`."""

    _server: Server
    event_ttl: float

    async def emit(self, events: Sequence[NewEvent]) -> list[bool]:
        """Keep events; False for one whose id is known."""
        args: list[str | bytes] = []
        for event in events:
            args += (event.event_id, event.name, event.payload)
        answers = await self._server.function("emit", self._events, int(self.event_ttl * 1000), *args)
        return [answer == 1 for answer in answers]

    async def events_read(self, trigger: str, *, limit: int, lease_ms: int) -> Sequence[StoredEvent]:
        """Lend events to one caller."""
        found = await self._server.function("events_read", self._events, trigger, limit, lease_ms, "$")
        return [
            StoredEvent(position.decode(), event_id.decode(), name.decode(), payload, int(at))
            for position, event_id, name, payload, at in found
        ]

    async def events_done(self, trigger: str, positions: Sequence[str], refusals: Sequence[bytes] = ()) -> None:
        """These events need not be lent again."""
        await self._server.function("events_done", self._events, trigger, len(positions), *positions, *refusals)

    async def batch_add(
        self, trigger: str, events: Sequence[tuple[str, str, bytes]], *, max_size: int, max_wait_ms: int
    ) -> int:
        """Put lent events into batches, each once."""
        args = [part for event in events for part in event]
        added: int = await self._server.function("batch_add", self._events, trigger, max_size, max_wait_ms, *args)
        return added

    async def batch_due(self, trigger: str, *, limit: int, lease_ms: int) -> tuple[Sequence[ReadyBatch], int | None]:
        """Lend batches that have ended."""
        _, nearest, found = await self._server.function("batch_due", self._events, trigger, limit, lease_ms)
        return [ReadyBatch(int(number), events) for number, events in found], int(nearest) if nearest else None

    async def batch_done(self, trigger: str, numbers: Sequence[int], refusals: Sequence[bytes] = ()) -> None:
        """These batches need not be lent again."""
        await self._server.function("batch_done", self._events, trigger, len(numbers), *numbers, *refusals)

    async def trigger_list(self) -> list[TriggerState]:
        """All triggers that the store knows."""
        found = await self._server.function("trigger_list", self._events)
        states = [
            TriggerState(
                name.decode(),
                None if lag in (b"", None) else int(lag),
                int(lent),
                int(gathering),
                int(ready),
                tuple(orjson.loads(each) for each in refused),
            )
            for name, lag, lent, _, gathering, ready, refused in found
        ]
        return sorted(states, key=lambda state: state.name)

    async def trigger_seek(self, trigger: str, since: int | None) -> bool:
        """Have a trigger go over what is kept."""
        # Positions are in milliseconds; what is wanted is everything from that one on.
        start = "0" if since is None else f"{max(0, since // 1000 - 1)}-{2**64 - 1}"
        return bool(await self._server.function("trigger_seek", self._events, trigger, start))

    async def trigger_drop(self, trigger: str) -> bool:
        """Forget a trigger."""
        return bool(await self._server.function("trigger_drop", self._events, trigger))

    def event_bells(self) -> AbstractAsyncContextManager[Listener]:
        """A listener for news of events."""
        return _bells(self._server, self._events)

    @property
    def _events(self) -> bytes:
        return self._server.keys.events


class _Bells:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def next(self) -> Bell:
        await self._channel.next()
        return Bell(BellKind.LOOK)


@asynccontextmanager
async def _bells(server: Server, prefix: bytes) -> AsyncIterator[Listener]:
    async with (await server.subscriptions()).listen([server.keys.bell(prefix)]) as channel:
        yield _Bells(channel)
