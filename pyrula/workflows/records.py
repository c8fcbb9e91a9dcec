"""From a store's record of a run to the run as users see it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import orjson

from pyrula.contracts.events import TERMINAL_TYPES, EventType, from_micros, parse
from pyrula.contracts.runs import Run, RunStatus
from pyrula.contracts.store import RunRecord

__all__ = ["TERMINAL_STATUS", "run_of"]

TERMINAL_STATUS = {
    EventType.RUN_COMPLETED: RunStatus.COMPLETED,
    EventType.RUN_FAILED: RunStatus.FAILED,
    EventType.RUN_CANCELLED: RunStatus.CANCELLED,
    EventType.RUN_TERMINATED: RunStatus.TERMINATED,
}


def _time(micros: int) -> datetime | None:
    return from_micros(micros) if micros else None


def run_of(record: RunRecord) -> Run:
    """The run that a record describes; input, result and error as far as the record brings them along."""
    result: Any = None
    error: dict[str, Any] | None = orjson.loads(record.error) if record.error else None
    if record.last is not None:
        last = parse(*record.last)
        if last.type == EventType.RUN_COMPLETED:
            result = last.data["result"]
        elif last.type == EventType.RUN_FAILED:
            error = last.data["error"]
        elif last.type in TERMINAL_TYPES:  # with the reason, and beside it the error of a clean-up that failed
            error = {"code": None, **last.data}
    given: Any = None
    if record.input:
        given = orjson.loads(record.input)
    elif record.first is not None:
        given = parse(*record.first).data["input"]
    return Run(
        name=record.workflow,
        run_id=record.run_id,
        status=record.status,
        owner=record.owner or None,
        attempt=record.attempt,
        submitted_at=_time(record.submitted_at),
        started_at=_time(record.started_at),
        finished_at=_time(record.finished_at),
        wake_at=_time(record.wake_at),
        waiting_on=record.topic or ("timer" if record.wake_at else None),
        attributes=orjson.loads(record.attributes),
        input=given,
        result=result,
        error=error,
        priority=record.priority,
        worker=record.worker or None,
        link=record.link,
    )
