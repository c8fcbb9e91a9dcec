"""The live view of `pyrula dev` on a terminal: counts by status and the runs that changed last."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import anyio

from pyrula.cli.board import Board
from pyrula.cli.output import Output, Part, assembled, drawn
from pyrula.cli.run_text import runs_table
from pyrula.cli.wording import STATUS_STYLE, count_of
from pyrula.contracts.errors import StoreUnavailable

if TYPE_CHECKING:
    from pyrula.workflows.client import WorkflowClient

__all__ = ["LiveView", "ScreenLog"]

_FRAME: Final = 0.25
_REFRESH: Final = 0.5
_FALLBACK: Final = 5.0
_FIRST: Final = 500
_NEWEST: Final = 50
_ROWS: Final = 15
_AROUND: Final = 6


class ScreenLog(logging.Handler):
    """Prints log records above the view."""

    def __init__(self, out: Output) -> None:
        super().__init__()
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record, its colour by its level."""
        style = "red" if record.levelno >= logging.ERROR else "yellow" if record.levelno >= logging.WARNING else "dim"
        self._out.line((self.format(record), style))


class LiveView:
    """Draws the board a few times a second, at most, and only when something changed or time is shown passing."""

    def __init__(self, out: Output, board: Board) -> None:
        self._out = out
        self._board = board
        self._changed = anyio.Event()

    def touch(self) -> None:
        """The board has changed."""
        self._changed.set()

    async def draw(self) -> None:
        """Draw until cancelled, and once more then, so that what stays on the screen is the last state."""
        from rich.live import Live

        with Live(self._render(), console=self._out.console, auto_refresh=False) as live:
            try:
                while True:
                    with anyio.move_on_after(1.0 if self._board.under_way() else 30.0):
                        await self._changed.wait()
                    self._changed = anyio.Event()
                    live.update(self._render(), refresh=True)
                    await anyio.sleep(_FRAME)
            finally:
                live.update(self._render(), refresh=True)

    async def follow(self, client: WorkflowClient, workflows: list[str]) -> None:
        """Keep the board up with what other processes do: look again after a bell, and now and then."""
        first = True
        while True:
            try:
                async with client.store.bells(workflows) as bells:
                    while True:
                        await self._look(client, first=first)
                        first = False
                        await anyio.sleep(_REFRESH)
                        with anyio.move_on_after(_FALLBACK):
                            await bells.next()
            except StoreUnavailable:
                # The worker beside tells of the outage, and of its end.
                await anyio.sleep(1.0)

    async def _look(self, client: WorkflowClient, *, first: bool) -> None:
        self._board.begin_listing()
        page = await client.list(limit=_FIRST if first else _NEWEST)
        self._board.listed(page, await client.count(), first=first)
        self.touch()

    def _render(self) -> Any:
        from rich.console import Group

        counts: list[Part] = []
        for status, number in self._board.counts().items():
            counts += [(f"{status} ", "dim"), (f"{number:,}", STATUS_STYLE[status]), "   "]
        if self._board.older:
            counts.append((f"and {count_of(self._board.older, 'older run')}", "dim"))
        rows = max(3, min(_ROWS, self._out.console.size.height - _AROUND))
        table = runs_table(self._board.latest(rows), datetime.now(UTC))
        return Group("", assembled(counts or [("no runs yet", "dim")]), "", drawn(table) if table.rows else "")
