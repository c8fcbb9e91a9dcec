"""Minutes of random faults over a mixed population of runs, then the proof that all that must hold does.

`make soak` runs it. PYRULA_SOAK_FAULTS sets the number of faults (500; a fifth of them with everysec),
PYRULA_SOAK_SEED the seed, which is printed: what is done follows from it, when it happens does not.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from pyrula.testing.servers import PrivateServer
from pyrula.workflows import ValkeyStore, WorkflowClient
from tests.integration.fault_bench import Bench
from tests.integration.fault_population import KINDS, Population
from tests.integration.fault_programs import acknowledgements
from tests.integration.fault_proxy import Proxy
from tests.soak.soak_faults import Faults

pytestmark = [pytest.mark.soak, pytest.mark.anyio]

WORKERS = 3
AT_ONCE = 30
"""Stories told at the same time."""
FAULTS_AT_ONCE = 2
TO_THE_END = 120.0
"""Seconds in which everything must come to its end once the faults have stopped."""


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The test's own loop; the workers are of both."""
    return "asyncio", {}


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[PrivateServer]:
    with PrivateServer({"appendfsync": request.param}, tcp=True) as server:
        yield server


@pytest.mark.parametrize("server", ["always"], indirect=True)
async def test_fsync_always(
    server: PrivateServer, tmp_path: Path, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await _soak(server, tmp_path, namespace, _faults(500), capsys, cuts=False)


@pytest.mark.parametrize("server", ["everysec"], indirect=True)
async def test_fsync_everysec_with_power_cuts(
    server: PrivateServer, tmp_path: Path, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await _soak(server, tmp_path, namespace, _faults(500) // 5, capsys, cuts=True)


def _faults(default: int) -> int:
    return int(os.environ.get("PYRULA_SOAK_FAULTS", default))


async def _soak(
    server: PrivateServer,
    folder: Path,
    namespace: str,
    number: int,
    capsys: pytest.CaptureFixture[str],
    *,
    cuts: bool,
) -> None:
    seed = int(os.environ.get("PYRULA_SOAK_SEED") or random.SystemRandom().getrandbits(32))

    def say(text: str) -> None:
        with capsys.disabled():
            print(text, flush=True)  # noqa: T201 - for who waits for it

    say(f"\n{number} faults, seed {seed}, {server.options['appendfsync']}, logs in {folder}")
    async with Proxy.before(server) as proxy, Bench(server, namespace, folder, "asyncio", shard_count=8) as bench:
        store = ValkeyStore(proxy.url, namespace=namespace, shard_count=8)
        population = Population(WorkflowClient(store), random.Random(seed), lossy=cuts)
        faults = Faults(bench, proxy, random.Random(seed + 1), cuts=cuts)
        await faults.begin(WORKERS)
        begun = time.monotonic()
        async with anyio.create_task_group() as group:
            group.start_soon(faults.keep)
            await _disturbed(faults, population, bench, number, say)
            say(f"{sum(faults.done.values())} faults in {time.monotonic() - begun:.0f} s: {dict(faults.done)}")
            await _told_again(population, bench, say)
            group.cancel_scope.cancel()
        await store.aclose()
        await _judged(faults, population, bench, say, cuts=cuts)


async def _disturbed(faults: Faults, population: Population, bench: Bench, number: int, say: Any) -> None:
    """Tell stories for as long as there are faults, and look at the data now and then."""
    over = anyio.Event()

    async def tell() -> None:
        while not over.is_set():
            kind = "block" if population.chance.random() < 0.02 else None
            await population.tell(population.story(kind))

    async def harm(limit: anyio.CapacityLimiter) -> None:
        async with limit:
            await faults.one()

    async with anyio.create_task_group() as tellers:
        for _ in range(AT_ONCE):
            tellers.start_soon(tell)
        limit = anyio.CapacityLimiter(FAULTS_AT_ONCE)
        async with anyio.create_task_group() as group:
            for n in range(number):
                group.start_soon(harm, limit)
                await anyio.sleep(faults.chance.random() * 0.4)
                while limit.statistics().tasks_waiting:  # noqa: ASYNC110 - the limiter tells nobody
                    await anyio.sleep(0.02)
                if n % 50 == 49:
                    say(f"  {n + 1} faults, {len(population.told)} stories told")
        over.set()
        if population.lossy:
            tellers.cancel_scope.cancel()
        else:
            await _ended(population, tellers, bench)


async def _ended(population: Population, tellers: anyio.abc.TaskGroup, bench: Bench) -> None:
    """Wait for the stories under way; name those that do not end."""
    with anyio.move_on_after(TO_THE_END):
        while len(population.told) < len(population.stories) - len(population.problems):  # noqa: ASYNC110
            await anyio.sleep(0.05)
        return
    tellers.cancel_scope.cancel()
    for story in population.stories:
        if story.run_id not in population.told:
            run = await bench.client.get(story.workflow, story.run_id)
            population.problems.append(f"{story.run_id} does not end: {run}")


async def _told_again(population: Population, bench: Bench, say: Any) -> None:
    """Where the server may have forgotten, each client begins again, with the same ids; nothing may change."""
    if not population.lossy:
        return
    population.told.clear()
    limit = anyio.CapacityLimiter(AT_ONCE)

    async def again(story: Any) -> None:
        async with limit:
            await population.tell(story)

    with anyio.move_on_after(TO_THE_END + len(population.stories) / 10) as scope:
        async with anyio.create_task_group() as group:
            for story in population.stories:
                group.start_soon(again, story)
    if scope.cancelled_caught:
        untold = [story for story in population.stories if story.run_id not in population.told]
        for story in untold[:10]:
            run = await bench.client.get(story.workflow, story.run_id)
            population.problems.append(f"{story.run_id} does not end: {run}")
    say(f"  told again: {len(population.told)} of {len(population.stories)}")


async def _judged(faults: Faults, population: Population, bench: Bench, say: Any, *, cuts: bool) -> None:
    kinds = Counter(story.workflow for story in population.stories)
    say(f"{len(population.stories)} stories: {dict(kinds)}; {len(bench.executions())} executions of steps")
    assert set(kinds) >= set(KINDS)
    for worker in faults.workers:
        worker.send(signal.SIGCONT)
        worker.send(signal.SIGTERM)
    codes = [await worker.ended() for worker in faults.workers]
    assert set(codes) <= {0, -signal.SIGKILL}, "each ends in order, unless its trap springs"
    logs = {path.name: path.read_text(encoding="utf-8") for path in bench.folder.glob("worker*.log")}
    assert [name for name, text in logs.items() if "Traceback" in text] == []
    assert population.problems == []
    begun = time.monotonic()
    findings = await bench.proof()
    if cuts:  # what was forgotten is done again
        findings = [each for each in findings if "executed" not in each]
    assert findings == []
    assert await _missing(faults, bench) == []
    say(f"proved in {time.monotonic() - begun:.0f} s, over {len(logs)} workers: nothing is wrong")


async def _missing(faults: Faults, bench: Bench) -> list[str]:
    """Entries that were acknowledged and are not in their journals, those that a cut took aside."""
    journals: dict[tuple[str, str], dict[int, bytes]] = {}
    missing = []
    for told in acknowledgements(bench.folder):
        if told.within(faults.lost):
            continue
        key = (told.workflow, told.run)
        if key not in journals:
            journals[key] = dict(await bench.store.read_journal(*key))
        if journals[key].get(told.seq) != told.raw.encode():
            missing.append(f"{told.run} seq {told.seq}: {told.raw}")
    return missing
