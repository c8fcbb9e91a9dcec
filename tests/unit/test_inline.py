"""The inline runner: one run, one frontier at a time, in the calling task."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from pyrula.contracts.errors import ConfigurationError, RunFailed, RunNotFound, StoreUnavailable
from pyrula.contracts.runs import RunStatus
from pyrula.workflows import Context, InlineWorkflowRunner, MemoryStore, workflow
from pyrula.workflows.registry import registry

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    """Workflows registered by a test are forgotten after it."""
    before = dict(registry._workflows)
    yield
    registry._workflows.clear()
    registry._workflows.update(before)


@pytest.fixture
def runner() -> InlineWorkflowRunner:
    return InlineWorkflowRunner(store=MemoryStore())


async def test_a_run_to_its_end(runner: InlineWorkflowRunner) -> None:
    @workflow
    async def double(ctx: Context, x: int) -> int:
        return await ctx.step("double", lambda: 2 * x)

    run = await runner.client.submit("double", {"x": 4})
    events = await runner.run(run.name, run.run_id)
    assert [event.type for event in events] == ["run.submitted", "run.started", "step.completed", "run.completed"]
    assert await runner.client.result(run.name, run.run_id) == 8
    assert await runner.run(run.name, run.run_id) == events


async def test_a_sleep_stays_asleep(runner: InlineWorkflowRunner) -> None:
    @workflow
    async def sleeper(ctx: Context) -> None:
        await ctx.sleep(0.001)

    run = await runner.client.submit("sleeper")
    events = await runner.run(run.name, run.run_id)
    assert events[-1].type == "timer.set"
    await anyio.sleep(0.01)
    assert (await runner.run(run.name, run.run_id)) == events
    assert (await runner.client.get(run.name, run.run_id)).status is RunStatus.SLEEPING


async def test_one_frontier_for_each_call(runner: InlineWorkflowRunner) -> None:
    @workflow
    async def asks(ctx: Context) -> list[Any]:
        return [await ctx.wait_for_signal("a"), await ctx.interrupt("sure?")]

    run = await runner.client.submit("asks")
    assert (await runner.run(run.name, run.run_id))[-1].type == "signal.awaited"
    await runner.client.signal(run.name, run.run_id, "a", 1)
    assert (await runner.run(run.name, run.run_id))[-1].type == "interrupt.raised"
    await runner.client.resume(run.name, run.run_id, 2)
    assert (await runner.run(run.name, run.run_id))[-1].data["result"] == [1, 2]


async def test_a_failure_is_in_the_journal_and_not_raised(runner: InlineWorkflowRunner) -> None:
    @workflow
    async def fails(ctx: Context) -> None:
        raise ValueError("no")

    run = await runner.client.submit("fails")
    assert (await runner.run(run.name, run.run_id))[-1].type == "run.failed"
    with pytest.raises(RunFailed):
        await runner.client.result(run.name, run.run_id)


async def test_what_cannot_be_run(runner: InlineWorkflowRunner) -> None:
    @workflow
    async def here(ctx: Context) -> None: ...

    with pytest.raises(RunNotFound):
        await runner.run("here", "nobody")
    await runner.client.submit("elsewhere", run_id="r")
    with pytest.raises(ConfigurationError):
        await runner.run("elsewhere", "r")


async def test_a_caller_that_gives_up_gives_the_run_back(runner: InlineWorkflowRunner) -> None:
    @workflow
    async def slow(ctx: Context) -> None:
        await ctx.step("s", lambda: 1)
        await anyio.sleep(60)

    run = await runner.client.submit("slow")
    with anyio.move_on_after(0.05) as scope:
        await runner.run(run.name, run.run_id)
    assert scope.cancelled_caught
    found = await runner.client.get(run.name, run.run_id)
    assert (found.status, found.error) == (RunStatus.QUEUED, None)


async def test_a_caller_that_asyncio_cancels_gives_the_run_back(runner: InlineWorkflowRunner) -> None:
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        pytest.skip("asyncio's own")

    @workflow
    async def slow(ctx: Context) -> None:
        await ctx.step("s", lambda: 1)
        await anyio.sleep(60)

    run = await runner.client.submit("slow")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(runner.run(run.name, run.run_id), 0.05)
    found = await runner.client.get(run.name, run.run_id)
    assert (found.status, found.error) == (RunStatus.QUEUED, None)


class Away(MemoryStore):
    """A store that cannot be reached when something is to be written."""

    async def append(self, *args: Any, **options: Any) -> None:
        raise StoreUnavailable("127.0.0.1:6379 is away")


async def test_an_outage_is_the_callers_error() -> None:
    @workflow
    async def steps(ctx: Context) -> None:
        await ctx.step("s", lambda: 1)

    runner = InlineWorkflowRunner(Away())
    run = await runner.client.submit("steps")
    with anyio.fail_after(3), pytest.raises(StoreUnavailable):
        await runner.run(run.name, run.run_id)


async def test_several_at_once(runner: InlineWorkflowRunner) -> None:
    @workflow
    async def echo(ctx: Context, n: int) -> int:
        return await ctx.step("s", lambda: n)

    runs = [await runner.client.submit("echo", {"n": n}) for n in range(5)]
    async with anyio.create_task_group() as group:
        for run in runs:
            group.start_soon(runner.run, run.name, run.run_id)
    assert [await runner.client.result("echo", run.run_id) for run in runs] == list(range(5))


async def test_one_run_twice_at_once_runs_once(runner: InlineWorkflowRunner) -> None:
    ran: list[int] = []

    @workflow
    async def once(ctx: Context) -> None:
        await ctx.step("s", ran.append, 1)

    run = await runner.client.submit("once")
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(runner.run, run.name, run.run_id)
    assert ran == [1]
