"""How a worker gives a run up: parked until something comes, or back in the queue."""

from __future__ import annotations

import pytest

from pyrula.contracts.errors import ClaimLost, EventOutOfOrder
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Parking, Store
from pyrula.testing.store_contract.base import Contract
from pyrula.testing.store_contract.scenes import (
    WORKFLOW,
    claimed,
    claims,
    journal,
    message,
    none_left,
    note,
    parked,
    submit,
    types,
)

__all__ = ["GivingUp"]

_WAIT = Parking(RunStatus.WAITING, "signal:go")


class GivingUp(Contract):
    """`park` and `requeue`."""

    async def test_a_run_waits_for_a_topic(self, store: Store) -> None:
        claim = await claimed(store)
        assert await store.park(claim, 2, [note(claim, "w", "signal.awaited")], _WAIT)
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.topic, record.wake_at) == (RunStatus.WAITING, "signal:go", 0)
        assert (record.epoch, record.attempt, record.seq) == (2, 1, 3)
        assert await types(store) == ["run.submitted", "run.started", "signal.awaited"]
        assert await none_left(store)

    async def test_a_run_sleeps_until_a_time(self, store: Store) -> None:
        claim = await claimed(store)
        wake_at = claim.now + 3_600_000_000
        assert await store.park(claim, 2, [note(claim, "s", "timer.set")], Parking(RunStatus.SLEEPING, "", wake_at))
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.topic, record.wake_at) == (RunStatus.SLEEPING, "", wake_at)
        assert await self.timers(store).next_due(WORKFLOW) == wake_at
        assert await none_left(store)

    async def test_a_wait_may_have_a_time_limit(self, store: Store) -> None:
        claim = await claimed(store)
        wake_at = claim.now + 3_600_000_000
        assert await store.park(claim, 2, [], Parking(RunStatus.WAITING, "signal:go", wake_at))
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.topic, record.wake_at) == (RunStatus.WAITING, "signal:go", wake_at)

    async def test_a_paused_run_waits_for_neither(self, store: Store) -> None:
        claim = await claimed(store)
        assert await store.park(claim, 2, [], Parking(RunStatus.PAUSED))
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.topic, record.wake_at) == (RunStatus.PAUSED, "", 0)
        assert await none_left(store)

    async def test_an_unknown_message_sends_the_run_back_to_its_queue(self, store: Store) -> None:
        claim = await claimed(store)
        await store.deliver(WORKFLOW, "r1", message("m1", "signal:other"))
        parking = Parking(RunStatus.WAITING, "signal:go", claim.now + 3_600_000_000)
        assert not await store.park(claim, 2, [note(claim, "w", "signal.awaited")], parking)
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.topic, record.wake_at) == (RunStatus.QUEUED, "", 0)
        assert (await types(store))[-1] == "signal.awaited"
        [again] = await claims(store, 1)
        assert (again.attempt, again.seq, list(again.inbox)) == (2, 4, [message("m1").raw])

    async def test_a_known_message_does_not(self, store: Store) -> None:
        claim = await claimed(store)
        await store.deliver(WORKFLOW, "r1", message("m1", "signal:other"))
        assert await store.park(claim, 2, [], Parking(RunStatus.WAITING, "signal:go", inbox_seen=1))
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.WAITING

    async def test_what_the_park_itself_consumes_is_known(self, store: Store) -> None:
        claim = await claimed(store)
        await store.deliver(WORKFLOW, "r1", message("m1"))
        taken = [message("m1").raw]
        parking = Parking(RunStatus.WAITING, "signal:go", inbox_seen=1)
        assert await store.park(claim, 2, [note(claim, "w")], parking, consumed=taken)
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.WAITING

    async def test_what_came_beside_the_consumed_is_not(self, store: Store) -> None:
        claim = await claimed(store)
        for name in ("m1", "m2"):
            await store.deliver(WORKFLOW, "r1", message(name))
        parking = Parking(RunStatus.WAITING, "signal:go", inbox_seen=1)
        assert not await store.park(claim, 2, [note(claim, "w")], parking, consumed=[message("m1").raw])
        [again] = await claims(store, 1)
        assert list(again.inbox) == [message("m2").raw]

    async def test_a_repeated_park_is_answered_as_the_first(self, store: Store) -> None:
        claim = await claimed(store)
        entries = [note(claim, "w", "signal.awaited")]
        assert [await store.park(claim, 2, entries, _WAIT) for _ in range(3)] == [True] * 3
        assert (await store.load(WORKFLOW, "r1")).seq == 3
        other = await claimed(store, "r2")
        await store.deliver(WORKFLOW, "r2", message("m1"))
        assert [await store.park(other, 2, entries, _WAIT) for _ in range(3)] == [False] * 3
        assert (await store.load(WORKFLOW, "r2")).seq == 3
        assert len(await claims(store, 1)) == 1
        assert await none_left(store)

    async def test_a_park_after_the_next_claim_is_lost(self, store: Store) -> None:
        claim = await parked(store)
        await store.deliver(WORKFLOW, "r1", message("m1"))
        await claims(store, 1)
        with pytest.raises(ClaimLost):
            await store.park(claim, 2, [note(claim, "wait", "signal.awaited")], _WAIT)
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.RUNNING

    async def test_a_park_that_leaves_a_gap_is_refused(self, store: Store) -> None:
        claim = await claimed(store)
        with pytest.raises(EventOutOfOrder):
            await store.park(claim, 5, [note(claim, "w")], _WAIT)
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.epoch, record.seq) == (RunStatus.RUNNING, 1, 2)
        await store.append(claim, 2, [note(claim, "a")])

    async def test_a_park_behind_the_journals_end_is_refused(self, store: Store) -> None:
        claim = await claimed(store)
        await store.append(claim, 2, [note(claim, "a"), note(claim, "b")])
        with pytest.raises(EventOutOfOrder):
            await store.park(claim, 2, [note(claim, "w")], _WAIT)
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.RUNNING

    async def test_a_parked_run_takes_no_appends(self, store: Store) -> None:
        claim = await parked(store)
        with pytest.raises(ClaimLost):
            await store.append(claim, 3, [note(claim, "a")])
        assert (await store.load(WORKFLOW, "r1")).seq == 3

    # --- requeue ------------------------------------------------------------------------

    async def test_a_requeued_run_goes_on_where_it_was(self, store: Store) -> None:
        claim = await claimed(store)
        await store.append(claim, 2, [note(claim, "a")])
        await store.deliver(WORKFLOW, "r1", message("m1"))
        await store.requeue(claim, 3)
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.epoch, record.seq, record.requeues) == (RunStatus.QUEUED, 2, 3, 0)
        [again] = await claims(store, 1)
        assert (again.epoch, again.attempt, list(again.inbox)) == (3, 2, [message("m1").raw])
        assert [each.key for each in await journal(store)] == ["", "", "a", ""]

    async def test_a_requeued_run_keeps_its_place(self, store: Store) -> None:
        self.need_one_queue()
        claim = await claimed(store, "r1")
        await submit(store, "r2", "r3")
        await store.requeue(claim, 2)
        assert [each.run_id for each in await claims(store, 3)] == ["r1", "r2", "r3"]

    async def test_a_repeated_requeue_changes_nothing(self, store: Store) -> None:
        claim = await claimed(store)
        for _ in range(3):
            await store.requeue(claim, 2, spent=True)
        record = await store.load(WORKFLOW, "r1")
        assert (record.epoch, record.requeues) == (2, 1)
        assert len(await claims(store, 1)) == 1
        assert await none_left(store)

    async def test_only_a_spent_requeue_counts(self, store: Store) -> None:
        claim = await claimed(store)
        await store.requeue(claim, 2)
        assert (await store.load(WORKFLOW, "r1")).requeues == 0
        [claim] = await claims(store, 1)
        await store.requeue(claim, 3, spent=True)
        assert (await store.load(WORKFLOW, "r1")).requeues == 1

    async def test_a_stale_requeue_is_lost(self, store: Store) -> None:
        claim = await claimed(store)
        await store.requeue(claim, 2)
        await claims(store, 1)
        with pytest.raises(ClaimLost):
            await store.requeue(claim, 2)
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.RUNNING

    async def test_a_requeue_that_leaves_a_gap_is_refused(self, store: Store) -> None:
        claim = await claimed(store)
        with pytest.raises(EventOutOfOrder):
            await store.requeue(claim, 3)
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.RUNNING
