"""The runs of one workflow, and every decision about them. Synchronous: each method is one atomic step.

The same rules as the function library of the Valkey store, held to it by the contract suite.
Nothing here waits, reads a clock (`now` comes in, microseconds) or looks inside a payload.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from pyrula.contracts.errors import ClaimLost, EventOutOfOrder, RunNotFound, WrongRunState
from pyrula.contracts.events import EventType
from pyrula.contracts.runs import ENDED, RunStatus
from pyrula.contracts.store import (
    Bell,
    BellKind,
    Claim,
    ClaimBatch,
    Continuation,
    Delivery,
    Ending,
    Lease,
    Message,
    NewRun,
    Parking,
    Submitted,
)
from pyrula.workflows.stores.memory.bells import Exchange
from pyrula.workflows.stores.memory.queue import FairQueue
from pyrula.workflows.stores.memory.ranking import Ranking
from pyrula.workflows.stores.memory.run import StoredRun, store_entry

__all__ = ["Shard"]

_HEAD_START = 60_000_000  # microseconds in the queue for each step of priority


class Shard:
    """All runs of one workflow: by id, in the queue, claimed, held by a timer, kept after their end."""

    def __init__(self, workflow: str, exchange: Exchange) -> None:
        self.workflow = workflow
        self.runs: dict[str, StoredRun] = {}
        self._exchange = exchange
        self._queue = FairQueue()
        self._claims: Ranking[int] = Ranking()  # by lease expiry, milliseconds
        self._timers: Ranking[int] = Ranking()  # by wake time, microseconds
        self.closing: dict[str, int] = {}  # terminated runs with open children, by time in microseconds
        self._kept: Ranking[int] = Ranking()  # by time of deletion, milliseconds

    def find(self, run_id: str) -> StoredRun:
        """A run; raises `RunNotFound`."""
        run = self.runs.get(run_id)
        if run is None:
            raise RunNotFound(self.workflow, run_id)
        return run

    # --- runs in ------------------------------------------------------------------------

    def submit(self, new: NewRun, now: int, serial: int) -> Submitted:
        """Queue a run, or hold it until it is due."""
        known = self.runs.get(new.run_id)
        if known is not None:
            return Submitted(known.run_id, False, known.status, known.input_digest, known.submitted_at)
        run = StoredRun(
            workflow=self.workflow,
            run_id=new.run_id,
            owner=new.owner,
            priority=new.priority,
            submitted_at=now,
            score=now - new.priority * _HEAD_START,
            serial=serial,
            input=new.input,
            input_digest=new.input_digest,
            attributes=new.attributes,
            headers=new.headers,
        )
        self.runs[run.run_id] = run
        wake = new.start_at if new.delay_ms is None else now + new.delay_ms * 1000
        if wake is not None and wake > now:
            run.wake_at = wake
            self._set_timer(run)
        else:
            self._release(run)
        return Submitted(run.run_id, True, run.status, run.input_digest, run.submitted_at)

    def deliver(self, run_id: str, message: Message) -> Delivery:
        """Put a message into the inbox; queue the run when it is parked for it."""
        run = self.find(run_id)
        before = run.status
        if message.message_id in run.seen:
            return Delivery(True, before, repeat=True)
        if run.ended:
            return Delivery(False, before)
        run.seen.add(message.message_id)
        run.inbox.append(message.raw)
        if before is RunStatus.RUNNING:
            self._ring(BellKind.INBOX, run_id=run_id)
        elif message.control:
            if before is not RunStatus.QUEUED or run.wake_at:
                if run.error:
                    run.error, run.finished_at = b"", 0
                self._release(run)
        elif before in (RunStatus.WAITING, RunStatus.SLEEPING) and (
            message.wakes or (run.topic and run.topic == message.topic)
        ):
            self._release(run)
        return Delivery(True, before)

    def pause(self, run_id: str, message: Message) -> Delivery:
        """Hold a run back, or have its worker told."""
        run = self.find(run_id)
        before = run.status
        if before in ENDED:
            return Delivery(False, before)
        if before is RunStatus.RUNNING:
            self._tell(run, message)
        elif before is not RunStatus.PAUSED:
            if run.wake_at:
                self._timers.discard(run_id)
            elif before is RunStatus.QUEUED:
                self._queue.discard(run.owner, run_id)
            run.status, run.paused_from = RunStatus.PAUSED, before
        return Delivery(True, before)

    def unpause(self, run_id: str, message: Message, now: int) -> Delivery:
        """Let a run go on, or have its worker told."""
        run = self.find(run_id)
        before, back = run.status, run.paused_from
        if before in ENDED:
            return Delivery(False, before)
        if before is RunStatus.RUNNING:
            self._tell(run, message)
        elif before is RunStatus.PAUSED:
            if back is None and message.message_id not in run.seen:
                run.seen.add(message.message_id)
                run.inbox.append(message.raw)
            rests = back in (RunStatus.WAITING, RunStatus.SLEEPING)
            if (run.wake_at and run.wake_at <= now) or (rests and run.inbox):
                self._release(run)
            elif back is not None and (rests or (back is RunStatus.QUEUED and run.wake_at)):
                run.status = back
                if run.wake_at:
                    self._set_timer(run)
            else:
                self._release(run)
            run.paused_from = None
        return Delivery(True, before)

    def _tell(self, run: StoredRun, message: Message) -> None:
        if message.message_id not in run.seen:
            run.seen.add(message.message_id)
            run.inbox.append(message.raw)
            self._ring(BellKind.INBOX, run_id=run.run_id)

    def fork(self, new: NewRun, entries: Sequence[bytes], claims: int, now: int, serial: int) -> Submitted:
        """Queue a run that begins with this journal."""
        known = self.runs.get(new.run_id)
        if known is not None:
            return Submitted(known.run_id, False, known.status, known.input_digest, known.submitted_at)
        run = StoredRun(
            workflow=self.workflow,
            run_id=new.run_id,
            owner=new.owner,
            priority=new.priority,
            submitted_at=now,
            score=now,
            serial=serial,
            input=b"",
            input_digest=new.input_digest,
            attributes=new.attributes,
            headers=new.headers,
            epoch=2 * claims,
            started_at=now,
            lost_at=(len(entries), claims),
            journal=list(entries),
        )
        self.runs[run.run_id] = run
        self._release(run)
        return Submitted(run.run_id, True, run.status, run.input_digest, run.submitted_at)

    def queue_depth(self) -> int:
        """How many runs are runnable and held by nobody."""
        return len(self._queue)

    # --- claims -------------------------------------------------------------------------

    def claim(self, worker: str, limit: int, lease_ms: int, now: int) -> ClaimBatch:
        """Give out up to `limit` runnable runs."""
        claims: list[Claim] = []
        while len(claims) < limit and (run_id := self._queue.pop()) is not None:
            claims.append(self._give(self.runs[run_id], worker, lease_ms, now))
        return ClaimBatch(claims, bool(self._queue))

    def claim_run(self, run_id: str, worker: str, lease_ms: int, now: int) -> Claim | None:
        """Give out one given run, if it is runnable."""
        run = self.runs.get(run_id)
        if run is None or run.status is not RunStatus.QUEUED or run.wake_at:
            return None
        self._queue.discard(run.owner, run_id)
        return self._give(run, worker, lease_ms, now)

    def _give(self, run: StoredRun, worker: str, lease_ms: int, now: int) -> Claim:
        self._start(run, worker, now)
        self._claims.put(run.run_id, now // 1000 + lease_ms)
        return Claim(
            workflow=self.workflow,
            run_id=run.run_id,
            epoch=run.epoch,
            attempt=run.attempt,
            seq=run.seq,
            now=now,
            owner=run.owner,
            submitted_at=run.submitted_at,
            attributes=run.attributes,
            headers=run.headers,
            entries=list(enumerate(run.journal, 1)),
            inbox=list(run.inbox),
        )

    def _start(self, run: StoredRun, worker: str, now: int) -> None:
        run.epoch += 1
        run.status = RunStatus.RUNNING
        run.worker = worker
        kind = EventType.RUN_RESUMED
        if not run.journal:
            kind = EventType.RUN_STARTED
            run.started_at = run.started_at or now
            self._write(run, self._submitted(run, now if run.about else 0))
            run.input = run.about = b""
        self._write(run, store_entry(kind, now, run.attempt, b'{"worker":%b}' % orjson.dumps(worker)))

    @staticmethod
    def _submitted(run: StoredRun, at: int = 0) -> bytes:
        about = b"," + run.about if run.about else b""
        return store_entry(EventType.RUN_SUBMITTED, at or run.submitted_at, 0, b'{"input":%b%b}' % (run.input, about))

    def held(self, claim: Claim | Lease) -> StoredRun:
        """The run of a claim; raises `ClaimLost` when it is held under another epoch, or by nobody."""
        run = self.runs.get(claim.run_id)
        if run is None or run.epoch != claim.epoch or claim.epoch % 2 == 0:
            raise _lost(claim)
        return run

    def append(self, claim: Claim, seq: int, entries: Sequence[bytes], consumed: Sequence[bytes]) -> None:
        """Add to the journal; the run stays claimed."""
        run = self.held(claim)
        if run.seq != seq:
            # Whoever holds the epoch is the only writer, so a journal that is longer holds this append.
            if (entries and run.seq >= seq + len(entries)) or run.seq > seq + len(entries):
                return
            raise _gap(claim, seq)
        self._take_in(run, entries, consumed)

    def park(
        self, claim: Claim, seq: int, entries: Sequence[bytes], consumed: Sequence[bytes], parking: Parking
    ) -> bool:
        """Append and park; False when messages came that the worker does not know of."""
        run = self._give_up(claim, seq, entries, consumed)
        if run is None:
            return self.runs[claim.run_id].status is not RunStatus.QUEUED
        if len(run.inbox) > parking.inbox_seen - len(consumed):
            self._release(run)
            return False
        run.status = parking.status
        run.topic = parking.topic
        run.paused_from = None
        run.wake_at = parking.wake_at or 0
        if run.wake_at:
            self._set_timer(run)
        return True

    def finish(
        self, claim: Claim, seq: int, entries: Sequence[bytes], consumed: Sequence[bytes], ending: Ending, now: int
    ) -> None:
        """Append and end the run, or set it aside."""
        run = self._give_up(claim, seq, entries, consumed, ends_as=ending.status)
        if run is None:
            return
        if ending.terminal:
            self._close(run, ending.status, ending.keep_ms, now)
        else:
            run.status, run.error, run.finished_at = ending.status, ending.error, now
            self._exchange.end(Bell(BellKind.ENDED, self.workflow, run_id=run.run_id))

    def continue_as_new(
        self,
        claim: Claim,
        seq: int,
        entries: Sequence[bytes],
        consumed: Sequence[bytes],
        continuation: Continuation,
        now: int,
    ) -> None:
        """Append, keep the journal, and queue the run with a new one."""
        run = self.held(claim)
        if run.seq != seq:
            raise _gap(claim, seq)
        self._take_in(run, entries, consumed)
        run.epoch += 1
        self._claims.discard(run.run_id)
        run.old.append(run.journal)
        run.journal = []
        run.input, run.about = continuation.input, continuation.about
        run.score, run.requeues, run.lost_at = now, 0, (0, run.attempt)
        self._release(run)

    def requeue(self, claim: Claim, seq: int, *, spent: bool) -> None:
        """Give a claim up; the run goes back to its place."""
        run = self._give_up(claim, seq, (), ())
        if run is not None:
            if spent:
                self._count_loss(run, run.lose())
            self._release(run)

    def _give_up(
        self,
        claim: Claim,
        seq: int,
        entries: Sequence[bytes],
        consumed: Sequence[bytes],
        *,
        ends_as: RunStatus | None = None,
    ) -> StoredRun | None:
        """Append and release the epoch. None when this very call was done before."""
        run = self.runs.get(claim.run_id)
        if run is not None and (run.epoch, run.seq) == (claim.epoch + 1, seq + len(entries)):
            # A sweep or a terminate moves the cursor in the same way; only the record tells them from a repeat.
            if (entries and run.journal[-1] != entries[-1]) or (not entries and ends_as not in (None, run.status)):
                raise _lost(claim)
            return None
        run = self.held(claim)
        if run.seq != seq:
            raise _gap(claim, seq)
        self._take_in(run, entries, consumed)
        run.epoch += 1
        self._claims.discard(run.run_id)
        return run

    def _take_in(self, run: StoredRun, entries: Sequence[bytes], consumed: Sequence[bytes]) -> None:
        for raw in entries:
            self._write(run, raw)
        for message in consumed:
            if message in run.inbox:
                run.inbox.remove(message)

    def heartbeat(self, lease: Lease, lease_ms: int, now: int) -> bool:
        """Renew a lease; False when it is lost."""
        run = self.runs.get(lease.run_id)
        if run is None or run.epoch != lease.epoch:
            return False
        if lease.run_id in self._claims:
            self._claims.put(lease.run_id, now // 1000 + lease_ms)
        return True

    # --- timers -------------------------------------------------------------------------

    def next_due(self) -> int | None:
        """The time of the nearest timer."""
        first = self._timers.first()
        return None if first is None else self._timers.score(first)

    def wake(self, limit: int, now: int) -> int:
        """Queue runs whose timer is due."""
        woken = 0
        for run_id in self._timers.pop_up_to(now, limit):
            run = self.runs[run_id]
            if run.status in (RunStatus.SLEEPING, RunStatus.WAITING, RunStatus.QUEUED):
                self._enqueue(run)
                woken += 1
        if woken:
            self._ring(BellKind.QUEUED)
        return woken

    # --- from outside -------------------------------------------------------------------

    def terminate(self, run_id: str, data: bytes, keep_ms: int, now: int) -> RunStatus:
        """End a run, whoever holds it."""
        run = self.find(run_id)
        before, attempt = run.status, run.attempt
        if run.ended:
            return before
        if before is RunStatus.RUNNING:
            run.epoch += 1
            self._claims.discard(run_id)
        elif before is RunStatus.QUEUED:
            self._queue.discard(run.owner, run_id)
        self._timers.discard(run_id)
        if not run.journal:
            self._write(run, self._submitted(run))
            run.input = run.about = b""
        self._write(run, store_entry(EventType.RUN_TERMINATED, now, attempt, data))
        self._close(run, RunStatus.TERMINATED, keep_ms, now)
        if run.children:
            self.closing[run_id] = now
        if before is RunStatus.RUNNING:
            self._ring(BellKind.ENDED, run_id=run_id)
        return before

    def revive(self, run_id: str, data: bytes, now: int) -> RunStatus:
        """Queue a failed run again."""
        run = self.find(run_id)
        if run.status is not RunStatus.FAILED:
            raise WrongRunState(self.workflow, run_id, run.status, "only a failed run can be retried")
        self._write(run, store_entry(EventType.RUN_RETRIED, now, run.attempt, data))
        run.error, run.finished_at, run.requeues = b"", 0, 0
        self._kept.discard(run_id)
        self._release(run)
        return RunStatus.FAILED

    def sweep(self, limit: int, budget: int, keep_ms: int, now: int) -> tuple[int, list[StoredRun]]:
        """Requeue or fail runs whose lease ran out; forget ended runs kept long enough, and give those."""
        now_ms = now // 1000
        lost = self._claims.pop_up_to(now_ms, limit)
        for run_id in lost:
            self._recover(self.runs[run_id], budget, keep_ms, now)
        return len(lost), [self.runs.pop(run_id) for run_id in self._kept.pop_up_to(now_ms, limit)]

    def _recover(self, run: StoredRun, budget: int, keep_ms: int, now: int) -> None:
        # The epoch moves at once, so that the old worker is refused even before another takes the run.
        attempt = run.attempt
        run.epoch += 1
        count = run.lose()
        if count > budget:
            error = (
                b'{"error":{"code":"requeue_budget_exhausted","type":"","message":"its worker was lost %d times'
                b' in a row before anything new was recorded","detail":{"requeues":%d}}}' % (count, count)
            )
            self._write(run, store_entry(EventType.RUN_FAILED, now, attempt, error))
            self._close(run, RunStatus.FAILED, keep_ms, now)
            return
        self._count_loss(run, count)
        self._release(run)

    @staticmethod
    def _count_loss(run: StoredRun, count: int) -> None:
        run.requeues, run.lost_at = count, (run.seq, run.attempt)

    # --- shared -------------------------------------------------------------------------

    def _write(self, run: StoredRun, raw: bytes) -> None:
        run.journal.append(raw)
        self._exchange.written(self.workflow, run.run_id)

    def _enqueue(self, run: StoredRun) -> None:
        run.status, run.wake_at, run.topic = RunStatus.QUEUED, 0, ""
        self._queue.put(run.owner, run.run_id, (run.score, run.serial))

    def _release(self, run: StoredRun) -> None:
        """Queue a run that no worker holds."""
        self._timers.discard(run.run_id)
        self._enqueue(run)
        self._ring(BellKind.QUEUED)

    def _set_timer(self, run: StoredRun) -> None:
        self._timers.put(run.run_id, run.wake_at)
        if self._timers.first() == run.run_id:
            self._ring(BellKind.TIMER, due=run.wake_at)

    def _close(self, run: StoredRun, status: RunStatus, keep_ms: int, now: int) -> None:
        run.status, run.finished_at, run.wake_at, run.topic, run.error = status, now, 0, "", b""
        if status is not RunStatus.FAILED:  # a failed run may be revived
            run.inbox.clear()
        self._kept.put(run.run_id, now // 1000 + keep_ms)
        self._exchange.end(Bell(BellKind.ENDED, self.workflow, 0, run.run_id, seq=run.seq, entry=run.journal[-1]))

    def _ring(self, kind: str, *, run_id: str = "", due: int = 0) -> None:
        self._exchange.ring(Bell(kind, self.workflow, 0, run_id, due))


def _lost(claim: Claim | Lease) -> ClaimLost:
    return ClaimLost(f"run {claim.run_id!r} is no longer held under epoch {claim.epoch}")


def _gap(claim: Claim, seq: int) -> EventOutOfOrder:
    return EventOutOfOrder(f"the journal of run {claim.run_id!r} does not end at {seq}: acknowledged writes were lost")
