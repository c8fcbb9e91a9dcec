"""Private servers: what a test may do to one, and that none outlives its test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from valkey.exceptions import AuthenticationError
from valkey.exceptions import TimeoutError as DriverTimeoutError

from pyrula.contracts.errors import ConfigurationError, StoreUnavailable
from pyrula.testing.servers import PrivateServer

ROOT = Path(__file__).parents[2]


def wait_until(what: Callable[[], object], *, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@pytest.mark.parametrize("tcp", [False, True])
def test_address_and_data_stay_through_kill_and_restart(tcp: bool) -> None:
    with PrivateServer({"appendfsync": "always"}, tcp=tcp) as server, server.client(decode_responses=True) as client:
        url, pids = server.url, {server.pid}
        client.set("key", "value")
        server.kill()
        assert not server.running
        server.start()
        pids.add(server.pid)
        server.restart()
        pids.add(server.pid)
        assert client.get("key") == "value"
        assert client.config_get("appendfsync") == {"appendfsync": "always"}
        assert server.url == url
        assert len(pids) == 3
    assert not server.running
    assert not server.directory.exists()


def test_a_paused_one_answers_nothing_until_it_goes_on() -> None:
    with PrivateServer() as server, server.client(socket_timeout=0.2) as client:
        client.ping()
        server.pause()
        with pytest.raises(DriverTimeoutError):
            client.ping()
        server.resume()
        assert client.ping()
        server.pause()
        server.stop()  # a paused one can be stopped, too
        assert not server.running


def test_passwords_and_users() -> None:
    options = {"requirepass": "s/cr@t%", "user": ["alice on >hers ~a:* +@all", "bob on >his ~b:* +@read"]}
    with PrivateServer(options) as server:
        with server.client() as client:
            assert client.ping()
        with server.client(username="alice", password="hers") as client:
            assert client.set("a:1", "1")
        with server.client(username="bob", password="hers") as client, pytest.raises(AuthenticationError):
            client.ping()


def test_a_directory_that_was_given_stays(tmp_path: Path) -> None:
    with PrivateServer(directory=tmp_path) as server, server.client() as client:
        client.set("key", "value")
        server.stop()
    with PrivateServer(directory=tmp_path) as server, server.client(decode_responses=True) as client:
        assert client.get("key") == "value"


def test_one_that_does_not_start_says_why() -> None:
    with pytest.raises(StoreUnavailable, match="maxclients none"), PrivateServer({"maxclients": "none"}):
        pass


def test_orders_that_make_no_sense() -> None:
    server = PrivateServer()
    with pytest.raises(ConfigurationError, match="never started"):
        server.pause()
    server.kill()
    with server, pytest.raises(ConfigurationError, match="runs already"):
        server.start()


def test_it_outlives_the_thread_that_started_it() -> None:
    server = PrivateServer()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    with server, server.client() as client:
        for _ in range(20):
            assert client.ping()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a killed process leaves its servers")
def test_it_does_not_outlive_a_process_that_was_killed(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from pyrula.testing.servers import PrivateServer\n"
        "server = PrivateServer(directory=pathlib.Path(sys.argv[1])).start()\n"
        "print(server.pid, flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-B", "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert psutil.pid_exists(pid)
        owner.send_signal(signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(pid))
