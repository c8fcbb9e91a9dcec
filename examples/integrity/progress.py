"""Progress while the runs go: bars on a terminal, plain lines elsewhere. Says nothing about results."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Protocol, TextIO

__all__ = ["Progress", "progress"]

SECONDS_BETWEEN_LINES = 2.0


class Progress(Protocol):
    """Shows how far the runs are."""

    def update(self, *, steps: int, runs: int) -> None:
        """So many steps have been executed, so many runs have ended."""

    def note(self, text: str) -> None:
        """Something happened."""


@contextlib.contextmanager
def progress(*, steps: int, runs: int, quiet: bool) -> Iterator[Progress]:
    """The display that fits: `steps` and `runs` are what there will be; `quiet` keeps standard output clean."""
    stream = sys.stderr if quiet else sys.stdout
    if not stream.isatty():
        yield PlainProgress(stream, steps=steps, runs=runs)
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars
    except ImportError:  # it comes with the extra `cli`
        yield PlainProgress(stream, steps=steps, runs=runs)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(file=stream)) as bars:
        tasks = bars.add_task("steps", total=steps), bars.add_task("runs ", total=runs)

        class Bar:
            def update(self, *, steps: int, runs: int) -> None:
                bars.update(tasks[0], completed=steps)
                bars.update(tasks[1], completed=runs)

            def note(self, text: str) -> None:
                bars.console.print(text, highlight=False, markup=False)

        yield Bar()


class PlainProgress:
    """A line every two seconds while something changes, and one for each note."""

    def __init__(self, stream: TextIO, *, steps: int, runs: int) -> None:
        self._stream = stream
        self._steps = steps
        self._runs = runs
        self._started = time.monotonic()
        self._due = self._started
        self._shown = ""

    def update(self, *, steps: int, runs: int) -> None:
        text = f"{steps} of {self._steps} steps, {runs} of {self._runs} runs"
        last = runs == self._runs
        if text != self._shown and (last or time.monotonic() >= self._due):
            self._due = time.monotonic() + SECONDS_BETWEEN_LINES
            self._shown = text
            self.note(text)

    def note(self, text: str) -> None:
        print(f"[{time.monotonic() - self._started:5.1f} s] {text}", file=self._stream, flush=True)
