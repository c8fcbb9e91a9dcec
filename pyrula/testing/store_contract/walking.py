"""The contract under a long walk of random steps: what must always hold, held after each of them."""

from __future__ import annotations

import pytest

from pyrula.contracts.store import Store
from pyrula.testing.store_contract.base import Contract
from pyrula.testing.store_contract.walk import Walk

__all__ = ["Walking"]

_STEPS = 300


class Walking(Contract):
    """All calls, in any order, by several workers, some of them stale or dead."""

    @pytest.mark.parametrize("seed", [1, 2, 3])
    async def test_what_must_always_hold(self, store: Store, seed: int) -> None:
        walk = Walk(store, seed)
        for _ in range(_STEPS):
            await walk.take()
            assert walk.problems == [], "\n".join(walk.trace[-60:])
        await walk.drain()
        assert walk.problems == [], "\n".join(walk.trace[-60:])
