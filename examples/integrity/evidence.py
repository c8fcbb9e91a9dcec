"""Evidence from outside the journal: each execution of a step leaves one line in a file.

The journal says what was recorded; the lines say what was really executed. Held against each
other, they show what a crash cost. Nothing here reads a journal.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TypeAlias

__all__ = ["EVIDENCE_FILE", "Evidence", "StepName", "witness"]

# Names the file in the environment of a worker; without it nothing is written.
EVIDENCE_FILE = "INTEGRITY_EVIDENCE_FILE"

StepName: TypeAlias = tuple[str, str]
"""Run id and step id: one step of one run."""


def witness(run_id: str, step_id: str) -> None:
    """Note that a step is being executed. One write at the file's end, so lines of all threads stay whole."""
    if path := os.environ.get(EVIDENCE_FILE):
        os.write(_opened(path), json.dumps([run_id, step_id]).encode() + b"\n")


@cache
def _opened(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


class Evidence:
    """The lines written so far: `executions` counts them for each step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.executions: Counter[StepName] = Counter()
        self._file = path.open("a+b")
        self._file.seek(0)
        self._rest = b""

    def read(self) -> int:
        """Take in what is new; the number of different steps that have been executed at least once."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            run_id, step_id = json.loads(line)
            self.executions[run_id, step_id] += 1
        return len(self.executions)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
