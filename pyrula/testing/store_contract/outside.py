"""What is done to a run from outside: ended, whoever holds it, or begun again."""

from __future__ import annotations

import pytest

from pyrula.contracts.errors import ClaimLost, RunNotFound, WrongRunState
from pyrula.contracts.events import parse
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Ending, Lease, Store
from pyrula.testing.store_contract.base import Contract
from pyrula.testing.store_contract.scenes import (
    INPUT,
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
    parked,
    set_aside,
    submit,
    types,
)

__all__ = ["Outside"]

_WHY = b'{"reason":"no longer wanted"}'
_HOUR = 3_600_000_000  # microseconds


class Outside(Contract):
    """`terminate` and `revive`, in each state that a run can be in."""

    async def test_a_queued_run_is_terminated(self, store: Store) -> None:
        await submit(store, "r1", "r2")
        assert await store.terminate(WORKFLOW, "r1", _WHY, keep_ms=KEEP) is RunStatus.QUEUED
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.seq, record.input) == (RunStatus.TERMINATED, 2, b"")
        assert record.finished_at >= record.submitted_at
        first, last = await journal(store)
        assert first == (1, "run.submitted", record.submitted_at, 0, "", {"input": {"n": 1}})
        assert last == (2, "run.terminated", record.finished_at, 0, "", {"reason": "no longer wanted"})
        assert [claim.run_id for claim in await claims(store, 1)] == ["r2"]
        assert await none_left(store)

    async def test_the_last_run_of_an_owner_is_terminated(self, store: Store) -> None:
        await submit(store, "a1", owner="a")
        await submit(store, "b1", owner="b")
        await store.terminate(WORKFLOW, "a1", _WHY, keep_ms=KEEP)
        assert [claim.run_id for claim in await claims(store, 1)] == ["b1"]
        assert await none_left(store)

    async def test_a_held_back_run_is_terminated(self, store: Store) -> None:
        await submit(store, "r1", delay_ms=3_600_000)
        assert await store.terminate(WORKFLOW, "r1", _WHY, keep_ms=KEEP) is RunStatus.QUEUED
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.wake_at) == (RunStatus.TERMINATED, 0)
        assert await self.timers(store).next_due(WORKFLOW) is None

    async def test_a_running_run_is_terminated_and_its_worker_fenced_off(self, store: Store) -> None:
        claim = await claimed(store)
        await store.append(claim, 2, [note(claim, "a")])
        assert await store.terminate(WORKFLOW, "r1", _WHY, keep_ms=KEEP) is RunStatus.RUNNING
        with pytest.raises(ClaimLost):
            await store.append(claim, 3, [note(claim, "b")])
        with pytest.raises(ClaimLost):
            await store.commit(claim, "k", b"1")
        lease = Lease(WORKFLOW, "r1", claim.epoch, claim.token)
        assert await store.heartbeat([lease], lease_ms=LEASE) == [lease]
        entries = await journal(store)
        assert [each.type for each in entries[2:]] == ["step.completed", "run.terminated"]
        assert entries[-1].attempt == 1
        record = await store.load(WORKFLOW, "r1")
        assert (record.attempt, record.seq) == (1, 4)

    @pytest.mark.parametrize("status", [RunStatus.WAITING, RunStatus.SLEEPING, RunStatus.PAUSED])
    async def test_a_parked_run_is_terminated(self, store: Store, status: RunStatus) -> None:
        await parked(store, status=status, wake_at=await store.now() + _HOUR)
        assert await store.terminate(WORKFLOW, "r1", _WHY, keep_ms=KEEP) is status
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.topic, record.wake_at) == (RunStatus.TERMINATED, "", 0)
        assert await self.timers(store).next_due(WORKFLOW) is None
        assert not (await store.deliver(WORKFLOW, "r1", message("m1"))).accepted
        assert await none_left(store)

    async def test_a_run_that_was_set_aside_is_terminated(self, store: Store) -> None:
        await set_aside(store)
        assert await store.terminate(WORKFLOW, "r1", _WHY, keep_ms=KEEP) is RunStatus.FAILED
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.error) == (RunStatus.TERMINATED, b"")
        assert (await types(store))[-1] == "run.terminated"

    @pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.FAILED])
    async def test_an_ended_run_is_left_alone(self, store: Store, status: RunStatus) -> None:
        await finished(store, status=status)
        before = await store.load(WORKFLOW, "r1")
        assert await store.terminate(WORKFLOW, "r1", _WHY, keep_ms=KEEP) is status
        assert await store.load(WORKFLOW, "r1") == before

    async def test_a_repeated_terminate_changes_nothing(self, store: Store) -> None:
        await claimed(store)
        await store.terminate(WORKFLOW, "r1", _WHY, keep_ms=KEEP)
        before = await store.load(WORKFLOW, "r1")
        assert await store.terminate(WORKFLOW, "r1", b"{}", keep_ms=KEEP) is RunStatus.TERMINATED
        assert await store.load(WORKFLOW, "r1") == before

    async def test_no_run_to_terminate_or_revive(self, store: Store) -> None:
        with pytest.raises(RunNotFound):
            await store.terminate(WORKFLOW, "nobody", _WHY, keep_ms=KEEP)
        with pytest.raises(RunNotFound):
            await store.revive(WORKFLOW, "nobody", b"{}")

    # --- revive -------------------------------------------------------------------------

    async def test_a_failed_run_goes_on(self, store: Store) -> None:
        await finished(store, status=RunStatus.FAILED)
        assert await store.revive(WORKFLOW, "r1", b'{"by":"me"}') is RunStatus.FAILED
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.finished_at, record.requeues) == (RunStatus.QUEUED, 0, 0)
        last = (await journal(store))[-1]
        assert (last.type, last.attempt, last.data) == ("run.retried", 1, {"by": "me"})
        [claim] = await claims(store, 1)
        assert (claim.epoch, claim.attempt, claim.seq) == (3, 2, 5)
        assert [parse(*each).type for each in claim.entries] == [
            "run.submitted",
            "run.started",
            "run.failed",
            "run.retried",
            "run.resumed",
        ]

    async def test_a_run_that_was_set_aside_goes_on(self, store: Store) -> None:
        await set_aside(store)
        assert await store.revive(WORKFLOW, "r1", b"{}") is RunStatus.FAILED
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.error, record.finished_at) == (RunStatus.QUEUED, b"", 0)
        assert await types(store) == ["run.submitted", "run.started", "run.retried"]
        assert len(await claims(store, 1)) == 1

    async def test_a_revived_run_is_no_longer_due_for_deletion(self, store: Store) -> None:
        await finished(store, status=RunStatus.FAILED, keep_ms=0)
        await store.revive(WORKFLOW, "r1", b"{}")
        await self.passed(store, await store.now() + 5000)
        await store.sweep(WORKFLOW, limit=10, requeue_budget=5, keep_ms=0)
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.QUEUED

    async def test_a_revived_run_keeps_its_place(self, store: Store) -> None:
        self.need_one_queue()
        await finished(store, "r1", status=RunStatus.FAILED)
        await submit(store, "r2")
        await store.revive(WORKFLOW, "r1", b"{}")
        assert [claim.run_id for claim in await claims(store, 2)] == ["r1", "r2"]

    async def test_a_run_that_has_not_failed_is_not_revived(self, store: Store) -> None:
        await claimed(store, "running")
        await parked(store, "waiting")
        await finished(store, "completed")
        await submit(store, "queued", "terminated")
        await store.terminate(WORKFLOW, "terminated", b"{}", keep_ms=KEEP)
        for name in ("running", "waiting", "completed", "queued", "terminated"):
            before = await store.load(WORKFLOW, name)
            with pytest.raises(WrongRunState) as caught:
                await store.revive(WORKFLOW, name, b"{}")
            assert caught.value.status == name
            assert await store.load(WORKFLOW, name) == before

    async def test_a_run_is_revived_once(self, store: Store) -> None:
        await finished(store, status=RunStatus.FAILED)
        await store.revive(WORKFLOW, "r1", b"{}")
        with pytest.raises(WrongRunState):
            await store.revive(WORKFLOW, "r1", b"{}")
        assert (await types(store)).count("run.retried") == 1

    async def test_a_run_may_fail_and_be_revived_again(self, store: Store) -> None:
        await finished(store, status=RunStatus.FAILED)
        for n in range(2):
            await store.revive(WORKFLOW, "r1", b"{}")
            [claim] = await claims(store, 1)
            assert claim.attempt == n + 2
            await store.finish(claim, claim.seq, [note(claim, "", "run.failed")], Ending(RunStatus.FAILED, KEEP))
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.attempt) == (RunStatus.FAILED, 3)
        assert (await types(store)).count("run.failed") == 3

    async def test_the_input_survives_in_the_journal(self, store: Store) -> None:
        await finished(store, status=RunStatus.FAILED)
        await store.revive(WORKFLOW, "r1", b"{}")
        [claim] = await claims(store, 1)
        assert INPUT in claim.entries[0][1]
