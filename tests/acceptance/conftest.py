"""How the command line is tried: in this process where only its words matter, as a process of its own elsewhere."""

from __future__ import annotations

import codecs
import fcntl
import io
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import orjson
import pytest

if TYPE_CHECKING:
    from pyrula.testing.servers import PrivateServer
    from pyrula.workflows import WorkflowClient

T = TypeVar("T")
HERE = Path(__file__).parent
WORKFLOWS = HERE / "cli_workflows.py"
PROGRAM = (sys.executable, "-m", "pyrula.cli")
PATIENCE = 30.0
# Processes started here compile every module once, also where the tests themselves may not keep what they compile.
COMPILED = tempfile.TemporaryDirectory(prefix="pyrula-tests-")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one command line did."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return orjson.loads(self.out)

    @property
    def records(self) -> list[Any]:
        return [orjson.loads(line) for line in self.lines]


def environment(**more: str) -> dict[str, str]:
    """This process's, without what would change how the command line looks or where it goes."""
    dropped = ("PYRULA_", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**kept, "TERM": "xterm-256color", "PYTHONPYCACHEPREFIX": COMPILED.name, **more}


class Desk:
    """A namespace on the tests' server, and the command line pointed at it."""

    def __init__(self, url: str, namespace: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
        self.url = url
        self.namespace = namespace
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        for name in list(os.environ):
            if name.startswith("PYRULA_"):
                monkeypatch.delenv(name)
        monkeypatch.setenv("PYRULA_VALKEY_URL", url)
        monkeypatch.setenv("PYRULA_VALKEY_NAMESPACE", namespace)

    @property
    def environment(self) -> dict[str, str]:
        return environment(PYRULA_VALKEY_URL=self.url, PYRULA_VALKEY_NAMESPACE=self.namespace)

    def __call__(self, *argv: str, stdin: bytes = b"") -> Outcome:
        """Run `pyrula ARGV...` in this process."""
        from pyrula.cli import main

        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(argv)
        out, err = self._capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, out, err)

    def process(self, *argv: str, cwd: Path | None = None, **more: str) -> Outcome:
        """Run `pyrula ARGV...` as a process."""
        done = subprocess.run(
            [*PROGRAM, *argv],
            env={**self.environment, **more},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def client(self, work: Callable[[WorkflowClient], Awaitable[T]]) -> T:
        """Do something through the public client, without the command line."""
        from pyrula.workflows import ValkeyStore, WorkflowClient

        async def connected() -> T:
            store = ValkeyStore(self.url, namespace=self.namespace)
            try:
                return await work(WorkflowClient(store))
            finally:
                await store.aclose()

        return anyio.run(connected)

    def submit(self, name: str, **given: Any) -> str:
        """Submit a run; its id."""

        async def work(client: WorkflowClient) -> str:
            return (await client.submit(name, given)).run_id

        return self.client(work)

    def until(self, name: str, run_id: str, event_type: str) -> None:
        """Wait until the run's journal has an event of that type."""

        async def work(client: WorkflowClient) -> None:
            with anyio.fail_after(PATIENCE):
                async for event in client.events(name, run_id, follow=True):
                    if event.type == event_type:
                        return
            pytest.fail(f"the run ended without {event_type}")

        self.client(work)


@pytest.fixture
def desk(
    valkey_server: PrivateServer, namespace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Desk:
    """A namespace that nobody serves."""
    return Desk(valkey_server.url, namespace, monkeypatch, capsys)


@pytest.fixture(scope="session")
def served_namespace(valkey_server: PrivateServer) -> Iterator[str]:
    """A namespace with a worker process behind it."""
    name = f"served-{uuid.uuid4().hex[:12]}"
    given = environment(PYRULA_VALKEY_URL=valkey_server.url, PYRULA_VALKEY_NAMESPACE=name)
    with subprocess.Popen([*PROGRAM, "worker", str(WORKFLOWS)], env=given, stderr=subprocess.PIPE) as worker:
        assert worker.stderr is not None
        assert b"serving 4 workflows" in worker.stderr.readline()
        yield name
        worker.send_signal(signal.SIGTERM)
        worker.wait(PATIENCE)


@pytest.fixture
def served(
    valkey_server: PrivateServer,
    served_namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Desk:
    """A namespace whose runs a worker process executes. Tests share it."""
    return Desk(valkey_server.url, served_namespace, monkeypatch, capsys)


# Makes the pseudo-terminal the one that Ctrl-C comes from, then becomes the program.
_ON_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """A program on a pseudo-terminal of 120 columns and 40 lines."""

    def __init__(self, argv: tuple[str, ...], env: Mapping[str, str], cwd: Path | None) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", _ON_TERMINAL, *argv],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
        os.close(slave)
        self.text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._seen = 0

    def expect(self, text: str) -> None:
        """Read until the text has come, since the last thing that was expected."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.text[self._seen :]:
            if not self._read(deadline):
                pytest.fail(f"{text!r} never came; what came:\n{self.text}")
        self._seen = self.text.index(text, self._seen) + len(text)

    def type(self, text: str) -> None:
        """Type on its keyboard."""
        os.write(self._master, text.encode())

    def end(self) -> int:
        """Read until it ends; its exit code."""
        deadline = time.monotonic() + PATIENCE
        while self._read(deadline):
            pass
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)

    def _read(self, deadline: float) -> bool:
        if not select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # Linux says so when the last program on it has ended
            return False
        self.text += self._decoder.decode(data)
        return bool(data)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Start `pyrula ARGV...` on a terminal: `terminal(*argv, env=..., cwd=...)`."""
    opened: list[Terminal] = []

    def start(*argv: str, env: Mapping[str, str], cwd: Path | None = None) -> Terminal:
        opened.append(Terminal((*PROGRAM, *argv), env, cwd))
        return opened[-1]

    yield start
    for item in opened:
        item.close()
