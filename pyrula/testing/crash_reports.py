"""Killing the worker of a user's workflow at each of its writes, and looking whether that can be told afterwards."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from pyrula.contracts.errors import ConfigurationError, PyrulaError
from pyrula.contracts.events import parse, to_micros
from pyrula.contracts.options import WorkerOptions
from pyrula.contracts.runs import PARKED, Run, RunStatus
from pyrula.testing.crashing import CrashAt, all_crashes
from pyrula.testing.resting import awaited_time
from pyrula.workflows.client import WorkflowClient
from pyrula.workflows.inline import InlineWorkflowRunner
from pyrula.workflows.registry import Workflow, registry
from pyrula.workflows.stores.memory import MemoryStore

__all__ = ["Crash", "CrashReport", "crash_everywhere"]

_START: Final = 1_767_225_600.0  # the first second of 2026
_RUN: Final = "crashed"
_LEASE_SECONDS: Final = 31.0
_LONGEST: Final = 30.0
_MOST_ATTEMPTS: Final = 1000
_MANY: Final = 1000
_LOOKS: Final = 3
# A replay that is refused waits so long (seconds) for tasks beside each other before.
_OPTIONS: Final = WorkerOptions(cancel_timeout=0.3, child_stay=0)


@dataclass(frozen=True, slots=True)
class Crash:
    """A place where a worker was killed.

    loop: the kind of event loop. write: which of the worker's writes, from 1. after: False when the write
        was lost with the worker, True when it was made and the worker did not learn of it. what: the
        events that were written there.
    """

    loop: str
    write: int
    after: bool
    what: str

    def __str__(self) -> str:
        return f"{self.loop}, killed {'after' if self.after else 'before'} write {self.write} ({self.what})"


@dataclass(frozen=True, slots=True)
class CrashReport:
    """What came of it: `crashes` made, and `problems`, each a place and what was wrong there.

    ends: how the run ends when nobody is killed. result_compared: False when two runs without a crash
        had different results already, so that results tell nothing.
    """

    workflow: str
    crashes: tuple[Crash, ...]
    ends: str
    result_compared: bool
    problems: tuple[tuple[Crash, str], ...] = ()

    @property
    def ok(self) -> bool:
        """True when the run came to the same end from every place."""
        return not self.problems

    def __str__(self) -> str:
        head = f"{self.workflow}: {len(self.crashes)} crashes, {len(self.problems)} problems; the run is {self.ends}"
        return "\n".join([head, *(f"  {crash}: {what}" for crash, what in self.problems)])


def crash_everywhere(
    workflow: Workflow,
    input: Mapping[str, Any] | None = None,
    *,
    signals: Mapping[str, Any] | None = None,
    answers: Mapping[str, Any] | None = None,
    before: Callable[[], object] | None = None,
    after: Callable[[Run], object] | None = None,
    loops: Sequence[str] = ("asyncio", "trio"),
) -> CrashReport:
    """Run a workflow again and again on a store of its own, its worker killed at another write each time.

    Each run is killed once, before or after one of its writes, goes on from its journal, and must come
    to the same end with the same result as one that nobody has killed: what the journal holds is not
    run again, and the replay is not refused. Its steps do run, and those of its child runs, so give it a
    workflow whose steps are harmless. Blocks, in a thread with an event loop of its own; may be called
    inside a running one.

    signals, answers: what to send when the run waits for a signal of that name, or asks under that
        key; a list gives one value after the other. Without, a wait with a timeout times out, and one
        without is where the run ends. Other waits are passed by moving the store's clock.
    before: called before each run, to put things outside back. after: called with each run that has
        ended; an `AssertionError` of it is a problem at that place.
    """
    if registry.get(workflow.name) is not workflow:
        raise ConfigurationError(f"workflow {workflow.name!r} is not registered; decorate its function with @workflow")
    scene = _Scene(workflow, dict(input or {}), signals or {}, answers or {}, before, after)
    reports = [_in_a_loop(loop, scene) for loop in loops]
    return CrashReport(
        workflow.name,
        tuple(crash for report in reports for crash in report.crashes),
        reports[0].ends if reports else "",
        all(report.result_compared for report in reports),
        tuple(problem for report in reports for problem in report.problems),
    )


@dataclass(frozen=True, slots=True)
class _Scene:
    """What is run, and what happens to it from outside."""

    workflow: Workflow
    input: dict[str, Any]
    signals: Mapping[str, Any]
    answers: Mapping[str, Any]
    before: Callable[[], object] | None
    after: Callable[[Run], object] | None


def _in_a_loop(loop: str, scene: _Scene) -> CrashReport:
    found: list[CrashReport] = []
    errors: list[BaseException] = []

    async def work() -> None:
        found.append(await _everywhere(loop, scene))

    def run() -> None:
        try:
            anyio.run(work, backend=loop)
        except BaseException as error:  # noqa: BLE001 - raised where the crashes were asked for
            errors.append(error)

    thread = threading.Thread(target=run, name="pyrula-crashes", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]


async def _everywhere(loop: str, scene: _Scene) -> CrashReport:
    first, second = _Life(scene), _Life(scene)
    expected, again = await first.live(), await second.live()
    compared = (expected.status, expected.result) == (again.status, again.result)
    crashes: list[Crash] = []
    problems: list[tuple[Crash, str]] = []
    for number in range(first.worker.writes):
        for after in (False, True):
            life = _Life(scene, number, after=after)
            try:
                run: Run | None = await life.live()
                problem = "" if run is None else _compared(run, expected, compared)
            except (AssertionError, TimeoutError, PyrulaError) as error:
                problem = f"{type(error).__name__}: {error}"
            if life.crashed is None:
                continue  # legs beside each other wrote together this time
            crash = Crash(loop, number + 1, after, life.crashed)
            crashes.append(crash)
            if problem:
                problems.append((crash, problem))
    ends = str(expected.status) + (f" (waits for {expected.waiting_on})" if expected.waiting_on else "")
    return CrashReport(scene.workflow.name, tuple(crashes), ends, compared, tuple(problems))


def _compared(run: Run, expected: Run, results: bool) -> str:
    """What is different about a run that was killed once."""
    if (run.status, run.waiting_on) != (expected.status, expected.waiting_on):
        error = "" if not run.error else f": {run.error.get('message') or run.error.get('code')}"
        return f"the run is {run.status}{error}; without a crash it is {expected.status}"
    if results and run.result != expected.result:
        return f"the result is {run.result!r}; without a crash it is {expected.result!r}"
    return ""


@dataclass(slots=True)
class _Life:
    """One run from its submission to its end, with a worker that is killed at one write, and its successors."""

    scene: _Scene
    at: int | None = None
    after: bool = False
    crashed: str | None = None
    now: float = _START
    looks: int = 0
    sent: dict[str, int] = field(default_factory=dict)
    memory: MemoryStore = field(init=False)
    worker: CrashAt = field(init=False)

    def __post_init__(self) -> None:
        self.memory = MemoryStore(clock=lambda: self.now)
        self.worker = CrashAt(self.memory, self.at, after=self.after)

    async def live(self) -> Run:
        """The run when it has ended, or waits for what nobody sends. Its child runs are worked on as well."""
        if self.scene.before is not None:
            self.scene.before()
        client, name = WorkflowClient(self.memory), self.scene.workflow.name
        await client.submit(self.scene.workflow, self.scene.input, run_id=_RUN)
        with anyio.fail_after(_LONGEST):
            for _ in range(_MOST_ATTEMPTS):
                run = await client.get(name, _RUN)
                if run.status.ended or not await self._advance(client):
                    break
            else:
                raise TimeoutError(f"the run has not ended after {_MOST_ATTEMPTS} attempts")
        if self.scene.after is not None:
            self.scene.after(run)
        return run

    async def _advance(self, client: WorkflowClient) -> bool:
        """Do one thing for one of the runs, or let time pass; False when they all wait for what nobody does."""
        runs = [run async for run in self._runs(client)]
        for run in runs:
            if run.status is RunStatus.QUEUED and run.wake_at is None:
                await self._work(run)
                return True
        for run in runs:
            if run.status in PARKED and await self._answered(client, run):
                return True
        return await self._pass([run for run in runs if run.wake_at is not None])

    async def _pass(self, runs: Sequence[Run]) -> bool:
        """Let time pass to what one of these runs waits for; False when there is nothing."""
        times = [await awaited_time(self.memory, await self.memory.load(run.name, run.run_id)) for run in runs]
        due = min((each for each in times if each is not None), default=None)
        if due is not None:
            self.looks = 0
        elif runs and self.looks < _LOOKS:  # a parent may not have been told, as its child's worker was killed
            self.looks += 1
            due = min(to_micros(run.wake_at) for run in runs if run.wake_at is not None)
        else:
            return False
        self.now = max(self.now, due / 1e6 + 0.001)
        for name in await self.memory.workflows():
            await self.memory.wake(name, limit=_MANY)
        return True

    async def _runs(self, client: WorkflowClient) -> AsyncIterator[Run]:
        cursor: str | None = None
        while True:
            page = await client.list(limit=_MANY, cursor=cursor)
            for run in page:
                yield run
            if (cursor := page.cursor) is None:
                return

    async def _work(self, run: Run) -> None:
        """Have the worker go on with a run; when it is killed, another one finds what it held."""
        try:
            await InlineWorkflowRunner(self.worker, _OPTIONS).run(run.name, run.run_id)
        except BaseException as error:
            if not self.worker.dead or not all_crashes(error):
                raise
        if self.worker.dead:
            self.crashed = _what(self.worker.died_with)
            self.worker = CrashAt(self.memory)
            self.now += _LEASE_SECONDS
            await self.memory.sweep(run.name, limit=_MANY, requeue_budget=10**6, keep_ms=10**12)

    async def _answered(self, client: WorkflowClient, run: Run) -> bool:
        """Send a parked run what it waits for; False when there is nothing to send."""
        kind, _, topic = (run.waiting_on or "").partition(":")
        given = {"signal": self.scene.signals, "interrupt": self.scene.answers}.get(kind, {})
        values = given.get(topic, [])
        values = values if isinstance(values, list) else [values]
        number = self.sent.get(f"{kind}:{topic}", 0)
        if number >= len(values):
            return False
        self.sent[f"{kind}:{topic}"] = number + 1
        if kind == "signal":
            await client.signal(run.name, run.run_id, topic, values[number])
        else:
            await client.resume(run.name, run.run_id, values[number], topic)
        return True


def _what(entries: Sequence[bytes]) -> str:
    """The events of a write in words."""
    told = []
    for raw in entries:
        entry = parse(0, raw)
        told.append(f"{entry.type} {entry.key!r}" if entry.key else entry.type)
    return ", ".join(told) or "no event"
