"""`pyrula submit`: one run in, its id or its result out."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyrula.cli.completing import complete_workflow
from pyrula.cli.given import attributes_given, object_given
from pyrula.cli.output import Output
from pyrula.cli.place import Place, with_place
from pyrula.cli.wording import clean

if TYPE_CHECKING:
    from pyrula.contracts.runs import Run
    from pyrula.workflows.client import WorkflowClient

__all__ = ["add_submit"]


def add_submit(app: typer.Typer) -> None:
    """Put the command into the program."""
    app.command("submit")(_submit)


@with_place
def _submit(
    place: Place,
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The workflow.", autocompletion=complete_workflow)],
    given: Annotated[
        str | None,
        typer.Argument(
            metavar="[JSON]", help="Its input, a JSON object; - reads stdin, @FILE a file.", show_default=False
        ),
    ] = None,
    owner: Annotated[
        str | None, typer.Option(metavar="NAME", help="The tenant it belongs to.", show_default=False)
    ] = None,
    run_id: Annotated[
        str | None, typer.Option(metavar="ID", help="The run's id; one that exists starts nothing.", show_default=False)
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="A key of yours; one that is known starts nothing.", show_default=False),
    ] = None,
    delay: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="Start it that much later.", show_default=False)
    ] = None,
    priority: Annotated[int, typer.Option(metavar="MINUTES", help="A head start in its owner's queue.")] = 0,
    attribute: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A search attribute; may be repeated.", show_default=False),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end and print its result as JSON.")] = False,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="With --wait: how long at most.", show_default=False)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the run as a JSON document instead of its id.")
    ] = False,
) -> None:
    """Submit a run. Prints its id, or with --wait its result.

    With --wait a run that fails is exit code 1. Ctrl-C ends the waiting, not the run.
    """
    if timeout is not None and not wait:
        raise typer.BadParameter("goes with --wait", param_hint="--timeout")
    arguments: dict[str, Any] = {
        "input": object_given(given, "the input"),
        "owner": owner,
        "run_id": run_id,
        "idempotency_key": idempotency_key,
        "delay": delay,
        "priority": priority,
        "attributes": attributes_given(attribute or []),
    }
    out = Output()
    submitted: list[Run] = []

    async def work(client: WorkflowClient) -> None:
        known = await client.store.workflows()
        run = await client.submit(name, **arguments)
        submitted.append(run)
        if name not in known:
            typer.echo(f"pyrula: note: no worker has served a workflow {clean(name)!r} here yet", err=True)
        if wait:
            async with _waiting(run):
                result = await client.result(run.name, run.run_id, timeout)
            out.document(result)
        elif as_json:
            out.document(run.to_json())
        else:
            out.line(clean(run.run_id))

    try:
        place.run(work)
    except KeyboardInterrupt:
        for run in submitted:
            typer.echo(f"\npyrula: no longer waiting; run {clean(run.run_id)} goes on", err=True)
        raise


@asynccontextmanager
async def _waiting(run: Run) -> AsyncIterator[None]:
    """Tell a person at the terminal what is waited for, and for how long already."""
    err = Output(sys.stderr)
    if not err.terminal:
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=err.console, transient=True) as progress:
        progress.add_task(f"waiting for run {clean(run.run_id)} of {clean(run.name)}", total=None)
        yield
