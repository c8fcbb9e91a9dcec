"""Running one run in the calling process, for tests and scripts that do not suspend."""

from __future__ import annotations

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from pyrula.actors.attempt import Attempt
from pyrula.actors.running import run_attempt
from pyrula.actors.supervision import OutageLog
from pyrula.contracts.errors import ConfigurationError, StoreUnavailable
from pyrula.contracts.events import Event
from pyrula.contracts.options import WorkerOptions
from pyrula.contracts.store import Store
from pyrula.workflows.bodies import body_of, settings_of
from pyrula.workflows.client import WorkflowClient
from pyrula.workflows.registry import registry
from pyrula.workflows.submission import found

__all__ = ["InlineWorkflowRunner"]

_LEASE_MS = 30_000


class InlineWorkflowRunner:
    """Advances runs one at a time, with no background loops: a sleep stays asleep, nothing polls.

    options: those of a worker, as far as they are about a single run: `cancel_timeout`, `payload_limit`,
        `loop_stall_limit`, `child_stay`.
    """

    def __init__(self, store: Store, options: WorkerOptions | None = None) -> None:
        options = options or WorkerOptions()
        self.store = store
        self.client = WorkflowClient(store, payload_limit=options.payload_limit)
        self._settings = settings_of(options)

    async def run(self, name: str, run_id: str) -> list[Event]:
        """Advance a queued run until it suspends or ends; its journal so far.

        A run that is not queued is left as it is. Raises `RunNotFound`, and
        `ConfigurationError` for a workflow that this process has not imported.
        """
        item = registry.get(name)
        if item is None:
            raise ConfigurationError(f"workflow {name!r} is not registered; import the module that defines it")
        await self.store.load(*found(name, run_id), ends=False)
        claim = await self.store.claim_run(name, run_id, worker="inline", lease_ms=_LEASE_MS)
        if claim is not None:
            await _run(Attempt(self.store, claim, body_of(item), settings=self._settings, outage=_Plain()))
        return [event async for event in self.client.events(name, run_id)]


async def _run(attempt: Attempt) -> None:
    """Run an attempt in a task of its own: a caller that gives up is told apart from a body that does."""
    errors: list[Exception] = []

    async def run() -> None:
        try:
            await run_attempt(attempt)
        except Exception as error:  # noqa: BLE001 - the caller gets it as it is, not in a group
            errors.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
    await checkpoint_if_cancelled()
    if errors:
        raise errors[0]


class _Plain(OutageLog):
    """Without a worker's loops nobody waits for the store: an outage is the caller's error."""

    def failed(self, error: StoreUnavailable, by: object = None) -> None:
        raise error
