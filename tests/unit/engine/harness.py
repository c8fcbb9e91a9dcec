"""Running bodies attempt by attempt on a memory store whose clock the test moves. No worker, no waiting.

A `Bench` is one store, one clock and one body. Nothing here judges what comes out.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint

from pyrula.actors.attempt import Attempt, Settings
from pyrula.actors.running import Ended, run_attempt
from pyrula.actors.supervision import OutageLog
from pyrula.contracts.events import Event
from pyrula.contracts.options import Retry
from pyrula.contracts.runs import PARKED, Run, RunStatus
from pyrula.contracts.store import Claim, Store
from pyrula.workflows.bodies import body_of
from pyrula.workflows.client import WorkflowClient
from pyrula.workflows.registry import Workflow
from pyrula.workflows.stores.memory import MemoryStore

__all__ = ["START", "Bench", "Clock", "outcomes", "shape", "until"]

START: Final = 1_700_000_000.0
LEASE_MS: Final = 30_000
# A run of these tests never needs more attempts; one that does goes in circles.
MOST_ATTEMPTS: Final = 200

Body = Callable[..., Coroutine[Any, Any, Any]]


class Clock:
    """Seconds since the epoch, moved by hand."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class Bench:
    """A store and the one workflow that is run on it."""

    def __init__(
        self,
        body: Body,
        *,
        name: str = "bench",
        retry: Retry | None = None,
        timeout: float | None = None,
        settings: Settings | None = None,
        wrap: Callable[[Store], Store] = lambda store: store,
    ) -> None:
        self.clock = Clock()
        self.memory = MemoryStore(clock=self.clock)
        self.store: Store = wrap(self.memory)
        self.client = WorkflowClient(self.memory)
        self.workflow = Workflow(body, name=name, version=None, timeout=timeout, retry=retry)
        self.name = name
        self.settings = settings or Settings(cancel_timeout=1.0)
        self._ids = itertools.count(1)

    def replace_body(self, body: Body) -> None:
        """Deploy other code under the same name."""
        self.workflow = Workflow(
            body, name=self.name, version=None, timeout=self.workflow.timeout, retry=self.workflow.retry
        )

    async def submit(self, input: dict[str, Any] | None = None, **options: Any) -> Run:
        """Queue a run of the body."""
        options.setdefault("run_id", f"r{next(self._ids)}")
        return await self.client.submit(self.workflow, input, **options)

    async def claim(self, run_id: str) -> Claim:
        """Take a run that is runnable."""
        claim = await self.store.claim_run(self.name, run_id, worker="bench", lease_ms=LEASE_MS)
        assert claim is not None, f"run {run_id} is not runnable"
        return claim

    def attempt(self, claim: Claim) -> Attempt:
        """An attempt under a claim, not yet run."""
        return Attempt(self.store, claim, body_of(self.workflow), settings=self.settings, outage=OutageLog())

    async def once(self, run_id: str) -> Ended:
        """Claim the run and make one attempt."""
        return await run_attempt(self.attempt(await self.claim(run_id)))

    async def wake(self, run_id: str) -> None:
        """Let time pass until the parked run is due, and wake it."""
        run = await self.client.get(self.name, run_id)
        assert run.wake_at is not None, f"run {run_id} waits for no time: {run}"
        self.clock.now = max(self.clock.now, run.wake_at.timestamp() + 0.001)
        await self.memory.wake(self.name, limit=100)

    async def lose(self) -> None:
        """The worker is gone: let its leases run out and be found."""
        self.clock.advance(LEASE_MS / 1000 + 1)
        await self.memory.sweep(self.name, limit=100, requeue_budget=10**6, keep_ms=10**12)

    async def drive(self, run_id: str) -> Run:
        """Make attempts, and let time pass, until the run has ended or waits for somebody."""
        for _ in range(MOST_ATTEMPTS):
            await checkpoint()  # the memory store never waits: a test that is out of time ends here
            run = await self.client.get(self.name, run_id)
            if run.status.ended or (run.status in PARKED and run.wake_at is None):
                return run
            if run.status is RunStatus.QUEUED and run.wake_at is None:
                await self.once(run_id)
            else:
                await self.wake(run_id)
        raise AssertionError(f"run {run_id} has not ended after {MOST_ATTEMPTS} attempts: {await self.events(run_id)}")

    async def go(self, input: dict[str, Any] | None = None, **options: Any) -> Run:
        """Submit a run and drive it."""
        return await self.drive((await self.submit(input, **options)).run_id)

    async def events(self, run_id: str) -> list[Event]:
        """The run's journal."""
        return [event async for event in self.client.events(self.name, run_id)]

    async def types(self, run_id: str) -> list[str]:
        """The types of the journal's events."""
        return [event.type for event in await self.events(run_id)]


async def until(probe: Callable[[], object], seconds: float = 5.0) -> None:
    """Give other tasks turns until `probe` (plain or async) gives something true; fails after `seconds`."""
    with anyio.fail_after(seconds):
        while True:
            found = probe()
            if await found if inspect.isawaitable(found) else found:
                return
            await anyio.sleep(0.002)


def outcomes(events: Sequence[Event]) -> dict[str, tuple[str, Any]]:
    """What is recorded for each call: key to (type, data)."""
    return {event.key: (event.type, event.data) for event in events if event.key}


def shape(events: Sequence[Event]) -> list[tuple[str, str]]:
    """Types and keys in order, without the claims' own events."""
    return [(event.type, event.key) for event in events if event.type not in ("run.started", "run.resumed")]
