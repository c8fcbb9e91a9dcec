"""Sleeping, waiting for signals and answers: order, deadlines, what arrives early, late and twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from pyrula.contracts.errors import InvalidInput, RunNotFound, SignalTimeout, WrongRunState
from pyrula.contracts.runs import RunStatus
from pyrula.workflows.context import Context
from tests.unit.engine.harness import START, Bench

pytestmark = pytest.mark.anyio


async def take(ctx: Context, count: int = 1, name: str = "go", timeout: float | None = None) -> list[Any]:
    return [await ctx.wait_for_signal(name, timeout=timeout) for _ in range(count)]


# --- sleep --------------------------------------------------------------------------------


async def test_a_sleep_takes_as_long_as_it_says_and_holds_no_worker() -> None:
    times: list[datetime] = []

    async def body(ctx: Context) -> None:
        times.append(await ctx.now())
        await ctx.sleep(86_400)
        times.append(await ctx.now())

    bench = Bench(body)
    run = await bench.submit()
    assert (await bench.once(run.run_id)).how == "parked"
    asleep = await bench.client.get(bench.name, run.run_id)
    assert (asleep.status, asleep.waiting_on) == (RunStatus.SLEEPING, "timer")
    run = await bench.drive(run.run_id)
    assert run.status is RunStatus.COMPLETED
    assert timedelta(days=1) <= times[-1] - times[0] < timedelta(days=1, seconds=1)


async def test_sleep_until_a_time() -> None:
    async def body(ctx: Context) -> str:
        await ctx.sleep_until(datetime.fromtimestamp(START + 500, UTC))
        return (await ctx.now()).isoformat()

    run = await Bench(body).go()
    assert run.result >= datetime.fromtimestamp(START + 500, UTC).isoformat()


@pytest.mark.parametrize("seconds", [0, 0.0, -5])
async def test_no_time_at_all_does_not_park(seconds: float) -> None:
    async def body(ctx: Context) -> int:
        await ctx.sleep(seconds)
        await ctx.sleep_until(datetime(2000, 1, 1, tzinfo=UTC))
        return ctx.attempt

    assert (await Bench(body).go()).result == 1


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), "5", None, True, 1e12])
async def test_what_is_no_number_of_seconds_is_refused(seconds: Any) -> None:
    async def body(ctx: Context) -> None:
        await ctx.sleep(seconds)

    run = await Bench(body).go()
    assert run.error is not None
    assert run.error["code"] == "invalid_input"


@pytest.mark.parametrize("when", [datetime(2030, 1, 1), 5, None, "2030-01-01"])  # noqa: DTZ001 - the point of it
async def test_only_an_aware_time_will_do(when: Any) -> None:
    async def body(ctx: Context) -> None:
        await ctx.sleep_until(when)

    run = await Bench(body).go()
    assert run.error is not None
    assert run.error["code"] == "invalid_input"


async def test_a_time_beyond_what_a_timer_can_hold() -> None:
    async def body(ctx: Context) -> None:
        await ctx.sleep_until(datetime.max.replace(tzinfo=UTC))

    bench = Bench(body)
    run = await bench.submit()
    await bench.once(run.run_id)
    assert (await bench.client.get(bench.name, run.run_id)).status in (RunStatus.SLEEPING, RunStatus.FAILED)


async def test_the_recorded_deadline_stands_when_the_code_changes() -> None:
    def sleeper(seconds: float) -> Any:
        async def body(ctx: Context) -> None:
            await ctx.sleep(seconds)

        return body

    bench = Bench(sleeper(100))
    run = await bench.submit()
    await bench.once(run.run_id)
    bench.replace_body(sleeper(10_000))
    run = await bench.drive(run.run_id)
    assert run.status is RunStatus.COMPLETED
    assert bench.clock.now < START + 200


async def test_a_signal_does_not_wake_a_sleep() -> None:
    async def body(ctx: Context) -> Any:
        await ctx.sleep(100)
        return await ctx.wait_for_signal("go")

    bench = Bench(body)
    run = await bench.submit()
    await bench.once(run.run_id)
    await bench.client.signal(bench.name, run.run_id, "go", 1)
    assert (await bench.client.get(bench.name, run.run_id)).status is RunStatus.SLEEPING
    run = await bench.drive(run.run_id)
    assert run.result == 1


# --- signals ------------------------------------------------------------------------------


async def test_signals_before_the_run_has_started() -> None:
    async def body(ctx: Context) -> list[Any]:
        return [*await take(ctx, 3), ctx.attempt]

    bench = Bench(body)
    run = await bench.submit()
    for n in range(3):
        await bench.client.signal(bench.name, run.run_id, "go", {"n": n})
    run = await bench.drive(run.run_id)
    assert run.result == [{"n": 0}, {"n": 1}, {"n": 2}, 1]


async def test_a_signal_wakes_the_run_that_waits_for_it_and_no_other_does() -> None:
    async def body(ctx: Context) -> list[Any]:
        return await take(ctx)

    bench = Bench(body)
    run = await bench.submit()
    await bench.once(run.run_id)
    waiting = await bench.client.get(bench.name, run.run_id)
    assert (waiting.status, waiting.waiting_on) == (RunStatus.WAITING, "signal:go")
    await bench.client.signal(bench.name, run.run_id, "other", 1)
    assert (await bench.client.get(bench.name, run.run_id)).status is RunStatus.WAITING
    await bench.client.signal(bench.name, run.run_id, "go", 2)
    assert (await bench.client.get(bench.name, run.run_id)).status is RunStatus.QUEUED
    assert (await bench.drive(run.run_id)).result == [2]


async def test_each_name_has_its_own_order() -> None:
    async def body(ctx: Context) -> list[Any]:
        return [*await take(ctx, 2, "b"), *await take(ctx, 2, "a")]

    bench = Bench(body)
    run = await bench.submit()
    for name, payload in (("a", 1), ("b", 2), ("a", 3), ("b", 4)):
        await bench.client.signal(bench.name, run.run_id, name, payload)
    assert (await bench.drive(run.run_id)).result == [2, 4, 1, 3]


async def test_a_signal_that_comes_while_the_body_works_is_found_at_the_wait() -> None:
    async def body(ctx: Context) -> list[Any]:
        async def meanwhile() -> None:
            await bench.client.signal(bench.name, "r1", "go", "came meanwhile")

        await ctx.step("s", meanwhile)
        return [*await take(ctx), ctx.attempt]

    bench = Bench(body)
    run = await bench.go()
    assert run.result[0] == "came meanwhile"


async def test_a_key_makes_a_repeat_harmless() -> None:
    async def body(ctx: Context) -> list[Any]:
        first = await take(ctx)
        try:
            return [*first, *await take(ctx, timeout=50)]
        except SignalTimeout:
            return [*first, "no second"]

    bench = Bench(body)
    run = await bench.submit()
    for payload in (1, 2):
        await bench.client.signal(bench.name, run.run_id, "go", payload, idempotency_key="k")
    await bench.once(run.run_id)
    await bench.client.signal(bench.name, run.run_id, "go", 3, idempotency_key="k")
    assert (await bench.drive(run.run_id)).result == [1, "no second"]


async def test_a_deadline_passes() -> None:
    seen: list[str] = []

    async def body(ctx: Context) -> str:
        try:
            await ctx.wait_for_signal("go", timeout=30)
        except SignalTimeout as error:
            seen.append(str(error))
            await ctx.sleep(1)
            return "late"
        return "in time"

    bench = Bench(body)
    run = await bench.submit()
    await bench.once(run.run_id)
    assert (await bench.client.get(bench.name, run.run_id)).wake_at is not None
    run = await bench.drive(run.run_id)
    assert run.result == "late"
    assert START + 31 <= bench.clock.now < START + 33
    assert len(set(seen)) == 1
    assert len(seen) == 2


async def test_a_signal_after_the_deadline_that_is_there_before_the_run_looks_counts() -> None:
    """Whoever signals a run that still waits is not told that it was in vain."""

    async def body(ctx: Context) -> Any:
        return await ctx.wait_for_signal("go", timeout=30)

    bench = Bench(body)
    run = await bench.submit()
    await bench.once(run.run_id)
    bench.clock.advance(60)
    await bench.client.signal(bench.name, run.run_id, "go", "late but there")
    assert (await bench.drive(run.run_id)).result == "late but there"


async def test_no_patience_at_all_takes_what_is_there() -> None:
    async def body(ctx: Context) -> list[Any]:
        found = await take(ctx, timeout=0)
        try:
            found += await take(ctx, timeout=0)
        except SignalTimeout:
            found.append("nothing")
        return [*found, ctx.attempt]

    bench = Bench(body)
    run = await bench.submit()
    await bench.client.signal(bench.name, run.run_id, "go", 1)
    assert (await bench.drive(run.run_id)).result == [1, "nothing", 1]


async def test_a_signal_to_a_run_that_has_ended() -> None:
    async def body(ctx: Context) -> None: ...

    bench = Bench(body)
    run = await bench.go()
    with pytest.raises(WrongRunState) as caught:
        await bench.client.signal(bench.name, run.run_id, "go")
    assert caught.value.status == "completed"
    with pytest.raises(RunNotFound):
        await bench.client.signal(bench.name, "nobody", "go")


async def test_another_name_at_the_same_wait_is_refused() -> None:
    def waiter(name: str) -> Any:
        async def body(ctx: Context) -> Any:
            return await ctx.wait_for_signal(name)

        return body

    bench = Bench(waiter("go"))
    run = await bench.submit()
    await bench.once(run.run_id)
    await bench.client.signal(bench.name, run.run_id, "go", 1)
    bench.replace_body(waiter("come"))
    run = await bench.drive(run.run_id)
    assert run.error is not None
    assert run.error["code"] == "replay_input_changed"
    assert "'go'" in run.error["message"]
    assert "'come'" in run.error["message"]
    bench.replace_body(waiter("go"))
    await bench.client.retry(bench.name, run.run_id)
    assert (await bench.drive(run.run_id)).result == 1


@pytest.mark.parametrize("name", ["", None, 5])
async def test_a_wait_needs_a_name(name: Any) -> None:
    async def body(ctx: Context) -> None:
        await ctx.wait_for_signal(name)

    run = await Bench(body).go()
    assert run.error is not None
    assert run.error["code"] == "invalid_input"


@pytest.mark.parametrize("name", ["a b", "{x}", "a\nb", "", "x" * 300, "\ud800"])
async def test_a_signal_needs_a_name_that_the_store_can_carry(name: str) -> None:
    async def body(ctx: Context) -> None: ...

    bench = Bench(body)
    run = await bench.submit()
    with pytest.raises(InvalidInput):
        await bench.client.signal(bench.name, run.run_id, name)


@pytest.mark.parametrize("name", ["a b", "{x}", "a\nb", "x" * 300, "\ud800"])
async def test_a_wait_for_a_name_that_nobody_can_signal_fails_at_once(name: str) -> None:
    async def body(ctx: Context) -> None:
        await ctx.wait_for_signal(name)

    bench = Bench(body)
    with anyio.fail_after(5):
        run = await bench.go()
    assert run.status is RunStatus.FAILED, f"it waits for ever for {run.waiting_on!r}"
    assert run.error is not None
    assert run.error["code"] == "invalid_input"


# --- questions ----------------------------------------------------------------------------


async def test_a_question_is_answered() -> None:
    async def body(ctx: Context) -> list[Any]:
        return [await ctx.interrupt({"approve": n}) for n in range(2)]

    bench = Bench(body)
    run = await bench.submit()
    await bench.once(run.run_id)
    asked = [e for e in await bench.events(run.run_id) if e.type == "interrupt.raised"]
    assert [e.data["question"] for e in asked] == [{"approve": 0}]
    assert (await bench.client.get(bench.name, run.run_id)).status is RunStatus.WAITING
    await bench.client.resume(bench.name, run.run_id, "yes")
    await bench.once(run.run_id)
    await bench.client.resume(bench.name, run.run_id, ["no", None])
    assert (await bench.drive(run.run_id)).result == ["yes", ["no", None]]


async def test_a_question_by_its_key() -> None:
    async def body(ctx: Context) -> Any:
        return await ctx.interrupt("sure?", key="approval")

    bench = Bench(body)
    run = await bench.submit()
    await bench.once(run.run_id)
    assert (await bench.client.get(bench.name, run.run_id)).waiting_on == "interrupt:approval"
    await bench.client.resume(bench.name, run.run_id, 1, key="approval")
    assert (await bench.drive(run.run_id)).result == 1


async def test_the_first_answer_counts() -> None:
    async def body(ctx: Context) -> list[Any]:
        first = await ctx.interrupt("1?")
        second = await ctx.interrupt("2?", timeout=50)
        return [first, second]

    bench = Bench(body)
    run = await bench.submit()
    await bench.once(run.run_id)
    await bench.client.resume(bench.name, run.run_id, "first")
    await bench.client.resume(bench.name, run.run_id, "second thoughts")
    await bench.once(run.run_id)
    await bench.client.resume(bench.name, run.run_id, "third")
    assert (await bench.drive(run.run_id)).result == ["first", "third"]


async def test_an_answer_where_nothing_is_asked() -> None:
    async def body(ctx: Context) -> None:
        await ctx.wait_for_signal("go")

    bench = Bench(body)
    run = await bench.submit()
    with pytest.raises(WrongRunState):
        await bench.client.resume(bench.name, run.run_id, "yes")
    await bench.once(run.run_id)
    with pytest.raises(WrongRunState):
        await bench.client.resume(bench.name, run.run_id, "yes")
    await bench.client.signal(bench.name, run.run_id, "go")
    await bench.drive(run.run_id)
    with pytest.raises(WrongRunState):
        await bench.client.resume(bench.name, run.run_id, "yes")
    with pytest.raises(WrongRunState):
        await bench.client.resume(bench.name, run.run_id, "yes", key="x")
    with pytest.raises(RunNotFound):
        await bench.client.resume(bench.name, "nobody", "yes")


async def test_nobody_answers_in_time() -> None:
    async def body(ctx: Context) -> str:
        try:
            return str(await ctx.interrupt("sure?", timeout=60))
        except SignalTimeout:
            return "nobody"

    assert (await Bench(body).go()).result == "nobody"


async def test_a_question_that_cannot_be_written() -> None:
    async def body(ctx: Context) -> None:
        await ctx.interrupt({"x": object()})

    run = await Bench(body).go()
    assert run.error is not None
    assert run.error["code"] == "not_encodable"
    assert "question.x" in run.error["message"]


# --- one slot -----------------------------------------------------------------------------


async def test_a_call_under_way_is_recorded_before_the_run_parks() -> None:
    ran: list[str] = []

    async def body(ctx: Context) -> list[Any]:
        answers: list[Any] = []
        started = anyio.Event()

        async def work() -> None:
            async def slow() -> str:
                ran.append("work")
                started.set()
                await anyio.sleep(0.05)
                return "worked"

            answers.append(await ctx.step("work", slow))

        async with anyio.create_task_group() as group:
            group.start_soon(work)
            if not ctx.is_replaying:
                await started.wait()
            answers.append(await ctx.interrupt("sure?"))
        return sorted(answers)

    bench = Bench(body)
    run = await bench.submit()
    assert (await bench.once(run.run_id)).how == "parked"
    types = [t for t in await bench.types(run.run_id) if t.startswith(("step", "interrupt"))]
    assert types == ["interrupt.raised", "step.completed", "interrupt.raised"]
    await bench.client.resume(bench.name, run.run_id, "yes")
    run = await bench.drive(run.run_id)
    assert run.result == ["worked", "yes"], run.error
    assert ran == ["work"]


async def test_two_waits_beside_each_other_open_one_after_the_other() -> None:
    async def body(ctx: Context) -> list[Any]:
        answers: dict[str, Any] = {}

        async def wait(name: str) -> None:
            answers[name] = await ctx.wait_for_signal(name)

        async with anyio.create_task_group() as group:
            group.start_soon(wait, "a")
            await anyio.sleep(0.01)
            group.start_soon(wait, "b")
        return [answers["a"], answers["b"]]

    bench = Bench(body)
    run = await bench.submit()
    assert (await bench.once(run.run_id)).how == "parked"
    assert (await bench.client.get(bench.name, run.run_id)).waiting_on == "signal:a"
    await bench.client.signal(bench.name, run.run_id, "a", 1)
    assert (await bench.once(run.run_id)).how == "parked"
    assert (await bench.client.get(bench.name, run.run_id)).waiting_on == "signal:b"
    await bench.client.signal(bench.name, run.run_id, "b", 2)
    run = await bench.drive(run.run_id)
    assert run.result == [1, 2], run.error


async def test_a_new_call_after_the_decision_to_park_is_made_on_the_next_attempt() -> None:
    ran: list[int] = []

    async def body(ctx: Context) -> int:
        async def later() -> None:
            await anyio.sleep(0.02)
            await ctx.step("late", lambda: ran.append(ctx.attempt))

        async def slow() -> None:
            await anyio.sleep(0.06)

        async with anyio.create_task_group() as group:
            group.start_soon(ctx.step, "slow", slow)
            group.start_soon(later)
            await anyio.sleep(0.005)
            await ctx.wait_for_signal("go")
        return ctx.attempt

    bench = Bench(body)
    run = await bench.submit()
    assert (await bench.once(run.run_id)).how == "parked"
    assert ran == []
    await bench.client.signal(bench.name, run.run_id, "go")
    run = await bench.drive(run.run_id)
    assert run.status is RunStatus.COMPLETED, run.error
    assert ran == [2]


async def test_a_bodys_own_timeout_around_a_wait_lets_it_go_on() -> None:
    """The run had decided to park, and does not after all: later calls are made as ever."""

    async def body(ctx: Context) -> list[Any]:
        found: list[Any] = []

        async def slow() -> None:
            await anyio.sleep(0.1)
            found.append("slow")

        async with anyio.create_task_group() as group:
            group.start_soon(ctx.step, "slow", slow)
            await anyio.sleep(0.01)
            with anyio.move_on_after(0.02):
                await ctx.wait_for_signal("go")
            found.append("impatient")
            found.append(await ctx.step("next", lambda: "next"))
        return [*found, await ctx.wait_for_signal("go")]

    bench = Bench(body)
    run = await bench.submit()
    with anyio.fail_after(5):
        assert (await bench.once(run.run_id)).how == "parked"
    assert (await bench.client.get(bench.name, run.run_id)).waiting_on == "signal:go"


async def test_what_comes_to_a_closed_door_goes_on_when_the_park_is_off() -> None:
    async def body(ctx: Context) -> list[Any]:
        found: list[Any] = []

        async def beside() -> None:
            await anyio.sleep(0.02)
            found.append(await ctx.step("beside", lambda: "beside"))

        async def slow() -> None:
            await anyio.sleep(0.1)

        async with anyio.create_task_group() as group:
            group.start_soon(ctx.step, "slow", slow)
            group.start_soon(beside)
            await anyio.sleep(0.01)
            with anyio.move_on_after(0.05):
                await ctx.wait_for_signal("go")
        return found

    with anyio.fail_after(5):
        run = await Bench(body).go()
    assert run.result == ["beside"], run.error
