"""Runs that are held back, and runs that begin with a journal of another."""

from __future__ import annotations

import pytest

from pyrula.contracts.errors import RunNotFound
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Interventions, Parking, Store
from pyrula.testing.store_contract.base import Contract
from pyrula.testing.store_contract.scenes import (
    KEEP,
    WORKFLOW,
    claimed,
    claims,
    journal,
    message,
    new_run,
    none_left,
    note,
    parked,
    submit,
)

__all__ = ["Intervening"]

_HOUR = 3_600_000_000  # microseconds


class Intervening(Contract):
    """`pause`, `unpause` and `fork`."""

    def interventions(self, store: Store) -> Interventions:
        """The store as one with interventions; leaves the test out for one without."""
        if not isinstance(store, Interventions):
            pytest.skip("a store whose runs cannot be held back")
        return store

    async def test_a_queued_run_is_not_given_out_while_it_is_paused(self, store: Store) -> None:
        held = self.interventions(store)
        await submit(store, "r1", "r2")
        for before in (RunStatus.QUEUED, RunStatus.PAUSED):
            delivery = await held.pause(WORKFLOW, "r1", message("p"))
            assert (delivery.accepted, delivery.status) == (True, before)
        assert [claim.run_id for claim in await claims(store, 1)] == ["r2"]
        assert await none_left(store)
        assert (await held.unpause(WORKFLOW, "r1", message("u"))).status is RunStatus.PAUSED
        assert (await held.unpause(WORKFLOW, "r1", message("u"))).status is RunStatus.QUEUED
        [claim] = await claims(store, 1)
        assert (claim.run_id, list(claim.inbox)) == ("r1", [])

    async def test_a_wait_is_taken_up_again_with_its_topic_and_time(self, store: Store) -> None:
        held = self.interventions(store)
        wake = await store.now() + _HOUR
        await parked(store, "r1", wake_at=wake)
        topic = (await store.load(WORKFLOW, "r1")).topic
        await held.pause(WORKFLOW, "r1", message("p"))
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.topic, record.wake_at) == (RunStatus.PAUSED, topic, wake)
        assert await self.timers(store).next_due(WORKFLOW) is None
        await held.unpause(WORKFLOW, "r1", message("u"))
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.topic, record.wake_at) == (RunStatus.WAITING, topic, wake)
        assert await self.timers(store).next_due(WORKFLOW) == wake

    async def test_what_came_or_passed_meanwhile_queues_it(self, store: Store) -> None:
        held = self.interventions(store)
        await parked(store, "r1")
        await parked(store, "r2", status=RunStatus.SLEEPING, topic="", wake_at=await store.now() + 30_000)
        for run_id in ("r1", "r2"):
            await held.pause(WORKFLOW, run_id, message("p"))
        assert (await store.deliver(WORKFLOW, "r1", message("m1"))).status is RunStatus.PAUSED
        await self.passed(store, await store.now() + 40_000)
        assert await none_left(store)
        for run_id in ("r1", "r2"):
            await held.unpause(WORKFLOW, run_id, message("u"))
        assert sorted(claim.run_id for claim in await claims(store, 2)) == ["r1", "r2"]

    async def test_a_delay_is_taken_up_again(self, store: Store) -> None:
        held = self.interventions(store)
        await submit(store, "r1", delay_ms=3_600_000)
        wake = (await store.load(WORKFLOW, "r1")).wake_at
        await held.pause(WORKFLOW, "r1", message("p"))
        await held.unpause(WORKFLOW, "r1", message("u"))
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.wake_at) == (RunStatus.QUEUED, wake)
        assert await none_left(store)

    async def test_a_worker_is_told_and_the_request_stays_until_it_is_taken_back(self, store: Store) -> None:
        held = self.interventions(store)
        claim = await claimed(store, "r1")
        for _ in range(2):
            assert (await held.pause(WORKFLOW, "r1", message("p"))).status is RunStatus.RUNNING
        asked = await store.inbox(claim)
        assert list(asked) == [message("p").raw]
        assert await store.park(claim, claim.seq, [], Parking(RunStatus.PAUSED, inbox_seen=1))
        await held.unpause(WORKFLOW, "r1", message("u"))
        [again] = await claims(store, 1)
        assert list(again.inbox) == [message("p").raw, message("u").raw]
        await held.unpause(WORKFLOW, "r1", message("v"))
        assert len(await store.inbox(again)) == 3

    async def test_a_paused_run_is_cancelled_terminated_and_not_paused_after_its_end(self, store: Store) -> None:
        held = self.interventions(store)
        await submit(store, "r1", "r2")
        for run_id in ("r1", "r2"):
            await held.pause(WORKFLOW, run_id, message("p"))
        await store.deliver(WORKFLOW, "r1", message("c", "", control=True))
        assert [claim.run_id for claim in await claims(store, 1)] == ["r1"]
        await store.terminate(WORKFLOW, "r2", b"{}", keep_ms=KEEP)
        for act in (held.pause, held.unpause):
            assert not (await act(WORKFLOW, "r2", message("x"))).accepted
            with pytest.raises(RunNotFound):
                await act(WORKFLOW, "nobody", message("x"))
        assert await none_left(store)

    async def test_a_run_that_is_woken_for_whatever_it_waits(self, store: Store) -> None:
        await parked(store, "r1")
        await parked(store, "r2", status=RunStatus.SLEEPING, topic="", wake_at=await store.now() + _HOUR)
        await submit(store, "r3", delay_ms=3_600_000)
        for run_id in ("r1", "r2", "r3"):
            raw = message(f"w{run_id}", "update")
            await store.deliver(WORKFLOW, run_id, type(raw)(raw.message_id, raw.topic, raw.raw, wakes=True))
        assert sorted(claim.run_id for claim in await claims(store, 2)) == ["r1", "r2"]
        assert await none_left(store)

    async def test_a_fork_begins_with_its_journal(self, store: Store) -> None:
        held = self.interventions(store)
        claim = await claimed(store, "r1")
        await store.append(claim, claim.seq, [note(claim, "a")])
        entries = [raw for _, raw in await store.read_journal(WORKFLOW, "r1")]
        new = new_run("f1", owner="acme")
        for created in (True, False):
            assert (await held.fork(new, entries, claims=1)).created is created
        record = await store.load(WORKFLOW, "f1")
        assert (record.status, record.owner, record.attempt, record.seq) == (RunStatus.QUEUED, "acme", 1, 3)
        [fork] = await claims(store, 1)
        assert (fork.run_id, fork.attempt, fork.seq, fork.epoch) == ("f1", 2, 4, 3)
        assert [raw for _, raw in fork.entries][:3] == entries
        assert (await journal(store, "f1"))[3].type == "run.resumed"
        assert "f1" in [each.run_id for each in (await store.listing([WORKFLOW])).runs]
