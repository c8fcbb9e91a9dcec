"""Updates of live runs, with real workers on a memory store and attempt by attempt."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from pyrula.contracts.errors import InvalidInput, RunNotFound, UpdateFailed, UpdateTimedOut, WrongRunState
from pyrula.contracts.runs import RunStatus
from pyrula.testing.audit import audit
from pyrula.workflows import Context, MemoryStore, WorkerOptions, WorkflowWorker, workflow
from tests.unit.engine.crashing import CrashAt, all_crashes
from tests.unit.engine.harness import Bench

pytestmark = pytest.mark.anyio


@workflow(name="updated")
async def updated(ctx: Context, items: list[str] | None = None) -> list[str]:
    held = list(items or [])

    def positive(payload: Any) -> None:
        if not payload:
            raise ValueError("an item needs a name")

    async def add(payload: Any) -> int:
        if payload == "bad":
            raise KeyError("no such item")
        held.append(await ctx.step("price", lambda: f"{payload}!"))
        return len(held)

    ctx.on_update("add", add, validator=positive)
    ctx.on_update("clear", lambda _: held.clear())
    await ctx.step("first", lambda: 1)
    await ctx.wait_for_signal("done")
    await ctx.commit("count", len(held))
    await ctx.sleep(0.01)
    return held


async def test_a_caller_gets_its_answer_and_the_run_its_change() -> None:
    worker = WorkflowWorker(MemoryStore(), [updated], WorkerOptions(shutdown_grace=0.1))
    client = worker.client
    async with anyio.create_task_group() as group:
        await group.start(worker.run)
        with anyio.fail_after(20):
            run = await client.submit(updated)
            assert await client.update("updated", run.run_id, "add", "a", timeout=10) == 1
            assert await client.update("updated", run.run_id, "add", "b", idempotency_key="k") == 2
            assert await client.update("updated", run.run_id, "add", "b", idempotency_key="k") == 2
            with pytest.raises(UpdateFailed, match="an item needs a name") as rejected:
                await client.update("updated", run.run_id, "add", "")
            assert rejected.value.rejected
            with pytest.raises(UpdateFailed, match="no such item") as failed:
                await client.update("updated", run.run_id, "add", "bad")
            assert not failed.value.rejected
            with pytest.raises(UpdateTimedOut):
                await client.update("updated", run.run_id, "unknown", 1, timeout=0.05)
            assert await client.committed("updated", run.run_id) == {}
            await client.signal("updated", run.run_id, "done")
            assert await client.result("updated", run.run_id) == ["a!", "b!"]
            assert await client.query("updated", run.run_id, "count") == 2
            assert await client.query("updated", run.run_id, "other", None) is None
            with pytest.raises(InvalidInput, match="there are: count"):
                await client.query("updated", run.run_id, "other")
            with pytest.raises(RunNotFound):
                await client.query("updated", "nobody", "count")
            with pytest.raises(WrongRunState):
                await client.update("updated", run.run_id, "add", "c")
            with pytest.raises(RunNotFound):
                await client.update("updated", "nobody", "add", "c")
        worker.stop()
    types = [event.type async for event in client.events("updated", run.run_id)]
    assert types.count("update.accepted") == 3
    assert (types.count("update.applied"), types.count("update.failed")) == (2, 1)


async def test_a_sleeping_run_is_woken_for_an_update_and_sleeps_on() -> None:
    async def body(ctx: Context) -> list[int]:
        seen: list[int] = []
        ctx.on_update("see", seen.append)
        await ctx.sleep(60)
        await ctx.step("s", lambda: 1)
        await ctx.sleep(60)
        return seen

    bench = Bench(body)
    run = await bench.submit()
    await bench.once(run.run_id)
    for n in range(3):
        await send(bench, run.run_id, n, name="see")
        await bench.once(run.run_id)
        assert (await bench.client.get(bench.name, run.run_id)).status is RunStatus.SLEEPING
    await bench.wake(run.run_id)
    await bench.once(run.run_id)
    await send(bench, run.run_id, 3, name="see")
    run = await bench.drive(run.run_id)
    assert run.result == [0, 1, 2, 3]
    assert await audit(bench.memory) == []


async def send(bench: Bench, run_id: str, payload: Any, name: str = "add") -> None:
    """An update whose sender does not wait."""
    with pytest.raises(UpdateTimedOut):
        await bench.client.update(bench.name, run_id, name, payload, timeout=0, idempotency_key=f"{name}{payload}")


async def test_a_worker_may_die_at_any_write() -> None:
    async def lived(at: int | None, after: bool) -> tuple[Any, list[Any], int]:
        bench = Bench(updated.fn)
        await bench.submit({"items": ["z"]}, run_id="r1")
        await send(bench, "r1", "a")
        await send(bench, "r1", "bad")
        worker = bench.store = CrashAt(bench.memory, at, after=after)

        async def settled() -> Any:
            try:
                return await bench.drive("r1")
            except BaseException as error:
                if not all_crashes(error):
                    raise
            await bench.lose()
            bench.store = bench.memory
            return await bench.drive("r1")

        await settled()
        await send(bench, "r1", "b")
        await settled()
        await bench.client.signal(bench.name, "r1", "done", 1, "k")
        run = await settled()
        answers = sorted(
            raw.decode()[:30] for key, raw in (await bench.memory.committed(bench.name, "r1")).items() if key[0] == "@"
        )
        assert await audit(bench.memory) == []
        return run.result, answers, worker.writes

    result, answers, writes = await lived(None, False)
    assert result == ["z", "a!", "b!"]
    assert len(answers) == 3
    for at in range(writes):
        for after in (False, True):
            assert (await lived(at, after))[:2] == (result, answers), (at, after)


@pytest.mark.parametrize(
    ("name", "handler", "validator"), [("", len, None), ("a b", len, None), ("a", 5, None), ("a", len, 5)]
)
async def test_what_handles_no_update(name: Any, handler: Any, validator: Any) -> None:
    async def body(ctx: Context) -> None:
        ctx.on_update(name, handler, validator=validator)

    run = await Bench(body).go()
    assert run.error is not None
    assert run.error["code"] == "invalid_input"
