"""What `pyrula dev` knows of the runs: fed with changes and listings, asked for counts and the latest. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any, Final

from pyrula.contracts.runs import PARKED, Run, RunStatus

__all__ = ["Board"]

# Ended runs beyond so many are only counted.
_KEPT: Final = 10_000


class Board:
    """Runs in the order of their last change.

    Changes that this process makes itself come by `moved`, at once; all others by `listed`.
    """

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._moved_in: dict[str, int] = {}
        self._round = 0
        self._folded: Counter[RunStatus] = Counter()
        self._total = 0
        self.older = 0
        """Runs from before that were never looked at."""

    def begin_listing(self) -> None:
        """A listing is being asked for: what moves from now on is newer than what it will say."""
        self._round += 1

    def listed(self, runs: Iterable[Run], total: int, *, first: bool = False) -> None:
        """The newest runs, newest first, and the number of all. `first`: the rest are older than this process."""
        for run in reversed(list(runs)):
            if self._moved_in.get(run.run_id) != self._round and self._runs.get(run.run_id) != run:
                self._put(run)
        self._moved_in = {run_id: at for run_id, at in self._moved_in.items() if at >= self._round}
        self._total = total
        if first:
            self.older = max(0, total - len(self._runs))

    def moved(self, name: str, run_id: str, status: RunStatus, at: datetime, **facts: Any) -> Run:
        """A run has changed at that time; `facts` are fields of `Run`. Gives the run as it is now."""
        run = self._runs.get(run_id) or Run(name, run_id, status)
        if run.status.ended and status is RunStatus.RUNNING:
            run = replace(run, error=None, finished_at=None)
        started = run.started_at or (at if status is RunStatus.RUNNING else None)
        changed = {"waiting_on": None, "wake_at": None, "finished_at": at if status.ended else None, **facts}
        self._moved_in[run_id] = self._round
        return self._put(replace(run, status=status, started_at=started, **changed))

    def _put(self, run: Run) -> Run:
        self._runs.pop(run.run_id, None)
        self._runs[run.run_id] = run
        if len(self._runs) > _KEPT:
            self._fold()
        return run

    def _fold(self) -> None:
        ended = [run for run in self._runs.values() if run.status.ended]
        for run in ended[: _KEPT // 10]:
            self._folded[run.status] += 1
            del self._runs[run.run_id]

    def counts(self) -> dict[RunStatus, int]:
        """Runs by status, in the order of a run's life; what the server has beyond those seen here is queued."""
        counted = Counter(run.status for run in self._runs.values()) + self._folded
        counted[RunStatus.QUEUED] += max(0, self._total - self.older - counted.total())
        return {status: counted[status] for status in RunStatus if counted[status]}

    def latest(self, limit: int) -> list[Run]:
        """The runs that changed last, the last one first."""
        return list(islice(reversed(self._runs.values()), limit))

    def under_way(self) -> bool:
        """Whether any time shown goes on by itself."""
        return any(run.status is RunStatus.RUNNING or run.status in PARKED for run in self.latest(50))
