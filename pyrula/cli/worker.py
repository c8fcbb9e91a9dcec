"""`pyrula worker`: the workflows of some modules, served until a signal comes."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from pyrula.cli.loading import load_modules
from pyrula.cli.place import Place, with_place
from pyrula.cli.serving import LoopName, log_to, run_on, serve
from pyrula.cli.wording import count_of, duration
from pyrula.contracts.errors import ConfigurationError, StoreUnavailable

if TYPE_CHECKING:
    from pyrula.workflows.registry import Workflow
    from pyrula.workflows.stores.valkey.store import ValkeyStore

__all__ = ["Concurrency", "Grace", "Loop", "Modules", "Only", "add_worker", "agree", "load_workflows"]

log = logging.getLogger("pyrula.cli")

Modules = Annotated[
    list[str],
    typer.Argument(metavar="MODULE...", help="Modules that define workflows: dotted names, or paths to .py files."),
]
Concurrency = Annotated[int, typer.Option("--concurrency", metavar="N", min=1, help="Runs executed at once.")]
Loop = Annotated[LoopName, typer.Option("--loop", help="The event loop.")]
Only = Annotated[
    list[str] | None,
    typer.Option("--workflow", metavar="NAME", help="Serve only this one; may be repeated.", show_default=False),
]
Grace = Annotated[
    float, typer.Option("--shutdown-grace", metavar="SECONDS", min=0, help="How long runs may finish after a stop.")
]


def add_worker(app: typer.Typer) -> None:
    """Put the command into the program."""
    app.command("worker")(_worker)


def load_workflows(modules: list[str], only: list[str] | None) -> list[Workflow]:
    """Import the modules and pick the workflows to serve. Raises `ConfigurationError` when there are none."""
    from pyrula.workflows.registry import registry

    load_modules(modules)
    chosen = list(registry.select(only or None).values())
    if not chosen:
        raise ConfigurationError(f"there is no workflow in {', '.join(modules)}; decorate an async def with @workflow")
    return chosen


async def agree(store: ValkeyStore, chosen: list[Workflow]) -> None:
    """See to it, before a worker's loops would only log it, that the namespace takes these workflows from this store.

    Raises `ConfigurationError` when it does not, `StoreUnavailable` when the server cannot be reached.
    """
    for item in chosen:
        await store.claim(item.name, worker="", limit=0, lease_ms=1)


@with_place
def _worker(
    place: Place,
    *,
    modules: Modules,
    concurrency: Concurrency = 50,
    loop: Loop = LoopName.ASYNCIO,
    only: Only = None,
    shutdown_grace: Grace = 30.0,
) -> None:
    """Serve workflows until SIGTERM or Ctrl-C.

    The first signal lets runs in flight finish; a second one gives them back at once.
    """
    from pyrula.workflows import WorkerOptions, WorkflowWorker

    log_to(logging.StreamHandler(sys.stderr), debug=place.debug)
    chosen = load_workflows(modules, only)
    options = WorkerOptions(max_concurrent_runs=concurrency, shutdown_grace=shutdown_grace)

    async def work() -> int:
        store = place.store()
        worker = WorkflowWorker(store, chosen, options)
        asked_to_stop = False

        def stopping() -> None:
            nonlocal asked_to_stop
            asked_to_stop = True
            log.info("stopping: runs in flight may finish for %s; once more stops at once", duration(shutdown_grace))

        async def tell() -> None:
            await worker.ready.wait()
            if asked_to_stop:
                return
            names = ", ".join(item.name for item in chosen)
            log.info(
                "serving %s (%s) from %s, namespace %s",
                count_of(len(chosen), "workflow"),
                names,
                store.label,
                store.namespace,
            )

        try:
            # A server that is away is waited for by the worker, which says so.
            with contextlib.suppress(StoreUnavailable):
                await agree(store, chosen)
            code = await serve(worker, stopping=stopping, beside=tell)
        finally:
            with anyio.CancelScope(shield=True):
                await store.aclose()
        log.info("stopped")
        return code

    raise typer.Exit(run_on(loop, work))
