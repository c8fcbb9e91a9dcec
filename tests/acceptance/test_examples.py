"""The examples do what they say, started as a reader starts them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LOOPS = ["asyncio", "trio"]


def run_example(directory: Path, script: str, *arguments: str) -> str:
    """Run a script with `directory` for its temporary files; its output. It must leave nothing there."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / script, *arguments],
        env={**os.environ, "TMPDIR": str(directory)},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert list(directory.iterdir()) == []
    assert_no_process_in(directory)
    return done.stdout


def assert_no_process_in(directory: Path) -> None:
    """No server works there any more, or it ends by itself very soon."""
    there = [p for p in psutil.process_iter(["cwd"]) if (p.info["cwd"] or "").startswith(str(directory))]
    _, alive = psutil.wait_procs(there, timeout=10)
    assert alive == []


def event_types(output: str) -> list[str]:
    """The event types of the numbered journal lines, whose numbers must be 1, 2, 3 ..."""
    found = re.findall(r"^ +(\d+) ([a-z_]+\.[a-z_]+)", output, re.MULTILINE)
    assert [int(seq) for seq, _ in found] == list(range(1, len(found) + 1))
    return [kind for _, kind in found]


@pytest.mark.parametrize("loop", LOOPS)
def test_an_approved_order_is_charged_and_shipped(tmp_path: Path, loop: str) -> None:
    output = run_example(tmp_path, "order/order.py", "--loop", loop)
    assert "waiting for an answer: {'approve': '2 x desk for 1280.00?'}" in output
    assert output.count("charged 1280.00") == 1
    assert "result: Receipt(status='shipped', total=Decimal('1280.00'), parcel='parcel-2-desk', reason=None)" in output
    kinds = event_types(output)
    assert kinds[0] == "run.submitted"
    assert kinds[-1] == "run.completed"
    assert kinds.index("interrupt.raised") < kinds.index("interrupt.resumed") < kinds.index("step.started")


@pytest.mark.parametrize("loop", LOOPS)
def test_a_denied_order_is_neither_charged_nor_shipped(tmp_path: Path, loop: str) -> None:
    output = run_example(tmp_path, "order/order.py", "--deny", "--loop", loop)
    assert "charged" not in output
    assert "result: Receipt(status='denied', total=Decimal('1280.00'), parcel=None, reason='too expensive')" in output
    assert event_types(output).count("step.completed") == 1


@pytest.mark.parametrize("loop", LOOPS)
def test_a_reminder_sleeps_on_while_no_worker_runs(tmp_path: Path, loop: str) -> None:
    output = run_example(tmp_path, "reminder/reminder.py", "call home", "--after", "1", "--loop", loop)
    course = [
        "a worker runs",
        "timer.set",
        "the worker has stopped; the run is sleeping until",
        "another worker runs",
        "timer.fired",
        "run.completed",
    ]
    places = [output.index(text) for text in course]
    assert places == sorted(places), output
    assert "reminded: call home (noted at " in output
    assert output.count("timer.set") == output.count("timer.fired") == 1


# --- the application ---------------------------------------------------------------------


@contextmanager
def application(directory: Path, *, killed: bool = False) -> Iterator[httpx.Client]:
    """The application under uvicorn, its data below `directory`; ended by SIGTERM, or SIGKILL for `killed`."""
    log = directory / "uvicorn.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "app:app", "--app-dir", EXAMPLES / "fastapi_app", "--port", "0"],
            cwd=directory,
            env={name: value for name, value in os.environ.items() if name != "PYRULA_VALKEY_URL"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        wait_until(lambda: "Uvicorn running on" in log.read_text() or process.poll() is not None)
        address = re.search(r"Uvicorn running on (http://\S+)", log.read_text())
        assert address, log.read_text()
        with httpx.Client(base_url=address[1]) as client:
            yield client
        process.send_signal(signal.SIGKILL if killed else signal.SIGTERM)
        process.wait(20)
        if not killed:
            assert "Application shutdown complete" in log.read_text()
            assert "Traceback" not in log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def wait_until(reached: Callable[[], bool]) -> None:
    """Look again and again; what is waited for is in another process, which announces nothing."""
    deadline = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < deadline, "it did not happen within 20 s"
        time.sleep(0.02)


def run_is(client: httpx.Client, run_id: str, status: str) -> dict[str, Any]:
    """Wait until the run has that status; the run as the application shows it."""
    shown: dict[str, Any] = {}

    def look() -> bool:
        shown.update(client.get(f"/greetings/{run_id}").raise_for_status().json())
        return bool(shown["status"] == status)

    wait_until(look)
    return shown


def test_the_application_submits_shows_and_answers_runs(tmp_path: Path) -> None:
    with application(tmp_path) as client:
        submitted = client.post("/greetings", json={"name": "Ada", "key": "one"})
        assert submitted.status_code == 202
        run_id = submitted.json()["run_id"]
        assert run_is(client, run_id, "waiting")["waiting_on"].startswith("interrupt:")
        assert client.post("/greetings", json={"name": "Ada", "key": "one"}).json()["run_id"] == run_id

        assert client.post(f"/greetings/{run_id}/answer", json={"name": "Grace"}).status_code == 202
        assert run_is(client, run_id, "completed")["result"] == {"text": "Hello Ada!", "approved_by": "Grace"}

        assert client.post(f"/greetings/{run_id}/answer", json={"name": "Eve"}).status_code == 409
        assert client.get("/greetings/unheard-of").status_code == 404
        assert client.post("/greetings", json={"nobody": 1}).status_code == 422
    assert_no_process_in(tmp_path)


def test_a_run_that_waits_outlives_an_application_that_is_killed(tmp_path: Path) -> None:
    with application(tmp_path, killed=True) as client:
        run_id = client.post("/greetings", json={"name": "Ada"}).json()["run_id"]
        run_is(client, run_id, "waiting")
    with application(tmp_path) as client:
        assert run_is(client, run_id, "waiting")["result"] is None
        client.post(f"/greetings/{run_id}/answer", json={"name": "Grace"}).raise_for_status()
        assert run_is(client, run_id, "completed")["result"] == {"text": "Hello Ada!", "approved_by": "Grace"}
    assert_no_process_in(tmp_path)
