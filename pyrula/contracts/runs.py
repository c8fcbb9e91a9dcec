"""Runs as users see them: status, record and page. No behaviour lives here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

__all__ = ["ENDED", "PARKED", "Page", "Run", "RunStatus"]


class RunStatus(StrEnum):
    """Where a run is in its life."""

    QUEUED = "queued"
    RUNNING = "running"
    SLEEPING = "sleeping"
    WAITING = "waiting"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"

    @property
    def ended(self) -> bool:
        """True when nothing will run any more (unless someone retries a failed run)."""
        return self in ENDED


ENDED = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.TERMINATED})
PARKED = frozenset({RunStatus.SLEEPING, RunStatus.WAITING, RunStatus.PAUSED})


@dataclass(frozen=True, slots=True)
class Run:
    """One run. Times are aware UTC; `error` has `code`, `type`, `message` and `detail`.

    `attempt` counts the claims under which the body has been run. `waiting_on` names what a
    parked run waits for (`signal:NAME`, `interrupt:KEY`, `timer`). A listing leaves `input`
    and `result` out (None); `client.get` fills them in.
    """

    name: str
    run_id: str
    status: RunStatus
    owner: str | None = None
    attempt: int = 0
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    wake_at: datetime | None = None
    waiting_on: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    input: Any = None
    result: Any = None
    error: Mapping[str, Any] | None = None
    priority: int = 0
    worker: str | None = None
    link: int = 1
    """How many journals it has had: more than 1 after `ctx.continue_as_new`."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready form, times as RFC 3339."""

        def stamp(when: datetime | None) -> str | None:
            return None if when is None else when.isoformat(timespec="microseconds").replace("+00:00", "Z")

        return {
            "name": self.name,
            "run_id": self.run_id,
            "status": str(self.status),
            "owner": self.owner,
            "attempt": self.attempt,
            "submitted_at": stamp(self.submitted_at),
            "started_at": stamp(self.started_at),
            "finished_at": stamp(self.finished_at),
            "wake_at": stamp(self.wake_at),
            "waiting_on": self.waiting_on,
            "attributes": dict(self.attributes),
            "input": self.input,
            "result": self.result,
            "error": None if self.error is None else dict(self.error),
            "priority": self.priority,
            "worker": self.worker,
            "link": self.link,
        }


@dataclass(frozen=True, slots=True)
class Page:
    """A slice of a listing. Pass `cursor` to the next call; None when there is no more."""

    runs: tuple[Run, ...]
    cursor: str | None = None

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)
