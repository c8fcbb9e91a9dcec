"""From what a person types to the run that is meant: a whole id, the beginning of one, with its workflow or without."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import anyio
import typer

from pyrula.contracts.errors import CallerError, RunNotFound
from pyrula.contracts.ids import check_id, check_workflow_name

if TYPE_CHECKING:
    from pyrula.contracts.store import RunRecord
    from pyrula.workflows.client import WorkflowClient

__all__ = ["find", "split_words", "time_window"]

# An id that pyrula makes begins with its time: 10 characters, 5 bits each, milliseconds.
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_STAMP: Final = 10
_SHORTEST: Final = 6
_CANDIDATES: Final = 500
# The clocks of whoever made the id and of the server that dated the run.
_SKEW: Final = timedelta(minutes=5)
_AT_ONCE: Final = 64


def split_words(words: Sequence[str], name: str | None) -> tuple[str | None, str]:
    """`RUN_ID`, or `WORKFLOW RUN_ID`, as (workflow, run id). A usage error for anything else."""
    if len(words) == 1:
        return name, words[0]
    if len(words) == 2 and name is None:
        return words[0], words[1]
    expected = "RUN_ID, since --name is given" if name is not None else "RUN_ID, or WORKFLOW RUN_ID"
    raise typer.BadParameter(f"expected {expected}; got {' '.join(words) or 'nothing'}")


async def find(client: WorkflowClient, name: str | None, run_id: str) -> RunRecord:
    """The run that is meant. Asks every workflow when none is named; then tries the id as the beginning of one.

    Raises `CallerError` when there is none, or more than one.
    """
    check_id(run_id, "run id")
    names = await client.store.workflows() if name is None else [check_workflow_name(name)]
    found = await _exact(client, names, run_id) or await _beginning(client, name, run_id)
    if not found:
        where = f"workflow {name!r}" if name is not None else "any workflow"
        raise CallerError(f"no run {run_id!r} of {where}; it was never submitted, or its retention is over")
    if len(found) > 1:
        shown = ", ".join(f"{record.workflow} {record.run_id}" for record in found[:4])
        more = ", ..." if len(found) > 4 else ""
        raise CallerError(f"{run_id!r} fits {len(found)} runs: {shown}{more}; say which")
    return found[0]


async def _exact(client: WorkflowClient, names: Sequence[str], run_id: str) -> list[RunRecord]:
    found: list[RunRecord] = []

    async def look(name: str) -> None:
        try:
            found.append(await client.store.load(name, run_id, ends=False))
        except RunNotFound:
            return

    for start in range(0, len(names), _AT_ONCE):
        async with anyio.create_task_group() as group:
            for name in names[start : start + _AT_ONCE]:
                group.start_soon(look, name)
    return sorted(found, key=lambda record: record.workflow)


async def _beginning(client: WorkflowClient, name: str | None, beginning: str) -> list[RunRecord]:
    window = time_window(beginning)
    if window is None:
        return []
    after, before = window
    page = await client.list(name, submitted_after=after, submitted_before=before, limit=_CANDIDATES)
    fitting = [run for run in page if run.run_id.startswith(beginning)]
    if page.cursor is not None and not fitting:
        raise CallerError(
            f"too many runs were submitted around {beginning!r} to tell one from another; give more of the id"
        )
    return [await client.store.load(run.name, run.run_id, ends=False) for run in fitting[:5]]


def time_window(beginning: str) -> tuple[datetime, datetime] | None:
    """When runs were submitted whose ids begin so; None when too little is given, or it is no such id."""
    stamp = beginning[:_STAMP]
    if len(beginning) < _SHORTEST or any(char not in _ALPHABET for char in stamp):
        return None
    low = 0
    for char in stamp:
        low = low << 5 | _ALPHABET.index(char)
    missing = 5 * (_STAMP - len(stamp))
    first = low << missing
    try:
        return (
            datetime.fromtimestamp(first / 1000, UTC) - _SKEW,
            datetime.fromtimestamp((first + (1 << missing)) / 1000, UTC) + _SKEW,
        )
    except (OverflowError, ValueError, OSError):
        return None
