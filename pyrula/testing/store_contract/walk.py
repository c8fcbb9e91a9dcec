"""A seeded walk through everything that can be done to a store's runs, by workers, callers and time.

The walker acts as several workers at once, some of them stale, and knows what it was promised: each
answer is held against that, and after each step the journals are held against what they were before.
It gives a trace without times, so that two stores can be compared step by step.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from pyrula.contracts.errors import ClaimLost, RunNotFound, WrongRunState
from pyrula.contracts.events import TERMINAL_TYPES, EventType, parse
from pyrula.contracts.runs import ENDED, RunStatus
from pyrula.contracts.store import Claim, Ending, Lease, Message, Parking, RunRecord, Store, Timers
from pyrula.testing.audit import audit, examine
from pyrula.testing.store_contract.scenes import KEEP, LEASE, WORKFLOW, new_run, note

__all__ = ["Walk"]

_RUNS: Final = 8
_OWNERS: Final = ("", "a", "b")
_TOPICS: Final = ("signal:go", "interrupt:ok")
_BUDGET: Final = 1
_AUDIT_EVERY: Final = 10  # steps; each run is examined after every one


@dataclass(slots=True)
class _Known:
    """What the walker knows of a run: its journal so far, what was promised, and its last claims."""

    journal: list[tuple[int, bytes]] = field(default_factory=list)
    inbox: list[bytes] = field(default_factory=list)
    delivered: list[Message] = field(default_factory=list)
    claim: Claim | None = None
    seq: int = 0
    stale: list[Claim] = field(default_factory=list)
    steps: int = 0


class Walk:
    """One walk. `take` makes a step, `trace` says what happened, `problems` what should not have."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store = store
        self.trace: list[str] = []
        self.problems: list[str] = []
        self._chance = random.Random(seed)
        self._runs: dict[str, _Known] = {}
        self._made = 0
        self._taken = 0
        self._messages = 0
        self._steps: tuple[tuple[Callable[[], Awaitable[str]], int], ...] = (
            (self._submit, 4),
            (self._claim, 8),
            (self._claim_one, 2),
            (self._append, 8),
            (self._append_again, 2),
            (self._act_stale, 4),
            (self._park, 6),
            (self._finish, 3),
            (self._requeue, 2),
            (self._deliver, 8),
            (self._deliver_again, 2),
            (self._terminate, 1),
            (self._revive, 3),
            (self._heartbeat, 2),
            (self._sweep, 5),
            (self._wake, 4),
            (self._publish, 2),
        )
        self._for_holders = (
            self._append,
            self._append_again,
            self._park,
            self._finish,
            self._requeue,
            self._publish,
        )

    async def take(self) -> None:
        """One step, and what it did to every run."""
        actions, weights = zip(*self._steps, strict=True)
        [action] = self._chance.choices(actions, weights)
        if action in self._for_holders and not any(known.claim for known in self._runs.values()):
            action = self._claim
        what = await action()
        self.trace.append(f"{action.__name__[1:]}: {what}")
        await self._look()

    async def drain(self, limit: int = 300) -> None:
        """Let every run end, as workers would: nothing that is not ended may be out of reach."""
        open_: list[RunRecord] = []
        for _ in range(limit):
            open_ = [r for r in (await self.store.listing([WORKFLOW], limit=100)).runs if r.status not in ENDED]
            if not open_:
                return
            for record in open_:
                if record.status not in (RunStatus.RUNNING, RunStatus.QUEUED) or record.wake_at:
                    await self._send(record.run_id, control=True)
            for known in self._runs.values():
                if known.claim is not None:
                    await self.store.requeue(known.claim, known.seq)
                    self._release(known)
            batch = await self.store.claim(WORKFLOW, worker="last", limit=10, lease_ms=LEASE)
            for claim in batch.claims:
                ending = Ending(RunStatus.COMPLETED, KEEP)
                await self.store.finish(claim, claim.seq, [note(claim, "", EventType.RUN_COMPLETED)], ending)
        self.problems.append(f"runs that cannot be ended: {[(r.run_id, r.status) for r in open_]}")

    # --- what it knows --------------------------------------------------------------------

    def _held(self) -> tuple[_Known, Claim]:
        return self._chance.choice([(known, known.claim) for known in self._runs.values() if known.claim is not None])

    def _any(self) -> str:
        return self._chance.choice(list(self._runs))

    def _release(self, known: _Known) -> None:
        if known.claim is not None:
            known.stale.append(known.claim)
            known.claim = None

    async def _look(self) -> None:
        """Hold each run against what it was before this step."""
        self._taken += 1
        if self._taken % _AUDIT_EVERY == 0:
            self.problems += await audit(self.store)
        for run_id, known in list(self._runs.items()):
            try:
                record = await self.store.load(WORKFLOW, run_id)
            except RunNotFound:
                del self._runs[run_id]
                if self._may_go(known):
                    continue
                self.problems.append(f"{run_id} is gone")
                continue
            self._compare(record, known, list(await self.store.read_journal(WORKFLOW, run_id)))
            if known.claim is not None and list(await self.store.inbox(known.claim)) != known.inbox:
                self.problems.append(f"{run_id} has another inbox than it was sent")

    @staticmethod
    def _may_go(known: _Known) -> bool:
        return bool(known.journal) and parse(*known.journal[-1]).type in TERMINAL_TYPES

    def _compare(self, record: RunRecord, known: _Known, journal: list[tuple[int, bytes]]) -> None:
        self.problems += examine(record, journal)
        before = len(known.journal)
        if journal[:before] != known.journal:
            self.problems.append(f"{record.run_id}: its journal is not what it was with something added")
        if self._may_go(known) and len(journal) > before and parse(*journal[before]).type != EventType.RUN_RETRIED:
            self.problems.append(f"{record.run_id}: its journal grew after its end")
        known.journal = journal
        if known.claim is not None and record.epoch != known.claim.epoch:
            self._release(known)
        if record.status in ENDED and record.status is not RunStatus.FAILED:
            known.inbox.clear()
        self.trace.append(
            f"  {record.run_id} {record.status} e{record.epoch} s{record.seq} q{record.requeues} {record.topic!r}"
            f" wake={bool(record.wake_at)} end={bool(record.finished_at)} {record.error!r} {record.attributes!r}"
            f" {[(e.type, e.attempt, e.key, e.data) for e in (parse(*raw) for raw in journal[before:])]}"
        )

    async def _refused(self, call: Awaitable[object], what: str) -> str:
        try:
            await call
        except ClaimLost:
            return f"{what} lost"
        self.problems.append(f"{what} was accepted under a stale claim")
        return f"{what} accepted"

    # --- steps ----------------------------------------------------------------------------

    async def _submit(self) -> str:
        if sum(not self._may_go(known) for known in self._runs.values()) >= _RUNS:
            run_id = self._any()
            [answer] = await self.store.submit([new_run(run_id, input=b"{}")])
            return f"{run_id} again, {answer.created} {answer.status} {answer.input_digest}"
        self._made += 1
        run_id = f"r{self._made:04}"
        owner, priority = self._chance.choice(_OWNERS), self._chance.choice((0, 0, 1))
        delay = self._chance.choice((None, None, None, 0, LEASE))
        [answer] = await self.store.submit([new_run(run_id, owner=owner, priority=priority, delay_ms=delay)])
        self._runs[run_id] = _Known()
        return f"{run_id} {owner!r} {priority} {delay} {answer.created} {answer.status}"

    async def _claim(self) -> str:
        limit = self._chance.choice((1, 1, 2, 5))
        # A lease of no length: its worker is dead already, and the next sweep will see it.
        lease = self._chance.choice((LEASE, 0))
        batch = await self.store.claim(WORKFLOW, worker=f"w{limit}", limit=limit, lease_ms=lease)
        for claim in batch.claims:
            self._took_over(claim)
        return f"{limit} {lease} {[(c.run_id, c.owner, c.epoch) for c in batch.claims]} {batch.more}"

    async def _claim_one(self) -> str:
        if not self._runs:
            return "no run"
        run_id = self._any()
        claim = await self.store.claim_run(WORKFLOW, run_id, worker="w0", lease_ms=LEASE)
        if claim is None:
            return f"{run_id} not runnable"
        self._took_over(claim)
        return f"{run_id} {claim.epoch} {claim.seq}"

    def _took_over(self, claim: Claim) -> None:
        known = self._runs[claim.run_id]
        if known.claim is not None:
            self.problems.append(f"{claim.run_id} was claimed while it was held")
        if list(claim.inbox) != known.inbox:
            self.problems.append(f"{claim.run_id}: a claim brought another inbox than it was sent")
        if list(claim.entries[: len(known.journal)]) != known.journal:
            self.problems.append(f"{claim.run_id}: a claim brought another journal")
        known.claim, known.seq = claim, claim.seq

    def _entries(self, known: _Known, claim: Claim, count: int) -> list[bytes]:
        made = []
        for _ in range(count):
            known.steps += 1
            made.append(note(claim, f"k{known.steps}", n=known.steps))
        return made

    def _consumed(self, known: _Known) -> list[bytes]:
        return self._chance.sample(known.inbox, self._chance.randint(0, min(2, len(known.inbox))))

    def _took(self, known: _Known, entries: list[bytes], consumed: list[bytes]) -> None:
        known.seq += len(entries)
        for raw in consumed:
            known.inbox.remove(raw)

    async def _append(self) -> str:
        known, claim = self._held()
        consumed = self._consumed(known)
        entries = self._entries(known, claim, self._chance.randint(0 if consumed else 1, 3))
        times = self._chance.choice((1, 1, 2))
        for _ in range(times):
            await self.store.append(claim, known.seq, entries, consumed=consumed)
        self._took(known, entries, consumed)
        return f"{claim.run_id} {len(entries)} {len(consumed)} times {times}"

    async def _append_again(self) -> str:
        known, claim = self._held()
        start = self._chance.randint(claim.seq, known.seq)
        entries = [raw for _, raw in known.journal[start : start + self._chance.randint(1, 3)]]
        if entries:
            await self.store.append(claim, start, entries)
        return f"{claim.run_id} {start} {len(entries)}"

    async def _act_stale(self) -> str:
        stale = [(known, claim) for known in self._runs.values() for claim in known.stale]
        if not stale:
            return "nobody is stale"
        known, claim = self._chance.choice(stale)
        seq = self._chance.choice((claim.seq, len(known.journal)))
        entry = note(claim, "stale", note="never written")
        waiting = Parking(RunStatus.WAITING, _TOPICS[0], inbox_seen=99)
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "append": lambda: self.store.append(claim, seq, [entry], consumed=known.inbox),
            "park": lambda: self.store.park(claim, seq, [entry], waiting, consumed=known.inbox),
            "finish": lambda: self.store.finish(claim, seq, [entry], Ending(RunStatus.COMPLETED, 0)),
            "attributes": lambda: self.store.set_attributes(claim, b'{"stale":true}'),
            "commit": lambda: self.store.commit(claim, "stale", b"1"),
        }
        chosen = self._chance.choice(list(calls))
        return f"{claim.run_id} e{claim.epoch} {await self._refused(calls[chosen](), chosen)}"

    async def _park(self) -> str:
        known, claim = self._held()
        status = self._chance.choice((RunStatus.WAITING, RunStatus.WAITING, RunStatus.SLEEPING, RunStatus.PAUSED))
        topic = "" if status is RunStatus.PAUSED else self._chance.choice(_TOPICS)
        wake_at = None if status is RunStatus.PAUSED else self._chance.choice((None, 1, 1, claim.now + LEASE * 1000))
        consumed = self._consumed(known)
        entries = self._entries(known, claim, self._chance.randint(0, 2))
        unseen = self._chance.choice((0, 0, 1)) if len(known.inbox) > len(consumed) else 0
        parking = Parking(status, topic, wake_at, inbox_seen=len(known.inbox) - unseen)
        answers = [
            await self.store.park(claim, known.seq, entries, parking, consumed=consumed)
            for _ in range(self._chance.choice((1, 2)))
        ]
        if set(answers) != {not unseen}:
            self.problems.append(f"{claim.run_id}: parked with {unseen} unseen messages, and told {answers}")
        self._took(known, entries, consumed)
        self._release(known)
        return f"{claim.run_id} {status} {topic} {bool(wake_at)} {len(entries)} {len(consumed)} {answers}"

    async def _finish(self) -> str:
        known, claim = self._held()
        status = self._chance.choice((RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.FAILED, RunStatus.CANCELLED))
        aside = status is RunStatus.FAILED and self._chance.random() < 0.5
        entries = self._entries(known, claim, self._chance.randint(0, 2))
        if not aside:
            entries.append(note(claim, "", f"run.{status}"))
        ending = Ending(
            status, self._chance.choice((0, 0, KEEP)), terminal=not aside, error=b'{"n":1}' if aside else b""
        )
        for _ in range(self._chance.choice((1, 2))):
            await self.store.finish(claim, known.seq, entries, ending)
        self._took(known, entries, [])
        self._release(known)
        return f"{claim.run_id} {status} aside={aside}"

    async def _requeue(self) -> str:
        known, claim = self._held()
        spent = self._chance.random() < 0.3
        for _ in range(self._chance.choice((1, 2))):
            await self.store.requeue(claim, known.seq, spent=spent)
        self._release(known)
        return f"{claim.run_id} {spent}"

    async def _send(self, run_id: str, *, control: bool, topic: str = "") -> str:
        self._messages += 1
        name = f"m{self._messages}"
        sent = Message(name, topic, b'{"id":"%b"}' % name.encode(), control=control)
        delivery = await self.store.deliver(WORKFLOW, run_id, sent)
        if delivery.accepted:
            self._runs[run_id].inbox.append(sent.raw)
            self._runs[run_id].delivered.append(sent)
        return f"{run_id} {topic} {control} {delivery.accepted} {delivery.status}"

    async def _deliver(self) -> str:
        if not self._runs:
            return "no run"
        run_id = self._any()
        return await self._send(run_id, control=self._chance.random() < 0.25, topic=self._chance.choice(_TOPICS))

    async def _deliver_again(self) -> str:
        sent = [(run_id, each) for run_id, known in self._runs.items() for each in known.delivered]
        if not sent:
            return "nothing was sent"
        run_id, message = self._chance.choice(sent)
        delivery = await self.store.deliver(WORKFLOW, run_id, message)
        if not (delivery.accepted and delivery.repeat):
            self.problems.append(f"{run_id}: {message.message_id} was sent before, and told {delivery}")
        return f"{run_id} {message.message_id} {delivery.status}"

    async def _terminate(self) -> str:
        if not self._runs:
            return "no run"
        run_id = self._any()
        before = await self.store.terminate(
            WORKFLOW, run_id, b'{"reason":null}', keep_ms=self._chance.choice((0, 0, KEEP))
        )
        return f"{run_id} {before}"

    async def _revive(self) -> str:
        if not self._runs:
            return "no run"
        failed = await self.store.listing([WORKFLOW], status=RunStatus.FAILED)
        run_id = self._chance.choice([each.run_id for each in failed.runs] or list(self._runs))
        try:
            return f"{run_id} {await self.store.revive(WORKFLOW, run_id, b'{}')}"
        except WrongRunState as error:
            return f"{run_id} is {error.status}"

    async def _heartbeat(self) -> str:
        current = [known.claim for known in self._runs.values() if known.claim is not None]
        stale = [claim for known in self._runs.values() for claim in known.stale]
        asked = [Lease(WORKFLOW, claim.run_id, claim.epoch, claim.token) for claim in (*current, *stale)]
        lost = await self.store.heartbeat(asked, lease_ms=self._chance.choice((LEASE, 0)))
        expected = {(claim.run_id, claim.epoch) for claim in stale}
        if {(lease.run_id, lease.epoch) for lease in lost} != expected:
            self.problems.append(f"leases told as lost: {lost}, and lost are {expected}")
        return f"{len(asked)} {len(lost)}"

    async def _sweep(self) -> str:
        limit = self._chance.choice((1, 10))
        return f"{limit} {await self.store.sweep(WORKFLOW, limit=limit, requeue_budget=_BUDGET, keep_ms=KEEP)}"

    async def _wake(self) -> str:
        if not isinstance(self.store, Timers):
            return "no timers"
        due = await self.store.next_due(WORKFLOW)
        limit = self._chance.choice((1, 10))
        return f"{due is None} {limit} {await self.store.wake(WORKFLOW, limit=limit)}"

    async def _publish(self) -> str:
        known, claim = self._held()
        await self.store.set_attributes(claim, b'{"n":%d}' % known.steps)
        await self.store.commit(claim, "n", b"%d" % known.steps)
        return f"{claim.run_id} {await self.store.committed(WORKFLOW, claim.run_id)}"
