"""What becomes of a submission."""

from __future__ import annotations

import pytest

from pyrula.contracts.ids import digest
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Store
from pyrula.testing.store_contract.base import Contract
from pyrula.testing.store_contract.scenes import (
    INPUT,
    WORKFLOW,
    claimed,
    claims,
    finished,
    new_run,
    none_left,
    submit,
)

__all__ = ["Submitting"]

_FAR = 3_600_000  # ms
_PAST = 1_000_000  # microseconds since the epoch


class Submitting(Contract):
    """`submit`: new runs, known runs, runs held back, priorities."""

    async def test_a_new_run_is_queued_with_all_it_was_given(self, store: Store) -> None:
        run = new_run("r1", owner="acme", priority=3, attributes=b'{"city":"Ulm"}', headers=b'{"traceparent":"00-1"}')
        [answer] = await store.submit([run])
        assert (answer.run_id, answer.created, answer.status) == ("r1", True, RunStatus.QUEUED)
        assert answer.input_digest == digest(INPUT)
        record = await store.load(WORKFLOW, "r1")
        assert (record.workflow, record.run_id, record.status) == (WORKFLOW, "r1", RunStatus.QUEUED)
        assert (record.owner, record.priority) == ("acme", 3)
        assert (record.input, record.input_digest) == (INPUT, digest(INPUT))
        assert (record.attributes, record.headers) == (b'{"city":"Ulm"}', b'{"traceparent":"00-1"}')
        assert (record.epoch, record.attempt, record.seq, record.requeues) == (0, 0, 0, 0)
        assert record.submitted_at == answer.submitted_at
        assert (record.started_at, record.finished_at, record.wake_at) == (0, 0, 0)
        assert (record.topic, record.worker, record.error) == ("", "", b"")
        assert (record.first, record.last) == (None, None)

    async def test_defaults_are_kept(self, store: Store) -> None:
        await submit(store, "r1")
        record = await store.load(WORKFLOW, "r1")
        assert (record.owner, record.priority, record.attributes, record.headers) == ("", 0, b"{}", b"{}")

    async def test_the_submission_time_is_the_stores(self, store: Store) -> None:
        before = await store.now()
        [answer] = await submit(store, "r1")
        after = await store.now()
        # A store may tell its time from an estimate, good to some milliseconds.
        assert before - 50_000 <= answer.submitted_at <= after + 50_000

    async def test_many_in_one_call_are_answered_in_order(self, store: Store) -> None:
        names = [f"r{n}" for n in range(50)]
        answers = await store.submit([new_run(name) for name in names])
        assert [answer.run_id for answer in answers] == names
        assert all(answer.created for answer in answers)
        assert {claim.run_id for claim in await claims(store, 50)} == set(names)

    async def test_none_in_one_call_are_none(self, store: Store) -> None:
        assert await store.submit([]) == []

    async def test_a_known_run_starts_nothing_and_tells_the_first_digest(self, store: Store) -> None:
        [first] = await submit(store, "r1")
        [again] = await submit(store, "r1", input=b'{"n":2}', owner="other", attributes=b'{"a":1}')
        assert (again.created, again.status) == (False, RunStatus.QUEUED)
        assert (again.input_digest, again.submitted_at) == (digest(INPUT), first.submitted_at)
        record = await store.load(WORKFLOW, "r1")
        assert (record.input, record.owner, record.attributes) == (INPUT, "", b"{}")
        assert len(await claims(store, 1)) == 1
        assert await none_left(store)

    async def test_a_known_run_is_told_with_its_status(self, store: Store) -> None:
        await claimed(store, "r1")
        await finished(store, "r2")
        answers = await submit(store, "r1", "r2")
        assert [(a.created, a.status) for a in answers] == [(False, RunStatus.RUNNING), (False, RunStatus.COMPLETED)]
        assert await none_left(store)

    async def test_a_run_twice_in_one_call_is_one_run(self, store: Store) -> None:
        answers = await store.submit([new_run("r1"), new_run("r1", input=b"{}")])
        assert [answer.created for answer in answers] == [True, False]
        assert answers[1].input_digest == digest(INPUT)

    async def test_one_id_in_two_workflows_is_two_runs(self, store: Store) -> None:
        await store.submit([new_run("r1"), new_run("r1", workflow="invoices", input=b"{}")])
        assert (await store.load(WORKFLOW, "r1")).input == INPUT
        assert (await store.load("invoices", "r1")).input == b"{}"
        await claims(store, 1)
        assert (await store.load("invoices", "r1")).status is RunStatus.QUEUED

    async def test_a_delay_holds_a_run_back(self, store: Store) -> None:
        timers = self.timers(store)
        [answer] = await submit(store, "r1", delay_ms=20)
        record = await store.load(WORKFLOW, "r1")
        assert (answer.status, record.status) == (RunStatus.QUEUED, RunStatus.QUEUED)
        assert record.wake_at == answer.submitted_at + 20_000
        assert await none_left(store)
        await self.until(store, lambda: timers.wake(WORKFLOW, limit=10))
        assert (await store.load(WORKFLOW, "r1")).wake_at == 0
        [claim] = await claims(store, 1)
        assert claim.now >= record.wake_at

    async def test_a_start_in_the_future_holds_a_run_back(self, store: Store) -> None:
        timers = self.timers(store)
        start = await store.now() + _FAR * 1000
        [answer] = await submit(store, "r1", start_at=start)
        assert answer.status is RunStatus.QUEUED
        assert (await store.load(WORKFLOW, "r1")).wake_at == start
        assert await timers.next_due(WORKFLOW) == start
        assert await timers.wake(WORKFLOW, limit=10) == 0
        assert await none_left(store)

    @pytest.mark.parametrize("when", [{"start_at": _PAST}, {"delay_ms": 0}], ids=["a start in the past", "no delay"])
    async def test_a_time_that_is_over_holds_nothing_back(self, store: Store, when: dict[str, int]) -> None:
        await submit(store, "r1", **when)
        assert (await store.load(WORKFLOW, "r1")).wake_at == 0
        assert len(await claims(store, 1)) == 1

    async def test_a_held_back_run_is_known(self, store: Store) -> None:
        await submit(store, "r1", delay_ms=_FAR)
        [again] = await submit(store, "r1")
        assert not again.created
        assert await none_left(store)

    async def test_priority_goes_first_and_then_the_order_of_submission(self, store: Store) -> None:
        self.need_one_queue()
        await submit(store, "plain1", "plain2")
        await submit(store, "late", priority=-1)
        await submit(store, "soon1", "soon2", priority=2)
        await submit(store, "first", priority=5)
        order = [claim.run_id for claim in await claims(store, 6)]
        assert order == ["first", "soon1", "soon2", "plain1", "plain2", "late"]
