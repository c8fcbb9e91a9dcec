"""Application events with real worker processes that are killed between starting runs and noting it."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from pyrula.testing.servers import PrivateServer
from tests.integration.fault_bench import Bench, until
from tests.integration.fault_worker import Trap

pytestmark = pytest.mark.anyio

_SERVED = ("told", "bundle")


@pytest.fixture
async def bench(tmp_path: Path, anyio_backend: tuple[str, Any]) -> AsyncIterator[Bench]:
    with PrivateServer({"appendfsync": "always"}) as server:
        async with Bench(server, "t", tmp_path, anyio_backend[0]) as bench:
            yield bench


async def test_each_event_starts_each_trigger_once_whoever_dies(bench: Bench) -> None:
    """Three workers, two of which die; the server is restarted in between; events go on coming."""
    first = await bench.worker(Trap("events.before", nth=2), workflows=_SERVED)
    second = await bench.worker(Trap("batch.before", nth=2), workflows=_SERVED)

    async def known() -> bool:
        return len(await bench.client.trigger_list()) == 2

    await until(known, what="two triggers")
    sent = 0
    while first.running or second.running:
        await bench.client.emit("thing.made", sent, idempotency_key=f"k{sent}")
        sent += 1
        await anyio.sleep(0.01)
        assert sent < 3000
    assert (await first.ended(), await second.ended()) == (-signal.SIGKILL, -signal.SIGKILL)
    await anyio.to_thread.run_sync(bench.server.restart)
    await bench.worker(workflows=_SERVED)
    for repeat in range(sent - 5, sent):
        await bench.client.emit("thing.made", repeat, idempotency_key=f"k{repeat}")

    async def all_bundled() -> bool:
        pages = await bench.client.list("bundle", limit=1000)
        return sum([len((await bench.client.get("bundle", run.run_id)).input["events"]) for run in pages]) >= sent

    async def all_told() -> bool:
        return await bench.client.count("told") >= sent

    await until(all_told, what=f"{sent} runs", within=60)
    await until(all_bundled, what=f"{sent} events in batches", within=60)
    told = [run async for run in _all(bench, "told")]
    bundled = [run async for run in _all(bench, "bundle")]
    results = [await bench.client.result("told", run_id, timeout=30) for run_id in told]
    assert sorted(results) == list(range(sent))
    batches = [await bench.client.result("bundle", run_id, timeout=30) for run_id in bundled]
    assert sorted(n for batch in batches for n in batch) == list(range(sent))
    assert max(map(len, batches)) <= 7
    assert await bench.proof() == []


async def _all(bench: Bench, name: str) -> AsyncIterator[str]:
    cursor: str | None = None
    while True:
        page = await bench.client.list(name, limit=500, cursor=cursor)
        for run in page:
            yield run.run_id
        cursor = page.cursor
        if cursor is None:
            return
