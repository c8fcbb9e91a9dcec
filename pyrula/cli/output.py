"""Where output goes: with colours and tables to a terminal, as plain text or JSON to everything else.

What is printed here has been cleaned of control characters by whoever built it. Nothing here knows a run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO

import orjson

from pyrula.cli.wording import clean

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

__all__ = ["Output", "OutputClosed", "Part", "Table", "assembled", "drawn", "is_terminal"]

Part = str | tuple[str, str]
"""A piece of a line: plain, or with a style (`("failed", "bold red")`)."""


class OutputClosed(Exception):
    """Whoever read our output has gone; there is nothing to say, and nobody to say it to."""


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at the stream, through a terminal that can do more than print."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under titles. `foldable` names the columns that may be cut to fit a terminal, `right` those of numbers."""

    titles: Sequence[str]
    rows: Sequence[Sequence[Part]]
    foldable: frozenset[str] = field(default_factory=frozenset)
    right: frozenset[str] = field(default_factory=frozenset)


def _text(part: Part) -> str:
    return part if isinstance(part, str) else part[0]


class Output:
    """One stream. `terminal` says which of its two faces it shows."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stdout if stream is None else stream
        self.terminal = is_terminal(self.stream)

    @cached_property
    def console(self) -> Console:
        """The terminal's console. It keeps to NO_COLOR by itself."""
        from rich.console import Console

        return Console(file=self.stream, markup=False, emoji=False, highlight=False)

    def line(self, *parts: Part) -> None:
        """One line, wrapped by nobody."""
        if self.terminal:
            self.console.print(assembled(parts), soft_wrap=True)
        else:
            self.stream.write("".join(map(_text, parts)) + "\n")

    def fitted(self, *parts: Part) -> None:
        """One line, cut at the edge of a terminal; whole elsewhere."""
        if self.terminal:
            self.console.print(assembled(parts), no_wrap=True, overflow="ellipsis", crop=True)
        else:
            self.line(*parts)

    def table(self, table: Table) -> None:
        """A table: drawn on a terminal, columns two blanks apart elsewhere."""
        if self.terminal:
            self.console.print(drawn(table))
            return
        texts = [list(table.titles), *([_text(cell) for cell in row] for row in table.rows)]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        for row in texts:
            cells = zip(row, widths, table.titles, strict=True)
            text = "  ".join(cell.rjust(w) if title in table.right else cell.ljust(w) for cell, w, title in cells)
            self.stream.write(text.rstrip() + "\n")

    def document(self, value: Any) -> None:
        """One JSON document: spread out on a terminal, else on one line."""
        option = orjson.OPT_INDENT_2 if self.terminal else None
        self._json(orjson.dumps(value, option=option).decode())

    def records(self, values: Iterable[Any]) -> None:
        """JSON, one value a line."""
        for value in values:
            self._json(orjson.dumps(value).decode())

    def _json(self, text: str) -> None:
        self.stream.write((clean(text) if self.terminal else text) + "\n")

    def flush(self) -> None:
        """Let a reader that follows have what was written."""
        self.stream.flush()


def assembled(parts: Iterable[Part]) -> Text:
    """The parts as one styled text."""
    from rich.text import Text

    return Text.assemble(*parts)


def drawn(table: Table) -> Any:
    """The table as rich draws it."""
    from rich.table import Table as Drawn

    made = Drawn(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for index, title in enumerate(table.titles):
        cut = title in table.foldable
        made.add_column(
            title,
            no_wrap=True,
            overflow="ellipsis" if cut else "fold",
            min_width=8 if cut else max(map(len, (title, *(_text(row[index]) for row in table.rows)))),
            justify="right" if title in table.right else "left",
        )
    for row in table.rows:
        made.add_row(*(assembled([cell]) for cell in row))
    return made
