"""Servers that answer and do not serve: full, read-only, loading, locked; and what is no Valkey server at all.

A client hears of it at once, in one line that names the place and never a password. A worker waits, says so
once, and goes on when it can; it can be stopped at any time.
"""

from __future__ import annotations

import http.server
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from valkey.exceptions import OutOfMemoryError

from pyrula.contracts.errors import OutOfMemory, StoreUnavailable
from pyrula.testing.servers import PrivateServer
from pyrula.workflows import ValkeyStore, WorkflowClient
from tests.integration.fault_bench import Bench, until
from tests.integration.fault_worker import WorkerProcess

pytestmark = pytest.mark.anyio

AWAY = "the store is away, waiting for it"
SECRET = "s3cret-Pa55"


@pytest.fixture
def server() -> Iterator[PrivateServer]:
    """A server to fill, lock and demote."""
    with PrivateServer({"maxmemory-policy": "noeviction"}) as server:
        yield server


@pytest.fixture
async def bench(
    server: PrivateServer, namespace: str, tmp_path: Path, anyio_backend: tuple[str, Any]
) -> AsyncIterator[Bench]:
    async with Bench(server, namespace, tmp_path, anyio_backend[0]) as bench:
        yield bench


async def _says_once(worker: WorkerProcess, what: str) -> None:
    """Wait until the worker has said that the store is away and why; it says so once."""
    await until(lambda: AWAY in worker.log, what="the worker says that the store is away")
    assert what in worker.log
    assert worker.log.count(AWAY) == 1
    assert "Traceback" not in worker.log


def _lease(bench: Bench, name: str, run_id: str) -> float:
    """When the claim of a run expires (ms)."""
    with _client(bench.server) as client:
        scores = [client.zscore(f"{bench.namespace}:{{{name}:{n}}}:claims", run_id) for n in range(bench.shard_count)]
    return max(float(score or 0) for score in scores)


# --- full ---------------------------------------------------------------------------------


@contextmanager
def _client(server: PrivateServer) -> Iterator[Any]:
    client: Any = server.client()
    yield client
    client.close()


@contextmanager
def _full(server: PrivateServer) -> Iterator[None]:
    """Fill the server for real; at the end what filled it goes."""
    with _client(server) as client:
        client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + 2_000_000)
        filled = 0
        with suppress(OutOfMemoryError):
            while True:
                client.set(f"filler:{filled}", "x" * 20_000)
                filled += 1
        # Buffers of connections come and go: what they give back is not for the runs.
        client.config_set("maxmemory", int(client.info("memory")["used_memory"]) - 200_000)
        try:
            yield
        finally:
            client.delete(*[f"filler:{n}" for n in range(filled)])


async def test_a_full_server_holds_runs_back_and_loses_none(bench: Bench) -> None:
    worker = await bench.worker()
    runs = [await bench.client.submit("chain", {"steps": 3, "pause": 0.3}) for _ in range(5)]
    nap = await bench.client.submit("nap", {"seconds": 0.3})
    await until(lambda: len({e.run for e in bench.executions() if e.step == "s0"}) == 6, what="all begun")
    with _full(bench.server):
        begun = time.monotonic()
        with pytest.raises(OutOfMemory):
            await bench.client.submit("chain", {"steps": 1})
        with pytest.raises(OutOfMemory):
            await bench.client.signal("chain", runs[0].run_id, "letter", "x")
        assert time.monotonic() - begun < 1, "a client hears of it at once"
        await _says_once(worker, "OOM command not allowed")
        # Leases are renewed on a full server, too: for longer than they last.
        before = _lease(bench, "chain", runs[0].run_id)
        await until(lambda: _lease(bench, "chain", runs[0].run_id) > before + 1500, what="the lease renewed twice")
        assert [await bench.status(run) for run in runs] == ["running"] * 5
    assert [await bench.result(run) for run in runs] == [3] * 5
    assert await bench.result(nap) == 1
    for run in runs:
        assert bench.counts(run.run_id) == {"s0": 1, "s1": 1, "s2": 1}
        assert (await bench.client.get("chain", run.run_id)).attempt == 1
    assert "the store is back" in worker.log
    assert await bench.proof() == []


# --- read-only, loading -------------------------------------------------------------------


async def test_a_server_that_became_a_replica_is_waited_for(bench: Bench) -> None:
    worker = await bench.worker(lock_ttl=10.0)
    run = await bench.client.submit("chain", {"steps": 3, "pause": 0.2})
    await until(lambda: bench.counts(run.run_id).get("s1"), what="the run begun")
    with _client(bench.server) as client:
        client.replicaof("127.0.0.1", "1")  # nobody is there: it keeps its data, and takes no writes
    with pytest.raises(StoreUnavailable, match="READONLY"):
        await bench.client.submit("chain", {"steps": 1})
    assert (await bench.client.get("chain", run.run_id)).run_id == run.run_id, "reading goes on"
    await _says_once(worker, "READONLY")
    with _client(bench.server) as client:
        client.replicaof("NO", "ONE")
    assert await bench.result(run) == 3
    assert bench.counts(run.run_id) == {"s0": 1, "s1": 1, "s2": 1}
    assert await bench.proof() == []


async def test_a_server_that_still_loads_is_waited_for(bench: Bench) -> None:
    run = await bench.client.submit("chain", {"steps": 1})
    with _client(bench.server) as client, client.pipeline(transaction=False) as pipe:
        for n in range(8000):
            pipe.set(f"filler:{n}", "x")
        pipe.execute()
    bench.server.stop()
    # Each command takes its time, so that the server, which looks up every 1024, is seen loading for a second or two.
    bench.server.options |= {"key-load-delay": "150"}

    async def loading() -> bool:
        try:
            await store.workflows()
        except StoreUnavailable as error:
            return "LOADING" in str(error)
        return False

    store = ValkeyStore(bench.server.url, namespace=bench.namespace, shard_count=bench.shard_count)
    worker = bench.start()
    await until(lambda: AWAY in worker.log, what="the worker there before the server")
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, bench.server.start)
        await until(loading, what="a client hears that it loads")
    await store.aclose()
    await worker.ready()
    await _says_once(worker, str(bench.server.socket_path))
    assert await bench.result(run) == 0
    assert await bench.proof() == []


# --- locked -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("login", "told"),
    [
        pytest.param("", "asks for a password, and the URL has none", id="none given"),
        pytest.param(f":{SECRET}@", "refused the login", id="another one"),
        pytest.param(f"someone:{SECRET}@", "refused the login", id="another user"),
    ],
)
async def test_a_wrong_password_is_told_and_waited_for(
    tmp_path: Path, namespace: str, anyio_backend: tuple[str, Any], login: str, told: str
) -> None:
    with PrivateServer({"requirepass": "another"}, tcp=True) as server:
        async with Bench(server, namespace, tmp_path, anyio_backend[0]) as bench:
            url = f"redis://{login}127.0.0.1:{server.port}"
            store = ValkeyStore(url, namespace=namespace)
            with pytest.raises(StoreUnavailable, match=told) as refused:
                await WorkflowClient(store).submit("chain", {"steps": 1})
            await store.aclose()
            assert f"127.0.0.1:{server.port}" in str(refused.value)
            assert "\n" not in str(refused.value)
            worker = bench.start(url=url)
            await _says_once(worker, told)
            for text in (str(refused.value), repr(refused.value.__cause__), repr(store), worker.log):
                assert SECRET not in text
                assert "another" not in text.replace("another user", "")
            # The operator puts it right on the server's side, and the worker goes on.
            with _client(server) as client:
                if "someone" in login:
                    client.execute_command("ACL", "SETUSER", "someone", "on", f">{SECRET}", "~*", "&*", "+@all")
                else:
                    client.config_set("requirepass", SECRET if login else "")
            await worker.ready()


# --- nobody, or somebody else -------------------------------------------------------------


class _Web(http.server.BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def _web_server() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Web) as web:
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield web.server_port
        finally:
            web.shutdown()
            thread.join()


@contextmanager
def _silent_server() -> Iterator[int]:
    """Connections are taken, and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield silent.getsockname()[1]


@contextmanager
def _nobody() -> Iterator[int]:
    with socket.socket() as held:  # bound and not listening: nobody else gets the port
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.mark.parametrize(
    ("someone", "told"),
    [
        pytest.param(_nobody, "cannot reach Valkey at {place}: Connection refused", id="nobody"),
        pytest.param(_web_server, "what answers at {place} does not speak Valkey's protocol", id="a web server"),
        pytest.param(_silent_server, "no answer from Valkey at {place} within 0.", id="silence"),
    ],
)
async def test_what_is_no_valkey_server_is_told_in_one_line(bench: Bench, someone: Any, told: str) -> None:
    with someone() as port:
        place = f"127.0.0.1:{port}"
        url = f"redis://user:{SECRET}@{place}"
        store = ValkeyStore(url, namespace=bench.namespace, connect_timeout=0.5)
        begun = time.monotonic()
        with pytest.raises(StoreUnavailable) as refused:
            await WorkflowClient(store).submit("chain", {"steps": 1})
        assert str(refused.value).startswith(told.format(place=place))
        assert "\n" not in str(refused.value)
        assert time.monotonic() - begun < 2
        await store.aclose()
        worker = bench.start(url=url, connect_timeout=0.5)
        await _says_once(worker, place)
        assert SECRET not in worker.log
        # It waits, and can be stopped while it does.
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0


async def test_a_worker_that_came_before_its_server_serves_when_it_is_there(
    tmp_path: Path, namespace: str, anyio_backend: tuple[str, Any]
) -> None:
    server = PrivateServer(tcp=True)
    async with Bench(server, namespace, tmp_path, anyio_backend[0]) as bench:
        worker = bench.start()
        await _says_once(worker, "Connection refused")
        with server:
            await worker.ready()
            run = await bench.client.submit("chain", {"steps": 2})
            assert await bench.result(run) == 1


async def test_a_worker_whose_server_is_gone_can_be_stopped(bench: Bench) -> None:
    """With a run in flight that nobody can record any more: it is left to its lease."""
    worker = await bench.worker(options={"shutdown_grace": 0.2, "cancel_timeout": 0.2}, connect_timeout=0.5)
    run = await bench.client.submit("chain", {"steps": 3, "pause": 0.1})
    await until(lambda: bench.counts(run.run_id).get("s1"), what="the run begun")
    bench.server.kill()
    await until(lambda: AWAY in worker.log, what="the outage seen")
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 0
    bench.server.start()
    await bench.worker()
    assert await bench.result(run) == 3
    assert await bench.proof() == []
