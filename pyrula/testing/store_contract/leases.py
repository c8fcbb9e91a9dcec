"""Claims last as long as they are renewed; what a lost worker held goes to another, within a budget."""

from __future__ import annotations

import anyio.to_thread
import pytest

from pyrula.contracts.errors import ClaimLost, RunNotFound
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Claim, Ending, Lease, LeaseKeeper, Parking, Store
from pyrula.testing.store_contract.base import Contract
from pyrula.testing.store_contract.scenes import (
    KEEP,
    LEASE,
    WORKFLOW,
    claimed,
    claims,
    finished,
    journal,
    message,
    none_left,
    note,
    submit,
    types,
)

__all__ = ["Leases"]

_SHORT = 1  # ms


def _lease(claim: Claim, epoch: int | None = None) -> Lease:
    return Lease(claim.workflow, claim.run_id, claim.epoch if epoch is None else epoch, claim.token)


class Leases(Contract):
    """`heartbeat`, `heartbeat_sync` and `sweep`."""

    async def lost(self, store: Store, *, budget: int = 100, keep_ms: int = KEEP) -> int:
        """Sweep until something is found."""
        return await self.until(store, lambda: store.sweep(WORKFLOW, limit=100, requeue_budget=budget, keep_ms=keep_ms))

    # --- heartbeat ----------------------------------------------------------------------

    async def test_a_renewed_lease_outlives_its_first_length(self, store: Store) -> None:
        claim = await claimed(store, lease_ms=300)
        assert await store.heartbeat([_lease(claim)], lease_ms=LEASE) == []
        await self.passed(store, claim.now + 310_000)
        assert await store.sweep(WORKFLOW, limit=10, requeue_budget=10, keep_ms=KEEP) == 0
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.RUNNING

    async def test_a_lease_may_be_shortened(self, store: Store) -> None:
        claim = await claimed(store)
        assert await store.heartbeat([_lease(claim)], lease_ms=_SHORT) == []
        assert await self.lost(store) == 1

    async def test_lost_leases_are_told_among_others(self, store: Store) -> None:
        kept = [await claimed(store, f"kept{n}") for n in range(3)]
        requeued = await claimed(store, "requeued")
        await store.requeue(requeued, 2)
        [retaken] = await claims(store, 1, worker="w2")
        ended = await finished(store, "ended")
        lost = [_lease(requeued), _lease(ended), Lease(WORKFLOW, "nobody", 1), Lease("invoices", "kept0", 1)]
        told = await store.heartbeat([*(_lease(claim) for claim in kept), *lost], lease_ms=LEASE)
        assert sorted(told, key=repr) == sorted(lost, key=repr)
        assert await store.heartbeat([_lease(retaken)], lease_ms=LEASE) == []

    async def test_one_id_in_two_workflows_is_two_leases(self, store: Store) -> None:
        ours = await claimed(store)
        theirs = await claimed(store, workflow="invoices")
        await store.requeue(theirs, 2)
        assert await store.heartbeat([_lease(ours), _lease(theirs)], lease_ms=LEASE) == [_lease(theirs)]
        assert await store.heartbeat([_lease(theirs), _lease(ours)], lease_ms=LEASE) == [_lease(theirs)]

    async def test_one_run_under_two_epochs_is_two_leases(self, store: Store) -> None:
        old = await claimed(store)
        await store.requeue(old, 2)
        [new] = await claims(store, 1)
        assert await store.heartbeat([_lease(old), _lease(new)], lease_ms=LEASE) == [_lease(old)]
        assert await store.heartbeat([_lease(new), _lease(old)], lease_ms=LEASE) == [_lease(old)]

    async def test_no_leases_are_renewed(self, store: Store) -> None:
        assert await store.heartbeat([], lease_ms=LEASE) == []

    async def test_a_lost_lease_brings_nothing_back(self, store: Store) -> None:
        claim = await claimed(store)
        await store.requeue(claim, 2)
        assert await store.heartbeat([_lease(claim)], lease_ms=LEASE) == [_lease(claim)]
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.QUEUED
        [again] = await claims(store, 1, lease_ms=_SHORT)
        await store.heartbeat([_lease(claim)], lease_ms=LEASE)
        assert await self.lost(store) == 1
        assert again.epoch == 3

    async def test_leases_are_renewed_from_a_thread(self, store: Store) -> None:
        if not isinstance(store, LeaseKeeper):
            pytest.skip("a store that renews leases in its event loop only")
        claim = await claimed(store, lease_ms=300)
        gone = Lease(WORKFLOW, "nobody", 1)
        told = await anyio.to_thread.run_sync(lambda: store.heartbeat_sync([_lease(claim), gone], lease_ms=LEASE))
        assert told == [gone]
        await self.passed(store, claim.now + 310_000)
        assert await store.sweep(WORKFLOW, limit=10, requeue_budget=10, keep_ms=KEEP) == 0

    # --- sweep --------------------------------------------------------------------------

    async def test_a_run_that_lost_its_worker_is_queued_again(self, store: Store) -> None:
        old = await claimed(store, lease_ms=_SHORT)
        kept = await claimed(store, "r2")
        await store.append(old, 2, [note(old, "a")])
        assert await self.lost(store) == 1
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.epoch, record.seq, record.requeues) == (RunStatus.QUEUED, 2, 3, 1)
        assert (await store.load(WORKFLOW, "r2")).status is RunStatus.RUNNING
        await store.append(kept, 2, [note(kept, "a")])
        [new] = await claims(store, 1, worker="w2")
        assert (new.run_id, new.attempt) == ("r1", 2)
        assert await types(store) == ["run.submitted", "run.started", "step.completed", "run.resumed"]

    async def test_the_lost_worker_is_refused_before_another_takes_the_run(self, store: Store) -> None:
        old = await claimed(store, lease_ms=_SHORT)
        await store.deliver(WORKFLOW, "r1", message("m1"))
        await self.lost(store)
        with pytest.raises(ClaimLost):
            await store.append(old, 2, [note(old, "a")], consumed=[message("m1").raw])
        with pytest.raises(ClaimLost):
            await store.park(old, 2, [note(old, "w")], Parking(RunStatus.WAITING, "signal:go", inbox_seen=1))
        with pytest.raises(ClaimLost):
            await store.commit(old, "k", b"1")
        [new] = await claims(store, 1)
        assert (new.seq, list(new.inbox)) == (3, [message("m1").raw])

    async def test_a_worker_whose_lease_ran_out_unseen_still_holds_the_run(self, store: Store) -> None:
        claim = await claimed(store, lease_ms=_SHORT)
        await self.passed(store, claim.now + 5_000)
        await store.append(claim, 2, [note(claim, "a")])
        assert await store.heartbeat([_lease(claim)], lease_ms=LEASE) == []

    async def test_a_renewed_lease_hides_no_other(self, store: Store) -> None:
        renewed = await claimed(store, "renewed", lease_ms=_SHORT)
        await claimed(store, "lost", lease_ms=20)
        assert await store.heartbeat([_lease(renewed)], lease_ms=LEASE) == []
        assert await self.lost(store) == 1
        assert (await store.load(WORKFLOW, "lost")).status is RunStatus.QUEUED
        assert (await store.load(WORKFLOW, "renewed")).status is RunStatus.RUNNING

    @pytest.mark.parametrize("how", ["park", "requeue", "finish", "set aside", "terminate"])
    async def test_a_run_that_was_given_up_has_no_lease_to_lose(self, store: Store, how: str) -> None:
        claim = await claimed(store, lease_ms=_SHORT)
        if how == "park":
            await store.park(claim, 2, [], Parking(RunStatus.WAITING, "signal:go"))
        elif how == "requeue":
            await store.requeue(claim, 2)
        elif how == "terminate":
            await store.terminate(WORKFLOW, "r1", b"{}", keep_ms=KEEP)
        else:
            ending = Ending(RunStatus.FAILED, KEEP, terminal=how == "finish", error=b"{}")
            await store.finish(claim, 2, [note(claim, "", "run.failed")] if ending.terminal else [], ending)
        before = await store.load(WORKFLOW, "r1")
        await self.passed(store, claim.now + 50_000)
        assert await store.sweep(WORKFLOW, limit=10, requeue_budget=0, keep_ms=0) == 0
        assert await store.load(WORKFLOW, "r1") == before

    async def test_a_run_in_its_place(self, store: Store) -> None:
        self.need_one_queue()
        await claimed(store, "r1", lease_ms=_SHORT)
        await submit(store, "r2")
        await self.lost(store)
        assert [claim.run_id for claim in await claims(store, 2)] == ["r1", "r2"]

    async def test_the_limit_of_a_sweep_is_kept(self, store: Store) -> None:
        self.need_one_queue()
        last = [await claimed(store, f"r{n}", lease_ms=_SHORT) for n in range(3)][-1]
        await self.passed(store, last.now + 50_000)
        swept = [await store.sweep(WORKFLOW, limit=2, requeue_budget=9, keep_ms=KEEP) for _ in range(3)]
        assert swept == [2, 1, 0]

    async def test_nothing_to_sweep(self, store: Store) -> None:
        await submit(store, "r1")
        assert await store.sweep(WORKFLOW, limit=10, requeue_budget=10, keep_ms=0) == 0
        assert await store.sweep("invoices", limit=10, requeue_budget=10, keep_ms=0) == 0

    # --- the budget ---------------------------------------------------------------------

    async def test_a_run_that_keeps_losing_its_worker_is_failed(self, store: Store) -> None:
        await submit(store, "r1")
        for count in (1, 2):
            await claims(store, 1, lease_ms=_SHORT)
            assert await self.lost(store, budget=2) == 1
            record = await store.load(WORKFLOW, "r1")
            assert (record.status, record.requeues) == (RunStatus.QUEUED, count)
        [last] = await claims(store, 1, lease_ms=_SHORT)
        assert await self.lost(store, budget=2) == 1
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.error, record.epoch) == (RunStatus.FAILED, b"", last.epoch + 1)
        event = (await journal(store))[-1]
        assert (event.type, event.at, event.attempt) == ("run.failed", record.finished_at, 3)
        assert event.data == {
            "error": {
                "code": "requeue_budget_exhausted",
                "type": "",
                "message": "its worker was lost 3 times in a row before anything new was recorded",
                "detail": {"requeues": 3},
            }
        }
        assert await none_left(store)

    async def test_progress_restores_the_budget(self, store: Store) -> None:
        await submit(store, "r1")
        for _ in range(4):
            for count in (1, 2):
                [claim] = await claims(store, 1, lease_ms=_SHORT)
                if count == 1:
                    await store.append(claim, claim.seq, [note(claim, f"k{claim.attempt}")])
                await self.lost(store, budget=2)
                assert (await store.load(WORKFLOW, "r1")).requeues == count
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.QUEUED

    async def test_a_spent_requeue_uses_the_same_budget(self, store: Store) -> None:
        claim = await claimed(store)
        await store.requeue(claim, 2, spent=True)
        [claim] = await claims(store, 1)
        await store.requeue(claim, 3, spent=True)
        await claims(store, 1, lease_ms=_SHORT)
        await self.lost(store, budget=2)
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.FAILED

    async def test_a_plain_requeue_uses_none(self, store: Store) -> None:
        await submit(store, "r1")
        for _ in range(5):
            [claim] = await claims(store, 1)
            await store.requeue(claim, claim.seq)
        await claims(store, 1, lease_ms=_SHORT)
        await self.lost(store, budget=1)
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.requeues) == (RunStatus.QUEUED, 1)

    async def test_a_failed_run_may_be_revived_with_a_new_budget(self, store: Store) -> None:
        await submit(store, "r1")
        for _ in range(2):
            await claims(store, 1, lease_ms=_SHORT)
            await self.lost(store, budget=1)
        await store.revive(WORKFLOW, "r1", b"{}")
        assert (await store.load(WORKFLOW, "r1")).requeues == 0
        await claims(store, 1, lease_ms=_SHORT)
        await self.lost(store, budget=1)
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.requeues) == (RunStatus.QUEUED, 1)

    # --- deletion -----------------------------------------------------------------------

    async def test_an_ended_run_is_kept_for_its_time(self, store: Store) -> None:
        await finished(store, keep_ms=KEEP)
        await store.sweep(WORKFLOW, limit=10, requeue_budget=10, keep_ms=0)
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.COMPLETED

    async def test_a_deleted_run_leaves_nothing(self, store: Store) -> None:
        claim = await claimed(store, attributes=b'{"a":1}')
        await store.deliver(WORKFLOW, "r1", message("m1"))
        await store.commit(claim, "k", b"1")
        await store.write_output(claim, 1, b"chunk")
        await store.terminate(WORKFLOW, "r1", b"{}", keep_ms=_SHORT)
        await self.until(store, lambda: _gone(store))
        assert list(await store.read_journal(WORKFLOW, "r1")) == []
        assert list((await store.listing([WORKFLOW])).runs) == []
        assert await store.count([WORKFLOW]) == 0
        assert await store.committed(WORKFLOW, "r1") == {}
        with pytest.raises(RunNotFound):
            await store.deliver(WORKFLOW, "r1", message("m1"))
        with pytest.raises(ClaimLost):
            await store.append(claim, 2, [note(claim, "a")])

    async def test_a_deleted_runs_id_may_be_used_again(self, store: Store) -> None:
        claim = await claimed(store)
        await store.deliver(WORKFLOW, "r1", message("m1"))
        await store.commit(claim, "k", b"1")
        await store.write_output(claim, 1, b"chunk")
        await store.terminate(WORKFLOW, "r1", b"{}", keep_ms=_SHORT)
        await self.until(store, lambda: _gone(store))
        [answer] = await submit(store, "r1", input=b'{"n":2}')
        assert answer.created
        assert not (await store.deliver(WORKFLOW, "r1", message("m1"))).repeat
        [again] = await claims(store, 1)
        assert (again.epoch, again.seq, list(again.inbox)) == (1, 2, [message("m1").raw])
        assert await store.committed(WORKFLOW, "r1") == {}

    async def test_deletions_are_not_counted(self, store: Store) -> None:
        claim = await finished(store, keep_ms=_SHORT)
        await self.passed(store, claim.now + 50_000)
        assert await store.sweep(WORKFLOW, limit=10, requeue_budget=10, keep_ms=0) == 0
        assert await _gone(store)


async def _gone(store: Store) -> bool:
    await store.sweep(WORKFLOW, limit=10, requeue_budget=10, keep_ms=0)
    try:
        await store.load(WORKFLOW, "r1")
    except RunNotFound:
        return True
    return False
