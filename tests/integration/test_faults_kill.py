"""A worker killed with SIGKILL at each point where it could matter; another finishes what it held.

The first worker is a real process that dies of a trap at an exact place. What is judged afterwards comes
from outside of it: the run's result, the executions that steps have written to a file, and the data.
"""

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


@pytest.fixture
async def bench(
    valkey_server: PrivateServer, namespace: str, tmp_path: Path, anyio_backend: tuple[str, Any]
) -> AsyncIterator[Bench]:
    async with Bench(valkey_server, namespace, tmp_path, anyio_backend[0]) as bench:
        yield bench


SEARCHING = {"orphan_scan_interval": 0.2, "requeue_budget": 2}
CHAIN = {"s0": 1, "s1": 1, "s2": 1}


@pytest.mark.parametrize(
    ("place", "nth", "executed"),
    [
        pytest.param("claim.after", 1, CHAIN, id="claimed and not begun"),
        pytest.param("body.between", 2, CHAIN, id="before a step"),
        pytest.param("step.inside", 2, CHAIN | {"s1": 2}, id="inside a step"),
        pytest.param("step.done", 2, CHAIN | {"s1": 2}, id="after a step"),
        pytest.param("append.before", 2, CHAIN | {"s1": 2}, id="before the append"),
        pytest.param("append.after", 2, CHAIN, id="after the append"),
        pytest.param("finish.before", 1, CHAIN, id="before the finish"),
    ],
)
async def test_a_chain_of_steps_goes_on(bench: Bench, place: str, nth: int, executed: dict[str, int]) -> None:
    first = await bench.doomed(Trap(place, nth))
    run = await bench.client.submit("chain", {"steps": 3})
    assert await first.ended() == -signal.SIGKILL
    await bench.worker()
    assert await bench.result(run) == 3
    assert bench.counts(run.run_id) == executed
    assert await bench.proof() == []


async def test_a_run_that_was_finished_is_finished(bench: Bench) -> None:
    first = await bench.doomed(Trap("finish.after"))
    run = await bench.client.submit("chain", {"steps": 3})
    assert await first.ended() == -signal.SIGKILL
    assert await bench.status(run) == "completed"
    await bench.worker()
    other = await bench.client.submit("chain", {"steps": 1})
    assert await bench.result(other) == 0
    assert await bench.result(run) == 3
    assert bench.counts(run.run_id) == CHAIN
    assert await bench.proof() == []


@pytest.mark.parametrize("place", ["park.before", "park.after"])
async def test_a_sleep_goes_on(bench: Bench, place: str) -> None:
    first = await bench.doomed(Trap(place))
    run = await bench.client.submit("nap", {"seconds": 0.3})
    assert await first.ended() == -signal.SIGKILL
    assert await bench.status(run) == ("sleeping" if place == "park.after" else "running")
    await bench.worker()
    assert await bench.result(run) == 1
    assert bench.counts(run.run_id) == {"s0": 1, "end": 1}
    assert await bench.proof() == []


@pytest.mark.parametrize("place", ["park.before", "park.after"])
async def test_a_wait_takes_the_signal_that_came_meanwhile(bench: Bench, place: str) -> None:
    first = await bench.doomed(Trap(place))
    run = await bench.client.submit("letters", {"count": 2})
    assert await first.ended() == -signal.SIGKILL
    await bench.client.signal("letters", run.run_id, "letter", "a")
    second = await bench.doomed(Trap("append.after"), options=SEARCHING)
    # The signal is journaled and taken out of the inbox in one call, whose reply nobody lived to read.
    assert await second.ended() == -signal.SIGKILL
    await bench.client.signal("letters", run.run_id, "letter", "b")
    await bench.worker()
    assert await bench.result(run) == ["a", "b"]
    assert bench.counts(run.run_id) == {"s0": 1, "s1": 1}
    assert await bench.proof() == []


async def test_a_gather_repeats_only_what_was_under_way(bench: Bench) -> None:
    first = await bench.doomed(Trap("step.done", 3), backend="asyncio")
    run = await bench.client.submit("fan", {"width": 6, "pause": 0.05})
    assert await first.ended() == -signal.SIGKILL
    before = bench.counts(run.run_id)
    recorded = {e.key.rpartition("/")[2] async for e in bench.client.events("fan", run.run_id) if "step" in e.type}
    await bench.worker()
    assert await bench.result(run) == [0, 1, 2, 3, 4, 5, 15]
    after = bench.counts(run.run_id)
    assert {step for step in before if after[step] == 1} >= recorded
    assert all(times <= 2 for times in after.values())
    assert await bench.proof() == []


@pytest.mark.parametrize("place", ["append.before", "append.after", "finish.before"])
async def test_the_clean_up_of_a_cancelled_run_goes_on(bench: Bench, place: str) -> None:
    first = await bench.doomed(Trap(place, 2 if place.startswith("append") else 1))
    run = await bench.client.submit("clean", {"seconds": 600})
    await bench.reaches(run, "sleeping")
    await bench.client.cancel("clean", run.run_id, "enough")
    assert await first.ended() == -signal.SIGKILL
    await bench.worker()
    await bench.reaches(run, "cancelled")
    assert bench.counts(run.run_id)["before"] == 1
    assert bench.counts(run.run_id)["clean"] == (2 if place == "append.before" else 1)
    assert await bench.proof() == []


async def test_a_body_that_kills_its_worker_each_time_is_given_up(bench: Bench) -> None:
    """A run may not take one worker after the other with it for ever."""
    run = await bench.client.submit("chain", {"steps": 3})
    for n in range(3):
        worker = await bench.doomed(Trap("body.between", 2 if n == 0 else 1), options=SEARCHING)
        assert await worker.ended() == -signal.SIGKILL
    await bench.worker(options=SEARCHING)
    await bench.reaches(run, "failed")
    error = (await bench.client.get("chain", run.run_id)).error
    assert error is not None
    assert error["code"] == "requeue_budget_exhausted"
    await bench.client.retry("chain", run.run_id)
    assert await bench.result(run) == 3
    assert await bench.proof() == []


async def test_many_runs_in_flight_cost_one_execution_each(bench: Bench) -> None:
    """Twenty runs are inside a step when their worker dies: each repeats that step, and nothing else."""
    runs = await bench.client.submit_many(
        [{"workflow": "chain", "input": {"steps": 3, "pause": 0.2}} for _ in range(20)]
    )
    first = await bench.doomed()
    await until(lambda: len({e.run for e in bench.executions() if e.step == "s1"}) == 20, what="all inside s1")
    first.send(signal.SIGKILL)
    await first.ended()
    before = len(bench.executions())
    await bench.worker()
    assert [await bench.result(run) for run in runs] == [3] * 20
    assert len(bench.executions()) <= 20 * 3 + 20
    assert len(bench.executions()) > before
    assert await bench.proof() == []
