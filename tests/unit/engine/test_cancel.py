"""Cancelling a run in every state: what its body sees, what its clean-up may do, how that replays."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from pyrula.actors.running import Ended, run_attempt
from pyrula.contracts.errors import RunCancelled, StepFailed, WrongRunState
from pyrula.contracts.events import entry
from pyrula.contracts.options import Retry
from pyrula.contracts.runs import Run, RunStatus
from pyrula.testing.audit import audit
from pyrula.workflows.context import Context
from tests.unit.engine.crashing import CrashAt, Crashed
from tests.unit.engine.harness import Bench, until

pytestmark = pytest.mark.anyio

Probe = Callable[[], Awaitable[bool]]


async def cancelled_while(bench: Bench, run: Run, ready: Callable[[], bool], reason: str | None = None) -> Ended:
    """Run one attempt, and cancel the run in the middle of it; the news arrives as a worker brings it."""
    attempt = bench.attempt(await bench.claim(run.run_id))
    ended: list[Ended] = []

    async def work() -> None:
        ended.append(await run_attempt(attempt))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await until(ready)
            await bench.client.cancel(bench.name, run.run_id, reason)
            attempt.receive(await bench.memory.inbox(attempt.claim))
    return ended[0]


async def check_cancelled(bench: Bench, run_id: str, reason: str | None = None) -> Run:
    run = await bench.client.get(bench.name, run_id)
    assert run.status is RunStatus.CANCELLED, run.error
    assert (await bench.types(run_id))[-1] == "run.cancelled"
    assert (await bench.types(run_id)).count("run.cancelled") == 1
    with pytest.raises(RunCancelled) as caught:
        await bench.client.result(bench.name, run_id)
    assert caught.value.detail.get("reason") == reason
    assert await audit(bench.memory) == []
    return run


# --- where the run is -----------------------------------------------------------------------


async def test_while_queued_the_body_never_starts() -> None:
    started: list[int] = []

    async def body(ctx: Context) -> None:
        started.append(1)

    bench = Bench(body)
    run = await bench.submit()
    await bench.client.cancel(bench.name, run.run_id, "not needed")
    await bench.drive(run.run_id)
    await check_cancelled(bench, run.run_id, "not needed")
    assert started == []


async def test_while_it_waits_for_its_time_to_start() -> None:
    started: list[int] = []

    async def body(ctx: Context) -> None:
        started.append(1)

    bench = Bench(body)
    run = await bench.submit(delay=3600.0)
    await bench.client.cancel(bench.name, run.run_id)
    await bench.once(run.run_id)
    await check_cancelled(bench, run.run_id)
    assert started == []


@pytest.mark.parametrize("what", ["sleep", "signal", "question", "retry"])
async def test_while_parked(what: str) -> None:
    log: list[str] = []

    def fail() -> None:
        raise OSError("later")

    async def body(ctx: Context) -> None:
        try:
            if what == "sleep":
                await ctx.sleep(1000)
            elif what == "signal":
                await ctx.wait_for_signal("go", timeout=1000)
            elif what == "question":
                await ctx.interrupt("sure?")
            else:
                await ctx.step("s", fail, retry=Retry(initial=100.0))
        except anyio.get_cancelled_exc_class():
            log.append("cancelled")
            await ctx.step("clean", log.append, "clean")
            raise

    bench = Bench(body)
    run = await bench.submit()
    assert (await bench.once(run.run_id)).how == "parked"
    await bench.client.cancel(bench.name, run.run_id, "enough")
    assert (await bench.client.get(bench.name, run.run_id)).status is RunStatus.QUEUED
    await bench.drive(run.run_id)
    await check_cancelled(bench, run.run_id, "enough")
    assert log == ["cancelled", "clean"]


@pytest.mark.parametrize("where", ["async step", "thread step", "plain await", "gather", "queued gather", "task group"])
async def test_in_the_middle_of(where: str) -> None:
    log: list[str] = []
    release = threading.Event()
    bench: Bench

    async def slow() -> None:
        log.append("started")
        await anyio.sleep(30)
        log.append("went on")

    def slow_thread() -> None:
        log.append("started")
        release.wait(10)

    async def body(ctx: Context) -> None:
        try:
            if where == "async step":
                await ctx.step("s", slow)
            elif where == "thread step":
                await ctx.step("s", slow_thread)
            elif where == "plain await":
                log.append("started")
                await anyio.sleep(0.05)
                await ctx.step("after", log.append, "after")
            elif where == "gather":
                await ctx.gather(ctx.step("s", slow), ctx.step("s", slow))
            elif where == "queued gather":
                await ctx.gather(*[ctx.step("s", slow) for _ in range(5)], max_concurrency=1)
            else:
                async with anyio.create_task_group() as group:
                    group.start_soon(ctx.step, "a", slow)
                    group.start_soon(ctx.step, "b", slow)
        except anyio.get_cancelled_exc_class():
            log.append("cancelled")
            raise
        finally:
            await ctx.step("clean", log.append, "clean")

    bench = Bench(body)
    run = await bench.submit()
    ended = await cancelled_while(bench, run, lambda: "started" in log, "stop it")
    release.set()
    assert ended.how == "cancelled"
    await check_cancelled(bench, run.run_id, "stop it")
    assert "after" not in log
    assert "went on" not in log
    assert log.count("cancelled") <= 1
    assert log[-1] == "clean"
    assert log.count("clean") == 1


async def test_a_run_that_has_ended_cannot_be_cancelled() -> None:
    async def body(ctx: Context) -> None: ...

    bench = Bench(body)
    run = await bench.go()
    with pytest.raises(WrongRunState):
        await bench.client.cancel(bench.name, run.run_id)


# --- what the body does with it --------------------------------------------------------------


async def test_caught_and_ignored_it_ends_as_cancelled_all_the_same() -> None:
    log: list[str] = []

    async def body(ctx: Context) -> str:
        try:
            await ctx.wait_for_signal("go")
        except anyio.get_cancelled_exc_class():
            log.append("ignored")
        log.append(await ctx.step("next", lambda: "next"))
        log.append(await ctx.step("last", lambda: "last"))
        return "done"

    bench = Bench(body)
    run = await bench.submit()
    await bench.once(run.run_id)
    await bench.client.cancel(bench.name, run.run_id)
    await bench.drive(run.run_id)
    await check_cancelled(bench, run.run_id)
    assert log == ["ignored", "next", "last"]


async def test_it_is_raised_once() -> None:
    log: list[str] = []

    async def slow() -> None:
        log.append("started")
        await anyio.sleep(30)

    async def body(ctx: Context) -> None:
        for n in range(3):
            try:
                await ctx.step(f"s{n}", slow if n == 0 else anyio.lowlevel.checkpoint)
                await anyio.sleep(0.001)
                log.append("quiet")
            except anyio.get_cancelled_exc_class():
                log.append("cancelled")

    bench = Bench(body)
    run = await bench.submit()
    await cancelled_while(bench, run, lambda: "started" in log)
    assert log == ["started", "cancelled", "quiet", "quiet"]
    await check_cancelled(bench, run.run_id)


async def test_another_error_in_the_clean_up() -> None:
    async def body(ctx: Context) -> None:
        try:
            await ctx.wait_for_signal("go")
        finally:
            raise ValueError("the clean-up failed")

    bench = Bench(body)
    run = await bench.submit()
    await bench.once(run.run_id)
    await bench.client.cancel(bench.name, run.run_id, "r")
    await bench.drive(run.run_id)
    run = await check_cancelled(bench, run.run_id, "r")


async def test_a_second_request_changes_nothing() -> None:
    async def body(ctx: Context) -> None:
        await ctx.wait_for_signal("go")

    bench = Bench(body)
    run = await bench.submit()
    await bench.once(run.run_id)
    await bench.client.cancel(bench.name, run.run_id, "first")
    await bench.client.cancel(bench.name, run.run_id, "second")
    await bench.drive(run.run_id)
    await check_cancelled(bench, run.run_id, "first")


async def test_a_body_that_makes_no_more_calls_ends_as_cancelled() -> None:
    started = anyio.Event()
    go_on = anyio.Event()

    async def body(ctx: Context) -> str:
        started.set()
        await go_on.wait()
        return "done"

    bench = Bench(body)
    run = await bench.submit()
    attempt = bench.attempt(await bench.claim(run.run_id))
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(run_attempt, attempt)
            await started.wait()
            await bench.client.cancel(bench.name, run.run_id)
            attempt.receive(await bench.memory.inbox(attempt.claim))
            go_on.set()
    await check_cancelled(bench, run.run_id)


async def test_waiting_in_the_clean_up_does_not_park() -> None:
    log: list[str] = []

    async def body(ctx: Context) -> None:
        try:
            await ctx.wait_for_signal("go")
        finally:
            try:
                await ctx.wait_for_signal("more")
            except anyio.get_cancelled_exc_class():
                log.append("no waiting now")
            await ctx.sleep(0.01)
            log.append("slept a little")
            try:
                await ctx.sleep(10_000)
            except anyio.get_cancelled_exc_class():
                log.append("but not for long")

    bench = Bench(body)
    bench.settings = type(bench.settings)(cancel_timeout=0.1)
    run = await bench.submit()
    await bench.once(run.run_id)
    await bench.client.cancel(bench.name, run.run_id)
    with anyio.fail_after(5):
        await bench.drive(run.run_id)
    await check_cancelled(bench, run.run_id)
    assert log == ["no waiting now", "slept a little", "but not for long"]


async def test_a_clean_up_step_that_takes_too_long_is_cut_off() -> None:
    log: list[str] = []

    async def hangs() -> None:
        log.append("hangs")
        await anyio.sleep(60)

    async def body(ctx: Context) -> None:
        try:
            await ctx.wait_for_signal("go")
        finally:
            try:
                await ctx.step("hangs", hangs)
            finally:
                await ctx.step("next", log.append, "next")

    bench = Bench(body)
    bench.settings = type(bench.settings)(cancel_timeout=0.1)
    run = await bench.submit()
    await bench.once(run.run_id)
    await bench.client.cancel(bench.name, run.run_id)
    with anyio.fail_after(5):
        await bench.drive(run.run_id)
    await check_cancelled(bench, run.run_id)
    assert log == ["hangs", "next"]


async def test_after_an_interrupted_call_the_loops_own_timeouts_work() -> None:
    """Nothing of the cancellation is left on the task."""
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        pytest.skip("asyncio keeps the marks on the task")
    log: list[str] = []

    def fail() -> None:
        log.append("tried")
        raise OSError("again")

    async def body(ctx: Context) -> None:
        try:
            await ctx.step("s", fail, retry=Retry(max_attempts=50, initial=2.9, jitter=0.0))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            log.append(f"{task.cancelling()} asked")
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(10)
        except TimeoutError:
            log.append("timed out")

    bench = Bench(body)
    run = await bench.submit()
    await cancelled_while(bench, run, lambda: "tried" in log)
    assert log == ["tried", "0 asked", "timed out"]


# --- replays --------------------------------------------------------------------------------


async def test_the_clean_up_replays_after_a_crash_in_it() -> None:
    """Dying at any write of a cancelled run, its clean-up steps run once each and it ends the same."""
    ran: list[str] = []

    async def body(ctx: Context) -> None:
        await ctx.step("before", ran.append, "before")
        try:
            await ctx.wait_for_signal("go")
        finally:
            await ctx.now()
            for n in range(3):
                await ctx.step("clean", ran.append, f"clean {n}")
            await ctx.gather(ctx.step("a", ran.append, "a"), ctx.step("b", ran.append, "b"))

    async def life(at: int | None, after: bool) -> tuple[int, list[tuple[str, str]]]:
        ran.clear()
        bench = Bench(body)
        run = await bench.submit()
        assert (await bench.once(run.run_id)).how == "parked"
        await bench.client.cancel(bench.name, run.run_id, "r")
        worker = CrashAt(bench.memory, at, after=after)
        bench.store = worker
        if at is None:
            await bench.once(run.run_id)
        else:
            with pytest.raises((Crashed, BaseExceptionGroup)):
                await bench.once(run.run_id)
            bench.store = bench.memory
            await bench.lose()
            if not (await bench.client.get(bench.name, run.run_id)).status.ended:
                await bench.drive(run.run_id)
        await check_cancelled(bench, run.run_id, "r")
        events = await bench.events(run.run_id)
        keys = [e.key for e in events if e.key]
        assert len(keys) == len(set(keys)) + 0
        return worker.writes, [(e.type, e.key) for e in events if e.type != "run.resumed"]

    writes, expected = await life(None, False)
    for at in range(writes):
        for after in (False, True):
            if (at, after) == (writes - 1, True):
                continue  # it has ended by then
            _, events = await life(at, after)
            assert sorted(events) == sorted(expected)
            # Only what was in the one append that was lost has run twice.
            again = {what for what in ran if ran.count(what) > 1}
            assert len(again) <= 1 or again == {"a", "b"}, ran


async def test_the_request_is_met_at_the_same_place_on_each_replay() -> None:
    log: list[str] = []

    async def slow() -> None:
        log.append("started")
        await anyio.sleep(30)

    async def body(ctx: Context) -> None:
        await ctx.step("a", log.append, "a")
        await ctx.step("b", log.append, "b")
        try:
            await ctx.step("slow", slow)
            log.append("slow returned")
        except anyio.get_cancelled_exc_class():
            log.append("cancelled")
            await ctx.step("clean", log.append, "clean")
            await ctx.step("more", log.append, "more")

    bench = Bench(body)
    bench.store = CrashAt(bench.memory, 3)  # a, b, the request with the clean-up step, then no more
    run = await bench.submit()
    with pytest.raises(Crashed):
        await cancelled_while_crashing(bench, run, lambda: "started" in log)
    assert log == ["a", "b", "started", "cancelled", "clean", "more"]
    bench.store = bench.memory
    await bench.lose()
    log.clear()
    await bench.drive(run.run_id)
    await check_cancelled(bench, run.run_id)
    assert log == ["cancelled", "more"]


async def cancelled_while_crashing(bench: Bench, run: Run, ready: Callable[[], bool]) -> None:
    attempt = bench.attempt(await bench.claim(run.run_id))
    failure: list[BaseException] = []

    async def work() -> None:
        try:
            await run_attempt(attempt)
        except Crashed as error:
            failure.append(error)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await until(ready)
            await bench.client.cancel(bench.name, run.run_id)
            attempt.receive(await bench.memory.inbox(attempt.claim))
    raise failure[0]


async def test_a_step_that_had_its_outcome_when_the_request_came_keeps_it() -> None:
    seen: list[str] = []

    async def body(ctx: Context) -> None:
        async def own_end() -> str:
            await bench.client.cancel(bench.name, "r1", "from inside")
            return "outcome"

        seen.append(await ctx.step("s", own_end))
        await ctx.sleep(1000)

    bench = Bench(body)
    await bench.submit()
    assert (await bench.once("r1")).how in ("parked", "cancelled", "requeued")
    await bench.drive("r1")
    await check_cancelled(bench, "r1", "from inside")
    assert seen[0] == "outcome"


async def test_a_failed_step_beside_a_cancel() -> None:
    async def fail() -> None:
        raise ValueError("no")

    async def body(ctx: Context) -> None:
        try:
            await ctx.step("s", fail, retry=Retry(max_attempts=1))
        except StepFailed:
            await ctx.wait_for_signal("go")

    bench = Bench(body)
    run = await bench.submit()
    await bench.once(run.run_id)
    await bench.client.cancel(bench.name, run.run_id)
    await bench.drive(run.run_id)
    await check_cancelled(bench, run.run_id)


async def test_output_before_the_request_does_not_hold_up_the_replay() -> None:
    async def body(ctx: Context) -> None:
        await ctx.stream("begins")
        await ctx.step("s", lambda: 1)
        try:
            await ctx.wait_for_signal("go")
        finally:
            await ctx.step("clean", lambda: 1)

    bench = Bench(body)
    run = await bench.submit()
    await bench.once(run.run_id)
    await bench.client.cancel(bench.name, run.run_id)
    bench.store = CrashAt(bench.memory, 1)
    with pytest.raises(Crashed):
        await bench.once(run.run_id)
    bench.store = bench.memory
    await bench.lose()
    await bench.drive(run.run_id)
    await check_cancelled(bench, run.run_id)


@pytest.mark.parametrize("caught", [False, True])
async def test_a_body_that_waits_for_its_own_tasks_does_not_go_on_after_the_request(caught: bool) -> None:
    """A task group takes a cancelled task for a finished one: the request must reach the body all the same."""
    log: list[str] = []

    async def slow() -> None:
        log.append("started")
        await anyio.sleep(30)

    async def inner(ctx: Context) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(ctx.step, "a", slow)
            group.start_soon(ctx.step, "b", slow)
        log.append("after the group")
        await ctx.step("charge", log.append, "charged")

    async def body(ctx: Context) -> None:
        try:
            if caught:
                await ctx.gather(inner(ctx), inner(ctx))
            else:
                await inner(ctx)
        finally:
            await ctx.step("clean", log.append, "clean")

    bench = Bench(body)
    run = await bench.submit()
    await cancelled_while(bench, run, lambda: "started" in log, "r")
    await check_cancelled(bench, run.run_id, "r")
    assert set(log) == {"started", "clean"}
    assert log.count("clean") == 1


async def test_nor_does_it_on_a_replay() -> None:
    log: list[str] = []

    async def body(ctx: Context) -> None:
        async def branch(name: str) -> None:
            await ctx.step(f"{name}1", log.append, f"{name}1")
            await ctx.step(f"{name}2", anyio.sleep, 30)

        def clean() -> None:
            log.append("clean")
            if log.count("clean") == 1:
                worker.die()

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(branch, "a")
                group.start_soon(branch, "b")
            await ctx.step("charge", log.append, "charged")
        finally:
            await ctx.step("clean", clean, inline=True)

    def journal() -> list[bytes]:
        return bench.memory._shards[bench.name].runs["r1"].journal

    bench = Bench(body)
    worker = CrashAt(bench.memory)
    bench.store = worker
    run = await bench.submit()
    with pytest.raises(Crashed):
        await cancelled_while_crashing(bench, run, lambda: len(journal()) == 4)
    bench.store = bench.memory
    await bench.lose()
    with anyio.fail_after(5):
        await bench.drive(run.run_id)
    await check_cancelled(bench, run.run_id)
    assert "charged" not in log
    assert log.count("clean") == 2


async def test_a_task_left_running_does_not_keep_the_request_to_itself() -> None:
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        pytest.skip("trio leaves no task running")
    log: list[str] = []

    async def slow() -> None:
        log.append("started")
        await asyncio.sleep(30)

    async def body(ctx: Context) -> None:
        task = asyncio.create_task(ctx.step("beside", slow))
        try:
            await asyncio.sleep(30)
            log.append("went on")
        finally:
            await ctx.step("clean", log.append, "clean")
            await asyncio.wait([task])

    bench = Bench(body)
    run = await bench.submit()
    await cancelled_while(bench, run, lambda: "started" in log)
    await check_cancelled(bench, run.run_id)
    assert log == ["started", "clean"]


@pytest.mark.parametrize("what", ["now", "step", "commit", "stream"])
async def test_what_was_recorded_behind_the_request_stands_for_a_call_that_had_to_wait(what: str) -> None:
    """A leg asks before the request is met by another one, and is let go when it is: nothing is made twice."""
    ran: list[str] = []

    async def body(ctx: Context) -> None:
        async def late() -> None:
            if what == "now":
                await ctx.now()
            elif what == "step":
                await ctx.step("s", ran.append, "ran")
            elif what == "commit":
                await ctx.commit("k", 1)
            else:
                await ctx.stream("chunk")

        async def meets_it() -> None:
            await ctx.uuid()
            with contextlib.suppress(anyio.get_cancelled_exc_class()):
                await ctx.uuid()
            await anyio.sleep(0.02)

        await ctx.gather(late(), meets_it())

    kinds: dict[str, tuple[str, str, dict[str, Any]]] = {
        "now": ("value.recorded", "g1.0/@value", {"kind": "now", "value": 1}),
        "step": ("step.completed", "g1.0/s", {"result": None}),
        "commit": ("value.committed", "g1.0/@value", {"name": "k"}),
        "stream": ("output.written", "g1.0/@value", {"index": 1, "chunk": "chunk"}),
    }
    bench = Bench(body)
    run = await bench.submit()
    claim = await bench.claim(run.run_id)
    recorded: list[tuple[str, str, dict[str, Any]]] = [
        ("value.recorded", "g1.1/@value", {"kind": "uuid", "value": "00000000-0000-0000-0000-000000000001"}),
        ("run.cancel_requested", "", {"reason": None}),
        kinds[what],
    ]
    entries = [entry(kind, 0, 1, key, {"beside": True, **data}) for kind, key, data in recorded]
    await bench.memory.append(claim, claim.seq, entries)
    await bench.memory.requeue(claim, claim.seq + len(entries))
    with anyio.fail_after(10):
        await bench.drive(run.run_id)
    await check_cancelled(bench, run.run_id)
    keys = [event.key for event in await bench.events(run.run_id) if event.key]
    assert keys == ["g1.1/@value", kinds[what][1]]
    assert ran == []
