"""Pausing and forking runs, attempt by attempt."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from pyrula.contracts.errors import InvalidInput, RunNotFound, WrongRunState
from pyrula.contracts.runs import RunStatus
from pyrula.testing.audit import audit
from pyrula.workflows import Context
from tests.unit.engine.harness import Bench, until

pytestmark = pytest.mark.anyio


async def body(ctx: Context, wait: str = "signal") -> Any:
    await ctx.step("a", lambda: 1)
    if wait == "signal":
        return await ctx.wait_for_signal("go")
    await ctx.sleep(60)
    return await ctx.step("b", lambda: "slept")


async def status(bench: Bench, run_id: str) -> str:
    return str((await bench.client.get(bench.name, run_id)).status)


async def test_a_queued_run_is_held_back_and_keeps_its_place() -> None:
    bench = Bench(body)
    run = await bench.submit()
    for _ in range(2):
        assert (await bench.client.pause(bench.name, run.run_id, "why")).status is RunStatus.PAUSED
    assert await bench.store.claim_run(bench.name, run.run_id, worker="w", lease_ms=1000) is None
    assert await audit(bench.memory) == []
    for _ in range(2):
        assert (await bench.client.unpause(bench.name, run.run_id)).status is RunStatus.QUEUED
    run = await bench.drive(run.run_id)
    assert run.status is RunStatus.WAITING


async def test_what_comes_to_a_paused_run_is_kept() -> None:
    bench = Bench(body)
    run = await bench.go()
    await bench.client.pause(bench.name, run.run_id)
    await bench.client.signal(bench.name, run.run_id, "go", 7)
    assert await status(bench, run.run_id) == "paused"
    await bench.client.unpause(bench.name, run.run_id)
    assert (await bench.drive(run.run_id)).result == 7


async def test_a_wait_goes_on_where_it_was() -> None:
    bench = Bench(body)
    run = await bench.go()
    await bench.client.pause(bench.name, run.run_id)
    assert (await bench.client.unpause(bench.name, run.run_id)).status is RunStatus.WAITING
    await bench.client.signal(bench.name, run.run_id, "go", 8)
    assert (await bench.drive(run.run_id)).result == 8
    assert await audit(bench.memory) == []


@pytest.mark.parametrize("passed", [10, 100])
async def test_time_goes_on_for_a_paused_sleeper(passed: float) -> None:
    bench = Bench(body)
    run = await bench.submit({"wait": "time"})
    await bench.once(run.run_id)
    await bench.client.pause(bench.name, run.run_id)
    bench.clock.advance(passed)
    await bench.memory.wake(bench.name, limit=10)
    assert await status(bench, run.run_id) == "paused"
    await bench.client.unpause(bench.name, run.run_id)
    assert await status(bench, run.run_id) == ("queued" if passed > 60 else "sleeping")
    assert (await bench.drive(run.run_id)).result == "slept"


async def test_a_delayed_run_is_held_back_and_delayed_again() -> None:
    bench = Bench(body)
    run = await bench.submit(delay=60)
    await bench.client.pause(bench.name, run.run_id)
    await bench.client.unpause(bench.name, run.run_id)
    run = await bench.client.get(bench.name, run.run_id)
    assert (run.status, run.wake_at is not None) == (RunStatus.QUEUED, True)
    assert await audit(bench.memory) == []


async def paused_while_running(bench: Bench, run_id: str, work: Any) -> None:
    """Have the run's worker told to pause while it executes."""
    claim = await bench.claim(run_id)
    attempt = bench.attempt(claim)
    from pyrula.actors.running import run_attempt

    async with anyio.create_task_group() as group:
        group.start_soon(run_attempt, attempt)
        await until(lambda: bool(work))
        await bench.client.pause(bench.name, run_id, "stop")
        attempt.receive(await bench.store.inbox(claim))
        work.append("go on")


async def test_a_run_under_way_stops_at_its_next_call_and_loses_nothing() -> None:
    work: list[str] = []

    async def busy(ctx: Context) -> str:
        async def step() -> int:
            work.append("begun")
            await until(lambda: len(work) > 1)
            return 1

        await ctx.step("a", step)
        await ctx.step("b", work.append, "b")
        return "done"

    bench = Bench(busy)
    run = await bench.submit()
    await paused_while_running(bench, run.run_id, work)
    assert await status(bench, run.run_id) == "paused"
    assert "b" not in work
    assert (await bench.types(run.run_id))[2:] == ["step.completed", "run.paused"]
    assert await audit(bench.memory) == []
    await bench.client.unpause(bench.name, run.run_id)
    run = await bench.drive(run.run_id)
    assert (run.result, work.count("begun"), work.count("b")) == ("done", 1, 1)


async def test_a_pause_that_is_taken_back_in_time_never_was() -> None:
    bench = Bench(body)
    run = await bench.submit()
    claim = await bench.claim(run.run_id)
    await bench.client.pause(bench.name, run.run_id)
    await bench.client.unpause(bench.name, run.run_id)
    attempt = bench.attempt(claim)
    attempt.receive(await bench.store.inbox(claim))
    from pyrula.actors.running import run_attempt

    assert (await run_attempt(attempt)).how == "parked"
    assert await status(bench, run.run_id) == "waiting"


async def test_a_paused_run_can_be_cancelled_and_terminated() -> None:
    for act, ends in (("cancel", "cancelled"), ("terminate", "terminated")):
        bench = Bench(body)
        run = await bench.go()
        await bench.client.pause(bench.name, run.run_id)
        await getattr(bench.client, act)(bench.name, run.run_id)
        assert (await bench.drive(run.run_id)).status == ends


async def test_what_cannot_be_paused() -> None:
    bench = Bench(body)
    run = await bench.go()
    await bench.client.terminate(bench.name, run.run_id)
    for act in (bench.client.pause, bench.client.unpause):
        with pytest.raises(WrongRunState):
            await act(bench.name, run.run_id)
        with pytest.raises(RunNotFound):
            await act(bench.name, "nobody")


# --- forks ------------------------------------------------------------------------------------


async def two(ctx: Context, n: int = 1) -> list[Any]:
    first = await ctx.step("first", CALLS.append, ("first", n))
    second = await ctx.step("second", lambda: n * 10)
    return [first, second, await ctx.wait_for_signal("go")]


CALLS: list[Any] = []


async def test_a_fork_goes_on_from_an_event() -> None:
    CALLS.clear()
    bench = Bench(two)
    run = await bench.go({"n": 1})
    fork = await bench.client.fork(bench.name, run.run_id, at=3, input={"n": 5}, signals=[("go", "x")])
    assert fork.run_id != run.run_id
    fork = await bench.drive(fork.run_id)
    assert (fork.status, fork.result, fork.input) == (RunStatus.COMPLETED, [None, 50, "x"], {"n": 5})
    assert CALLS == [("first", 1)]
    types = await bench.types(fork.run_id)
    assert types[:5] == ["run.submitted", "run.started", "step.completed", "run.resumed", "step.completed"]
    assert await audit(bench.memory) == []
    assert await status(bench, run.run_id) == "waiting"


async def test_a_whole_run_is_forked_without_its_end() -> None:
    bench = Bench(two)
    run = await bench.go()
    await bench.client.cancel(bench.name, run.run_id)
    run = await bench.drive(run.run_id)
    assert run.status is RunStatus.CANCELLED
    fork = await bench.client.fork(bench.name, run.run_id, signals=[("go", 1)])
    assert (await bench.drive(fork.run_id)).status is RunStatus.COMPLETED


async def test_a_repeat_with_the_same_id_forks_once() -> None:
    bench = Bench(two)
    run = await bench.go()
    for _ in range(2):
        fork = await bench.client.fork(bench.name, run.run_id, new_run_id="f1", signals=[("go", 1)])
        assert fork.run_id == "f1"
    assert (await bench.drive("f1")).result[2] == 1
    assert await bench.client.count(bench.name) == 2


async def test_what_cannot_be_forked() -> None:
    bench = Bench(two)
    queued = await bench.submit()
    with pytest.raises(InvalidInput, match="no journal yet"):
        await bench.client.fork(bench.name, queued.run_id)
    run = await bench.drive(queued.run_id)
    for at in (0, 99, True, "3"):
        with pytest.raises(InvalidInput, match="has events 1 to"):
            await bench.client.fork(bench.name, run.run_id, at=at)  # type: ignore[arg-type]
    with pytest.raises(RunNotFound):
        await bench.client.fork(bench.name, "nobody")
