"""Several workers on one store, of both loops, of which one or another is killed at any time, and replaced."""

from __future__ import annotations

import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from pyrula.testing.servers import PrivateServer
from tests.integration.fault_bench import Bench, until
from tests.integration.fault_population import Population

pytestmark = pytest.mark.anyio

STORIES = 40


@pytest.fixture
async def bench(
    valkey_server: PrivateServer, namespace: str, tmp_path: Path, anyio_backend: tuple[str, Any]
) -> AsyncIterator[Bench]:
    async with Bench(valkey_server, namespace, tmp_path, anyio_backend[0]) as bench:
        yield bench


async def _moved(bench: Bench, population: Population, told: float) -> None:
    """Wait until something was done since, or so many stories have ended."""
    executed = len(bench.executions()) + 3
    await until(lambda: len(bench.executions()) > executed or len(population.told) > told, what="something going on")


@pytest.mark.parametrize("workers", [2, 4])
async def test_no_run_is_lost_and_none_is_done_twice(bench: Bench, workers: int) -> None:
    chance = random.Random(workers)
    population = Population(bench.client, chance)
    crowd = [await bench.worker(backend=("asyncio", "trio")[n % 2]) for n in range(workers)]
    async with anyio.create_task_group() as group:
        for _ in range(STORIES):
            group.start_soon(population.tell, population.story())
        for n in range(1, 8):
            await _moved(bench, population, n * STORIES / 8)
            place = chance.randrange(workers)
            crowd[place].send(signal.SIGKILL)
            assert await crowd[place].ended() == -signal.SIGKILL
            crowd[place] = await bench.worker(backend=chance.choice(("asyncio", "trio")))
    assert population.problems == []
    assert len(population.told) == STORIES
    assert await bench.proof() == []
