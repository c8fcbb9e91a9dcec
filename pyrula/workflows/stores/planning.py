"""What every store does with a schedule before it keeps it: checks, the next occurrence, a change of fields.

Pure decisions on the records of `pyrula.contracts.schedules`; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pyrula.contracts.errors import InvalidInput, ScheduleNotFound
from pyrula.contracts.schedules import Schedule, StoredSchedule
from pyrula.workflows.stores.occurrences import check_times, due_time, following

__all__ = ["Plan", "changed", "planned", "taken", "the_one"]

_FIXED: Final = frozenset({"schedule_id", "workflow", "created_at", "next_at", "last_at", "outcomes"})
_CHANGEABLE: Final = frozenset(Schedule.__dataclass_fields__) - _FIXED


@dataclass(frozen=True, slots=True)
class Plan:
    """What a store is to keep of a schedule: what describes it, and (microseconds, 0 for never) what is next."""

    document: bytes
    next: int
    due: int


def planned(schedule: Schedule, now: int) -> Plan:
    """The plan of a schedule from now on. Raises `InvalidInput` for one that cannot be read or never comes due."""
    schedule.checked()
    check_times(schedule)
    document = schedule.document()
    first = following(schedule, now)
    if not first and not schedule.last_at:
        raise InvalidInput(
            f"schedule {schedule.schedule_id!r} never comes due: no such date, or it ends before", "cron"
        )
    if not schedule.enabled:
        return Plan(document, 0, 0)
    return Plan(document, first, due_time(schedule, first))


def changed(stored: StoredSchedule, changes: Mapping[str, Any]) -> Schedule:
    """A schedule with other fields. Raises `InvalidInput` naming a field that cannot be changed."""
    for name in changes:
        if name in _FIXED:
            raise InvalidInput(f"{name} of a schedule cannot be changed; create another one", name)
        if name not in _CHANGEABLE:
            raise InvalidInput(f"a schedule has no field {name!r}; there are {', '.join(sorted(_CHANGEABLE))}", name)
    new = dict(changes)
    if new.get("cron") is not None:
        new.setdefault("interval", None)
    elif new.get("interval") is not None:
        new.setdefault("cron", None)
    return replace(stored.schedule(), **new)


def the_one(schedule_id: str, found: Iterable[StoredSchedule]) -> StoredSchedule:
    """The only schedule of an id. Raises `ScheduleNotFound`."""
    for stored in found:
        return stored
    raise ScheduleNotFound(schedule_id)


def taken(schedule: Schedule, by: str) -> InvalidInput:
    """The error for an id that another schedule has."""
    return InvalidInput(
        f"another schedule, of workflow {by!r}, has the id {schedule.schedule_id!r}; change it, or use another id",
        "schedule_id",
    )
