"""Child runs with real workers on a memory store: results, failures, timeouts, closing, places, crashes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date
from typing import Any

import anyio
import pytest

from pyrula.contracts.errors import (
    ChildTimedOut,
    ChildWorkflowError,
    RunCancelled,
    RunFailed,
    RunNotFound,
    RunTerminated,
    StepFailed,
)
from pyrula.contracts.runs import RunStatus
from pyrula.workflows import Context, MemoryStore, NonRetryable, WorkerOptions, WorkflowWorker, workflow

pytestmark = pytest.mark.anyio

log: list[Any] = []


@dataclass
class Label:
    text: str
    on: date


@workflow
async def dispatch(ctx: Context, order: str) -> Label:
    log.append(("owner", ctx.owner))
    return await ctx.step("label", lambda: Label(order, date(2026, 5, 1)))


@workflow
async def broken(ctx: Context, order: str = "") -> None:
    def fail() -> None:
        raise NonRetryable("no stamps")

    await ctx.step("stamp", fail)


@workflow
async def waiting(ctx: Context, name: str = "w", clean: bool = True) -> str:
    try:
        return str(await ctx.wait_for_signal("go"))
    finally:
        if clean:
            await ctx.step("clean", log.append, f"clean {name}")


@workflow
async def parent(ctx: Context, child: str, given: dict[str, Any], more: dict[str, Any]) -> Any:
    return await ctx.run_child(child, given, **more)


@workflow
async def forgetful(ctx: Context, ends: str, close: str) -> str:
    """Ends before its child does, in one of several ways."""

    async def leg() -> Any:
        return await ctx.run_child("waiting", {"name": close}, parent_close=close)

    async def fails() -> None:
        await ctx.run_child("dispatch", {"order": "x"})
        raise ValueError("enough")

    if ends == "completed":
        try:
            await ctx.run_child("waiting", {"name": close}, timeout=0, parent_close=close)
        except ChildTimedOut as error:
            return error.status
    await ctx.gather(leg(), fails() if ends == "failed" else ctx.now())
    return "never"


@workflow
async def nested(ctx: Context, depth: int) -> int:
    return 0 if depth == 0 else 1 + await ctx.run_child("nested", {"depth": depth - 1})


@workflow
async def side_by_side(ctx: Context, width: int) -> list[str]:
    labels = await ctx.gather(*(ctx.run_child(dispatch, {"order": str(n)}) for n in range(width)), max_concurrency=5)
    return [label.text for label in labels]


@workflow
async def spawner(ctx: Context) -> str:
    run_id = await ctx.spawn("waiting", {"name": "spawned"})
    await ctx.sleep(0.01)
    return run_id


@workflow
async def sender(ctx: Context, run_id: str) -> None:
    await ctx.send_signal("waiting", run_id, "go", {"from": "sender"})
    await ctx.sleep(0.01)


SERVED = [dispatch, broken, waiting, parent, forgetful, nested, side_by_side, spawner, sender]


@asynccontextmanager
async def serving(store: MemoryStore, **options: Any) -> AsyncIterator[WorkflowWorker]:
    log.clear()
    worker = WorkflowWorker(store, SERVED, WorkerOptions(shutdown_grace=0.1, **options))
    async with anyio.create_task_group() as group:
        await group.start(worker.run)
        try:
            with anyio.fail_after(20):
                yield worker
        finally:
            worker.stop()


async def until(worker: WorkflowWorker, name: str, status: str, count: int = 1) -> list[Any]:
    while True:
        page = [run for run in await worker.client.list(name) if run.status == status]
        if len(page) >= count:
            return page
        await anyio.sleep(0.005)


async def test_a_child_is_a_run_of_its_own_and_its_result_comes_decoded() -> None:
    @workflow(name="typed-parent")
    async def typed(ctx: Context) -> str:
        label = await ctx.run_child(dispatch, {"order": "o1"})
        assert isinstance(label, Label)
        assert label.on == date(2026, 5, 1)
        return label.text

    store = MemoryStore()
    worker = WorkflowWorker(store, [*SERVED, typed], WorkerOptions(shutdown_grace=0.1))
    log.clear()
    async with anyio.create_task_group() as group:
        await group.start(worker.run)
        run = await worker.client.submit(typed, owner="acme")
        assert await worker.client.result(run.name, run.run_id, timeout=10) == "o1"
        worker.stop()
    [child] = await worker.client.list("dispatch")
    assert (child.owner, child.status) == ("acme", "completed")
    assert log == [("owner", "acme")]
    types = [event.type async for event in worker.client.events(run.name, run.run_id)]
    assert types == ["run.submitted", "run.started", "child.started", "child.completed", "run.completed"]


async def test_an_owner_of_its_own() -> None:
    async with serving(MemoryStore()) as worker:
        given = {"child": "dispatch", "given": {"order": "o"}, "more": {"owner": "other"}}
        run = await worker.client.submit(parent, given, owner="acme")
        await worker.client.result("parent", run.run_id)
        assert log == [("owner", "other")]


async def test_a_failed_child_fails_its_parent_with_its_own_error_inside() -> None:
    async with serving(MemoryStore()) as worker:
        run = await worker.client.submit(parent, {"child": "broken", "given": {}, "more": {}})
        with pytest.raises(RunFailed) as failed:
            await worker.client.result("parent", run.run_id)
        assert failed.value.code == "child_failed"
        detail = failed.value.detail["detail"]
        assert (detail["workflow"], detail["status"], detail["error"]["code"]) == ("broken", "failed", "step_failed")
        assert "no stamps" in str(failed.value)


async def test_the_error_a_parent_catches_is_the_same_on_a_replay() -> None:
    seen: list[Any] = []

    @workflow(name="catching")
    async def catching(ctx: Context) -> None:
        try:
            await ctx.run_child("broken")
        except ChildWorkflowError as error:
            seen.append((type(error), str(error), error.workflow, error.status, error.error["code"]))
            seen[-1] += (error.matches(StepFailed), error.matches(ValueError))
        await ctx.sleep(0.01)

    worker = WorkflowWorker(MemoryStore(), [*SERVED, catching])
    async with anyio.create_task_group() as group:
        await group.start(worker.run)
        run = await worker.client.submit(catching)
        await worker.client.result(run.name, run.run_id, timeout=10)
        worker.stop()
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert seen[0][3:] == ("failed", "step_failed", True, False)


async def test_an_input_that_the_child_does_not_take_fails_the_parent_at_once() -> None:
    async with serving(MemoryStore()) as worker:
        run = await worker.client.submit(
            parent, {"child": "dispatch", "given": {"order": "o", "colour": 1}, "more": {}}
        )
        with pytest.raises(RunFailed, match="colour"):
            await worker.client.result("parent", run.run_id)
        assert await worker.client.count("dispatch") == 0


@pytest.mark.parametrize("more", [{"parent_close": "maybe"}, {"timeout": -1}, {"poll_interval": 0}, {"owner": "a b"}])
async def test_what_makes_no_sense_fails_the_parent(more: dict[str, Any]) -> None:
    async with serving(MemoryStore()) as worker:
        run = await worker.client.submit(parent, {"child": "dispatch", "given": {"order": "o"}, "more": more})
        with pytest.raises(RunFailed) as failed:
            await worker.client.result("parent", run.run_id)
        assert failed.value.code == "invalid_input"


async def test_a_timeout_bounds_the_wait_and_leaves_the_child() -> None:
    async with serving(MemoryStore()) as worker:
        run = await worker.client.submit(
            parent, {"child": "waiting", "given": {}, "more": {"timeout": 0.05, "parent_close": "abandon"}}
        )
        with pytest.raises(RunFailed) as failed:
            await worker.client.result("parent", run.run_id)
        assert failed.value.code == "child_timed_out"
        [child] = await until(worker, "waiting", "waiting")
        await worker.client.signal("waiting", child.run_id, "go", 1)
        assert await worker.client.result("waiting", child.run_id) == "1"


@pytest.mark.parametrize("ends", ["completed", "failed", "cancelled", "terminated"])
@pytest.mark.parametrize("close", ["cancel", "terminate", "abandon"])
async def test_what_happens_to_a_child_when_its_parent_ends(ends: str, close: str) -> None:
    async with serving(MemoryStore()) as worker:
        run = await worker.client.submit(forgetful, {"ends": ends, "close": close})
        if ends in ("cancelled", "terminated"):
            await until(worker, "waiting", "waiting")
            await (worker.client.cancel if ends == "cancelled" else worker.client.terminate)("forgetful", run.run_id)
        if ends == "completed":
            assert await worker.client.result("forgetful", run.run_id) == "has not ended within the timeout"
        else:
            with pytest.raises((RunFailed, RunCancelled, RunTerminated)):
                await worker.client.result("forgetful", run.run_id)
        [child] = await worker.client.list("waiting")
        if close == "abandon":
            await until(worker, "waiting", "waiting")
            await worker.client.signal("waiting", child.run_id, "go", "on")
            assert await worker.client.result("waiting", child.run_id) == "on"
            return
        with pytest.raises((RunCancelled, RunTerminated)) as closed:
            await worker.client.result("waiting", child.run_id)
        asked = close == "cancel" and ends != "terminated"
        assert type(closed.value) is (RunCancelled if asked else RunTerminated)
        assert closed.value.detail["requested_by"] == "parent"
        cause = closed.value.detail["detail"]["cause"]
        assert cause == {"run_id": run.run_id, "workflow": "forgetful", "ended": ends}
        begun = any(event.key for event in [e async for e in worker.client.events("waiting", child.run_id)])
        assert ("clean cancel" in log) == (asked and begun)


async def test_one_worker_with_one_place_runs_a_parent_of_a_parent_of_a_child() -> None:
    async with serving(MemoryStore(), max_concurrent_runs=1) as worker:
        run = await worker.client.submit(nested, {"depth": 6})
        assert await worker.client.result("nested", run.run_id) == 6
        assert (worker._capacity.free, worker._capacity.lent) == (1, 0)


async def test_children_side_by_side() -> None:
    async with serving(MemoryStore(), max_concurrent_runs=2) as worker:
        run = await worker.client.submit(side_by_side, {"width": 20})
        assert await worker.client.result("side_by_side", run.run_id) == [str(n) for n in range(20)]


async def test_a_crowd_of_parents_larger_than_what_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrula.actors.children._PARKED", (0.2, 1.0))
    async with serving(MemoryStore(), max_concurrent_runs=2) as worker:
        worker._capacity.most_lent = 3
        runs = [await worker.client.submit(nested, {"depth": 2}) for _ in range(15)]
        for run in runs:
            assert await worker.client.result("nested", run.run_id) == 2
        assert (worker._capacity.free, worker._capacity.lent) == (2, 0)


async def test_a_parent_that_waits_long_parks_and_is_woken_by_its_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrula.actors.children._STAYS", 0.0)
    monkeypatch.setattr("pyrula.actors.children._STAYS_AGAIN", 0.0)
    async with serving(MemoryStore()) as worker:
        run = await worker.client.submit(parent, {"child": "waiting", "given": {}, "more": {}})
        [parked] = await until(worker, "parent", "waiting")
        assert parked.waiting_on == "child"
        [child] = await until(worker, "waiting", "waiting")
        await worker.client.signal("waiting", child.run_id, "go", 7)
        assert await worker.client.result("parent", run.run_id, timeout=5) == "7"


async def test_the_news_of_a_childs_end_may_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def deaf(*_: Any) -> None: ...

    monkeypatch.setattr("pyrula.actors.running.tell_parent", deaf)
    async with serving(MemoryStore()) as worker:
        given = {"child": "dispatch", "given": {"order": "o"}, "more": {"poll_interval": 0.05}}
        run = await worker.client.submit(parent, given)
        assert (await worker.client.result("parent", run.run_id, timeout=5))["text"] == "o"


async def test_a_terminated_child_is_news_to_its_parent() -> None:
    async with serving(MemoryStore()) as worker:
        given = {"child": "waiting", "given": {}, "more": {"poll_interval": 600}}
        run = await worker.client.submit(parent, given)
        [child] = await until(worker, "waiting", "waiting")
        await worker.client.terminate("waiting", child.run_id, "by hand")
        with pytest.raises(RunFailed, match="terminated: by hand"):
            await worker.client.result("parent", run.run_id, timeout=5)


async def test_terminating_a_parent_goes_down_to_the_grandchildren() -> None:
    async with serving(MemoryStore()) as worker:
        inner = {"child": "waiting", "given": {}, "more": {}}
        run = await worker.client.submit(parent, {"child": "parent", "given": inner, "more": {}})
        await until(worker, "waiting", "waiting")
        await worker.client.terminate("parent", run.run_id)
        await until(worker, "waiting", "terminated")
        await until(worker, "parent", "terminated", 2)


async def test_a_parent_that_is_retried_retries_the_child_that_failed_it() -> None:
    tries: list[int] = []

    @workflow(name="flaky-child")
    async def flaky(ctx: Context) -> str:
        def sometimes() -> str:
            tries.append(1)
            if len(tries) < 2:
                raise NonRetryable("not yet")
            return "well"

        return await ctx.step("s", sometimes)

    worker = WorkflowWorker(MemoryStore(), [*SERVED, flaky])
    async with anyio.create_task_group() as group:
        await group.start(worker.run)
        run = await worker.client.submit(parent, {"child": "flaky-child", "given": {}, "more": {}})
        with pytest.raises(RunFailed):
            await worker.client.result("parent", run.run_id, timeout=10)
        await worker.client.retry("parent", run.run_id)
        assert await worker.client.result("parent", run.run_id, timeout=10) == "well"
        worker.stop()
    assert await worker.client.count("flaky-child") == 1


async def test_a_spawned_run_is_never_closed() -> None:
    async with serving(MemoryStore()) as worker:
        run = await worker.client.submit(spawner)
        spawned = await worker.client.result("spawner", run.run_id)
        [child] = await until(worker, "waiting", "waiting")
        assert child.run_id == spawned
        await worker.client.signal("waiting", spawned, "go", 1)
        assert await worker.client.result("waiting", spawned) == "1"


async def test_a_signal_is_sent_once_over_all_attempts() -> None:
    async with serving(MemoryStore()) as worker:
        target = await worker.client.submit(waiting)
        run = await worker.client.submit(sender, {"run_id": target.run_id})
        await worker.client.result("sender", run.run_id)
        assert await worker.client.result("waiting", target.run_id) == "{'from': 'sender'}"
        received = [
            event.type
            async for event in worker.client.events("waiting", target.run_id)
            if event.type == "signal.received"
        ]
        assert len(received) == 1


async def test_a_signal_to_nobody_is_the_senders_failure() -> None:
    async with serving(MemoryStore()) as worker:
        run = await worker.client.submit(sender, {"run_id": "nobody"})
        with pytest.raises(RunFailed) as failed:
            await worker.client.result("sender", run.run_id)
        assert failed.value.code == RunNotFound.code


async def test_another_child_at_the_same_place_is_refused_before_anything_runs() -> None:
    asked = ["dispatch", {"order": "1"}]

    @workflow(name="changing")
    async def changing(ctx: Context) -> None:
        await ctx.run_child(*asked)
        await ctx.wait_for_signal("go")

    worker = WorkflowWorker(MemoryStore(), [*SERVED, changing])
    async with anyio.create_task_group() as group:
        await group.start(worker.run)
        run = await worker.client.submit(changing)
        await until(worker, "changing", "waiting")
        asked[1] = {"order": "2"}
        await worker.client.signal("changing", run.run_id, "go")
        [failed] = await until(worker, "changing", "failed")
        assert failed.error["code"] == "replay_input_changed"
        asked[1] = {"order": "1"}
        await worker.client.retry("changing", run.run_id)
        await worker.client.result("changing", run.run_id, timeout=10)
        worker.stop()
    assert await worker.client.count("dispatch") == 1
    assert failed.status is RunStatus.FAILED
