"""Parallel legs, and what bodies do with the loop's own ways of running things side by side."""

from __future__ import annotations

import asyncio
import gc
import warnings
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
import trio

from pyrula.contracts.errors import StepFailed, SuspendInGatherLeg
from pyrula.contracts.options import Retry
from pyrula.contracts.runs import RunStatus
from pyrula.workflows.context import Context
from tests.unit.engine.harness import Bench

pytestmark = pytest.mark.anyio

ONCE = Retry(max_attempts=1)


async def after(seconds: float, value: Any) -> Any:
    await anyio.sleep(seconds)
    return value


async def boom() -> None:
    raise ValueError("boom")


async def test_results_come_in_argument_order() -> None:
    async def body(ctx: Context) -> list[int]:
        return await ctx.gather(*[ctx.step("s", after, (5 - n) / 200, n) for n in range(5)])

    assert (await Bench(body).go()).result == [0, 1, 2, 3, 4]


async def test_nothing_to_gather() -> None:
    async def body(ctx: Context) -> list[Any]:
        return [await ctx.gather(), await ctx.gather(max_concurrency=1)]

    assert (await Bench(body).go()).result == [[], []]


async def test_only_so_many_legs_at_once_in_argument_order() -> None:
    running = most = 0
    started: list[int] = []

    async def leg(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        started.append(n)
        await anyio.sleep(0.003)
        running -= 1
        return n

    async def body(ctx: Context) -> list[int]:
        return await ctx.gather(*[ctx.step(f"s{n}", leg, n) for n in range(12)], max_concurrency=3)

    run = await Bench(body).go()
    assert run.result == list(range(12))
    assert most == 3
    assert sorted(started) == list(range(12))
    assert all(abs(n - place) < 3 for place, n in enumerate(started))


async def test_a_leg_holds_its_place_across_all_its_steps() -> None:
    inside: set[int] = set()
    most = 0

    async def body(ctx: Context) -> None:
        async def leg(n: int) -> None:
            nonlocal most
            for step in range(3):
                inside.add(n)
                most = max(most, len(inside))
                await ctx.step(f"s{step}", after, 0.001, n)
            inside.discard(n)

        await ctx.gather(*[leg(n) for n in range(6)], max_concurrency=2)

    assert (await Bench(body).go()).status is RunStatus.COMPLETED
    assert most == 2


@pytest.mark.parametrize("limit", [0, -1, 1.5, "3", True])
async def test_the_bound_is_a_whole_number_from_one(limit: Any) -> None:
    async def body(ctx: Context) -> None:
        await ctx.gather(ctx.step("s", boom), max_concurrency=limit)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = await Bench(body).go()
        gc.collect()
    assert run.error is not None
    assert run.error["code"] == "invalid_input"


async def test_the_first_error_cancels_the_rest_and_what_is_queued_never_starts() -> None:
    log: list[str] = []

    async def slow() -> None:
        log.append("slow")
        try:
            await anyio.sleep(30)
        finally:
            log.append("slow ends")

    async def body(ctx: Context) -> None:
        legs = [ctx.step("slow", slow), ctx.step("boom", boom, retry=ONCE)]
        legs += [ctx.step(f"queued{n}", log.append, "queued") for n in range(5)]
        await ctx.gather(*legs, max_concurrency=2)

    with warnings.catch_warnings(), anyio.fail_after(5):
        warnings.simplefilter("error")
        run = await Bench(body).go()
        gc.collect()
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert run.error["detail"]["step_id"] == "boom"
    assert log == ["slow", "slow ends"]


async def test_errors_as_results() -> None:
    async def body(ctx: Context) -> list[str]:
        results = await ctx.gather(
            ctx.step("a", after, 0.01, "a"), ctx.step("b", boom, retry=ONCE), boom(), return_exceptions=True
        )
        await ctx.sleep(5)
        return [r if isinstance(r, str) else type(r).__name__ for r in results]

    assert (await Bench(body).go()).result == ["a", "StepFailed", "ValueError"]


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("what", ["sleep", "sleep_until", "wait_for_signal", "interrupt"])
async def test_a_leg_cannot_wait(kept: bool, what: str) -> None:
    async def body(ctx: Context) -> str:

        argument = {"sleep": 5, "sleep_until": datetime(2100, 1, 1, tzinfo=UTC)}.get(what, "x")
        try:
            await ctx.gather(getattr(ctx, what)(argument), ctx.step("s", after, 0, 1), return_exceptions=kept)
        except SuspendInGatherLeg as error:
            return str(error)
        return "nothing"

    run = await Bench(body).go()
    assert what in run.result


async def test_a_step_inside_a_leg_inside_a_leg_cannot_wait_either() -> None:
    async def body(ctx: Context) -> None:
        async def inner() -> None:
            await ctx.gather(ctx.sleep(5), return_exceptions=True)

        await ctx.gather(inner(), return_exceptions=True)

    run = await Bench(body).go()
    assert run.error is not None
    assert run.error["code"] == "suspend_in_gather_leg"


async def test_a_wait_is_fine_again_after_the_gather() -> None:
    async def body(ctx: Context) -> Any:
        with pytest.raises(StepFailed):
            await ctx.gather(ctx.step("s", boom, retry=ONCE))
        await ctx.sleep(5)
        return "done"

    assert (await Bench(body).go()).result == "done"


async def test_only_unfinished_legs_run_again() -> None:
    ran: list[str] = []
    others_recorded = anyio.Event()

    def note(what: str) -> str:
        ran.append(what)
        return what[0]

    async def body(ctx: Context) -> list[Any]:
        async def leg(name: str) -> str:
            first = await ctx.step("first", note, f"{name} first")
            if name == "b" and ctx.attempt == 1:
                await others_recorded.wait()
                raise RuntimeError("the machine goes down")
            second = await ctx.step("second", note, f"{name} second")
            if len(await bench.events("r1")) == 7:  # the two beginnings, and five steps of three legs
                others_recorded.set()
            return first + second

        return await ctx.gather(leg("a"), leg("b"), leg("c"))

    bench = Bench(body, retry=Retry(max_attempts=2, initial=1.0))
    run = await bench.go()
    assert run.result == ["aa", "bb", "cc"]
    assert len(ran) == len(set(ran))


async def test_a_leg_may_be_any_awaitable() -> None:
    class Answer:
        def __await__(self) -> Any:
            return after(0, 42).__await__()

    async def body(ctx: Context) -> list[Any]:
        return await ctx.gather(Answer(), after(0, 1), ctx.now(), ctx.gather(after(0, 2), after(0, 3)))

    result = (await Bench(body).go()).result
    assert result[:2] == [42, 1]
    assert result[3] == [2, 3]


async def test_a_retry_after_a_gather_failed_makes_the_failure_again_and_nothing_else() -> None:
    ran: list[str] = []

    async def body(ctx: Context) -> list[Any]:
        def flaky() -> str:
            ran.append("flaky")
            if ran.count("flaky") == 1:
                raise ValueError("once")
            return "mended"

        async def inner() -> list[Any]:
            return await ctx.gather(ctx.step("flaky", flaky, retry=ONCE))

        async def other() -> str:
            ran.append("other")
            return "other"

        return await ctx.gather(inner(), ctx.step("other", other))

    bench = Bench(body)
    run = await bench.go()
    assert run.status is RunStatus.FAILED
    await bench.client.retry(bench.name, run.run_id)
    run = await bench.drive(run.run_id)
    assert run.result == [["mended"], "other"], run.error
    assert ran.count("flaky") == 2
    assert ran.count("other") == 1 or "g1.1/other" not in {
        e.key for e in await bench.events(run.run_id) if e.attempt == 1
    }


async def test_two_legs_fail_and_one_retry_mends_both() -> None:
    broken = True

    async def body(ctx: Context) -> list[Any]:
        async def flaky(n: int) -> int:
            if broken:
                raise ValueError(n)
            return n

        return await ctx.gather(
            *[ctx.step("s", flaky, n, retry=ONCE) for n in range(4)],
        )

    bench = Bench(body)
    run = await bench.go()
    assert run.status is RunStatus.FAILED
    broken = False
    await bench.client.retry(bench.name, run.run_id)
    run = await bench.drive(run.run_id)
    assert run.result == [0, 1, 2, 3], run.error


# --- the loop's own ways ------------------------------------------------------------------


async def test_a_task_group_in_a_body() -> None:
    ran: list[str] = []

    def note(name: str) -> str:
        ran.append(name)
        return name

    async def body(ctx: Context) -> list[Any]:
        found: dict[str, Any] = {}

        async def one(name: str) -> None:
            found[name] = await ctx.step(name, note, name)

        async with anyio.create_task_group() as group:
            for name in "abc":
                group.start_soon(one, name)
        await ctx.sleep(5)
        return sorted(found)

    assert (await Bench(body).go()).result == ["a", "b", "c"]
    assert sorted(ran) == ["a", "b", "c"]


async def test_a_failure_in_a_task_group_reaches_the_run_as_itself() -> None:
    async def body(ctx: Context) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(after, 10, 1)

            async def failing() -> None:
                await ctx.step("boom", boom, retry=ONCE)

            group.start_soon(failing)

    with anyio.fail_after(5):
        run = await Bench(body).go()
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert run.error["code"] == "step_failed"


async def test_a_failure_that_a_task_group_died_of_replays_with_its_siblings() -> None:
    """What siblings recorded before is asked for again, although the failure would cut them off at once."""

    async def body(ctx: Context) -> str:
        async def sibling() -> None:
            for n in range(3):
                await anyio.lowlevel.checkpoint()
                await ctx.step(f"ok{n}", after, 0, n)
            await anyio.sleep(30)

        async def failing() -> None:
            await ctx.step("slow", after, 0.05, 1)
            await ctx.step("boom", boom, retry=ONCE)

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(failing)
                group.start_soon(sibling)
        except* StepFailed:
            pass
        await ctx.sleep(5)
        return "went on"

    with anyio.fail_after(10):
        run = await Bench(body).go()
    assert run.result == "went on", run.error


async def test_gather_of_asyncio_and_a_nursery_of_trio() -> None:
    async def body(ctx: Context) -> list[Any]:
        found: list[Any] = []
        if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
            found += await asyncio.gather(*[ctx.step(f"s{n}", after, 0.001 * (3 - n), n) for n in range(3)])
            async with asyncio.TaskGroup() as tasks:
                made = [tasks.create_task(ctx.step(f"t{n}", after, 0, n)) for n in range(3)]
            found += [task.result() for task in made]
        else:

            async def one(name: str, n: int) -> None:
                found.append(await ctx.step(name, after, 0.001, n))

            for prefix in "st":
                async with trio.open_nursery() as nursery:
                    for n in range(3):
                        nursery.start_soon(one, f"{prefix}{n}", n)
        await ctx.sleep(5)
        return sorted(found)

    run = await Bench(body).go()
    assert run.result == [0, 0, 1, 1, 2, 2], run.error


async def test_a_park_inside_a_task_group_parks_the_run() -> None:
    async def body(ctx: Context) -> str:
        async with anyio.create_task_group() as group:
            group.start_soon(ctx.sleep, 5)
            await ctx.step("s", after, 0, 1)
        return "done"

    bench = Bench(body)
    run = await bench.submit()
    assert (await bench.once(run.run_id)).how == "parked"
    assert (await bench.drive(run.run_id)).result == "done"


async def test_the_first_of_two_steps() -> None:
    """Whichever was recorded first is first on the replay, too."""
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        pytest.skip("asyncio's own")

    async def body(ctx: Context) -> list[Any]:
        slow = asyncio.create_task(ctx.step("slow", after, 0.05, "slow"))
        fast = asyncio.create_task(ctx.step("fast", after, 0.0, "fast"))
        done, _ = await asyncio.wait([slow, fast], return_when=asyncio.FIRST_COMPLETED)
        first = sorted(task.result() for task in done)
        await ctx.step("between", after, 0, first)
        await slow
        await ctx.sleep(5)
        return first

    assert (await Bench(body).go()).result == ["fast"]


async def test_steps_of_a_task_left_running_do_not_set_the_run_aside() -> None:
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        pytest.skip("trio leaves no task running")

    async def body(ctx: Context) -> str:
        async def beside() -> None:
            for n in range(3):
                await ctx.step(f"beside{n}", after, 0, n)

        task = asyncio.create_task(beside())
        await ctx.step("s", after, 0.05, 1)
        if ctx.attempt == 1:
            raise RuntimeError("the machine goes down")
        del task
        return "done"

    run = await Bench(body, retry=Retry(max_attempts=2, initial=1.0)).go()
    assert run.result == "done", run.error
