"""What pyrula costs while it stands: an idle worker, and parked runs.

An idle worker with 20 workflows: its processor time and the server's commands a second. A
worker with a thousand parked runs: its memory beside that of the same worker without them.
"""

from __future__ import annotations

import argparse
import gc
import time
import tracemalloc

import anyio

from benchmarks.engine import LOOPS, until
from pyrula.testing.servers import PrivateServer
from pyrula.workflows import Context, ValkeyStore, WorkflowWorker, workflow

__all__ = ["idle", "parked"]


def _names(count: int) -> list[str]:
    """So many registered workflows that nobody submits."""
    names = []
    for number in range(count):

        @workflow(name=f"bench-idle-{number}")
        async def nothing(ctx: Context) -> None:
            """Never submitted."""

        names.append(nothing.name)
    return names


@workflow(name="bench-parked")
async def waits(ctx: Context) -> None:
    """Parks at once, for ever."""
    await ctx.wait_for_signal("never")


async def idle(server: PrivateServer, seconds: float) -> tuple[float, float]:
    """The share of a core an idle worker takes, and commands a second at the server."""
    store = ValkeyStore(server.url, namespace="idle")
    worker = WorkflowWorker(store, _names(20))
    client = server.client()
    async with anyio.create_task_group() as group:
        await group.start(worker.run)
        await anyio.sleep(3)  # the polls have slowed down by then
        commands, cpu, start = client.info("stats")["total_commands_processed"], time.process_time(), time.monotonic()
        await anyio.sleep(seconds)
        took = time.monotonic() - start
        share = (time.process_time() - cpu) / took
        # The two INFO calls are this benchmark's own.
        rate = (client.info("stats")["total_commands_processed"] - commands - 1) / took
        worker.stop()
    await store.aclose()
    return share, rate


async def parked(server: PrivateServer, runs: int) -> tuple[int, int]:
    """Bytes of Python memory of a worker before and after it has parked so many runs."""
    store = ValkeyStore(server.url, namespace="parked")
    worker = WorkflowWorker(store, [waits])

    async def park(count: int) -> int:
        await worker.client.submit_many([{"workflow": waits} for _ in range(count)])
        wanted = await worker.client.count("bench-parked")

        async def all_wait() -> bool:
            return await worker.client.count("bench-parked", status="waiting") >= wanted

        await until(all_wait, 0.1)
        await anyio.sleep(0.5)  # the worker's tick looks after what attempts left behind
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    async with anyio.create_task_group() as group:
        await group.start(worker.run)
        # The first rounds fill caches and the client's list of fresh runs, which are bounded.
        tracemalloc.start()
        await park(1500)
        before = await park(1)
        after = await park(runs)
        tracemalloc.stop()
        worker.stop()
    await store.aclose()
    return before, after


def main() -> None:
    """Print both, for each loop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--loop", choices=[*LOOPS], action="append")
    options = parser.parse_args()
    for loop in options.loop or [*LOOPS]:
        with PrivateServer(tcp=True) as server:

            async def once(server: PrivateServer = server, loop: str = loop) -> None:
                share, rate = await idle(server, options.seconds)
                met = "" if share < 0.01 and rate < 50 else "  MISSED"
                print(f"{loop:9}idle, 20 workflows: {share:.2%} of a core (< 1 %), {rate:.1f} commands/s (< 50){met}")
                before, after = await parked(server, options.runs)
                growth = (after - before) / options.runs
                print(f"{loop:9}{options.runs} parked runs: {growth:.0f} bytes each stay in the worker")

            anyio.run(once, **LOOPS[loop])


if __name__ == "__main__":
    main()
