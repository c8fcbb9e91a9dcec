"""Whatever write a worker dies at, the run goes on from its journal and ends as it would have without.

Generated bodies, both loops. `PYRULA_EXAMPLES` sets how many bodies are tried for each loop; with more
than the default, every write of each run is a place to die at.
"""

from __future__ import annotations

import os
import random
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st

from pyrula.contracts.events import Event
from pyrula.contracts.runs import Run, RunStatus
from pyrula.testing.audit import audit
from tests.unit.engine.crashing import CrashAt, Crashed, all_crashes
from tests.unit.engine.harness import MOST_ATTEMPTS, Bench, shape
from tests.unit.engine.programs import (
    FOR_EVER,
    Gather,
    Program,
    Step,
    Tasks,
    Threads,
    Turns,
    Wait,
    World,
    body_of_program,
    programs,
)

EXAMPLES = int(os.environ.get("PYRULA_EXAMPLES", "60"))
PLACES = int(os.environ.get("PYRULA_PLACES", "8"))
RUN = "r1"


class Life:
    """One run of a program, with workers that die where they are told to."""

    def __init__(self, program: Program) -> None:
        self.world = World(about_to_run=self.about_to_run)
        self.bench = Bench(body_of_program(program, self.world))
        self.program = program
        self.worker = CrashAt(self.bench.memory)
        self.answers = 0

    def about_to_run(self, place: str) -> None:
        """A step is being run: its worker must be alive, and its outcome must not be known."""
        if self.worker.dead:
            raise Crashed
        mark = f"<{place}>".encode()
        for raw in self.bench.memory._run(self.bench.name, RUN).journal:  # type: ignore[union-attr]
            if mark in raw and b'"step.retrying"' not in raw:
                raise AssertionError(f"the step at {place} runs again: {raw!r}")

    async def live(self, *crashes: tuple[int, bool]) -> Run:
        """Go through the run's life; the n-th worker dies at write crashes[n][0]."""
        bench = self.bench
        await bench.submit(run_id=RUN)
        for name in self.program.buffered:
            await bench.client.signal(bench.name, RUN, name, f"payload of {name}")
        deaths = list(crashes)
        self._hire(deaths)
        for _ in range(MOST_ATTEMPTS):
            run = await bench.client.get(bench.name, RUN)
            if run.status.ended:
                return run
            if run.status is RunStatus.QUEUED:
                try:
                    await bench.once(RUN)
                except BaseException as error:
                    if not self.worker.dead or not all_crashes(error):
                        raise
                if self.worker.dead:
                    await bench.lose()
                    self._hire(deaths)
            else:
                await self._pass(run)
        raise AssertionError(f"no end after {MOST_ATTEMPTS} attempts: {shape(await bench.events(RUN))}")

    def _hire(self, deaths: list[tuple[int, bool]]) -> None:
        at, after = deaths.pop(0) if deaths else (None, False)
        self.worker = CrashAt(self.bench.memory, at, after=after)
        self.bench.store = self.worker

    async def _pass(self, run: Run) -> None:
        """The run is parked: somebody does what it waits for, or time passes."""
        bench = self.bench
        waits_for = run.waiting_on or ""
        if run.wake_at is not None:
            await bench.wake(RUN)
        elif waits_for.startswith("signal:"):
            name = waits_for.removeprefix("signal:")
            await bench.client.signal(bench.name, RUN, name, f"payload of {name}")
        else:
            self.answers += 1
            await bench.client.resume(bench.name, RUN, f"answer {self.answers}")

    def _output(self) -> list[str]:
        """The output in order; of legs, which may come in any order, what there is."""
        chunks = [raw.decode() for _, raw in self.bench.memory._read(self.bench.name, RUN, 0, output=True)]
        return (
            sorted(chunks) if any(isinstance(node, (Gather, Tasks, Threads)) for node in self.program.nodes) else chunks
        )

    async def left(self) -> dict[str, Any]:
        """What is there afterwards, without what chance and the clock decide."""
        bench = self.bench
        events = await bench.events(RUN)
        return {
            "steps": _steps(self.program, events),
            "calls": _calls(self.program, events),
            "values": await bench.client.committed(bench.name, RUN),
            "output": self._output(),
        }


def _chance(program: Program) -> tuple[str, ...]:
    """Key prefixes of gathers that fail: what their legs got done before is chance."""
    number, found = 0, []
    for node in program.nodes:
        if isinstance(node, Gather):
            number += 1
            if node.errors == "caught":
                found.append(f"g{number}.")
    return tuple(found)


def _steps(program: Program, events: list[Event]) -> dict[str, Any]:
    chance = _chance(program)
    return {
        e.key: (e.type, e.data.get("result") or e.data["error"]["message"])
        for e in events
        if e.type in ("step.completed", "step.failed") and not e.key.startswith(chance or ("\n",))
    }


def _calls(program: Program, events: list[Event]) -> list[tuple[str, str]]:
    """Types and keys; in order where the program has no legs."""
    chance = _chance(program)
    calls = [(t, k) for t, k in shape(events) if t != "step.retrying" and not k.startswith(chance or ("\n",))]
    has_legs = any(isinstance(node, (Gather, Tasks, Threads)) for node in program.nodes)
    return sorted(calls) if has_legs else calls


def _seen(run: Run, events: list[Event]) -> list[Any]:
    """What the body saw, with each value of chance replaced by its place in the journal."""
    if run.result is None:
        return [run.error and (run.error["code"], run.error["message"])]
    recorded: dict[str, str] = {}
    for e in events:
        if e.type == "value.recorded":
            value = e.data["value"]
            recorded[repr(value)] = e.key
    found = []
    for place, value in run.result:
        is_time = isinstance(value, str) and value.startswith("20") and "T" in value
        found.append([place, "a time" if is_time else recorded.get(repr(value), value)])
    return found


async def _check(program: Program, places: random.Random) -> None:
    plain = Life(program)
    run = await plain.live()
    expected = await plain.left()
    seen = _seen(run, await plain.bench.events(RUN))
    assert run.status in (RunStatus.COMPLETED, RunStatus.FAILED)
    assert (run.error or {}).get("code") in (None, "step_failed"), run.error
    assert await audit(plain.bench.memory) == []
    crashes = [(at, after) for at in range(plain.worker.writes) for after in (False, True)]
    if len(crashes) > PLACES:
        crashes = sorted(places.sample(crashes, PLACES))
    for first in crashes:
        second = (places.randrange(4), places.random() < 0.5)
        for deaths in ((first,), (first, second)):
            life = Life(program)
            again = await life.live(*deaths)
            note(f"deaths {deaths}: {shape(await life.bench.events(RUN))}")
            assert again.status is run.status, again.error
            assert _seen(again, await life.bench.events(RUN)) == seen
            assert await life.left() == expected
            assert await audit(life.bench.memory) == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(program=programs(), seed=st.integers(0, 2**32))
@example(
    program=Program(
        (Gather(((Step("a", fails=FOR_EVER, caught=False),), (Step("b"), Step("b"))), None, "caught"), Wait(5.0))
    ),
    seed=1,
)
@example(
    program=Program(
        (Gather(((Step("a", fails=FOR_EVER, caught=False),), (Turns(1), Step("a"), Step("a"))), None, "caught"),)
    ),
    seed=0,
)
def test_a_run_ends_the_same_wherever_its_workers_die(backend: str, program: Program, seed: int) -> None:
    anyio.run(_check, program, random.Random(seed), backend=backend)
