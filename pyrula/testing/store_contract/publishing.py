"""What a run publishes beside its journal: search attributes, named values, output."""

from __future__ import annotations

import pytest

from pyrula.contracts.errors import ClaimLost
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Claim, Ending, Store
from pyrula.testing.store_contract.base import Contract
from pyrula.testing.store_contract.scenes import KEEP, WORKFLOW, claimed, claims, note

__all__ = ["Publishing"]


async def _output(store: Store, run_id: str, count: int, after: int = 0) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    async with store.tail(WORKFLOW, run_id, output=True, after=after) as chunks:
        async for chunk in chunks:
            found.extend(chunk)
            if len(found) >= count or not chunk:
                break
    return found


class Publishing(Contract):
    """`set_attributes`, `commit`, `committed` and `write_output`."""

    async def test_attributes_are_replaced(self, store: Store) -> None:
        claim = await claimed(store, attributes=b'{"a":1,"b":2}')
        for _ in range(2):
            await store.set_attributes(claim, b'{"a":3}')
        assert (await store.load(WORKFLOW, "r1")).attributes == b'{"a":3}'
        await store.requeue(claim, 2)
        [again] = await claims(store, 1)
        assert again.attributes == b'{"a":3}'

    async def test_values_are_published(self, store: Store) -> None:
        claim = await claimed(store)
        assert await store.committed(WORKFLOW, "r1") == {}
        await store.commit(claim, "total", b"1")
        await store.commit(claim, "ünit / x", b'"EUR"')
        await store.commit(claim, "total", b"2")
        assert await store.committed(WORKFLOW, "r1") == {"total": b"2", "ünit / x": b'"EUR"'}
        await store.finish(claim, 2, [note(claim, "", "run.completed")], Ending(RunStatus.COMPLETED, KEEP))
        assert await store.committed(WORKFLOW, "r1") == {"total": b"2", "ünit / x": b'"EUR"'}

    async def test_no_run_has_no_values(self, store: Store) -> None:
        assert await store.committed(WORKFLOW, "nobody") == {}

    async def test_output_is_written_in_order(self, store: Store) -> None:
        claim = await claimed(store)
        for n in range(1, 6):
            await store.write_output(claim, n, b"chunk %d" % n)
        expected = [(n, b"chunk %d" % n) for n in range(1, 6)]
        assert await _output(store, "r1", 5) == expected
        assert await _output(store, "r1", 2, after=3) == expected[3:]

    async def test_a_chunk_that_is_there_is_left_alone(self, store: Store) -> None:
        claim = await claimed(store)
        for chunk in (b"first", b"second"):
            await store.write_output(claim, 1, chunk)
        await store.write_output(claim, 2, b"next")
        await store.write_output(claim, 1, b"third")
        await store.write_output(claim, 3, b"last")
        assert await _output(store, "r1", 3) == [(1, b"first"), (2, b"next"), (3, b"last")]

    async def test_output_goes_on_under_the_next_claim(self, store: Store) -> None:
        claim = await claimed(store)
        await store.write_output(claim, 1, b"one")
        await store.requeue(claim, 2)
        [again] = await claims(store, 1)
        await store.write_output(again, 1, b"one again")
        await store.write_output(again, 2, b"two")
        assert await _output(store, "r1", 2) == [(1, b"one"), (2, b"two")]

    async def test_only_the_current_claim_publishes(self, store: Store) -> None:
        old = await claimed(store, attributes=b'{"a":1}')
        await store.requeue(old, 2)
        await _refused(store, old)
        await claims(store, 1)
        await _refused(store, old)
        await _refused(store, Claim(WORKFLOW, "nobody", 1, 1, 2, 0))
        assert (await store.load(WORKFLOW, "r1")).attributes == b'{"a":1}'
        assert await store.committed(WORKFLOW, "r1") == {}
        assert await store.committed(WORKFLOW, "nobody") == {}


async def _refused(store: Store, claim: Claim) -> None:
    with pytest.raises(ClaimLost):
        await store.set_attributes(claim, b'{"a":2}')
    with pytest.raises(ClaimLost):
        await store.commit(claim, "k", b"1")
    with pytest.raises(ClaimLost):
        await store.write_output(claim, 1, b"chunk")
