"""A run that is asked to cancel after any of its writes ends as cancelled, cleans up once, and survives crashes.

Generated bodies, both loops. `PYRULA_EXAMPLES` sets how many bodies are tried for each loop.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, example, given, note, settings
from hypothesis import strategies as st

from pyrula.actors.attempt import Attempt
from pyrula.actors.running import run_attempt
from pyrula.contracts.errors import WrongRunState
from pyrula.contracts.runs import Run, RunStatus
from pyrula.testing.audit import audit
from pyrula.workflows.context import Context
from tests.unit.engine.crashing import CrashAt, all_crashes
from tests.unit.engine.harness import MOST_ATTEMPTS, Bench, shape
from tests.unit.engine.programs import Gather, Program, Step, World, body_of_program, programs

EXAMPLES = int(os.environ.get("PYRULA_EXAMPLES", "30"))
PLACES = int(os.environ.get("PYRULA_PLACES", "6"))
RUN = "r1"


class Cancelled(CrashAt):
    """A worker that hears of a cancel request right after write number `cancel_at` of its life."""

    def __init__(self, life: Life, cancel_at: int | None, at: int | None, after: bool) -> None:
        super().__init__(life.bench.memory, at, after=after)
        self.life = life
        self.cancel_at = cancel_at

    async def written(self, number: int) -> None:
        if number == self.cancel_at:
            await self.life.cancel()


class Life:
    """One run of a program with a clean-up around it."""

    def __init__(self, program: Program) -> None:
        self.world = World(about_to_run=self.about_to_run)
        self.program = program
        self.cleaned: Counter[int] = Counter()
        self.cut_off = False  # the last attempt's body met the request in its program
        self.sent = False
        self.attempt: Attempt | None = None
        inner = body_of_program(program, self.world)

        async def body(ctx: Context) -> Any:
            self.cut_off = False
            try:
                return await inner(ctx)
            except anyio.get_cancelled_exc_class():
                self.cut_off = True
                raise
            finally:
                for n in range(2):
                    await ctx.step("clean", self.clean, n)
                await ctx.now()

        self.bench = Bench(body)
        self.worker = CrashAt(self.bench.memory)

    def clean(self, n: int) -> str:
        self.about_to_run(f"clean {n}")
        self.cleaned[n] += 1
        return f"<clean {n}>"

    def about_to_run(self, place: str) -> None:
        """A step is being run: its outcome must not be known."""
        mark = f"<{place}>".encode()
        for raw in self.bench.memory._run(self.bench.name, RUN).journal:  # type: ignore[union-attr]
            if not self.worker.dead and mark in raw and b'"step.retrying"' not in raw:
                raise AssertionError(f"the step at {place} runs again: {raw!r}")

    async def cancel(self) -> None:
        """The request, and the news of it."""
        self.sent = True
        with contextlib.suppress(WrongRunState):  # it was the run's last write
            await self.bench.client.cancel(self.bench.name, RUN, "enough")
        assert self.attempt is not None
        self.attempt.receive(await self.bench.memory.inbox(self.attempt.claim))

    async def live(self, cancel_at: int | None, crash: tuple[int, bool] | None) -> Run:
        bench = self.bench
        await bench.submit(run_id=RUN)
        for name in self.program.buffered:
            await bench.client.signal(bench.name, RUN, name, "early")
        at, after = crash or (None, False)
        self.worker = Cancelled(self, cancel_at, at, after)
        for _ in range(MOST_ATTEMPTS):
            await anyio.lowlevel.checkpoint()
            run = await bench.client.get(bench.name, RUN)
            if run.status.ended:
                return run
            if run.status is RunStatus.QUEUED:
                await self._try()
            elif run.wake_at is not None:
                await bench.wake(RUN)
            elif (run.waiting_on or "").startswith("signal:"):
                await bench.client.signal(bench.name, RUN, str(run.waiting_on).removeprefix("signal:"), "late")
            else:
                await bench.client.resume(bench.name, RUN, "answer")
        raise AssertionError(f"no end: {shape(await bench.events(RUN))}")

    async def _try(self) -> None:
        self.bench.store = self.worker
        self.attempt = self.bench.attempt(await self.bench.claim(RUN))
        try:
            await run_attempt(self.attempt)
        except BaseException as error:
            if not self.worker.dead or not all_crashes(error):
                raise
        if self.worker.dead:
            await self.bench.lose()
            self.worker = CrashAt(self.bench.memory)


async def _check(program: Program, places: random.Random) -> None:
    plain = Life(program)
    await plain.live(None, None)
    writes = plain.worker.writes
    moments = list(range(writes))
    for cancel_at in sorted(places.sample(moments, min(PLACES, len(moments)))):
        for crash in (None, (cancel_at + 1 + places.randrange(4), places.random() < 0.5)):
            life = Life(program)
            run = await life.live(cancel_at, crash)
            events = await life.bench.events(RUN)
            note(f"cancel after write {cancel_at}, crash {crash}: {shape(events)}")
            asked = [e.seq for e in events if e.type == "run.cancel_requested"]
            if asked:
                assert run.status is RunStatus.CANCELLED, run.error
                assert run.error is not None
                assert run.error["reason"] == "enough"
            else:  # it came with the run's last write, or after it
                assert run.status in (RunStatus.COMPLETED, RunStatus.FAILED)
                assert not life.sent or cancel_at >= writes - 2  # a write that was refused sends nothing
            if asked:
                # A branch beside the one that met the request may have started a call in the same turn.
                late = [e.key for e in events if e.seq > asked[0] and e.type.startswith("step.")]
                late = [key for key in late if "clean" not in key and not key[0].isdigit() and key[:1] != "g"]
                assert late == [], "the program went on after the request"
            clean = [e for e in events if e.type == "step.completed" and e.key in ("clean", "clean#2")]
            if life.cut_off or not asked:  # else it met it in its clean-up, which then is what it cut off
                assert len(clean) == 2, shape(events)
            assert all(times <= (2 if crash else 1) for times in life.cleaned.values())
            assert await audit(life.bench.memory) == []


# A leg fails, and what is cancelled for that meets the request in the same moment.
FAILS_WHILE_CANCELLED = Program(
    nodes=(
        Gather(
            legs=((Step("a", caught=False, turns=2), Step("a")), (Step("a", fails=10**6, caught=False),)),
            errors="caught",
        ),
        Step("a"),
    )
)


# The same on a replay: the leg that meets the recorded request is cut off by the other one's recorded failure.
FAILS_WHILE_CANCELLED_AGAIN = Program(
    nodes=(
        Gather(
            legs=((Step("a"), Step("a", fails=1, turns=1)), (Step("a", fails=10**6, caught=False),)),
            errors="caught",
        ),
        Step("a"),
    )
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(program=programs(), seed=st.integers(0, 2**32))
@example(program=FAILS_WHILE_CANCELLED, seed=0)
@example(program=FAILS_WHILE_CANCELLED_AGAIN, seed=3)
def test_a_cancel_after_any_write_ends_the_run(backend: str, program: Program, seed: int) -> None:
    anyio.run(_check, program, random.Random(seed), backend=backend)
