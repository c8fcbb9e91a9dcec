"""How a worker ends a run, for good or until its code is right."""

from __future__ import annotations

import pytest

from pyrula.contracts.errors import ClaimLost, EventOutOfOrder
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Ending, Store
from pyrula.testing.store_contract.base import Contract
from pyrula.testing.store_contract.scenes import (
    KEEP,
    WORKFLOW,
    claimed,
    claims,
    finished,
    message,
    none_left,
    note,
    set_aside,
    types,
)

__all__ = ["Finishing"]

_DONE = Ending(RunStatus.COMPLETED, KEEP)
_REASON = b'{"code":"version_skew"}'
_ASIDE = Ending(RunStatus.FAILED, 0, terminal=False, error=_REASON)


class Finishing(Contract):
    """`finish`, with a terminal event and without."""

    @pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED])
    async def test_a_finished_run_has_ended(self, store: Store, status: RunStatus) -> None:
        claim = await finished(store, status=status)
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.seq, record.error) == (status, 3, b"")
        assert (record.epoch, record.attempt) == (2, 1)
        assert record.finished_at >= claim.now
        assert await types(store) == ["run.submitted", "run.started", f"run.{status}"]
        assert await none_left(store)

    async def test_other_entries_may_come_before_the_terminal_one(self, store: Store) -> None:
        claim = await claimed(store)
        await store.finish(claim, 2, [note(claim, "a"), note(claim, "b"), note(claim, "", "run.completed")], _DONE)
        assert (await types(store))[2:] == ["step.completed", "step.completed", "run.completed"]

    async def test_a_repeated_finish_changes_nothing(self, store: Store) -> None:
        claim = await claimed(store)
        entries = [note(claim, "a"), note(claim, "", "run.completed")]
        await store.finish(claim, 2, entries, _DONE)
        before = await store.load(WORKFLOW, "r1")
        for _ in range(2):
            await store.finish(claim, 2, entries, _DONE)
        assert await store.load(WORKFLOW, "r1") == before

    async def test_an_ended_run_takes_no_appends(self, store: Store) -> None:
        claim = await finished(store)
        for seq in (2, 3):
            with pytest.raises(ClaimLost):
                await store.append(claim, seq, [note(claim, "late")])
        assert (await types(store))[-1] == "run.completed"

    async def test_a_stale_finish_is_lost(self, store: Store) -> None:
        old = await claimed(store)
        await store.requeue(old, 2)
        [new] = await claims(store, 1)
        for seq in (2, 3):
            with pytest.raises(ClaimLost):
                await store.finish(old, seq, [note(old, "", "run.completed")], _DONE)
        await store.append(new, 3, [note(new, "a")])

    async def test_a_finish_that_leaves_a_gap_is_refused(self, store: Store) -> None:
        claim = await claimed(store)
        with pytest.raises(EventOutOfOrder):
            await store.finish(claim, 4, [note(claim, "", "run.completed")], _DONE)
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.RUNNING

    async def test_messages_of_an_ended_run_are_dropped(self, store: Store) -> None:
        claim = await claimed(store)
        await store.deliver(WORKFLOW, "r1", message("m1"))
        await store.finish(claim, 2, [note(claim, "", "run.completed")], _DONE)
        assert list(await store.inbox(claim)) == []

    async def test_a_failed_run_keeps_its_messages(self, store: Store) -> None:
        claim = await claimed(store)
        await store.deliver(WORKFLOW, "r1", message("m1"))
        await store.finish(claim, 2, [note(claim, "", "run.failed")], Ending(RunStatus.FAILED, KEEP))
        await store.revive(WORKFLOW, "r1", b"{}")
        [again] = await claims(store, 1)
        assert list(again.inbox) == [message("m1").raw]

    # Where a worker's last append meets an end or a requeue from outside, both move the run in the
    # same way, by one event or none. The worker must still be told which of them it was.

    async def test_a_finish_after_a_terminate_is_lost(self, store: Store) -> None:
        claim = await claimed(store)
        await store.terminate(WORKFLOW, "r1", b"{}", keep_ms=KEEP)
        with pytest.raises(ClaimLost):
            await store.finish(claim, 2, [note(claim, "", "run.completed")], _DONE)
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.TERMINATED
        assert (await types(store))[2:] == ["run.terminated"]

    async def test_a_finish_after_the_budget_was_used_up_is_lost(self, store: Store) -> None:
        claim = await claimed(store, lease_ms=1)
        await self.until(store, lambda: store.sweep(WORKFLOW, limit=10, requeue_budget=0, keep_ms=KEEP))
        with pytest.raises(ClaimLost):
            await store.finish(claim, 2, [note(claim, "", "run.failed")], Ending(RunStatus.FAILED, KEEP))
        assert (await types(store))[2:] == ["run.failed"]

    async def test_setting_aside_after_a_requeue_is_lost(self, store: Store) -> None:
        claim = await claimed(store, lease_ms=1)
        await self.until(store, lambda: store.sweep(WORKFLOW, limit=10, requeue_budget=5, keep_ms=KEEP))
        with pytest.raises(ClaimLost):
            await store.finish(claim, 2, [], _ASIDE)
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.QUEUED

    # --- set aside ----------------------------------------------------------------------

    async def test_a_run_is_set_aside_with_its_reason(self, store: Store) -> None:
        claim = await claimed(store)
        for _ in range(2):
            await store.finish(claim, 2, [], _ASIDE)
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.error, record.seq) == (RunStatus.FAILED, _REASON, 2)
        assert record.finished_at >= claim.now
        assert await types(store) == ["run.submitted", "run.started"]
        assert await none_left(store)

    async def test_entries_may_be_written_while_setting_aside(self, store: Store) -> None:
        claim = await claimed(store)
        for _ in range(2):
            await store.finish(claim, 2, [note(claim, "a")], _ASIDE)
        assert (await types(store))[2:] == ["step.completed"]

    async def test_a_run_that_was_set_aside_is_never_deleted(self, store: Store) -> None:
        await set_aside(store)
        await self.passed(store, await store.now() + 5000)
        await store.sweep(WORKFLOW, limit=10, requeue_budget=5, keep_ms=0)
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.FAILED

    async def test_a_run_that_was_set_aside_takes_messages(self, store: Store) -> None:
        await set_aside(store)
        delivery = await store.deliver(WORKFLOW, "r1", message("m1"))
        assert (delivery.accepted, delivery.status) == (True, RunStatus.FAILED)
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.FAILED
        await store.revive(WORKFLOW, "r1", b"{}")
        [again] = await claims(store, 1)
        assert list(again.inbox) == [message("m1").raw]

    async def test_a_control_message_queues_a_run_that_was_set_aside(self, store: Store) -> None:
        await set_aside(store)
        await store.deliver(WORKFLOW, "r1", message("c1", "cancel", control=True))
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.error, record.finished_at) == (RunStatus.QUEUED, b"", 0)
        [again] = await claims(store, 1)
        assert list(again.inbox) == [message("c1").raw]
