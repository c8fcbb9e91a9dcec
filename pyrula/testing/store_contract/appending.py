"""The journal grows by appends, in order, once each, under the current claim only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyrula.contracts.errors import ClaimLost, EventOutOfOrder, RunNotFound
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Claim, Store
from pyrula.testing.store_contract.base import Contract
from pyrula.testing.store_contract.scenes import WORKFLOW, claimed, claims, journal, message, note, submit

__all__ = ["Appending"]


async def _keys(store: Store) -> list[str]:
    return [each.key for each in (await journal(store))[2:]]


class Appending(Contract):
    """`append`, and the messages that it takes out of the inbox."""

    async def test_entries_follow_in_order(self, store: Store) -> None:
        claim = await claimed(store)
        await store.append(claim, 2, [note(claim, "a")])
        await store.append(claim, 3, [note(claim, "b"), note(claim, "c")])
        assert [each.seq for each in await journal(store)] == [1, 2, 3, 4, 5]
        assert await _keys(store) == ["a", "b", "c"]
        assert (await store.load(WORKFLOW, "r1")).seq == 5

    async def test_an_entry_is_kept_byte_for_byte(self, store: Store) -> None:
        claim = await claimed(store)
        raw = note(claim, "ü/\\\"'{}", text="\r\n\0 " + "x" * 200_000)
        await store.append(claim, 2, [raw])
        assert list(await store.read_journal(WORKFLOW, "r1", after=2)) == [(3, raw)]

    async def test_a_repeat_changes_nothing(self, store: Store) -> None:
        claim = await claimed(store)
        for _ in range(3):
            await store.append(claim, 2, [note(claim, "a"), note(claim, "b")])
        assert await _keys(store) == ["a", "b"]

    async def test_a_late_repeat_changes_nothing(self, store: Store) -> None:
        claim = await claimed(store)
        await store.append(claim, 2, [note(claim, "a")])
        await store.append(claim, 3, [note(claim, "b"), note(claim, "c")])
        await store.append(claim, 2, [note(claim, "a")])
        await store.append(claim, 3, [note(claim, "b"), note(claim, "c")])
        assert await _keys(store) == ["a", "b", "c"]
        await store.append(claim, 5, [note(claim, "d")])
        assert await _keys(store) == ["a", "b", "c", "d"]

    async def test_a_gap_is_refused(self, store: Store) -> None:
        claim = await claimed(store)
        await store.deliver(WORKFLOW, "r1", message("m1"))
        with pytest.raises(EventOutOfOrder):
            await store.append(claim, 3, [note(claim, "b")], consumed=[message("m1").raw])
        assert await _keys(store) == []
        assert list(await store.inbox(claim)) == [message("m1").raw]
        await store.append(claim, 2, [note(claim, "a")])
        assert await _keys(store) == ["a"]

    async def test_a_stale_claim_is_refused_while_nobody_holds_the_run(self, store: Store) -> None:
        claim = await claimed(store)
        await store.requeue(claim, 2)
        with pytest.raises(ClaimLost):
            await store.append(claim, 2, [note(claim, "a")])
        assert await _keys(store) == []

    async def test_a_stale_claim_is_refused_while_another_holds_the_run(self, store: Store) -> None:
        old = await claimed(store)
        await store.deliver(WORKFLOW, "r1", message("m1"))
        await store.requeue(old, 2)
        [new] = await claims(store, 1, worker="w2")
        for seq in (2, 3):
            with pytest.raises(ClaimLost):
                await store.append(old, seq, [note(old, "a")], consumed=[message("m1").raw])
        assert list(await store.inbox(new)) == [message("m1").raw]
        await store.append(new, 3, [note(new, "b")])
        assert await _keys(store) == ["", "b"]

    async def test_an_epoch_that_nobody_held_is_refused(self, store: Store) -> None:
        claim = await claimed(store)
        await store.requeue(claim, 2)
        between = replace(claim, epoch=2)
        for call in (store.append(between, 2, [note(claim, "a")]), store.commit(between, "k", b"1")):
            with pytest.raises(ClaimLost):
                await call
        record = await store.load(WORKFLOW, "r1")
        assert (record.status, record.epoch, record.seq) == (RunStatus.QUEUED, 2, 2)

    async def test_a_run_that_is_not_there_is_lost_and_leaves_nothing(self, store: Store) -> None:
        await submit(store, "r1")
        claim = Claim(WORKFLOW, "nobody", 1, 1, 2, 0)
        with pytest.raises(ClaimLost):
            await store.append(claim, 2, [note(claim, "a")])
        with pytest.raises(RunNotFound):
            await store.load(WORKFLOW, "nobody")
        assert list(await store.read_journal(WORKFLOW, "nobody")) == []

    async def test_a_run_that_was_never_claimed_is_lost_and_stays_as_it_is(self, store: Store) -> None:
        await submit(store, "r1")
        before = await store.load(WORKFLOW, "r1")
        claim = Claim(WORKFLOW, "r1", 1, 1, 2, 0)
        with pytest.raises(ClaimLost):
            await store.append(claim, 2, [note(claim, "a")])
        assert await store.load(WORKFLOW, "r1") == before
        [real] = await claims(store, 1)
        assert (real.epoch, real.seq) == (1, 2)

    async def test_consumed_messages_leave_the_inbox(self, store: Store) -> None:
        claim = await claimed(store)
        sent = [message(f"m{n}") for n in range(4)]
        for each in sent:
            await store.deliver(WORKFLOW, "r1", each)
        await store.append(claim, 2, [note(claim, "a"), note(claim, "b")], consumed=[sent[2].raw, sent[0].raw])
        assert list(await store.inbox(claim)) == [sent[1].raw, sent[3].raw]

    async def test_messages_can_be_consumed_without_an_entry(self, store: Store) -> None:
        claim = await claimed(store)
        await store.deliver(WORKFLOW, "r1", message("m1"))
        for _ in range(2):
            await store.append(claim, 2, [], consumed=[message("m1").raw])
        assert list(await store.inbox(claim)) == []
        assert (await store.load(WORKFLOW, "r1")).seq == 2

    async def test_one_of_two_equal_messages_is_consumed(self, store: Store) -> None:
        claim = await claimed(store)
        twins = [message("m1"), type(message("m1"))("m2", "signal:go", message("m1").raw)]
        for each in twins:
            await store.deliver(WORKFLOW, "r1", each)
        for _ in range(2):
            await store.append(claim, 2, [note(claim, "a")], consumed=[twins[0].raw])
        assert list(await store.inbox(claim)) == [twins[1].raw]

    async def test_a_consumed_message_that_is_gone_does_no_harm(self, store: Store) -> None:
        claim = await claimed(store)
        await store.append(claim, 2, [note(claim, "a")], consumed=[b'{"id":"never"}'])
        assert await _keys(store) == ["a"]
