"""Schedules in a memory store. The same rules as the function library of the Valkey store.

Each method is one atomic step under the store's lock; `now` (microseconds) comes from the store.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyrula.contracts.errors import InvalidInput
from pyrula.contracts.ids import check_workflow_name
from pyrula.contracts.schedules import OUTCOMES_KEPT, Schedule, ScheduleMove, StoredSchedule
from pyrula.contracts.store import Bell, BellKind
from pyrula.workflows.stores.memory.bells import Exchange
from pyrula.workflows.stores.planning import changed, planned, taken, the_one

__all__ = ["ScheduleCalls"]


class ScheduleCalls:
    """The part of the memory store that keeps schedules; see `pyrula.contracts.schedules.Schedules`."""

    _lock: threading.Lock
    _exchange: Exchange

    def __init__(self) -> None:
        super().__init__()
        self._schedules: dict[str, StoredSchedule] = {}
        self._looked_at: dict[str, int] = {}  # when each is to be looked at, microseconds; 0 for never

    def _now(self) -> int:
        raise NotImplementedError

    # --- blocking, and awaited ----------------------------------------------------------

    def schedule_create(self, schedule: Schedule) -> Schedule:
        """Keep a schedule; a repeat of the same one changes nothing."""
        with self._lock:
            plan = planned(schedule, self._now())
            known = self._schedules.get(schedule.schedule_id)
            if known is not None:
                if known.workflow != schedule.workflow or known.document != plan.document:
                    raise taken(schedule, known.workflow)
                return known.schedule()
            return self._keep(
                StoredSchedule(
                    schedule.schedule_id, schedule.workflow, plan.document, 1, self._now(), plan.next, plan.due
                )
            )

    def schedule_list(self, workflow: str | None = None) -> list[Schedule]:
        """All schedules (of one workflow), by workflow and id."""
        if workflow is not None:
            check_workflow_name(workflow)
        with self._lock:
            found = [each for each in self._schedules.values() if workflow in (None, each.workflow)]
        return [each.schedule() for each in sorted(found, key=lambda each: (each.workflow, each.schedule_id))]

    def schedule_update(self, schedule_id: str, **changes: Any) -> Schedule:
        """Change fields of a schedule; what is next is computed anew."""
        with self._lock:
            stored = self._one(schedule_id)
            plan = planned(changed(stored, changes), self._now())
            return self._keep(
                replace(stored, document=plan.document, next=plan.next, due=plan.due, revision=stored.revision + 1)
            )

    def schedule_delete(self, schedule_id: str) -> None:
        """Forget a schedule; its runs are left alone."""
        with self._lock:
            self._one(schedule_id)
            del self._schedules[schedule_id], self._looked_at[schedule_id]

    async def aschedule_create(self, schedule: Schedule) -> Schedule:
        """`schedule_create`, awaited."""
        return self.schedule_create(schedule)

    async def aschedule_list(self, workflow: str | None = None) -> list[Schedule]:
        """`schedule_list`, awaited."""
        return self.schedule_list(workflow)

    async def aschedule_get(self, schedule_id: str) -> Schedule:
        """One schedule. Raises `ScheduleNotFound`."""
        with self._lock:
            return self._one(schedule_id).schedule()

    async def aschedule_update(self, schedule_id: str, **changes: Any) -> Schedule:
        """`schedule_update`, awaited."""
        return self.schedule_update(schedule_id, **changes)

    async def aschedule_delete(self, schedule_id: str) -> None:
        """`schedule_delete`, awaited."""
        self.schedule_delete(schedule_id)

    async def aschedule_note(self, workflow: str, schedule_id: str, outcome: bytes) -> None:
        """Note what was done by hand, once."""
        with self._lock:
            stored = self._schedules.get(schedule_id)
            if stored is not None and stored.workflow == workflow and outcome not in stored.outcomes:
                self._schedules[schedule_id] = replace(stored, outcomes=_more(stored, outcome))

    # --- for the schedule loop ----------------------------------------------------------

    async def schedules_due(
        self, workflow: str, *, limit: int, lease_ms: int
    ) -> tuple[Sequence[StoredSchedule], int | None]:
        """Take schedules that are due, and learn when the next one will be."""
        with self._lock:
            now = self._now()
            mine = sorted(
                (at, schedule_id)
                for schedule_id, at in self._looked_at.items()
                if at and self._schedules[schedule_id].workflow == workflow
            )
            due = [schedule_id for at, schedule_id in mine if at <= now][:limit]
            for schedule_id in due:
                self._looked_at[schedule_id] = now + lease_ms * 1000
            left = [at for at, schedule_id in mine if schedule_id not in set(due)]
            back = [now + lease_ms * 1000] if due else []
            return [self._schedules[schedule_id] for schedule_id in due], min([*left, *back], default=None)

    async def schedules_fired(self, workflow: str, moves: Sequence[ScheduleMove]) -> list[bool]:
        """Note what became of occurrences, and move their schedules on."""
        with self._lock:
            return [self._moved(move) for move in moves]

    def _moved(self, move: ScheduleMove) -> bool:
        stored = self._schedules.get(move.schedule_id)
        if stored is None or stored.revision != move.revision:
            return False
        self._schedules[move.schedule_id] = replace(
            stored,
            revision=stored.revision + 1,
            next=move.next,
            due=move.due,
            last=move.last or stored.last,
            outcomes=_more(stored, move.outcome),
        )
        self._looked_at[move.schedule_id] = move.due
        return True

    # --- common -------------------------------------------------------------------------

    def _one(self, schedule_id: str) -> StoredSchedule:
        if not isinstance(schedule_id, str) or not schedule_id:
            raise InvalidInput(f"schedule_id={schedule_id!r}: a non-empty string is needed", "schedule_id")
        known = self._schedules.get(schedule_id)
        return the_one(schedule_id, [] if known is None else [known])

    def _keep(self, stored: StoredSchedule) -> Schedule:
        self._schedules[stored.schedule_id] = stored
        self._looked_at[stored.schedule_id] = stored.due
        self._exchange.ring(Bell(BellKind.SCHEDULE, stored.workflow))
        return stored.schedule()


def _more(stored: StoredSchedule, outcome: bytes) -> tuple[bytes, ...]:
    return (outcome, *stored.outcomes)[:OUTCOMES_KEPT] if outcome else stored.outcomes
