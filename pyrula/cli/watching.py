"""A Valkey store that tells what its process does to runs, so that a view of them need not ask the server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from pyrula.contracts.events import from_micros, parse
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Claim, ClaimBatch, Ending, Parking
from pyrula.workflows import ValkeyStore

__all__ = ["Moved", "WatchedStore"]


class Moved(Protocol):
    """Told of each change of a run that this process makes; `facts` are fields of `Run`."""

    def __call__(self, name: str, run_id: str, status: RunStatus, at: datetime, **facts: Any) -> object:
        """A run has changed."""
        ...


class WatchedStore(ValkeyStore):
    """The store, with `moved` called after each claim, park, requeue and finish that worked."""

    def __init__(self, moved: Moved, **options: Any) -> None:
        super().__init__(**options)
        self._moved = moved

    async def claim(self, workflow: str, *, worker: str, limit: int, lease_ms: int) -> ClaimBatch:
        """Take runnable runs."""
        batch = await super().claim(workflow, worker=worker, limit=limit, lease_ms=lease_ms)
        for claim in batch.claims:
            self._tell(
                claim,
                RunStatus.RUNNING,
                submitted_at=from_micros(claim.submitted_at),
                owner=claim.owner or None,
                attempt=claim.attempt,
            )
        return batch

    async def park(
        self, claim: Claim, seq: int, entries: Sequence[bytes], parking: Parking, *, consumed: Sequence[bytes] = ()
    ) -> bool:
        """Append and park."""
        parked = await super().park(claim, seq, entries, parking, consumed=consumed)
        if parked:
            wake = None if parking.wake_at is None else from_micros(parking.wake_at)
            self._tell(claim, parking.status, waiting_on=parking.topic or "timer", wake_at=wake)
        else:
            self._tell(claim, RunStatus.QUEUED)
        return parked

    async def finish(
        self, claim: Claim, seq: int, entries: Sequence[bytes], ending: Ending, *, consumed: Sequence[bytes] = ()
    ) -> None:
        """Append and end the run."""
        await super().finish(claim, seq, entries, ending, consumed=consumed)
        error = None
        if ending.status is not RunStatus.COMPLETED:
            data = parse(0, entries[-1]).data if entries else {}
            error = data.get("error") or {"reason": data.get("reason")}
        self._tell(claim, ending.status, error=error)

    async def requeue(self, claim: Claim, seq: int, *, spent: bool = False) -> None:
        """Give the claim up."""
        await super().requeue(claim, seq, spent=spent)
        self._tell(claim, RunStatus.QUEUED)

    def _tell(self, claim: Claim, status: RunStatus, **facts: Any) -> None:
        self._moved(claim.workflow, claim.run_id, status, datetime.now(UTC), **facts)
