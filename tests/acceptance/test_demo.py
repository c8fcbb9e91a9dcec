"""The main job: the demo proves what it says, says when it cannot, and leaves nothing behind."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from pyrula.workflows import Event

pytestmark = pytest.mark.slow

DEMO = Path(__file__).resolve().parents[2] / "examples" / "integrity"
# Enough files for a kill in the middle of them, few enough for seconds.
ENOUGH = ["mypy", "rich"]
STARTED = re.compile(r"worker (\d+) started \(server (\d+)\)")


@contextmanager
def demo(directory: Path, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """The demo as a process, with `directory` for its temporary files."""
    process = subprocess.Popen(
        [sys.executable, DEMO / "demo.py", *arguments],
        env={**os.environ, "TMPDIR": str(directory), **options.pop("env", {})},
        stdin=subprocess.DEVNULL,
        text=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def finished(directory: Path, *arguments: str, **options: Any) -> tuple[int, str, str]:
    """Run the demo to its end: status, standard output, standard error. Nothing may be left of it."""
    with demo(directory, *arguments, **options) as process:
        output, errors = process.communicate(timeout=55)
    assert_nothing_left(directory, output + errors)
    return process.returncode, output, errors


def assert_nothing_left(directory: Path, said: str) -> None:
    """No file of it, and none of the processes it named."""
    assert list(directory.iterdir()) == []
    pids = {int(pid) for match in STARTED.finditer(said) for pid in match.groups()}
    assert pids, said
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with one installed distribution that does not match its RECORD."""
    folder = tmp_path / "site"
    info = folder / "damaged-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "intact.py").write_text("a = 1\n")
    (folder / "changed.py").write_text("b = 2\n")
    (folder / "unhashed.py").write_text("c = 3\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: damaged\nVersion: 1.0\n")
    (info / "RECORD").write_text(
        f"intact.py,{claim('a = 1')},6\nchanged.py,{claim('b = 1')},6\n"
        f'unhashed.py,,\n"gone, with a comma.py",{claim("d = 4")},6\ngone-unhashed.pyc,,\n'
    )
    return folder


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A folder for the demo's temporary files."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder


def beside(site: Path) -> dict[str, str]:
    """An environment in which that folder is on Python's path."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))}


def claim(line: str) -> str:
    """What a RECORD says of a file with this one line."""
    digest = hashlib.sha256(f"{line}\n".encode()).digest()
    return f"sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_killed_worker_costs_only_what_was_in_flight(empty: Path, site: Path, loop: str) -> None:
    status, output, errors = finished(
        empty,
        "--only",
        "damaged",
        *ENOUGH,
        "--loop",
        loop,
        "--json",
        env=beside(site),
    )
    assert status == 0, output + errors
    report = json.loads(output)
    assert report["proved"] is True
    assert report["flaws"] == []
    assert report["runs_finished"] == report["runs_submitted"] == 3
    assert 0 < report["steps_recorded_at_kill"] < report["steps_recorded"]
    assert report["steps_executed"] == report["steps_recorded"] + report["steps_repeated"]
    assert report["steps_repeated"] <= report["steps_in_flight_at_kill"]
    assert report["takeover_seconds"] < 15

    by_name = {found["name"]: found for found in report["distributions"]}
    damaged = by_name["damaged"]
    assert {field: damaged[field] for field in ("files", "size", "unhashed", "missing", "changed", "unreadable")} == {
        "files": 5,
        "size": 18,
        "unhashed": 1,
        "missing": 2,
        "changed": 1,
        "unreadable": 0,
    }
    assert damaged["mismatches"] == [
        "changed: changed.py",
        "missing: gone, with a comma.py",
        "missing: gone-unhashed.pyc",
    ]
    assert by_name["mypy"]["files"] > 1000
    assert by_name["mypy"]["mismatches"] == []


def test_without_a_terminal_it_prints_plain_lines_a_table_and_the_proof(empty: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    status, output, errors = finished(empty, "--only", *ENOUGH, "--keep", str(kept))
    assert (status, errors) == (0, "")
    assert output.replace("\n", "").isprintable()
    assert re.search(r"^mypy +\d+ +[\d.]+ MB +\d+ +0 +0$", output, re.MULTILINE)
    assert re.search(r"^total of 2 +\d+ ", output, re.MULTILINE)
    assert "runs finished    2 of 2\n" in output
    repeated = re.search(r"^steps repeated   (\d+) \(in flight at the kill: (\d+)\)$", output, re.MULTILINE)
    assert repeated
    assert int(repeated[1]) <= int(repeated[2])
    assert output.endswith(
        "Proved: every journal is whole, and nothing that was recorded ran again. Server and workers are gone.\n"
    )
    # What was asked to be kept is there, and bears the report out.
    assert {path.name for path in kept.iterdir()} == {"data", "executions.jsonl", "worker-1.log", "worker-2.log"}
    executed = re.search(r"^steps executed   (\d+)$", output, re.MULTILINE)
    assert executed
    assert len((kept / "executions.jsonl").read_text().splitlines()) == int(executed[1])
    # A line every two seconds and one for each event of note: not a line for each step.
    assert len(output.splitlines()) < 40


def test_on_a_terminal_it_draws_bars(empty: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        with demo(empty, "--only", *ENOUGH, stdout=theirs, stderr=theirs, env={"TERM": "xterm"}) as process:
            os.close(theirs)
            output = "".join(terminal_output(ours))
            assert process.wait(20) == 0, output
    finally:
        os.close(ours)
    assert "\x1b[" in output
    assert "Proved: every journal is whole" in output


def terminal_output(fd: int) -> Iterator[str]:
    """What is written to a terminal until its last user has closed it."""
    while True:
        try:
            data = os.read(fd, 65536)
        except OSError:  # how Linux says that nobody is left on the other side
            return
        if not data:
            return
        yield data.decode(errors="replace")


def test_a_kill_that_comes_too_late_proves_nothing(empty: Path) -> None:
    status, output, _ = finished(empty, "--only", "rich", "--seconds-before-kill", "50")
    assert status == 1
    assert "NOT PROVED: the kill came when no run was left to do" in output
    assert "Proved:" not in output


@pytest.mark.parametrize(
    ("loop", "number", "when"),
    [("asyncio", signal.SIGINT, "started"), ("trio", signal.SIGTERM, "killed with SIGKILL")],
)
def test_interrupted_it_leaves_nothing_behind(empty: Path, loop: str, number: signal.Signals, when: str) -> None:
    with demo(empty, "--only", *ENOUGH, "--loop", loop) as process:
        said = lines_until(process, when)
        process.send_signal(number)
        output, errors = process.communicate(timeout=40)
    assert process.returncode == 130
    assert errors == "interrupted; server and worker are ended\n"
    assert_nothing_left(empty, said + output)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_worker_that_dies_by_itself_ends_the_demo(empty: Path, loop: str) -> None:
    with demo(empty, "--only", *ENOUGH, "--loop", loop) as process:
        said = lines_until(process, "started")
        started = STARTED.search(said)
        assert started
        worker = int(started[1])
        os.kill(worker, signal.SIGKILL)
        output, errors = process.communicate(timeout=40)
    assert process.returncode == 1
    assert f"the demo failed: worker {worker} ended with status -9" in errors
    assert "Traceback" not in errors
    assert_nothing_left(empty, said + output)


def lines_until(process: subprocess.Popen[str], text: str) -> str:
    """Read standard output up to a line with this text."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if text in line:
            return said
    raise AssertionError(f"it never said {text!r}:\n{said}")


def test_an_unknown_distribution_and_a_directory_in_use_are_refused(empty: Path, site: Path) -> None:
    for arguments, reason in ((["--only", "no-such-thing"], "no-such-thing"), (["--keep", str(site)], "is not empty")):
        with demo(empty, *arguments) as process:
            output, errors = process.communicate(timeout=20)
        assert (process.returncode, output) == (2, "")
        assert reason in errors


# --- the proof can fail --------------------------------------------------------------------


@pytest.fixture
def proof(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The demo's module of that name."""
    monkeypatch.syspath_prepend(DEMO)
    module = importlib.import_module("proof")

    yield module
    for name in ("proof", "evidence"):
        sys.modules.pop(name)


RECORDED, IN_FLIGHT, LATER = ("r", "file:a/b.py"), ("r", "file:c#d.py"), ("r", "record:0")


def journal(*kinds: str) -> list[Event]:
    """A journal with these events; a step's name stands behind its type."""
    at = datetime(2030, 1, 1, tzinfo=UTC)
    return [
        Event(seq, kind.partition(" ")[0], at + timedelta(seconds=seq), 1, kind.partition(" ")[2], {})
        for seq, kind in enumerate(kinds, 1)
    ]


def good(proof: ModuleType) -> dict[str, Any]:
    """What a demo with three steps finds, one of them in flight at the kill and repeated."""
    events = journal(
        "run.submitted",
        "step.completed g1.0/file:a%2Fb.py",
        "step.completed g1.1/file:c%23d.py",
        "step.completed record:0",
        "run.completed",
    )
    kill = proof.Kill(
        at=datetime(2030, 1, 1, 0, 0, 2, tzinfo=UTC),
        claimed={"r": 2},
        room=8,
        unfinished=1,
        recorded=frozenset({RECORDED}),
        in_flight=frozenset({IN_FLIGHT}),
    )
    executions = {RECORDED: 1, IN_FLIGHT: 2, LATER: 1}
    return {"submitted": 1, "completed": 1, "executions": executions, "journals": {"r": events}, "kill": kill}


def test_a_proof_holds_when_only_what_was_in_flight_ran_twice(proof: ModuleType) -> None:
    made = proof.Proof(**good(proof))
    assert made.flaws == []
    assert (made.executed, made.repetitions, made.seconds_to_take_over) == (4, 1, 1.0)


@pytest.mark.parametrize(
    ("change", "flaw"),
    [
        ({"completed": 0}, "1 runs did not complete"),
        ({"executions": {RECORDED: 2, IN_FLIGHT: 1, LATER: 1}}, "ran again although they had been recorded"),
        ({"executions": {RECORDED: 1, IN_FLIGHT: 3, LATER: 1}}, "2 executions were repeated, 1 steps were in flight"),
        ({"executions": {RECORDED: 1, IN_FLIGHT: 1, LATER: 2}}, "ran twice without being in flight"),
        ({"executions": {RECORDED: 1, IN_FLIGHT: 2}}, "recorded and not executed"),
        ({"executions": {RECORDED: 1, IN_FLIGHT: 2, LATER: 1, ("r", "file:x"): 1}}, "executed and not recorded"),
        ({"kill": {"unfinished": 0}}, "it proves nothing"),
        ({"kill": {"room": 0}}, "room for 0"),
        ({"kill": {"claimed": {}}}, "in runs that the worker did not hold"),
        ({"journals": {"r": []}}, "1 journals have gaps or do not end"),
        ({"journal": "gap"}, "1 journals have gaps or do not end"),
        ({"journal": "open"}, "1 journals have gaps or do not end"),
        ({"journal": "longer"}, "1 journals have gaps or do not end"),
        ({"journal": "twice"}, "1 steps are recorded more than once"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_proof_fails_when_something_is_wrong(proof: ModuleType, change: dict[str, Any], flaw: str) -> None:
    from dataclasses import replace

    given = good(proof)
    events = given["journals"]["r"]
    journals = {
        "gap": events[:2] + events[3:],
        "open": events[:-1],
        "longer": [*events, replace(events[0], seq=6)],
        "twice": [*events[:4], replace(events[1], seq=5), replace(events[4], seq=6)],
    }
    for name, value in change.items():
        if name == "journal":
            given["journals"] = {"r": journals[value]}
        elif name == "kill":
            given["kill"] = replace(given["kill"], **value)
        else:
            given[name] = value
    flaws = proof.Proof(**given).flaws
    assert any(flaw in found for found in flaws), flaws
