"""What the shell offers on Tab: workflow names, ids of runs and schedules, as far as the server tells them at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
import typer

from pyrula.cli.place import Place

if TYPE_CHECKING:
    from pyrula.workflows.client import WorkflowClient

__all__ = ["complete_run", "complete_schedule", "complete_trigger", "complete_workflow"]

T = TypeVar("T")

_PATIENCE: Final = 2.0
_RUNS: Final = 50


def complete_workflow(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of workflows that the namespace has seen."""

    async def names(client: WorkflowClient) -> list[str]:
        return [name for name in await client.store.workflows() if name.startswith(incomplete)]

    return _asked(ctx, names) or []


def complete_run(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Ids of the latest runs, each with its workflow and status."""

    async def ids(client: WorkflowClient) -> list[tuple[str, str]]:
        page = await client.list(limit=_RUNS)
        return [(run.run_id, f"{run.name}, {run.status}") for run in page if run.run_id.startswith(incomplete)]

    return _asked(ctx, ids) or []


def complete_schedule(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Ids of schedules, each with its workflow."""

    async def ids(client: WorkflowClient) -> list[tuple[str, str]]:
        found = await client.schedule_list()
        return [(each.schedule_id, each.workflow) for each in found if each.schedule_id.startswith(incomplete)]

    return _asked(ctx, ids) or []


def complete_trigger(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of triggers."""

    async def names(client: WorkflowClient) -> list[str]:
        return [each.name for each in await client.trigger_list() if each.name.startswith(incomplete)]

    return _asked(ctx, names) or []


def _asked(ctx: typer.Context, question: Callable[[WorkflowClient], Awaitable[T]]) -> T | None:
    place = _place(ctx)

    async def ask() -> T | None:
        with anyio.move_on_after(_PATIENCE):
            async with place.client(connect_timeout=1.0) as client:
                return await question(client)
        return None

    try:
        return anyio.run(ask)
    except Exception:  # noqa: BLE001 - a line that is being typed is no place for an error
        return None


def _place(ctx: typer.Context) -> Place:
    """The options typed so far; the innermost command's win."""
    chosen: dict[str, str | int] = {}
    at: typer.Context | None = ctx
    while at is not None:
        for name in ("url", "namespace", "shard_count"):
            if at.params.get(name) is not None:
                chosen.setdefault(name, at.params[name])
        at = at.parent  # type: ignore[assignment]  # declared as the class above typer's own
    return Place(**chosen)  # type: ignore[arg-type]  # by name, as the options declare them
