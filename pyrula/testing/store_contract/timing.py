"""Timers: which is next, and who is woken."""

from __future__ import annotations

from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Parking, Store
from pyrula.testing.store_contract.base import Contract
from pyrula.testing.store_contract.scenes import WORKFLOW, claims, message, none_left, parked, submit

__all__ = ["Timing"]

_HOUR = 3_600_000_000  # microseconds


class Timing(Contract):
    """`next_due`, `wake` and `now`."""

    async def test_there_is_no_timer(self, store: Store) -> None:
        timers = self.timers(store)
        await submit(store, "r1")
        assert await timers.next_due(WORKFLOW) is None
        assert await timers.next_due("invoices") is None
        assert await timers.wake(WORKFLOW, limit=10) == 0
        assert await timers.wake("invoices", limit=10) == 0

    async def test_the_earliest_timer_is_next(self, store: Store) -> None:
        timers = self.timers(store)
        now = await store.now()
        for n, run_id in ((3, "r1"), (2, "r2"), (4, "r3")):
            await parked(store, run_id, status=RunStatus.SLEEPING, topic="", wake_at=now + n * _HOUR)
        assert await timers.next_due(WORKFLOW) == now + 2 * _HOUR
        await store.terminate(WORKFLOW, "r2", b"{}", keep_ms=0)
        assert await timers.next_due(WORKFLOW) == now + 3 * _HOUR

    async def test_a_timer_that_was_moved_hides_no_other(self, store: Store) -> None:
        timers = self.timers(store)
        now = await store.now()
        await parked(store, "r1", wake_at=now + 2 * _HOUR)
        await parked(store, "r2", status=RunStatus.SLEEPING, topic="", wake_at=now + 3 * _HOUR)
        await store.deliver(WORKFLOW, "r1", message("m1"))
        assert await timers.next_due(WORKFLOW) == now + 3 * _HOUR
        [claim] = await claims(store, 1)
        parking = Parking(RunStatus.WAITING, "signal:go", now + 4 * _HOUR, inbox_seen=1)
        assert await store.park(claim, claim.seq, [], parking)
        assert await timers.next_due(WORKFLOW) == now + 3 * _HOUR

    async def test_a_timer_of_another_workflow_is_not(self, store: Store) -> None:
        timers = self.timers(store)
        await submit(store, "r1", workflow="invoices", delay_ms=3_600_000)
        assert await timers.next_due(WORKFLOW) is None
        assert await timers.next_due("invoices") is not None

    async def test_a_sleeping_run_is_woken_when_it_is_due(self, store: Store) -> None:
        timers = self.timers(store)
        wake_at = await store.now() + 20_000
        await parked(store, status=RunStatus.SLEEPING, topic="", wake_at=wake_at)
        assert await timers.next_due(WORKFLOW) == wake_at
        assert await self.until(store, lambda: timers.wake(WORKFLOW, limit=10)) == 1
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.wake_at) == (RunStatus.QUEUED, 0)
        assert await timers.next_due(WORKFLOW) is None
        [claim] = await claims(store, 1)
        assert claim.now >= wake_at
        assert await timers.wake(WORKFLOW, limit=10) == 0
        assert await none_left(store)

    async def test_a_wait_ends_by_time(self, store: Store) -> None:
        timers = self.timers(store)
        await parked(store, wake_at=await store.now() + 1_000)
        await self.until(store, lambda: timers.wake(WORKFLOW, limit=10))
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.topic, record.wake_at) == (RunStatus.QUEUED, "", 0)
        await store.deliver(WORKFLOW, "r1", message("m1"))
        assert len(await claims(store, 1)) == 1
        assert await none_left(store)

    async def test_a_time_that_is_over_wakes_at_once(self, store: Store) -> None:
        timers = self.timers(store)
        await parked(store, status=RunStatus.SLEEPING, topic="", wake_at=1)
        assert await self.until(store, lambda: timers.wake(WORKFLOW, limit=10)) == 1

    async def test_only_due_runs_are_woken(self, store: Store) -> None:
        timers = self.timers(store)
        now = await store.now()
        await parked(store, "r1", status=RunStatus.SLEEPING, topic="", wake_at=now - 1)
        await parked(store, "r2", status=RunStatus.SLEEPING, topic="", wake_at=now + _HOUR)
        assert await self.until(store, lambda: timers.wake(WORKFLOW, limit=10)) == 1
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.QUEUED
        assert (await store.load(WORKFLOW, "r2")).status is RunStatus.SLEEPING
        assert await timers.next_due(WORKFLOW) == now + _HOUR

    async def test_the_limit_of_a_wake_is_kept(self, store: Store) -> None:
        self.need_one_queue()
        timers = self.timers(store)
        for n in range(3):
            await parked(store, f"r{n}", status=RunStatus.SLEEPING, topic="", wake_at=n + 1)
        assert await self.until(store, lambda: timers.wake(WORKFLOW, limit=2)) == 2
        assert (await store.load(WORKFLOW, "r2")).status is RunStatus.SLEEPING
        assert await timers.next_due(WORKFLOW) == 3
        assert await timers.wake(WORKFLOW, limit=2) == 1

    async def test_woken_runs_keep_their_places(self, store: Store) -> None:
        self.need_one_queue()
        timers = self.timers(store)
        await parked(store, "r1", status=RunStatus.SLEEPING, topic="", wake_at=2)
        await parked(store, "r2", status=RunStatus.SLEEPING, topic="", wake_at=1)
        await submit(store, "r3")
        await self.until(store, lambda: timers.wake(WORKFLOW, limit=10))
        assert [claim.run_id for claim in await claims(store, 3)] == ["r1", "r2", "r3"]

    async def test_time_goes_on(self, store: Store) -> None:
        before = await store.now()
        await self.passed(store, before)
        assert await store.now() > before
