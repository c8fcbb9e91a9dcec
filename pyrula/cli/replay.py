"""`pyrula replay`: recorded histories against the code of a module as it is now. Talks to no server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pyrula.cli.completing import complete_workflow
from pyrula.cli.loading import load_modules
from pyrula.cli.output import Output
from pyrula.cli.wording import clean

__all__ = ["add_replay"]


def add_replay(app: typer.Typer) -> None:
    """Put the command into the program."""
    app.command("replay")(_replay)


def _replay(
    module: Annotated[str, typer.Argument(metavar="MODULE", help="Where the workflows are: a module, or a .py file.")],
    histories: Annotated[
        list[Path],
        typer.Argument(metavar="HISTORY...", help="Files of `pyrula runs events RUN --json`, or folders of them."),
    ],
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="WORKFLOW",
            help="Whose histories they are; by default the file's own word, its name or its folder tells.",
            autocompletion=complete_workflow,
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one history a line.")] = False,
) -> None:
    """Replay recorded histories against today's code, and show the first difference of each. No step runs.

    Exits with 1 when a history would not go on as it was recorded.
    """
    from pyrula.contracts.errors import ConfigurationError
    from pyrula.workflows.histories import history_files, load_history, replay_history, workflow_of
    from pyrula.workflows.registry import registry

    load_modules([module])
    files = [file for path in histories for file in (history_files(path) if path.is_dir() else [path])]
    if not files:
        raise ConfigurationError(f"there are no histories (.jsonl) in {', '.join(map(str, histories))}")
    chosen = None if name is None else registry.get(name)
    if name is not None and chosen is None:
        raise ConfigurationError(f"{module} defines no workflow {name!r}")
    out, differ = Output(), 0
    for file in files:
        history = load_history(file)
        report = replay_history(chosen or workflow_of(history), history)
        differ += not report.ok
        if as_json:
            out.records([report.to_json()])
        else:
            for line in str(report).splitlines():
                out.line(clean(line))
        out.flush()
    if differ:
        raise typer.Exit(1)
