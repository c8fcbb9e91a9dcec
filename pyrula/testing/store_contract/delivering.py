"""Messages: each is there once, wakes whom it is for, and is never lost between a look and a park."""

from __future__ import annotations

import anyio
import pytest

from pyrula.contracts.errors import RunNotFound
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Parking, Store
from pyrula.testing.store_contract.base import Contract
from pyrula.testing.store_contract.scenes import (
    WORKFLOW,
    claimed,
    claims,
    finished,
    message,
    none_left,
    note,
    parked,
    submit,
)

__all__ = ["Delivering"]

_HOUR = 3_600_000_000  # microseconds


class Delivering(Contract):
    """`deliver` and `inbox`, in each state that a run can be in."""

    async def test_to_a_queued_run(self, store: Store) -> None:
        await submit(store, "r1")
        delivery = await store.deliver(WORKFLOW, "r1", message("m1"))
        assert (delivery.accepted, delivery.status, delivery.repeat) == (True, RunStatus.QUEUED, False)
        [claim] = await claims(store, 1)
        assert list(claim.inbox) == [message("m1").raw]
        assert await none_left(store)

    async def test_to_a_running_run(self, store: Store) -> None:
        claim = await claimed(store)
        for name in ("m1", "m2"):
            delivery = await store.deliver(WORKFLOW, "r1", message(name))
            assert (delivery.accepted, delivery.status) == (True, RunStatus.RUNNING)
        assert list(await store.inbox(claim)) == [message("m1").raw, message("m2").raw]
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.RUNNING
        assert await none_left(store)

    async def test_to_a_run_that_waits_for_it(self, store: Store) -> None:
        await parked(store, wake_at=await store.now() + _HOUR)
        delivery = await store.deliver(WORKFLOW, "r1", message("m1"))
        assert (delivery.accepted, delivery.status) == (True, RunStatus.WAITING)
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.topic, record.wake_at) == (RunStatus.QUEUED, "", 0)
        [claim] = await claims(store, 1)
        assert list(claim.inbox) == [message("m1").raw]

    async def test_to_a_run_that_waits_for_something_else(self, store: Store) -> None:
        await parked(store)
        for n, topic in enumerate(("signal:other", "interrupt:go", "signal:go2", "")):
            delivery = await store.deliver(WORKFLOW, "r1", message(f"m{n}", topic))
            assert (delivery.accepted, delivery.status) == (True, RunStatus.WAITING)
        assert await none_left(store)
        await store.deliver(WORKFLOW, "r1", message("m4"))
        [claim] = await claims(store, 1)
        assert list(claim.inbox) == [message(f"m{n}").raw for n in range(5)]

    async def test_to_a_run_that_only_sleeps(self, store: Store) -> None:
        await parked(store, status=RunStatus.SLEEPING, topic="", wake_at=await store.now() + _HOUR)
        for name, topic in (("m1", "signal:go"), ("m2", "")):
            delivery = await store.deliver(WORKFLOW, "r1", message(name, topic))
            assert (delivery.accepted, delivery.status) == (True, RunStatus.SLEEPING)
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.SLEEPING
        assert await none_left(store)

    async def test_to_a_sleeping_run_with_a_topic(self, store: Store) -> None:
        await parked(store, status=RunStatus.SLEEPING, wake_at=await store.now() + _HOUR)
        await store.deliver(WORKFLOW, "r1", message("m1"))
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.QUEUED

    async def test_a_paused_run_is_woken_by_control_messages_alone(self, store: Store) -> None:
        await parked(store, status=RunStatus.PAUSED)
        await store.deliver(WORKFLOW, "r1", message("m1"))
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.PAUSED
        await store.deliver(WORKFLOW, "r1", message("c1", "pause", control=True))
        [claim] = await claims(store, 1)
        assert list(claim.inbox) == [message("m1").raw, message("c1").raw]

    @pytest.mark.parametrize("status", [RunStatus.WAITING, RunStatus.SLEEPING])
    async def test_a_control_message_wakes_a_parked_run(self, store: Store, status: RunStatus) -> None:
        await parked(store, status=status, topic="signal:other", wake_at=await store.now() + _HOUR)
        delivery = await store.deliver(WORKFLOW, "r1", message("c1", "cancel", control=True))
        assert (delivery.accepted, delivery.status) == (True, status)
        assert (await store.load(WORKFLOW, "r1")).wake_at == 0
        assert await self.timers(store).next_due(WORKFLOW) is None
        assert len(await claims(store, 1)) == 1

    async def test_a_control_message_wakes_a_run_that_is_held_back(self, store: Store) -> None:
        await submit(store, "r1", delay_ms=3_600_000)
        await store.deliver(WORKFLOW, "r1", message("m1"))
        assert await none_left(store)
        delivery = await store.deliver(WORKFLOW, "r1", message("c1", "cancel", control=True))
        assert delivery.status is RunStatus.QUEUED
        assert (await store.load(WORKFLOW, "r1")).wake_at == 0
        [claim] = await claims(store, 1)
        assert len(claim.inbox) == 2
        assert await self.timers(store).next_due(WORKFLOW) is None

    async def test_a_control_message_to_a_queued_run_queues_it_once(self, store: Store) -> None:
        await submit(store, "r1")
        await store.deliver(WORKFLOW, "r1", message("c1", "cancel", control=True))
        assert len(await claims(store, 1)) == 1
        assert await none_left(store)

    async def test_a_control_message_reaches_a_running_run(self, store: Store) -> None:
        claim = await claimed(store)
        await store.deliver(WORKFLOW, "r1", message("c1", "cancel", control=True))
        assert list(await store.inbox(claim)) == [message("c1").raw]
        assert await none_left(store)

    async def test_a_repeat_is_known(self, store: Store) -> None:
        claim = await claimed(store)
        first = await store.deliver(WORKFLOW, "r1", message("m1"))
        again = await store.deliver(WORKFLOW, "r1", message("m1"))
        assert (first.repeat, again.repeat, again.accepted) == (False, True, True)
        assert list(await store.inbox(claim)) == [message("m1").raw]

    async def test_a_repeat_is_known_after_its_message_was_consumed(self, store: Store) -> None:
        claim = await claimed(store)
        await store.deliver(WORKFLOW, "r1", message("m1"))
        await store.append(claim, 2, [note(claim, "a")], consumed=[message("m1").raw])
        assert await store.park(claim, 3, [], Parking(RunStatus.WAITING, "signal:go"))
        assert (await store.deliver(WORKFLOW, "r1", message("m1"))).repeat
        assert await none_left(store)

    async def test_a_repeat_is_known_after_the_end(self, store: Store) -> None:
        claim = await claimed(store)
        await store.deliver(WORKFLOW, "r1", message("m1"))
        await store.terminate(WORKFLOW, "r1", b"{}", keep_ms=600_000)
        again = await store.deliver(WORKFLOW, "r1", message("m1"))
        assert (again.accepted, again.repeat, again.status) == (True, True, RunStatus.TERMINATED)
        assert list(await store.inbox(claim)) == []

    async def test_an_ended_run_takes_none(self, store: Store) -> None:
        claim = await finished(store)
        for control in (False, True):
            delivery = await store.deliver(WORKFLOW, "r1", message("m1", control=control))
            assert (delivery.accepted, delivery.status, delivery.repeat) == (False, RunStatus.COMPLETED, False)
        assert list(await store.inbox(claim)) == []
        assert await none_left(store)

    async def test_a_run_that_is_not_there_is_told(self, store: Store) -> None:
        with pytest.raises(RunNotFound):
            await store.deliver(WORKFLOW, "nobody", message("m1"))

    async def test_a_woken_run_keeps_its_place(self, store: Store) -> None:
        self.need_one_queue()
        await parked(store, "r1")
        await submit(store, "r2")
        await store.deliver(WORKFLOW, "r1", message("m1"))
        assert [claim.run_id for claim in await claims(store, 2)] == ["r1", "r2"]

    async def test_no_message_falls_between_a_look_and_a_park(self, store: Store) -> None:
        for n in range(20):
            run_id = f"r{n}"
            claim = await claimed(store, run_id)
            async with anyio.create_task_group() as group:
                group.start_soon(store.park, claim, 2, [note(claim, "w")], Parking(RunStatus.WAITING, "signal:go"))
                group.start_soon(store.deliver, WORKFLOW, run_id, message("m1"))
            [again] = await claims(store, 1)
            assert (again.run_id, list(again.inbox)) == (run_id, [message("m1").raw])
