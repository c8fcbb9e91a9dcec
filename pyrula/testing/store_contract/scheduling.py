"""Schedules: kept, changed, listed, lent when due, moved on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pyrula.contracts.errors import InvalidInput, ScheduleNotFound
from pyrula.contracts.schedules import (
    OUTCOMES_KEPT,
    Overlap,
    Schedule,
    ScheduleMove,
    Schedules,
    StoredSchedule,
    firing_json,
)
from pyrula.contracts.store import Store
from pyrula.testing.store_contract.base import Contract
from pyrula.testing.store_contract.scenes import WORKFLOW

__all__ = ["Scheduling"]

_LEASE = 600_000  # ms, longer than any test


def _every_day(schedule_id: str = "s1", workflow: str = WORKFLOW, **more: Any) -> Schedule:
    fields: dict[str, Any] = {"cron": "0 2 * * *", "input": {"n": 1}, **more}
    return Schedule.create(workflow, schedule_id=schedule_id, **fields)


def _often(schedule_id: str = "s1", **more: Any) -> Schedule:
    return _every_day(schedule_id, cron=None, interval=0.002, **more)


class Scheduling(Contract):
    """`schedule_create` and its kin, `schedules_due`, `schedules_fired`."""

    def schedules(self, store: Store) -> Schedules:
        """The store as one with schedules; leaves the test out for one without."""
        if not isinstance(store, Schedules):
            pytest.skip("a store without schedules")
        return store

    async def test_a_schedule_is_kept_as_it_was_given(self, store: Store) -> None:
        kept = self.schedules(store)
        given = _every_day(
            timezone="Europe/Berlin",
            overlap="skip",
            jitter=5,
            catch_up=60,
            owner="acme",
            priority=3,
            attributes={"team": "x"},
        )
        made = await kept.aschedule_create(given)
        assert (made.schedule_id, made.workflow, made.cron, made.input) == ("s1", WORKFLOW, "0 2 * * *", {"n": 1})
        assert (made.timezone, made.overlap, made.jitter, made.catch_up) == ("Europe/Berlin", Overlap.SKIP, 5, 60)
        assert (made.owner, made.priority, made.attributes, made.enabled) == ("acme", 3, {"team": "x"}, True)
        assert made.created_at is not None
        assert made.next_at is not None
        assert made.created_at < made.next_at
        assert (made.last_at, made.outcomes) == (None, ())
        assert await kept.aschedule_get("s1") == made
        assert await kept.aschedule_list() == [made]
        assert WORKFLOW in await store.workflows() or await kept.aschedule_list(WORKFLOW) == [made]

    async def test_the_plain_calls_do_the_same(self, store: Store) -> None:
        kept = self.schedules(store)
        made = kept.schedule_create(_every_day())
        assert kept.schedule_list() == [made] == await kept.aschedule_list()
        assert kept.schedule_update("s1", enabled=False).next_at is None
        kept.schedule_delete("s1")
        assert kept.schedule_list() == []
        with pytest.raises(ScheduleNotFound):
            kept.schedule_delete("s1")

    async def test_a_repeat_creates_nothing(self, store: Store) -> None:
        kept = self.schedules(store)
        made = await kept.aschedule_create(_every_day())
        assert await kept.aschedule_create(_every_day()) == made
        with pytest.raises(InvalidInput, match="another schedule"):
            await kept.aschedule_create(_every_day(input={"n": 2}))
        with pytest.raises(InvalidInput, match="another schedule"):
            await kept.aschedule_create(_every_day(workflow="invoices"))
        assert await kept.aschedule_list() == [made]

    async def test_what_cannot_be_read_is_not_kept(self, store: Store) -> None:
        kept = self.schedules(store)
        for wrong in ({"cron": "61 * * * *"}, {"timezone": "Mars/Olympus"}, {"cron": "0 0 30 2 *"}):
            with pytest.raises(InvalidInput):
                await kept.aschedule_create(_every_day(**wrong))
        assert await kept.aschedule_list() == []

    async def test_lists_are_by_workflow_and_id(self, store: Store) -> None:
        kept = self.schedules(store)
        for schedule_id, workflow in (("b", WORKFLOW), ("a", WORKFLOW), ("c", "invoices")):
            await kept.aschedule_create(_every_day(schedule_id, workflow))
        assert [each.schedule_id for each in await kept.aschedule_list()] == ["c", "a", "b"]
        assert [each.schedule_id for each in await kept.aschedule_list(WORKFLOW)] == ["a", "b"]
        assert await kept.aschedule_list("nobody") == []

    async def test_a_change_is_planned_anew(self, store: Store) -> None:
        kept = self.schedules(store)
        made = await kept.aschedule_create(_every_day())
        paused = await kept.aschedule_update("s1", enabled=False)
        assert (paused.enabled, paused.next_at) == (False, None)
        again = await kept.aschedule_update("s1", enabled=True, input={"n": 9})
        assert (again.next_at, again.input, again.created_at) == (made.next_at, {"n": 9}, made.created_at)
        often = await kept.aschedule_update("s1", interval=60)
        assert (often.cron, often.interval) == (None, 60)
        assert often.next_at is not None
        assert made.next_at is not None
        assert often.next_at <= made.next_at

    async def test_a_change_that_makes_no_sense_changes_nothing(self, store: Store) -> None:
        kept = self.schedules(store)
        made = await kept.aschedule_create(_every_day())
        for changes in ({"cron": "x"}, {"colour": "red"}, {"workflow": "invoices"}, {"jitter": -1}, {"next_at": None}):
            with pytest.raises(InvalidInput):
                await kept.aschedule_update("s1", **changes)
        assert await kept.aschedule_get("s1") == made
        with pytest.raises(ScheduleNotFound):
            await kept.aschedule_update("s2", enabled=False)

    async def test_nothing_is_due(self, store: Store) -> None:
        kept = self.schedules(store)
        assert await kept.schedules_due(WORKFLOW, limit=10, lease_ms=_LEASE) == ([], None)
        made = await kept.aschedule_create(_every_day())
        found, nearest = await kept.schedules_due(WORKFLOW, limit=10, lease_ms=_LEASE)
        assert found == []
        assert made.next_at is not None
        assert nearest == int(made.next_at.timestamp()) * 1_000_000
        await kept.aschedule_update("s1", enabled=False)
        assert await kept.schedules_due(WORKFLOW, limit=10, lease_ms=_LEASE) == ([], None)

    async def test_what_is_due_is_lent_to_one(self, store: Store) -> None:
        kept = self.schedules(store)
        made = await kept.aschedule_create(_often())

        async def due() -> Sequence[StoredSchedule]:
            return (await kept.schedules_due(WORKFLOW, limit=10, lease_ms=_LEASE))[0]

        [stored] = await self.until(store, due)
        assert stored.schedule() == made
        assert stored.due == stored.next
        assert await due() == []
        assert await kept.schedules_due("invoices", limit=10, lease_ms=_LEASE) == ([], None)

    async def test_a_loan_comes_back(self, store: Store) -> None:
        kept = self.schedules(store)
        await kept.aschedule_create(_often())

        async def due() -> Sequence[StoredSchedule]:
            return (await kept.schedules_due(WORKFLOW, limit=10, lease_ms=1))[0]

        first = await self.until(store, due)
        assert await self.until(store, due) == first

    async def test_a_limit_is_kept(self, store: Store) -> None:
        kept = self.schedules(store)
        for n in range(3):
            await kept.aschedule_create(_often(f"s{n}"))

        async def both() -> object:
            found, _ = await kept.schedules_due(WORKFLOW, limit=2, lease_ms=1)
            return len(found) == 2

        assert await self.until(store, both)

    async def test_it_moves_on_once(self, store: Store) -> None:
        kept = self.schedules(store)
        await kept.aschedule_create(_often())
        stored = await self._lent(store, kept)
        hour = stored.next + 3_600_000_000
        outcome = firing_json(stored.next, stored.next + 5, "started", "r1")
        move = ScheduleMove("s1", stored.revision, hour, hour, stored.next, outcome)
        gone = ScheduleMove("nobody", 1, hour, hour, 0, b"")
        assert await kept.schedules_fired(WORKFLOW, [gone, move]) == [False, True]
        assert await kept.schedules_fired(WORKFLOW, [move]) == [False]
        moved = await kept.aschedule_get("s1")
        [said] = moved.outcomes
        assert (said.outcome, said.run_id, said.occurrence) == ("started", "r1", moved.last_at)
        assert moved.next_at is not None
        assert int(moved.next_at.timestamp() * 1_000_000) == hour
        assert await kept.schedules_due(WORKFLOW, limit=10, lease_ms=_LEASE) == ([], hour)

    async def test_who_was_overtaken_by_a_change_moves_nothing(self, store: Store) -> None:
        kept = self.schedules(store)
        await kept.aschedule_create(_often())
        stored = await self._lent(store, kept)
        changed = await kept.aschedule_update("s1", enabled=False)
        move = ScheduleMove("s1", stored.revision, 1, 1, stored.next, b"")
        assert await kept.schedules_fired(WORKFLOW, [move]) == [False]
        assert await kept.aschedule_get("s1") == changed
        await kept.aschedule_delete("s1")
        assert await kept.schedules_fired(WORKFLOW, [move]) == [False]
        assert await kept.aschedule_list() == []

    async def test_outcomes_are_kept_newest_first_and_so_many(self, store: Store) -> None:
        kept = self.schedules(store)
        await kept.aschedule_create(_every_day())
        for n in range(OUTCOMES_KEPT + 3):
            for _ in range(2):
                await kept.aschedule_note(WORKFLOW, "s1", firing_json(n, n, "triggered", f"r{n}"))
        await kept.aschedule_note(WORKFLOW, "nobody", firing_json(1, 1, "triggered", "r"))
        names = [each.run_id for each in (await kept.aschedule_get("s1")).outcomes]
        assert names == [f"r{n}" for n in range(OUTCOMES_KEPT + 2, 2, -1)]
        await kept.aschedule_delete("s1")
        await kept.aschedule_create(_every_day())
        assert (await kept.aschedule_get("s1")).outcomes == ()

    async def _lent(self, store: Store, kept: Schedules) -> StoredSchedule:
        async def due() -> Sequence[StoredSchedule]:
            return (await kept.schedules_due(WORKFLOW, limit=10, lease_ms=_LEASE))[0]

        [stored] = await self.until(store, due)
        return stored
