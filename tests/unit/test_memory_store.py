"""The memory store keeps the contract of every store, and what only it promises."""

from __future__ import annotations

import pytest

from pyrula.testing.store_contract import StoreContract
from pyrula.workflows.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio


class TestMemoryStore(StoreContract):
    """The contract, on the system's clock."""

    @pytest.fixture
    async def store(self) -> MemoryStore:
        return MemoryStore()
