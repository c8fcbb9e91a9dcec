"""`pyrula schedules list|show|next|create|update|delete|trigger`: what starts runs by itself."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pyrula.cli.completing import complete_schedule, complete_workflow
from pyrula.cli.given import attributes_given, moment_given, object_given
from pyrula.cli.output import Output, Part, Table, is_terminal
from pyrula.cli.place import Place, with_place
from pyrula.cli.wording import ago, clean, compact, count_of, exact, one_line
from pyrula.contracts.schedules import Overlap

if TYPE_CHECKING:
    from pyrula.contracts.schedules import Schedule
    from pyrula.workflows.client import WorkflowClient

__all__ = ["add_schedules"]

_SHOWN: Final = 10

_Id = Annotated[
    str,
    typer.Argument(metavar="SCHEDULE_ID", help="The schedule.", autocompletion=complete_schedule, show_default=False),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Every = Annotated[
    float | None,
    typer.Option("--every", metavar="SECONDS", help="An interval instead of an expression.", show_default=False),
]
_Zone = Annotated[
    str | None,
    typer.Option("--timezone", metavar="ZONE", help="Whose clocks, such as Europe/Berlin.", show_default="UTC"),
]
_Jitter = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Put each occurrence off by up to so much.", show_default=False)
]
_Overlap = Annotated[Overlap | None, typer.Option(help="While the run before has not ended.", show_default="allow")]
_CatchUp = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="After a downtime, make up for each occurrence of the last so many seconds.",
        show_default="one run for all",
    ),
]
_Start = Annotated[str | None, typer.Option(metavar="TIME", help="No occurrence before it.", show_default=False)]
_End = Annotated[str | None, typer.Option(metavar="TIME", help="None after it.", show_default=False)]
_Owner = Annotated[str | None, typer.Option(metavar="NAME", help="The runs' tenant.", show_default=False)]
_Attributes = Annotated[
    list[str] | None,
    typer.Option(
        "--attribute", metavar="KEY=VALUE", help="A search attribute of the runs; may be repeated.", show_default=False
    ),
]


def add_schedules(app: typer.Typer) -> None:
    """Put the commands into `pyrula schedules`."""
    app.command("list")(_list)
    app.command("show")(_show)
    app.command("next")(_next)
    app.command("create")(_create)
    app.command("update")(_update)
    app.command("delete")(_delete)
    app.command("trigger")(_trigger)


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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one schedule a line.")] = False,
) -> None:
    """List schedules, by workflow and id."""
    out = Output()

    async def work(client: WorkflowClient) -> None:
        found = await client.schedule_list(name)
        if as_json:
            out.records(each.to_json() for each in found)
        elif found:
            out.table(_table(found))
        else:
            typer.echo("no schedules", err=True)

    place.run(work)


@with_place
def _show(place: Place, *, schedule_id: _Id, as_json: _AsJson = False) -> None:
    """Show a schedule: what it starts, when, and what became of the last occurrences."""

    async def work(client: WorkflowClient) -> None:
        _print(await client.schedule_get(schedule_id), as_json)

    place.run(work)


@with_place
def _next(
    place: Place,
    *,
    schedule_id: _Id,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, max=1000, help="So many.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one time a line.")] = False,
) -> None:
    """List the next occurrences, by the clocks of the schedule's zone."""
    from pyrula.workflows.schedules import upcoming

    out = Output()

    async def work(client: WorkflowClient) -> None:
        schedule = await client.schedule_get(schedule_id)
        times = upcoming(schedule, count)
        if as_json:
            out.records(each.isoformat() for each in times)
            return
        if not schedule.enabled:
            typer.echo("the schedule is not enabled; these are the times it would have", err=True)
        for each in times:
            out.line(_local(each, schedule.timezone))

    place.run(work)


@with_place
def _create(
    place: Place,
    *,
    workflow: Annotated[
        str,
        typer.Argument(metavar="WORKFLOW", help="What to start.", autocompletion=complete_workflow, show_default=False),
    ],
    cron: Annotated[
        str | None, typer.Argument(metavar="[CRON]", help="When, such as '0 2 * * *'.", show_default=False)
    ] = None,
    input: Annotated[
        str | None,
        typer.Argument(
            metavar="[JSON]", help="The input of each run; - reads stdin, @FILE a file.", show_default=False
        ),
    ] = None,
    schedule_id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="ID", help="Its id; a repeat with the same changes nothing.", show_default="a new one"
        ),
    ] = None,
    every: _Every = None,
    timezone: _Zone = None,
    start: _Start = None,
    end: _End = None,
    jitter: _Jitter = None,
    overlap: _Overlap = None,
    catch_up: _CatchUp = None,
    owner: _Owner = None,
    attribute: _Attributes = None,
    paused: Annotated[bool, typer.Option("--paused", help="Create it without enabling it.")] = False,
    as_json: _AsJson = False,
) -> None:
    """Create a schedule."""
    if every is not None and input is not None:
        raise typer.BadParameter("a cron expression or --every, and not both")
    fields = _fields(every, timezone, start, end, jitter, overlap, catch_up, owner, attribute)
    # With an interval the input follows the workflow at once.
    when, given = (cron, input) if every is None else (None, cron)
    value = object_given(given, "the input")

    async def work(client: WorkflowClient) -> None:
        made = await client.schedule_create(
            workflow, when, value, schedule_id=schedule_id, enabled=not paused, **fields
        )
        _print(made, as_json, "created")

    place.run(work)


@with_place
def _update(
    place: Place,
    *,
    schedule_id: _Id,
    cron: Annotated[str | None, typer.Option(metavar="CRON", help="Another expression.", show_default=False)] = None,
    input: Annotated[str | None, typer.Option(metavar="JSON", help="Another input.", show_default=False)] = None,
    every: _Every = None,
    timezone: _Zone = None,
    start: _Start = None,
    end: _End = None,
    jitter: _Jitter = None,
    overlap: _Overlap = None,
    catch_up: _CatchUp = None,
    owner: _Owner = None,
    attribute: _Attributes = None,
    enabled: Annotated[
        bool | None, typer.Option("--enable/--pause", help="Go on with it, or pause it.", show_default=False)
    ] = None,
    as_json: _AsJson = False,
) -> None:
    """Change a schedule; what is next is computed anew."""
    fields = _fields(every, timezone, start, end, jitter, overlap, catch_up, owner, attribute)
    if cron is not None:
        fields["cron"] = cron
    if input is not None:
        fields["input"] = object_given(input, "--input")
    if enabled is not None:
        fields["enabled"] = enabled
    if not fields:
        raise typer.BadParameter("nothing to change; name at least one option")

    async def work(client: WorkflowClient) -> None:
        _print(await client.schedule_update(schedule_id, **fields), as_json, "changed")

    place.run(work)


@with_place
def _delete(
    place: Place,
    *,
    schedule_id: _Id,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Forget a schedule; its runs are left alone."""
    if not yes and is_terminal(Output().stream):
        typer.confirm(f"delete schedule {clean(schedule_id)}?", abort=True)

    async def work(client: WorkflowClient) -> None:
        await client.schedule_delete(schedule_id)
        Output().line(f"schedule {clean(schedule_id)}: deleted")

    place.run(work)


@with_place
def _trigger(place: Place, *, schedule_id: _Id, as_json: _AsJson = False) -> None:
    """Start a run of a schedule now; its times stay as they are."""

    async def work(client: WorkflowClient) -> None:
        run = await client.schedule_trigger(schedule_id)
        if as_json:
            Output().document(run.to_json())
        else:
            Output().line(f"run {clean(run.run_id)} of {clean(run.name)}: submitted")

    place.run(work)


def _fields(
    every: float | None,
    timezone: str | None,
    start: str | None,
    end: str | None,
    jitter: float | None,
    overlap: Overlap | None,
    catch_up: float | None,
    owner: str | None,
    attribute: list[str] | None,
) -> dict[str, Any]:
    """The options that were given, as fields of a schedule."""
    fields = {
        "interval": every,
        "timezone": timezone,
        "starts_at": moment_given(start, "--start"),
        "ends_at": moment_given(end, "--end"),
        "jitter": jitter,
        "overlap": overlap,
        "catch_up": catch_up,
        "owner": owner,
        "attributes": attributes_given(attribute) if attribute else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _when(schedule: Schedule) -> str:
    if schedule.interval is not None:
        return f"every {schedule.interval:g} s"
    zone = "" if schedule.timezone == "UTC" else f" {schedule.timezone}"
    return f"{schedule.cron}{zone}"


def _local(when: datetime, zone: str) -> str:
    from zoneinfo import ZoneInfo

    return when.astimezone(UTC if zone == "UTC" else ZoneInfo(zone)).isoformat(sep=" ")


def _table(found: list[Schedule]) -> Table:
    now = datetime.now(UTC)
    rows: list[list[Part]] = []
    for each in found:
        last = f"{each.outcomes[0].outcome} {ago(each.outcomes[0].at, now)}" if each.outcomes else ""
        state: Part = (
            ("paused", "yellow") if not each.enabled else "ended" if each.next_at is None else exact(each.next_at)
        )
        rows.append([clean(each.workflow), clean(each.schedule_id), clean(_when(each)), state, last])
    return Table(("WORKFLOW", "ID", "WHEN", "NEXT", "LAST"), rows, frozenset({"WORKFLOW", "WHEN"}))


def _print(schedule: Schedule, as_json: bool, done: str = "") -> None:
    out = Output()
    if as_json:
        out.document(schedule.to_json())
        return
    if done:
        out.line(f"schedule {clean(schedule.schedule_id)} of {clean(schedule.workflow)}: {done}")
        if schedule.next_at is not None:
            out.line(f"next: {_local(schedule.next_at, schedule.timezone)}")
        return
    facts = {
        "Schedule": schedule.schedule_id,
        "Workflow": schedule.workflow,
        "When": _when(schedule),
        "Enabled": "yes" if schedule.enabled else "no",
        "Next": "never" if schedule.next_at is None else _local(schedule.next_at, schedule.timezone),
        "Input": compact(dict(schedule.input)),
        "Overlap": str(schedule.overlap),
        "Jitter": f"{schedule.jitter:g} s" if schedule.jitter else "",
        "Catch-up": "" if schedule.catch_up is None else f"{schedule.catch_up:g} s",
        "Starts": "" if schedule.starts_at is None else _local(schedule.starts_at, schedule.timezone),
        "Ends": "" if schedule.ends_at is None else _local(schedule.ends_at, schedule.timezone),
        "Owner": schedule.owner or "",
        "Attributes": compact(dict(schedule.attributes)) if schedule.attributes else "",
    }
    for title, text in facts.items():
        if text:
            out.line((f"{title:<11} ", "dim"), clean(one_line(text)))
    if schedule.outcomes:
        out.line("")
        out.line(f"The last {count_of(min(_SHOWN, len(schedule.outcomes)), 'outcome')}:")
    for each in schedule.outcomes[:_SHOWN]:
        out.fitted(
            f"  {_local(each.occurrence, schedule.timezone)}  {each.outcome:<9} ",
            clean(one_line(each.run_id or each.reason)),
        )
