"""The memory store: the store's protocols for one process, in plain Python state.

Each call takes one step under a lock and never waits inside it, so that leases can be renewed
from another thread. Decisions about runs are in `shard`, listeners in `bells`.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from operator import itemgetter
from typing import Final

from pyrula.contracts.errors import InvalidInput
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import (
    Claim,
    ClaimBatch,
    Continuation,
    Delivery,
    Ending,
    Lease,
    Listener,
    Listing,
    Message,
    NewRun,
    Parking,
    RunRecord,
    Submitted,
    TailChunk,
)
from pyrula.workflows.stores.memory.bells import Exchange
from pyrula.workflows.stores.memory.events import EventCalls
from pyrula.workflows.stores.memory.family import FamilyCalls
from pyrula.workflows.stores.memory.index import Criteria, TimeIndex
from pyrula.workflows.stores.memory.run import StoredRun
from pyrula.workflows.stores.memory.schedules import ScheduleCalls
from pyrula.workflows.stores.memory.shard import Shard

__all__ = ["MemoryStore"]

_PAGE: Final = 1000


class MemoryStore(ScheduleCalls, EventCalls, FamilyCalls):
    """Runs in the memory of this process: for tests, and for work that may be lost with the process.

    clock: seconds since the epoch, by default the system's; a virtual clock may stand in, later
        on, too. When it moves, timers and leases that are due are found by the next `wake` and `sweep`.

    Usable before any event loop runs, and from several, one after the other. What a store must
    do is in `pyrula.contracts.store`; nothing here can fail to reach a server.
    """

    def __init__(self, *, clock: Callable[[], float] | None = None, event_ttl: float = 604800.0) -> None:
        super().__init__()
        self.event_ttl = event_ttl
        self.clock = clock
        self._lock = threading.Lock()
        self._exchange = Exchange()
        self._shards: dict[str, Shard] = {}
        self._index = TimeIndex()
        self._serial = 0

    def __repr__(self) -> str:
        return f"MemoryStore({len(self._shards)} workflows)"

    def _now(self) -> int:
        return time.time_ns() // 1000 if self.clock is None else round(self.clock() * 1_000_000)

    def _shard(self, workflow: str) -> Shard:
        """The runs of a workflow; one that was never used has none, and is not remembered for being asked about."""
        return self._shards.get(workflow) or Shard(workflow, self._exchange)

    def _opened(self, workflow: str) -> Shard:
        return self._shards.setdefault(workflow, self._shard(workflow))

    # --- runs in ------------------------------------------------------------------------

    async def submit(self, runs: Sequence[NewRun]) -> list[Submitted]:
        """Queue runs, or hold them until they are due."""
        answers = []
        with self._lock:
            for new in runs:
                shard = self._opened(new.workflow)
                self._serial += 1
                answer = shard.submit(new, self._now(), self._serial)
                if answer.created:
                    self._index.add(shard.find(new.run_id))
                answers.append(answer)
        return answers

    async def deliver(self, workflow: str, run_id: str, message: Message) -> Delivery:
        """Put a message into a run's inbox."""
        with self._lock:
            return self._shard(workflow).deliver(run_id, message)

    async def pause(self, workflow: str, run_id: str, message: Message) -> Delivery:
        """Hold a run back until it is unpaused."""
        with self._lock:
            return self._shard(workflow).pause(run_id, message)

    async def unpause(self, workflow: str, run_id: str, message: Message) -> Delivery:
        """Let a run go on."""
        with self._lock:
            return self._shard(workflow).unpause(run_id, message, self._now())

    async def fork(self, new: NewRun, entries: Sequence[bytes], *, claims: int) -> Submitted:
        """Queue a run that begins with this journal."""
        with self._lock:
            shard = self._opened(new.workflow)
            self._serial += 1
            answer = shard.fork(new, entries, claims, self._now(), self._serial)
            if answer.created:
                self._index.add(shard.find(new.run_id))
            return answer

    async def queue_depth(self, workflow: str) -> int:
        """How many runs are runnable and held by nobody."""
        with self._lock:
            return self._shard(workflow).queue_depth()

    # --- claims -------------------------------------------------------------------------

    async def claim(self, workflow: str, *, worker: str, limit: int, lease_ms: int) -> ClaimBatch:
        """Take up to `limit` runnable runs, fairly across owners."""
        with self._lock:
            return self._opened(workflow).claim(worker, limit, lease_ms, self._now())

    async def claim_run(self, workflow: str, run_id: str, *, worker: str, lease_ms: int) -> Claim | None:
        """Take one given run, if it is runnable now."""
        with self._lock:
            return self._opened(workflow).claim_run(run_id, worker, lease_ms, self._now())

    async def append(self, claim: Claim, seq: int, entries: Sequence[bytes], *, consumed: Sequence[bytes] = ()) -> None:
        """Append entries after `seq`."""
        with self._lock:
            self._shard(claim.workflow).append(claim, seq, entries, consumed)

    async def park(
        self, claim: Claim, seq: int, entries: Sequence[bytes], parking: Parking, *, consumed: Sequence[bytes] = ()
    ) -> bool:
        """Append and park; False when the run went back to its queue."""
        with self._lock:
            return self._shard(claim.workflow).park(claim, seq, entries, consumed, parking)

    async def finish(
        self, claim: Claim, seq: int, entries: Sequence[bytes], ending: Ending, *, consumed: Sequence[bytes] = ()
    ) -> None:
        """Append and end the run."""
        with self._lock:
            self._shard(claim.workflow).finish(claim, seq, entries, consumed, ending, self._now())

    async def continue_as_new(
        self,
        claim: Claim,
        seq: int,
        entries: Sequence[bytes],
        continuation: Continuation,
        *,
        consumed: Sequence[bytes] = (),
    ) -> None:
        """Append, keep the journal, and queue the run with a new one."""
        with self._lock:
            shard = self._shard(claim.workflow)
            shard.continue_as_new(claim, seq, entries, consumed, continuation, self._now())

    async def read_link(self, workflow: str, run_id: str, link: int, *, after: int = 0, limit: int = 1000) -> TailChunk:
        """Entries of an earlier journal."""
        with self._lock:
            run = self._run(workflow, run_id)
            old = [] if run is None or not 1 <= link <= len(run.old) else run.old[link - 1]
            return list(enumerate(old, 1))[after : after + limit]

    async def requeue(self, claim: Claim, seq: int, *, spent: bool = False) -> None:
        """Give the claim up; the run goes back to its place in the queue."""
        with self._lock:
            self._shard(claim.workflow).requeue(claim, seq, spent=spent)

    async def inbox(self, claim: Claim) -> Sequence[bytes]:
        """All messages of a claimed run."""
        with self._lock:
            run = self._run(claim.workflow, claim.run_id)
            return [] if run is None else list(run.inbox)

    async def set_attributes(self, claim: Claim, attributes: bytes) -> None:
        """Replace the search attributes."""
        with self._lock:
            self._shard(claim.workflow).held(claim).attributes = attributes

    async def commit(self, claim: Claim, key: str, value: bytes) -> None:
        """Publish a named value."""
        with self._lock:
            self._shard(claim.workflow).held(claim).values[key] = value

    async def write_output(self, claim: Claim, index: int, chunk: bytes) -> None:
        """Append a chunk to the output; one that is there already is left alone."""
        with self._lock:
            output = self._shard(claim.workflow).held(claim).output
            if not output or index > output[-1][0]:
                output.append((index, chunk))
                self._exchange.written(claim.workflow, claim.run_id, output=True)

    async def heartbeat(self, leases: Sequence[Lease], *, lease_ms: int) -> list[Lease]:
        """Renew leases; gives the lost ones."""
        return self.heartbeat_sync(leases, lease_ms=lease_ms)

    def heartbeat_sync(self, leases: Sequence[Lease], *, lease_ms: int) -> list[Lease]:
        """Renew leases from a thread."""
        with self._lock:
            now = self._now()
            return [each for each in leases if not self._shard(each.workflow).heartbeat(each, lease_ms, now)]

    async def sweep(self, workflow: str, *, limit: int, requeue_budget: int, keep_ms: int) -> int:
        """Requeue (or fail) what lost its worker, delete what was kept long enough."""
        with self._lock:
            handled, deleted = self._shard(workflow).sweep(limit, requeue_budget, keep_ms, self._now())
            self._index.remove(deleted)
            return handled

    # --- timers -------------------------------------------------------------------------

    async def next_due(self, workflow: str) -> int | None:
        """The earliest timer of a workflow."""
        with self._lock:
            return self._shard(workflow).next_due()

    async def wake(self, workflow: str, *, limit: int) -> int:
        """Queue runs whose timer is due."""
        with self._lock:
            return self._shard(workflow).wake(limit, self._now())

    async def now(self) -> int:
        """The clock's time."""
        return self._now()

    # --- from outside -------------------------------------------------------------------

    async def terminate(self, workflow: str, run_id: str, entry_data: bytes, *, keep_ms: int) -> RunStatus:
        """End a run from outside."""
        with self._lock:
            return self._shard(workflow).terminate(run_id, entry_data, keep_ms, self._now())

    async def revive(self, workflow: str, run_id: str, entry_data: bytes) -> RunStatus:
        """Queue a failed run again."""
        with self._lock:
            return self._shard(workflow).revive(run_id, entry_data, self._now())

    # --- reading ------------------------------------------------------------------------

    def _run(self, workflow: str, run_id: str) -> StoredRun | None:
        return self._shard(workflow).runs.get(run_id)

    async def load(self, workflow: str, run_id: str, *, ends: bool = True) -> RunRecord:
        """One run."""
        with self._lock:
            return self._shard(workflow).find(run_id).record(ends=ends)

    async def read_journal(self, workflow: str, run_id: str, *, after: int = 0, limit: int = _PAGE) -> TailChunk:
        """Journal entries behind `after`."""
        return self._read(workflow, run_id, after, limit=limit)

    def _read(
        self, workflow: str, run_id: str, after: int, *, limit: int = _PAGE, output: bool = False
    ) -> list[tuple[int, bytes]]:
        with self._lock:
            run = self._run(workflow, run_id)
            if run is None:
                return []
            if output:
                start = bisect_right(run.output, after, key=itemgetter(0))
                return run.output[start : start + limit]
            return list(enumerate(run.journal[after : after + limit], after + 1))

    async def committed(self, workflow: str, run_id: str) -> dict[str, bytes]:
        """All published values."""
        with self._lock:
            run = self._run(workflow, run_id)
            return {} if run is None else dict(run.values)

    async def workflows(self) -> list[str]:
        """The names this store has seen."""
        with self._lock:
            return sorted(self._shards)

    async def listing(
        self,
        workflows: Sequence[str],
        *,
        status: RunStatus | None = None,
        owner: str | None = None,
        attributes: dict[str, object] | None = None,
        submitted_after: int | None = None,
        submitted_before: int | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Listing:
        """Runs that match, newest first."""
        if limit < 1:
            raise InvalidInput(f"limit={limit}: at least 1", "limit")
        criteria = Criteria(
            workflows=frozenset(workflows),
            status=status,
            owner=owner,
            attributes=attributes,
            submitted_after=submitted_after,
            submitted_before=submitted_before,
        )
        with self._lock:
            found, following = self._index.slice(criteria, limit, cursor)
            return Listing([run.listed() for run in found], following)

    async def count(
        self,
        workflows: Sequence[str],
        *,
        status: RunStatus | None = None,
        owner: str | None = None,
        attributes: dict[str, object] | None = None,
        submitted_after: int | None = None,
        submitted_before: int | None = None,
    ) -> int:
        """How many runs match."""
        criteria = Criteria(
            workflows=frozenset(workflows),
            status=status,
            owner=owner,
            attributes=attributes,
            submitted_after=submitted_after,
            submitted_before=submitted_before,
        )
        with self._lock:
            return sum(1 for _ in self._index.matching(criteria))

    # --- following ----------------------------------------------------------------------

    @asynccontextmanager
    async def _tail(
        self, workflow: str, run_id: str, output: bool, after: int
    ) -> AsyncIterator[AsyncIterator[TailChunk]]:
        def read(position: int) -> TailChunk:
            return self._read(workflow, run_id, position, output=output)

        with self._exchange.followers(workflow, run_id, read, after, output=output) as follower:
            yield follower

    def tail(
        self, workflow: str, run_id: str, *, output: bool = False, after: int = 0
    ) -> AbstractAsyncContextManager[AsyncIterator[TailChunk]]:
        """Follow a run's journal or output."""
        return self._tail(workflow, run_id, output, after)

    @asynccontextmanager
    async def wait_end(self, workflow: str, run_id: str) -> AsyncIterator[Listener]:
        """A listener for the end of a run."""
        with self._exchange.ends(workflow, run_id) as mailbox:
            yield mailbox

    @asynccontextmanager
    async def bells(self, workflows: Sequence[str]) -> AsyncIterator[Listener]:
        """A listener for a worker of these workflows."""
        with self._exchange.workers(workflows) as mailbox:
            yield mailbox

    async def aclose(self) -> None:
        """Nothing is open; what is stored stays."""
