"""What tracing and metrics cost a step: with the API alone, with an SDK, and beside an engine without the hooks.

    python -m benchmarks.tracing_cost [--rounds N] [--loop asyncio|trio]

All variants run in one process, in short turns and in changing order, on a memory store, so that the
machine's mood falls on all alike. What is taken is processor time, and of all rounds the least disturbed
one: the hooks cost less than what a busy neighbour does to a round. The yardstick is the engine
with its hooks cut out of the compiled functions.
Exits with 1 when a step with the API alone costs a microsecond more than that.
"""

from __future__ import annotations

import argparse
import ast
import gc
import inspect
import random
import sys
import textwrap
import time
import timeit
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import anyio
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pyrula.actors import running, steps
from pyrula.actors.attempt import Attempt, Settings
from pyrula.actors.observing import observe
from pyrula.actors.supervision import OutageLog
from pyrula.workflows import Context, MemoryStore, WorkflowClient, client, workflow
from pyrula.workflows.bodies import body_of

__all__ = ["Cost", "measure"]

STEPS = 50
SUBMISSIONS = 15
LIMIT_NS = 1000.0


async def trivial() -> int:
    return 1


@workflow(name="bench-tracing")
async def sequence(ctx: Context) -> None:
    """Trivial steps one after another."""
    for _ in range(STEPS):
        await ctx.step("trivial", trivial)


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of processor time for one step and one submission, and how much more than the yardstick that is."""

    name: str
    step: float
    step_more: float
    submit: float
    submit_more: float


# --- variants ----------------------------------------------------------------------------


class _Cut(ast.NodeTransformer):
    """Replaces `if attempt.observer is None: A else: B` by A."""

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        return node.body if ast.unparse(node.test) == "attempt.observer is None" else node


def _without_hooks(module: ModuleType, name: str) -> Any:
    source = textwrap.dedent(inspect.getsource(vars(module)[name]))
    tree = _Cut().visit(ast.parse(f"from __future__ import annotations\n{source}"))
    cut = ast.unparse(ast.fix_missing_locations(tree))
    if "observer" in cut:
        raise RuntimeError(f"a hook of {name} is written in a way that this benchmark cannot cut out:\n{cut}")
    made: dict[str, Any] = {}
    exec(compile(cut, f"<{name} without hooks>", "exec"), vars(module), made)
    return made[name]


async def _submit(store: Any, runs: Any) -> Any:
    return await store.submit(runs)


@contextmanager
def _replaced(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    before = vars(module)[name]
    vars(module)[name] = value
    try:
        yield
    finally:
        vars(module)[name] = before


@contextmanager
def _hookless() -> Iterator[None]:
    with (
        _replaced(steps, "_tried", TRIED),
        _replaced(running, "run_attempt", vars(running)["_run"]),
        _replaced(client, "submitted", _submit),
    ):
        yield


@contextmanager
def _api_only() -> Iterator[None]:
    yield


@contextmanager
def _provided(*, spans: bool, figures: bool) -> Iterator[None]:
    """An SDK, for this process and for a while; the API itself lets a provider be set once only."""
    tracing, measuring = trace.get_tracer_provider.__globals__, metrics.get_meter_provider.__globals__
    if spans:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
        tracing["_TRACER_PROVIDER"] = provider
    if figures:
        measuring["_METER_PROVIDER"] = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    try:
        yield
    finally:
        tracing["_TRACER_PROVIDER"] = measuring["_METER_PROVIDER"] = None


TRIED = _without_hooks(steps, "_tried")
YARDSTICK = "hooks cut out"
VARIANTS: dict[str, Callable[[], Any]] = {
    YARDSTICK: _hookless,
    "API only": _api_only,
    "SDK, metrics": partial(_provided, spans=False, figures=True),
    "SDK, spans": partial(_provided, spans=True, figures=False),
    "SDK, both": partial(_provided, spans=True, figures=True),
}


# --- measuring ---------------------------------------------------------------------------


async def _once() -> tuple[float, float]:
    """Microseconds for a step, and for a submission."""
    store = MemoryStore()
    submitter = WorkflowClient(store)
    submit = await _timed(lambda: submitter.submit(sequence), SUBMISSIONS)
    run = await submitter.submit(sequence)
    claim = await store.claim_run(run.name, run.run_id, worker="bench", lease_ms=60_000)
    if claim is None:
        raise RuntimeError("the run cannot be claimed")
    attempt = Attempt(store, claim, body_of(sequence), settings=Settings(), outage=OutageLog())
    start = time.thread_time()
    ended = await running.run_attempt(attempt)
    took = time.thread_time() - start
    if ended.how != "completed":
        raise RuntimeError(f"the run {ended.how}: {ended.error}")
    return took / STEPS * 1e6, submit


async def _timed(call: Callable[[], Awaitable[object]], times: int) -> float:
    start = time.thread_time()
    for _ in range(times):
        await call()
    return (time.thread_time() - start) / times * 1e6


async def measure(rounds: int) -> list[Cost]:
    """All variants in turns, `rounds` times."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in VARIANTS}
    order = list(VARIANTS)
    for turn in range(rounds + 1):
        random.shuffle(order)
        for name in order:
            gc.collect()
            gc.disable()
            try:
                with VARIANTS[name]():
                    figures = await _once()
            finally:
                gc.enable()
            if turn:  # the first round warms up
                taken[name].append(figures)
    base = _least(taken[YARDSTICK])
    return [_cost(name, _least(taken[name]), base) for name in VARIANTS]


def _least(taken: list[tuple[float, float]]) -> tuple[float, float]:
    """The least of all rounds, of steps and of submissions."""
    return min(a[0] for a in taken), min(a[1] for a in taken)


def _cost(name: str, own: tuple[float, float], base: tuple[float, float]) -> Cost:
    return Cost(name, own[0], own[0] - base[0], own[1], own[1] - base[1])


def hook_costs() -> dict[str, float]:
    """Nanoseconds of what the hooks do without a provider, by themselves: the best of five."""

    class Holder:
        observer = None

    holder, run = Holder(), _claim()
    empty = _nanoseconds("pass", {})
    return {
        "the check in a step": _nanoseconds("if a.observer is None: pass", {"a": holder}) - empty,
        "the check of an attempt": _nanoseconds("f(c)", {"f": observe, "c": run}) - empty,
    }


def _nanoseconds(code: str, names: dict[str, Any]) -> float:
    return min(timeit.repeat(code, globals=names, number=200_000, repeat=5)) / 200_000 * 1e9


def _claim() -> Any:
    from pyrula.contracts.store import Claim

    return Claim(workflow="bench-tracing", run_id="r", epoch=1, attempt=1, seq=2, now=0)


def main() -> int:
    """Measure and print; 1 when the hooks cost too much without an SDK."""
    parser = argparse.ArgumentParser(description="The cost of tracing and metrics for a step.")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--loop", choices=["asyncio", "trio"], default="asyncio")
    options = parser.parse_args()
    costs = anyio.run(measure, options.rounds, backend=options.loop)
    base = costs[0]
    print(f"{options.loop}, {options.rounds} rounds of {STEPS} steps and {SUBMISSIONS} submissions, memory store")
    print(f"{'':16}{'step':>10}{'more':>10}{'ratio':>8}{'submit':>12}{'more':>10}{'ratio':>8}")
    for cost in costs:
        print(
            f"{cost.name:16}{cost.step:>7.1f} us{cost.step_more:>+7.2f} us{1 + cost.step_more / base.step:>8.3f}"
            f"{cost.submit:>9.1f} us{cost.submit_more:>+7.2f} us{1 + cost.submit_more / base.submit:>8.3f}"
        )
    for name, cost_ns in hook_costs().items():
        print(f"{name}, with no provider: {cost_ns:.0f} ns")
    met = costs[1].step_more * 1000 < LIMIT_NS
    print(f"API only, for a step: {'met' if met else 'missed'}, the limit is +{LIMIT_NS / 1000:.1f} us")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
