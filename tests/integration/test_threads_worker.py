"""Threads of runs under real workers on a real server: shutdown in the middle, another worker, another loop."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from pyrula.contracts.errors import RunAttemptEnded, RunCancelled
from pyrula.contracts.options import WorkerOptions
from pyrula.testing.audit import audit
from pyrula.testing.servers import PrivateServer
from pyrula.workflows import Context, ValkeyStore, Workflow, WorkflowWorker
from tests.unit.engine.harness import until

pytestmark = pytest.mark.anyio

OPTIONS = WorkerOptions(shutdown_grace=0, cancel_timeout=1.0)


@pytest.fixture
async def store(valkey_server: PrivateServer, namespace: str) -> AsyncIterator[ValkeyStore]:
    store = ValkeyStore(valkey_server.url, namespace=namespace, shard_count=4)
    yield store
    assert await audit(store) == []
    await store.aclose()


class Scene:
    """A map of three items, each with two steps; the second ones wait for a gate while that is closed."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.gate = threading.Event()
        self.told: list[type[BaseException]] = []
        self.workflow = Workflow(self.body, name="threads", version=None, timeout=None, retry=None)

    async def body(self, ctx: Context) -> list[str]:
        def step(place: str) -> str:
            self.ran[place] += 1
            return place

        def work(item: int) -> str:
            first = ctx.from_thread(ctx.step, "first", step, f"first {item}")
            assert self.gate.wait(10)
            try:
                return f"{first}, " + ctx.from_thread(ctx.step, "second", step, f"second {item}")
            except BaseException as error:
                self.told.append(type(error))
                raise

        return await ctx.map_threads(work, range(3), max_workers=None)


RESULT = [f"first {item}, second {item}" for item in range(3)]


async def begun(scene: Scene, store: ValkeyStore, act: Any) -> None:
    """Serve until all threads stand at the gate, then act, with the worker still there."""
    worker = WorkflowWorker(store, [scene.workflow], OPTIONS)
    async with anyio.create_task_group() as group:
        await group.start(worker.run)
        await until(lambda: len(scene.ran) == 3)
        await until(lambda: _recorded(store, 3))
        await act(worker)
        worker.stop()


async def _recorded(store: ValkeyStore, number: int) -> bool:
    page = await store.listing(["threads"])
    return bool(page.runs) and page.runs[0].seq >= 2 + number


async def test_another_worker_goes_on_behind_what_threads_have_recorded(store: ValkeyStore) -> None:
    scene = Scene()
    worker = WorkflowWorker(store, [scene.workflow], OPTIONS)
    run = await worker.client.submit(scene.workflow)

    async def nothing(_: WorkflowWorker) -> None: ...

    await begun(scene, store, nothing)
    scene.gate.set()  # the threads of the worker that has stopped come back, and are told
    await until(lambda: len(scene.told) == 3)
    assert set(scene.told) == {RunAttemptEnded}
    async with anyio.create_task_group() as group:
        await group.start(worker.run)
        assert await worker.client.result("threads", run.run_id, timeout=10) == RESULT
        worker.stop()
    assert scene.ran == {f"{which} {item}": 1 for which in ("first", "second") for item in range(3)}


async def test_a_run_begun_under_one_loop_ends_under_the_other(
    valkey_server: PrivateServer, namespace: str, store: ValkeyStore, anyio_backend: tuple[str, dict[str, Any]]
) -> None:
    scene = Scene()
    run = await WorkflowWorker(store, [scene.workflow], OPTIONS).client.submit(scene.workflow)

    async def nothing(_: WorkflowWorker) -> None: ...

    await begun(scene, store, nothing)
    scene.gate.set()
    other = "trio" if anyio_backend[0] == "asyncio" else "asyncio"
    found: list[Any] = []

    async def finish() -> None:
        theirs = ValkeyStore(valkey_server.url, namespace=namespace, shard_count=4)
        worker = WorkflowWorker(theirs, [scene.workflow], OPTIONS)
        async with anyio.create_task_group() as group:
            await group.start(worker.run)
            found.append(await worker.client.result("threads", run.run_id, timeout=10))
            worker.stop()
        await theirs.aclose()

    thread = threading.Thread(target=anyio.run, args=(finish,), kwargs={"backend": other})
    thread.start()
    await anyio.to_thread.run_sync(thread.join)
    assert found == [RESULT]
    assert set(scene.ran.values()) == {1}


async def test_a_cancel_request_ends_a_run_whose_threads_are_busy(store: ValkeyStore) -> None:
    scene = Scene()
    run = await WorkflowWorker(store, [scene.workflow], OPTIONS).client.submit(scene.workflow)

    async def cancel(worker: WorkflowWorker) -> None:
        await worker.client.cancel("threads", run.run_id, "enough")
        with pytest.raises(RunCancelled):
            await worker.client.result("threads", run.run_id, timeout=10)

    await begun(scene, store, cancel)
    scene.gate.set()
    await until(lambda: len(scene.told) == 3)
    assert set(scene.told) == {RunAttemptEnded}
    assert len(scene.ran) == 3
