"""Workers that stand still without being dead: stopped processes, blocked loops, clocks that jump.

A lease is renewed by a thread that a blocked loop cannot starve. A worker that is stopped altogether loses
its runs to another; when it goes on, its appends are refused, and it serves other runs as before.
"""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyrula.testing.servers import PrivateServer
from tests.integration.fault_bench import Bench, until
from tests.integration.fault_worker import Trap

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench(
    valkey_server: PrivateServer, namespace: str, tmp_path: Path, anyio_backend: tuple[str, Any]
) -> AsyncIterator[Bench]:
    async with Bench(valkey_server, namespace, tmp_path, anyio_backend[0]) as bench:
        yield bench


# --- stopped ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "nth"),
    [
        pytest.param("step.inside", 2, id="inside a step"),
        pytest.param("append.before", 2, id="before the append"),
        pytest.param("finish.before", 1, id="before the finish"),
    ],
)
async def test_a_stopped_worker_is_refused_and_goes_on_with_other_runs(bench: Bench, place: str, nth: int) -> None:
    first = await bench.worker(Trap(place, nth, "stop"))
    run = await bench.client.submit("chain", {"steps": 3})
    await until(lambda: first.stopped, what="the first worker stopped")
    second = await bench.worker()
    assert await bench.result(run) == 3
    journal = [event async for event in bench.client.events("chain", run.run_id)]
    second.send(signal.SIGTERM)
    assert await second.ended() == 0
    first.send(signal.SIGCONT)
    other = await bench.client.submit("chain", {"steps": 4})
    assert await bench.result(other) == 6
    assert {each.process for each in bench.executions(other.run_id)} == {first.pid}
    await until(lambda: f"run {run.run_id} of chain lost" in first.log, what="the first worker told")
    assert [event async for event in bench.client.events("chain", run.run_id)] == journal
    assert await bench.proof() == []


async def test_a_worker_stopped_at_a_park_does_not_put_the_run_back_to_sleep(bench: Bench) -> None:
    first = await bench.worker(Trap("park.before", 1, "stop"))
    run = await bench.client.submit("nap", {"seconds": 0.2})
    await until(lambda: first.stopped, what="the first worker stopped")
    await bench.worker()
    assert await bench.result(run) == 1
    first.send(signal.SIGCONT)
    await until(lambda: f"run {run.run_id} of nap lost" in first.log, what="the first worker told")
    assert await bench.status(run) == "completed"
    assert await bench.proof() == []


async def test_a_stopped_worker_that_is_continued_in_time_has_lost_nothing(bench: Bench) -> None:
    first = await bench.worker(Trap("step.inside", 2, "stop"), lock_ttl=10.0)
    run = await bench.client.submit("chain", {"steps": 3})
    await until(lambda: first.stopped, what="the first worker stopped")
    second = await bench.worker()
    other = await bench.client.submit("chain", {"steps": 2})
    assert await bench.result(other) == 1
    assert {each.process for each in bench.executions(other.run_id)} == {second.pid}
    first.send(signal.SIGCONT)
    assert await bench.result(run) == 3
    assert bench.counts(run.run_id) == {"s0": 1, "s1": 1, "s2": 1}
    assert (await bench.client.get("chain", run.run_id)).attempt == 1
    assert await bench.proof() == []


# --- blocked ------------------------------------------------------------------------------


async def test_a_blocked_loop_keeps_its_runs_and_is_named_in_the_log(bench: Bench) -> None:
    first = await bench.worker(options={"loop_stall_warning": 0.3})
    beside = await bench.client.submit("chain", {"steps": 2, "pause": 0.5})
    await until(lambda: bench.counts(beside.run_id).get("s0"), what="the run beside it begun")
    run = await bench.client.submit("block", {"seconds": 2.0})
    await until(lambda: bench.counts(run.run_id).get("s0"), what="the run begun")
    await bench.worker()
    assert await bench.result(run) == 2
    assert await bench.result(beside) == 1
    for each in (run, beside):
        assert (await bench.client.get(each.name, each.run_id)).attempt == 1, "the lease was renewed all the time"
    assert "the event loop has been blocked for" in first.log
    assert f"run {run.run_id!r} holds it" in first.log
    assert "the event loop runs again" in first.log
    assert await bench.proof() == []


async def test_a_loop_blocked_beyond_its_limit_loses_its_runs(bench: Bench) -> None:
    first = await bench.worker(options={"loop_stall_warning": 0.2, "loop_stall_limit": 0.5})
    run = await bench.client.submit("block", {"seconds": 3.0})
    await until(lambda: bench.counts(run.run_id).get("s0"), what="the run begun")
    second = await bench.worker()
    assert await bench.result(run) == 2
    assert {each.process for each in bench.executions(run.run_id) if each.step == "end"} == {second.pid}
    second.send(signal.SIGTERM)
    assert await second.ended() == 0
    other = await bench.client.submit("chain", {"steps": 2})
    assert await bench.result(other) == 1
    await until(lambda: f"run {run.run_id} of block lost" in first.log, what="the first worker told")
    assert bench.counts(run.run_id) == {"s0": 1, "end": 1}
    assert await bench.proof() == []


# --- clocks -------------------------------------------------------------------------------


async def test_a_clock_that_jumps_changes_no_sleep_and_no_lease(bench: Bench) -> None:
    """Five hours on, and ten back: sleeps last by the server's clock, and leases by a monotonic one."""
    jumps = [Trap("step.inside", 1, "jump", 5 * 3600.0), Trap("step.inside", 3, "jump", -10 * 3600.0)]
    first = await bench.worker(*jumps)
    begun = time.monotonic()
    nap = await bench.client.submit("nap", {"seconds": 0.6, "times": 2})
    long = await bench.client.submit("chain", {"steps": 2, "pause": 1.3})
    await until(lambda: bench.counts(long.run_id).get("s0"), what="the long run begun")
    await bench.worker()
    assert await bench.result(nap) == 2
    assert 1.2 <= time.monotonic() - begun < 6
    assert await bench.result(long) == 1
    run = await bench.client.get("chain", long.run_id)
    assert run.attempt == 1
    assert run.worker is not None
    assert f":{first.pid}:" in run.worker
    for each in (nap, long):
        times = [event.at async for event in bench.client.events(each.name, each.run_id)]
        assert times == sorted(times)
        assert (times[-1] - times[0]).total_seconds() < 10
    assert await bench.proof() == []
