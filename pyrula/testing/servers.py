"""Private Valkey servers for tests and benchmarks: real ones, to kill, stop, fill and start again.

A server here is a child of the process that made it and ends with it. For data that several processes
share and keep, see `pyrula.workflows.stores.valkey.embedded`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self
from urllib.parse import quote

from valkey import Valkey

from pyrula.contracts.errors import ConfigurationError, StoreUnavailable
from pyrula.workflows.stores.valkey.embedded_binary import find_program, python_for_keeper
from pyrula.workflows.stores.valkey.embedded_probe import Address, Presence, presence

__all__ = ["PrivateServer"]

_READY_SECONDS = 30.0

_POLL_SECONDS = 0.002

_DEFAULTS: Mapping[str, str] = {"save": '""', "appendonly": "yes", "appendfsync": "everysec", "always-show-logo": "no"}


class PrivateServer:
    """A server with a directory of its own, running from `with PrivateServer(...) as server` (or `start`) on.

    `options` are in the server's own words (`{"appendfsync": "always", "maxmemory": "50mb"}`); a sequence
    gives an option several times (`{"user": ["alice on >secret ~* +@all"]}`). The append-only file is on
    unless they say otherwise. The server listens on a unix socket, or with `tcp=True` on a free port of
    127.0.0.1 instead; address and data stay the same through `kill`, `stop`, `start` and `restart`.

    The directory is made for it and removed at the end; one given as `directory` stays. On Linux the server
    dies with this process even when that is killed; elsewhere only when it ends in order.
    """

    def __init__(
        self,
        options: Mapping[str, str | Sequence[str]] = MappingProxyType({}),
        *,
        tcp: bool = False,
        directory: Path | None = None,
    ) -> None:
        self.options: dict[str, str | Sequence[str]] = {**_DEFAULTS, **options}
        self.directory = directory or Path(tempfile.mkdtemp(prefix="pyrula-server-"))
        self.port = _free_port() if tcp else None
        # Shared with the finalizer, which may not hold the server itself.
        self._current: list[subprocess.Popen[bytes]] = []
        self._clean = weakref.finalize(self, _clean_up, self.directory if directory is None else None, self._current)

    # --- where it is ---

    @property
    def socket_path(self) -> Path:
        """The unix socket, unless it listens on a port."""
        return self.directory / "valkey.sock"

    @property
    def address(self) -> Address:
        """What a plain socket connects to: a path, or a host and a port."""
        return str(self.socket_path) if self.port is None else ("127.0.0.1", self.port)

    @property
    def url(self) -> str:
        """The address in the form that drivers parse, with the password of `requirepass` if there is one."""
        password = self.options.get("requirepass")
        return self._url_with(f":{quote(str(password), safe='')}@" if password else "")

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._started().pid

    @property
    def running(self) -> bool:
        """Whether the process is there (a paused one is)."""
        return any(process.poll() is None for process in self._current)

    @property
    def log_path(self) -> Path:
        """The server's log, over all its starts."""
        return self.directory / "valkey.log"

    def client(self, **options: Any) -> Valkey:
        """Return a new blocking client of it; `options` are those of `Valkey.from_url`. Close it after use."""
        other = "username" in options or "password" in options  # a login in the address would win over them
        return Valkey.from_url(self._url_with("") if other else self.url, **options)

    # --- what can happen to it ---

    def start(self) -> Self:
        """Start it and wait until it serves. Raises `StoreUnavailable` with the log's end when it does not."""
        if self.running:
            raise ConfigurationError(f"the server in {self.directory} runs already")
        log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        self._write_config()
        spawn = functools.partial(_spawn, find_program(), self.directory)
        self._current[:] = [_spawner(os.getpid()).submit(spawn).result()]
        deadline = time.monotonic() + _READY_SECONDS
        while presence(self.address) is not Presence.READY:
            if not self.running or time.monotonic() >= deadline:
                self.kill()
                text = self.log_path.read_bytes()[log_start:].decode("utf-8", "replace").strip()
                raise StoreUnavailable(f"the server in {self.directory} did not start: {text[-2000:]}")
            time.sleep(_POLL_SECONDS)
        return self

    def stop(self) -> None:
        """Stop it in order (SIGTERM): everything is written first. Nothing happens when it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it (SIGKILL) and wait until it is gone."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it if it runs, and start it on the same data and address."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open and nothing answers."""
        self._started().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused one go on (SIGCONT)."""
        self._started().send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill it and remove its directory, if that was made for it. Idempotent."""
        self._clean()

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _url_with(self, login: str) -> str:
        if self.port is None:
            return f"unix://{login}{quote(str(self.socket_path))}"
        return f"redis://{login}127.0.0.1:{self.port}"

    def _started(self) -> subprocess.Popen[bytes]:
        if not self._current:
            raise ConfigurationError(f"the server in {self.directory} was never started")
        return self._current[0]

    def _write_config(self) -> None:
        if self.port is None:
            listening = ["port 0", "unixsocket valkey.sock"]
        else:
            listening = ["bind 127.0.0.1", f"port {self.port}"]
        lines = [
            f"{option} {value}"
            for option, given in self.options.items()
            for value in ([given] if isinstance(given, str) else given)
        ]
        (self.directory / "valkey.conf").write_text("\n".join([*listening, *lines, ""]))

    def _end(self, number: signal.Signals) -> None:
        for process in self._current:
            _end_process(process, number)


def _end_process(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)  # one that was paused takes nothing but SIGKILL
    process.wait()


def _clean_up(directory: Path | None, running: list[subprocess.Popen[bytes]]) -> None:
    for process in running:
        _end_process(process, signal.SIGKILL)
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)


def _free_port() -> int:
    # Below the ports that systems hand out to outgoing connections, so that none takes this one while the
    # server is down between two starts.
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as attempt, contextlib.suppress(OSError):
            attempt.bind(("127.0.0.1", port))
            return port


def _spawn(program: Path, directory: Path) -> subprocess.Popen[bytes]:
    with (directory / "valkey.log").open("ab") as log:
        return subprocess.Popen(
            [*python_for_keeper(), "bind", str(os.getpid()), str(int(signal.SIGKILL)), str(program), "valkey.conf"],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


@functools.cache
def _spawner(process_id: int) -> ThreadPoolExecutor:
    """Return the one thread that starts all servers of this process, and lives as long as the process.

    On Linux a child is told of the death of the thread that started it. Worker threads come and go: a
    server started by one would die with it, long before the process.
    """
    return ThreadPoolExecutor(1, thread_name_prefix=f"pyrula-spawner-{process_id}")
