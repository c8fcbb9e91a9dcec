"""The workflows of the fault tests and of the soak, and the record of what they did outside of any journal.

Each step's function appends one line to a file before anything else, so that executions are counted
by something that survives every crash and that no store keeps. Results follow from the input alone.
Nothing here injects a fault: places where one may strike call `reach`, which a worker process arms.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio

from pyrula.contracts.errors import ChildTimedOut
from pyrula.workflows import Batch, Context, On, Retry, workflow
from pyrula.workflows.triggers import AppEvent

__all__ = ["NAMES", "Acknowledged", "Execution", "acknowledged", "acknowledgements", "executions", "reach", "setup"]

_folder: Path | None = None
_reached: Callable[[str], object] = len


@dataclass(frozen=True, slots=True)
class Execution:
    """One call of a step's function. `at` is in nanoseconds of the clock that all processes share."""

    run: str
    step: str
    attempt: int
    process: int
    at: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A journal entry that a store has taken, as its worker knows: between `began` and `at`, as in `Execution`.

    The answer may have been long on its way, so the server may have given it at any time in between.
    """

    workflow: str
    run: str
    seq: int
    raw: str
    began: int
    at: int

    def within(self, spans: Iterable[tuple[int, int]]) -> bool:
        """Whether it may have been taken in one of these spans of time."""
        return any(self.began <= end and start <= self.at for start, end in spans)


def setup(folder: Path, reached: Callable[[str], object]) -> None:
    """Where executions are recorded in this process, and who is told which place was reached."""
    global _folder, _reached
    _folder, _reached = folder, reached


def reach(place: str) -> None:
    """This place of a program, or of a store's call, was reached."""
    _reached(place)


def executions(folder: Path) -> list[Execution]:
    """Everything recorded so far, in the order of recording."""
    return [Execution(**json.loads(line)) for line in _lines(folder / "executions")]


def acknowledgements(folder: Path) -> list[Acknowledged]:
    """Every append that was acknowledged to a worker, in the order of recording."""
    return [Acknowledged(**json.loads(line)) for line in _lines(folder / "acknowledged")]


def acknowledged(workflow: str, run: str, before: int, entries: Sequence[bytes], began: int) -> None:
    """A store has taken these entries after `before`; it was asked to at `began`."""
    at = time.monotonic_ns()
    for seq, raw in enumerate(entries, before + 1):
        _write("acknowledged", Acknowledged(workflow, run, seq, raw.decode(), began, at))


def _note(ctx: tuple[str, int], step: str) -> None:
    _write("executions", Execution(ctx[0], step, ctx[1], os.getpid(), time.monotonic_ns()))


def _count(name: str) -> int:
    """Count one more in a file of that name: how often that was done, over all processes."""
    assert _folder is not None, "a process counted something before it was set up"
    file = os.open(_folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, b".")
        return os.fstat(file).st_size
    finally:
        os.close(file)


def _lines(path: Path) -> list[str]:
    """The whole lines; a reader may see the last one while it is being written."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return text.split("\n")[:-1]


def _write(name: str, what: Execution | Acknowledged) -> None:
    """One line, in one write, so that lines of several processes do not mix and a crash cuts none."""
    assert _folder is not None, "a process recorded something before it was set up"
    file = os.open(_folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, (json.dumps(asdict(what)) + "\n").encode())
    finally:
        os.close(file)


def _me(ctx: Context) -> tuple[str, int]:
    return ctx.run_id, ctx.attempt


async def work(me: tuple[str, int], step: str, value: int, pause: float = 0.0) -> int:
    """A step in the loop's own thread."""
    _note(me, step)
    reach("step.inside")
    if pause:
        await anyio.sleep(pause)
    reach("step.done")
    return value


def plain_work(me: tuple[str, int], step: str, value: int, pause: float = 0.0) -> int:
    """A step in a worker thread."""
    _note(me, step)
    if pause:
        time.sleep(pause)
    return value


async def shaky_work(me: tuple[str, int], step: str, value: int, good_from: int) -> int:
    """Fails until it has been executed `good_from` times, over all processes."""
    _note(me, step)
    if _count(f"tries-{me[0]}-{step}") < good_from:
        raise ValueError(f"{step} is not good yet")
    return value


@workflow("chain")
async def chain(ctx: Context, steps: int, pause: float = 0.0) -> int:
    """Steps one after the other; the sum of their numbers."""
    total = 0
    for n in range(steps):
        reach("body.between")
        total += await ctx.step(f"s{n}", work, _me(ctx), f"s{n}", n, pause)
    return total


@workflow("fan")
async def fan(ctx: Context, width: int, pause: float = 0.0) -> list[int]:
    """Steps side by side, half of them in threads, then one that needs them all."""
    legs = [ctx.step(f"leg{n}", plain_work if n % 2 else work, _me(ctx), f"leg{n}", n, pause) for n in range(width)]
    values: list[int] = await ctx.gather(*legs)
    return [*values, await ctx.step("sum", work, _me(ctx), "sum", sum(values))]


@workflow("nap")
async def nap(ctx: Context, seconds: float, times: int = 1) -> int:
    """Sleeps between steps."""
    total = 0
    for n in range(times):
        total += await ctx.step(f"s{n}", work, _me(ctx), f"s{n}", n)
        await ctx.sleep(seconds)
    return total + await ctx.step("end", work, _me(ctx), "end", 1)


@workflow("letters")
async def letters(ctx: Context, count: int) -> list[Any]:
    """Takes so many signals, with a step after each."""
    taken = []
    for n in range(count):
        taken.append(await ctx.wait_for_signal("letter"))
        await ctx.step(f"s{n}", work, _me(ctx), f"s{n}", n)
    return taken


@workflow("question")
async def question(ctx: Context) -> str:
    """Asks one question."""
    await ctx.step("before", work, _me(ctx), "before", 0)
    answer = await ctx.interrupt({"may": "I"}, key="may-i")
    await ctx.step("after", work, _me(ctx), "after", 0)
    return f"answered {answer}"


@workflow("clean")
async def clean(ctx: Context, seconds: float) -> str:
    """Sleeps, and cleans up in a step whatever happens."""
    try:
        await ctx.step("before", work, _me(ctx), "before", 0)
        await ctx.sleep(seconds)
    finally:
        await ctx.step("clean", work, _me(ctx), "clean", 0)
    return "slept"


@workflow("shaky")
async def shaky(ctx: Context, good_from: int) -> int:
    """A step that fails at first, with a policy that tries at once and twice."""
    await ctx.step("before", work, _me(ctx), "before", 0)
    return await ctx.step(
        "shaky", shaky_work, _me(ctx), "shaky", good_from, good_from, retry=Retry(max_attempts=2, initial=0.02)
    )


@workflow("block")
async def block(ctx: Context, seconds: float, steps: int = 1) -> int:
    """Holds the whole loop with a call that does not give way."""
    total = 0
    for n in range(steps):
        total += await ctx.step(f"s{n}", work, _me(ctx), f"s{n}", n + 1)
        if n == 0 and ctx.attempt == 1:
            reach("body.blocking")
            time.sleep(seconds)  # noqa: ASYNC251 - the mistake under test
    return total + await ctx.step("end", work, _me(ctx), "end", 1)


@workflow("family")
async def family(ctx: Context, width: int, pause: float = 0.0) -> int:
    """Children one after the other and side by side, and one that is open when it ends."""
    total = await ctx.run_child("chain", {"steps": 2, "pause": pause})
    total += sum(await ctx.gather(*(ctx.run_child("chain", {"steps": n}) for n in range(width))))
    total += await ctx.step("s0", work, _me(ctx), "s0", 0, pause)
    with contextlib.suppress(ChildTimedOut):
        await ctx.run_child("letters", {"count": 1}, timeout=0.0)
    return total


@workflow("told", triggers=[On("thing.*")])
async def told(ctx: Context, event: AppEvent) -> int:
    """One step for an event."""
    return await ctx.step("s0", work, _me(ctx), "s0", event.payload, 0.0)


@workflow("bundle", triggers=[Batch(on="thing.*", max_size=7, max_wait=0.5)])
async def bundle(ctx: Context, events: list[AppEvent]) -> list[int]:
    """The numbers of many events."""
    return [event.payload for event in events]


NAMES = ("chain", "fan", "nap", "letters", "question", "clean", "shaky", "block")
