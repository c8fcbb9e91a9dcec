"""What a claim gives, to whom, and in which order."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest

from pyrula.contracts.events import parse
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Claim, Store
from pyrula.testing.store_contract.base import Contract
from pyrula.testing.store_contract.scenes import (
    LEASE,
    WORKFLOW,
    claimed,
    claims,
    finished,
    journal,
    message,
    new_run,
    none_left,
    note,
    parked,
    set_aside,
    submit,
)

__all__ = ["Claiming"]


class Claiming(Contract):
    """`claim`: what comes with it, fairness, and that nobody shares a run."""

    async def test_the_first_claim_begins_the_journal(self, store: Store) -> None:
        [answer] = await submit(store, "r1", owner="acme", input=b'{"text": "\xc3\xbc", "n": 1.50}')
        [claim] = await claims(store, 1, worker="w1")
        assert (claim.workflow, claim.run_id, claim.owner) == (WORKFLOW, "r1", "acme")
        assert (claim.epoch, claim.attempt, claim.seq) == (1, 1, 2)
        assert claim.submitted_at == answer.submitted_at
        first, second = [parse(seq, raw) for seq, raw in claim.entries]
        assert first == (1, "run.submitted", answer.submitted_at, 0, "", {"input": {"text": "ü", "n": 1.5}})
        assert second == (2, "run.started", claim.now, 1, "", {"worker": "w1"})
        assert await journal(store) == [first, second]

    async def test_the_input_is_kept_byte_for_byte(self, store: Store) -> None:
        claim = await claimed(store, input=b'{ "n" : 1.50 }')
        assert b'{ "n" : 1.50 }' in claim.entries[0][1]

    async def test_the_run_is_running(self, store: Store) -> None:
        claim = await claimed(store, worker="w7")
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.worker) == (RunStatus.RUNNING, "w7")
        assert (record.epoch, record.attempt, record.seq) == (1, 1, 2)
        assert (record.started_at, record.input) == (claim.now, b"")
        assert await none_left(store)

    async def test_attributes_and_headers_come_along(self, store: Store) -> None:
        claim = await claimed(store, attributes=b'{"a":1}', headers=b'{"h":2}')
        assert (claim.attributes, claim.headers) == (b'{"a":1}', b'{"h":2}')
        plain = await claimed(store, "r2")
        assert (plain.attributes, plain.headers) == (b"{}", b"{}")

    async def test_a_later_claim_brings_the_whole_journal(self, store: Store) -> None:
        first = await claimed(store)
        await store.append(first, 2, [note(first, "a"), note(first, "b")])
        await store.requeue(first, 4)
        [second] = await claims(store, 1, worker="w2")
        assert (second.epoch, second.attempt, second.seq) == (3, 2, 5)
        assert [seq for seq, _ in second.entries] == [1, 2, 3, 4, 5]
        resumed = parse(*second.entries[-1])
        assert resumed == (5, "run.resumed", second.now, 2, "", {"worker": "w2"})
        assert list(second.entries) == list(await store.read_journal(WORKFLOW, "r1"))
        record = await store.load(WORKFLOW, "r1")
        assert (record.started_at, record.worker) == (first.now, "w2")

    async def test_the_journal_comes_along_however_long(self, store: Store) -> None:
        first = await claimed(store)
        await store.append(first, 2, [note(first, f"k{n}") for n in range(1500)])
        await store.requeue(first, 1502)
        [second] = await claims(store, 1)
        assert [seq for seq, _ in second.entries] == list(range(1, 1504))

    @pytest.mark.parametrize("worker", ['say "hi"', "wörk\\er", "a/b:c"])
    async def test_any_worker_name_is_recorded(self, store: Store, worker: str) -> None:
        claim = await claimed(store, worker=worker)
        assert parse(*claim.entries[-1]).data == {"worker": worker}
        assert (await store.load(WORKFLOW, "r1")).worker == worker

    async def test_the_inbox_comes_along_in_order(self, store: Store) -> None:
        await submit(store, "r1")
        sent = [message(f"m{n}") for n in range(3)]
        for each in sent:
            await store.deliver(WORKFLOW, "r1", each)
        [claim] = await claims(store, 1)
        assert list(claim.inbox) == [each.raw for each in sent]

    async def test_nothing_to_claim(self, store: Store) -> None:
        batch = await store.claim(WORKFLOW, worker="w1", limit=10, lease_ms=LEASE)
        assert (list(batch.claims), batch.more) == ([], False)

    async def test_the_limit_is_kept(self, store: Store) -> None:
        await submit(store, *(f"r{n}" for n in range(5)))
        batch = await store.claim(WORKFLOW, worker="w1", limit=2, lease_ms=LEASE)
        assert 1 <= len(batch.claims) <= 2
        assert batch.more

    async def test_more_is_false_once_all_are_taken(self, store: Store) -> None:
        await submit(store, *(f"r{n}" for n in range(3)))
        taken: list[Claim] = []
        for _ in range(100):
            batch = await store.claim(WORKFLOW, worker="w1", limit=10, lease_ms=LEASE)
            taken.extend(batch.claims)
            if not batch.more:
                break
        assert len(taken) == 3

    async def test_an_owners_runs_go_in_the_order_of_submission(self, store: Store) -> None:
        self.need_one_queue()
        names = ["r5", "r1", "r4", "r2", "r3"]
        await submit(store, *names, owner="acme")
        assert [claim.run_id for claim in await claims(store, 5)] == names

    async def test_owners_take_turns(self, store: Store) -> None:
        self.need_one_queue()
        await submit(store, *(f"a{n}" for n in range(6)), owner="a")
        await submit(store, "b0", "b1", owner="b")
        await submit(store, "c0", owner="c")
        owners = [claim.owner for claim in await claims(store, 9)]
        assert Counter(owners[:3]) == {"a": 1, "b": 1, "c": 1}
        assert Counter(owners[3:5]) == {"a": 1, "b": 1}
        assert owners[5:] == ["a"] * 4

    async def test_owners_take_turns_from_one_call_to_the_next(self, store: Store) -> None:
        self.need_one_queue()
        await submit(store, *(f"a{n}" for n in range(3)), owner="a")
        await submit(store, *(f"b{n}" for n in range(3)), owner="b")
        owners = [(await claims(store, 1))[0].owner for _ in range(6)]
        assert [sorted(owners[n : n + 2]) for n in (0, 2, 4)] == [["a", "b"]] * 3

    async def test_an_owner_who_comes_back_has_saved_nothing_up(self, store: Store) -> None:
        self.need_one_queue()
        await submit(store, *(f"a{n}" for n in range(8)), owner="a")
        await claims(store, 4)
        await submit(store, *(f"b{n}" for n in range(3)), owner="b")
        owners = [claim.owner for claim in await claims(store, 6)]
        assert [sorted(owners[n : n + 2]) for n in (0, 2, 4)] == [["a", "b"]] * 3

    async def test_an_owner_with_one_run_at_a_time_has_every_other_turn(self, store: Store) -> None:
        self.need_one_queue()
        await submit(store, *(f"a{n}" for n in range(10)), owner="a")
        owners = []
        for n in range(5):
            await submit(store, f"b{n}", owner="b")
            owners += [claim.owner for claim in await claims(store, 2)]
        assert [sorted(owners[n : n + 2]) for n in range(0, 10, 2)] == [["a", "b"]] * 5

    async def test_a_given_run_is_claimed(self, store: Store) -> None:
        await submit(store, "r1", "r2", "r3", owner="acme")
        await store.deliver(WORKFLOW, "r2", message("m1"))
        claim = await store.claim_run(WORKFLOW, "r2", worker="w1", lease_ms=LEASE)
        assert claim is not None
        assert (claim.run_id, claim.owner, claim.epoch, claim.attempt, claim.seq) == ("r2", "acme", 1, 1, 2)
        assert [parse(*each).type for each in claim.entries] == ["run.submitted", "run.started"]
        assert list(claim.inbox) == [message("m1").raw]
        record = await store.load(WORKFLOW, "r2")
        assert (record.status, record.worker, record.started_at) == (RunStatus.RUNNING, "w1", claim.now)
        await store.append(claim, 2, [note(claim, "a")])
        assert {each.run_id for each in await claims(store, 2)} == {"r1", "r3"}
        assert await none_left(store)

    async def test_a_given_run_is_claimed_again(self, store: Store) -> None:
        first = await claimed(store)
        await store.requeue(first, 2)
        claim = await store.claim_run(WORKFLOW, "r1", worker="w2", lease_ms=LEASE)
        assert claim is not None
        assert (claim.epoch, claim.attempt, claim.seq) == (3, 2, 3)
        assert list(claim.entries) == list(await store.read_journal(WORKFLOW, "r1"))

    async def test_a_given_run_that_is_not_runnable_is_not_claimed(self, store: Store) -> None:
        await claimed(store, "running")
        await parked(store, "waiting")
        await finished(store, "completed")
        await set_aside(store, "aside")
        await submit(store, "later", delay_ms=LEASE)
        for run_id in ("running", "waiting", "completed", "aside", "later"):
            before = await store.load(WORKFLOW, run_id)
            assert await store.claim_run(WORKFLOW, run_id, worker="w2", lease_ms=LEASE) is None
            assert await store.load(WORKFLOW, run_id) == before
        assert await store.claim_run(WORKFLOW, "nobody", worker="w2", lease_ms=LEASE) is None
        assert await store.claim_run("invoices", "running", worker="w2", lease_ms=LEASE) is None

    async def test_the_claim_of_a_given_run_runs_out_too(self, store: Store) -> None:
        await submit(store, "r1")
        assert await store.claim_run(WORKFLOW, "r1", worker="w1", lease_ms=1) is not None
        await self.until(store, lambda: store.sweep(WORKFLOW, limit=9, requeue_budget=9, keep_ms=0))
        assert (await store.load(WORKFLOW, "r1")).status is RunStatus.QUEUED

    async def test_a_run_has_one_worker(self, store: Store) -> None:
        names = [f"r{n}" for n in range(30)]
        await store.submit([new_run(name) for name in names])
        taken: list[str] = []

        async def worker(name: str) -> None:
            for _ in range(30):
                batch = await store.claim(WORKFLOW, worker=name, limit=3, lease_ms=LEASE)
                taken.extend(claim.run_id for claim in batch.claims)

        async with anyio.create_task_group() as group:
            for n in range(4):
                group.start_soon(worker, f"w{n}")
        assert sorted(taken) == sorted(names)
