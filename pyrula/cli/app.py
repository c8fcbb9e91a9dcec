"""The program `pyrula`: its commands, and the options that stand before them. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated

import typer

from pyrula import __version__
from pyrula.cli.acts import add_acting
from pyrula.cli.dev import add_dev
from pyrula.cli.events import add_events, add_triggers
from pyrula.cli.place import Debug, Namespace, Place, ShardCount, Url
from pyrula.cli.replay import add_replay
from pyrula.cli.runs import add_looking
from pyrula.cli.schedules import add_schedules
from pyrula.cli.submit import add_submit
from pyrula.cli.worker import add_worker

__all__ = ["app"]

# Plain help: a formatter with frames takes longer to import than most commands take to run.
_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

app = typer.Typer(
    name="pyrula", no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=_HELP
)
_runs = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at runs, and act on them.")
_schedules = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="What starts runs by itself.")
_events = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
_triggers = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="What starts runs by events.")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"pyrula {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    ctx: typer.Context,
    url: Url = None,
    namespace: Namespace = None,
    shard_count: ShardCount = None,
    debug: Debug = False,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Durable workflows on Valkey: run workers, submit runs, and look after them."""
    ctx.obj = Place(url, namespace, shard_count, debug)


add_dev(app)
add_worker(app)
add_submit(app)
add_replay(app)
add_looking(_runs)
add_acting(_runs)
app.add_typer(_runs, name="runs")
add_schedules(_schedules)
app.add_typer(_schedules, name="schedules")
add_events(_events)
app.add_typer(_events, name="events")
add_triggers(_triggers)
app.add_typer(_triggers, name="triggers")
