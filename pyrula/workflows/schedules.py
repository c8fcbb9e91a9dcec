"""Schedules for those who make them: the record, the client's calls, and what is coming."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from pyrula.actors.tracing import submitted
from pyrula.contracts.errors import ConfigurationError, InvalidInput
from pyrula.contracts.events import from_micros, to_micros
from pyrula.contracts.ids import new_id
from pyrula.contracts.runs import Run
from pyrula.contracts.schedules import Firing, Overlap, Schedule, Schedules
from pyrula.contracts.schedules import firing_json as firing
from pyrula.contracts.store import Store
from pyrula.workflows.registry import Workflow
from pyrula.workflows.scheduling import run_of_occurrence
from pyrula.workflows.stores.occurrences import check_times, occurrences

__all__ = ["Firing", "Overlap", "Schedule", "ScheduleClient", "upcoming"]


def upcoming(schedule: Schedule, count: int = 5, after: datetime | None = None) -> list[datetime]:
    """The next occurrences (UTC, without jitter), at most `count`, later than `after` (now, for None).

    Raises `InvalidInput` for an expression or a zone that cannot be read.
    """
    if after is not None and after.tzinfo is None:
        raise InvalidInput(f"after needs an aware datetime, not {after!r}", "after")
    check_times(schedule.checked())
    start = to_micros(datetime.now(UTC) if after is None else after.astimezone(UTC))
    return [from_micros(each) for each in islice(occurrences(schedule, start), count)]


class ScheduleClient:
    """The part of a `WorkflowClient` that concerns schedules."""

    store: Store
    _limit: int

    async def get(self, name: str, run_id: str) -> Run:
        raise NotImplementedError

    async def schedule_create(
        self,
        schedule: Schedule | Workflow | str,
        cron: str | None = None,
        input: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Schedule:
        """Keep a schedule, given whole or as the arguments of `Schedule.create`. A repeat of the same changes nothing.

        Raises `InvalidInput` for what cannot be read, never comes due, or has another schedule's id.
        """
        made = schedule if isinstance(schedule, Schedule) else Schedule.create(schedule, cron, input, **more)
        return await self._schedules().aschedule_create(made)

    async def schedule_get(self, schedule_id: str) -> Schedule:
        """One schedule, with its next time and its last outcomes. Raises `ScheduleNotFound`."""
        return await self._schedules().aschedule_get(schedule_id)

    async def schedule_list(self, workflow: str | None = None) -> list[Schedule]:
        """All schedules (of one workflow), by workflow and id."""
        return await self._schedules().aschedule_list(workflow)

    async def schedule_update(self, schedule_id: str, **changes: Any) -> Schedule:
        """Change fields, `enabled=False` to pause; what is next is computed anew. Raises `ScheduleNotFound`."""
        return await self._schedules().aschedule_update(schedule_id, **changes)

    async def schedule_delete(self, schedule_id: str) -> None:
        """Forget a schedule; its runs are left alone. Raises `ScheduleNotFound`."""
        await self._schedules().aschedule_delete(schedule_id)

    async def schedule_trigger(self, schedule_id: str) -> Run:
        """Start a run of the schedule now, whatever its overlap policy, and enabled or not; its times stay as they are.

        Raises `ScheduleNotFound`, and `InvalidInput` when the workflow does not take the input.
        """
        store = self._schedules()
        schedule = await store.aschedule_get(schedule_id)
        now = await self.store.now()
        run = run_of_occurrence(schedule, now, new_id(), self._limit)
        await submitted(self.store, [run])
        await store.aschedule_note(schedule.workflow, schedule_id, firing(now, now, "triggered", run.run_id))
        return await self.get(schedule.workflow, run.run_id)

    def _schedules(self) -> Schedules:
        if not isinstance(self.store, Schedules):
            raise ConfigurationError(f"{type(self.store).__name__} keeps no schedules; use a store that does")
        return self.store
