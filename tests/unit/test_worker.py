"""The worker: what it claims and when, how it starts and stops, and what harm bodies can do to it: none."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.from_thread
import pytest

from pyrula.contracts.errors import ConfigurationError, RunFailed, RunTerminated, StoreUnavailable
from pyrula.contracts.options import Retry, WorkerOptions
from pyrula.contracts.runs import RunStatus
from pyrula.testing.audit import audit
from pyrula.workflows import Context, MemoryStore, Workflow, WorkflowWorker
from pyrula.workflows.client import WorkflowClient
from tests.unit.engine.harness import until

pytestmark = pytest.mark.anyio

# Polls that never come within a test: what happens at once happens because somebody was told.
TOLD = WorkerOptions(
    claim_poll_interval=10.0,
    timer_poll_interval_s=10.0,
    orphan_scan_interval=60.0,
    shutdown_grace=5.0,
    cancel_timeout=1.0,
)
QUICK = WorkerOptions(shutdown_grace=0.0, cancel_timeout=0.3)


def made(fn: Callable[..., Any], name: str = "work", **options: Any) -> Workflow:
    """A workflow that only this test knows."""
    settings: dict[str, Any] = {"version": None, "timeout": None, "retry": None, **options}
    return Workflow(fn, name=name, **settings)


def on_asyncio() -> bool:
    return anyio.get_cancelled_exc_class() is asyncio.CancelledError


@asynccontextmanager
async def serving(worker: WorkflowWorker) -> AsyncIterator[WorkflowClient]:
    """A worker at work; it is stopped at the end, and must stop."""
    async with anyio.create_task_group() as group:
        await group.start(worker.run)
        try:
            yield worker.client
        finally:
            worker.stop()


async def until_status(client: WorkflowClient, name: str, run_id: str, status: RunStatus) -> None:
    async def there() -> bool:
        return (await client.get(name, run_id)).status is status

    await until(there)


async def until_asked(client: WorkflowClient, run_id: str) -> None:
    async def there() -> bool:
        return (await client.get("work", run_id)).waiting_on == "interrupt:@wait#2"

    await until(there)


async def answer(ctx: Context, n: int = 1) -> int:
    return await ctx.step("s", lambda: n + 1)


# --- starting at once -----------------------------------------------------------------------


async def test_a_submitted_run_starts_at_once() -> None:
    async with serving(WorkflowWorker(MemoryStore(), [made(answer)], TOLD)) as client:
        for n in range(5):
            run = await client.submit("work", {"n": n})
            assert await client.result("work", run.run_id, timeout=1.0) == n + 1


async def test_what_was_queued_before_the_worker_came_starts_at_once() -> None:
    store = MemoryStore()
    runs = [await WorkflowClient(store).submit("work", {"n": n}) for n in range(40)]
    async with serving(WorkflowWorker(store, [made(answer)], TOLD)) as client:
        for n, run in enumerate(runs):
            assert await client.result("work", run.run_id, timeout=2.0) == n + 1


@pytest.mark.parametrize("how", ["sleep", "delay", "retry", "deadline"])
async def test_a_timer_fires_when_it_is_due(how: str) -> None:
    tries = 0

    async def body(ctx: Context) -> float:
        nonlocal tries
        tries += 1
        if how == "sleep":
            await ctx.sleep(0.15)
        elif how == "deadline":
            with pytest.raises(TimeoutError):
                await ctx.wait_for_signal("go", timeout=0.15)
        elif how == "retry" and tries == 1:
            raise OSError("again")
        return time.time()

    workflow = made(body, retry=Retry(initial=0.15, jitter=0.0))
    async with serving(WorkflowWorker(MemoryStore(), [workflow], TOLD)) as client:
        # A far timer first: the loop sleeps until then, and must be told of a nearer one.
        await client.submit("work", delay=1000.0)
        began = time.time()
        run = await client.submit("work", delay=0.15 if how == "delay" else None)
        late = await client.result("work", run.run_id, timeout=3.0) - began - 0.15
    assert -0.01 <= late < 0.1


async def test_timers_fire_close_to_their_time() -> None:
    async def body(ctx: Context) -> float:
        began = await ctx.now()
        await ctx.sleep(0.05)
        return time.time() - began.timestamp() - 0.05

    async with serving(WorkflowWorker(MemoryStore(), [made(body)], TOLD)) as client:
        lateness = []
        for _ in range(11):
            run = await client.submit("work")
            lateness.append(await client.result("work", run.run_id, timeout=3.0))
    assert sorted(lateness)[5] < 0.02
    assert min(lateness) > -0.001


async def test_a_signal_an_answer_and_a_cancel_arrive_at_once() -> None:
    async def body(ctx: Context) -> list[Any]:
        return [await ctx.wait_for_signal("go"), await ctx.interrupt("sure?")]

    async with serving(WorkflowWorker(MemoryStore(), [made(body)], TOLD)) as client:
        run = await client.submit("work")
        await until_status(client, "work", run.run_id, RunStatus.WAITING)
        began = time.monotonic()
        await client.signal("work", run.run_id, "go", 1)
        await until_asked(client, run.run_id)
        await client.resume("work", run.run_id, 2)
        assert await client.result("work", run.run_id, timeout=2.0) == [1, 2]
        assert time.monotonic() - began < 1.0


async def test_a_cancel_reaches_a_step_in_the_middle() -> None:
    started = anyio.Event()
    ended = anyio.Event()

    async def slow() -> None:
        started.set()
        try:
            await anyio.sleep(60)
        finally:
            ended.set()

    async def body(ctx: Context) -> None:
        await ctx.step("s", slow)

    async with serving(WorkflowWorker(MemoryStore(), [made(body)], TOLD)) as client:
        run = await client.submit("work")
        await started.wait()
        await client.cancel("work", run.run_id)
        with anyio.fail_after(1):
            await ended.wait()
        await until_status(client, "work", run.run_id, RunStatus.CANCELLED)


async def test_terminate_reaches_a_body_in_the_middle() -> None:
    started = anyio.Event()
    ended = anyio.Event()

    async def body(ctx: Context) -> None:
        started.set()
        try:
            await anyio.sleep(60)
        finally:
            ended.set()

    async with serving(WorkflowWorker(MemoryStore(), [made(body)], TOLD)) as client:
        run = await client.submit("work")
        await started.wait()
        await client.terminate("work", run.run_id, "enough")
        with anyio.fail_after(1):
            await ended.wait()
        with pytest.raises(RunTerminated):
            await client.result("work", run.run_id)


# --- sharing --------------------------------------------------------------------------------


async def test_no_more_runs_at_once_than_allowed() -> None:
    running = most = 0

    async def body(ctx: Context) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(0.005)
        running -= 1

    store = MemoryStore()
    workflows = [made(body, f"work{n}") for n in range(3)]
    options = WorkerOptions(max_concurrent_runs=4, shutdown_grace=5.0)
    async with serving(WorkflowWorker(store, workflows, options)) as client:
        runs = [await client.submit(workflow) for workflow in workflows for _ in range(20)]
        for run in runs:
            await client.result(run.name, run.run_id, timeout=10.0)
    assert most == 4


async def test_a_busy_workflow_does_not_keep_the_others_out() -> None:
    order: list[str] = []

    async def body(ctx: Context) -> None:
        order.append(ctx.name)
        await anyio.sleep(0.002)

    store = MemoryStore()
    workflows = [made(body, "busy"), made(body, "quiet")]
    client = WorkflowClient(store)
    for _ in range(200):
        await client.submit("busy")
    quiet = await client.submit("quiet")
    async with serving(WorkflowWorker(store, workflows, WorkerOptions(max_concurrent_runs=2, shutdown_grace=10.0))):
        await client.result("quiet", quiet.run_id, timeout=5.0)
        assert order.index("quiet") < 60


async def test_two_workers_share_one_store() -> None:
    ran: list[str] = []

    async def body(ctx: Context) -> None:
        await ctx.step("s", ran.append, ctx.run_id)

    store = MemoryStore()
    first, second = (WorkflowWorker(store, [made(body)], WorkerOptions(max_concurrent_runs=3)) for _ in range(2))
    async with serving(first), serving(second) as client:
        runs = [await client.submit("work") for _ in range(60)]
        for run in runs:
            await client.result("work", run.run_id, timeout=10.0)
        workers = {(await client.get("work", run.run_id)).worker for run in runs}
    assert sorted(ran) == sorted(run.run_id for run in runs)
    assert workers == {first.worker_id, second.worker_id}
    assert await audit(store) == []


async def test_runs_of_two_workflows_may_have_one_id() -> None:
    """Each is reached by its own messages, and each is renewed."""
    started: dict[str, anyio.Event] = {"a": anyio.Event(), "b": anyio.Event()}
    ended: list[str] = []

    async def body(ctx: Context) -> str:
        started[ctx.name].set()
        try:
            await anyio.sleep(60)
        except anyio.get_cancelled_exc_class():
            ended.append(ctx.name)
            raise
        return ctx.name

    store = MemoryStore()
    worker = WorkflowWorker(store, [made(body, "a"), made(body, "b")], TOLD)
    async with serving(worker) as client:
        for name in "ab":
            await client.submit(name, run_id="same")
            await started[name].wait()
        assert {(lease.workflow, lease.run_id) for lease in worker._attempts.leases()} == {("a", "same"), ("b", "same")}
        await client.terminate("a", "same")
        await until(lambda: ended == ["a"])
        await client.terminate("b", "same")
        await until(lambda: ended == ["a", "b"])
        assert worker._attempts.leases() == []


async def test_a_worker_serves_only_its_own_workflows() -> None:
    store = MemoryStore()
    async with serving(WorkflowWorker(store, [made(answer, "mine")], QUICK)) as client:
        other = await client.submit("theirs", {"n": 1})
        mine = await client.submit("mine", {"n": 1})
        await client.result("mine", mine.run_id, timeout=2.0)
        assert (await client.get("theirs", other.run_id)).status is RunStatus.QUEUED


async def test_a_worker_without_workflows_runs_and_stops() -> None:
    with anyio.fail_after(3):
        async with serving(WorkflowWorker(MemoryStore(), [], QUICK)):
            pass


@pytest.mark.parametrize("chosen", [["nobody"], [42], [answer]])
async def test_what_is_no_workflow_is_refused_when_the_worker_is_made(chosen: list[Any]) -> None:
    with pytest.raises(ConfigurationError):
        WorkflowWorker(MemoryStore(), chosen)


# --- stopping -------------------------------------------------------------------------------


async def test_stop_lets_runs_finish_and_claims_nothing_more() -> None:
    started = anyio.Event()

    async def body(ctx: Context) -> str:
        started.set()
        await anyio.sleep(0.1)
        return await ctx.step("s", lambda: "finished")

    store = MemoryStore()
    worker = WorkflowWorker(store, [made(body)], WorkerOptions(shutdown_grace=5.0))
    async with anyio.create_task_group() as group:
        await group.start(worker.run)
        run = await worker.client.submit("work")
        await started.wait()
        worker.stop()
        await anyio.lowlevel.checkpoint()
        late = await worker.client.submit("work")
    assert (await worker.client.get("work", run.run_id)).result == "finished"
    assert (await worker.client.get("work", late.run_id)).status is RunStatus.QUEUED


async def test_after_the_grace_runs_go_back_to_the_queue_with_what_they_recorded() -> None:
    log: list[str] = []
    started = anyio.Event()

    async def body(ctx: Context) -> str:
        await ctx.step("s", log.append, "step")
        started.set()
        if ctx.attempt == 1:
            try:
                await anyio.sleep(60)
            finally:
                log.append("cut off")
        return "finished"

    store = MemoryStore()
    worker = WorkflowWorker(store, [made(body)], WorkerOptions(shutdown_grace=0.05, cancel_timeout=1.0))
    began = time.monotonic()
    async with serving(worker) as client:
        run = await client.submit("work")
        await started.wait()
    assert time.monotonic() - began < 3
    assert log == ["step", "cut off"]
    assert (await client.get("work", run.run_id)).status is RunStatus.QUEUED
    async with serving(WorkflowWorker(store, [made(body)], QUICK)) as client:
        assert await client.result("work", run.run_id, timeout=3.0) == "finished"
    assert log == ["step", "cut off"]


@pytest.mark.parametrize("where", ["before", "twice", "thread", "signal handler", "ended"])
async def test_stop_from_anywhere(where: str) -> None:
    worker = WorkflowWorker(MemoryStore(), [made(answer)], QUICK)
    with anyio.fail_after(5):
        if where == "before":
            worker.stop()
            await worker.run()
            return
        async with anyio.create_task_group() as group:
            await group.start(worker.run)
            if where == "thread":
                await anyio.to_thread.run_sync(worker.stop)
            elif where == "signal handler":
                previous = signal.signal(signal.SIGUSR1, lambda *_: worker.stop())
                try:
                    signal.raise_signal(signal.SIGUSR1)
                finally:
                    signal.signal(signal.SIGUSR1, previous)
            else:
                worker.stop()
                worker.stop()
        if where == "ended":
            worker.stop()


async def test_one_worker_runs_once_at_a_time_and_again_later() -> None:
    worker = WorkflowWorker(MemoryStore(), [made(answer)], QUICK)
    for _ in range(2):
        async with serving(worker) as client:
            with pytest.raises(RuntimeError):
                await worker.run()
            run = await client.submit("work")
            assert await client.result("work", run.run_id, timeout=2.0) == 2
    await anyio.lowlevel.checkpoint()


async def test_ready_is_told_once_the_worker_listens() -> None:
    worker = WorkflowWorker(MemoryStore(), [made(answer)], QUICK)
    async with anyio.create_task_group() as group:
        group.start_soon(worker.run)
        with anyio.fail_after(2):
            await worker.ready.wait()
        worker.stop()


async def test_a_host_that_cancels_the_worker_gets_its_runs_back_in_the_queue() -> None:
    started = anyio.Event()

    async def body(ctx: Context) -> None:
        await ctx.step("s", lambda: 1)
        started.set()
        await anyio.sleep(60)

    store = MemoryStore()
    worker = WorkflowWorker(store, [made(body)], WorkerOptions(shutdown_grace=30.0))
    with anyio.fail_after(3):
        async with anyio.create_task_group() as group:
            await group.start(worker.run)
            runs = [await worker.client.submit("work") for _ in range(3)]
            await started.wait()
            await anyio.sleep(0.02)
            group.cancel_scope.cancel()
    for run in runs:
        assert (await worker.client.get("work", run.run_id)).status is RunStatus.QUEUED
    assert await audit(store) == []


async def test_a_host_task_that_is_cancelled_by_asyncio_itself() -> None:
    if not on_asyncio():
        pytest.skip("asyncio's own")
    started = asyncio.Event()

    async def body(ctx: Context) -> None:
        started.set()
        await anyio.sleep(60)

    worker = WorkflowWorker(MemoryStore(), [made(body)], QUICK)
    task = asyncio.create_task(worker.run())
    run = await worker.client.submit("work")
    await started.wait()
    task.cancel()
    with anyio.fail_after(3):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (await worker.client.get("work", run.run_id)).status is RunStatus.QUEUED


class SlowClaims(MemoryStore):
    """Its answer to a claim takes a while, as over a network; the claim has been made by then."""

    def __init__(self) -> None:
        super().__init__()
        self.claimed = anyio.Event()

    async def claim(self, workflow: str, **options: Any) -> Any:
        batch = await super().claim(workflow, **options)
        if batch.claims:
            self.claimed.set()
            await anyio.sleep(0.1)
        return batch


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_a_claim_whose_answer_is_under_way_when_the_worker_ends_is_not_lost(how: str) -> None:
    async def body(ctx: Context) -> str:
        await anyio.sleep(0.01)
        return "done"

    store = SlowClaims()
    worker = WorkflowWorker(store, [made(body)], TOLD)
    with anyio.fail_after(3):
        async with anyio.create_task_group() as group:
            await group.start(worker.run)
            run = await worker.client.submit("work")
            await store.claimed.wait()
            if how == "stop":
                worker.stop()
            else:
                group.cancel_scope.cancel()
    assert (await worker.client.get("work", run.run_id)).status in (RunStatus.QUEUED, RunStatus.COMPLETED)


# --- bad bodies -----------------------------------------------------------------------------


async def still_serves(client: WorkflowClient) -> None:
    """Other runs of the same worker are unharmed."""
    runs = [await client.submit("good", {"n": n}) for n in range(4)]
    for n, run in enumerate(runs):
        assert await client.result("good", run.run_id, timeout=5.0) == n + 1


def worker_with(body: Callable[..., Any], store: Any = None, options: WorkerOptions = QUICK) -> WorkflowWorker:
    return WorkflowWorker(store or MemoryStore(), [made(body, "bad"), made(answer, "good")], options)


async def exits(ctx: Context) -> None:
    raise SystemExit(3)


async def exits_in_a_group(ctx: Context) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async with anyio.create_task_group() as group:
        group.start_soon(leave)


async def test_a_task_of_a_body_that_exits() -> None:
    if on_asyncio():
        pytest.skip("asyncio itself ends its loop for a SystemExit of any task")
    with anyio.fail_after(10):
        async with serving(worker_with(exits_in_a_group)) as client:
            bad = await client.submit("bad")
            with pytest.raises(RunFailed):
                await client.result("bad", bad.run_id, timeout=5.0)
            await still_serves(client)


async def exits_in_a_step(ctx: Context) -> None:
    def leave() -> None:
        raise SystemExit(3)

    await ctx.step("s", leave)


async def exits_in_a_leg(ctx: Context) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    await ctx.gather(leave(), ctx.now())


async def raises_a_base_group(ctx: Context) -> None:
    raise BaseExceptionGroup("several", [SystemExit(1), KeyError("x")])


async def recurses(ctx: Context) -> None:
    def deep(n: int) -> int:
        return deep(n + 1) + 1

    deep(0)


async def returns_an_object(ctx: Context) -> Any:
    return {"a": [object()]}


async def closes_itself(ctx: Context) -> None:
    raise GeneratorExit


@pytest.mark.parametrize(
    "body",
    [
        exits,
        exits_in_a_step,
        exits_in_a_leg,
        raises_a_base_group,
        recurses,
        returns_an_object,
        closes_itself,
    ],
    ids=lambda body: body.__name__,
)
async def test_a_bad_body_fails_and_the_worker_goes_on(body: Callable[..., Any]) -> None:
    with anyio.fail_after(10):
        async with serving(worker_with(body)) as client:
            bad = await client.submit("bad")
            with pytest.raises(RunFailed):
                await client.result("bad", bad.run_id, timeout=5.0)
            await still_serves(client)


async def test_a_body_that_marks_its_own_task_as_cancelled() -> None:
    if not on_asyncio():
        pytest.skip("asyncio's own")

    async def body(ctx: Context) -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "done"

    with anyio.fail_after(10):
        async with serving(worker_with(body)) as client:
            for _ in range(3):
                bad = await client.submit("bad")
                await until_status(client, "bad", bad.run_id, RunStatus.COMPLETED)
                await still_serves(client)


async def test_a_body_that_blocks_the_loop_is_named_and_the_lease_renewed(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    store.lock_ttl = 0.6  # type: ignore[attr-defined]  # of a store whose leases are short

    async def body(ctx: Context) -> str:
        time.sleep(1.2)  # noqa: ASYNC251 - the point of it
        return await ctx.step("s", lambda: "done")

    options = WorkerOptions(loop_stall_warning=0.3, orphan_scan_interval=0.05, shutdown_grace=5.0)
    with caplog.at_level(logging.WARNING, logger="pyrula"):
        async with serving(worker_with(body, store, options)) as client:
            bad = await client.submit("bad")
            assert await client.result("bad", bad.run_id, timeout=5.0) == "done"
            assert (await client.get("bad", bad.run_id)).attempt == 1
            await still_serves(client)
    blocked = [r.getMessage() for r in caplog.records if "blocked" in r.getMessage()]
    assert len(blocked) == 1
    assert bad.run_id in blocked[0]


@pytest.mark.parametrize("where", ["body", "child", "step"])
async def test_a_body_that_swallows_every_cancellation_does_not_hold_up_the_shutdown(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    started = anyio.Event()
    let_go = False

    async def stubborn() -> None:
        started.set()
        while not let_go:
            try:
                await anyio.sleep(0.01)
            except anyio.get_cancelled_exc_class():
                continue

    async def body(ctx: Context) -> None:
        if where == "body":
            await stubborn()
        elif where == "step":
            await ctx.step("s", stubborn)
        else:
            async with anyio.create_task_group() as group:
                group.start_soon(stubborn)

    store = MemoryStore()
    worker = worker_with(body, store)
    with anyio.fail_after(10):
        try:
            async with serving(worker) as client:
                bad = await client.submit("bad")
                await started.wait()
                await still_serves(client)
                if where == "child":
                    # Such a task belongs to nobody but the body; it may outlive its attempt, not hold up others.
                    worker.stop()
                    await anyio.sleep(1.0)
                    let_go = True
        finally:
            let_go = True
    assert (await client.get("bad", bad.run_id)).status is RunStatus.QUEUED
    if where != "child":
        assert bad.run_id in caplog.text
    await anyio.sleep(0.05)
    gc.collect()


async def test_a_task_left_behind_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    if not on_asyncio():
        pytest.skip("trio leaves no task running")
    ended = asyncio.Event()
    kept: list[asyncio.Task[None]] = []

    async def stray() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def body(ctx: Context) -> None:
        kept.append(asyncio.create_task(stray()))
        await ctx.step("s", asyncio.sleep, 0)

    async with serving(worker_with(body)) as client:
        bad = await client.submit("bad")
        await client.result("bad", bad.run_id, timeout=3.0)
        with anyio.fail_after(2):
            await ended.wait()
    assert kept[0].cancelled()


async def test_a_task_of_the_host_is_left_alone() -> None:
    """A task that a library started in the host's own context is nobody's stray."""
    if not on_asyncio():
        pytest.skip("trio leaves no task running")

    async def quiet() -> None:
        await asyncio.sleep(60)

    host = asyncio.create_task(quiet())
    async with serving(worker_with(exits)) as client:
        bad = await client.submit("bad")
        with pytest.raises(RunFailed):
            await client.result("bad", bad.run_id, timeout=3.0)
        await anyio.sleep(0.6)
        assert not host.done()
    host.cancel()


# --- an unreliable store --------------------------------------------------------------------


class Unreliable(MemoryStore):
    """Cannot be reached now and then."""

    away = False
    asked = 0

    def _check(self) -> None:
        if self.away:
            self.asked += 1
            raise StoreUnavailable("127.0.0.1:6379 is away")

    async def claim(self, *args: Any, **options: Any) -> Any:
        self._check()
        return await super().claim(*args, **options)

    async def append(self, *args: Any, **options: Any) -> Any:
        self._check()
        return await super().append(*args, **options)

    async def finish(self, *args: Any, **options: Any) -> Any:
        self._check()
        return await super().finish(*args, **options)

    async def next_due(self, *args: Any, **options: Any) -> Any:
        self._check()
        return await super().next_due(*args, **options)

    async def sweep(self, *args: Any, **options: Any) -> Any:
        self._check()
        return await super().sweep(*args, **options)


async def test_an_outage_is_waited_out_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    store = Unreliable()
    ran: list[str] = []

    async def body(ctx: Context) -> str:
        await ctx.step("a", ran.append, "a")
        store.away = True
        await ctx.step("b", ran.append, "b")
        return "done"

    options = WorkerOptions(claim_poll_interval=0.02, timer_poll_interval_s=0.02, shutdown_grace=5.0)
    with caplog.at_level(logging.WARNING, logger="pyrula"):
        async with serving(WorkflowWorker(store, [made(body)], options)) as client:
            run = await client.submit("work")
            await until(lambda: store.asked > 12)
            store.away = False
            assert await client.result("work", run.run_id, timeout=10.0) == "done"
            await until(lambda: "is back" in caplog.text)
    assert ran == ["a", "b"]
    assert [r.getMessage() for r in caplog.records if "is away, waiting" in r.getMessage()].__len__() == 1


async def test_stop_during_an_outage() -> None:
    store = Unreliable()
    started = anyio.Event()

    async def body(ctx: Context) -> None:
        await ctx.step("a", lambda: 1)
        store.away = True
        started.set()
        await ctx.step("b", lambda: 1)

    worker = WorkflowWorker(store, [made(body)], WorkerOptions(shutdown_grace=0.1, cancel_timeout=0.3))
    with anyio.fail_after(5):
        async with serving(worker) as client:
            await client.submit("work")
            await started.wait()


async def test_a_journal_that_cannot_be_read_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    client = WorkflowClient(store)
    run = await client.submit("bad")
    claim = await store.claim_run("bad", run.run_id, worker="w", lease_ms=1000)
    assert claim is not None
    await store.append(claim, claim.seq, [b'[99,"step.completed",0,1,"k",{}]'])
    await store.requeue(claim, claim.seq + 1)
    async with serving(worker_with(exits, store)) as client:
        await still_serves(client)
        assert run.run_id in caplog.text
