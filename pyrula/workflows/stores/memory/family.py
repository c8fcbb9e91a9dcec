"""Open children of runs in a memory store. The same rules as the function library of the Valkey store."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from pyrula.contracts.children import Child
from pyrula.contracts.store import Claim
from pyrula.workflows.stores.memory.shard import Shard

__all__ = ["FamilyCalls"]


class FamilyCalls:
    """The part of the memory store that knows children; see `pyrula.contracts.children.Parents`."""

    _lock: threading.Lock

    def _now(self) -> int:
        raise NotImplementedError

    def _shard(self, workflow: str) -> Shard:
        raise NotImplementedError

    async def adopt(self, claim: Claim, child: Child) -> None:
        """Note a child of a claimed run."""
        with self._lock:
            self._shard(claim.workflow).held(claim).children[child.run_id] = child

    async def collected(self, claim: Claim, child_id: str) -> None:
        """The child of a claimed run is not open any more."""
        with self._lock:
            self._shard(claim.workflow).held(claim).children.pop(child_id, None)

    async def terminated_parents(self, workflow: str, *, older_than_ms: int) -> list[tuple[str, Sequence[Child]]]:
        """Terminated runs whose children are to be closed."""
        with self._lock:
            shard = self._shard(workflow)
            latest = self._now() - older_than_ms * 1000
            return [
                (run_id, list(shard.runs[run_id].children.values()))
                for run_id, at in shard.closing.items()
                if at <= latest and run_id in shard.runs
            ]

    async def closed(self, workflow: str, run_id: str) -> None:
        """The children of a terminated run have been closed for good."""
        with self._lock:
            shard = self._shard(workflow)
            shard.closing.pop(run_id, None)
            if run_id in shard.runs:
                shard.runs[run_id].children.clear()

    async def open_children(self, workflow: str, run_id: str) -> Sequence[Child]:
        """The open children of a run."""
        with self._lock:
            run = self._shard(workflow).runs.get(run_id)
            return [] if run is None else list(run.children.values())
