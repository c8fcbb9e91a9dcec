"""Schedules in Valkey: the awaited calls, their blocking twins, and what a worker's schedule loop asks.

All schedules of a workflow live in its first shard. The decisions are in the function library and in
`planning`; here are the calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

import anyio

from pyrula.contracts.errors import InvalidInput, ScheduleNotFound, StoreError
from pyrula.contracts.ids import check_workflow_name
from pyrula.contracts.schedules import Schedule, ScheduleMove, StoredSchedule
from pyrula.workflows.stores.planning import changed, planned, taken, the_one
from pyrula.workflows.stores.valkey.server import Server

__all__ = ["ScheduleCalls"]

T = TypeVar("T")
_TRIES: Final = 20
"""So often a change is tried against others that come in between."""


class ScheduleCalls:
    """The part of the Valkey store that keeps schedules; see `pyrula.contracts.schedules.Schedules`."""

    _server: Server

    async def now(self) -> int:
        raise NotImplementedError

    async def workflows(self) -> list[str]:
        raise NotImplementedError

    # --- awaited ------------------------------------------------------------------------

    async def aschedule_create(self, schedule: Schedule) -> Schedule:
        """Keep a schedule; a repeat of the same one changes nothing."""
        plan = planned(schedule, await self.now())
        for other in await self._found([schedule.schedule_id], None):
            if other.workflow != schedule.workflow:
                raise taken(schedule, other.workflow)
        await self._server.register(schedule.workflow)
        answer, *record = await self._server.function(
            "schedule_put",
            self._home(schedule.workflow),
            schedule.schedule_id,
            "",
            plan.document,
            plan.next,
            plan.due,
        )
        if answer == b"EXISTS":
            raise taken(schedule, schedule.workflow)
        return _stored(schedule.workflow, record[0]).schedule()

    async def aschedule_list(self, workflow: str | None = None) -> list[Schedule]:
        """All schedules (of one workflow), by workflow and id."""
        found = await self._found([], workflow)
        return [stored.schedule() for stored in sorted(found, key=lambda each: (each.workflow, each.schedule_id))]

    async def aschedule_get(self, schedule_id: str) -> Schedule:
        """One schedule. Raises `ScheduleNotFound`."""
        return (await self._one(schedule_id)).schedule()

    async def aschedule_update(self, schedule_id: str, **changes: Any) -> Schedule:
        """Change fields of a schedule; what is next is computed anew."""
        for _ in range(_TRIES):
            stored = await self._one(schedule_id)
            plan = planned(changed(stored, changes), await self.now())
            answer, *record = await self._server.function(
                "schedule_put",
                self._home(stored.workflow),
                schedule_id,
                stored.revision,
                plan.document,
                plan.next,
                plan.due,
            )
            if answer == b"NONE":
                raise ScheduleNotFound(schedule_id)
            if answer == b"OK":
                return _stored(stored.workflow, record[0]).schedule()
        raise StoreError(f"schedule {schedule_id!r} was changed by others all the time; try again")

    async def aschedule_delete(self, schedule_id: str) -> None:
        """Forget a schedule; its runs are left alone."""
        stored = await self._one(schedule_id)
        if not await self._server.function("schedule_delete", self._home(stored.workflow), schedule_id):
            raise ScheduleNotFound(schedule_id)

    async def aschedule_note(self, workflow: str, schedule_id: str, outcome: bytes) -> None:
        """Note what was done by hand."""
        await self._server.function("schedule_note", self._home(workflow), schedule_id, outcome)

    # --- blocking -----------------------------------------------------------------------

    def schedule_create(self, schedule: Schedule) -> Schedule:
        """`aschedule_create`, blocking."""
        return _blocking(partial(self.aschedule_create, schedule))

    def schedule_list(self, workflow: str | None = None) -> list[Schedule]:
        """`aschedule_list`, blocking."""
        return _blocking(partial(self.aschedule_list, workflow))

    def schedule_update(self, schedule_id: str, **changes: Any) -> Schedule:
        """`aschedule_update`, blocking."""
        return _blocking(partial(self.aschedule_update, schedule_id, **changes))

    def schedule_delete(self, schedule_id: str) -> None:
        """`aschedule_delete`, blocking."""
        _blocking(partial(self.aschedule_delete, schedule_id))

    # --- for the schedule loop ----------------------------------------------------------

    async def schedules_due(
        self, workflow: str, *, limit: int, lease_ms: int
    ) -> tuple[Sequence[StoredSchedule], int | None]:
        """Take schedules that are due, and learn when the next one will be."""
        _, nearest, found = await self._server.function("schedule_due", self._home(workflow), limit, lease_ms)
        return [_stored(workflow, record) for record in found], int(nearest) if nearest else None

    async def schedules_fired(self, workflow: str, moves: Sequence[ScheduleMove]) -> list[bool]:
        """Note what became of occurrences, and move their schedules on."""
        args: list[str | int | bytes] = []
        for move in moves:
            args += (move.schedule_id, move.revision, move.next, move.due, move.last or "", move.outcome)
        answers = await self._server.function("schedule_fired", self._home(workflow), *args)
        return [answer == 1 for answer in answers]

    # --- common -------------------------------------------------------------------------

    def _home(self, workflow: str) -> bytes:
        return self._server.keys.shards(workflow)[0]

    async def _one(self, schedule_id: str) -> StoredSchedule:
        if not isinstance(schedule_id, str) or not schedule_id:
            raise InvalidInput(f"schedule_id={schedule_id!r}: a non-empty string is needed", "schedule_id")
        return the_one(schedule_id, await self._found([schedule_id], None))

    async def _found(self, ids: list[str], workflow: str | None) -> list[StoredSchedule]:
        names = await self.workflows() if workflow is None else [check_workflow_name(workflow)]
        calls = [("schedule_list", self._home(name), *ids) for name in names]
        answers = await self._server.functions(calls) if calls else []
        return [_stored(name, each) for name, records in zip(names, answers, strict=True) for each in records]


def _stored(workflow: str, record: Sequence[Any]) -> StoredSchedule:
    schedule_id, document, revision, created, following, due, last, outcomes = record
    return StoredSchedule(
        schedule_id=schedule_id.decode(),
        workflow=workflow,
        document=document,
        revision=int(revision),
        created=int(created),
        next=int(following),
        due=int(due),
        last=int(last),
        outcomes=tuple(outcomes),
    )


def _blocking(call: Callable[[], Awaitable[T]]) -> T:
    """Await a call on a loop of its own in another thread: this thread may have a loop that runs already."""
    with ThreadPoolExecutor(1, thread_name_prefix="pyrula-schedules") as pool:
        return pool.submit(anyio.run, call).result()
