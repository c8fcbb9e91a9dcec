"""A worker process of the fault tests: an ordinary worker with traps in it, and how a test holds it.

`work_here` is what the process does; `WorkerProcess` is the test's end. Processes are forked from one that
has imported everything, so that one is up in some 50 ms, and they end with the test's process, whatever
becomes of it. A trap kills or stops its own process at a place that a program or a store's call reaches.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Self

import anyio
import anyio.to_thread
import trio  # noqa: F401 - imported before the fork

from pyrula.contracts.schedules import ScheduleMove
from pyrula.contracts.store import Claim, ClaimBatch, Ending, Parking
from pyrula.workflows import ValkeyStore, WorkerOptions, WorkflowWorker
from tests.integration import fault_programs

__all__ = ["OPTIONS", "Plan", "Trap", "TrappedStore", "WorkerProcess"]

# Short, so that a lost worker is noticed within a second or two.
OPTIONS: Final[Mapping[str, Any]] = {
    "claim_poll_interval": 0.05,
    "orphan_scan_interval": 0.2,
    "timer_poll_interval_s": 1.0,
    "shutdown_grace": 5.0,
    "cancel_timeout": 2.0,
}
_PATIENCE: Final = 30.0
_fork: Final = multiprocessing.get_context("forkserver")
_fork.set_forkserver_preload([__name__, "anyio._backends._trio", "anyio._backends._asyncio"])


@dataclass(frozen=True, slots=True)
class Trap:
    """Springs when `place` is reached for the `nth` time in its process.

    how: `kill` (SIGKILL), `stop` (SIGSTOP), or `jump`: the process's wall clock moves by `amount` seconds.
    """

    place: str
    nth: int = 1
    how: str = "kill"
    amount: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a worker process is to be. Times in seconds."""

    url: str
    namespace: str
    folder: Path
    backend: str
    name: str
    traps: tuple[Trap, ...] = ()
    lock_ttl: float = 1.0
    shard_count: int = 4
    connect_timeout: float = 5.0
    command_timeout: float = 30.0
    workflows: tuple[str, ...] = fault_programs.NAMES
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        """What the process logs."""
        return self.folder / f"{self.name}.log"

    def store(self) -> TrappedStore:
        """The store that the process works on."""
        return TrappedStore(
            self.url,
            namespace=self.namespace,
            shard_count=self.shard_count,
            lock_ttl=self.lock_ttl,
            connect_timeout=self.connect_timeout,
            command_timeout=self.command_timeout,
        )


class TrappedStore(ValkeyStore):
    """The store, with a place before and after each call that changes what a run is."""

    async def claim(self, workflow: str, *, worker: str, limit: int, lease_ms: int) -> ClaimBatch:
        batch = await super().claim(workflow, worker=worker, limit=limit, lease_ms=lease_ms)
        if batch.claims:
            fault_programs.reach("claim.after")
        return batch

    async def append(self, claim: Claim, seq: int, entries: Sequence[bytes], *, consumed: Sequence[bytes] = ()) -> None:
        fault_programs.reach("append.before")
        began = time.monotonic_ns()
        await super().append(claim, seq, entries, consumed=consumed)
        fault_programs.acknowledged(claim.workflow, claim.run_id, seq, entries, began)
        fault_programs.reach("append.after")

    async def park(
        self, claim: Claim, seq: int, entries: Sequence[bytes], parking: Parking, *, consumed: Sequence[bytes] = ()
    ) -> bool:
        fault_programs.reach("park.before")
        stays = await super().park(claim, seq, entries, parking, consumed=consumed)
        fault_programs.reach("park.after")
        return stays

    async def finish(
        self, claim: Claim, seq: int, entries: Sequence[bytes], ending: Ending, *, consumed: Sequence[bytes] = ()
    ) -> None:
        fault_programs.reach("finish.before")
        await super().finish(claim, seq, entries, ending, consumed=consumed)
        fault_programs.reach("finish.after")

    async def schedules_fired(self, workflow: str, moves: Sequence[ScheduleMove]) -> list[bool]:
        fault_programs.reach("fired.before")
        moved = await super().schedules_fired(workflow, moves)
        fault_programs.reach("fired.after")
        return moved

    async def events_done(self, trigger: str, positions: Sequence[str], refusals: Sequence[bytes] = ()) -> None:
        fault_programs.reach("events.before")
        await super().events_done(trigger, positions, refusals)

    async def batch_done(self, trigger: str, numbers: Sequence[int], refusals: Sequence[bytes] = ()) -> None:
        fault_programs.reach("batch.before")
        await super().batch_done(trigger, numbers, refusals)


class _Traps:
    """Counts what is reached, and springs."""

    def __init__(self, traps: Sequence[Trap]) -> None:
        self._traps = traps
        self._reached: Counter[str] = Counter()

    def reached(self, place: str) -> None:
        self._reached[place] += 1
        for trap in self._traps:
            if (trap.place, trap.nth) == (place, self._reached[place]):
                self._spring(trap)

    def _spring(self, trap: Trap) -> None:
        if trap.how == "jump":
            now, now_ns, amount = time.time, time.time_ns, trap.amount
            time.time = lambda: now() + amount
            time.time_ns = lambda: now_ns() + int(amount * 1e9)
            return
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[trap.how])


def work_here(plan: Plan, told: Connection, test: Connection) -> None:
    """Be the worker process: until it is told to stop (SIGTERM), or its test is gone."""
    threading.Thread(target=_end_with, args=(test,), daemon=True).start()
    logging.basicConfig(filename=plan.log, level=logging.INFO, format="%(relativeCreated)d %(name)s %(message)s")
    fault_programs.setup(plan.folder, _Traps(plan.traps).reached)
    anyio.run(_work, plan, told, backend=plan.backend)


def _end_with(test: Connection) -> None:
    test.poll(None)
    os._exit(3)


async def _work(plan: Plan, told: Connection) -> None:
    store = plan.store()
    worker = WorkflowWorker(store, plan.workflows, WorkerOptions(**{**OPTIONS, **plan.options}))
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    async with anyio.create_task_group() as group:
        await group.start(worker.run)
        told.send("ready")
    await store.aclose()


class WorkerProcess:
    """A worker process as its test sees it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._told, theirs = _fork.Pipe(duplex=False)
        alive, self._alive = _fork.Pipe(duplex=False)
        self._process = _fork.Process(target=work_here, args=(plan, theirs, alive), daemon=True, name=plan.name)
        self._process.start()
        theirs.close()
        alive.close()

    async def ready(self) -> Self:
        """Wait until it serves. Raises `RuntimeError` with its log when it does not."""
        if not await anyio.to_thread.run_sync(self._heard):
            raise RuntimeError(f"{self.plan.name} was not ready in {_PATIENCE} s; its log:\n{self.log}")
        return self

    def _heard(self) -> bool:
        try:
            return self._told.poll(_PATIENCE) and self._told.recv() == "ready"
        except EOFError:
            return False

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it is there; a stopped one is."""
        return self._process.is_alive()

    @property
    def stopped(self) -> bool:
        """Whether a signal has stopped it (Linux)."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].startswith("T")

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self.plan.log.read_text(encoding="utf-8") if self.plan.log.exists() else ""

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    async def ended(self, within: float = _PATIENCE) -> int:
        """Wait for its end: the exit code, or the negative number of the signal that ended it."""
        await anyio.to_thread.run_sync(partial(self._process.join, within))
        code = self._process.exitcode
        if code is None:
            raise RuntimeError(f"{self.plan.name} goes on after {within} s; its log:\n{self.log}")
        return code

    def close(self) -> None:
        """Kill it, if it is there, and let go."""
        self._process.kill()
        self._process.join(_PATIENCE)
        self._process.close()
        self._told.close()
        self._alive.close()
