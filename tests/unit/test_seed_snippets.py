"""The documented snippets, run as they are printed: only the server's address, and what they import, are the test's.

Each text below is what a user copies. A snippet that changes here has changed for everybody who follows it.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from pyrula.contracts.errors import ConcurrentStepIdError, ConfigurationError, RunTimedOut
from pyrula.testing.servers import PrivateServer
from pyrula.workflows import InlineWorkflowRunner, MemoryStore, ValkeyStore, WorkflowWorker, workflow
from pyrula.workflows.client import WorkflowClient
from pyrula.workflows.registry import registry

PRINTED = "redis://localhost:6379"

MYAPP = """
from pyrula.workflows import workflow

@workflow(name="my_workflow")
async def my_workflow(ctx, x: int) -> int:
    return await ctx.step("double", lambda: 2 * x)

@workflow(name="process_order")
async def process_order(ctx, order: str) -> str:
    return await ctx.step("process", lambda: f"processed {order}")

@workflow(name="send_invoice")
async def send_invoice(ctx, order: str) -> str:
    await ctx.sleep(0.05)
    return await ctx.step("send", lambda: f"sent {order}")

@workflow(name="sync_account")
async def sync_account(ctx, account: str) -> str | None:
    return ctx.owner
"""

INLINE = """
import asyncio

from pyrula.workflows import InlineWorkflowRunner, MemoryStore

async def main() -> None:
    runner = InlineWorkflowRunner(store=MemoryStore())
    run = await runner.client.submit("my_workflow", {"x": 1})
    events = await runner.run(run.name, run.run_id)

asyncio.run(main())
"""

LIFESPAN = """
import asyncio
from contextlib import asynccontextmanager

from fastapi import FastAPI
from pyrula.workflows import ValkeyStore, WorkflowWorker

# Import your @workflow modules before constructing the worker: it snapshots the
# registry, so anything registered later is never claimed.
import myapp.workflows  # noqa: F401


@asynccontextmanager
async def lifespan(app: FastAPI):
    worker = WorkflowWorker(store=ValkeyStore(url="redis://localhost:6379"))
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await asyncio.gather(task, return_exceptions=True)


app = FastAPI(lifespan=lifespan)
"""

SEPARATE = """
import asyncio
from pyrula.workflows import WorkflowWorker, ValkeyStore

worker = WorkflowWorker(store=ValkeyStore(url="redis://localhost:6379"))

asyncio.run(worker.run())
"""

MINIMAL = """
import asyncio
from pyrula.workflows import WorkflowWorker, ValkeyStore

# Import your @workflow-decorated modules so they register before run()
import myapp.workflows  # noqa: F401

async def main() -> None:
    worker = WorkflowWorker(store=ValkeyStore(url="redis://localhost:6379"))
    await worker.run()  # blocks until worker.stop() is called

asyncio.run(main())
"""

RESTRICTED = """
from myapp.workflows import process_order, send_invoice

worker = WorkflowWorker(
    store=ValkeyStore(url="redis://localhost:6379"),
    workflows=[process_order, send_invoice],
)
"""

OPTIONS = """
from pyrula.workflows import WorkflowWorker, WorkerOptions, ValkeyStore

worker = WorkflowWorker(
    store=ValkeyStore(url="redis://localhost:6379"),
    options=WorkerOptions(
        max_concurrent_runs=100,
        claim_poll_interval=0.05,
        timer_poll_interval_s=2.0,
        timer_max_batch=200,
        orphan_scan_interval=30.0,
        shutdown_grace=30.0,
        cancel_timeout=5.0,
        shard_lease_interval=5.0,
    ),
)
"""

SHARDS = """
worker = WorkflowWorker(
    store=ValkeyStore(url="redis://localhost:6379", shard_count=64),
)
"""

NAMESPACE = """
store = ValkeyStore(url="redis://localhost:6379", namespace="staging")
"""

OWNER = """
await client.submit("sync_account", {"account": "a-1"}, owner="tenant-42")
"""

WORKERS_CLIENT = """
run = await worker.client.submit("my_workflow", {"x": 1})
"""

PRUNE = """
from pyrula.workflows.stores.valkey.functions import upgrade_scripts

upgrade_scripts("redis://localhost:6379", prune_stale=True)
"""

GRACEFUL = """
import asyncio, signal
from pyrula.workflows import WorkflowWorker, ValkeyStore

async def main() -> None:
    worker = WorkflowWorker(store=ValkeyStore(url="redis://localhost:6379"))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    loop.add_signal_handler(signal.SIGINT, worker.stop)
    await worker.run()

asyncio.run(main())
"""

QUOTE = """
from pyrula.workflows import workflow

@workflow(name="quote")
async def quote(ctx, skus: list[str]) -> int:
    prices = await ctx.gather(*[ctx.step(f"price:{s}", fetch_price, s) for s in skus])
    return sum(prices)
"""

SUMMARIZE = """
@workflow(name="summarize_documents")
async def summarize_documents(ctx, docs: list[str]) -> list[str]:
    return await ctx.gather(
        *[ctx.step(f"summarize:{d}", summarize, d) for d in docs],
        max_concurrency=8,
    )
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    """A server that only these snippets use: they all work in the default namespace."""
    with PrivateServer(tcp=True) as running:
        yield running


@pytest.fixture(autouse=True)
def myapp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An application's package on the path; the process forgets it and its workflows afterwards."""
    (tmp_path / "myapp").mkdir()
    (tmp_path / "myapp" / "__init__.py").write_text("")
    (tmp_path / "myapp" / "workflows.py").write_text(MYAPP)
    monkeypatch.syspath_prepend(tmp_path)
    before = dict(registry._workflows)
    registry._workflows.clear()
    yield tmp_path
    registry._workflows.clear()
    registry._workflows.update(before)
    for name in ("myapp", "myapp.workflows"):
        sys.modules.pop(name, None)


def printed(text: str, server: PrivateServer) -> str:
    """The snippet with the server's address for the printed one."""
    return text.replace(PRINTED, f"redis://127.0.0.1:{server.port}")


def run(text: str, **names: Any) -> dict[str, Any]:
    """Run a snippet at the top of a module, where some names are known already."""
    space: dict[str, Any] = {"__name__": "snippet", **names}
    exec(compile(text, "snippet", "exec"), space)
    return space


async def run_async(text: str, **names: Any) -> dict[str, Any]:
    """Run a snippet that awaits at its top level."""
    space: dict[str, Any] = {"__name__": "snippet", **names}
    made = eval(compile(text, "snippet", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), space)
    if made is not None:
        await made
    return space


def result(server: PrivateServer, name: str, given: dict[str, Any], **options: Any) -> Any:
    """Submit a run from outside and wait for its result."""

    async def ask() -> Any:
        store = ValkeyStore(url=f"redis://127.0.0.1:{server.port}")
        client = WorkflowClient(store)
        submitted = await client.submit(name, given, **options)
        try:
            return await client.result(name, submitted.run_id, timeout=15.0)
        finally:
            await store.aclose()

    return anyio.run(ask)


class Process:
    """A snippet as a program of its own."""

    def __init__(self, text: str, folder: Path) -> None:
        script = folder / "program.py"
        script.write_text(text)
        self._process = subprocess.Popen(
            [sys.executable, str(script)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{folder}:{Path(__file__).parents[2]}"},
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Send a signal; its exit code and what it said."""
        self._process.send_signal(number)
        _, said = self._process.communicate(timeout=15)
        return self._process.returncode, said


# --- deployment modes ---------------------------------------------------------------------------


def test_inline(capsys: pytest.CaptureFixture[str]) -> None:
    importlib.import_module("myapp.workflows")
    space = run(INLINE)
    assert asyncio.iscoroutinefunction(space["main"])


def test_inline_advances_to_the_suspension_and_no_further() -> None:
    importlib.import_module("myapp.workflows")

    async def main() -> None:
        runner = InlineWorkflowRunner(store=MemoryStore())
        submitted = await runner.client.submit("send_invoice", {"order": "o-1"})
        events = await runner.run(submitted.name, submitted.run_id)
        assert events[-1].type == "timer.set"
        await anyio.sleep(0.1)
        assert await runner.run(submitted.name, submitted.run_id) == events

    asyncio.run(main())


def test_a_worker_inside_a_fastapi_application(server: PrivateServer) -> None:
    testclient = pytest.importorskip("fastapi.testclient")
    space = run(printed(LIFESPAN, server))

    @space["app"].get("/orders/{order}")
    async def ordered(order: str) -> dict[str, Any]:
        store = ValkeyStore(url=f"redis://127.0.0.1:{server.port}")
        client = WorkflowClient(store)
        submitted = await client.submit("send_invoice", {"order": order})
        return {"result": await client.result("send_invoice", submitted.run_id, timeout=10.0)}

    with testclient.TestClient(space["app"]) as http:
        assert http.get("/orders/o-1").json() == {"result": "sent o-1"}


def test_a_worker_tier(server: PrivateServer) -> None:
    importlib.import_module("myapp.workflows")
    made: list[WorkflowWorker] = []

    class Watched(WorkflowWorker):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    def serve() -> None:
        text = printed(SEPARATE, server).replace("from pyrula.workflows import WorkflowWorker, ValkeyStore\n", "")
        run(text, WorkflowWorker=Watched, ValkeyStore=ValkeyStore)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert result(server, "my_workflow", {"x": 4}) == 8
    finally:
        made[0].stop()
        thread.join(10)
    assert not thread.is_alive()


# --- production worker --------------------------------------------------------------------------


def test_the_minimal_worker_process(server: PrivateServer, myapp: Path) -> None:
    with Process(printed(MINIMAL, server), myapp) as program:
        assert result(server, "process_order", {"order": "o-1"}) == "processed o-1"
        assert result(server, "send_invoice", {"order": "o-1"}) == "sent o-1"
        code, said = program.end(signal.SIGINT)
    assert code != 0
    assert "KeyboardInterrupt" in said


def test_a_worker_that_is_killed_costs_nothing(server: PrivateServer, myapp: Path) -> None:
    with Process(printed(MINIMAL, server), myapp) as program:
        assert result(server, "my_workflow", {"x": 1}) == 2
        program.end(signal.SIGKILL)
    with pytest.raises(RunTimedOut):
        anyio.run(_short_result, server)
    with Process(printed(MINIMAL, server), myapp) as program:
        assert result(server, "my_workflow", {"x": 3}) == 6


async def _short_result(server: PrivateServer) -> None:
    store = ValkeyStore(url=f"redis://127.0.0.1:{server.port}")
    client = WorkflowClient(store)
    submitted = await client.submit("my_workflow", {"x": 2}, delay=60.0)
    try:
        await client.result("my_workflow", submitted.run_id, timeout=0.1)
    finally:
        await store.aclose()


def test_a_worker_of_chosen_workflows(server: PrivateServer) -> None:
    space = run(printed(RESTRICTED, server), WorkflowWorker=WorkflowWorker, ValkeyStore=ValkeyStore)
    assert sorted(space["worker"]._workflows) == ["process_order", "send_invoice"]


def test_the_options(server: PrivateServer) -> None:
    worker = run(printed(OPTIONS, server))["worker"]
    assert worker.options.max_concurrent_runs == 100
    defaults = type(worker.options)()
    expected = {
        "max_concurrent_runs": 50,
        "claim_poll_interval": 0.1,
        "timer_poll_interval_s": 5.0,
        "timer_max_batch": 100,
        "orphan_scan_interval": 60.0,
        "shutdown_grace": 30.0,
        "cancel_timeout": 5.0,
        "shard_lease_interval": 10.0,
    }
    assert {name: getattr(defaults, name) for name in expected} == expected


def test_shards_and_namespaces(server: PrivateServer) -> None:
    worker = run(printed(SHARDS, server), WorkflowWorker=WorkflowWorker, ValkeyStore=ValkeyStore)["worker"]
    assert worker.store.shard_count == ValkeyStore(url=f"redis://127.0.0.1:{server.port}").shard_count == 64
    assert run(printed(NAMESPACE, server), ValkeyStore=ValkeyStore)["store"].namespace == "staging"
    assert ValkeyStore(url=f"redis://127.0.0.1:{server.port}").namespace == "default"


def test_another_shard_count_for_a_name_is_refused(server: PrivateServer) -> None:
    url = f"redis://127.0.0.1:{server.port}"

    async def main() -> None:
        await WorkflowClient(ValkeyStore(url=url, shard_count=64)).submit("counted")
        with pytest.raises(ConfigurationError):
            await WorkflowClient(ValkeyStore(url=url, shard_count=8)).submit("counted")

    anyio.run(main)


def test_submitting_with_an_owner_and_from_the_workers_own_client(server: PrivateServer) -> None:
    importlib.import_module("myapp.workflows")

    async def main() -> None:
        worker = WorkflowWorker(store=ValkeyStore(url=f"redis://127.0.0.1:{server.port}"))
        async with anyio.create_task_group() as group:
            await group.start(worker.run)
            await run_async(OWNER, client=worker.client)
            [owned] = (await worker.client.list("sync_account", owner="tenant-42")).runs
            assert await worker.client.result("sync_account", owned.run_id, timeout=5.0) == "tenant-42"
            space = await run_async(WORKERS_CLIENT, worker=worker)
            assert await worker.client.result("my_workflow", space["run"].run_id, timeout=5.0) == 2
            worker.stop()

    asyncio.run(main())


def test_pruning_after_a_deploy(server: PrivateServer) -> None:
    importlib.import_module("myapp.workflows")
    run(printed(PRUNE, server))

    async def main() -> None:
        worker = WorkflowWorker(store=ValkeyStore(url=f"redis://127.0.0.1:{server.port}"))
        async with anyio.create_task_group() as group:
            await group.start(worker.run)
            submitted = await worker.client.submit("my_workflow", {"x": 1})
            assert await worker.client.result("my_workflow", submitted.run_id, timeout=5.0) == 2
            worker.stop()

    asyncio.run(main())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_graceful_shutdown(server: PrivateServer, myapp: Path, number: signal.Signals) -> None:
    # The printed program has no workflows of its own; the application's are imported before it.
    with Process("import myapp.workflows\n" + printed(GRACEFUL, server), myapp) as program:
        assert result(server, "my_workflow", {"x": 1}) == 2
        code, said = program.end(number)
    assert (code, said) == (0, "")


# --- parallel steps -----------------------------------------------------------------------------


def advance(name: str, given: dict[str, Any]) -> Any:
    """Run one run inline and give its result."""

    async def main() -> Any:
        runner = InlineWorkflowRunner(store=MemoryStore())
        submitted = await runner.client.submit(name, given)
        await runner.run(submitted.name, submitted.run_id)
        return await runner.client.result(name, submitted.run_id, timeout=1.0)

    return anyio.run(main)


def test_a_quote_of_parallel_steps() -> None:
    async def fetch_price(sku: str) -> int:
        await anyio.sleep(0.001 * len(sku))
        return len(sku)

    run(QUOTE, fetch_price=fetch_price)
    assert advance("quote", {"skus": ["aaa", "b", "cc"]}) == 6
    assert advance("quote", {"skus": []}) == 0


def test_a_bounded_fan_out() -> None:
    running = most = 0
    lock = threading.Lock()

    def summarize(document: str) -> str:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.003)
        with lock:
            running -= 1
        return document[:1]

    run(SUMMARIZE, workflow=workflow, summarize=summarize)
    documents = [f"{n} document" for n in range(30)]
    assert advance("summarize_documents", {"docs": documents}) == [d[:1] for d in documents]
    assert 1 < most <= 8


def test_one_id_at_the_same_time_outside_a_gather() -> None:
    @workflow(name="twice")
    async def twice(ctx: Any) -> str:
        try:
            await asyncio.gather(ctx.step("same", asyncio.sleep, 0.01), ctx.step("same", asyncio.sleep, 0.01))
        except ConcurrentStepIdError:
            return "caught"
        return "nothing"

    async def main() -> None:
        runner = InlineWorkflowRunner(store=MemoryStore())
        submitted = await runner.client.submit("twice")
        events = await runner.run(submitted.name, submitted.run_id)
        assert events[-1].type == "run.failed"
        assert events[-1].data["error"]["code"] == "concurrent_step_id"

    asyncio.run(main())
