"""What a run costs the server, counted by the server itself."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from pyrula.testing.servers import PrivateServer
from pyrula.workflows import Context, ValkeyStore, WorkerOptions, WorkflowWorker, workflow

pytestmark = pytest.mark.anyio


async def trivial() -> int:
    return 1


@workflow(name="costs-sequence")
async def sequence(ctx: Context, steps: int) -> int:
    for number in range(steps):
        await ctx.step(f"step-{number}", trivial)
    return steps


def function_calls(client: Any) -> int:
    stats = client.info("commandstats")
    return int(stats.get("cmdstat_fcall", {"calls": 0})["calls"])


@pytest.mark.parametrize("steps", [0, 1, 100])
async def test_a_run_of_n_steps_takes_n_plus_3_round_trips(
    valkey_server: PrivateServer, namespace: str, steps: int
) -> None:
    """Submit, claim, one append for each step, finish. Loading the library and the polls are not the run's."""
    store = ValkeyStore(valkey_server.url, namespace=namespace)
    # Only what the run itself causes is to be counted: no sweep, no timer poll, no heartbeat.
    options = WorkerOptions(orphan_scan_interval=3600, timer_poll_interval_s=3600)
    worker = WorkflowWorker(store, [sequence], options)
    client = valkey_server.client()
    async with anyio.create_task_group() as group:
        await group.start(worker.run)
        warm = await worker.client.submit(sequence, {"steps": 1})
        await worker.client.result(warm.name, warm.run_id)

        before = function_calls(client)
        async with store.wait_end("costs-sequence", "counted") as ending:
            await worker.client.submit(sequence, {"steps": steps}, run_id="counted")
            await ending.next()
        assert function_calls(client) - before == steps + 3
        worker.stop()
    await store.aclose()
