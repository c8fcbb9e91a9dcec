"""Schedules with real worker processes: killed between starting a run and noting it, and the server restarted."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from pyrula.testing.servers import PrivateServer
from pyrula.workflows import Run
from tests.integration.fault_bench import Bench, until
from tests.integration.fault_worker import Trap

pytestmark = pytest.mark.anyio

_EVERY = 0.25  # seconds


@pytest.fixture
async def bench(tmp_path: Path, anyio_backend: tuple[str, Any]) -> AsyncIterator[Bench]:
    with PrivateServer({"appendfsync": "always"}) as server:
        async with Bench(server, "t", tmp_path, anyio_backend[0]) as bench:
            yield bench


async def _runs(bench: Bench) -> list[Run]:
    return list(await bench.client.list("chain", limit=1000))


def _moments(runs: list[Run]) -> list[datetime]:
    return sorted(datetime.fromisoformat(str(run.attributes["scheduled_for"])) for run in runs)


async def test_a_worker_killed_between_starting_a_run_and_noting_it(bench: Bench) -> None:
    """Nothing is missed within the window, and nothing starts twice."""
    doomed = await bench.worker(Trap("fired.before", nth=2))
    made = await bench.client.schedule_create("chain", interval=_EVERY, input={"steps": 1}, catch_up=60)
    assert await doomed.ended() == -signal.SIGKILL
    await bench.worker()

    async def enough() -> bool:
        return len(await _runs(bench)) >= 16

    await until(enough, what="16 runs")
    await bench.client.schedule_update(made.schedule_id, enabled=False)
    runs = await _runs(bench)
    moments = _moments(runs)
    assert moments == [moments[0] + timedelta(seconds=_EVERY * n) for n in range(len(runs))]
    assert moments[0] == made.next_at
    for run in runs:
        assert await bench.result(run) == 0
    assert await bench.proof() == []


async def test_workers_share_what_is_due_and_a_restarted_server_forgets_nothing(bench: Bench) -> None:
    for _ in range(3):
        await bench.worker()
    start = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
    made = [
        await bench.client.schedule_create("chain", interval=_EVERY, input={"steps": 1}, starts_at=start, catch_up=60)
        for _ in range(8)
    ]

    async def each_has(number: int) -> bool:
        counts = [0] * len(made)
        for run in await _runs(bench):
            counts[[each.schedule_id for each in made].index(str(run.attributes["schedule_id"]))] += 1
        return min(counts) >= number

    await until(lambda: each_has(2), what="two runs of each")
    await anyio.to_thread.run_sync(bench.server.restart)
    await until(lambda: each_has(8), what="eight runs of each")
    for each in made:
        await bench.client.schedule_update(each.schedule_id, enabled=False)
    for each in made:
        moments = _moments([run for run in await _runs(bench) if run.attributes["schedule_id"] == each.schedule_id])
        assert moments == [moments[0] + timedelta(seconds=_EVERY * n) for n in range(len(moments))]
        assert moments[0] == each.next_at
