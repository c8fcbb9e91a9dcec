"""A place for fault tests: a namespace on a server, worker processes on it, and what can be proved afterwards.

Holds no judgement of its own but `proof`, which every test ends with.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Self

import anyio
import anyio.to_thread

from pyrula.contracts.events import EventType
from pyrula.contracts.runs import Run
from pyrula.testing.audit import audit
from pyrula.testing.audit_valkey import audit_namespace
from pyrula.testing.servers import PrivateServer
from pyrula.workflows import ValkeyStore, WorkflowClient
from tests.integration.fault_programs import Execution, executions
from tests.integration.fault_worker import Plan, Trap, WorkerProcess

__all__ = ["Bench", "until"]

_PATIENCE: Final = 30.0
_LOOK: Final = 0.01
_STEP_OUTCOMES: Final = (EventType.STEP_COMPLETED, EventType.STEP_FAILED)


async def until(holds: Callable[[], object], *, within: float = _PATIENCE, what: str = "") -> None:
    """Wait until something is true; a coroutine function is awaited. Raises `AssertionError` when it is not in time."""
    deadline = time.monotonic() + within
    while True:
        found = holds()
        if await found if isinstance(found, Awaitable) else found:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what or holds}")
        await anyio.sleep(_LOOK)


def _out_of_turn(done: Iterable[tuple[str, str, int]]) -> Iterator[str]:
    """Steps named s0, s1 ... follow each other: one whose next was executed had been recorded, and is not repeated."""
    attempts: dict[tuple[str, int], list[int]] = {}
    for run_id, step, attempt in done:
        if step[1:].isdigit() and step[0] == "s":
            attempts.setdefault((run_id, int(step[1:])), []).append(attempt)
    for (run_id, number), made in attempts.items():
        following = attempts.get((run_id, number + 1))
        if following and max(made) > min(following):
            yield f"{run_id} s{number}: executed in attempt {max(made)}, after the next step in {min(following)}"


class Bench:
    """One namespace, its client in the test's own loop, and its worker processes."""

    def __init__(
        self, server: PrivateServer, namespace: str, folder: Path, backend: str, *, shard_count: int = 4
    ) -> None:
        self.server = server
        self.namespace = namespace
        self.folder = folder
        self.backend = backend
        self.shard_count = shard_count
        self.store = ValkeyStore(server.url, namespace=namespace, shard_count=shard_count, lock_ttl=1.0)
        self.client = WorkflowClient(self.store)
        self.workers: list[WorkerProcess] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.close()
        with anyio.CancelScope(shield=True):
            await self.store.aclose()

    def start(self, *traps: Trap, url: str | None = None, **plan: Any) -> WorkerProcess:
        """Start a worker process; it is killed at the end of the test."""
        name = plan.pop("name", None) or f"worker{len(self.workers)}"
        backend = plan.pop("backend", self.backend)
        worker = WorkerProcess(
            Plan(
                url or self.server.url,
                self.namespace,
                self.folder,
                backend,
                name,
                traps,
                shard_count=self.shard_count,
                **plan,
            )
        )
        self.workers.append(worker)
        return worker

    async def worker(self, *traps: Trap, **plan: Any) -> WorkerProcess:
        """Start a worker process and wait until it serves."""
        return await self.start(*traps, **plan).ready()

    async def doomed(self, *traps: Trap, **plan: Any) -> WorkerProcess:
        """Start a worker process that will not live long: what it claims is free again soon after its end."""
        options = {"orphan_scan_interval": 600.0, **plan.pop("options", {})}
        return await self.worker(*traps, lock_ttl=0.4, options=options, **plan)

    def executions(self, run_id: str | None = None) -> list[Execution]:
        """What steps have been executed, of one run or of all."""
        return [each for each in executions(self.folder) if run_id in (None, each.run)]

    def counts(self, run_id: str) -> dict[str, int]:
        """How often each step of a run was executed."""
        return dict(Counter(each.step for each in self.executions(run_id)))

    async def result(self, run: Run, *, within: float = _PATIENCE) -> Any:
        """The run's result."""
        return await self.client.result(run.name, run.run_id, timeout=within)

    async def status(self, run: Run) -> str:
        """The run's status now."""
        return str((await self.client.get(run.name, run.run_id)).status)

    async def reaches(self, run: Run, *statuses: str) -> None:
        """Wait until the run has one of these statuses."""

        async def there() -> bool:
            return await self.status(run) in statuses

        await until(there, what=f"{run.name} {run.run_id} being {' or '.join(statuses)}")

    async def proof(self) -> list[str]:
        """What is wrong with the data: by a store's methods, by its keys, by what was executed."""
        findings = await audit(self.store)
        findings += await anyio.to_thread.run_sync(self._keys)
        return findings + await self._repeated()

    def _keys(self) -> list[str]:
        client = self.server.client()
        try:
            return audit_namespace(client, self.namespace)
        finally:
            client.close()  # type: ignore[no-untyped-call]

    async def _repeated(self) -> list[str]:
        """A step was executed once in the attempt that recorded its outcome, and in none after it.

        A failed step is another matter once its run was retried.
        """
        done = Counter((each.run, each.step, each.attempt) for each in self.executions())
        last: dict[tuple[str, str], int] = {}
        for run_id, step, attempt in done:
            last[run_id, step] = max(attempt, last.get((run_id, step), 0))
        findings = list(_out_of_turn(done))
        cursor = None
        while True:
            page = await self.client.list(limit=200, cursor=cursor)
            for run in page.runs:
                findings += await self._repeated_of(run, done, last)
            cursor = page.cursor
            if cursor is None:
                return findings

    async def _repeated_of(
        self, run: Run, done: Counter[tuple[str, str, int]], last: dict[tuple[str, str], int]
    ) -> list[str]:
        findings = []
        events = [event async for event in self.client.events(run.name, run.run_id)]
        retried = any(event.type == EventType.RUN_RETRIED for event in events)
        for event in events:
            if event.type not in _STEP_OUTCOMES or (retried and event.type == EventType.STEP_FAILED):
                continue
            step = event.key.rpartition("/")[2].partition("#")[0]
            tries = event.data.get("attempts", 1)
            if done[run.run_id, step, event.attempt] != tries and tries == 1:
                times = done[run.run_id, step, event.attempt]
                findings.append(f"{run.run_id} {step}: executed {times} times in its recorded attempt {event.attempt}")
            if last.get((run.run_id, step), 0) > event.attempt:
                findings.append(f"{run.run_id} {step}: recorded in attempt {event.attempt}, executed again later")
        return findings
