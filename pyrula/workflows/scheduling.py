"""The schedule loop of a worker: acts on each occurrence once, whoever else looks and whoever dies.

The store lends a due schedule to one worker at a time. The run of an occurrence has an id derived from
schedule and occurrence, so an occurrence that is acted on twice (a worker died in between) starts one
run. When an expression is due is decided in `pyrula.workflows.stores.occurrences`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyrula.actors.doorbell import Doorbell
from pyrula.actors.supervision import OutageLog
from pyrula.actors.tracing import submitted
from pyrula.contracts.errors import PyrulaError, RunNotFound, StoreError, WrongRunState
from pyrula.contracts.events import from_micros
from pyrula.contracts.mail import MailKind, pack
from pyrula.contracts.schedules import Overlap, Schedule, ScheduleMove, Schedules, StoredSchedule, occurrence_run_id
from pyrula.contracts.schedules import firing_json as firing
from pyrula.contracts.store import Message, NewRun
from pyrula.workflows.stores.occurrences import due_time, following
from pyrula.workflows.submission import new_run

if TYPE_CHECKING:
    from pyrula.workflows.client import WorkflowClient

__all__ = ["LONGEST_PAUSE", "Scheduler", "run_of_occurrence"]

log = logging.getLogger("pyrula.worker")

LONGEST_PAUSE: Final = 30.0
"""Seconds: a schedule whose bell was lost is found this late at most."""
_BATCH: Final = 250
_LEASE_MS: Final = 5_000
_LOOK_AGAIN: Final = 500_000  # microseconds until an occurrence that waits for a run's end is looked at again
_EARLY: Final = 0.001


def run_of_occurrence(schedule: Schedule, occurrence: int, run_id: str, limit: int) -> NewRun:
    """The submission for an occurrence (microseconds). Raises `InvalidInput` when the workflow does not take it."""
    about = {"schedule_id": schedule.schedule_id, "scheduled_for": from_micros(occurrence).isoformat()}
    return new_run(
        limit,
        schedule.workflow,
        schedule.input,
        run_id=run_id,
        owner=schedule.owner,
        priority=schedule.priority,
        attributes={**schedule.attributes, **about},
    )


class Scheduler:
    """Fires the schedules of some workflows, as one of a worker's loops."""

    def __init__(
        self, store: Schedules, client: WorkflowClient, workflows: Sequence[str], bell: Doorbell, *, limit: int
    ) -> None:
        self._store = store
        self._client = client
        self._workflows = workflows
        self._bell = bell
        self._limit = limit

    async def run(self, outage: OutageLog, name: str) -> None:
        """Fire what is due, then sleep until the next time or the bell. Ends only by an error."""
        while True:
            nearest: int | None = None
            for workflow in self._workflows:
                due = await self.fire_due(workflow)
                nearest = due if nearest is None else min(nearest, due or nearest)
            outage.succeeded(name)
            pause = LONGEST_PAUSE
            if nearest is not None:
                pause = min(pause, max(_EARLY, (nearest - await self._client.store.now()) / 1e6))
            await self._bell.wait(pause)

    async def fire_due(self, workflow: str) -> int | None:
        """Fire until nothing is due; the time at which something will be (microseconds)."""
        while True:
            taken, nearest = await self._store.schedules_due(workflow, limit=_BATCH, lease_ms=_LEASE_MS)
            if not taken:
                return nearest
            await self._fire(workflow, taken)

    async def _fire(self, workflow: str, taken: Sequence[StoredSchedule]) -> None:
        now = await self._client.store.now()
        moves: list[ScheduleMove] = []
        runs: list[NewRun] = []
        for stored in taken:
            try:
                move, run = await self._decide(stored, now)
            except StoreError:
                raise
            except (PyrulaError, ValueError, KeyError, TypeError, OverflowError) as error:
                # One schedule that cannot be acted on must not stop the others; it moves on with the reason.
                log.warning("schedule %s of %s is passed over: %s", stored.schedule_id, workflow, error)
                move, run = _passed_over(stored, now, error), None
            moves.append(move)
            if run is not None:
                runs.append(run)
        if runs:
            await submitted(self._client.store, runs)
        await self._store.schedules_fired(workflow, moves)

    async def _decide(self, stored: StoredSchedule, now: int) -> tuple[ScheduleMove, NewRun | None]:
        schedule = stored.schedule()
        occurrence = _first_wanted(schedule, stored.next, now)
        if not occurrence:  # it was changed so that nothing is left
            return ScheduleMove(stored.schedule_id, stored.revision, 0, 0, 0, b""), None
        if schedule.overlap is not Overlap.ALLOW and await self._busy(schedule):
            if schedule.overlap is Overlap.SKIP:
                reason = "the run before has not ended"
                return _onward(stored, schedule, occurrence, now, firing(occurrence, now, "skipped", "", reason)), None
            if schedule.overlap is Overlap.CANCEL:
                await self._cancel_former(schedule, occurrence)
            # It stays the next one, and is looked at again soon.
            later = ScheduleMove(stored.schedule_id, stored.revision, occurrence, now + _LOOK_AGAIN, 0, b"")
            return later, None
        run_id = occurrence_run_id(stored.schedule_id, occurrence)
        try:
            run = run_of_occurrence(schedule, occurrence, run_id, self._limit)
        except PyrulaError as error:
            log.warning("schedule %s of %s: its run is refused: %s", stored.schedule_id, stored.workflow, error)
            outcome = firing(occurrence, now, "refused", "", str(error))
            return _onward(stored, schedule, occurrence, now, outcome), None
        return _onward(stored, schedule, occurrence, now, firing(occurrence, now, "started", run_id)), run

    async def _busy(self, schedule: Schedule) -> bool:
        """Whether the run that the schedule started last is still on its way."""
        former = _former(schedule)
        if not former:
            return False
        try:
            record = await self._client.store.load(schedule.workflow, former, ends=False)
        except RunNotFound:
            return False
        return not record.status.ended

    async def _cancel_former(self, schedule: Schedule, occurrence: int) -> None:
        former = _former(schedule)
        message_id = f"schedule:{schedule.schedule_id}:{occurrence}"  # asked for once, however often this is looked at
        reason = "the next occurrence of its schedule is due"
        raw = pack(MailKind.CANCEL, message_id, "", reason, limit=self._limit)
        try:
            await self._client.store.deliver(schedule.workflow, former, Message(message_id, "", raw, control=True))
        except (RunNotFound, WrongRunState):
            return  # it has ended meanwhile


def _former(schedule: Schedule) -> str:
    return next((each.run_id for each in schedule.outcomes if each.outcome == "started"), "")


def _first_wanted(schedule: Schedule, occurrence: int, now: int) -> int:
    """The occurrence to act on. Those that are too old for the catch-up window give way to a later one."""
    if schedule.catch_up is None or not occurrence:
        return occurrence
    oldest = now - int(schedule.catch_up * 1e6)
    if occurrence >= oldest:
        return occurrence
    later = following(schedule, oldest - 1)
    if later and later <= now:
        return later
    return occurrence  # the latest of all: it stands for the others


def _onward(stored: StoredSchedule, schedule: Schedule, occurrence: int, now: int, outcome: bytes) -> ScheduleMove:
    """From an occurrence that was acted on to the next one."""
    after = occurrence if schedule.catch_up is not None else max(occurrence, now)
    upcoming = following(replace(schedule, last_at=from_micros(occurrence)), after)
    if upcoming and schedule.catch_up is not None:
        upcoming = max(upcoming, _first_wanted(schedule, upcoming, now))
    return ScheduleMove(
        stored.schedule_id, stored.revision, upcoming, due_time(schedule, upcoming), occurrence, outcome
    )


def _passed_over(stored: StoredSchedule, now: int, error: Exception) -> ScheduleMove:
    """For one that cannot even be read: it rests until somebody changes it, and says why."""
    outcome = firing(stored.next, now, "refused", "", f"{type(error).__name__}: {error}")
    return ScheduleMove(stored.schedule_id, stored.revision, 0, 0, 0, outcome)
