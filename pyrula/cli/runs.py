"""`pyrula runs list`, `show`, `events`, `tail`: looking at runs. Nothing here changes one."""

from __future__ import annotations

import sys
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import anyio
import typer

from pyrula.cli.completing import complete_run, complete_workflow
from pyrula.cli.finding import find, split_words
from pyrula.cli.given import attributes_given, moment_given
from pyrula.cli.output import Output
from pyrula.cli.place import Place, with_place
from pyrula.cli.wording import clean, compact
from pyrula.contracts.runs import RunStatus

if TYPE_CHECKING:
    from anyio.abc import ObjectSendStream

    from pyrula.contracts.runs import Page
    from pyrula.contracts.store import RunRecord
    from pyrula.workflows.client import WorkflowClient

__all__ = ["AsJson", "OfWorkflow", "RunWords", "add_looking"]

RunWords = Annotated[
    list[str],
    typer.Argument(
        metavar="[WORKFLOW] RUN_ID",
        help="The run: its id, or the beginning of it, alone where that is clear.",
        autocompletion=complete_run,
    ),
]
OfWorkflow = Annotated[
    str | None,
    typer.Option(
        "--name", metavar="WORKFLOW", help="The run's workflow.", autocompletion=complete_workflow, show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the run as a JSON document.")]

# `show` counts at most so many events of a journal, the last ones.
_SHOWN: Final = 5000


def add_looking(runs: typer.Typer) -> None:
    """Put the commands into `pyrula runs`."""
    runs.command("list")(_list)
    runs.command("show")(_show)
    runs.command("events")(_events)
    runs.command("tail")(_tail)


@with_place
def _list(
    place: Place,
    *,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="WORKFLOW", help="Of this workflow.", autocompletion=complete_workflow, show_default=False
        ),
    ] = None,
    status: Annotated[RunStatus | None, typer.Option(help="In this status.", show_default=False)] = None,
    owner: Annotated[str | None, typer.Option(metavar="NAME", help="Of this tenant.", show_default=False)] = None,
    attribute: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="With this search attribute; may be repeated.", show_default=False),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Submitted after: 2026-05-01, or 2h for two hours ago.", show_default=False),
    ] = None,
    before: Annotated[str | None, typer.Option(metavar="TIME", help="Submitted before.", show_default=False)] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=10_000, help="Runs at most, or a page with --all.")
    ] = 100,
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Go on where an earlier list ended.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Go on until there are no more.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one run a line.")] = False,
) -> None:
    """List runs, newest first, without their inputs and results."""
    filters: dict[str, Any] = {
        "status": status,
        "owner": owner,
        "attributes": attributes_given(attribute or []),
        "submitted_after": moment_given(after, "--after"),
        "submitted_before": moment_given(before, "--before"),
    }
    out = Output()

    async def work(client: WorkflowClient) -> None:
        at = cursor
        while True:
            page = await client.list(name, **filters, limit=limit, cursor=at)
            _print_page(out, page, as_json)
            if not (page or at or as_json):
                typer.echo("no runs", err=True)
            at = page.cursor
            if at is None or not everything:
                break
        if at is not None:
            typer.echo(f"there are more: --cursor {at} goes on, --all gives all", err=True)

    place.run(work)


def _print_page(out: Output, page: Page, as_json: bool) -> None:
    if as_json:
        out.records(run.to_json() for run in page)
    elif page:
        from pyrula.cli.run_text import runs_table

        out.table(runs_table(page.runs, datetime.now(UTC)))
    out.flush()


@with_place
def _show(place: Place, *, run: RunWords, name: OfWorkflow = None, as_json: AsJson = False) -> None:
    """Show one run: its times, input, result or error, what it waits for, and the end of its journal."""
    words = split_words(run, name)
    out = Output()

    async def work(client: WorkflowClient) -> None:
        found = await find(client, *words)
        seen = await client.get(found.workflow, found.run_id)
        committed = await client.committed(found.workflow, found.run_id)
        if as_json:
            out.document({**seen.to_json(), "committed": committed, "events": found.seq})
            return
        from pyrula.cli.run_text import print_run
        from pyrula.contracts.events import parse

        left_out = max(0, found.seq - _SHOWN)
        last, events = left_out, deque(maxlen=_SHOWN)  # type: ignore[var-annotated]  # of Event
        while chunk := await client.store.read_journal(found.workflow, found.run_id, after=last):
            events.extend(parse(seq, raw).event() for seq, raw in chunk)
            last = chunk[-1][0]
        now = datetime.now(UTC)
        print_run(out, seen, now=now, events=list(events), left_out=left_out, committed=committed)

    place.run(work)


@with_place
def _events(
    place: Place,
    *,
    run: RunWords,
    name: OfWorkflow = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until the run ends.")] = False,
    link: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Begin with the run's N-th journal, if it has had several.",
            show_default="the last",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one event a line.")] = False,
) -> None:
    """Print a run's journal, oldest first. What --json prints is the run's history, whole and exact."""
    words = split_words(run, name)
    out = Output()

    async def work(client: WorkflowClient) -> None:
        from pyrula.cli.event_text import event_line

        found = await find(client, *words)
        following = follow and not found.status.ended
        async for event in client.events(found.workflow, found.run_id, following, link=link):
            if as_json:
                out.records([{"workflow": found.workflow, "run_id": found.run_id, **event.to_json()}])
            else:
                out.fitted(*event_line(event))
            if follow:
                out.flush()

    place.run(work)


@with_place
def _tail(
    place: Place,
    *,
    run: RunWords,
    name: OfWorkflow = None,
    as_json: Annotated[
        bool, typer.Option("--json", help='Print JSON lines: {"event": ...} or {"output": ...}.')
    ] = False,
) -> None:
    """Follow a run live until it ends: its events, and what it streams. Ctrl-C ends the following, not the run."""
    words = split_words(run, name)
    out = Output()

    async def work(client: WorkflowClient) -> None:
        from pyrula.cli.run_text import headline

        found = await find(client, *words)
        if not as_json:
            out.line(*headline(await client.get(found.workflow, found.run_id)))
        await _follow(client, found, out, as_json)
        if not as_json:
            ended = await client.get(found.workflow, found.run_id)
            out.line(*headline(ended))
            if ended.status is not RunStatus.COMPLETED and sys.stdout.isatty():
                out.line((f"pyrula runs show {clean(ended.run_id)} tells more", "dim"))

    place.run(work)


async def _follow(client: WorkflowClient, found: RunRecord, out: Output, as_json: bool) -> None:
    from pyrula.cli.event_text import event_line

    send, receive = anyio.create_memory_object_stream[tuple[str, Any]](100)

    async def events(to: ObjectSendStream[tuple[str, Any]]) -> None:
        async with to:
            async for event in client.events(found.workflow, found.run_id, not found.status.ended):
                await to.send(("event", event))

    async def output(to: ObjectSendStream[tuple[str, Any]]) -> None:
        async with to:
            async for chunk in client.stream(found.workflow, found.run_id):
                await to.send(("output", chunk))

    async with anyio.create_task_group() as group, receive:
        group.start_soon(events, send.clone())
        group.start_soon(output, send)
        async for kind, item in receive:
            if as_json:
                out.records([{kind: item.to_json() if kind == "event" else item}])
            elif kind == "event":
                out.fitted(*event_line(item))
            else:
                _print_chunk(out, item)
            out.flush()


def _print_chunk(out: Output, chunk: Any) -> None:
    text = clean(chunk) if isinstance(chunk, str) else compact(chunk)
    for line in text.rstrip("\n").split("\n"):
        out.line(("       output  ", "dim"), line)
