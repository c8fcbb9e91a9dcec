"""Recorded histories against changed code: what is a difference, what is none, and how it is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest

from pyrula.contracts.errors import ConfigurationError, InvalidInput
from pyrula.contracts.events import Event
from pyrula.contracts.options import Retry
from pyrula.testing import ReplayReport, replay
from pyrula.workflows import Context, Workflow
from pyrula.workflows.histories import History, history_files, load_history, workflow_of
from tests.unit.engine.harness import Bench, until

Body = Callable[..., Coroutine[Any, Any, Any]]
LOOPS = ["asyncio", "trio"]
PATIENCE = 0.05
ONCE = Retry(max_attempts=1)


def double(x: int) -> int:
    return 2 * x


def never(*_: Any) -> Any:
    raise AssertionError("a replay runs no step")


def made(body: Body, **options: Any) -> Workflow:
    return Workflow(body, name="bench", **{"version": None, "timeout": None, "retry": None, **options})


def recorded(
    body: Body, given: dict[str, Any] | None = None, *, until_parked: bool = False, **acts: Any
) -> list[Event]:
    """What a body leaves behind; `acts` are signals by name, sent beforehand."""

    async def record() -> list[Event]:
        bench = Bench(body, retry=acts.pop("retry", None))
        run = await bench.submit(given)
        for name, payload in acts.items():
            await bench.client.signal(bench.name, run.run_id, name, payload)
        await (bench.once if until_parked else bench.drive)(run.run_id)
        return await bench.events(run.run_id)

    return anyio.run(record)


def check(body: Body, history: list[Event], loop: str, **options: Any) -> ReplayReport:
    return replay(made(body, **options), history, patience=PATIENCE, loop=loop)


async def order(ctx: Context, amount: int = 1) -> list[Any]:
    price = await ctx.step("price", double, amount)
    legs = await ctx.gather(ctx.step("a", double, 1), ctx.step("b", double, 2))
    await ctx.sleep(86400)
    approved = await ctx.wait_for_signal("approved")
    return [price, legs, approved, str(await ctx.uuid())]


async def order_now(ctx: Context, amount: int = 1) -> list[Any]:
    price = await ctx.step("price", never, amount)
    legs = await ctx.gather(ctx.step("a", never, 1), ctx.step("b", never, 2))
    await ctx.sleep(86400)
    approved = await ctx.wait_for_signal("approved")
    return [price, legs, approved, str(await ctx.uuid())]


@pytest.mark.parametrize("loop", LOOPS)
def test_the_same_code_replays_and_runs_no_step(loop: str) -> None:
    report = check(order_now, recorded(order, approved="yes"), loop)
    assert report.ok, report
    assert report.reached == "completed"
    assert "replays; reached completed" in str(report)


@pytest.mark.parametrize("loop", LOOPS)
def test_each_beginning_of_a_history_replays(loop: str) -> None:
    history = recorded(order, approved="yes")
    for length in range(2, len(history)):
        report = check(order_now, history[:length], loop)
        assert report.ok, report
        last = history[length - 1].type == "value.recorded"
        assert report.reached == "completed" if last else "the end of the recording" in report.reached


async def renamed(ctx: Context, amount: int = 1) -> Any:
    return await ctx.step("cost", never, amount)


async def other_kind(ctx: Context, amount: int = 1) -> Any:
    await ctx.step("price", never, amount)
    await ctx.gather(ctx.step("a", never, 1), ctx.step("b", never, 2))
    return await ctx.wait_for_signal("approved")


async def other_signal(ctx: Context, amount: int = 1) -> Any:
    await ctx.step("price", never, amount)
    await ctx.gather(ctx.step("a", never, 1), ctx.step("b", never, 2))
    await ctx.sleep(1)
    return await ctx.wait_for_signal("rejected")


async def put_in_between(ctx: Context, amount: int = 1) -> Any:
    await ctx.step("price", never, amount)
    await ctx.step("tax", never, amount)
    return await ctx.gather(ctx.step("a", never, 1), ctx.step("b", never, 2))


async def gone(ctx: Context, amount: int = 1) -> Any:
    await ctx.step("price", never, amount)
    return "done"


async def one_leg_more(ctx: Context, amount: int = 1) -> Any:
    await ctx.step("price", never, amount)
    return await ctx.gather(ctx.step("a", never, 1), ctx.step("b", never, 2), ctx.step("c", never))


async def more_at_the_end(ctx: Context, amount: int = 1) -> Any:
    found = await order_now(ctx, amount)
    return [*found, await ctx.step("report", never)]


async def fails(ctx: Context, amount: int = 1) -> Any:
    await order_now(ctx, amount)
    raise LookupError("new code")


async def other_parameters(ctx: Context, sku: str) -> Any:
    return await ctx.step("price", never, sku)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("body", "seq", "was", "now", "line"),
    [
        (renamed, 3, "step 'price'", "step 'cost'", "cost"),
        (other_kind, 6, "sleep '@wait'", "signal wait '@wait'", "wait_for_signal"),
        (other_signal, 9, "approved", "rejected", "wait_for_signal"),
        (put_in_between, 4, "step 'g1.0/a'", "step 'tax'", "tax"),
        (gone, 4, "step 'g1.0/a'", "nothing", ""),
        (one_leg_more, 6, "sleep '@wait'", "step 'g1.2/c'", "gather"),
        (more_at_the_end, 11, "the run's end: completed", "step 'report'", "report"),
        (fails, 11, "the run's end: completed", "failed (LookupError: new code)", "raise LookupError"),
        (other_parameters, 1, "amount", "sku", ""),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_the_first_difference_is_told_with_its_place(
    body: Body, seq: int, was: str, now: str, line: str, loop: str
) -> None:
    history = recorded(order, {"amount": 1}, approved="yes")
    report = check(body, history, loop)
    found = report.difference
    assert found is not None
    assert (found.recorded, found.asked) == (was, now)
    assert found.seq == seq, [f"{e.seq} {e.type} {e.key}" for e in history]
    if line:
        path, _, number = found.where.rpartition(":")
        assert line in Path(path).read_text().splitlines()[int(number) - 1]
    else:
        assert found.where == ""
    assert was in str(report)
    assert now in str(report)


@pytest.mark.parametrize("loop", LOOPS)
def test_new_calls_behind_an_unfinished_recording_are_no_difference(loop: str) -> None:
    async def began(ctx: Context) -> None:
        await ctx.step("a", double, 1)
        await ctx.sleep(60)

    async def goes_on(ctx: Context) -> Any:
        await ctx.step("a", never)
        await ctx.sleep(5)
        return await ctx.step("new", never)

    history = recorded(began, until_parked=True)
    assert history[-1].type == "timer.set"
    report = check(goes_on, history, loop)
    assert report.ok, report


@pytest.mark.parametrize("loop", LOOPS)
def test_failed_and_retried_runs_replay(loop: str) -> None:
    fail = [True]

    def flaky() -> int:
        if fail.pop() if fail else False:
            raise ValueError("once")
        return 1

    async def body(ctx: Context) -> Any:
        return await ctx.step("flaky", flaky, retry=Retry(max_attempts=1))

    history = recorded(body, retry=Retry(max_attempts=2, initial=10))
    assert [event.type for event in history].count("run.retried") == 1
    for length in range(3, len(history) + 1):
        fail[:] = [True]
        report = check(body, history[:length], loop, retry=Retry(max_attempts=2))
        assert report.ok, report

    async def fails(ctx: Context) -> Any:
        fail[:] = [True]
        return await ctx.step("flaky", flaky, retry=Retry(max_attempts=1))

    history = recorded(fails)
    assert history[-1].type == "run.failed"
    assert check(fails, history, loop).reached == "failed"

    async def catches(ctx: Context) -> Any:
        try:
            await fails(ctx)
        except Exception:
            return "caught"

    found = check(catches, history, loop).difference
    assert found is not None
    assert (found.recorded, found.asked) == ("the run's end: failed", "completed")


@pytest.mark.parametrize("loop", LOOPS)
def test_a_leg_that_was_cut_off_is_no_difference(loop: str) -> None:
    async def slow() -> None:
        await anyio.sleep_forever()

    def boom() -> None:
        raise ValueError("boom")

    async def body(ctx: Context) -> str:
        try:
            await ctx.gather(ctx.step("slow", slow), ctx.step("fails", boom, retry=Retry(max_attempts=1)))
        except Exception:
            return await ctx.step("end", str)
        return "no"

    report = check(body, recorded(body), loop)
    assert report.ok, report
    assert report.reached == "completed"


@pytest.mark.parametrize("loop", LOOPS)
def test_whatever_else_a_body_does_replays(loop: str) -> None:
    """Threads, output, published values, events, attributes, recorded values, cancelled runs."""

    async def body(ctx: Context) -> Any:
        ctx.set_attributes(tier="gold")
        await ctx.emit("shop.order", {"n": 1})
        await ctx.stream("chunk")
        await ctx.commit("progress", 1)
        at, number, state = await ctx.now(), await ctx.random(), await ctx.checkpoint({"a": 1})
        thread = await ctx.to_thread(lambda: ctx.from_thread(ctx.step, "in a thread", double, 2))
        return [at, number, state, thread]

    history = recorded(body)
    for length in range(2, len(history) + 1):
        report = check(body, history[:length], loop)
        assert report.ok, report

    async def clean(ctx: Context) -> None:
        try:
            await ctx.step("a", double, 1)
            await ctx.sleep(60)
        finally:
            await ctx.step("clean", double, 1)

    async def cancelled() -> list[Event]:
        bench = Bench(clean)
        run = await bench.submit()
        await bench.once(run.run_id)
        await bench.client.cancel(bench.name, run.run_id)
        await bench.drive(run.run_id)
        return await bench.events(run.run_id)

    history = anyio.run(cancelled)
    assert history[-1].type == "run.cancelled"
    for length in range(2, len(history) + 1):
        report = check(clean, history[:length], loop)
        assert report.ok, report


@pytest.mark.parametrize("loop", LOOPS)
def test_open_children_of_a_recorded_run_are_left_alone(loop: str) -> None:
    async def body(ctx: Context) -> str:
        await ctx.spawn("other", {})
        try:
            await ctx.gather(ctx.run_child("child", {}, parent_close="terminate"), ctx.step("fails", boom, retry=ONCE))
        except Exception:
            return "failed"
        return "no"

    def boom() -> None:
        raise ValueError("boom")

    history = recorded(body)
    assert "child.started" in [event.type for event in history]
    for length in range(2, len(history) + 1):
        report = check(body, history[:length], loop)
        assert report.ok, report


@pytest.mark.parametrize("loop", LOOPS)
def test_a_change_behind_a_patch_replays(loop: str) -> None:
    async def old(ctx: Context) -> Any:
        await ctx.step("first", double, 1)
        await ctx.step("old", double, 2)
        await ctx.sleep(60)
        return "done"

    async def new(ctx: Context) -> Any:
        await ctx.step("first", never)
        if await ctx.patched("other-step"):
            await ctx.step("new", double, 3)
        else:
            await ctx.step("old", never)
        await ctx.sleep(60)
        return "done"

    async def careless(ctx: Context) -> Any:
        await ctx.step("first", never)
        await ctx.step("new", never)
        await ctx.sleep(60)
        return "done"

    history = recorded(old)
    for length in range(2, len(history) + 1):
        report = check(new, history[:length], loop)
        assert report.ok, report
    assert not check(careless, history, loop).ok

    async def from_then_on(ctx: Context) -> Any:
        await ctx.step("first", double, 1)
        if await ctx.patched("other-step"):
            await ctx.step("new", double, 3)
        await ctx.sleep(60)
        return "done"

    assert check(new, recorded(from_then_on), loop).reached == "completed"


@pytest.mark.parametrize("loop", LOOPS)
def test_each_journal_of_a_long_run_replays(loop: str) -> None:
    async def rounds(ctx: Context, number: int = 1) -> Any:
        await ctx.step("work", double, number)
        if number == 1:
            await ctx.continue_as_new(number=2)
        return "done"

    async def restarts(ctx: Context, pages: int = 2) -> Any:
        state = ctx.restored or {"page": 0}
        while state["page"] < pages:
            await ctx.sleep(60)
            await ctx.step("fetch", double, 1)
            state = await ctx.checkpoint({"page": state["page"] + 1}, restart=True)
        return state["page"]

    async def chain() -> list[Event]:
        bench = Bench(rounds)
        run = await bench.go()
        return [event async for event in bench.client.events(bench.name, run.run_id, link=1)]

    history = anyio.run(chain)
    assert [event.type for event in history].count("run.continued") == 1
    for length in range(2, len(history) + 1):
        if history[length - 1].type != "run.submitted":
            report = check(rounds, history[:length], loop)
            assert report.ok, report

    async def other(ctx: Context, number: int = 1) -> Any:
        await ctx.step("work" if number == 1 else "changed", never)
        await ctx.continue_as_new(number=number + 1)

    found = check(other, history, loop).difference
    assert found is not None
    assert (found.recorded, found.asked, found.seq) == ("step 'work'", "step 'changed'", 3)
    report = check(restarts, recorded(restarts), loop)
    assert report.reached == "completed", report


@pytest.mark.parametrize("loop", LOOPS)
def test_recorded_updates_replay(loop: str) -> None:
    async def body(ctx: Context) -> list[int]:
        asked: list[int] = []
        ctx.on_update("add", lambda n: asked.append(n) or sum(asked))
        await ctx.step("first", double, 1)
        await ctx.wait_for_signal("go")
        await ctx.step(f"second of {len(asked)}", double, 1)
        return asked

    async def record() -> list[Event]:
        bench = Bench(body)
        run = await bench.submit()
        await bench.once(run.run_id)
        async with anyio.create_task_group() as group:
            group.start_soon(bench.client.update, bench.name, run.run_id, "add", 5)
            await until(lambda: bench.memory._run(bench.name, run.run_id).inbox)  # type: ignore[union-attr]
            await bench.drive(run.run_id)
        await bench.client.signal(bench.name, run.run_id, "go")
        await bench.drive(run.run_id)
        return await bench.events(run.run_id)

    history = anyio.run(record)
    assert history[-1].data["result"] == [5]
    for length in range(2, len(history) + 1):
        report = check(body, history[:length], loop)
        assert report.ok, report


@pytest.mark.parametrize("loop", LOOPS)
def test_a_body_that_waits_for_something_else_is_told(loop: str) -> None:
    async def body(ctx: Context) -> Any:
        return await ctx.step("a", double, 1)

    async def stuck(ctx: Context) -> Any:
        await anyio.Event().wait()

    from pyrula.actors import rehearsing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rehearsing, "_LONGEST", 0.1)
        found = check(stuck, recorded(body), loop).difference
    assert found is not None
    assert (found.recorded, found.asked) == ("step 'a'", "nothing")


# --- files ----------------------------------------------------------------------------------


def lines(events: list[Event], **more: Any) -> str:
    return "".join(json.dumps({**more, **event.to_json()}) + "\n" for event in events)


def test_a_file_is_read_as_it_was_printed(tmp_path: Path) -> None:
    events = recorded(order, approved="yes")
    file = tmp_path / "one.jsonl"
    file.write_text(lines(events, workflow="bench", run_id="r1"))
    history = load_history(file)
    assert list(history.events) == events
    assert (history.workflow, history.run_id) == ("bench", "r1")
    report = replay(made(order_now), file)
    assert report.ok
    assert report.history == str(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it must begin with seq 1, run.submitted"),
        ("{}\n", r"bad.jsonl:1 is no event \(KeyError: 'at'\)"),
        ("[1]\n", "bad.jsonl:1 is no event"),
        ("\n{\n", "bad.jsonl:2 is no event"),
    ],
)
def test_a_file_that_is_none_is_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=message):
        load_history(file)


def test_a_history_with_a_hole_is_refused_and_so_is_a_missing_file(tmp_path: Path) -> None:
    events = recorded(order, approved="yes")
    with pytest.raises(InvalidInput, match="where seq 3 belongs it has 4"):
        History((*events[:2], *events[3:]))
    with pytest.raises(InvalidInput, match="cannot read"):
        load_history(tmp_path / "none.jsonl")


def test_whose_history_it_is(tmp_path: Path) -> None:
    events = tuple(recorded(order, approved="yes"))
    one, two = made(order), Workflow(order, name="other", version=None, timeout=None, retry=None)
    assert workflow_of(History(events, "other"), [one, two]) is two
    assert workflow_of(History(events, path=tmp_path / "bench.2026.jsonl"), [one, two]) is one
    assert workflow_of(History(events, path=tmp_path / "other" / "x.jsonl"), [one, two]) is two
    assert workflow_of(History(events), [one]) is one
    for history in (History(events), History(events, "gone")):
        with pytest.raises(ConfigurationError, match="is not among those known here"):
            workflow_of(history, [one, two])


def test_files_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "order").mkdir()
    for name in ("b.jsonl", "order/a.json", "notes.txt"):
        (tmp_path / name).write_text("")
    assert [str(path.relative_to(tmp_path)) for path in history_files(tmp_path)] == ["b.jsonl", "order/a.json"]
