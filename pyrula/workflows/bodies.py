"""A workflow's body as the run actor takes it, called with its decoded input or refused, and its settings.

Nothing runs here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyrula.actors.attempt import Attempt, Body, Settings
from pyrula.contracts.errors import InvalidInput, PyrulaError, ReplayInputChanged
from pyrula.contracts.options import WorkerOptions
from pyrula.workflows.context import Context
from pyrula.workflows.registry import Workflow

__all__ = ["body_of", "settings_of"]


def body_of(item: Workflow) -> Body:
    """A workflow as the run actor takes it."""

    def start(attempt: Attempt, given: Mapping[str, Any]) -> Any:
        return item.fn(Context(attempt), **item.spec.decode(given))

    async def refused(error: PyrulaError) -> Any:
        raise error

    def guarded(attempt: Attempt, given: Mapping[str, Any]) -> Any:
        try:
            return start(attempt, given)
        except InvalidInput as error:
            if not attempt.journal.begun:
                return refused(error)
            return refused(
                attempt.refuse(
                    ReplayInputChanged(
                        f"the run was started with an input that the code no longer takes ({error}); "
                        "restore the parameters, then retry the run",
                        recorded=", ".join(sorted(given)) or "no parameters",
                        asked=", ".join(sorted(item.spec.hints)) or "no parameters",
                    )
                )
            )

    return Body(item.name, guarded, item.retry, item.timeout)


def settings_of(options: WorkerOptions, **more: Any) -> Settings:
    """A worker's options as far as a single run goes by them, with what the worker knows besides."""
    return Settings(
        cancel_timeout=options.cancel_timeout,
        payload_limit=options.payload_limit,
        history_warning=options.history_warning,
        history_limit=options.history_limit,
        loop_limit=options.loop_stall_limit,
        child_stay=options.child_stay,
        **more,
    )
