"""The command line as a process: its start, its pipes, its signals, its worker."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyrula import __version__

if TYPE_CHECKING:
    from tests.acceptance.conftest import Desk, Terminal

WORKFLOWS = Path(__file__).parent / "cli_workflows.py"
PROGRAM = (sys.executable, "-m", "pyrula.cli")


def imported_by(*argv: str, env: dict[str, str]) -> set[str]:
    """The modules that are there after `pyrula ARGV...`."""
    code = (
        "import sys\nfrom pyrula.cli import main\n"
        f"try:\n    main({argv!r})\nexcept SystemExit:\n    sys.stderr.write(' '.join(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_help_and_listings_import_nothing_they_do_not_need(desk: Desk) -> None:
    for_help = imported_by("--help", env=desk.environment)
    assert "typer" in for_help
    assert for_help.isdisjoint({"pyrula.workflows", "valkey", "libvalkey", "rich", "rich.console", "asyncio"})
    for_list = imported_by("runs", "list", "--json", env=desk.environment)
    assert "pyrula.workflows.client" in for_list
    assert for_list.isdisjoint({"rich.console", "rich.table", "pyrula.cli.live", "pyrula.cli.run_text"})


def test_version_and_help(desk: Desk) -> None:
    assert desk("--version").out == f"pyrula {__version__}\n"
    for argv in ((), ("runs",), ("submit",), ("runs", "list")):
        shown = desk(*argv, "--help")
        assert (shown.code, shown.err) == (0, "")
        assert shown.lines[0].startswith(" ".join(("Usage: pyrula", *argv)))
    alone = desk("runs")
    assert (alone.code, alone.lines[0].startswith("Usage: pyrula runs")) == (2, True)


@pytest.mark.parametrize("missing", [["typer"], ["rich"], ["typer", "rich"]])
def test_without_its_libraries_it_names_the_extra(missing: list[str]) -> None:
    code = f"import sys; sys.modules.update(dict.fromkeys({missing})); from pyrula.cli import main; main(['--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"pyrula: the command line needs {' and '.join(missing)}: pip install 'pyrula[cli]'\n"


def test_pipes_get_no_colours_and_a_closed_one_no_words(desk: Desk) -> None:
    ids = [desk.submit("order", n=n) for n in range(3)]
    piped = desk.process("runs", "list", FORCE_COLOR="1")
    assert piped.code == 0
    assert "\x1b" not in piped.out + piped.err
    assert [line.split()[0] for line in piped.lines[1:]] == ids[::-1]
    reading, writing = os.pipe()
    os.close(reading)
    closed = subprocess.run(
        [*PROGRAM, "runs", "list"], env=desk.environment, stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (closed.returncode, closed.stderr) == (141, b"")


def test_a_terminal_gets_colours_unless_it_wants_none(desk: Desk, terminal: Callable[..., Terminal]) -> None:
    run_id = desk.submit("order")
    coloured = terminal("runs", "list", env=desk.environment)
    assert coloured.end() == 0
    assert "\x1b[36mqueued" in coloured.text
    plain = terminal("runs", "list", env={**desk.environment, "NO_COLOR": "1"})
    assert plain.end() == 0
    assert run_id in plain.text
    assert "\x1b[36m" not in plain.text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_for_each_shell(desk: Desk, shell: str) -> None:
    assert "_PYRULA_COMPLETE" in desk("--show-completion", shell).out


def test_what_is_offered_on_tab(served: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = served.submit("order", skus=[])

    def offered(*words: str) -> list[str]:
        monkeypatch.setenv("_PYRULA_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(("pyrula", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        return served().lines

    assert offered("submit", "st") == ["steady"]
    assert offered("runs", "list", "--status", "c") == ["completed", "cancelled"]
    assert run_id in offered("runs", "show", run_id[:12])
    assert offered("--url", "redis://127.0.0.1:1", "submit", "o") in ([], [""])


@contextmanager
def worker(desk: Desk, *argv: str, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A worker process that serves already."""
    command = [*PROGRAM, "worker", *argv]
    with subprocess.Popen(command, env=desk.environment, cwd=cwd, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert "serving" in line, line + process.stderr.read()
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("loop", ["trio", "uvloop"])
def test_a_worker_lets_its_runs_finish(desk: Desk, loop: str) -> None:
    with worker(desk, str(WORKFLOWS), "--loop", loop, "--workflow", "steady") as process:
        run_id = desk.submit("steady", seconds=0.5)
        desk.until("steady", run_id, "run.started")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 0
    assert [line.split(": ", 1)[1] for line in said.splitlines()] == [
        "stopping: runs in flight may finish for 30 s; once more stops at once",
        "stopped",
    ]
    assert desk("runs", "show", run_id, "--json").json["status"] == "completed"


def test_a_second_signal_gives_the_runs_back_at_once(desk: Desk) -> None:
    with worker(desk, "cli_workflows", "--shutdown-grace", "50", cwd=WORKFLOWS.parent) as process:
        run_id = desk.submit("steady", seconds=50)
        desk.until("steady", run_id, "run.started")
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert "stopping" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert "Traceback" not in process.stderr.read()
    assert desk("runs", "show", run_id, "--json").json["status"] == "queued"


def test_interrupting_a_wait_leaves_the_run_alone(desk: Desk, terminal: Callable[..., Terminal]) -> None:
    screen = terminal("submit", "order", "--run-id", "patient", "--wait", env=desk.environment)
    screen.expect("waiting for run patient of order")
    screen.type("\x03")
    assert screen.end() == 130
    assert "no longer waiting; run patient goes on" in screen.text
    assert "Traceback" not in screen.text
    assert desk("runs", "show", "patient", "--json").json["status"] == "queued"


BROKEN = {
    "raises.py": (
        "import json\n\ndef load():\n    return json.loads('x')\n\nload()\n",
        "JSONDecodeError: ",
        "(raises.py:4)",
    ),
    "syntax.py": ("x = (\n", "SyntaxError: ", "(syntax.py:1)"),
    "lacks.py": ("import no_such_module_anywhere\n", "ModuleNotFoundError: No module named", "(lacks.py:1)"),
    "leaves.py": ("raise SystemExit(3)\n", "it ends the process (SystemExit: 3)", "(leaves.py:1)"),
    "json.py": ("x = 1\n", "the name 'json' belongs to ", "; rename the file"),
    "a-b.py": ("x = 1\n", "a module's file is named like NAME.py", ""),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, for modules that are imported into this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(logging.root, "handlers", list(logging.root.handlers))
    monkeypatch.setattr(logging.root, "level", logging.root.level)
    monkeypatch.setattr(logging.getLogger("pyrula"), "level", logging.getLogger("pyrula").level)
    return tmp_path


@pytest.mark.parametrize("name", BROKEN)
def test_a_module_that_does_not_import_is_one_line(desk: Desk, folder: Path, name: str) -> None:
    source, message, place = BROKEN[name]
    (folder / name).write_text(source)
    done = desk("worker", name)
    assert (done.code, done.out) == (1, "")
    [line] = done.err.splitlines()
    assert line.startswith(f"pyrula: cannot import {name}: ")
    assert message in line
    assert line.endswith(place)


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("no_such_module.at_all",), 1, "cannot import no_such_module.at_all: no module named 'no_such_module'"),
        (("missing.py",), 1, "cannot import missing.py: there is no such file"),
        (("nothing_here.py", "--workflow", "nope"), 1, "'nope' is not a workflow"),
        (("nothing_here.py", "--concurrency", "0"), 2, "--concurrency"),
        (("nothing_here.py", "--loop", "curio"), 2, "'curio' is not one of 'asyncio', 'trio', 'uvloop'"),
        ((), 2, "Missing argument 'MODULE...'"),
    ],
)
def test_a_worker_that_cannot_start(desk: Desk, folder: Path, argv: tuple[str, ...], code: int, message: str) -> None:
    (folder / "nothing_here.py").write_text("x = 1\n")
    done = desk("worker", *argv)
    assert (done.code, done.out) == (code, "")
    [line] = done.err.splitlines()
    assert line.startswith("pyrula: ")
    assert message in line


def test_a_module_without_a_workflow(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    done = desk.process("worker", "empty.py", cwd=tmp_path)
    assert (done.code, done.out) == (1, "")
    assert done.err == "pyrula: there is no workflow in empty.py; decorate an async def with @workflow\n"


def test_a_worker_with_another_shard_count_than_its_namespace(desk: Desk) -> None:
    desk.submit("order")
    done = desk.process("worker", str(WORKFLOWS), "--shard-count", "8")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("pyrula: workflow 'order' is kept in 64 shards")
    assert len(done.err.splitlines()) == 1


def test_the_traceback_of_a_module_with_debug(desk: Desk, folder: Path) -> None:
    (folder / "raises.py").write_text("1 / 0\n")
    done = desk("worker", "raises.py", "--debug")
    assert done.code == 1
    assert "Traceback" in done.err
    assert (
        done.err.splitlines()[-1]
        == "pyrula: cannot import raises.py: ZeroDivisionError: division by zero (raises.py:1)"
    )
