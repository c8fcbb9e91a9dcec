"""`pyrula runs signal`, `resume`, `cancel`, `terminate`, `retry`, `pause`, `unpause`, `fork`: acting on a run."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pyrula.cli.completing import complete_run
from pyrula.cli.finding import find, split_words
from pyrula.cli.given import json_given, object_given
from pyrula.cli.output import Output, is_terminal
from pyrula.cli.place import Place, with_place
from pyrula.cli.runs import AsJson, OfWorkflow, RunWords
from pyrula.cli.wording import clean

if TYPE_CHECKING:
    from pyrula.contracts.store import RunRecord
    from pyrula.workflows.client import WorkflowClient

__all__ = ["add_acting"]

_Act = Callable[["WorkflowClient", "RunRecord"], Awaitable[object]]

Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Why; kept with the run.", show_default=False)]


def add_acting(runs: typer.Typer) -> None:
    """Put the commands into `pyrula runs`."""
    runs.command("signal")(_signal)
    runs.command("resume")(_resume)
    runs.command("cancel")(_cancel)
    runs.command("terminate")(_terminate)
    runs.command("retry")(_retry)
    runs.command("pause")(_pause)
    runs.command("unpause")(_unpause)
    runs.command("fork")(_fork)
    runs.command("update")(_update)
    runs.command("query")(_query)


def _do(place: Place, words: tuple[str | None, str], act: _Act, done: str, as_json: bool) -> None:
    """Find the run, act on it, and say what was done, or print the run."""

    async def work(client: WorkflowClient) -> None:
        found = await find(client, *words)
        await act(client, found)
        if as_json:
            Output().document((await client.get(found.workflow, found.run_id)).to_json())
        else:
            Output().line(f"run {clean(found.run_id)} of {clean(found.workflow)}: {done}")

    place.run(work)


@with_place
def _signal(
    place: Place,
    *,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[WORKFLOW] RUN_ID SIGNAL [JSON]",
            help="The run, the signal's name, and its payload (- reads stdin, @FILE a file).",
            autocompletion=complete_run,
        ),
    ],
    name: OfWorkflow = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Repeats with this key are delivered once.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send a signal to a run. It is kept until the run waits for it."""
    # Whatever a person or a pipe is waited for stands outside of the loop, where Ctrl-C ends it at once.
    ambiguous = name is None and len(words) == 3
    run, signal, text = _signal_words(words, name, place.run(_workflows) if ambiguous else ())
    payload = None if text is None else json_given(text, "the payload")

    async def act(client: WorkflowClient, found: RunRecord) -> None:
        await client.signal(found.workflow, found.run_id, signal, payload, idempotency_key)

    _do(place, run, act, f"signal {clean(signal)} sent", as_json)


async def _workflows(client: WorkflowClient) -> list[str]:
    return await client.store.workflows()


def _signal_words(
    words: Sequence[str], name: str | None, workflows: Sequence[str]
) -> tuple[tuple[str | None, str], str, str | None]:
    """The run, the signal and the payload's text. A first word that is a workflow's name is taken as that."""
    rest = list(words)
    if name is None and (len(rest) == 4 or (len(rest) == 3 and rest[0] in workflows)):
        name = rest.pop(0)
    if len(rest) not in (2, 3):
        raise typer.BadParameter(f"expected [WORKFLOW] RUN_ID SIGNAL [JSON]; got {' '.join(words)}")
    return (name, rest[0]), rest[1], rest[2] if len(rest) == 3 else None


@with_place
def _resume(
    place: Place,
    *,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[WORKFLOW] RUN_ID ANSWER",
            help="The run, and the answer in JSON (- reads stdin, @FILE a file).",
            autocompletion=complete_run,
        ),
    ],
    name: OfWorkflow = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Which question, when it is not the open one.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Answer the question that a run waits with."""
    if len(words) < 2:
        raise typer.BadParameter("expected [WORKFLOW] RUN_ID ANSWER")
    run, answer = split_words(words[:-1], name), json_given(words[-1], "the answer")

    async def act(client: WorkflowClient, found: RunRecord) -> None:
        await client.resume(found.workflow, found.run_id, answer, key)

    _do(place, run, act, "answered", as_json)


@with_place
def _cancel(
    place: Place, *, run: RunWords, name: OfWorkflow = None, reason: Reason = None, as_json: AsJson = False
) -> None:
    """Ask a run to end after its clean-up."""

    async def act(client: WorkflowClient, found: RunRecord) -> None:
        await client.cancel(found.workflow, found.run_id, reason)

    _do(place, split_words(run, name), act, "asked to cancel", as_json)


@with_place
def _terminate(
    place: Place,
    *,
    run: RunWords,
    name: OfWorkflow = None,
    reason: Reason = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """End a run at once, without its worker and without clean-up. Asks first on a terminal."""
    words = split_words(run, name)
    if not yes and is_terminal(sys.stdin) and is_terminal(sys.stderr):
        found = place.run(lambda client: find(client, *words))
        words = found.workflow, found.run_id
        question = f"End run {clean(found.run_id)} of {clean(found.workflow)} ({found.status}) without clean-up?"
        if not typer.confirm(question, err=True):
            typer.echo("nothing was done", err=True)
            raise typer.Exit(1)

    async def act(client: WorkflowClient, found: RunRecord) -> None:
        await client.terminate(found.workflow, found.run_id, reason)

    _do(place, words, act, "terminated", as_json)


@with_place
def _retry(place: Place, *, run: RunWords, name: OfWorkflow = None, as_json: AsJson = False) -> None:
    """Queue a failed run again: it goes on from what its journal holds."""

    async def act(client: WorkflowClient, found: RunRecord) -> None:
        await client.retry(found.workflow, found.run_id)

    _do(place, split_words(run, name), act, "queued again", as_json)


@with_place
def _pause(
    place: Place, *, run: RunWords, name: OfWorkflow = None, reason: Reason = None, as_json: AsJson = False
) -> None:
    """Hold a run back until it is unpaused; one under way stops at its next call."""

    async def act(client: WorkflowClient, found: RunRecord) -> None:
        await client.pause(found.workflow, found.run_id, reason)

    _do(place, split_words(run, name), act, "paused, or asked to", as_json)


@with_place
def _unpause(place: Place, *, run: RunWords, name: OfWorkflow = None, as_json: AsJson = False) -> None:
    """Let a paused run go on."""

    async def act(client: WorkflowClient, found: RunRecord) -> None:
        await client.unpause(found.workflow, found.run_id)

    _do(place, split_words(run, name), act, "goes on", as_json)


@with_place
def _fork(
    place: Place,
    *,
    run: RunWords,
    name: OfWorkflow = None,
    at: Annotated[
        int | None, typer.Option(metavar="SEQ", min=1, help="Up to this event.", show_default="all of it")
    ] = None,
    input: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Another input; - reads stdin, @FILE a file.", show_default=False),
    ] = None,
    new_run_id: Annotated[
        str | None, typer.Option("--run-id", metavar="ID", help="The new run's id.", show_default="a new one")
    ] = None,
    relink: Annotated[bool, typer.Option("--relink", help="Wait for the child runs that were open, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start another run with this one's journal up to an event."""
    given = None if input is None else object_given(input, "--input")

    async def work(client: WorkflowClient) -> None:
        found = await find(client, *split_words(run, name))
        children = "relink" if relink else "new"
        made = await client.fork(
            found.workflow,
            found.run_id,
            at,
            given,
            new_run_id=new_run_id,
            children=children,  # type: ignore[arg-type]  # one of the two
        )
        if as_json:
            Output().document(made.to_json())
        else:
            Output().line(f"run {clean(made.run_id)} of {clean(made.name)}: forked from {clean(found.run_id)}")

    place.run(work)


@with_place
def _update(
    place: Place,
    *,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_ID UPDATE [JSON]",
            help="The run, the update's name, and its payload (- reads stdin, @FILE a file).",
            autocompletion=complete_run,
        ),
    ],
    name: OfWorkflow = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Wait for the answer no longer.", show_default=False)
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Repeats get the first one's answer.", show_default=False)
    ] = None,
) -> None:
    """Have a run apply an update, and print its answer as JSON."""
    if len(words) not in (2, 3):
        raise typer.BadParameter("expected RUN_ID UPDATE [JSON]")
    payload = None if len(words) == 2 else json_given(words[2], "the payload")

    async def work(client: WorkflowClient) -> None:
        found = await find(client, name, words[0])
        answer = await client.update(
            found.workflow, found.run_id, words[1], payload, timeout=timeout, idempotency_key=idempotency_key
        )
        Output().document(answer)

    place.run(work)


@with_place
def _query(
    place: Place,
    *,
    words: Annotated[
        list[str],
        typer.Argument(metavar="RUN_ID [KEY]", help="The run, and one of its values.", autocompletion=complete_run),
    ],
    name: OfWorkflow = None,
) -> None:
    """Print what a run has published, as JSON: one value, or all of them."""
    if len(words) not in (1, 2):
        raise typer.BadParameter("expected RUN_ID [KEY]")

    async def work(client: WorkflowClient) -> None:
        found = await find(client, name, words[0])
        if len(words) == 2:
            Output().document(await client.query(found.workflow, found.run_id, words[1]))
        else:
            Output().document(await client.committed(found.workflow, found.run_id))

    place.run(work)
