"""The engine beside its yardstick: steps, short runs and a submission's way to its result.

Every figure is taken in the same process, loop and server as the bare appends it is compared
with, in turns, so that the machine's mood falls on both alike.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import anyio

from benchmarks import bare_append
from pyrula.testing.servers import PrivateServer
from pyrula.workflows import Context, ValkeyStore, WorkerOptions, WorkflowClient, WorkflowWorker, workflow
from pyrula.workflows.stores.valkey.address import Address
from pyrula.workflows.stores.valkey.wire import Wire

__all__ = ["LOOPS", "Row", "measure", "until"]

LOOPS: dict[str, dict[str, Any]] = {
    "asyncio": {"backend": "asyncio"},
    "uvloop": {"backend": "asyncio", "backend_options": {"use_uvloop": True}},
    "trio": {"backend": "trio"},
}
_latencies: list[float] = []
_returned: list[str] = []


async def trivial() -> int:
    return 1


@workflow(name="bench-sequence")
async def sequence(ctx: Context, steps: int) -> int:
    """Trivial steps one after another, each timed."""
    for number in range(steps):
        start = time.perf_counter()
        await ctx.step(f"step-{number}", trivial)
        _latencies.append(time.perf_counter() - start)
    return steps


@workflow(name="bench-short")
async def short(ctx: Context, steps: int) -> int:
    """Trivial steps one after another."""
    for number in range(steps):
        await ctx.step(f"step-{number}", trivial)
    _returned.append(ctx.run_id)
    return steps


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison: a figure, its yardstick, the ratio, and what the ratio must reach."""

    name: str
    figure: str
    yardstick: str
    ratio: float
    target: str
    met: bool

    def line(self) -> str:
        """The comparison as a line of a table."""
        ratio = f"{self.ratio:.1%}" if "%" in self.target else f"{self.ratio:.2f}"
        met = "" if self.met else "  MISSED"
        return f"{self.name:26}{self.figure:>16}{self.yardstick:>14}{ratio:>8}  {self.target}{met}"


@asynccontextmanager
async def _worker(store: ValkeyStore) -> AsyncIterator[WorkflowWorker]:
    worker = WorkflowWorker(store, [sequence, short], WorkerOptions(max_concurrent_runs=50))
    async with anyio.create_task_group() as group:
        await group.start(worker.run)
        yield worker
        worker.stop()


async def latency(url: str, namespace: str, wire: Wire) -> Row:
    """One run of 200 trivial steps; the median step beside the median bare append."""
    store = ValkeyStore(url, namespace=namespace)
    steps: list[float] = []
    bare: list[float] = []
    async with _worker(store) as worker:
        for _ in range(5):
            _latencies.clear()
            run = await worker.client.submit(sequence, {"steps": 200})
            await worker.client.result(run.name, run.run_id)
            steps.append(median(_latencies) * 1e6)
            bare.append(await bare_append.lone_append_p50_us(wire, 400))
    await store.aclose()
    ratio = median(a / b for a, b in zip(steps, bare, strict=True))
    return Row("step latency, p50", f"{median(steps):.0f} us", f"{median(bare):.0f} us", ratio, "<= 2.0", ratio <= 2.0)


async def until(condition: Callable[[], Awaitable[bool]], pause: float) -> None:
    """Look again and again, `pause` seconds apart, until something is so."""
    while not await condition():  # noqa: ASYNC110 - what is waited for happens in a server, or costs less this way
        await anyio.sleep(pause)


async def _done(runs: int) -> bool:
    return len(_returned) >= runs


async def _completed(client: WorkflowClient, runs: int) -> bool:
    return await client.count("bench-short", status="completed") >= runs


async def _drained(url: str, namespace: str, runs: int, steps: int) -> float:
    """Seconds a worker takes for runs that were all submitted before it started."""
    store = ValkeyStore(url, namespace=namespace)
    client = WorkflowClient(store)
    await client.submit_many([{"workflow": short, "input": {"steps": steps}} for _ in range(runs)])
    worker = WorkflowWorker(store, [short], WorkerOptions(max_concurrent_runs=50))
    _returned.clear()
    async with anyio.create_task_group() as group:
        start = time.perf_counter()
        group.start_soon(worker.run)
        # Waiting costs the worker next to nothing until the last body has returned.
        await until(lambda: _done(runs), 0.005)
        await until(lambda: _completed(client, runs), 0.005)
        took = time.perf_counter() - start
        worker.stop()
    await store.aclose()
    return took


async def throughput(url: str, namespace: str, wire: Wire, *, runs: int, steps: int) -> Row:
    """Runs submitted up front; steps (or runs) per second beside 50 callers of the bare append."""
    per_run = steps == 1
    rates: list[float] = []
    bare: list[float] = []
    for turn in range(3):
        took = await _drained(url, f"{namespace}-{turn}", runs, steps)
        rates.append(runs / took if per_run else runs * steps / took)
        bare.append(await bare_append.append_throughput(wire, 50, 200))
    ratio = median(a / b for a, b in zip(rates, bare, strict=True))
    target = 0.05 if per_run else 0.16
    name = f"{runs} one-step runs" if per_run else f"{runs} runs of {steps} steps"
    unit = "runs/s" if per_run else "steps/s"
    return Row(
        name, f"{median(rates):,.0f} {unit}", f"{median(bare):,.0f}/s", ratio, f">= {target:.0%}", ratio >= target
    )


async def submit_to_result(url: str, namespace: str, wire: Wire) -> Row:
    """A one-step run on an idle worker, from the call of submit to its result."""
    store = ValkeyStore(url, namespace=namespace)
    took: list[float] = []
    bare: list[float] = []
    async with _worker(store) as worker:
        for turn in range(100):
            start = time.perf_counter()
            run = await worker.client.submit(short, {"steps": 1})
            await worker.client.result(run.name, run.run_id)
            took.append(time.perf_counter() - start)
            if turn % 20 == 0:
                bare.append(await bare_append.lone_append_p50_us(wire, 200))
    await store.aclose()
    ratio = median(took) * 1e6 / median(bare)
    return Row(
        "submit to result, p50", f"{median(took) * 1e3:.2f} ms", f"{median(bare):.0f} us", ratio, "<= 15", ratio <= 15
    )


async def measure(url: str, label: str, only: str | None = None) -> list[Row]:
    """All comparisons on one server and loop."""
    wire = Wire(Address.parse(url))
    await bare_append.load(wire)
    rows: list[Row] = []
    try:
        if only in (None, "latency"):
            rows.append(await latency(url, f"{label}-latency", wire))
        if only in (None, "steps"):
            rows.append(await throughput(url, f"{label}-steps", wire, runs=200, steps=10))
        if only in (None, "runs"):
            rows.append(await throughput(url, f"{label}-runs", wire, runs=1000, steps=1))
        if only in (None, "result"):
            rows.append(await submit_to_result(url, f"{label}-result", wire))
    finally:
        await wire.aclose()
    return rows


def main() -> None:
    """Print one table for each fsync policy and loop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loop", choices=[*LOOPS], action="append")
    parser.add_argument("--fsync", choices=["everysec", "always"], action="append")
    parser.add_argument("--only", choices=["latency", "steps", "runs", "result"])
    options = parser.parse_args()
    print(f"{'fsync':10}{'loop':9}{'what':26}{'figure':>16}{'bare append':>14}{'ratio':>8}  target")
    for fsync in options.fsync or ["everysec", "always"]:
        for loop in options.loop or [*LOOPS]:
            with PrivateServer({"appendfsync": fsync}, tcp=True) as server:

                async def once(url: str = server.url, label: str = loop) -> list[Row]:
                    return await measure(url, label, options.only)

                for row in anyio.run(once, **LOOPS[loop]):
                    print(f"{fsync:10}{loop:9}{row.line()}", flush=True)


if __name__ == "__main__":
    main()
