"""`pyrula dev`: server, worker and view in one process; and the board behind the view."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from pyrula.cli.board import Board
from pyrula.contracts.runs import Run, RunStatus

if TYPE_CHECKING:
    from tests.acceptance.conftest import Desk, Terminal

WORKFLOWS = Path(__file__).parent / "cli_workflows.py"
START = datetime(2026, 1, 1, tzinfo=UTC)


def servers_of(directory: Path) -> list[psutil.Process]:
    """Processes that work in the directory: the server, and who keeps it."""
    found = []
    for process in psutil.process_iter(["cwd", "cmdline"]):
        words = " ".join(process.info["cmdline"] or [])
        if process.info["cwd"] == str(directory) or f"{directory}/" in words:
            found.append(process)
    return found


def test_on_a_terminal_it_shows_runs_and_leaves_no_server(
    desk: Desk, terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    screen = terminal("dev", str(WORKFLOWS), env=desk.environment, cwd=tmp_path)
    screen.expect("serving 4 workflows: ")
    screen.expect("export PYRULA_VALKEY_URL=")
    [url] = re.findall(r"PYRULA_VALKEY_URL=(\S+)", screen.text)
    assert url == f"embedded://{tmp_path}/.pyrula"
    screen.expect("no runs yet")
    waited = desk("--url", url, "submit", "order", '{"skus": ["a"]}', "--wait")
    assert waited.json == {"total": 100}
    screen.expect("completed")
    servers = servers_of(tmp_path / ".pyrula")
    assert servers
    screen.type("\x03")
    screen.expect("stopping: runs in flight may finish for 5 s")
    assert screen.end() == 0
    assert screen.text.rstrip().endswith("stopped; what is not finished goes on at the next start")
    assert "Traceback" not in screen.text
    _, alive = psutil.wait_procs(servers, timeout=20)
    assert not alive


def test_in_a_pipe_it_logs_and_its_data_stay(desk: Desk, tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/data"
    command = [sys.executable, "-m", "pyrula.cli", "dev", str(WORKFLOWS), "--data", "data"]
    with subprocess.Popen(
        command, env=desk.environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert "serving" in process.stderr.readline()
        failed = desk("--url", url, "submit", "doomed", "--wait")
        assert failed.code == 1
        process.send_signal(signal.SIGINT)
        out, log = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "\x1b" not in out + log
    assert re.search(r"run \w+ of doomed: failed after .+ \(step 'pay' failed", log)
    assert [run["status"] for run in desk("--url", url, "runs", "list", "--json").records] == ["failed"]


def test_a_data_directory_that_cannot_be_used_is_one_line(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = desk.process("dev", str(WORKFLOWS), "--data", "file/data", cwd=tmp_path)
    assert done.code == 1
    [line] = done.err.splitlines()
    assert line.startswith("pyrula: ")
    assert "file/data" in line


# --- the board ---------------------------------------------------------------------------


def run_of(run_id: str, status: RunStatus, seconds: float = 0) -> Run:
    return Run("order", run_id, status, submitted_at=START + timedelta(seconds=seconds))


def test_a_boards_counts_follow_its_runs() -> None:
    board = Board()
    board.begin_listing()
    board.listed([run_of("b", RunStatus.QUEUED, 1), run_of("a", RunStatus.COMPLETED)], 2, first=True)
    assert board.counts() == {RunStatus.QUEUED: 1, RunStatus.COMPLETED: 1}
    board.moved("order", "b", RunStatus.RUNNING, START)
    board.moved("order", "b", RunStatus.WAITING, START, waiting_on="signal:x")
    assert board.counts() == {RunStatus.WAITING: 1, RunStatus.COMPLETED: 1}
    ended = board.moved("order", "b", RunStatus.FAILED, START + timedelta(seconds=2), error={"message": "no"})
    assert (ended.started_at, ended.finished_at, ended.waiting_on) == (START, START + timedelta(seconds=2), None)
    assert board.counts() == {RunStatus.COMPLETED: 1, RunStatus.FAILED: 1}
    again = board.moved("order", "b", RunStatus.RUNNING, START)
    assert (again.error, again.finished_at) == (None, None)


def test_a_board_takes_what_the_server_has_beyond_for_queued_and_older_for_older() -> None:
    board = Board()
    board.begin_listing()
    board.listed([run_of("b", RunStatus.COMPLETED), run_of("a", RunStatus.COMPLETED)], 10, first=True)
    assert (board.older, board.counts()) == (8, {RunStatus.COMPLETED: 2})
    board.begin_listing()
    board.listed([run_of("z", RunStatus.QUEUED)], 60)
    assert board.counts() == {RunStatus.QUEUED: 50, RunStatus.COMPLETED: 2}


def test_a_listing_that_is_older_than_a_change_does_not_undo_it() -> None:
    board = Board()
    board.begin_listing()
    board.moved("order", "a", RunStatus.RUNNING, START)
    board.moved("order", "a", RunStatus.COMPLETED, START)
    board.listed([run_of("a", RunStatus.QUEUED)], 1)
    assert board.counts() == {RunStatus.COMPLETED: 1}
    board.begin_listing()
    board.listed([run_of("a", RunStatus.TERMINATED)], 1)
    assert board.counts() == {RunStatus.TERMINATED: 1}


def test_a_board_shows_the_last_change_first_and_counts_what_it_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyrula.cli.board._KEPT", 20)
    board = Board()
    for n in range(50):
        board.moved("order", str(n), RunStatus.RUNNING, START)
        board.moved("order", str(n), RunStatus.COMPLETED, START)
    assert [run.run_id for run in board.latest(3)] == ["49", "48", "47"]
    assert board.counts() == {RunStatus.COMPLETED: 50}
    assert not board.under_way()
    board.moved("order", "x", RunStatus.RUNNING, START)
    assert board.under_way()
