"""The Valkey store: what the engine asks, as calls of the function library. One node.

Names keys through `keys`, calls through `link`, reads replies through `replies`, and keeps
in `shards` what this process knows. No decision about a run is made here: those are in the
function library, where they are atomic.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, cast

import orjson

from pyrula.contracts.errors import ClaimLost, EventOutOfOrder, RunNotFound, WrongRunState
from pyrula.contracts.ids import new_id, shard_of
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import (
    Claim,
    ClaimBatch,
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
from pyrula.workflows.stores.valkey import replies
from pyrula.workflows.stores.valkey.continuing import ContinuingCalls
from pyrula.workflows.stores.valkey.events import EventCalls
from pyrula.workflows.stores.valkey.family import FamilyCalls
from pyrula.workflows.stores.valkey.following import bells, tail, wait_end
from pyrula.workflows.stores.valkey.interventions import InterventionCalls
from pyrula.workflows.stores.valkey.renewals import lost, renewals
from pyrula.workflows.stores.valkey.scan import Filter, count, listing
from pyrula.workflows.stores.valkey.schedules import ScheduleCalls
from pyrula.workflows.stores.valkey.server import Server
from pyrula.workflows.stores.valkey.shards import DueTimes, HotShards, ServerClock
from pyrula.workflows.stores.valkey.wire import ConnectionBroken

__all__ = ["ValkeyStore"]

_CLAIMS_PER_SHARD: Final = 16
_JOURNAL_PAGE: Final = 1000


class ValkeyStore(InterventionCalls, ContinuingCalls, ScheduleCalls, EventCalls, FamilyCalls):
    """Runs in Valkey: one node, functions in Lua, one pipelined connection for each event loop.

    url: `redis://`, `valkey://`, `unix://` ..., or `embedded://DIR` for a private server with
        its data under DIR; None reads `PYRULA_VALKEY_URL`, else `redis://localhost:6379`.
    shard_count: shards each workflow's queue is split into; the first store that uses a name
        records it.
    namespace: the first part of every key; None reads `PYRULA_VALKEY_NAMESPACE`, else `default`.
    lock_ttl, shard_lease_ttl, completed_ttl: seconds a claim lasts without renewal, a shard
        lease lasts, and an ended run is kept.
    event_ttl: seconds for which application events are kept.
    fsync: for an embedded server only: `always`, `everysec` or `no`.

    Constructing it does no network I/O. Every call raises `StoreUnavailable` when the server
    cannot be reached.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        shard_count: int = 64,
        namespace: str | None = None,
        shard_lease_ttl: float = 30.0,
        lock_ttl: float = 30.0,
        completed_ttl: float = 86400.0,
        event_ttl: float = 604800.0,
        connect_timeout: float = 5.0,
        command_timeout: float = 30.0,
        fsync: str = "everysec",
    ) -> None:
        self.shard_lease_ttl = shard_lease_ttl
        self.lock_ttl = lock_ttl
        self.completed_ttl = completed_ttl
        self.event_ttl = event_ttl
        self._server = Server(
            url,
            shard_count=shard_count,
            namespace=namespace,
            connect_timeout=connect_timeout,
            command_timeout=command_timeout,
            fsync=fsync,
        )
        self._keys = self._server.keys
        self._hot: dict[str, HotShards] = {}
        self._due: dict[str, DueTimes] = {}
        self._clock = ServerClock()
        # What this process has claimed: the shard's prefix, and the claim's epoch.
        self._held: dict[tuple[str, str], tuple[bytes, int]] = {}
        self._unsure: set[bytes] = set()

    def __repr__(self) -> str:
        return f"ValkeyStore({self._server.label!r}, namespace={self.namespace!r})"

    @property
    def namespace(self) -> str:
        """The first part of every key."""
        return self._keys.namespace

    @property
    def shard_count(self) -> int:
        """Shards of each workflow."""
        return self._keys.shard_count

    @property
    def label(self) -> str:
        """Host and port, or socket path: for messages."""
        return self._server.label

    # --- runs in ------------------------------------------------------------------------

    async def submit(self, runs: Sequence[NewRun]) -> list[Submitted]:
        """Queue runs, in one round trip for all."""
        for name in {run.workflow for run in runs}:
            await self._server.register(name)
        calls = [
            (
                "submit",
                self._keys.prefix(run.workflow, run.run_id),
                run.run_id,
                run.owner,
                run.priority,
                "" if run.delay_ms is None else run.delay_ms,
                "" if run.start_at is None else run.start_at,
                run.input,
                run.input_digest,
                run.attributes,
                run.headers,
            )
            for run in runs
        ]
        answers = await self._server.functions(calls)
        return [
            Submitted(run.run_id, created == 1, RunStatus(status.decode()), digest.decode(), int(at))
            for run, (created, status, digest, at) in zip(runs, answers, strict=True)
        ]

    async def deliver(self, workflow: str, run_id: str, message: Message) -> Delivery:
        """Put a message into a run's inbox."""
        await self._server.check([workflow])
        answer, status = await self._server.function(
            "deliver",
            self._keys.prefix(workflow, run_id),
            run_id,
            message.message_id,
            message.topic,
            "1" if message.control else "2" if message.wakes else "0",
            message.raw,
        )
        if answer == b"NONE":
            raise RunNotFound(workflow, run_id)
        return Delivery(answer in (b"OK", b"REPEAT"), RunStatus(status.decode()), answer == b"REPEAT")

    async def queue_depth(self, workflow: str) -> int:
        """How many runs are runnable and held by nobody: the lengths of all owners' queues."""
        shards = self._keys.shards(workflow)
        busy = [shards[n] for n in await self._server.existing([p + b"tenants" for p in shards])]
        owners = await self._server.commands([("ZRANGE", p + b"tenants", 0, -1) for p in busy])
        queues = [p + b"queue:" + owner for p, names in zip(busy, owners, strict=True) for owner in names]
        return sum(await self._server.commands([("ZCARD", name) for name in queues]))

    # --- claims -------------------------------------------------------------------------

    async def claim(self, workflow: str, *, worker: str, limit: int, lease_ms: int) -> ClaimBatch:
        """Take runnable runs from the shards that are known to have some; else look which have."""
        await self._server.register(workflow)
        hot = self._hot.setdefault(workflow, HotShards())
        shards = self._keys.shards(workflow)
        if not hot:
            hot.add_all(await self._server.existing([p + b"tenants" for p in shards]))
        asked = hot.take(limit)
        if not asked:
            return ClaimBatch()
        each = min(_CLAIMS_PER_SHARD, max(1, limit // len(asked)))
        prefixes = [shards[n] for n in asked]
        await self._disown(worker, prefixes)
        worker_json = orjson.dumps(worker)
        calls = [("claim", p, worker, worker_json, lease_ms, each) for p in prefixes]
        try:
            answers = await self._server.functions(calls, retry=False)
        except ConnectionBroken:
            # The server may have given out claims that never arrived here.
            self._unsure.update(prefixes)
            hot.add_all(asked)
            raise
        except BaseException:
            self._unsure.update(prefixes)
            hot.add_all(asked)
            raise
        claims: list[Claim] = []
        received = time.monotonic()
        for shard, answer in zip(asked, answers, strict=True):
            now = int(answer[0])
            self._clock.update(now, received)
            if answer[1]:
                hot.add(shard)
            claims.extend(replies.claim(workflow, now, item) for item in answer[2:])
        for claim in claims:
            self._held[workflow, claim.run_id] = (self._keys.prefix(workflow, claim.run_id), claim.epoch)
        return ClaimBatch(claims, bool(hot))

    async def claim_run(self, workflow: str, run_id: str, *, worker: str, lease_ms: int) -> Claim | None:
        """Take one given run, if it is runnable."""
        await self._server.register(workflow)
        prefix = self._keys.prefix(workflow, run_id)
        call = ("claim_run", prefix, worker, orjson.dumps(worker), lease_ms, run_id)
        try:
            ((now, _, *found),) = await self._server.functions([call], retry=False)
        except ConnectionBroken:
            self._unsure.add(prefix)
            await self._disown(worker, [prefix])
            ((now, _, *found),) = await self._server.functions([call])
        self._clock.update(int(now), time.monotonic())
        if not found:
            return None
        claim = replies.claim(workflow, int(now), found[0])
        self._held[workflow, run_id] = (prefix, claim.epoch)
        return claim

    def expect(self, callers: int) -> None:
        """So many tasks were just woken and are about to call this store."""
        self._server.expect(callers)

    async def _disown(self, worker: str, prefixes: Sequence[bytes]) -> None:
        for prefix in self._unsure.intersection(prefixes):
            known = [run_id for (_, run_id), (held, _) in self._held.items() if held == prefix]
            await self._server.function("disown", prefix, worker, *known)
            self._unsure.discard(prefix)

    def _prefix(self, claim: Claim) -> bytes:
        held = self._held.get((claim.workflow, claim.run_id))
        return self._keys.prefix(claim.workflow, claim.run_id) if held is None else held[0]

    def _let_go(self, claim: Claim) -> None:
        """Forget this claim of a run; one that has been made since stays."""
        key = (claim.workflow, claim.run_id)
        if (held := self._held.get(key)) is not None and held[1] <= claim.epoch:
            del self._held[key]

    async def append(self, claim: Claim, seq: int, entries: Sequence[bytes], *, consumed: Sequence[bytes] = ()) -> None:
        """Append entries after `seq`."""
        await self._append(b"append", claim, seq, entries, consumed, ())

    async def park(
        self, claim: Claim, seq: int, entries: Sequence[bytes], parking: Parking, *, consumed: Sequence[bytes] = ()
    ) -> bool:
        """Append and park; False when the run went back to its queue."""
        wake = "" if parking.wake_at is None else parking.wake_at
        tail_args = (str(parking.status), parking.topic, wake, parking.inbox_seen)
        return await self._append(b"park", claim, seq, entries, consumed, tail_args) == b"PARKED"

    async def finish(
        self, claim: Claim, seq: int, entries: Sequence[bytes], ending: Ending, *, consumed: Sequence[bytes] = ()
    ) -> None:
        """Append and end the run."""
        tail_args = (str(ending.status), ending.keep_ms, "1" if ending.terminal else "0", ending.error)
        await self._append(b"finish", claim, seq, entries, consumed, tail_args)

    async def requeue(self, claim: Claim, seq: int, *, spent: bool = False) -> None:
        """Give the claim up; the run goes back to its place in the queue."""
        await self._append(b"requeue", claim, seq, (), (), ("1" if spent else "0",))

    async def _append(
        self,
        mode: bytes,
        claim: Claim,
        seq: int,
        entries: Sequence[bytes],
        consumed: Sequence[bytes],
        more: tuple[str | int | bytes, ...],
    ) -> bytes:
        answer = await self._server.function(
            "append",
            self._prefix(claim),
            mode,
            claim.run_id,
            claim.epoch * replies.SPAN + seq,
            claim.token,
            len(entries),
            *entries,
            len(consumed),
            *consumed,
            *more,
        )
        if answer == b"LOST":
            self._let_go(claim)
            raise ClaimLost(f"run {claim.run_id!r} is no longer held under epoch {claim.epoch}")
        if answer == b"GAP":
            raise EventOutOfOrder(
                f"the journal of run {claim.run_id!r} does not end at {seq}: the server lost acknowledged writes"
            )
        if more:
            self._let_go(claim)
        return cast("bytes", answer)

    async def inbox(self, claim: Claim) -> Sequence[bytes]:
        """All messages of a claimed run."""
        return cast("list[bytes]", await self._server.function("inbox", self._prefix(claim), claim.run_id))

    async def set_attributes(self, claim: Claim, attributes: bytes) -> None:
        """Replace the search attributes."""
        await self._aside("attributes", claim, attributes)

    async def commit(self, claim: Claim, key: str, value: bytes) -> None:
        """Publish a named value."""
        await self._aside("commit", claim, key, value)

    async def write_output(self, claim: Claim, index: int, chunk: bytes) -> None:
        """Append a chunk to the output."""
        await self._aside("output", claim, index, chunk)

    async def _aside(self, name: str, claim: Claim, *args: str | int | bytes) -> None:
        if (
            await self._server.function(name, self._prefix(claim), claim.run_id, claim.epoch, claim.token, *args)
            == b"LOST"
        ):
            raise ClaimLost(f"run {claim.run_id!r} is no longer held under epoch {claim.epoch}")

    async def heartbeat(self, leases: Sequence[Lease], *, lease_ms: int) -> list[Lease]:
        """Renew leases; gives the lost ones."""
        calls, groups = renewals(self._keys, leases, lease_ms)
        return lost(await self._server.functions(calls), groups)

    def heartbeat_sync(self, leases: Sequence[Lease], *, lease_ms: int) -> list[Lease]:
        """Renew leases from a thread."""
        calls, groups = renewals(self._keys, leases, lease_ms)
        return lost(self._server.functions_sync(calls), groups) if calls else []

    async def sweep(self, workflow: str, *, limit: int, requeue_budget: int, keep_ms: int) -> int:
        """Requeue what lost its worker, delete what is over, in the shards that have either."""
        shards = self._keys.shards(workflow)
        names = [p + kind for p in shards for kind in (b"claims", b"ended")]
        found = sorted({n // 2 for n in await self._server.existing(names)})
        if not found:
            return 0
        answers = await self._server.functions([("sweep", shards[n], limit, requeue_budget, keep_ms) for n in found])
        return sum(requeued + failed for requeued, failed, _ in answers)

    # --- timers -------------------------------------------------------------------------

    async def next_due(self, workflow: str) -> int | None:
        """The earliest timer; from memory while bells are heard, else read from all shards that have timers."""
        due = self._due.setdefault(workflow, DueTimes())
        if not due.fresh(time.monotonic()):
            since = due.mark()
            names = [p + b"timers" for p in self._keys.shards(workflow)]
            found = await self._server.existing(names)
            first = await self._server.commands([("ZRANGE", names[n], 0, 0, "WITHSCORES") for n in found])
            known = {n: int(float(answer[1])) for n, answer in zip(found, first, strict=True) if answer}
            due.replace(known, time.monotonic(), since)
        return due.earliest()

    async def wake(self, workflow: str, *, limit: int) -> int:
        """Queue runs whose timer is due."""
        due = self._due.setdefault(workflow, DueTimes())
        await self.next_due(workflow)
        shards = self._keys.shards(workflow)
        asked = due.due(await self.now())
        since = due.mark()
        answers = await self._server.functions([("wake", shards[n], limit) for n in asked]) if asked else []
        total = 0
        for shard, (woken, nearest) in zip(asked, answers, strict=True):
            due.set(shard, int(nearest) if nearest else None, since)
            if woken:
                self._hot.setdefault(workflow, HotShards()).add(shard)
                total += woken
        return total

    async def now(self) -> int:
        """The server's time: estimated from its last answer, asked for the first time."""
        known = self._clock.estimate(time.monotonic())
        if known is None:
            seconds, micros = await self._server.command("TIME")
            self._clock.update(int(seconds) * 1_000_000 + int(micros), time.monotonic())
            known = self._clock.estimate(time.monotonic())
        return cast("int", known)

    # --- from outside -------------------------------------------------------------------

    async def terminate(self, workflow: str, run_id: str, entry_data: bytes, *, keep_ms: int) -> RunStatus:
        """End a run from outside."""
        await self._server.check([workflow])
        prefix = self._keys.prefix(workflow, run_id)
        answer, status = await self._server.function("terminate", prefix, run_id, entry_data, keep_ms)
        if answer == b"NONE":
            raise RunNotFound(workflow, run_id)
        return RunStatus(status.decode())

    async def revive(self, workflow: str, run_id: str, entry_data: bytes) -> RunStatus:
        """Queue a failed run again."""
        await self._server.check([workflow])
        prefix = self._keys.prefix(workflow, run_id)
        answer, status = await self._server.function("revive", prefix, run_id, entry_data, new_id())
        if answer == b"NONE":
            raise RunNotFound(workflow, run_id)
        if answer == b"STATE":
            raise WrongRunState(workflow, run_id, status.decode(), "only a failed run can be retried")
        return RunStatus(status.decode())

    # --- reading ------------------------------------------------------------------------

    async def load(self, workflow: str, run_id: str, *, ends: bool = True) -> RunRecord:
        """One run."""
        await self._server.check([workflow])
        prefix = self._keys.prefix(workflow, run_id)
        flat, first, last = await self._server.function("load", prefix, run_id, "1" if ends else "0")
        if not flat:
            raise RunNotFound(workflow, run_id)
        return replies.record(workflow, run_id, flat, first or (), last or ())

    async def read_journal(
        self, workflow: str, run_id: str, *, after: int = 0, limit: int = _JOURNAL_PAGE
    ) -> TailChunk:
        """Journal entries behind `after`."""
        await self._server.check([workflow])
        key = self._keys.prefix(workflow, run_id) + b"log:" + run_id.encode()
        return replies.stream_entries(await self._server.command("XRANGE", key, f"({after}-0", "+", "COUNT", limit))

    async def committed(self, workflow: str, run_id: str) -> dict[str, bytes]:
        """All published values."""
        flat = await self._server.command("HGETALL", self._keys.prefix(workflow, run_id) + b"kv:" + run_id.encode())
        return {flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)}

    async def workflows(self) -> list[str]:
        """The names this namespace has seen."""
        return sorted(name.decode() for name in await self._server.command("SMEMBERS", self._keys.workflows))

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
        await self._server.check(workflows)
        wanted = Filter(status, owner, attributes, submitted_after, submitted_before)
        return await listing(self._server, workflows, wanted, limit, cursor)

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
        await self._server.check(workflows)
        return await count(
            self._server, workflows, Filter(status, owner, attributes, submitted_after, submitted_before)
        )

    # --- following ----------------------------------------------------------------------

    def tail(
        self, workflow: str, run_id: str, *, output: bool = False, after: int = 0
    ) -> AbstractAsyncContextManager[AsyncIterator[TailChunk]]:
        """Follow a run's journal or output."""
        key = self._keys.prefix(workflow, run_id) + (b"out:" if output else b"log:") + run_id.encode()
        return tail(self._server, key, after, output=output)

    def wait_end(self, workflow: str, run_id: str) -> AbstractAsyncContextManager[Listener]:
        """A listener for the end of a run."""
        channel = self._keys.prefix(workflow, run_id) + b"end:" + run_id.encode()
        return wait_end(self._server, channel, workflow, shard_of(run_id, self.shard_count), run_id)

    def bells(self, workflows: Sequence[str]) -> AbstractAsyncContextManager[Listener]:
        """A listener for a worker; what it hears also feeds this store's own knowledge."""
        for workflow in workflows:
            self._hot.setdefault(workflow, HotShards())
            self._due.setdefault(workflow, DueTimes())
        return bells(self._server, workflows, self._hot, self._due)

    async def aclose(self) -> None:
        """Close this event loop's connections, and leave an embedded server."""
        await self._server.aclose()
