"""The processes of the demo: a worker that can be killed, and whether a process is still there.

Starting and ending processes lives here; what the worker does is in `worker.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from evidence import EVIDENCE_FILE

__all__ = ["WorkerDied", "WorkerProcess", "gone"]

WORKER = Path(__file__).with_name("worker.py")
STOP_SECONDS = 15.0


class WorkerDied(Exception):
    """A worker ended that should have gone on; the message shows the end of its log."""


class WorkerProcess:
    """A worker in a process of its own, from `with WorkerProcess(...)` on; its log is in `log`."""

    def __init__(self, url: str, *, loop: str, evidence: Path, log: Path) -> None:
        self.log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, WORKER, url, "--loop", loop],
                env={**os.environ, EVIDENCE_FILE: str(evidence)},
                # A pipe that is held open for as long as the worker is wanted.
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                # Ctrl-C is for the demo alone, which then ends its worker.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def check(self) -> None:
        """Raise `WorkerDied` if it has ended."""
        if self._process.poll() is not None:
            tail = self.log.read_text(errors="replace")[-2000:]
            raise WorkerDied(f"worker {self.pid} ended with status {self._process.returncode}\n{tail}")

    def kill(self) -> None:
        """SIGKILL: no clean-up of any kind."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ask it to end in order, and kill it if it does not."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # After a failure nobody is interested in what the worker still does.
        if error is None:
            self.stop()
        elif self._process.poll() is None:
            self.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()


def gone(pid: int, seconds: float) -> bool:
    """Whether the process has ended, or does within so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
