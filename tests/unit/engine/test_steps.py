"""Steps: what they may be, what comes back, how they fail, time out and are tried again."""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import anyio
import pytest

from pyrula.contracts.errors import AtMostOnceUnknown, NonRetryable, StepFailed, StepTimedOut
from pyrula.contracts.options import Retry
from pyrula.contracts.runs import RunStatus
from pyrula.workflows.context import Context
from tests.unit.engine.crashing import CrashAt, Crashed
from tests.unit.engine.harness import Bench

pytestmark = pytest.mark.anyio

ONCE = Retry(max_attempts=1)
AT_ONCE = Retry(max_attempts=3, initial=0.0)
LATER = Retry(max_attempts=3, initial=100.0, factor=2.0, maximum=1000.0, jitter=0.0)


@dataclass(frozen=True)
class Price:
    amount: Decimal
    at: datetime


class Colour(Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


def a_tuple() -> tuple[int, str]:
    return (1, "a")


def a_price() -> Price:
    return Price(Decimal("1.50"), datetime(2024, 5, 1, tzinfo=UTC))


def a_time() -> datetime:
    return datetime(2024, 5, 1, 12, tzinfo=UTC)


def a_set() -> set[int]:
    return {3, 1, 2}


def some_bytes() -> bytes:
    return b"\x00\xff"


def a_point() -> Point:
    return Point(1, 2)


def a_colour() -> Colour:
    return Colour.RED


def a_uuid() -> UUID:
    return UUID(int=5)


def a_delta() -> timedelta:
    return timedelta(microseconds=1)


def nothing() -> None:
    return None


def unannotated():  # type: ignore[no-untyped-def]  # the point of it
    return (1, (2, 3))


async def replayed_result(fn: Callable[..., Any]) -> tuple[Any, Any]:
    """What the body got from the step live, and on a replay."""
    seen: list[Any] = []

    async def body(ctx: Context) -> None:
        seen.append(await ctx.step("s", fn))
        await ctx.sleep(10)

    run = await Bench(body).go()
    assert run.status is RunStatus.COMPLETED, run.error
    live, replayed = seen
    return live, replayed


@pytest.mark.parametrize(
    "fn",
    [a_tuple, a_price, a_time, a_set, some_bytes, a_point, a_colour, a_uuid, a_delta, nothing],
    ids=lambda fn: fn.__name__,
)
async def test_an_annotated_result_comes_back_as_it_went(fn: Callable[..., Any]) -> None:
    live, replayed = await replayed_result(fn)
    assert live == fn()
    assert type(live) is type(fn())
    assert replayed == live
    assert type(replayed) is type(live)


async def test_without_an_annotation_plain_data_comes_back_live_too() -> None:
    live, replayed = await replayed_result(unannotated)
    assert live == replayed == [1, [2, 3]]


async def test_the_body_gets_a_value_of_its_own() -> None:
    shared: list[int] = [1]

    async def body(ctx: Context) -> list[int]:
        got: list[int] = await ctx.step("s", lambda: shared)
        got.append(2)
        return got

    run = await Bench(body).go()
    assert run.result == [1, 2]
    assert shared == [1]


# --- what can be a step -------------------------------------------------------------------


class Callers:
    async def method(self, n: int) -> int:
        await anyio.lowlevel.checkpoint()
        return n + 1

    def plain(self, n: int) -> int:
        return n + 1

    async def __call__(self, n: int) -> int:
        await anyio.lowlevel.checkpoint()
        return n + 1


class Plain:
    def __call__(self, n: int) -> int:
        return n + 1


async def plus_one(n: int) -> int:
    await anyio.lowlevel.checkpoint()
    return n + 1


def plus_one_plain(n: int) -> int:
    return n + 1


def decorated(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return inner


@pytest.mark.parametrize(
    "fn",
    [
        plus_one,
        plus_one_plain,
        lambda n: n + 1,
        lambda n: plus_one(n),  # noqa: PLW0108 - a plain function that gives a coroutine
        decorated(plus_one),
        decorated(plus_one_plain),
        functools.partial(plus_one),
        functools.partial(functools.partial(plus_one_plain)),
        Callers().method,
        Callers().plain,
        Callers(),
        Plain(),
        functools.partial(Callers()),
        (1).__add__,
    ],
)
@pytest.mark.parametrize("inline", [False, True])
async def test_whatever_can_be_called_can_be_a_step(fn: Callable[..., Any], inline: bool) -> None:
    async def body(ctx: Context) -> int:
        return await ctx.step("s", fn, 1, inline=inline)

    run = await Bench(body).go()
    assert (run.status, run.result) == (RunStatus.COMPLETED, 2), run.error


async def test_a_class_is_a_step_that_returns_an_instance() -> None:
    async def body(ctx: Context) -> Any:
        price = await ctx.step("s", Price, Decimal(1), a_time())
        return isinstance(price, Price)

    assert (await Bench(body).go()).result is True


async def test_arguments_reach_the_function_by_place_and_by_name() -> None:
    def join(*args: Any, **kwargs: Any) -> list[Any]:
        return [*args, kwargs]

    async def body(ctx: Context) -> Any:
        return await ctx.step("s", join, 1, 2, fn=3, id=4, self=5)

    assert (await Bench(body).go()).result == [1, 2, {"fn": 3, "id": 4, "self": 5}]


async def test_plain_functions_run_in_threads_with_the_callers_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    where: list[int] = []

    def read() -> str:
        where.append(threading.get_ident())
        return variable.get()

    async def body(ctx: Context) -> list[str]:
        variable.set("set")
        return [await ctx.step("a", read), await ctx.step("b", read, inline=True)]

    run = await Bench(body).go()
    assert run.result == ["set", "set"]
    assert where[0] != threading.get_ident()
    assert where[1] == threading.get_ident()


@pytest.mark.parametrize("step_id", ["", None, 5, b"a"])
async def test_an_id_is_a_non_empty_string(step_id: Any) -> None:
    async def body(ctx: Context) -> None:
        await ctx.step(step_id, nothing)

    run = await Bench(body).go()
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert run.error["code"] == "invalid_input"


@pytest.mark.parametrize("step_id", ["a#2", "g1.0/x", "@wait", "%", "日本語", "a b\n\x00", "x" * 10_000])
async def test_any_other_string_will_do(step_id: str) -> None:
    async def body(ctx: Context) -> list[int]:
        first = await ctx.step(step_id, lambda: 1)
        second = await ctx.step(step_id, lambda: 2)
        await ctx.sleep(1)
        return [first, second, await ctx.step("a", lambda: 3), await ctx.step("a", lambda: 4)]

    run = await Bench(body).go()
    assert run.result == [1, 2, 3, 4], run.error


async def test_an_id_that_is_no_text_fails_the_run() -> None:
    """A lone surrogate cannot be written; it must not take the worker with it."""

    async def body(ctx: Context) -> None:
        await ctx.step("\ud800", nothing)

    run = await Bench(body).go()
    assert run.status is RunStatus.FAILED


# --- failing ------------------------------------------------------------------------------


async def test_a_failure_is_the_same_live_and_replayed() -> None:
    seen: list[StepFailed] = []

    def fail() -> None:
        raise LookupError("none left")

    async def body(ctx: Context) -> None:
        try:
            await ctx.step("s", fail, retry=AT_ONCE)
        except StepFailed as error:
            seen.append(error)
        await ctx.sleep(5)

    assert (await Bench(body).go()).status is RunStatus.COMPLETED
    live, replayed = seen
    for failure in (live, replayed):
        assert failure.step_id == "s"
        assert failure.error_type == "LookupError"
        assert failure.message == "none left"
        assert failure.attempts == 3
        assert failure.matches(LookupError)
        assert not failure.matches(KeyError)
    assert str(live) == str(replayed)


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        ExceptionGroup("several", [ValueError("a"), KeyError("b")]),
        BaseExceptionGroup("several", [SystemExit(1)]),
        StopIteration("x"),
        StopAsyncIteration("x"),
        RecursionError("deep"),
        MemoryError(),
        type("OwnBase", (BaseException,), {})("x"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("kind", ["async", "thread", "inline"])
async def test_whatever_a_step_raises_is_its_failure(error: BaseException, kind: str) -> None:
    def fail() -> None:
        raise error

    async def fail_async() -> None:
        raise error

    async def body(ctx: Context) -> str:
        try:
            await ctx.step("s", fail_async if kind == "async" else fail, inline=kind == "inline", retry=ONCE)
        except StepFailed as failure:
            return failure.error_type
        return "nothing"

    run = await Bench(body).go()
    assert run.status is RunStatus.COMPLETED, run.error
    # Python itself turns a StopIteration that leaves a coroutine, or enters a future, into a RuntimeError.
    expected = {type(error).__qualname__} | ({"RuntimeError"} if isinstance(error, (StopIteration,)) else set())
    assert run.result.rpartition(".")[2] in expected | {"TypeError"}


async def test_a_step_that_cancels_itself_fails_and_hangs_nothing() -> None:
    async def fail() -> None:
        raise anyio.get_cancelled_exc_class()

    if anyio.get_cancelled_exc_class().__module__.startswith("trio"):
        pytest.skip("trio lets nobody else make its Cancelled")

    async def body(ctx: Context) -> str:
        try:
            await ctx.step("s", fail, retry=ONCE)
        except StepFailed as failure:
            return failure.error_type
        return "nothing"

    run = await Bench(body).go()
    assert run.status is RunStatus.COMPLETED, run.error
    assert run.result.endswith("CancelledError")


async def test_an_error_whose_text_cannot_be_made() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def fail() -> None:
        raise Silent

    async def body(ctx: Context) -> None:
        await ctx.step("s", fail, retry=ONCE)

    run = await Bench(body).go()
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert run.error["detail"]["error_type"].endswith("Silent")


async def test_tries_are_counted_and_end_with_success() -> None:
    tries = 0

    def flaky() -> str:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError(tries)
        return "done"

    async def body(ctx: Context) -> str:
        return await ctx.step("s", flaky, retry=AT_ONCE)

    bench = Bench(body)
    run = await bench.go()
    assert run.result == "done"
    [event] = [e for e in await bench.events(run.run_id) if e.type == "step.completed"]
    assert event.data["attempts"] == 3


async def test_a_final_error_is_not_tried_again() -> None:
    tries = 0

    def refused() -> None:
        nonlocal tries
        tries += 1
        raise NonRetryable("no")

    async def body(ctx: Context) -> None:
        await ctx.step("s", refused, retry=AT_ONCE)

    run = await Bench(body).go()
    assert run.status is RunStatus.FAILED
    assert tries == 1


async def test_a_long_delay_holds_no_worker() -> None:
    tries: list[float] = []

    async def body(ctx: Context) -> str:
        def flaky() -> str:
            tries.append(bench.clock.now)
            if len(tries) < 3:
                raise OSError(len(tries))
            return "done"

        return await ctx.step("s", flaky, retry=LATER)

    bench = Bench(body)
    run = await bench.submit()
    assert (await bench.once(run.run_id)).how == "parked"
    parked = await bench.client.get(bench.name, run.run_id)
    assert parked.status is RunStatus.SLEEPING
    run = await bench.drive(run.run_id)
    assert run.result == "done"
    first, second, third = tries
    assert 100 <= second - first < 101
    assert 200 <= third - second < 201
    types = await bench.types(run.run_id)
    assert types.count("step.retrying") == 2


async def test_tries_before_a_park_count() -> None:
    tries = 0

    def fail() -> None:
        nonlocal tries
        tries += 1
        raise OSError(tries)

    async def body(ctx: Context) -> None:
        await ctx.step("s", fail, retry=LATER)

    run = await Bench(body).go()
    assert run.status is RunStatus.FAILED
    assert tries == 3
    assert run.error is not None
    assert run.error["detail"]["attempts"] == 3


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_timeout_is_tried_again_and_then_fails(kind: str) -> None:
    tries = 0
    done = threading.Event()

    async def slow() -> None:
        nonlocal tries
        tries += 1
        await anyio.sleep_forever()

    def slow_plain() -> None:
        nonlocal tries
        tries += 1
        done.wait(10)

    async def body(ctx: Context) -> Any:
        try:
            await ctx.step("s", slow if kind == "async" else slow_plain, timeout=0.02, retry=AT_ONCE)
        except StepFailed as failure:
            return [failure.matches(StepTimedOut), failure.matches(TimeoutError), failure.attempts]

    with anyio.fail_after(5):
        run = await Bench(body).go()
    done.set()
    assert run.result == [True, True, 3]
    assert tries == 3


async def test_a_step_in_time_knows_nothing_of_its_timeout() -> None:
    async def body(ctx: Context) -> int:
        return await ctx.step("s", plus_one, 1, timeout=60.0)

    assert (await Bench(body).go()).result == 2


# --- what cannot be written ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"items": [1, {"price": object()}]}, "result.items[1].price"),
        (float("nan"), "result"),
        (2**70, "result"),
        ({1: 2}, "result"),
        (datetime(2024, 5, 1), "result"),  # noqa: DTZ001 - the point of it
        ("\ud800", "result"),
        (lambda: 1, "result"),
    ],
)
async def test_a_result_that_cannot_be_written_fails_the_run_and_names_the_place(value: Any, place: str) -> None:
    tries = 0

    def make() -> Any:
        nonlocal tries
        tries += 1
        return value

    async def body(ctx: Context) -> None:
        await ctx.step("s", make, retry=AT_ONCE)

    with anyio.fail_after(5):
        run = await Bench(body).go()
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert place in run.error["message"]
    assert tries == 1


async def test_the_runs_own_result_that_cannot_be_written() -> None:
    async def body(ctx: Context) -> Any:
        return {"items": [object()]}

    run = await Bench(body).go()
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert run.error["code"] == "not_encodable"
    assert "result.items[0]" in run.error["message"]


async def test_a_payload_over_the_limit_names_both_sizes() -> None:
    async def body(ctx: Context) -> None:
        await ctx.step("s", lambda: "x" * 2_000_000)

    run = await Bench(body).go()
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert "1048576" in run.error["message"]
    assert "2000002" in run.error["message"]


async def test_a_runs_result_over_the_limit() -> None:
    async def body(ctx: Context) -> str:
        return "x" * 2_000_000

    run = await Bench(body).go()
    assert run.error is not None
    assert run.error["code"] == "payload_too_large"


# --- at most once -------------------------------------------------------------------------


async def test_at_most_once_records_its_intent_first() -> None:
    types: list[str] = []

    async def body(ctx: Context) -> int:
        async def look() -> int:
            types.extend(await bench.types("r1"))
            return 1

        return await ctx.step("s", look, at_most_once=True)

    bench = Bench(body)
    run = await bench.go()
    assert run.result == 1
    assert types[-1] == "step.started"


async def test_at_most_once_is_not_run_again_after_a_crash() -> None:
    ran = 0

    def charge() -> str:
        nonlocal ran
        ran += 1
        return "charged"

    async def body(ctx: Context) -> str:
        try:
            return await ctx.step("s", charge, at_most_once=True)
        except StepFailed as failure:
            return "unknown" if failure.matches(AtMostOnceUnknown) else "failed"

    bench = Bench(body)
    bench.store = CrashAt(bench.memory, 1)
    run = await bench.submit()
    with pytest.raises(Crashed):
        await bench.once(run.run_id)
    bench.store = bench.memory
    await bench.lose()
    run = await bench.drive(run.run_id)
    assert run.result == "unknown"
    assert ran == 1


async def test_at_most_once_is_not_tried_again() -> None:
    ran = 0

    def charge() -> None:
        nonlocal ran
        ran += 1
        raise OSError("line down")

    async def body(ctx: Context) -> None:
        await ctx.step("s", charge, at_most_once=True, retry=AT_ONCE)

    run = await Bench(body, retry=Retry(max_attempts=3, initial=1.0)).go()
    assert run.status is RunStatus.FAILED
    assert ran == 1


# --- one id twice at once -----------------------------------------------------------------


async def both_at_once(ctx: Context) -> list[str]:
    """Two calls under one id; gives the types of their errors."""
    errors: list[str] = []

    async def one() -> None:
        try:
            await ctx.step("same", anyio.sleep, 0.01)
        except Exception as error:
            errors.append(type(error).__name__)

    async with anyio.create_task_group() as group:
        group.start_soon(one)
        group.start_soon(one)
    return errors


async def test_one_id_twice_at_once_fails_the_run_though_it_is_caught() -> None:
    caught: list[str] = []
    after: list[str] = []

    async def body(ctx: Context) -> None:
        caught.extend(await both_at_once(ctx))
        await ctx.step("after", after.append, "ran")

    run = await Bench(body).go()
    assert caught == ["ConcurrentStepIdError"]
    assert after == ["ran"]
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert run.error["code"] == "concurrent_step_id"


async def test_it_fails_at_the_next_suspension() -> None:
    async def body(ctx: Context) -> None:
        await both_at_once(ctx)
        await ctx.sleep(1000)
        raise AssertionError("it went on")

    bench = Bench(body)
    run = await bench.go()
    assert run.error is not None
    assert run.error["code"] == "concurrent_step_id"
    assert "timer.set" not in await bench.types(run.run_id)


async def test_one_after_the_other_is_no_conflict() -> None:
    async def body(ctx: Context) -> list[int]:
        return [await ctx.step("same", lambda: 1), await ctx.step("same", lambda: 2)]

    assert (await Bench(body).go()).result == [1, 2]


async def test_legs_of_a_gather_are_no_conflict() -> None:
    async def body(ctx: Context) -> list[int]:
        return await ctx.gather(ctx.step("same", lambda: 1), ctx.step("same", lambda: 2))

    assert (await Bench(body).go()).result == [1, 2]


# --- changed code -------------------------------------------------------------------------


async def parked_then_changed(before: Callable[..., Any], after: Callable[..., Any]) -> tuple[Bench, Any]:
    bench = Bench(before)
    run = await bench.submit()
    assert (await bench.once(run.run_id)).how == "parked"
    types = await bench.types(run.run_id)
    bench.replace_body(after)
    run = await bench.drive(run.run_id)
    assert [t for t in await bench.types(run.run_id) if t != "run.resumed"] == types, "the journal was touched"
    return bench, run


async def test_another_kind_of_call_is_refused_before_anything_runs() -> None:
    ran: list[str] = []

    async def before(ctx: Context) -> None:
        await ctx.now()
        await ctx.sleep(5)

    async def after(ctx: Context) -> None:
        try:
            await ctx.uuid()
        except Exception:
            ran.append("caught")
        try:
            await ctx.step("s", ran.append, "ran")
        except Exception:
            ran.append("caught too")

    bench, run = await parked_then_changed(before, after)
    assert run.status is RunStatus.FAILED
    assert run.error["code"] == "version_skew"
    assert "now" in run.error["message"]
    assert "uuid" in run.error["message"]
    assert "ran" not in ran
    bench.replace_body(before)
    await bench.client.retry(bench.name, run.run_id)
    assert (await bench.drive(run.run_id)).status is RunStatus.COMPLETED


async def test_a_record_that_the_code_no_longer_asks_for() -> None:
    async def before(ctx: Context) -> None:
        await ctx.step("gone", nothing)
        await ctx.sleep(5)

    async def after(ctx: Context) -> str:
        await ctx.sleep(5)
        return "done"

    bench = Bench(before)
    run = await bench.submit()
    await bench.once(run.run_id)
    bench.replace_body(after)
    run = await bench.drive(run.run_id)
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert run.error["code"] == "version_skew"
    assert "'gone'" in run.error["message"]
    bench.replace_body(before)
    for _ in range(2):  # set aside again and again does no harm
        await bench.client.retry(bench.name, run.run_id)
        bench.replace_body(after)
        assert (await bench.drive(run.run_id)).status is RunStatus.FAILED
    bench.replace_body(before)
    await bench.client.retry(bench.name, run.run_id)
    assert (await bench.drive(run.run_id)).status is RunStatus.COMPLETED


async def test_another_function_under_the_same_id_is_no_other_call() -> None:
    async def before(ctx: Context) -> int:
        value = await ctx.step("s", lambda: 1)
        await ctx.sleep(5)
        return value

    async def after(ctx: Context) -> int:
        value = await ctx.step("s", plus_one, 100)
        await ctx.sleep(5)
        return value

    bench = Bench(before)
    run = await bench.submit()
    await bench.once(run.run_id)
    bench.replace_body(after)
    assert (await bench.drive(run.run_id)).result == 1


async def test_a_recorded_result_that_no_longer_fits_its_annotation() -> None:
    def text() -> str:
        return "many"

    def number() -> int:
        return 5

    async def before(ctx: Context) -> None:
        await ctx.step("s", text)
        await ctx.sleep(5)

    async def after(ctx: Context) -> None:
        await ctx.step("s", number)
        await ctx.sleep(5)

    bench = Bench(before)
    run = await bench.submit()
    await bench.once(run.run_id)
    bench.replace_body(after)
    run = await bench.drive(run.run_id)
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert "step 's' result" in run.error["message"]


async def test_a_leg_that_waits_for_its_next_try_parks_as_soon_as_it_is_the_last_one() -> None:
    async def fail() -> None:
        raise OSError("again")

    async def slow() -> None:
        await anyio.sleep(0.02)

    async def body(ctx: Context) -> None:
        await ctx.gather(
            ctx.step("a", fail, retry=LATER),
            ctx.step("b", slow),
            ctx.step("c", fail, retry=LATER),
            return_exceptions=True,
        )

    bench = Bench(body)
    run = await bench.submit()
    began = anyio.current_time()
    assert (await bench.once(run.run_id)).how == "parked"
    assert anyio.current_time() - began < 0.5
    types = await bench.types(run.run_id)
    assert (types.count("step.retrying"), types.count("step.completed")) == (2, 1)
    assert (await bench.drive(run.run_id)).status is RunStatus.COMPLETED


async def test_a_new_call_before_a_recorded_one_is_refused_before_it_runs() -> None:
    ran: list[str] = []

    async def before(ctx: Context) -> None:
        await ctx.step("a", nothing)
        await ctx.sleep(5)

    async def after(ctx: Context) -> None:
        await ctx.step("new", ran.append, "new")
        await ctx.step("a", nothing)
        await ctx.sleep(5)

    _, run = await parked_then_changed(before, after)
    assert run.status is RunStatus.FAILED
    assert run.error["code"] == "version_skew"
    assert "'new'" in run.error["message"]
    assert "'a'" in run.error["message"]
    assert ran == []


async def test_a_task_that_is_slower_on_the_replay_is_waited_for() -> None:
    """Its recorded step comes before the other task's new one, whoever of the two is first this time."""
    ran: list[str] = []

    async def body(ctx: Context) -> list[str]:
        async def recorded() -> None:
            await anyio.sleep(0.0 if ctx.attempt == 1 else 0.1)
            await ctx.step("recorded", ran.append, "recorded")

        async def other() -> None:
            await anyio.sleep(60 if ctx.attempt == 1 else 0.01)
            await ctx.step("other", ran.append, "other")

        async with anyio.create_task_group() as group:
            group.start_soon(recorded)
            group.start_soon(other)
        return sorted(ran)

    bench = Bench(body, timeout=0.5, retry=Retry(max_attempts=2, initial=1.0))
    with anyio.fail_after(10):
        run = await bench.go()
    assert run.result == ["other", "recorded"], run.error
