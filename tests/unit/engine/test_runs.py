"""Runs as a whole: how they fail, are retried, time out, are ended from outside, and what bad bodies do."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from pyrula.actors.running import run_attempt
from pyrula.contracts.errors import (
    NonRetryable,
    RunAttemptEnded,
    RunFailed,
    RunTerminated,
    RunTimedOut,
    Shutdown,
    StepFailed,
    WrongRunState,
)
from pyrula.contracts.options import Retry
from pyrula.contracts.runs import RunStatus
from pyrula.testing.audit import audit
from pyrula.workflows.context import Context
from tests.unit.engine.crashing import CrashAt, Crashed
from tests.unit.engine.harness import START, Bench

pytestmark = pytest.mark.anyio

ONCE = Retry(max_attempts=1)


def on_asyncio() -> bool:
    return anyio.get_cancelled_exc_class() is asyncio.CancelledError


# --- retry ----------------------------------------------------------------------------------


async def test_a_retry_goes_on_from_what_is_recorded_and_makes_the_failure_anew() -> None:
    ran: list[str] = []
    broken = True

    async def body(ctx: Context) -> str:
        await ctx.step("first", ran.append, "first")

        def second() -> str:
            ran.append("second")
            if broken:
                raise ValueError("broken")
            return "mended"

        return await ctx.step("second", second, retry=ONCE)

    bench = Bench(body)
    run = await bench.go()
    assert run.status is RunStatus.FAILED
    with pytest.raises(RunFailed) as caught:
        await bench.client.result(bench.name, run.run_id)
    assert caught.value.code == "step_failed"
    broken = False
    assert (await bench.client.retry(bench.name, run.run_id)).status is RunStatus.QUEUED
    run = await bench.drive(run.run_id)
    assert (run.status, run.result, run.error) == (RunStatus.COMPLETED, "mended", None)
    assert ran == ["first", "second", "second"]
    assert await audit(bench.memory) == []


async def test_a_failure_that_was_caught_and_raised_after_other_calls_is_served_again() -> None:
    ran: list[str] = []

    def fail() -> None:
        ran.append("fail")
        raise ValueError("no")

    async def body(ctx: Context) -> None:
        try:
            await ctx.step("s", fail, retry=ONCE)
        except StepFailed:
            await ctx.step("tell", ran.append, "tell")
            raise

    bench = Bench(body)
    run = await bench.go()
    for _ in range(2):
        await bench.client.retry(bench.name, run.run_id)
        run = await bench.drive(run.run_id)
        assert run.status is RunStatus.FAILED
    assert ran == ["fail", "tell"]


async def test_only_a_failed_run_can_be_retried() -> None:
    async def body(ctx: Context) -> None:
        await ctx.wait_for_signal("go")

    bench = Bench(body)
    run = await bench.submit()
    for drive in (False, True):
        if drive:
            await bench.drive(run.run_id)
        with pytest.raises(WrongRunState):
            await bench.client.retry(bench.name, run.run_id)


async def test_a_policy_retries_the_run_as_a_whole() -> None:
    attempts: list[tuple[int, float]] = []

    async def body(ctx: Context) -> str:
        attempts.append((ctx.attempt, bench.clock.now - START))
        await ctx.step("s", lambda: 1)
        if len(attempts) < 3:
            raise OSError("not yet")
        return "done"

    bench = Bench(body, retry=Retry(max_attempts=5, initial=10.0, factor=3.0, jitter=0.0))
    run = await bench.go()
    assert run.result == "done"
    assert [n for n, _ in attempts] == [1, 2, 3]
    assert 10 <= attempts[1][1] < 11
    assert 40 <= attempts[2][1] < 42
    assert (await bench.types(run.run_id)).count("run.failed") == 0


async def test_a_policy_ends() -> None:
    attempts = 0

    async def body(ctx: Context) -> None:
        nonlocal attempts
        attempts += 1
        raise OSError(attempts)

    bench = Bench(body, retry=Retry(max_attempts=3, initial=1.0))
    run = await bench.go()
    assert run.status is RunStatus.FAILED
    assert attempts == 3
    await bench.client.retry(bench.name, run.run_id)
    await bench.drive(run.run_id)
    assert attempts >= 4


@pytest.mark.parametrize("error", [NonRetryable("no"), SystemExit(1), KeyError("x")])
async def test_what_a_policy_does_not_retry(error: BaseException) -> None:
    attempts = 0

    async def body(ctx: Context) -> None:
        nonlocal attempts
        attempts += 1
        raise error

    run = await Bench(body, retry=Retry(max_attempts=3, initial=1.0, give_up_on=(KeyError,))).go()
    assert run.status is RunStatus.FAILED
    assert attempts == 1


async def test_a_policy_makes_a_failed_step_anew() -> None:
    tries = 0

    def flaky() -> int:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError(tries)
        return tries

    async def body(ctx: Context) -> int:
        return await ctx.step("s", flaky, retry=ONCE)

    run = await Bench(body, retry=Retry(max_attempts=5, initial=1.0)).go()
    assert run.result == 3


async def test_a_policy_judges_a_failed_step_by_what_the_step_raised_in_it() -> None:
    """`retry_on` is about the run's own error: a failed step is a `StepFailed`."""

    def fail() -> None:
        raise OSError("no")

    async def body(ctx: Context) -> None:
        await ctx.step("s", fail, retry=ONCE)

    run = await Bench(body, retry=Retry(max_attempts=3, initial=1.0, retry_on=(StepFailed,))).go()
    assert run.attempt == 3


# --- timeouts -------------------------------------------------------------------------------


async def test_an_attempt_that_takes_too_long_has_timed_out() -> None:
    log: list[str] = []

    async def body(ctx: Context) -> None:
        try:
            await anyio.sleep(60)
        finally:
            log.append("ended")

    bench = Bench(body, timeout=0.05)
    with anyio.fail_after(5):
        run = await bench.go()
    assert run.status is RunStatus.FAILED
    assert log == ["ended"]
    with pytest.raises(RunTimedOut) as caught:
        await bench.client.result(bench.name, run.run_id)
    assert caught.value.code == "attempt_timed_out"


async def test_a_timeout_bounds_each_attempt_and_not_the_run() -> None:
    async def body(ctx: Context) -> str:
        for _ in range(4):
            await anyio.sleep(0.03)
            await ctx.sleep(1000)
        return "done"

    with anyio.fail_after(10):
        run = await Bench(body, timeout=5.0).go()
    assert run.result == "done"


async def test_a_body_that_keeps_its_timeout_to_itself() -> None:
    async def body(ctx: Context) -> str:
        try:
            await anyio.sleep(60)
        except anyio.get_cancelled_exc_class():
            return "never mind"
        return "done"

    with anyio.fail_after(5):
        run = await Bench(body, timeout=0.05).go()
    assert run.status.ended


async def test_a_timeout_can_be_retried_by_the_policy() -> None:
    attempts = 0

    async def body(ctx: Context) -> str:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            await anyio.sleep(60)
        return "done"

    with anyio.fail_after(5):
        run = await Bench(body, timeout=0.05, retry=Retry(max_attempts=2, initial=1.0)).go()
    assert run.result == "done"


async def test_a_call_still_running_at_the_timeout_is_cut_off_when_the_run_parks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ran: list[int] = []

    async def body(ctx: Context) -> str:
        async def slow() -> None:
            ran.append(ctx.attempt)
            if ctx.attempt == 1:
                await anyio.sleep(60)

        async with anyio.create_task_group() as group:
            group.start_soon(ctx.step, "slow", slow)
            await anyio.sleep(0.01)
            await ctx.sleep(100)
        return "done"

    bench = Bench(body, timeout=0.2)
    run = await bench.submit()
    with anyio.fail_after(5), caplog.at_level(logging.WARNING):
        assert (await bench.once(run.run_id)).how == "parked"
    assert "'slow'" in caplog.text
    run = await bench.drive(run.run_id)
    assert run.result == "done"
    assert ran == [1, 2]


# --- from outside ---------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["queued", "delayed", "sleeping", "waiting", "set aside"])
async def test_terminate_in_each_state(where: str) -> None:
    async def body(ctx: Context) -> None:
        await ctx.now()
        if where == "sleeping":
            await ctx.sleep(1000)
        await ctx.wait_for_signal("go")

    async def other(ctx: Context) -> None:
        await ctx.uuid()

    bench = Bench(body)
    run = await bench.submit(delay=1000.0 if where == "delayed" else None)
    if where not in ("queued", "delayed"):
        await bench.once(run.run_id)
    if where == "set aside":
        await bench.client.signal(bench.name, run.run_id, "go")
        bench.replace_body(other)
        assert (await bench.once(run.run_id)).how == "set aside"
    ended = await bench.client.terminate(bench.name, run.run_id, "enough")
    assert ended.status is RunStatus.TERMINATED
    assert (await bench.types(run.run_id))[-1] == "run.terminated"
    with pytest.raises(RunTerminated) as caught:
        await bench.client.result(bench.name, run.run_id)
    assert caught.value.detail["reason"] == "enough"
    with pytest.raises(WrongRunState):
        await bench.client.cancel(bench.name, run.run_id)
    assert await bench.memory.claim_run(bench.name, run.run_id, worker="w", lease_ms=1) is None
    assert await audit(bench.memory) == []


async def test_terminate_while_an_attempt_runs_refuses_what_it_writes() -> None:
    log: list[str] = []
    go_on = anyio.Event()

    async def body(ctx: Context) -> None:
        await ctx.step("first", log.append, "first")
        await go_on.wait()
        try:
            await ctx.step("second", log.append, "second")
        except Exception:
            log.append("kept it")
        log.append("went on")

    bench = Bench(body)
    run = await bench.submit()
    attempt = bench.attempt(await bench.claim(run.run_id))
    ended: list[str] = []

    async def work() -> None:
        ended.append((await run_attempt(attempt)).how)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            while "first" not in log:  # noqa: ASYNC110 - the body is under test
                await anyio.sleep(0.001)
            await bench.client.terminate(bench.name, run.run_id)
            go_on.set()
    assert ended == ["lost"]
    assert "kept it" not in log
    assert "went on" not in log
    assert (await bench.types(run.run_id))[-1] == "run.terminated"


async def test_a_lost_claim_ends_the_attempt_and_leaves_the_journal_alone() -> None:
    async def body(ctx: Context) -> str:
        await ctx.step("a", lambda: 1)
        await ctx.step("b", lambda: 2)
        return "done"

    bench = Bench(body)
    run = await bench.submit()
    attempt = bench.attempt(await bench.claim(run.run_id))
    await bench.lose()
    other = await bench.claim(run.run_id)
    assert (await run_attempt(attempt)).how == "lost"
    assert (await run_attempt(bench.attempt(other))).how == "completed"
    assert await audit(bench.memory) == []


async def test_a_stopped_attempt_gives_its_run_back_with_what_it_recorded() -> None:
    log: list[str] = []

    async def body(ctx: Context) -> str:
        await ctx.step("a", log.append, "a")
        await anyio.sleep(0 if len(log) > 1 else 60)
        await ctx.step("b", log.append, "b")
        return "done"

    bench = Bench(body)
    run = await bench.submit()
    attempt = bench.attempt(await bench.claim(run.run_id))
    ended: list[str] = []

    async def work() -> None:
        ended.append((await run_attempt(attempt)).how)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            while "step.completed" not in await bench.types(run.run_id):  # noqa: ASYNC110 - the body is under test
                await anyio.sleep(0.001)
            attempt.stop(Shutdown("the worker stops"))
    assert ended == ["requeued"]
    log.append("again")
    run = await bench.drive(run.run_id)
    assert run.result == "done"
    assert log == ["a", "again", "b"]


# --- bad bodies -----------------------------------------------------------------------------


def deep(n: int) -> int:
    return deep(n + 1) + 1


async def raises_system_exit(ctx: Context) -> None:
    sys.exit(3)


async def raises_base_group(ctx: Context) -> None:
    raise BaseExceptionGroup("several", [SystemExit(1), ValueError("x")])


async def raises_own_base(ctx: Context) -> None:
    raise type("Own", (BaseException,), {})("x")


async def recurses(ctx: Context) -> None:
    deep(0)


async def raises_attempt_ended(ctx: Context) -> None:
    raise GeneratorExit


async def returns_something_else(ctx: Context) -> Any:
    return {"a": {"b": [object()]}}


async def returns_a_coroutine(ctx: Context) -> Any:
    made = ctx.now()
    try:
        return made
    finally:
        made.close()


async def returns_itself(ctx: Context) -> Any:
    loop: list[Any] = []
    loop.append(loop)
    return loop


async def closes_what_it_is_given(ctx: Context) -> None:
    del ctx._attempt


@pytest.mark.parametrize(
    "body",
    [
        raises_system_exit,
        raises_base_group,
        raises_own_base,
        recurses,
        raises_attempt_ended,
        returns_something_else,
        returns_a_coroutine,
        returns_itself,
    ],
    ids=lambda body: body.__name__,
)
async def test_a_bad_body_fails_its_run_and_nothing_else(body: Callable[..., Any]) -> None:
    bench = Bench(body)
    with anyio.fail_after(5):
        run = await bench.go()
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert run.error["type"]
    assert await audit(bench.memory) == []


async def test_a_body_that_never_awaits() -> None:
    async def body(ctx: Context) -> int:
        return 5

    assert (await Bench(body).go()).result == 5


async def test_a_body_that_cancels_itself() -> None:
    if not on_asyncio():
        pytest.skip("trio lets nobody else make its Cancelled")

    async def body(ctx: Context) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    bench = Bench(body)
    with anyio.fail_after(5):
        run = await bench.go()
    assert run.status is RunStatus.FAILED


async def test_a_body_that_keeps_a_park_to_itself() -> None:
    """`except BaseException` around a wait: the run is parked all the same."""
    log: list[str] = []

    async def body(ctx: Context) -> str:
        try:
            await ctx.sleep(100)
        except BaseException as error:
            log.append(type(error).__name__)
            try:
                await ctx.step("s", log.append, "ran")
            except BaseException as again:
                log.append(type(again).__name__)
        return "done"

    bench = Bench(body)
    run = await bench.submit()
    assert (await bench.once(run.run_id)).how == "parked"
    assert log == ["Park", "RunAttemptEnded"]
    run = await bench.drive(run.run_id)
    assert run.result == "done"
    assert "ran" not in log


async def test_unknown_input_fails_the_run() -> None:
    async def body(ctx: Context, amount: int) -> int:
        return amount

    bench = Bench(body)
    run = await bench.client.submit(bench.name, {"amount": "many"}, run_id="x")
    run = await bench.drive(run.run_id)
    assert run.error is not None
    assert run.error["code"] == "invalid_input"
    assert "amount" in run.error["message"]


# --- what is left behind --------------------------------------------------------------------


async def test_a_call_after_the_attempt_is_over() -> None:
    if not on_asyncio():
        pytest.skip("trio leaves no task running")
    errors: list[BaseException] = []
    tasks: list[asyncio.Task[None]] = []
    go_on = asyncio.Event()

    async def body(ctx: Context) -> None:
        async def leaked() -> None:
            await go_on.wait()
            for call in (
                lambda: ctx.step("s", errors.append),
                ctx.now,
                lambda: ctx.sleep(1),
                lambda: ctx.wait_for_signal("x"),
                lambda: ctx.interrupt("x"),
                lambda: ctx.commit("k", 1),
                lambda: ctx.stream(1),
                ctx.checkpoint,
                lambda: ctx.gather(ctx.now()),
            ):
                try:
                    await call()
                except BaseException as error:
                    errors.append(error)

        tasks.append(asyncio.create_task(leaked()))

    bench = Bench(body)
    run = await bench.go()
    assert run.status is RunStatus.COMPLETED
    before = await bench.types(run.run_id)
    go_on.set()
    await tasks[0]
    assert [type(error) for error in errors] == [RunAttemptEnded] * 9
    assert not isinstance(errors[0], Exception)
    assert await bench.types(run.run_id) == before


async def test_a_context_kept_for_later() -> None:
    kept: list[Context] = []

    async def body(ctx: Context) -> None:
        kept.append(ctx)

    await Bench(body).go()
    with pytest.raises(RunAttemptEnded):
        await kept[0].step("s", lambda: 1)
    with pytest.raises(RunAttemptEnded):
        await kept[0].now()
    gc.collect()


async def test_two_runs_at_once_keep_their_calls_apart() -> None:
    async def body(ctx: Context, n: int) -> list[int]:
        async def slowly() -> int:
            await anyio.sleep(0.001)
            return n

        return [await ctx.step("s", slowly) for _ in range(3)]

    bench = Bench(body)
    runs = [await bench.submit({"n": n}) for n in range(5)]
    async with anyio.create_task_group() as group:
        for run in runs:
            group.start_soon(bench.once, run.run_id)
    for n, run in enumerate(runs):
        assert (await bench.client.get(bench.name, run.run_id)).result == [n] * 3


# --- values ---------------------------------------------------------------------------------


async def test_values_are_the_same_on_each_replay() -> None:
    seen: list[Any] = []

    async def body(ctx: Context) -> None:
        seen.append((await ctx.now(), await ctx.uuid(), await ctx.random(), await ctx.random()))
        await ctx.sleep(5)

    bench = Bench(body)
    await bench.go()
    assert seen[0] == seen[1]
    now, uuid, first, second = seen[0]
    assert now.tzinfo is UTC
    assert abs(now.timestamp() - START) < 5
    assert uuid.version == 4
    assert 0 <= first < 1
    assert first != second


async def test_checkpoints_are_handed_back() -> None:
    async def body(ctx: Context) -> list[Any]:
        nothing = await ctx.checkpoint()
        kept = await ctx.checkpoint({"at": (1, 2)})
        last = await ctx.checkpoint()
        await ctx.sleep(5)
        return [nothing, kept, last, await ctx.checkpoint()]

    run = await Bench(body).go()
    assert run.result == [None, {"at": [1, 2]}, {"at": [1, 2]}, {"at": [1, 2]}]


async def test_published_values_and_attributes_are_visible_at_once() -> None:
    async def body(ctx: Context) -> None:
        ctx.set_attributes(customer="acme", at=datetime(2024, 5, 1, tzinfo=UTC))
        await ctx.commit("progress", 0.5)
        await ctx.step("s", lambda: 1)
        seen.append((await bench.client.get(bench.name, "r1")).attributes)
        ctx.set_attributes(done=True)

    seen: list[Any] = []
    bench = Bench(body)
    run = await bench.go()
    assert seen[0]["customer"] == "acme"
    assert run.attributes == {"customer": "acme", "at": "2024-05-01T00:00:00.000000Z", "done": True}
    assert await bench.client.committed(bench.name, run.run_id) == {"progress": 0.5}


@pytest.mark.parametrize("key", ["", None, 5])
async def test_a_published_value_needs_a_name(key: Any) -> None:
    async def body(ctx: Context) -> None:
        await ctx.commit(key, 1)

    run = await Bench(body).go()
    assert run.error is not None
    assert run.error["code"] == "invalid_input"


async def output(bench: Bench, run_id: str) -> list[Any]:
    return [chunk async for chunk in bench.client.stream(bench.name, run_id)]


async def test_output_is_written_once_over_all_attempts() -> None:
    async def body(ctx: Context) -> None:
        for n in range(3):
            await ctx.stream({"chunk": n})
            await ctx.sleep(1)

    bench = Bench(body)
    run = await bench.go()
    assert await output(bench, run.run_id) == [{"chunk": n} for n in range(3)]


async def test_output_of_legs_is_written_once_whatever_their_order() -> None:
    async def body(ctx: Context) -> None:
        async def leg(n: int) -> None:
            # First attempt: the second leg is first. Later ones: the first leg is.
            await anyio.sleep(0.02 if (n == 0) == (ctx.attempt == 1) else 0)
            await ctx.stream(f"{n} begins")
            if ctx.attempt == 1 and n == 1:
                raise RuntimeError("the machine goes down")
            await ctx.step("s", lambda: 1)
            await ctx.stream(f"{n} ends")

        await ctx.gather(leg(0), leg(1))

    bench = Bench(body, retry=Retry(max_attempts=2, initial=1.0))
    run = await bench.go()
    assert run.status is RunStatus.COMPLETED, run.error
    assert sorted(await output(bench, run.run_id)) == ["0 begins", "0 ends", "1 begins", "1 ends"]


async def test_reading_the_output_of_a_run_that_has_ended_takes_no_time() -> None:
    async def body(ctx: Context) -> None:
        await ctx.stream(1)

    bench = Bench(body)
    run = await bench.go()
    began = anyio.current_time()
    assert await output(bench, run.run_id) == [1]
    assert anyio.current_time() - began < 0.5


async def test_the_log_is_silent_about_what_is_only_replayed(caplog: pytest.LogCaptureFixture) -> None:
    async def body(ctx: Context) -> None:
        ctx.log.info("before %s", "the step")
        await ctx.step("s", lambda: 1)
        ctx.log.info("after the step")
        await ctx.sleep(5)
        ctx.log.info("after the sleep")

    bench = Bench(body)
    with caplog.at_level(logging.INFO, logger="pyrula.workflow"):
        run = await bench.go()
    assert run.status is RunStatus.COMPLETED
    records = [r for r in caplog.records if r.name == "pyrula.workflow.bench"]
    assert [r.getMessage() for r in records] == ["before the step", "after the step", "after the sleep"]
    assert {r.run_id for r in records} == {run.run_id}  # type: ignore[attr-defined]


async def test_facts_of_the_run() -> None:
    async def body(ctx: Context) -> list[Any]:
        first = [ctx.run_id, ctx.name, ctx.attempt, ctx.owner, ctx.is_replaying]
        await ctx.sleep(5)
        return [*first, ctx.attempt, ctx.is_replaying]

    run = await Bench(body).go(owner="acme", run_id="mine")
    assert run.result == ["mine", "bench", 2, "acme", True, 2, False]


async def test_a_crash_before_the_first_record_costs_nothing() -> None:
    async def body(ctx: Context) -> int:
        return await ctx.step("s", lambda: 1)

    bench = Bench(body)
    bench.store = CrashAt(bench.memory, 0)
    run = await bench.submit()
    with pytest.raises(Crashed):
        await bench.once(run.run_id)
    bench.store = bench.memory
    await bench.lose()
    assert (await bench.drive(run.run_id)).result == 1
