"""Blocking code in threads of a run: their scopes, their calls on the run, and what ends them."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from pyrula.actors import binding
from pyrula.actors.attempt import Settings
from pyrula.actors.binding import bound_run
from pyrula.actors.running import Ended, run_attempt
from pyrula.contracts.errors import (
    CallInsideStep,
    ForeignContext,
    InvalidInput,
    LoopUnresponsive,
    RunAttemptEnded,
    StepFailed,
    SuspendInGatherLeg,
)
from pyrula.contracts.options import Retry
from pyrula.contracts.runs import RunStatus
from pyrula.testing.audit import audit
from pyrula.workflows.context import Context
from tests.unit.engine.crashing import CrashAt, all_crashes
from tests.unit.engine.harness import Bench, outcomes, until

pytestmark = pytest.mark.anyio

ONCE = Retry(max_attempts=1)


def on_asyncio() -> bool:
    return anyio.get_cancelled_exc_class() is asyncio.CancelledError


def double(x: int) -> int:
    return 2 * x


async def keys(bench: Bench, run_id: str = "r1") -> list[str]:
    return sorted(outcomes(await bench.events(run_id)))


# --- what they do ---------------------------------------------------------------------------


async def test_a_thread_calls_the_run_under_a_scope_of_its_own() -> None:
    threads: list[int] = []

    def work(ctx: Context, x: int, *, more: int) -> int:
        threads.append(threading.get_ident())
        assert ctx.run_id == "r1"
        return ctx.from_thread(ctx.step, "double", double, x) + more

    async def body(ctx: Context) -> list[int]:
        first = await ctx.to_thread(work, ctx, 1, more=5)
        return [first, await ctx.to_thread(work, ctx, 2, more=0), await ctx.step("double", double, 3)]

    bench = Bench(body)
    assert (await bench.go()).result == [7, 4, 6]
    assert await keys(bench) == ["double", "thread:1/double", "thread:2/double"]
    assert threading.get_ident() not in threads


async def test_a_map_gives_results_in_item_order_under_scopes_of_their_own() -> None:
    def work(ctx: Context, x: int) -> int:
        time.sleep((9 - x) / 200)
        return ctx.from_thread(ctx.step, "double", double, x)

    async def body(ctx: Context) -> list[list[int]]:
        def one(x: int) -> int:
            return work(ctx, x)

        first = await ctx.map_threads(one, range(3))
        return [first, *await ctx.gather(ctx.map_threads(one, [7])), await ctx.map_threads(one, [])]

    bench = Bench(body)
    assert (await bench.go()).result == [[0, 2, 4], [14], []]
    assert await keys(bench) == ["g1.0/map:1:0/double", *(f"map:1:{n}/double" for n in range(3))]


async def test_a_map_has_so_many_threads_at_a_time() -> None:
    lock, running, most = threading.Lock(), 0, 0

    def work(_: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        with lock:
            running -= 1

    async def body(ctx: Context) -> None:
        await ctx.map_threads(work, range(12), max_workers=3)

    assert (await Bench(body).go()).status is RunStatus.COMPLETED
    assert most == 3


async def test_a_failed_item_keeps_queued_ones_from_starting_and_the_first_failed_is_raised() -> None:
    started: list[int] = []
    failed = threading.Event()

    def work(x: int) -> None:
        started.append(x)
        if x == 0:
            failed.wait(5)
            raise KeyError("slow")
        if x == 1:
            failed.set()
            raise ValueError("fast")

    async def body(ctx: Context) -> str:
        try:
            await ctx.map_threads(work, range(6), max_workers=2)
        except Exception as error:
            return repr(error)
        return "no error"

    assert (await Bench(body).go()).result == "KeyError('slow')"
    assert 5 not in started


async def test_threads_that_wait_for_the_run_leave_the_pool_to_the_steps_they_call() -> None:
    """Without that, as many threads as the pool has, each with a plain step, would wait for ever."""

    async def body(ctx: Context) -> list[int]:
        return await ctx.map_threads(lambda x: ctx.from_thread(ctx.step, "s", double, x), range(6), max_workers=None)

    limiter = anyio.CapacityLimiter(2)
    bench = Bench(body, settings=Settings(threads=limiter))
    with anyio.fail_after(10):
        assert (await bench.go()).result == [0, 2, 4, 6, 8, 10]
    assert limiter.total_tokens == 2


async def test_a_function_called_from_a_thread_may_make_several_calls() -> None:
    async def several(ctx: Context) -> int:
        a, b = await ctx.gather(ctx.step("a", double, 1), ctx.step("b", double, 2))
        return a + b

    async def body(ctx: Context) -> int:
        return await ctx.to_thread(lambda: ctx.from_thread(several, ctx))

    bench = Bench(body)
    assert (await bench.go()).result == 6
    assert await keys(bench) == ["thread:1/g1.0/a", "thread:1/g1.1/b"]


async def test_an_error_of_a_call_is_raised_in_the_thread_and_one_of_the_thread_in_the_body() -> None:
    def boom() -> None:
        raise ValueError("boom")

    def work(ctx: Context) -> None:
        with pytest.raises(StepFailed, match="boom"):
            ctx.from_thread(ctx.step, "s", boom, retry=ONCE)
        raise LookupError("of the thread")

    async def body(ctx: Context) -> str:
        with pytest.raises(LookupError) as caught:
            await ctx.to_thread(work, ctx)
        return str(caught.value)

    assert (await Bench(body).go()).result == "of the thread"


async def test_inside_a_step_a_call_is_a_plain_thread_and_takes_no_number() -> None:
    refused: list[str] = []

    async def step(ctx: Context) -> list[int]:
        def thread() -> int:
            with pytest.raises(CallInsideStep) as caught:
                ctx.from_thread(ctx.step, "no", double, 1)
            refused.append(str(caught.value))
            return 1

        return [await ctx.to_thread(thread), *await ctx.map_threads(double, [1])]

    async def body(ctx: Context) -> list[Any]:
        inside = await ctx.step("s", step, ctx)
        return [inside, await ctx.to_thread(lambda: ctx.from_thread(ctx.step, "mine", double, 4))]

    bench = Bench(body)
    assert (await bench.go()).result == [[1, 2], 8]
    assert await keys(bench) == ["s", "thread:1/mine"]
    assert len(refused) == 1


async def test_a_plain_step_streams_from_its_thread() -> None:
    async def body(ctx: Context) -> int:
        def step() -> int:
            ctx.from_thread(ctx.stream, "half way")
            return 1

        return await ctx.step("s", step)

    bench = Bench(body)
    assert (await bench.go()).result == 1
    assert bench.memory._read(bench.name, "r1", 0, output=True) == [(1, b'"half way"')]


# --- what is refused ------------------------------------------------------------------------


async def test_what_is_not_a_bound_or_not_a_plain_function_is_refused() -> None:
    async def late() -> None: ...

    async def body(ctx: Context) -> int:
        wrong: list[Any] = [0, -1, True, 2.0, "8"]
        for bound in wrong:
            with pytest.raises(InvalidInput, match="max_workers"):
                await ctx.map_threads(double, [1], max_workers=bound)
        for call in (lambda: ctx.to_thread(late), lambda: ctx.map_threads(late, [])):
            with pytest.raises(InvalidInput, match="async: await it"):
                await call()
        return 1

    assert (await Bench(body).go()).result == 1


async def test_a_thread_cannot_wait() -> None:
    async def body(ctx: Context) -> list[str]:
        waits: list[Callable[[], Any]] = [
            lambda: ctx.from_thread(ctx.sleep, 1),
            lambda: ctx.from_thread(ctx.wait_for_signal, "s"),
            lambda: ctx.from_thread(ctx.interrupt, "?"),
        ]

        def work(wait: Callable[[], Any]) -> str:
            with pytest.raises(SuspendInGatherLeg, match="inside a thread") as caught:
                wait()
            return type(caught.value).__name__

        return await ctx.map_threads(work, waits)

    assert (await Bench(body).go()).result == ["SuspendInGatherLeg"] * 3


async def test_a_call_without_the_context_or_in_the_wrong_thread_is_refused() -> None:
    async def body(ctx: Context) -> list[str]:
        found: list[str] = []

        def note(call: Callable[[], Any]) -> None:
            with pytest.raises(ForeignContext) as caught:
                call()
            found.append(str(caught.value))

        def work() -> None:
            bare = threading.Thread(target=note, args=(lambda: ctx.from_thread(ctx.uuid),))
            bare.start()
            bare.join()
            # A thread that drives a loop of its own would record in the wrong one.
            note(lambda: asyncio.run(ctx.step("s", double, 1)))

        await ctx.to_thread(work)
        note(lambda: ctx.from_thread(ctx.uuid))
        return found

    bench = Bench(body)
    bare, own_loop, home = (await bench.go()).result
    assert "ctx.to_thread or ctx.map_threads" in bare
    assert "ctx.from_thread" in own_loop
    assert "await the call instead" in home
    assert await keys(bench) == []


# --- replay ---------------------------------------------------------------------------------


def key_of(place: str) -> str:
    """The key of the step that runs at a place of the body below."""
    item, _, number = place.partition(".")
    return ("thread:1/s" if item == "9" else f"map:1:{item}/s") + ("" if number == "0" else "#2")


@pytest.mark.parametrize("after", [False, True])
async def test_whatever_write_the_worker_dies_at_each_recorded_step_runs_once(after: bool) -> None:
    ran: list[str] = []

    async def body(ctx: Context) -> list[Any]:
        def step(place: str) -> str:
            ran.append(place)
            return place

        def work(x: int) -> list[str]:
            return [ctx.from_thread(ctx.step, "s", step, f"{x}.{n}") for n in range(2)]

        mapped = await ctx.map_threads(work, range(3), max_workers=2)
        alone = await ctx.to_thread(work, 9)
        await ctx.sleep(60)
        return [mapped, alone]

    at = 0
    while True:
        ran.clear()
        bench = Bench(body)
        worker = CrashAt(bench.memory, at, after=after)
        bench.store = worker
        run = await bench.submit()
        try:
            await bench.once(run.run_id)
        except BaseException as error:
            if not worker.dead or not all_crashes(error):
                raise
        if not worker.dead:
            break
        written = set(outcomes(await bench.events("r1")))
        bench.store = bench.memory
        before = len(ran)
        await bench.lose()
        run = await bench.drive("r1")
        assert run.result == [[[f"{x}.{n}" for n in range(2)] for x in range(3)], ["9.0", "9.1"]]
        assert [place for place in ran[before:] if key_of(place) in written] == []
        at += 1
    assert at > 5


async def test_a_replay_serves_threads_from_the_journal() -> None:
    ran: list[int] = []

    async def body(ctx: Context) -> list[int]:
        def step(x: int) -> int:
            ran.append(x)
            return x

        found = await ctx.map_threads(lambda x: ctx.from_thread(ctx.step, "s", step, x), range(4))
        await ctx.sleep(60)
        return found

    bench = Bench(body)
    assert (await bench.go()).result == [0, 1, 2, 3]
    assert sorted(ran) == [0, 1, 2, 3]
    assert await audit(bench.memory) == []


# --- ends -----------------------------------------------------------------------------------


class Thread:
    """What a test's thread does, step by step: it stands still until it is let go. How it ended the first time."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.let_go = threading.Event()
        self.ended: BaseException | str | None = None

    def run(self, call: Callable[[], Any]) -> None:
        self.began.set()
        try:
            assert self.let_go.wait(5)
            call()
            self.ended = self.ended or "went on"
        except BaseException as error:
            self.ended = self.ended or error
            raise


async def cancelled_while(bench: Bench, ready: Callable[[], object]) -> Ended:
    run = await bench.submit()
    attempt = bench.attempt(await bench.claim(run.run_id))
    ended: list[Ended] = []

    async def work() -> None:
        ended.append(await run_attempt(attempt))

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await until(ready)
        await bench.client.cancel(bench.name, run.run_id)
        attempt.receive(await bench.memory.inbox(attempt.claim))
    return ended[0]


async def test_a_cancel_request_reaches_a_body_that_waits_for_a_thread_and_then_the_thread() -> None:
    thread, seen = Thread(), []

    async def body(ctx: Context) -> None:
        try:
            await ctx.to_thread(thread.run, lambda: ctx.from_thread(ctx.step, "late", double, 1))
        except anyio.get_cancelled_exc_class():
            seen.append("cancelled")
            # What the thread asks for from now on is refused, what the clean-up asks for is not.
            thread.let_go.set()
            await until(lambda: thread.ended)
            await ctx.to_thread(lambda: ctx.from_thread(ctx.step, "clean-up", double, 1))
            raise

    bench = Bench(body)
    ended = await cancelled_while(bench, thread.began.is_set)
    assert (ended.how, seen) == ("cancelled", ["cancelled"])
    assert isinstance(thread.ended, RunAttemptEnded)
    assert await keys(bench) == ["thread:2/clean-up"]


async def test_a_cancel_request_cuts_off_the_call_of_a_thread() -> None:
    seen: list[Any] = []
    stepping = threading.Event()

    async def forever() -> None:
        stepping.set()
        await anyio.sleep_forever()

    async def body(ctx: Context) -> None:
        def work() -> None:
            try:
                ctx.from_thread(ctx.step, "s", forever)
            except BaseException as error:
                seen.append(type(error))
                raise

        await ctx.to_thread(work)

    bench = Bench(body)
    assert (await cancelled_while(bench, stepping.is_set)).how == "cancelled"
    await until(lambda: seen)
    assert seen == [RunAttemptEnded]
    assert await keys(bench) == []


async def test_a_cancel_request_is_met_again_where_a_thread_met_it() -> None:
    """A worker dies in the clean-up: on the replay the thread's next live call meets the request."""
    stepping = threading.Event()
    cleaned: list[str] = []

    async def second(first: bool) -> None:
        if first:
            stepping.set()
            await anyio.sleep_forever()

    async def body(ctx: Context) -> None:
        def work() -> None:
            ctx.from_thread(ctx.step, "one", double, 1)
            ctx.from_thread(ctx.step, "two", second, ctx.attempt == 1)

        try:
            await ctx.to_thread(work)
        except anyio.get_cancelled_exc_class():
            cleaned.append(f"attempt {ctx.attempt}")
            await ctx.step("clean-up", double, 1)
            raise

    bench = Bench(body)
    counting = CrashAt(bench.memory, 2)  # the outcome of step one, the request, the end of the clean-up
    bench.store = counting
    try:
        await cancelled_while(bench, stepping.is_set)
    except BaseException as error:
        if not all_crashes(error):
            raise
    assert counting.dead
    bench.store = bench.memory
    await bench.lose()
    run = await bench.drive("r1")
    assert run.status is RunStatus.CANCELLED, run.error
    assert cleaned[-1] == "attempt 2"
    assert "thread:1/two" not in await keys(bench)


async def test_a_thread_whose_caller_was_cancelled_goes_on_and_records() -> None:
    thread = Thread()

    async def fail() -> None:
        await until(thread.began.is_set)
        raise ValueError("a sibling")

    async def body(ctx: Context) -> str:
        call = ctx.to_thread(thread.run, lambda: ctx.from_thread(ctx.step, "late", double, 1))
        with pytest.raises(StepFailed):
            await ctx.gather(call, ctx.step("fails", fail, retry=ONCE))
        thread.let_go.set()
        await until(lambda: thread.ended)
        await ctx.sleep(1)
        return "done"

    bench = Bench(body)
    assert (await bench.go()).result == "done"
    assert thread.ended == "went on"
    assert await keys(bench) == ["@wait", "g1.0/thread:1/late", "g1.1/fails"]


async def test_a_thread_that_outlives_its_attempt_is_told_at_its_next_call() -> None:
    thread = Thread()

    async def body(ctx: Context) -> str:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(ctx.to_thread, thread.run, lambda: ctx.from_thread(ctx.step, "late", double, 1))
                await until(thread.began.is_set)
                scope.cancel()
        return "done"

    bench = Bench(body)
    assert (await bench.go()).result == "done"
    thread.let_go.set()
    await until(lambda: thread.ended)
    assert isinstance(thread.ended, RunAttemptEnded)
    assert not isinstance(thread.ended, Exception)
    assert await keys(bench) == []


async def test_a_run_that_parks_does_not_wait_for_the_call_of_a_thread() -> None:
    ran: list[str] = []
    stepping = threading.Event()

    async def step(attempt: int) -> str:
        ran.append("began")
        stepping.set()
        if attempt == 1:
            await anyio.sleep_forever()
        ran.append("ended")
        return "stepped"

    async def body(ctx: Context) -> list[Any]:
        found: list[Any] = []

        async def thread() -> None:
            call = ctx.from_thread
            found.append(await ctx.to_thread(lambda: call(ctx.step, "s", step, ctx.attempt)))

        async with anyio.create_task_group() as group:
            group.start_soon(thread)
            if ctx.attempt == 1:
                await until(stepping.is_set)
            await ctx.sleep(60)
        return found

    bench = Bench(body)
    with anyio.fail_after(5):
        run = await bench.go()
    assert run.result == ["stepped"], run.error
    assert ran == ["began", "began", "ended"]
    assert await audit(bench.memory) == []


async def test_a_thread_that_waits_for_a_blocked_loop_is_told() -> None:
    ended: list[BaseException] = []
    began, blocked = threading.Event(), threading.Event()

    async def body(ctx: Context) -> str:
        def work() -> None:
            began.set()
            assert blocked.wait(5)
            try:
                ctx.from_thread(ctx.step, "s", double, 1)
            except BaseException as error:
                ended.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(ctx.to_thread, work)
            await until(began.is_set)
            blocked.set()
            while not ended:
                time.sleep(0.02)  # noqa: ASYNC251 - what a body must not do
        return "done"

    bench = Bench(body, settings=Settings(loop_limit=0.2))
    run = await bench.go()
    assert run.result == "done", run.error
    assert [type(error) for error in ended] == [LoopUnresponsive]
    assert "0.2 s" in str(ended[0])


async def test_a_long_call_of_a_thread_is_no_blocked_loop() -> None:
    async def slow() -> int:
        await anyio.sleep(0.5)
        return 1

    async def body(ctx: Context) -> int:
        return await ctx.to_thread(lambda: ctx.from_thread(ctx.step, "s", slow))

    assert (await Bench(body, settings=Settings(loop_limit=0.15)).go()).result == 1


async def test_the_bodys_timeout_ends_a_wait_for_a_thread() -> None:
    thread = Thread()

    async def body(ctx: Context) -> None:
        await ctx.to_thread(thread.run, lambda: None)

    bench = Bench(body, timeout=0.1)
    run = await bench.go()
    thread.let_go.set()
    assert run.error is not None
    assert run.error["code"] == "attempt_timed_out"


# --- calls without a run --------------------------------------------------------------------


async def test_a_call_that_finds_no_run_beside_runs_is_warned_of_once_for_each_site(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "_warned", set())

    def model_call() -> str | None:
        found = bound_run("OpenAI().create")
        return None if found is None else found.claim.run_id

    async def body(ctx: Context) -> list[str | None]:
        def bare() -> None:
            for _ in range(3):
                model_call()

        def thread() -> str | None:
            plain = threading.Thread(target=bare)
            plain.start()
            plain.join()
            return model_call()

        return [model_call(), await ctx.to_thread(thread)]

    with caplog.at_level(logging.WARNING, "pyrula.run"):
        model_call()  # no run anywhere: an ordinary call
        assert caplog.records == []
        assert (await Bench(body).go()).result == ["r1", "r1"]
    [record] = caplog.records
    assert "OpenAI().create" in record.getMessage()
    assert "test_threads.py" in record.getMessage()
    assert "ctx.to_thread or ctx.map_threads" in record.getMessage()
