"""How the public surface is used, for the type checker: it is checked with the package and never run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, assert_type
from uuid import UUID

from pyrula.workflows import (
    Context,
    Event,
    InlineWorkflowRunner,
    MemoryStore,
    Page,
    Retry,
    Run,
    ValkeyStore,
    WorkerOptions,
    Workflow,
    WorkflowClient,
    WorkflowWorker,
    workflow,
)


@dataclass
class Label:
    text: str


async def price(sku: str) -> float:
    return float(len(sku))


def label(order: str) -> Label:
    return Label(order)


@workflow
async def plain(ctx: Context) -> None:
    assert_type(ctx.run_id, str)
    assert_type(ctx.owner, str | None)
    assert_type(await ctx.step("price", price, "tea"), float)
    assert_type(await ctx.step("label", label, "o-1", retry=Retry(max_attempts=5), timeout=2.0), Label)
    assert_type(await ctx.gather(ctx.step("a", price, "a"), ctx.step("b", price, "b"), max_concurrency=2), list[Any])
    assert_type(await ctx.to_thread(label, "o-1"), Label)
    assert_type(await ctx.map_threads(label, ["o-1", "o-2"], max_workers=None), list[Label])
    assert_type(await ctx.par_map(label, ["o-1", "o-2"], workers=2), list[Label])
    assert_type(ctx.from_thread(ctx.uuid), UUID)
    ctx.from_thread(ctx.step, "price", price, "tea", timeout=2.0)
    await ctx.sleep(1)
    await ctx.sleep_until(await ctx.now())
    assert_type(await ctx.now(), datetime)
    assert_type(await ctx.uuid(), UUID)
    assert_type(await ctx.random(), float)
    answer = await ctx.interrupt({"ok": True}, key="approve", timeout=60)
    await ctx.commit("answer", answer)
    await ctx.stream(answer)
    ctx.set_attributes(region="eu", size=3)
    ctx.log.info("done")


@workflow(name="named", version="2", timeout=60.0, retry=Retry(initial=1.0))
async def named(ctx: Context, order_id: str) -> str:
    return order_id


assert_type(plain, Workflow)
assert_type(named, Workflow)


async def operate(client: WorkflowClient) -> None:
    run = await client.submit(named, {"order_id": "o-1"}, owner="t-1", idempotency_key="o-1", priority=2)
    assert_type(run, Run)
    assert_type(await client.submit_many([{"workflow": "named", "input": {"order_id": "o-2"}}]), list[Run])
    assert_type(await client.get("named", run.run_id), Run)
    page = await client.list("named", status="completed", attributes={"region": "eu"}, limit=10)
    assert_type(page, Page)
    assert_type(page.cursor, str | None)
    assert_type(await client.count(owner="t-1"), int)
    async for event in client.events("named", run.run_id, follow=True):
        assert_type(event, Event)
    await client.signal("named", run.run_id, "go", {"x": 1})
    await client.resume("named", run.run_id, "yes", key="approve")
    await client.cancel("named", run.run_id, "changed their mind")
    assert_type(await client.terminate("named", run.run_id), Run)
    assert_type(await client.retry("named", run.run_id), Run)


def compose() -> WorkflowWorker:
    store = ValkeyStore("redis://localhost:6379", namespace="staging", shard_count=64)
    return WorkflowWorker(store, [plain, named], WorkerOptions(max_concurrent_runs=100))


async def inline() -> None:
    runner = InlineWorkflowRunner(MemoryStore())
    run = await runner.client.submit("named", {"order_id": "o-3"})
    assert_type(await runner.run(run.name, run.run_id), list[Event])
