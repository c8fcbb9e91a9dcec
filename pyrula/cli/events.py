"""`pyrula events emit` and `pyrula triggers list|show|replay|drop`: what starts runs by events."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyrula.cli.completing import complete_trigger
from pyrula.cli.given import json_given, moment_given
from pyrula.cli.output import Output, Table, is_terminal
from pyrula.cli.place import Place, with_place
from pyrula.cli.wording import ago, clean, one_line
from pyrula.contracts.errors import TriggerNotFound
from pyrula.contracts.events import from_micros

if TYPE_CHECKING:
    from pyrula.contracts.triggers import TriggerState
    from pyrula.workflows.client import WorkflowClient

__all__ = ["add_events", "add_triggers"]

_Name = Annotated[
    str, typer.Argument(metavar="TRIGGER", help="The trigger, as listed.", autocompletion=complete_trigger)
]


def add_events(app: typer.Typer) -> None:
    """Put the commands into `pyrula events`."""
    app.callback()(_about_events)
    app.command("emit")(_emit)


def add_triggers(app: typer.Typer) -> None:
    """Put the commands into `pyrula triggers`."""
    app.command("list")(_list)
    app.command("show")(_show)
    app.command("replay")(_replay)
    app.command("drop")(_drop)


def _about_events() -> None:
    """Application events, which start runs where workflows have triggers for them."""


@with_place
def _emit(
    place: Place,
    *,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="Its name, such as order.paid.")],
    payload: Annotated[
        str | None,
        typer.Argument(metavar="[JSON]", help="What it carries; - reads stdin, @FILE a file.", show_default=False),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--idempotency-key", metavar="KEY", help="A repeat is not kept again.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Publish an application event."""
    value = None if payload is None else json_given(payload, "the payload")

    async def work(client: WorkflowClient) -> None:
        event_id = await client.emit(event, value, idempotency_key=key)
        if as_json:
            Output().document({"id": event_id, "name": event})
        else:
            Output().line(f"event {clean(event_id)}: {clean(event)} emitted")

    place.run(work)


@with_place
def _list(
    place: Place, *, as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one trigger a line.")] = False
) -> None:
    """List the triggers that workers have served so far, with what they have not seen yet."""
    out = Output()

    async def work(client: WorkflowClient) -> None:
        states = await client.trigger_list()
        if as_json:
            out.records(_plain(each) for each in states)
        elif states:
            rows = [
                [
                    clean(each.name),
                    "?" if each.lag is None else str(each.lag),
                    str(each.lent),
                    str(each.gathering),
                    str(len(each.refused)),
                ]
                for each in states
            ]
            numbers = frozenset({"LAG", "IN HAND", "BATCHES", "REFUSED"})
            out.table(Table(("TRIGGER", "LAG", "IN HAND", "BATCHES", "REFUSED"), rows, frozenset({"TRIGGER"}), numbers))
        else:
            typer.echo("no triggers", err=True)

    place.run(work)


@with_place
def _show(
    place: Place, *, trigger: _Name, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """Show a trigger, with the last events that it could not act on."""
    out = Output()

    async def work(client: WorkflowClient) -> None:
        found = [each for each in await client.trigger_list() if each.name == trigger]
        if not found:
            raise TriggerNotFound(trigger)
        if as_json:
            out.document(_plain(found[0]))
            return
        state = found[0]
        lag = "unknown" if state.lag is None else str(state.lag)
        out.line(f"{clean(state.name)}: {lag} to come, {state.lent} in hand, {state.gathering} batches gathering")
        now = datetime.now(UTC)
        for each in state.refused:
            when = ago(from_micros(each["at"]), now)
            out.fitted(f"  {clean(str(each['event']))}  {when}  ", clean(one_line(str(each["reason"]))))

    place.run(work)


@with_place
def _replay(
    place: Place,
    *,
    trigger: _Name,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="From then on: 2026-05-01, or 2h for two hours ago.", show_default="all"),
    ] = None,
) -> None:
    """Have a trigger go over the events that are kept; those it has acted on start nothing new."""
    start = moment_given(since, "--since")

    async def work(client: WorkflowClient) -> None:
        await client.trigger_replay(trigger, start)
        Output().line(f"trigger {clean(trigger)}: goes over what is kept")

    place.run(work)


@with_place
def _drop(
    place: Place, *, trigger: _Name, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
) -> None:
    """Forget a trigger that no code has any more, with the batches it gathered."""
    if not yes and is_terminal(Output().stream):
        typer.confirm(f"forget trigger {clean(trigger)}?", abort=True)

    async def work(client: WorkflowClient) -> None:
        await client.trigger_drop(trigger)
        Output().line(f"trigger {clean(trigger)}: forgotten")

    place.run(work)


def _plain(state: TriggerState) -> dict[str, Any]:
    return {
        "name": state.name,
        "lag": state.lag,
        "lent": state.lent,
        "gathering": state.gathering,
        "ready": state.ready,
        "refused": [dict(each) for each in state.refused],
    }
