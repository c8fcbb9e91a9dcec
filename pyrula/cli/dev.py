"""`pyrula dev`: an embedded server, a worker and a view of the runs, in one process and with no set-up."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio
import typer

from pyrula.cli.output import Output
from pyrula.cli.place import Place, with_place
from pyrula.cli.serving import LoopName, log_to, run_on, serve
from pyrula.cli.wording import clean, count_of, duration
from pyrula.cli.worker import Concurrency, Grace, Loop, Modules, agree, load_workflows
from pyrula.contracts.runs import RunStatus

if TYPE_CHECKING:
    from pyrula.cli.live import LiveView
    from pyrula.workflows.registry import Workflow

__all__ = ["add_dev"]

log = logging.getLogger("pyrula.cli")

# A process that is killed and started again, as happens while one develops, soon has its runs back.
_LEASE: Final = 10.0
_SCAN: Final = 5.0


def add_dev(app: typer.Typer) -> None:
    """Put the command into the program."""
    app.command("dev")(_dev)


@with_place
def _dev(
    place: Place,
    *,
    modules: Modules,
    data: Annotated[Path, typer.Option(metavar="DIR", help="Where the server keeps its data.")] = Path(".pyrula"),
    concurrency: Concurrency = 50,
    loop: Loop = LoopName.ASYNCIO,
    shutdown_grace: Grace = 5.0,
) -> None:
    """Develop: a server of its own, a worker and a live view of the runs.

    The data stay in DIR. Other commands reach the same server by the URL that is shown.
    Ctrl-C stops in order, a second one at once.
    """
    out = Output()
    if out.terminal:
        from pyrula.cli.live import ScreenLog

        log_to(ScreenLog(out), debug=place.debug)
    else:
        log_to(logging.StreamHandler(sys.stderr), debug=place.debug)
    chosen = load_workflows(modules, None)
    if place.url is None:
        place = replace(place, url=f"embedded://{data.absolute()}")
    session = _Session(out, place, chosen, shutdown_grace)
    raise typer.Exit(run_on(loop, lambda: session.run(concurrency)))


def _example_input(item: Workflow) -> str:
    """What an input of this workflow looks like, for the shell: its required parameters, each to be filled in."""
    return shlex.quote(json.dumps(dict.fromkeys(sorted(item.spec.required), "...")))


class _Session:
    """One run of the command: store, worker and whatever shows what they do."""

    def __init__(self, out: Output, place: Place, chosen: list[Workflow], grace: float) -> None:
        from pyrula.cli.board import Board

        self._out = out
        self._place = place
        self._chosen = chosen
        self._grace = grace
        self._board = Board()
        self._view: LiveView | None = None

    async def run(self, concurrency: int) -> int:
        """Serve until stopped; the exit code."""
        from pyrula.cli.watching import WatchedStore
        from pyrula.workflows import WorkerOptions, WorkflowWorker

        store = WatchedStore(self._moved, **self._place.store_options(), lock_ttl=_LEASE)
        try:
            # Starts the server: whatever is wrong with it is better said before the worker waits for it.
            await agree(store, self._chosen)
            self._greet(store.label)
            options = WorkerOptions(
                max_concurrent_runs=concurrency, shutdown_grace=self._grace, orphan_scan_interval=_SCAN
            )
            worker = WorkflowWorker(store, self._chosen, options)
            code = await serve(worker, stopping=self._stopping, beside=lambda: self._show(worker))
        finally:
            with anyio.CancelScope(shield=True):
                await store.aclose()
        self._out.line("stopped; what is not finished goes on at the next start")
        return code

    def _greet(self, label: str) -> None:
        names = ", ".join(clean(item.name) for item in self._chosen)
        self._out.line(("pyrula dev", "bold"), f"  serving {count_of(len(self._chosen), 'workflow')}: {names}")
        if (url := self._place.url or "").startswith("embedded://"):
            hint = f"export PYRULA_VALKEY_URL={shlex.quote(url)}"
            self._out.line(("in another shell:  ", "dim"), hint)
            first = self._chosen[0]
            self._out.line(
                ("                   ", "dim"), f"pyrula submit {shlex.quote(first.name)} {_example_input(first)}"
            )
        else:  # not the URL: it may hold a password
            self._out.line(("on ", "dim"), clean(label))
        self._out.flush()

    async def _show(self, worker: Any) -> None:
        await worker.ready.wait()
        if not self._out.terminal:
            log.info("serving")
            return
        from pyrula.cli.live import LiveView

        view = LiveView(self._out, self._board)
        self._view = view
        async with anyio.create_task_group() as group:
            group.start_soon(view.draw)
            group.start_soon(view.follow, worker.client, [item.name for item in self._chosen])

    def _stopping(self) -> None:
        text = f"stopping: runs in flight may finish for {duration(self._grace)}; Ctrl-C once more stops at once"
        self._out.line(text)
        self._out.flush()

    def _moved(self, name: str, run_id: str, status: RunStatus, at: datetime, **facts: Any) -> None:
        run = self._board.moved(name, run_id, status, at, **facts)
        if self._view is not None:
            self._view.touch()
        if self._out.terminal:
            return
        from pyrula.cli.run_text import note_on

        took = f" after {duration(at - run.started_at)}" if status.ended and run.started_at is not None else ""
        note = note_on(run, at)
        log.info("run %s of %s: %s%s%s", run_id, name, status, took, f" ({note})" if note else "")
