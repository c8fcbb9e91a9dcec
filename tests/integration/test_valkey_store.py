"""The Valkey store keeps the contract of every store, against a real server, and agrees with the memory store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pyrula.contracts.store import NewRun
from pyrula.testing.servers import PrivateServer
from pyrula.testing.store_contract import StoreContract
from pyrula.testing.store_contract.walk import Walk
from pyrula.workflows.stores.memory import MemoryStore
from pyrula.workflows.stores.valkey.store import ValkeyStore

pytestmark = pytest.mark.anyio


class TestOneShard(StoreContract):
    """The contract with a whole queue."""

    @pytest.fixture
    async def store(self, valkey_server: PrivateServer, namespace: str) -> AsyncIterator[ValkeyStore]:
        store = ValkeyStore(valkey_server.url, namespace=namespace, shard_count=1)
        yield store
        await store.aclose()


class TestManyShards(StoreContract):
    """The contract with a queue that is split."""

    one_queue = False

    @pytest.fixture
    async def store(self, valkey_server: PrivateServer, namespace: str) -> AsyncIterator[ValkeyStore]:
        store = ValkeyStore(valkey_server.url, namespace=namespace, shard_count=8)
        yield store
        await store.aclose()


@pytest.mark.parametrize("seed", [11, 12, 13])
async def test_both_stores_answer_alike(valkey_server: PrivateServer, namespace: str, seed: int) -> None:
    valkey = ValkeyStore(valkey_server.url, namespace=namespace, shard_count=1)
    try:
        in_memory, in_valkey = Walk(MemoryStore(), seed), Walk(valkey, seed)
        for _ in range(300):
            await in_memory.take()
            await in_valkey.take()
            assert in_valkey.trace == in_memory.trace
            in_memory.trace.clear()
            in_valkey.trace.clear()
    finally:
        await valkey.aclose()


@pytest.mark.parametrize("shards", [1, 8])
async def test_both_stores_count_a_queue(valkey_server: PrivateServer, namespace: str, shards: int) -> None:
    valkey = ValkeyStore(valkey_server.url, namespace=namespace, shard_count=shards)
    try:
        for store in (MemoryStore(), valkey):
            assert await store.queue_depth("w") == 0
            runs = [NewRun("w", f"r{n}", b"{}", "d", owner=f"o{n % 3}") for n in range(9)]
            await store.submit([*runs, NewRun("w", "later", b"{}", "d", delay_ms=60_000)])
            assert await store.queue_depth("w") == 9
            claims = list((await store.claim("w", worker="a", limit=2, lease_ms=30_000)).claims)
            assert await store.queue_depth("w") == 9 - len(claims)
            await store.requeue(claims[0], claims[0].seq)
            assert await store.queue_depth("w") == 10 - len(claims)
            assert await store.queue_depth("unheard-of") == 0
    finally:
        await valkey.aclose()
