"""The server killed and started again under load: what it had acknowledged, and who goes on by themselves.

With `appendfsync always` nothing acknowledged is lost. With `everysec` a power cut may take the last second;
then workers find out that the data no longer know what they hold, give that up, and go on from the data.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from pyrula.contracts.errors import ClaimLost, EventOutOfOrder
from pyrula.contracts.events import entry, parse
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Claim, Ending, Lease, Parking
from pyrula.testing.servers import PrivateServer
from pyrula.workflows import ValkeyStore, WorkflowClient
from tests.integration.fault_bench import Bench, until
from tests.integration.fault_population import Population
from tests.integration.fault_power import Mark, cut_power, mark
from tests.integration.fault_programs import acknowledgements

pytestmark = pytest.mark.anyio


@pytest.fixture
def fsync() -> str:
    """What `server` puts on disk when."""
    return "everysec"


@pytest.fixture
def server(fsync: str) -> Iterator[PrivateServer]:
    """A server to kill."""
    with PrivateServer({"appendfsync": fsync}) as server:
        yield server


@pytest.fixture
async def bench(
    server: PrivateServer, namespace: str, tmp_path: Path, anyio_backend: tuple[str, Any]
) -> AsyncIterator[Bench]:
    async with Bench(server, namespace, tmp_path, anyio_backend[0]) as bench:
        yield bench


# --- nothing is lost ----------------------------------------------------------------------


@pytest.mark.parametrize("fsync", ["always"])
async def test_under_load_nothing_acknowledged_is_lost(bench: Bench) -> None:
    population = Population(bench.client, random.Random(1))
    for _ in range(2):
        await bench.worker()
    async with anyio.create_task_group() as group:
        for _ in range(60):
            group.start_soon(population.tell, population.story())
        for part in (0.2, 0.5, 0.8):
            await population.reaches(int(part * 60))
            bench.server.kill()
            bench.server.start()
    assert population.problems == []
    for told in acknowledgements(bench.folder):
        journal = dict(await bench.store.read_journal(told.workflow, told.run, after=told.seq - 1, limit=1))
        assert journal[told.seq].decode() == told.raw
    assert await bench.proof() == []


async def test_workers_carry_on_by_themselves(bench: Bench) -> None:
    """An idle worker, a sleeping run and a waiting one: all go on after an outage that nobody tells them of."""
    await bench.worker()
    nap = await bench.client.submit("nap", {"seconds": 1.0})
    letter = await bench.client.submit("letters", {"count": 1})
    await bench.reaches(nap, "sleeping")
    await bench.reaches(letter, "waiting")
    bench.server.kill()
    bench.server.start()
    started = time.monotonic()
    await bench.client.signal("letters", letter.run_id, "letter", "a")
    assert await bench.result(letter) == ["a"]
    chain = await bench.client.submit("chain", {"steps": 1})
    assert await bench.result(chain) == 0
    assert time.monotonic() - started < 5
    assert await bench.result(nap) == 1
    assert await bench.proof() == []
    log = bench.workers[0].log
    assert log.count("the store is away") <= 1, "one line for an outage"
    assert "Traceback" not in log


async def test_a_server_that_lost_everything_is_set_up_again(bench: Bench) -> None:
    """Functions, workflow names and shard counts are put back by workers and clients that go on."""
    await bench.worker()
    run = await bench.client.submit("chain", {"steps": 1})
    assert await bench.result(run) == 0
    start = Mark(mark(bench.server).file, 0)
    cut_power(bench.server, start)
    for kept in start.file.parent.glob("*.base.*"):
        kept.unlink()
        (kept.parent / "appendonly.aof.manifest").unlink()
        start.file.unlink()
    bench.server.start()
    run = await bench.client.submit("chain", {"steps": 2})
    assert await bench.result(run) == 1
    assert [each.run_id for each in await bench.client.list()] == [run.run_id]
    assert await bench.proof() == []


# --- a second is lost ---------------------------------------------------------------------


async def _claimed(store: ValkeyStore, worker: str) -> Claim:
    (claim,) = (await store.claim("wf", worker=worker, limit=1, lease_ms=60_000)).claims
    return claim


def _step(name: str) -> bytes:
    return entry("step.completed", 1_764_556_800_000_000, 1, "s", {"result": name})


@pytest.fixture
async def stores(server: PrivateServer, namespace: str) -> AsyncIterator[tuple[ValkeyStore, ValkeyStore]]:
    stores = [ValkeyStore(server.url, namespace=namespace, shard_count=1) for _ in range(2)]
    yield stores[0], stores[1]
    for store in stores:
        await store.aclose()


async def test_a_claim_that_the_server_forgot_holds_nothing(
    server: PrivateServer, stores: tuple[ValkeyStore, ValkeyStore]
) -> None:
    """The next claim gets the same epoch, the same seq, and the run; the forgotten one is refused everything."""
    first, second = stores
    run = await WorkflowClient(first).submit("wf", {})
    before = mark(server)
    forgotten = await _claimed(first, "worker")
    cut_power(server, before)
    server.start()
    with pytest.raises(ClaimLost):
        await first.append(forgotten, forgotten.seq, [_step("forgotten")])
    held = await _claimed(second, "worker")
    assert (held.epoch, held.seq) == (forgotten.epoch, forgotten.seq)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "append": lambda: first.append(forgotten, forgotten.seq, [_step("forgotten")]),
        "park": lambda: first.park(forgotten, forgotten.seq, [_step("p")], Parking(RunStatus.SLEEPING, "", 5)),
        "finish": lambda: first.finish(forgotten, forgotten.seq, [_step("f")], Ending(RunStatus.COMPLETED, 60_000)),
        "requeue": lambda: first.requeue(forgotten, forgotten.seq),
        "commit": lambda: first.commit(forgotten, "k", b"1"),
        "attributes": lambda: first.set_attributes(forgotten, b"{}"),
        "output": lambda: first.write_output(forgotten, 1, b"1"),
    }
    for call in calls.values():
        with pytest.raises(ClaimLost):
            await call()
    lease = Lease("wf", run.run_id, forgotten.epoch, forgotten.token)
    assert await first.heartbeat([lease], lease_ms=60_000) == [lease]
    assert await anyio.to_thread.run_sync(partial(first.heartbeat_sync, [lease], lease_ms=60_000)) == [lease]
    await second.append(held, held.seq, [_step("held")])
    await second.finish(held, held.seq + 1, [entry("run.completed", 1, 1, "", {})], Ending(RunStatus.COMPLETED, 1))
    journal = [parse(*each) for each in await first.read_journal("wf", run.run_id)]
    assert [each.data.get("result") for each in journal[2:]] == ["held", None]


async def test_a_claim_that_the_server_kept_goes_on(
    server: PrivateServer, stores: tuple[ValkeyStore, ValkeyStore]
) -> None:
    store, _ = stores
    await WorkflowClient(store).submit("wf", {})
    held = await _claimed(store, "worker")
    await store.append(held, held.seq, [_step("a")])
    before = mark(server)
    await store.append(held, held.seq + 1, [_step("b")])
    for _ in range(2):
        cut_power(server, before)
        server.start()
        lease = Lease("wf", held.run_id, held.epoch, held.token)
        assert await store.heartbeat([lease], lease_ms=60_000) == []
        with pytest.raises(EventOutOfOrder):
            await store.append(held, held.seq + 2, [_step("c")])
    await store.append(held, held.seq + 1, [_step("b again")])
    await store.append(held, held.seq + 1, [_step("b again")])
    assert len(await store.read_journal("wf", held.run_id)) == held.seq + 2


async def test_a_worker_gives_up_the_attempt_whose_records_were_lost(bench: Bench) -> None:
    """s1 was recorded and is forgotten; the worker learns it with s2, and the run goes on from s0."""
    await bench.worker(lock_ttl=2.5)
    run = await bench.client.submit("chain", {"steps": 4, "pause": 0.5})
    await until(lambda: bench.counts(run.run_id).get("s1"), what="s1 begun, so s0 recorded")
    before = mark(bench.server)
    await until(lambda: bench.counts(run.run_id).get("s2"), what="s2 begun, so s1 recorded")
    cut_power(bench.server, before)
    bench.server.start()
    assert await bench.result(run) == 6
    counts = bench.counts(run.run_id)
    assert counts["s0"] == 1, "what was kept is not done again"
    assert counts["s1"] == 2, "what was lost is"
    assert "lost acknowledged writes" in bench.workers[0].log
    findings = await bench.proof()
    assert [each for each in findings if "executed" not in each] == []


async def test_two_workers_of_which_one_holds_a_forgotten_claim(bench: Bench) -> None:
    """Both execute; the journal is of one of them only, from the claim to the end."""
    run = await bench.client.submit("chain", {"steps": 3, "pause": 0.4})
    before = mark(bench.server)
    first = await bench.worker(lock_ttl=30.0)
    await until(lambda: bench.counts(run.run_id).get("s1"), what="the first worker inside s1")
    cut_power(bench.server, before)
    first_pid = first.pid
    second = bench.start(lock_ttl=30.0, name="second")
    bench.server.start()
    await second.ready()
    assert await bench.result(run) == 3
    writers = {each.process for each in bench.executions(run.run_id)}
    events = [event async for event in bench.client.events("chain", run.run_id)]
    assert [event.type for event in events] == [
        "run.submitted",
        "run.started",
        *["step.completed"] * 3,
        "run.completed",
    ]
    assert first_pid in writers
    findings = await bench.proof()
    assert [each for each in findings if "executed" not in each] == []


async def _recorded(bench: Bench, more: int) -> None:
    """Wait until some more entries are acknowledged."""
    number = len(acknowledgements(bench.folder)) + more
    await until(lambda: len(acknowledgements(bench.folder)) >= number, what=f"{more} more entries")


async def test_under_load_a_power_cut_takes_the_last_moment_and_leaves_nothing_inconsistent(bench: Bench) -> None:
    population = Population(bench.client, random.Random(2), lossy=True)
    for _ in range(2):
        await bench.worker()
    lost: list[tuple[int, int]] = []
    async with anyio.create_task_group() as group:
        for _ in range(60):
            group.start_soon(population.tell, population.story())
        for part in (0.2, 0.5, 0.8):
            await population.reaches(int(part * 60))
            at = time.monotonic_ns()
            before = mark(bench.server)
            await _recorded(bench, 5)
            cut_power(bench.server, before)
            bench.server.start()
            lost.append((at, time.monotonic_ns()))
        group.cancel_scope.cancel()
    assert population.problems == []
    # A signal or an end that a client has seen may have been forgotten: each begins again, with the same ids.
    async with anyio.create_task_group() as group:
        for story in population.stories:
            group.start_soon(population.tell, story)
    assert population.problems == []
    for told in acknowledgements(bench.folder):
        if told.within(lost):
            continue
        journal = dict(await bench.store.read_journal(told.workflow, told.run, after=told.seq - 1, limit=1))
        assert journal[told.seq].decode() == told.raw
    findings = await bench.proof()
    assert [each for each in findings if "executed" not in each] == []
