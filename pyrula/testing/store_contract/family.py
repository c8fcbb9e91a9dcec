"""Open children of runs: noted under the parent's claim, known without its journal, closed after a terminate."""

from __future__ import annotations

import pytest

from pyrula.contracts.children import Child, ParentClose, Parents
from pyrula.contracts.errors import ClaimLost
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Ending, Store
from pyrula.testing.store_contract.base import Contract
from pyrula.testing.store_contract.scenes import KEEP, WORKFLOW, claimed, note

__all__ = ["Family"]

_A = Child("invoices", "a", ParentClose.CANCEL)
_B = Child("orders", "b", ParentClose.TERMINATE)


class Family(Contract):
    """`adopt`, `collected`, `open_children`, `terminated_parents`, `closed`."""

    def parents(self, store: Store) -> Parents:
        """The store as one that knows children; leaves the test out for one that does not."""
        if not isinstance(store, Parents):
            pytest.skip("a store that knows no children")
        return store

    async def test_children_are_noted_and_collected(self, store: Store) -> None:
        parents = self.parents(store)
        claim = await claimed(store, "r1")
        assert list(await parents.open_children(WORKFLOW, "r1")) == []
        for child in (_A, _B, _A):
            await parents.adopt(claim, child)
        assert sorted(await parents.open_children(WORKFLOW, "r1"), key=lambda child: child.run_id) == [_A, _B]
        for _ in range(2):
            await parents.collected(claim, "a")
        assert list(await parents.open_children(WORKFLOW, "r1")) == [_B]
        assert list(await parents.open_children(WORKFLOW, "nobody")) == []

    async def test_whoever_lost_the_claim_notes_nothing(self, store: Store) -> None:
        parents = self.parents(store)
        claim = await claimed(store, "r1")
        await parents.adopt(claim, _A)
        await store.requeue(claim, claim.seq)
        with pytest.raises(ClaimLost):
            await parents.adopt(claim, _B)
        with pytest.raises(ClaimLost):
            await parents.collected(claim, "a")
        assert list(await parents.open_children(WORKFLOW, "r1")) == [_A]

    async def test_a_terminated_parent_is_remembered_until_its_children_are_closed(self, store: Store) -> None:
        parents = self.parents(store)
        claim = await claimed(store, "r1")
        await parents.adopt(claim, _A)
        await claimed(store, "r2")
        assert await parents.terminated_parents(WORKFLOW, older_than_ms=0) == []
        for run_id in ("r1", "r2"):
            await store.terminate(WORKFLOW, run_id, b"{}", keep_ms=KEEP)
        assert await parents.terminated_parents(WORKFLOW, older_than_ms=60_000) == []
        [(run_id, children)] = await parents.terminated_parents(WORKFLOW, older_than_ms=0)
        assert (run_id, list(children)) == ("r1", [_A])
        for _ in range(2):
            await parents.closed(WORKFLOW, "r1")
        assert await parents.terminated_parents(WORKFLOW, older_than_ms=0) == []
        assert list(await parents.open_children(WORKFLOW, "r1")) == []

    async def test_nothing_remains_of_a_deleted_parent(self, store: Store) -> None:
        parents = self.parents(store)
        claim = await claimed(store, "r1")
        await parents.adopt(claim, _A)
        await store.finish(claim, claim.seq, [note(claim, "", "run.completed")], Ending(RunStatus.COMPLETED, 0))
        await self.passed(store, await store.now() + 2_000)
        await store.sweep(WORKFLOW, limit=10, requeue_budget=3, keep_ms=0)
        assert list(await parents.open_children(WORKFLOW, "r1")) == []
