"""What a schedule is: when a workflow's runs begin by themselves, and what becomes of each occasion.

Records and the protocol of a store that keeps them. When an expression is due is not computed
here, and nothing here submits a run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, Protocol, Self, runtime_checkable

import orjson

from pyrula.contracts.errors import InvalidInput
from pyrula.contracts.events import from_micros, to_micros
from pyrula.contracts.ids import check_id, check_workflow_name, new_id
from pyrula.contracts.values import encode

__all__ = [
    "OUTCOMES_KEPT",
    "Firing",
    "Overlap",
    "Schedule",
    "ScheduleMove",
    "Schedules",
    "StoredSchedule",
    "firing_json",
    "occurrence_run_id",
]

OUTCOMES_KEPT: Final = 20


class Overlap(StrEnum):
    """What becomes of an occurrence when the run of the one before has not ended yet.

    allow: it starts a run beside it.
    skip: it is left out.
    queue: it waits for the end of that run.
    cancel: that run is cancelled, and the occurrence starts when it has ended.
    """

    ALLOW = "allow"
    SKIP = "skip"
    QUEUE = "queue"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class Firing:
    """What became of one occurrence.

    outcome: `started`, `skipped` (the run before had not ended), `triggered` (by hand) or `refused`
        (the submission was not possible; `reason` says why).
    occurrence: the time it was due by the expression, without jitter; at: when it was acted on.
    """

    occurrence: datetime
    at: datetime
    outcome: str
    run_id: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Submits a run of a workflow again and again. Made with `create`; the store fills in the rest.

    cron: an expression of five fields (a sixth is seconds), `@daily` and its kin; or None.
    interval: seconds between occurrences, counted from `starts_at` (else from 1970); or None.
    timezone: the IANA zone whose clocks the expression is read by.
    starts_at, ends_at: no occurrence before the first, none after the last.
    jitter: seconds; each occurrence is put off by up to so many, always the same for the same one.
    overlap: what becomes of an occurrence while the run before has not ended.
    catch_up: after a downtime, one run stands for all occurrences that were missed (None); or each
        that was missed within so many seconds gets a run of its own.
    owner, attributes, priority: as for a submission. Each run also carries the attributes
        `schedule_id` and `scheduled_for`.
    next_at: the next occurrence; None when there is none, or the schedule is not enabled.
    last_at: the occurrence that was acted on last; outcomes: the last ones, newest first.
    """

    schedule_id: str
    workflow: str
    cron: str | None = None
    input: Mapping[str, Any] = field(default_factory=dict)
    enabled: bool = True
    timezone: str = "UTC"
    interval: float | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    jitter: float = 0.0
    overlap: Overlap = Overlap.ALLOW
    catch_up: float | None = None
    owner: str | None = None
    priority: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)
    created_at: datetime | None = None
    next_at: datetime | None = None
    last_at: datetime | None = None
    outcomes: tuple[Firing, ...] = ()

    @classmethod
    def create(
        cls,
        workflow: str | Any,
        cron: str | None = None,
        input: Mapping[str, Any] | None = None,
        *,
        schedule_id: str | None = None,
        interval: float | None = None,
        timezone: str = "UTC",
        **more: Any,
    ) -> Self:
        """A schedule to hand to `schedule_create`. `more`: any other field that describes one.

        Raises `InvalidInput` for what makes no sense in itself; the store refuses an expression
        that cannot be read.
        """
        name = workflow if isinstance(workflow, str) else getattr(workflow, "name", workflow)
        try:
            return cls(
                new_id() if schedule_id is None else schedule_id,
                name,
                cron,
                dict(input or {}),
                interval=interval,
                timezone=timezone,
                **more,
            ).checked()
        except TypeError as error:
            raise InvalidInput(f"schedule: {error}", "schedule") from None

    def checked(self) -> Self:
        """This schedule, if its fields make sense. Raises `InvalidInput` naming the field."""
        check_id(self.schedule_id, "schedule_id")
        check_workflow_name(self.workflow)
        if (self.cron is None) == (self.interval is None):
            raise InvalidInput("give a cron expression or an interval, and not both", "cron")
        if not isinstance(self.input, Mapping) or not isinstance(self.attributes, Mapping):
            raise InvalidInput("input and attributes of a schedule are dicts", "input")
        for name in ("interval", "jitter", "catch_up"):
            _check_seconds(name, getattr(self, name))
        if self.interval is not None and self.interval < 0.001:
            raise InvalidInput(f"interval={self.interval!r}: a millisecond is the shortest", "interval")
        for name in ("starts_at", "ends_at"):
            when = getattr(self, name)
            if when is not None and (not isinstance(when, datetime) or when.tzinfo is None):
                raise InvalidInput(f"{name} needs an aware datetime, not {when!r}", name)
        try:
            Overlap(self.overlap)
        except ValueError:
            raise InvalidInput(f"overlap={self.overlap!r} is none of {', '.join(Overlap)}", "overlap") from None
        if self.owner is not None:
            check_id(self.owner, "owner")
        return self

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready form, times as RFC 3339."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        fields["overlap"] = str(self.overlap)
        fields["input"], fields["attributes"] = dict(self.input), dict(self.attributes)
        fields["outcomes"] = [
            {name: getattr(each, name) for name in each.__dataclass_fields__} for each in self.outcomes
        ]
        for part in (fields, *fields["outcomes"]):
            part.update({name: _stamp(each) for name, each in part.items() if isinstance(each, datetime)})
        return fields

    def document(self) -> bytes:
        """The part that describes it, as the JSON that a store keeps. Values that cannot be encoded are refused."""
        return orjson.dumps(
            {
                "cron": self.cron,
                "interval": self.interval,
                "timezone": self.timezone,
                "enabled": self.enabled,
                "input": orjson.Fragment(encode(dict(self.input), path="input", canonical=True)),
                "starts_at": None if self.starts_at is None else to_micros(self.starts_at.astimezone(UTC)),
                "ends_at": None if self.ends_at is None else to_micros(self.ends_at.astimezone(UTC)),
                "jitter": self.jitter,
                "overlap": str(self.overlap),
                "catch_up": self.catch_up,
                "owner": self.owner,
                "priority": self.priority,
                "attributes": orjson.Fragment(encode(dict(self.attributes), path="attributes", canonical=True)),
            }
        )


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule as a store keeps it: what describes it as JSON, and where it stands. Times in microseconds.

    revision: moves with every change and every firing, so that a change based on an old state is noticed.
    due: when the next occurrence is acted on, jitter included; 0 for never.
    """

    schedule_id: str
    workflow: str
    document: bytes
    revision: int = 0
    created: int = 0
    next: int = 0
    due: int = 0
    last: int = 0
    outcomes: tuple[bytes, ...] = ()

    def schedule(self) -> Schedule:
        """For whoever asked for it."""
        known = orjson.loads(self.document)
        for name in ("starts_at", "ends_at"):
            known[name] = None if known[name] is None else from_micros(known[name])
        known["overlap"] = Overlap(known["overlap"])
        return Schedule(
            schedule_id=self.schedule_id,
            workflow=self.workflow,
            created_at=from_micros(self.created) if self.created else None,
            next_at=from_micros(self.next) if self.next else None,
            last_at=from_micros(self.last) if self.last else None,
            outcomes=tuple(_firing(raw) for raw in self.outcomes),
            **known,
        )


@runtime_checkable
class Schedules(Protocol):
    """A store that keeps schedules. The plain calls block, for scripts; `a...` are their awaited twins."""

    def schedule_create(self, schedule: Schedule) -> Schedule:
        """Keep a schedule; a repeat of the same one changes nothing.

        Raises `InvalidInput` for an expression or zone that cannot be read or never comes due, and
        when another schedule has the id.
        """
        ...

    def schedule_list(self, workflow: str | None = None) -> list[Schedule]:
        """All schedules (of one workflow), by workflow and id."""
        ...

    def schedule_update(self, schedule_id: str, **changes: Any) -> Schedule:
        """Change fields of a schedule; what is next is computed anew. Raises `ScheduleNotFound`, `InvalidInput`."""
        ...

    def schedule_delete(self, schedule_id: str) -> None:
        """Forget a schedule; its runs are left alone. Raises `ScheduleNotFound`."""
        ...

    async def aschedule_create(self, schedule: Schedule) -> Schedule:
        """`schedule_create`, awaited."""
        ...

    async def aschedule_list(self, workflow: str | None = None) -> list[Schedule]:
        """`schedule_list`, awaited."""
        ...

    async def aschedule_get(self, schedule_id: str) -> Schedule:
        """One schedule. Raises `ScheduleNotFound`."""
        ...

    async def aschedule_update(self, schedule_id: str, **changes: Any) -> Schedule:
        """`schedule_update`, awaited."""
        ...

    async def aschedule_delete(self, schedule_id: str) -> None:
        """`schedule_delete`, awaited."""
        ...

    async def aschedule_note(self, workflow: str, schedule_id: str, outcome: bytes) -> None:
        """Note an outcome (a `Firing` as JSON) that is no occurrence's, once. A schedule that is gone notes nothing."""
        ...

    async def schedules_due(
        self, workflow: str, *, limit: int, lease_ms: int
    ) -> tuple[Sequence[StoredSchedule], int | None]:
        """Take up to `limit` schedules that are due, each for one caller until `lease_ms` have passed.

        Also gives the time (microseconds) at which the next one will be due; None when there is none.
        """
        ...

    async def schedules_fired(self, workflow: str, moves: Sequence[ScheduleMove]) -> list[bool]:
        """Note what became of occurrences, and move their schedules on. False for one that has changed meanwhile."""
        ...


@dataclass(frozen=True, slots=True)
class ScheduleMove:
    """A schedule's step from one occurrence to the next. Times in microseconds.

    revision: the one it was taken at. outcome: a `Firing` as JSON, or b"" when nothing happened yet
    (an occurrence that waits). due: when to look next, 0 for never.
    """

    schedule_id: str
    revision: int
    next: int
    due: int
    last: int
    outcome: bytes


def occurrence_run_id(schedule_id: str, occurrence: int) -> str:
    """The id of the run that an occurrence (microseconds) starts: the same for ever, everywhere."""
    raw = hashlib.blake2b(f"{schedule_id}\x00{occurrence}".encode(), digest_size=16)
    return "s" + raw.hexdigest()


def firing_json(occurrence: int, at: int, outcome: str, run_id: str = "", reason: str = "") -> bytes:
    """A `Firing` as a store keeps it; times in microseconds."""
    return orjson.dumps([occurrence, at, outcome, run_id, reason])


def _firing(raw: bytes) -> Firing:
    occurrence, at, outcome, run_id, reason = orjson.loads(raw)
    return Firing(from_micros(occurrence), from_micros(at), outcome, run_id, reason)


def _stamp(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _check_seconds(name: str, value: object) -> None:
    if value is None and name != "jitter":
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 3e9:
        raise InvalidInput(f"{name}={value!r}: a number of seconds from 0", name)
