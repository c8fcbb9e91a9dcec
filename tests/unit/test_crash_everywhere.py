"""`crash_everywhere`: what it tries, and that it finds what is wrong with a body."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from pyrula.contracts.errors import ConfigurationError
from pyrula.contracts.runs import Run
from pyrula.testing import CrashReport, crash_everywhere
from pyrula.workflows import Context, MemoryStore, Workflow
from pyrula.workflows.registry import registry


@pytest.fixture
def made() -> Any:
    """Registers a body for one test."""
    before = dict(registry._workflows)

    def make(fn: Callable[..., Any], name: str = "fragile") -> Workflow:
        item = Workflow(fn, name=name, version=None, timeout=None, retry=None)
        registry._workflows[name] = item
        return item

    yield make
    registry._workflows.clear()
    registry._workflows.update(before)


def double(x: int) -> int:
    return 2 * x


async def sound(ctx: Context, amount: int) -> list[Any]:
    price = await ctx.step("price", double, amount)
    legs = await ctx.gather(*[ctx.step(f"leg {n}", double, n) for n in range(3)])
    await ctx.sleep(86400)
    go = await ctx.wait_for_signal("go")
    answer = await ctx.interrupt("really?", key="sure")
    return [price, legs, go, answer]


def test_a_sound_body_comes_to_the_same_end_from_everywhere(made: Any) -> None:
    seen: list[Run] = []
    report = crash_everywhere(
        made(sound), {"amount": 3}, signals={"go": "went"}, answers={"sure": ["yes"]}, after=seen.append
    )
    assert report.ok, report
    assert (report.ends, report.result_compared) == ("completed", True)
    assert {run.result[2] for run in seen} == {"went"}
    assert {crash.loop for crash in report.crashes} == {"asyncio", "trio"}
    told = {crash.what for crash in report.crashes}
    assert {"step.completed 'price'", "timer.set '@wait'", "run.completed"} <= {what.split(", ")[-1] for what in told}
    assert {crash.after for crash in report.crashes} == {False, True}
    assert len(report.crashes) >= 2 * 2 * 6
    assert "0 problems; the run is completed" in str(report)


def test_what_a_store_can_do_is_seen_through_a_dying_one() -> None:
    from inspect import getattr_static

    from pyrula.contracts.triggers import Events
    from pyrula.testing.crashing import CrashAt

    dying = CrashAt(MemoryStore())
    assert isinstance(dying, Events)
    assert getattr_static(dying, "emit") is dying.emit  # as Python 3.12 looks for it


def test_child_runs_are_worked_on(made: Any) -> None:
    async def child(ctx: Context, n: int) -> int:
        await ctx.sleep(3600)
        return await ctx.step("double", double, n)

    async def parent(ctx: Context) -> int:
        first = await ctx.run_child("child", {"n": 1})
        return first + sum(
            await ctx.gather(ctx.run_child("child", {"n": 2}, poll_interval=0.01), ctx.step("own", double, 5))
        )

    made(child, "child")
    report = crash_everywhere(made(parent))
    assert report.ok, report
    assert (report.ends, report.result_compared) == ("completed", True)
    assert any("child.started" in crash.what for crash in report.crashes)


def test_it_may_be_called_in_a_running_loop(made: Any) -> None:
    async def test() -> CrashReport:
        return crash_everywhere(made(sound), {"amount": 1}, loops=["asyncio"])

    report = anyio.run(test)
    assert report.ok, report
    assert report.ends == "waiting (waits for signal:go)"


def test_a_body_that_depends_on_what_is_not_recorded_is_found(made: Any) -> None:
    count = itertools.count()

    async def wild(ctx: Context) -> int:
        await ctx.step(f"step {next(count) % 2}", double, 1)
        await ctx.step("end", double, 1)
        return 1

    report = crash_everywhere(made(wild), loops=["asyncio"])
    assert not report.ok
    assert any("the run is failed" in what for _, what in report.problems), report


def test_a_result_from_outside_the_journal_is_found(made: Any) -> None:
    process: list[str] = []

    def note() -> None:
        process.append("noted")

    async def forgets(ctx: Context) -> int:
        await ctx.step("note", note)
        await ctx.step("other", double, 1)
        return len(process)  # the memory of a process, which a crash leaves behind

    report = crash_everywhere(made(forgets), loops=["trio"], before=process.clear)
    assert report.result_compared
    assert [(crash.write, crash.after) for crash, _ in report.problems] == [(1, False)]
    assert "the result is 2; without a crash it is 1" in str(report)


def test_a_result_that_varies_by_itself_is_not_compared(made: Any) -> None:
    async def varies(ctx: Context) -> str:
        return str(await ctx.uuid())

    report = crash_everywhere(made(varies))
    assert (report.ok, report.result_compared) == (True, False)


def test_what_a_test_looks_at_itself_is_a_problem_at_its_place(made: Any) -> None:
    charged: list[int] = []

    async def charges(ctx: Context) -> None:
        await ctx.step("charge", charged.append, 1)

    def once(run: Run) -> None:
        assert len(charged) == 1, f"charged {len(charged)} times"

    report = crash_everywhere(made(charges), before=charged.clear, after=once, loops=["asyncio"])
    [(crash, what)] = report.problems
    assert (crash.what, crash.after) == ("step.completed 'charge'", False)
    assert "charged 2 times" in what
    assert "asyncio, killed before write 1 (step.completed 'charge'): AssertionError" in str(report)


def test_a_workflow_that_nobody_has_registered_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not registered"):
        crash_everywhere(Workflow(sound, name="nobody's", version=None, timeout=None, retry=None))
