"""The engine on a real server: what is asked of the worker and the client on the memory store, asked here too."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from pyrula.contracts.errors import (
    IdempotencyConflict,
    InvalidInput,
    NotEncodable,
    PyrulaError,
    RunCancelled,
    RunFailed,
    RunNotFound,
    RunTerminated,
    RunTimedOut,
    WrongRunState,
)
from pyrula.contracts.options import Retry, WorkerOptions
from pyrula.contracts.runs import RunStatus
from pyrula.testing.audit import audit
from pyrula.testing.servers import PrivateServer
from pyrula.workflows import Context, ValkeyStore, Workflow, WorkflowWorker
from pyrula.workflows.client import WorkflowClient
from tests.unit.engine.harness import until

pytestmark = pytest.mark.anyio

# Polls that never come within a test: what happens at once happens because somebody was told.
TOLD = WorkerOptions(claim_poll_interval=10.0, timer_poll_interval_s=10.0, shutdown_grace=5.0, cancel_timeout=1.0)
ONCE = Retry(max_attempts=1)


def made(fn: Callable[..., Any], name: str = "work", **options: Any) -> Workflow:
    """A workflow that only this test knows."""
    settings: dict[str, Any] = {"version": None, "timeout": None, "retry": None, **options}
    return Workflow(fn, name=name, **settings)


@pytest.fixture
async def store(valkey_server: PrivateServer, namespace: str) -> AsyncIterator[ValkeyStore]:
    store = ValkeyStore(valkey_server.url, namespace=namespace, shard_count=4)
    yield store
    assert await audit(store) == []
    await store.aclose()


@pytest.fixture
def client(store: ValkeyStore) -> WorkflowClient:
    return WorkflowClient(store)


@asynccontextmanager
async def serving(
    store: ValkeyStore, *workflows: Workflow, options: WorkerOptions = TOLD
) -> AsyncIterator[WorkflowWorker]:
    """A worker at work; it is stopped at the end, and must stop."""
    worker = WorkflowWorker(store, workflows, options)
    async with anyio.create_task_group() as group:
        await group.start(worker.run)
        try:
            yield worker
        finally:
            worker.stop()


async def until_status(client: WorkflowClient, run_id: str, status: RunStatus) -> None:
    async def there() -> bool:
        return (await client.get("work", run_id)).status is status

    await until(there)


async def answer(ctx: Context, n: int = 1) -> int:
    return await ctx.step("s", lambda: n + 1)


async def test_a_submitted_run_starts_at_once(store: ValkeyStore, client: WorkflowClient) -> None:
    async with serving(store, made(answer)):
        for n in range(5):
            run = await client.submit("work", {"n": n})
            assert await client.result("work", run.run_id, timeout=1.0) == n + 1


async def test_what_was_queued_before_the_worker_came(store: ValkeyStore, client: WorkflowClient) -> None:
    runs = await client.submit_many([{"workflow": "work", "input": {"n": n}} for n in range(60)])
    async with serving(store, made(answer)):
        for n, run in enumerate(runs):
            assert await client.result("work", run.run_id, timeout=5.0) == n + 1


async def test_timers_fire_close_to_their_time(store: ValkeyStore, client: WorkflowClient) -> None:
    async def body(ctx: Context) -> float:
        began = await ctx.now()
        await ctx.sleep(0.05)
        return time.time() - began.timestamp() - 0.05

    async with serving(store, made(body)):
        await client.submit("work", delay=1000.0)  # a far timer first: nearer ones must be told of
        lateness = []
        for _ in range(11):
            run = await client.submit("work")
            lateness.append(await client.result("work", run.run_id, timeout=3.0))
    assert sorted(lateness)[5] < 0.03
    assert min(lateness) > -0.001


async def test_a_delayed_run_starts_in_time(store: ValkeyStore, client: WorkflowClient) -> None:
    async def body(ctx: Context) -> float:
        return time.time()

    async with serving(store, made(body)):
        began = time.time()
        run = await client.submit("work", delay=0.1)
        later = await client.submit("work", start_at=datetime.now(UTC) + timedelta(seconds=0.2))
        assert 0.09 < await client.result("work", run.run_id, timeout=3.0) - began < 0.2
        assert 0.19 < await client.result("work", later.run_id, timeout=3.0) - began < 0.3


async def test_signals_in_order_once_for_each_key(store: ValkeyStore, client: WorkflowClient) -> None:
    async def body(ctx: Context) -> list[Any]:
        return [await ctx.wait_for_signal("go", timeout=5.0) for _ in range(4)]

    run = await client.submit("work")
    await client.signal("work", run.run_id, "go", {"n": 0}, idempotency_key="a")
    await client.signal("work", run.run_id, "go", {"n": 9}, idempotency_key="a")
    await client.signal("work", run.run_id, "go", {"n": 1})
    async with serving(store, made(body)):
        await until_status(client, run.run_id, RunStatus.WAITING)
        await client.signal("work", run.run_id, "other", 1)
        for n in (2, 3):
            await client.signal("work", run.run_id, "go", {"n": n})
        assert await client.result("work", run.run_id, timeout=3.0) == [{"n": n} for n in range(4)]
    with pytest.raises(WrongRunState):
        await client.signal("work", run.run_id, "go")


async def test_a_question_and_its_first_answer(store: ValkeyStore, client: WorkflowClient) -> None:
    async def body(ctx: Context) -> list[Any]:
        return [await ctx.interrupt("one?", key="a"), await ctx.interrupt("two?")]

    async with serving(store, made(body)):
        run = await client.submit("work")
        with pytest.raises(WrongRunState):
            await client.resume("work", (await client.submit("work", delay=100.0)).run_id, 1)
        await until_status(client, run.run_id, RunStatus.WAITING)
        await client.resume("work", run.run_id, 1, key="a")

        async def asked_again() -> bool:
            return (await client.get("work", run.run_id)).waiting_on == "interrupt:@wait#2"

        await until(asked_again)
        await client.resume("work", run.run_id, 2)
        assert await client.result("work", run.run_id, timeout=3.0) == [1, 2]


async def test_a_cancel_in_the_middle_of_a_step_runs_the_clean_up(store: ValkeyStore, client: WorkflowClient) -> None:
    log: list[str] = []
    started = anyio.Event()

    async def slow() -> None:
        started.set()
        await anyio.sleep(60)

    async def body(ctx: Context) -> None:
        try:
            await ctx.step("slow", slow)
        finally:
            await ctx.step("clean", log.append, "clean")

    async with serving(store, made(body)):
        run = await client.submit("work")
        await started.wait()
        await client.cancel("work", run.run_id, "no need")
        with pytest.raises(RunCancelled) as caught:
            await client.result("work", run.run_id, timeout=3.0)
    assert caught.value.detail["reason"] == "no need"
    assert log == ["clean"]


@pytest.mark.parametrize("where", ["queued", "waiting", "sleeping"])
async def test_a_cancel_elsewhere(store: ValkeyStore, client: WorkflowClient, where: str) -> None:
    log: list[str] = []

    async def body(ctx: Context) -> None:
        log.append("started")
        try:
            if where == "waiting":
                await ctx.wait_for_signal("go")
            await ctx.sleep(1000)
        finally:
            await ctx.step("clean", log.append, "clean")

    run = await client.submit("work")
    if where == "queued":
        await client.cancel("work", run.run_id)
    async with serving(store, made(body)):
        if where != "queued":
            await until_status(client, run.run_id, RunStatus(where))
            await client.cancel("work", run.run_id)
        with pytest.raises(RunCancelled):
            await client.result("work", run.run_id, timeout=3.0)
    assert log == ([] if where == "queued" else ["started", "started", "clean"])


async def test_terminate_in_the_middle_of_a_body(store: ValkeyStore, client: WorkflowClient) -> None:
    started = anyio.Event()
    ended = anyio.Event()

    async def body(ctx: Context) -> None:
        started.set()
        try:
            await anyio.sleep(60)
        finally:
            ended.set()

    async with serving(store, made(body)):
        run = await client.submit("work")
        await started.wait()
        await client.terminate("work", run.run_id, "enough")
        with anyio.fail_after(2):
            await ended.wait()
        with pytest.raises(RunTerminated):
            await client.result("work", run.run_id)
    types = [event.type async for event in client.events("work", run.run_id)]
    assert types == ["run.submitted", "run.started", "run.terminated"]


async def test_failures_and_a_retry(store: ValkeyStore, client: WorkflowClient) -> None:
    ran: list[str] = []
    broken = True

    async def body(ctx: Context) -> str:
        await ctx.step("first", ran.append, "first")

        def second() -> str:
            ran.append("second")
            if broken:
                raise ValueError("broken")
            return "mended"

        return await ctx.step("second", second, retry=ONCE)

    async with serving(store, made(body)):
        run = await client.submit("work")
        with pytest.raises(RunFailed) as caught:
            await client.result("work", run.run_id, timeout=3.0)
        assert caught.value.code == "step_failed"
        broken = False
        await client.retry("work", run.run_id)
        assert await client.result("work", run.run_id, timeout=3.0) == "mended"
    assert ran == ["first", "second", "second"]


async def test_a_run_set_aside_goes_on_with_mended_code(store: ValkeyStore, client: WorkflowClient) -> None:
    async def before(ctx: Context) -> str:
        await ctx.now()
        await ctx.wait_for_signal("go")
        return "done"

    async def after(ctx: Context) -> None:
        await ctx.uuid()

    async with serving(store, made(before)):
        run = await client.submit("work")
        await until_status(client, run.run_id, RunStatus.WAITING)
    async with serving(store, made(after)):
        await client.signal("work", run.run_id, "go")
        for _ in range(2):
            with pytest.raises(RunFailed) as caught:
                await client.result("work", run.run_id, timeout=3.0)
            assert caught.value.code == "version_skew"
            await client.retry("work", run.run_id)
        with pytest.raises(RunFailed):
            await client.result("work", run.run_id, timeout=3.0)
    await client.retry("work", run.run_id)
    async with serving(store, made(before)):
        assert await client.result("work", run.run_id, timeout=3.0) == "done"


async def test_a_policy_and_a_durable_retry(store: ValkeyStore, client: WorkflowClient) -> None:
    attempts: list[int] = []

    async def body(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        if len(attempts) < 3:
            raise OSError("again")
        return "done"

    async with serving(store, made(body, retry=Retry(max_attempts=3, initial=0.05, jitter=0.0))):
        run = await client.submit("work")
        assert await client.result("work", run.run_id, timeout=3.0) == "done"
    assert attempts == [1, 2, 3]


async def test_an_attempt_times_out(store: ValkeyStore, client: WorkflowClient) -> None:
    async def body(ctx: Context) -> None:
        await anyio.sleep(60)

    async with serving(store, made(body, timeout=0.1)):
        run = await client.submit("work")
        with pytest.raises(RunTimedOut) as caught:
            await client.result("work", run.run_id, timeout=3.0)
        assert caught.value.code == "attempt_timed_out"


async def test_events_and_output_are_followed_live(store: ValkeyStore, client: WorkflowClient) -> None:
    async def body(ctx: Context) -> int:
        await ctx.stream({"n": 1})
        await ctx.wait_for_signal("go")
        await ctx.stream({"n": 2})
        await ctx.commit("progress", 1.0)
        return 5

    events: list[Any] = []
    chunks: list[Any] = []

    async def follow_events(run_id: str) -> None:
        events.extend([event async for event in client.events("work", run_id, follow=True)])

    async def follow_output(run_id: str) -> None:
        async for chunk in client.stream("work", run_id):
            chunks.append(chunk)  # noqa: PERF401 - one by one, to see how far it has come

    with anyio.fail_after(10):
        run = await client.submit("work")
        async with anyio.create_task_group() as group:
            group.start_soon(follow_events, run.run_id)
            group.start_soon(follow_output, run.run_id)
            async with serving(store, made(body)):
                await until(lambda: chunks == [{"n": 1}])
                await client.signal("work", run.run_id, "go")
                await client.result("work", run.run_id, timeout=3.0)
    assert chunks == [{"n": 1}, {"n": 2}]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert events == [event async for event in client.events("work", run.run_id)]
    assert await client.committed("work", run.run_id) == {"progress": 1.0}


async def test_two_workers_share_the_work(store: ValkeyStore, client: WorkflowClient) -> None:
    ran: list[str] = []

    async def body(ctx: Context) -> None:
        await ctx.step("s", ran.append, ctx.run_id)
        await anyio.sleep(0.002)

    options = WorkerOptions(max_concurrent_runs=3, shutdown_grace=5.0)
    async with serving(store, made(body), options=options) as one, serving(store, made(body), options=options) as two:
        runs = await client.submit_many([{"workflow": "work"} for _ in range(80)])
        for run in runs:
            await client.result("work", run.run_id, timeout=10.0)
        workers = {(await client.get("work", run.run_id)).worker for run in runs}
    assert sorted(ran) == sorted(run.run_id for run in runs)
    assert workers == {one.worker_id, two.worker_id}


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_runs_in_flight_go_back_when_the_worker_ends(
    store: ValkeyStore, client: WorkflowClient, how: str
) -> None:
    ran: list[str] = []
    started = anyio.Event()

    async def body(ctx: Context) -> str:
        await ctx.step("s", ran.append, "step")
        started.set()
        if ctx.attempt == 1:
            await anyio.sleep(60)
        return "done"

    worker = WorkflowWorker(store, [made(body)], WorkerOptions(shutdown_grace=0.05, cancel_timeout=1.0))
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            await group.start(worker.run)
            run = await client.submit("work")
            await started.wait()
            if how == "stop":
                worker.stop()
            else:
                group.cancel_scope.cancel()
    assert (await client.get("work", run.run_id)).status is RunStatus.QUEUED
    async with serving(store, made(body)):
        assert await client.result("work", run.run_id, timeout=3.0) == "done"
    assert ran == ["step"]


async def test_a_worker_that_ends_under_load_leaves_no_run_behind(store: ValkeyStore, client: WorkflowClient) -> None:
    """Whatever was being claimed at that moment is queued or done right afterwards, not held until a lease runs out."""
    await client.submit_many([{"workflow": "work", "input": {"n": n}} for n in range(300)])
    for patience in (0.01, 0.02, 0.03, 0.04):
        worker = WorkflowWorker(store, [made(answer)], WorkerOptions(shutdown_grace=0.0, cancel_timeout=1.0))
        with anyio.move_on_after(patience):
            await worker.run()
        assert await client.count("work", status="running") == 0
    async with serving(store, made(answer)):

        async def all_done() -> bool:
            return await client.count("work", status="completed") == 300

        await until(all_done, seconds=20.0)


async def test_submissions_under_keys_and_ids(client: WorkflowClient) -> None:
    first = await client.submit("work", {"a": 1, "b": 2}, idempotency_key="k {}")
    assert (await client.submit("work", {"b": 2, "a": 1}, idempotency_key="k {}")).run_id == first.run_id
    with pytest.raises(IdempotencyConflict):
        await client.submit("work", {"a": 2}, idempotency_key="k {}")
    one, two = await client.submit_many([{"workflow": "work", "run_id": "mine"}] * 2)
    assert one.run_id == two.run_id
    with pytest.raises(IdempotencyConflict):
        await client.submit("work", {"a": 1}, run_id="mine")
    with pytest.raises(NotEncodable):
        await client.submit_many([{"workflow": "work"}, {"workflow": "work", "input": {"a": object()}}])
    assert await client.count("work") == 2


@pytest.mark.parametrize("value", ["", "a b", "{x}", "a\nb", "x" * 256, "\ud800"])
async def test_hostile_names_ids_and_owners(client: WorkflowClient, value: str) -> None:
    for options in ({"run_id": value}, {"owner": value}):
        with pytest.raises(InvalidInput):
            await client.submit("work", **options)
    with pytest.raises(PyrulaError):
        await client.submit(value)
    with pytest.raises(RunNotFound):
        await client.get("work", value)
    with pytest.raises(RunNotFound):
        await client.get(value, "r")
    for call in (client.cancel, client.terminate, client.retry):
        with pytest.raises(RunNotFound):
            await call("work", value)
    with pytest.raises(RunNotFound):
        await anext(client.events("work", value))
    with pytest.raises(RunNotFound):
        await anext(client.stream("work", value))


@pytest.mark.parametrize("value", ["日本語", "a:b", "a/b#c%d", "…", "x" * 255, "*", "run:x", "[a]", "\\", "'\""])
async def test_unusual_names_ids_and_owners(store: ValkeyStore, client: WorkflowClient, value: str) -> None:
    async with serving(store, made(answer, value)):
        run = await client.submit(value, {"n": 1}, run_id=value, owner=value)
        assert await client.result(value, value, timeout=3.0) == 2
        assert [each.run_id for each in await client.list(value, owner=value)] == [run.run_id]
        assert await client.count(value) == 1


async def test_listing_and_counting(client: WorkflowClient) -> None:
    for n in range(25):
        await client.submit(
            "work" if n % 2 else "play", {"n": n}, owner=f"o{n % 3}", attributes={"n": n % 5}, run_id=f"r{n:02}"
        )
    await client.terminate("work", "r01")
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await client.list(limit=7, cursor=cursor)
        found += [run.run_id for run in page]
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(found) == [f"r{n:02}" for n in range(25)]
    assert await client.count() == 25
    assert await client.count("play") == 13
    assert [run.run_id for run in await client.list(status="terminated")] == ["r01"]
    assert sorted(run.run_id for run in await client.list("work", owner="o1")) == ["r01", "r07", "r13", "r19"]
    assert sorted(run.run_id for run in await client.list(attributes={"n": 3})) == ["r03", "r08", "r13", "r18", "r23"]
    assert list(await client.list(submitted_after=datetime.now(UTC) + timedelta(hours=1))) == []
    with pytest.raises(InvalidInput):
        await client.list(limit=0)
    with pytest.raises(InvalidInput):
        await client.list(cursor="nonsense")


async def test_a_result_that_does_not_come(client: WorkflowClient) -> None:
    run = await client.submit("work")
    for _ in range(2):
        with pytest.raises(RunTimedOut) as caught:
            await client.result("work", run.run_id, timeout=0.05)
        assert caught.value.code == "result_timeout"
    with pytest.raises(RunNotFound):
        await client.result("work", "nobody", timeout=1.0)


async def test_a_blocked_loop_keeps_its_runs_and_is_named(
    valkey_server: PrivateServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = ValkeyStore(valkey_server.url, namespace=namespace, shard_count=1, lock_ttl=0.6)
    client = WorkflowClient(store)

    async def body(ctx: Context) -> str:
        time.sleep(1.5)  # noqa: ASYNC251 - the point of it
        return await ctx.step("s", lambda: "done")

    options = WorkerOptions(loop_stall_warning=0.3, orphan_scan_interval=0.05, shutdown_grace=5.0)
    with caplog.at_level(logging.WARNING, logger="pyrula"):
        async with serving(store, made(body), options=options):
            run = await client.submit("work")
            assert await client.result("work", run.run_id, timeout=5.0) == "done"
    assert (await client.get("work", run.run_id)).attempt == 1
    assert any(run.run_id in r.getMessage() and "blocked" in r.getMessage() for r in caplog.records)
    await store.aclose()
