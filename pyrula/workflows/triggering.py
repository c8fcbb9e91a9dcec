"""The trigger loop of a worker: starts runs by events, each event once for each trigger.

The store lends events and batches to one worker at a time, and the id of a run follows from its trigger
and its event (or the number of its batch): what is acted on twice, because a worker died in between,
starts one run. Which events a trigger wants is decided in `pyrula.contracts.triggers`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

import anyio
import orjson

from pyrula.actors.supervision import OutageLog
from pyrula.actors.tracing import submitted
from pyrula.contracts.errors import ConfigurationError, StoreError
from pyrula.contracts.store import NewRun, Store
from pyrula.contracts.triggers import Events, ReadyBatch, StoredEvent, Trigger, run_id_for
from pyrula.workflows.submission import new_run

if TYPE_CHECKING:
    from pyrula.contracts.store import Bell

__all__ = ["Triggering"]

log = logging.getLogger("pyrula.worker")

_BATCH: Final = 200
_LEASE_MS: Final = 10_000
_LONGEST_PAUSE: Final = 5.0
_EARLY: Final = 0.001


class Triggering:
    """Acts on events for some triggers, as one of a worker's loops. `limit`: bytes of a run's input.

    Raises `ConfigurationError` for a store that keeps no events.
    """

    def __init__(self, store: Store, triggers: Sequence[Trigger], *, limit: int) -> None:
        if not isinstance(store, Events):
            raise ConfigurationError(
                f"workflow {triggers[0].workflow!r} has triggers, and {type(store).__name__} keeps no events"
            )
        self._store = store
        self._log: Events = store
        self._triggers = triggers
        self._limit = limit

    async def run(self, outage: OutageLog, name: str) -> None:
        """Act on what is there, then wait for news. Ends only by an error."""
        async with self._log.event_bells() as listener:
            while True:
                nearest = await self.act()
                outage.succeeded(name)
                pause = _LONGEST_PAUSE
                if nearest is not None:
                    pause = min(pause, max(_EARLY, (nearest - await self._store.now()) / 1e6))
                await _heard(listener.next, pause)

    async def act(self) -> int | None:
        """Act on everything that is there; the time (microseconds) at which a batch will end."""
        nearest: int | None = None
        for trigger in self._triggers:
            while await self._events(trigger):
                pass
            if trigger.batch is not None:
                due = await self._batches(trigger)
                nearest = due if nearest is None else min(nearest, due or nearest)
        return nearest

    async def _events(self, trigger: Trigger) -> bool:
        """One read; whether there may be more."""
        events = await self._log.events_read(trigger.name, limit=_BATCH, lease_ms=_LEASE_MS)
        runs: list[NewRun] = []
        gathered: list[tuple[str, str, bytes]] = []
        done: list[str] = []
        refusals: list[bytes] = []
        for event in events:
            try:
                if not trigger.wants(event):
                    done.append(event.position)
                elif trigger.batch is not None:
                    gathered.append((event.position, trigger.key_of(event), orjson.dumps(event.as_json())))
                else:
                    runs.append(self._run(trigger, event.event_id, {"event": event.as_json()}, event))
                    done.append(event.position)
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever the author's condition or the input raises: the others go on
                log.warning("trigger %s is not for event %s: %s", trigger.name, event.event_id, error)
                refusals.append(_refusal(event.event_id, event.at, error))
                done.append(event.position)
        if runs:
            await submitted(self._store, runs)
        if gathered:
            assert trigger.batch is not None
            wait = int(trigger.batch.max_wait * 1000)
            await self._log.batch_add(trigger.name, gathered, max_size=trigger.batch.max_size, max_wait_ms=wait)
        if done:
            await self._log.events_done(trigger.name, done, refusals)
        return len(events) == _BATCH

    async def _batches(self, trigger: Trigger) -> int | None:
        """Start the runs of batches that have ended; when to look again."""
        while True:
            found, nearest = await self._log.batch_due(trigger.name, limit=_BATCH, lease_ms=_LEASE_MS)
            if not found:
                return nearest
            runs: list[NewRun] = []
            refusals: list[bytes] = []
            for batch in found:
                try:
                    runs.append(self._batch_run(trigger, batch))
                except StoreError:
                    raise
                except Exception as error:  # noqa: BLE001 - a batch that the workflow does not take must not stop the others
                    log.warning("trigger %s: its batch %d is refused: %s", trigger.name, batch.number, error)
                    first = orjson.loads(batch.events[0])["id"]
                    refusals.append(_refusal(first, await self._store.now(), error))
            if runs:
                await submitted(self._store, runs)
            await self._log.batch_done(trigger.name, [batch.number for batch in found], refusals)

    def _batch_run(self, trigger: Trigger, batch: ReadyBatch) -> NewRun:
        events = [orjson.loads(raw) for raw in batch.events]
        return self._run(trigger, f"batch {batch.number}", {"events": events}, None)

    def _run(self, trigger: Trigger, what: str, given: dict[str, object], event: StoredEvent | None) -> NewRun:
        about = {} if event is None else {"event": event.name, "event_id": event.event_id}
        return new_run(
            self._limit,
            trigger.workflow,
            given,
            run_id=run_id_for(trigger.name, what),
            attributes={"trigger": trigger.name, **about},
        )


def _refusal(event_id: str, at: int, error: Exception) -> bytes:
    return orjson.dumps({"event": event_id, "at": at, "reason": f"{type(error).__name__}: {error}"})


async def _heard(listen: Callable[[], Awaitable[Bell]], seconds: float) -> None:
    with anyio.move_on_after(seconds):
        await listen()
