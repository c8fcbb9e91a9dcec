"""The records of a run's journal: their types, their encoding, and what a reader sees of them.

A journal entry is one JSON array, `[schema, type, at, attempt, key, data]`, with `at` in
microseconds since the epoch (UTC) and the seq carried outside it, by the store. Writers
build entries with `entry`; the engine reads them with `parse`; users read `Event`s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import orjson

__all__ = [
    "SCHEMA",
    "TERMINAL_TYPES",
    "Entry",
    "Event",
    "EventType",
    "entry",
    "from_micros",
    "parse",
    "raw_json",
    "to_micros",
]

SCHEMA: Final = 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO: Final = timedelta(microseconds=1)


class EventType:
    """The names of event types. Dotted: what it is about, and what became of it."""

    RUN_SUBMITTED: Final = "run.submitted"
    RUN_STARTED: Final = "run.started"
    RUN_RESUMED: Final = "run.resumed"
    RUN_RETRIED: Final = "run.retried"
    RUN_CANCEL_REQUESTED: Final = "run.cancel_requested"
    RUN_COMPLETED: Final = "run.completed"
    RUN_FAILED: Final = "run.failed"
    RUN_CANCELLED: Final = "run.cancelled"
    RUN_TERMINATED: Final = "run.terminated"
    STEP_STARTED: Final = "step.started"
    STEP_RETRYING: Final = "step.retrying"
    STEP_COMPLETED: Final = "step.completed"
    STEP_FAILED: Final = "step.failed"
    TIMER_SET: Final = "timer.set"
    TIMER_FIRED: Final = "timer.fired"
    SIGNAL_AWAITED: Final = "signal.awaited"
    SIGNAL_RECEIVED: Final = "signal.received"
    SIGNAL_TIMED_OUT: Final = "signal.timed_out"
    INTERRUPT_RAISED: Final = "interrupt.raised"
    INTERRUPT_RESUMED: Final = "interrupt.resumed"
    INTERRUPT_TIMED_OUT: Final = "interrupt.timed_out"
    VALUE_RECORDED: Final = "value.recorded"
    CHECKPOINT_SAVED: Final = "checkpoint.saved"
    OUTPUT_WRITTEN: Final = "output.written"
    VALUE_COMMITTED: Final = "value.committed"
    EVENT_EMITTED: Final = "event.emitted"
    CHILD_STARTED: Final = "child.started"
    CHILD_COMPLETED: Final = "child.completed"
    CHILD_FAILED: Final = "child.failed"
    CHILD_TIMED_OUT: Final = "child.timed_out"
    RUN_PAUSED: Final = "run.paused"
    UPDATE_ACCEPTED: Final = "update.accepted"
    UPDATE_APPLIED: Final = "update.applied"
    UPDATE_FAILED: Final = "update.failed"
    RUN_CONTINUED: Final = "run.continued"
    PATCH_MARKED: Final = "patch.marked"
    PATCH_DEPRECATED: Final = "patch.deprecated"
    RUN_SPAWNED: Final = "run.spawned"
    SIGNAL_SENT: Final = "signal.sent"


TERMINAL_TYPES: Final = frozenset(
    {EventType.RUN_COMPLETED, EventType.RUN_FAILED, EventType.RUN_CANCELLED, EventType.RUN_TERMINATED}
)


@dataclass(frozen=True, slots=True)
class Event:
    """One record of a run's journal, as users see it.

    `seq` counts 1, 2, 3 ... without gaps; `at` is aware UTC; `attempt` is the number of the
    claim under which it was written (0: written from outside an attempt); `key` names the
    call it belongs to, and is empty for events of the run itself.
    """

    seq: int
    type: str
    at: datetime
    attempt: int
    key: str
    data: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready form, `at` as RFC 3339."""
        return {
            "seq": self.seq,
            "type": self.type,
            "at": self.at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "attempt": self.attempt,
            "key": self.key,
            "data": dict(self.data),
        }


class Entry(NamedTuple):
    """One parsed journal entry; what the engine works with. `at` is in microseconds."""

    seq: int
    type: str
    at: int
    attempt: int
    key: str
    data: dict[str, Any]

    def event(self) -> Event:
        """The entry as users see it."""
        return Event(self.seq, self.type, from_micros(self.at), self.attempt, self.key, self.data)


def entry(kind: str, at: int, attempt: int, key: str, data: Mapping[str, Any]) -> bytes:
    """Encode one journal entry. A value that is encoded already goes in as `raw_json(value)`."""
    return orjson.dumps([SCHEMA, kind, at, attempt, key, data])


def raw_json(encoded: bytes) -> Any:
    """Encoded JSON as a value of an entry's data, taken over as it is."""
    return orjson.Fragment(encoded)


def parse(seq: int, raw: bytes) -> Entry:
    """Decode one journal entry that any earlier or this schema has written."""
    schema, kind, at, attempt, key, data = orjson.loads(raw)
    if schema != SCHEMA:
        raise ValueError(f"journal entry {seq} has schema {schema}; this version of pyrula reads up to {SCHEMA}")
    return Entry(seq, kind, at, attempt, key, data)


def to_micros(when: datetime) -> int:
    """Microseconds since the epoch of an aware datetime."""
    return (when - _EPOCH) // _MICRO


def from_micros(micros: int) -> datetime:
    """The aware UTC datetime of microseconds since the epoch."""
    return _EPOCH + timedelta(microseconds=micros)
