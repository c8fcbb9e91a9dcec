"""Runs that live long: new journals, replays that start at a checkpoint, patches, limits."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from pyrula.actors.attempt import Settings
from pyrula.contracts.errors import HistoryTooLong, SuspendInGatherLeg
from pyrula.contracts.runs import RunStatus
from pyrula.testing.audit import audit
from pyrula.workflows import Context
from tests.unit.engine.crashing import CrashAt, all_crashes
from tests.unit.engine.harness import Bench

pytestmark = pytest.mark.anyio


async def counting(ctx: Context, n: int = 0, seen: list[int] | None = None) -> list[int]:
    """Three journals: each takes a signal, does a step, streams, and goes on."""
    seen = seen or []
    seen.append(await ctx.wait_for_signal("go"))
    await ctx.step("s", lambda: n)
    await ctx.stream(f"chunk {n}")
    if n < 2:
        await ctx.continue_as_new(n=n + 1, seen=seen)
    return seen


async def sent(bench: Bench, run_id: str, count: int) -> None:
    for n in range(count):
        await bench.client.signal(bench.name, run_id, "go", n, idempotency_key=f"k{n}")


async def test_a_run_goes_on_in_a_new_journal_with_what_lies_in_its_inbox() -> None:
    bench = Bench(counting)
    run = await bench.submit()
    await sent(bench, run.run_id, 3)
    run = await bench.drive(run.run_id)
    assert (run.status, run.result, run.link) == (RunStatus.COMPLETED, [0, 1, 2], 3)
    assert [listed.run_id for listed in await bench.client.list(bench.name)] == [run.run_id]
    last = [event.type for event in await bench.events(run.run_id)]
    assert last == [
        "run.submitted",
        "run.started",
        "signal.received",
        "step.completed",
        "output.written",
        "run.completed",
    ]
    whole = [event async for event in bench.client.events(bench.name, run.run_id, link=1)]
    assert [event.type for event in whole].count("run.continued") == 2
    assert [event.seq for event in whole] == [1, 2, 3, 4, 5, 6] * 3
    assert whole[6].data == {"input": {"n": 1, "seen": [0]}, "link": 2, "chunks": 1}
    assert [chunk async for chunk in bench.client.stream(bench.name, run.run_id)] == [f"chunk {n}" for n in range(3)]
    assert await audit(bench.memory) == []


async def test_a_worker_may_die_at_any_write_of_it() -> None:
    async def lived(at: int | None, after: bool) -> tuple[Any, int, int]:
        bench = Bench(counting)
        run = await bench.submit(run_id="r1")
        await sent(bench, "r1", 3)
        worker = bench.store = CrashAt(bench.memory, at, after=after)
        try:
            await bench.drive("r1")
        except BaseException as error:
            if not all_crashes(error):
                raise
        writes = worker.writes
        if worker.dead:
            await bench.lose()
            bench.store = bench.memory
        run = await bench.drive("r1")
        assert await audit(bench.memory) == []
        return run.result, run.link, writes

    *expected, writes = await lived(None, False)
    assert writes >= 9
    for at in range(writes):
        for after in (False, True):
            assert [*(await lived(at, after))[:2]] == expected, (at, after)


async def test_inputs_that_do_not_fit_fail_the_call() -> None:
    async def body(ctx: Context, n: int = 0) -> None:
        await ctx.continue_as_new(n=n + 1, colour="red")

    bench = Bench(body)
    from pyrula.workflows.registry import registry

    registry._workflows["bench"] = bench.workflow
    try:
        run = await bench.go()
    finally:
        del registry._workflows["bench"]
    assert run.error is not None
    assert (run.error["code"], run.link) == ("invalid_input", 1)


async def test_a_leg_cannot_go_on_for_the_whole_run() -> None:
    async def body(ctx: Context) -> str:
        try:
            await ctx.gather(ctx.continue_as_new(), ctx.now())
        except SuspendInGatherLeg:
            return "refused"
        return "went on"

    assert (await Bench(body).go()).result == "refused"


async def test_calls_under_way_are_recorded_before_a_run_goes_on() -> None:
    done: list[int] = []

    async def body(ctx: Context, n: int = 0) -> int:
        if n:
            return n
        begun = anyio.Event()

        async def slow() -> int:
            begun.set()
            await anyio.sleep(0.01)
            done.append(1)
            return 1

        async with anyio.create_task_group() as group:
            group.start_soon(ctx.step, "slow", slow)
            await begun.wait()
            await ctx.continue_as_new(n=1)
        return -1

    bench = Bench(body)
    run = await bench.go()
    assert (run.result, done) == (1, [1])
    old = [event.type async for event in bench.client.events(bench.name, run.run_id, link=1)][:4]
    assert old == ["run.submitted", "run.started", "step.completed", "run.continued"]


async def test_a_cancel_request_stops_a_run_that_goes_on_for_ever() -> None:
    async def body(ctx: Context, n: int = 0) -> None:
        await ctx.step("s", lambda: n)
        await ctx.continue_as_new(n=n + 1)

    bench = Bench(body)
    run = await bench.submit()
    for _ in range(5):
        await bench.once(run.run_id)
    await bench.client.cancel(bench.name, run.run_id, "enough")
    run = await bench.drive(run.run_id)
    assert (run.status, run.link) == (RunStatus.CANCELLED, 6)


async def test_a_journal_has_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    async def body(ctx: Context, n: int = 0) -> str:
        try:
            while True:
                n = await ctx.step(f"s{n}", lambda n=n: n + 1)
        except HistoryTooLong as error:
            if n > 30:
                return f"{n}: {error}"
            await ctx.continue_as_new(n=n)

    bench = Bench(body, settings=Settings(history_warning=10, history_limit=20))
    with caplog.at_level(logging.WARNING, "pyrula.run"):
        run = await bench.go()
    assert run.link == 2
    assert "limit is 20" in run.result
    assert run.result.startswith("36: ")
    assert [record.message for record in caplog.records if "should go on" in record.message] != []


async def restarting(ctx: Context, rounds: int) -> list[int]:
    """Rounds of two steps; a replay starts with the last round."""
    state = ctx.restored or {"n": 0, "seen": []}
    while state["n"] < rounds:
        value = await ctx.step("first", SEEN.append, state["n"])
        value = await ctx.step("second", lambda n=state["n"]: n * 10)
        await ctx.gather(ctx.step("leg", lambda: 1), ctx.now())
        await ctx.sleep(1)
        state = {"n": state["n"] + 1, "seen": [*state["seen"], value]}
        state = await ctx.checkpoint(state, restart=True)
    return list(state["seen"])


SEEN: list[int] = []


async def test_a_replay_starts_at_the_checkpoint() -> None:
    SEEN.clear()
    bench = Bench(restarting)
    run = await bench.go({"rounds": 5})
    assert (run.result, SEEN) == ([0, 10, 20, 30, 40], [0, 1, 2, 3, 4])
    assert await audit(bench.memory) == []
    keys = [event.key for event in await bench.events(run.run_id) if event.type == "step.completed"]
    assert keys == ["first", "second", "g1.0/leg"] * 5


async def test_a_worker_may_die_at_any_write_around_the_checkpoints() -> None:
    async def lived(at: int | None, after: bool) -> tuple[Any, int]:
        bench = Bench(restarting)
        await bench.submit({"rounds": 3}, run_id="r1")
        worker = bench.store = CrashAt(bench.memory, at, after=after)
        try:
            await bench.drive("r1")
        except BaseException as error:
            if not all_crashes(error):
                raise
        if worker.dead:
            await bench.lose()
            bench.store = bench.memory
        run = await bench.drive("r1")
        assert await audit(bench.memory) == []
        return run.result, worker.writes

    expected, writes = await lived(None, False)
    for at in range(writes):
        for after in (False, True):
            assert (await lived(at, after))[0] == expected == [0, 10, 20], (at, after)


async def test_a_checkpoint_where_replays_start_stands_alone() -> None:
    async def body(ctx: Context) -> None:
        await ctx.gather(ctx.checkpoint(1, restart=True), ctx.now())

    run = await Bench(body).go()
    assert run.error is not None
    assert "nothing else may be under way" in run.error["message"]


# --- patches ----------------------------------------------------------------------------------


async def old(ctx: Context) -> str:
    await ctx.step("a", lambda: 1)
    await ctx.wait_for_signal("go")
    return "old"


async def patched(ctx: Context) -> str:
    await ctx.step("a", lambda: 1)
    if await ctx.patched("p"):
        await ctx.step("new", lambda: 2)
    await ctx.wait_for_signal("go")
    return "new" if await ctx.patched("p") else "old"


async def deprecated(ctx: Context) -> str:
    await ctx.step("a", lambda: 1)
    await ctx.deprecate_patch("p")
    await ctx.step("new", lambda: 2)
    await ctx.wait_for_signal("go")
    return "deprecated"


async def clean(ctx: Context) -> str:
    await ctx.step("a", lambda: 1)
    await ctx.step("new", lambda: 2)
    await ctx.wait_for_signal("go")
    return "clean"


@pytest.mark.parametrize(
    ("before", "after", "result"),
    [
        (old, patched, "old"),
        (patched, patched, "new"),
        (patched, deprecated, "deprecated"),
        (deprecated, deprecated, "deprecated"),
        (deprecated, clean, "clean"),
        (clean, clean, "clean"),
    ],
)
async def test_code_may_change_under_a_run(before: Any, after: Any, result: str) -> None:
    bench = Bench(before)
    run = await bench.go()
    assert run.status is RunStatus.WAITING
    bench.replace_body(after)
    await bench.client.signal(bench.name, run.run_id, "go")
    run = await bench.drive(run.run_id)
    assert (run.status, run.result) == (RunStatus.COMPLETED, result), run.error


@pytest.mark.parametrize(("before", "after"), [(patched, clean), (patched, old)])
async def test_code_that_changed_too_far_is_refused(before: Any, after: Any) -> None:
    bench = Bench(before)
    run = await bench.go()
    bench.replace_body(after)
    await bench.client.signal(bench.name, run.run_id, "go")
    run = await bench.drive(run.run_id)
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert run.error["code"] == "version_skew"
    bench.replace_body(before)
    await bench.client.retry(bench.name, run.run_id)
    assert (await bench.drive(run.run_id)).status is RunStatus.COMPLETED


async def test_a_patch_is_decided_once_for_a_run() -> None:
    async def first(ctx: Context) -> list[bool]:
        await ctx.step("a", lambda: 1)
        await ctx.wait_for_signal("go")
        return []

    async def then(ctx: Context) -> list[bool]:
        found = [await ctx.patched("p")]
        await ctx.step("a", lambda: 1)
        await ctx.wait_for_signal("go")
        return [*found, await ctx.patched("p"), await ctx.patched("q")]

    bench = Bench(first)
    run = await bench.go()
    bench.replace_body(then)
    await bench.client.signal(bench.name, run.run_id, "go")
    assert (await bench.drive(run.run_id)).result == [False, False, True]
