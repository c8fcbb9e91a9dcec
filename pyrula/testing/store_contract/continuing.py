"""Runs that go on in a new journal: what is kept, what is carried over, who is refused."""

from __future__ import annotations

import orjson
import pytest

from pyrula.contracts.errors import ClaimLost
from pyrula.contracts.events import parse
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Continuation, Continues, Ending, Store
from pyrula.testing.store_contract.base import Contract
from pyrula.testing.store_contract.scenes import (
    KEEP,
    WORKFLOW,
    claimed,
    claims,
    journal,
    message,
    none_left,
    note,
    types,
)

__all__ = ["Continuing"]

_NEXT = Continuation(b'{"n":2}', b'"link":2,"chunks":7')


class Continuing(Contract):
    """`continue_as_new` and `read_link`."""

    def continues(self, store: Store) -> Continues:
        """The store as one whose runs may go on; leaves the test out for one whose may not."""
        if not isinstance(store, Continues):
            pytest.skip("a store whose runs cannot go on in a new journal")
        return store

    async def test_the_old_journal_is_kept_and_a_new_one_begins(self, store: Store) -> None:
        continues = self.continues(store)
        claim = await claimed(store, "r1")
        before = await journal(store, "r1")
        await continues.continue_as_new(claim, claim.seq, [note(claim, "", "run.continued")], _NEXT)
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.link, record.seq, record.input) == (RunStatus.QUEUED, 2, 0, b'{"n":2}')
        assert (record.first, record.last) == (None, None)
        old = await continues.read_link(WORKFLOW, "r1", 1)
        assert [seq for seq, _ in old] == [1, 2, 3]
        assert parse(*old[2]).type == "run.continued"
        assert [parse(*each) for each in old[:2]] == before
        assert [seq for seq, _ in await continues.read_link(WORKFLOW, "r1", 1, after=1, limit=1)] == [2]
        assert list(await continues.read_link(WORKFLOW, "r1", 2)) == []
        [again] = await claims(store, 1)
        assert (again.epoch, again.attempt, again.seq) == (claim.epoch + 2, claim.attempt + 1, 2)
        first, started = [parse(*each) for each in again.entries]
        assert (first.type, first.data) == ("run.submitted", {"input": {"n": 2}, "link": 2, "chunks": 7})
        assert (started.type, started.attempt) == ("run.started", 2)
        record = await store.load(WORKFLOW, "r1")
        assert (record.input, record.started_at) == (b"", (await store.load(WORKFLOW, "r1")).started_at)
        assert await types(store, "r1") == ["run.submitted", "run.started"]

    async def test_what_lies_in_the_inbox_is_carried_over(self, store: Store) -> None:
        continues = self.continues(store)
        claim = await claimed(store, "r1")
        for message_id in ("m1", "m2"):
            await store.deliver(WORKFLOW, "r1", message(message_id))
        [first, second] = await store.inbox(claim)
        entries = [note(claim, "@wait", "signal.received"), note(claim, "", "run.continued")]
        await continues.continue_as_new(claim, claim.seq, entries, _NEXT, consumed=[first])
        [again] = await claims(store, 1)
        assert list(again.inbox) == [second]
        assert (await store.deliver(WORKFLOW, "r1", message("m1"))).repeat

    async def test_a_stale_worker_changes_nothing(self, store: Store) -> None:
        continues = self.continues(store)
        claim = await claimed(store, "r1")
        await store.requeue(claim, claim.seq)
        for _ in range(2):
            with pytest.raises(ClaimLost):
                await continues.continue_as_new(claim, claim.seq, [note(claim, "", "run.continued")], _NEXT)
        assert (await store.load(WORKFLOW, "r1")).link == 1

    async def test_a_repeat_is_refused_and_changes_nothing(self, store: Store) -> None:
        continues = self.continues(store)
        claim = await claimed(store, "r1")
        entries = [note(claim, "", "run.continued")]
        await continues.continue_as_new(claim, claim.seq, entries, _NEXT)
        before = await store.load(WORKFLOW, "r1")
        with pytest.raises(ClaimLost):
            await continues.continue_as_new(claim, claim.seq, entries, _NEXT)
        with pytest.raises(ClaimLost):
            await store.append(claim, claim.seq + 1, entries)
        assert await store.load(WORKFLOW, "r1") == before
        assert len(await claims(store, 1)) == 1
        assert await none_left(store)

    async def test_a_run_that_waits_with_a_new_journal_can_be_terminated(self, store: Store) -> None:
        continues = self.continues(store)
        claim = await claimed(store, "r1")
        await continues.continue_as_new(claim, claim.seq, [note(claim, "", "run.continued")], _NEXT)
        await store.terminate(WORKFLOW, "r1", b"{}", keep_ms=KEEP)
        assert await types(store, "r1") == ["run.submitted", "run.terminated"]
        [first, _] = await journal(store, "r1")
        assert first.data == {"input": {"n": 2}, "link": 2, "chunks": 7}

    async def test_nothing_remains_of_any_journal(self, store: Store) -> None:
        continues = self.continues(store)
        claim = await claimed(store, "r1")
        for link in (2, 3):
            about = orjson.dumps({"link": link})[1:-1]
            await continues.continue_as_new(
                claim, claim.seq, [note(claim, "", "run.continued")], Continuation(b"{}", about)
            )
            [claim] = await claims(store, 1)
        await store.finish(claim, claim.seq, [note(claim, "", "run.completed")], Ending(RunStatus.COMPLETED, 0))
        await self.passed(store, await store.now() + 2_000)
        await store.sweep(WORKFLOW, limit=10, requeue_budget=3, keep_ms=0)
        for link in (1, 2):
            assert list(await continues.read_link(WORKFLOW, "r1", link)) == []
