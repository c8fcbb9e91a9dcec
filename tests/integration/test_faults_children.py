"""Parents and children on real worker processes that are killed at the bad moments."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyrula.testing.servers import PrivateServer
from tests.integration.fault_bench import Bench, until
from tests.integration.fault_worker import Trap

pytestmark = pytest.mark.anyio

_SERVED = ("family", "chain", "letters")
_SEARCHING = {"orphan_scan_interval": 0.2}


@pytest.fixture
async def bench(
    valkey_server: PrivateServer, namespace: str, tmp_path: Path, anyio_backend: tuple[str, Any]
) -> AsyncIterator[Bench]:
    async with Bench(valkey_server, namespace, tmp_path, anyio_backend[0]) as bench:
        yield bench


@pytest.mark.parametrize(
    ("place", "nth"),
    [
        pytest.param("append.before", 1, id="before the child is noted"),
        pytest.param("append.after", 1, id="noted and not started"),
        pytest.param("append.after", 4, id="in the middle"),
        pytest.param("append.before", 9, id="later"),
        pytest.param("finish.before", 1, id="before a child's end"),
        pytest.param("finish.after", 1, id="after a child's end and before its news"),
        pytest.param("finish.before", 5, id="between closing the open child and the parent's end"),
    ],
)
async def test_a_family_goes_on(bench: Bench, place: str, nth: int) -> None:
    first = await bench.doomed(Trap(place, nth), workflows=_SERVED)
    run = await bench.client.submit("family", {"width": 3})
    assert await first.ended() == -signal.SIGKILL
    await bench.worker(workflows=_SERVED, options=_SEARCHING)
    assert await bench.result(run) == 1 + (0 + 0 + 1) + 0
    runs = list(await bench.client.list("chain", limit=100))
    assert len(runs) == 4
    for child in runs:
        await bench.client.result("chain", child.run_id, timeout=20)
    [open_child] = await bench.client.list("letters")

    async def closed() -> bool:
        return (await bench.client.get("letters", open_child.run_id)).status == "cancelled"

    await until(closed, what="the open child closed")
    starts = [event async for event in bench.client.events("family", run.run_id) if event.type == "child.started"]
    assert len(starts) == 5
    assert await bench.proof() == []


async def test_a_terminated_parent_whose_client_dies_is_tidied_up_by_a_worker(bench: Bench) -> None:
    """The terminate itself reached the store; whoever sent it closed nothing."""
    await bench.worker(workflows=_SERVED, options={"orphan_scan_interval": 0.5})
    run = await bench.client.submit("family", {"width": 0, "pause": 60.0})

    async def begun() -> bool:
        return await bench.client.count("chain") == 1

    await until(begun, what="a child")
    [child] = await bench.client.list("chain")
    await bench.reaches(await bench.client.get("chain", child.run_id), "running")
    await bench.store.terminate("family", run.run_id, b'{"reason":"test"}', keep_ms=600_000)
    [(parent, children)] = await bench.store.terminated_parents("family", older_than_ms=0)
    assert (parent, [each.run_id for each in children]) == (run.run_id, [child.run_id])
