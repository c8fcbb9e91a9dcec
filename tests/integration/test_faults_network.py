"""Connections that break at the worst moment, stand still, or crawl: nothing is done twice, nothing gets lost.

Workers reach the server through a proxy that the test controls; the test itself does not.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from pyrula.contracts.runs import RunStatus
from pyrula.testing.servers import PrivateServer
from pyrula.workflows import ValkeyStore, WorkflowClient
from tests.integration.fault_bench import Bench, until
from tests.integration.fault_population import Population
from tests.integration.fault_proxy import Proxy

pytestmark = pytest.mark.anyio

CHAIN = {"s0": 1, "s1": 1, "s2": 1}


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    """A server on a port, as the proxy wants it."""
    with PrivateServer(tcp=True) as server:
        yield server


@pytest.fixture
async def bench(
    server: PrivateServer, namespace: str, tmp_path: Path, anyio_backend: tuple[str, Any]
) -> AsyncIterator[Bench]:
    async with Bench(server, namespace, tmp_path, anyio_backend[0]) as bench:
        yield bench


@pytest.fixture
async def proxy(server: PrivateServer) -> AsyncIterator[Proxy]:
    async with Proxy.before(server) as proxy:
        yield proxy


@pytest.fixture
async def client(proxy: Proxy, bench: Bench) -> AsyncIterator[WorkflowClient]:
    """A client that goes through the proxy."""
    store = ValkeyStore(proxy.url, namespace=bench.namespace, shard_count=bench.shard_count)
    yield WorkflowClient(store)
    await store.aclose()


# --- one reply is lost ----------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 1], ids=["whole", "all but a byte"])
@pytest.mark.parametrize("call", ["append", "finish"])
async def test_an_append_whose_reply_is_lost_is_repeated_and_stands_once(
    bench: Bench, proxy: Proxy, call: str, kept: int
) -> None:
    await bench.worker(url=proxy.url, lock_ttl=30.0)
    loss = proxy.lose(rb"\r\n%b\r\n" % call.encode(), kept=kept)
    run = await bench.client.submit("chain", {"steps": 3})
    assert await bench.result(run) == 3
    await until(loss.done.is_set, what="the reply lost")
    assert bench.counts(run.run_id) == CHAIN
    assert (await bench.client.get("chain", run.run_id)).attempt == 1
    assert await bench.proof() == []


async def test_a_park_whose_reply_is_lost_is_repeated_and_parks_once(bench: Bench, proxy: Proxy) -> None:
    await bench.worker(url=proxy.url, lock_ttl=30.0)
    loss = proxy.lose(rb"\r\npark\r\n")
    run = await bench.client.submit("nap", {"seconds": 0.2})
    assert await bench.result(run) == 1
    assert loss.done.is_set()
    assert bench.counts(run.run_id) == {"s0": 1, "end": 1}
    assert (await bench.client.get("nap", run.run_id)).attempt == 2
    assert await bench.proof() == []


async def test_a_claim_whose_reply_is_lost_is_given_back_at_once(bench: Bench, proxy: Proxy) -> None:
    """Not only when the lease runs out, which takes half a minute here."""
    await bench.worker(url=proxy.url, lock_ttl=30.0)
    loss = proxy.lose(rb"_claim\r\n")
    runs = await bench.client.submit_many([{"workflow": "chain", "input": {"steps": 3}} for _ in range(8)])
    assert [await bench.result(run, within=10) for run in runs] == [3] * 8
    assert loss.done.is_set()
    assert max([(await bench.client.get("chain", run.run_id)).attempt for run in runs]) == 2
    assert all(bench.counts(run.run_id) == CHAIN for run in runs)
    assert await bench.proof() == []


@pytest.mark.parametrize("kept", [0, 3], ids=["whole", "in part"])
async def test_a_clients_calls_whose_replies_are_lost_take_effect_once(
    bench: Bench, proxy: Proxy, client: WorkflowClient, kept: int
) -> None:
    losses = [proxy.lose(rb"_submit\r\n", kept=kept), proxy.lose(rb"_deliver\r\n", kept=kept)]
    run = await client.submit("letters", {"count": 2})
    assert await bench.client.count("letters") == 1
    await client.signal("letters", run.run_id, "letter", "a")
    await client.signal("letters", run.run_id, "letter", "b")
    await bench.worker()
    assert await client.result("letters", run.run_id, timeout=10) == ["a", "b"]

    losses += [proxy.lose(rb"_terminate\r\n", kept=kept), proxy.lose(rb"_revive\r\n", kept=kept)]
    asleep = await client.submit("nap", {"seconds": 600.0})
    await bench.reaches(asleep, "sleeping")
    assert (await client.terminate("nap", asleep.run_id)).status is RunStatus.TERMINATED
    shaky = await client.submit("shaky", {"good_from": 3})
    await bench.reaches(shaky, "failed")
    await client.retry("shaky", shaky.run_id)
    assert await client.result("shaky", shaky.run_id, timeout=10) == 3
    retried = [e async for e in bench.client.events("shaky", shaky.run_id) if e.type == "run.retried"]
    assert len(retried) == 1
    assert all(loss.done.is_set() for loss in losses)
    assert await bench.proof() == []


# --- connections ----------------------------------------------------------------------------


async def test_a_server_that_falls_silent_is_noticed_and_waited_for(bench: Bench, proxy: Proxy) -> None:
    """Half-open connections: nothing breaks, nothing comes; what was sent arrives much later, and changes nothing."""
    worker = await bench.worker(url=proxy.url, lock_ttl=30.0, command_timeout=0.8, connect_timeout=0.8)
    runs = [await bench.client.submit("chain", {"steps": 3, "pause": 0.2}) for _ in range(5)]
    await until(lambda: len({e.run for e in bench.executions() if e.step == "s1"}) == 5, what="all inside s1")
    proxy.freeze()
    await until(lambda: "the store is away" in worker.log, what="the silence noticed")
    taken = proxy.accepted
    await until(lambda: proxy.accepted > taken, what="the worker knocking")
    proxy.thaw()
    assert [await bench.result(run) for run in runs] == [3] * 5
    assert all(bench.counts(run.run_id) == CHAIN for run in runs)
    assert "Traceback" not in worker.log
    assert await bench.proof() == []


async def test_a_slow_line_changes_nothing_but_time(bench: Bench, proxy: Proxy) -> None:
    proxy.delay = 0.05
    await bench.worker(url=proxy.url)
    population = Population(bench.client, random.Random(3))
    async with anyio.create_task_group() as group:
        for kind in ("chain", "nap", "letters", "question", "clean"):
            group.start_soon(population.tell, population.story(kind))
    assert population.problems == []
    assert await bench.proof() == []


async def _moved(proxy: Proxy, population: Population, told: int) -> None:
    """Wait until connections were made anew and so much of the work was done, or enough of them were made."""
    taken = proxy.accepted
    await until(lambda: proxy.accepted >= taken + 2 or len(population.told) == len(population.stories))
    await until(lambda: proxy.accepted > taken + 4 or len(population.told) >= told)


async def test_connections_that_break_all_the_time(bench: Bench, proxy: Proxy, client: WorkflowClient) -> None:
    """Clients and two workers lose all their connections, again and again."""
    for _ in range(2):
        await bench.worker(url=proxy.url)
    population = Population(client, random.Random(4))
    async with anyio.create_task_group() as group:
        for _ in range(40):
            group.start_soon(population.tell, population.story())
        for n in range(20):
            await _moved(proxy, population, n)
            proxy.cut()
    assert population.problems == []
    assert all("Traceback" not in worker.log for worker in bench.workers)
    assert await bench.proof() == []


async def test_what_came_while_nobody_could_hear_it_is_looked_for(bench: Bench, proxy: Proxy) -> None:
    """A cancel, a signal and a submission of which no notification arrived: all found once there is a line again."""
    await bench.worker(url=proxy.url, lock_ttl=30.0)
    busy = await bench.client.submit("chain", {"steps": 300, "pause": 0.05})
    letter = await bench.client.submit("letters", {"count": 1})
    await bench.reaches(letter, "waiting")
    await until(lambda: bench.counts(busy.run_id).get("s2"), what="the busy run begun")
    proxy.down = True
    proxy.cut()
    await bench.client.cancel("chain", busy.run_id)
    await bench.client.signal("letters", letter.run_id, "letter", "a")
    late = await bench.client.submit("chain", {"steps": 2})
    proxy.down = False
    begun = time.monotonic()
    assert await bench.result(late) == 1
    assert await bench.result(letter) == ["a"]
    await bench.reaches(busy, "cancelled", "completed")
    assert await bench.status(busy) == "cancelled"
    assert time.monotonic() - begun < 5
    assert await bench.proof() == []
