"""Small generated workflow bodies: a tree of calls, how it runs as a body, and what it is allowed to leave behind.

A program is data, so that Hypothesis can shrink it. Every node knows its place in the tree; what a body
saw is returned by it as pairs of place and value. `World` is what the steps do outside of the journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint
from hypothesis import strategies as st

from pyrula.contracts.errors import SignalTimeout, StepFailed
from pyrula.contracts.options import Retry
from pyrula.workflows.context import Context

__all__ = [
    "Gather",
    "Loop",
    "Node",
    "Program",
    "Signal",
    "Step",
    "Tasks",
    "Threads",
    "Turns",
    "Value",
    "Wait",
    "World",
    "programs",
]

FOR_EVER: Final = 10**6
MOST_TRIES: Final = 3
LONG_DELAY: Final = 10.0  # seconds, beyond what is waited out in place


@dataclass(frozen=True)
class Step:
    """A step; `fails` tries fail first. An error that is not caught ends what surrounds it."""

    name: str
    kind: str = "async"
    fails: int = 0
    durable: bool = False
    caught: bool = True
    turns: int = 0


@dataclass(frozen=True)
class Value:
    """A recorded value, or something published: now, uuid, random, checkpoint, read, commit, stream."""

    kind: str


@dataclass(frozen=True)
class Turns:
    """Turns of the loop in which the body awaits something that the engine knows nothing of."""

    number: int


@dataclass(frozen=True)
class Wait:
    """A sleep in seconds."""

    seconds: float


@dataclass(frozen=True)
class Signal:
    """A wait for a signal that is there already, comes later, or never (then it times out); or a question."""

    kind: str


@dataclass(frozen=True)
class Loop:
    """The same calls several times."""

    times: int
    body: tuple[Node, ...]


@dataclass(frozen=True)
class Gather:
    """Legs. With `errors` "kept" they are results, "caught" the gather's error is caught around it."""

    legs: tuple[tuple[Node, ...], ...]
    limit: int | None = None
    errors: str = "none"


@dataclass(frozen=True)
class Tasks:
    """Branches as tasks of one task group, without scopes of their own: the names of their steps differ."""

    branches: tuple[tuple[Step | Turns, ...], ...]


@dataclass(frozen=True)
class Threads:
    """One thread for each branch, which makes its steps in the run's loop; one alone is no map."""

    branches: tuple[tuple[Step, ...], ...]
    limit: int | None = None


Node = Step | Value | Turns | Wait | Signal | Loop | Gather | Tasks | Threads


@dataclass(frozen=True)
class Program:
    """A body."""

    nodes: tuple[Node, ...]

    @property
    def buffered(self) -> list[str]:
        """Signals to be sent before the run starts, in the order in which they are waited for."""
        return [f"s:{place}" for place, node in _walk(self.nodes, "") if node == Signal("buffered")]


@dataclass
class World:
    """What happened outside: tries of steps by place, and a word with the test about each one."""

    tries: Counter[str] = field(default_factory=Counter)
    about_to_run: Callable[[str], None] = lambda place: None

    def run(self, node: Step, place: str) -> str:
        """A step's own work; fails as often as the node says."""
        self.about_to_run(place)
        self.tries[place] += 1
        if self.tries[place] <= node.fails:
            raise ValueError(f"<{place}> fails")
        return f"<{place}>"


def _walk(nodes: tuple[Node, ...], place: str) -> list[tuple[str, Node]]:
    found: list[tuple[str, Node]] = []
    for index, node in enumerate(nodes):
        here = f"{place}{index}"
        if isinstance(node, Loop):
            for turn in range(node.times):
                found += _walk(node.body, f"{here}.{turn}.")
        elif isinstance(node, Gather):
            for number, leg in enumerate(node.legs):
                found += _walk(leg, f"{here}.{number}.")
        elif isinstance(node, (Tasks, Threads)):
            pass  # nothing in it waits for a signal
        else:
            found.append((here, node))
    return found


def body_of_program(program: Program, world: World) -> Callable[..., Any]:
    """The program as a workflow's body."""

    async def body(ctx: Context) -> list[list[Any]]:
        seen: list[list[Any]] = []
        await _run(ctx, program.nodes, "", seen, world)
        return seen

    return body


async def _run(ctx: Context, nodes: tuple[Node, ...], place: str, seen: list[list[Any]], world: World) -> None:
    for index, node in enumerate(nodes):
        here = f"{place}{index}"
        if isinstance(node, Step):
            await _step(ctx, node, here, seen, world)
        elif isinstance(node, Value):
            seen.append([here, await _value(ctx, node.kind, here)])
        elif isinstance(node, Turns):
            for _ in range(node.number):
                await checkpoint()
        elif isinstance(node, Wait):
            await ctx.sleep(node.seconds)
        elif isinstance(node, Signal):
            seen.append([here, await _signal(ctx, node.kind, here)])
        elif isinstance(node, Loop):
            for turn in range(node.times):
                await _run(ctx, node.body, f"{here}.{turn}.", seen, world)
        elif isinstance(node, Tasks):
            await _tasks(ctx, node, here, seen, world)
        elif isinstance(node, Threads):
            await _threads(ctx, node, here, seen, world)
        else:
            await _gather(ctx, node, here, seen, world)


async def _step(ctx: Context, node: Step, here: str, seen: list[list[Any]], world: World) -> None:
    async def run() -> str:
        for _ in range(node.turns):
            await checkpoint()
        return world.run(node, here)

    def plain() -> str:
        return world.run(node, here)

    retry = Retry(max_attempts=MOST_TRIES, initial=LONG_DELAY if node.durable else 0.0, jitter=0.0)
    try:
        if node.kind == "async":
            value = await ctx.step(node.name, run, retry=retry)
        else:
            value = await ctx.step(node.name, plain, retry=retry, inline=node.kind == "inline")
    except StepFailed as error:
        if not node.caught:
            raise
        value = f"caught {error.message}"
    seen.append([here, value])


async def _value(ctx: Context, kind: str, here: str) -> Any:
    if kind == "now":
        return (await ctx.now()).isoformat()
    if kind == "uuid":
        return str(await ctx.uuid())
    if kind == "random":
        return await ctx.random()
    if kind == "checkpoint":
        return await ctx.checkpoint({"at": here})
    if kind == "read":
        return await ctx.checkpoint()
    if kind == "commit":
        return await ctx.commit(f"c:{here}", here)
    assert kind == "stream"
    return await ctx.stream(here)


async def _signal(ctx: Context, kind: str, here: str) -> Any:
    if kind == "question":
        return await ctx.interrupt({"ask": here})
    try:
        return await ctx.wait_for_signal(f"s:{here}", timeout=60.0 if kind == "never" else None)
    except SignalTimeout:
        return "timed out"


async def _gather(ctx: Context, node: Gather, here: str, seen: list[list[Any]], world: World) -> None:
    async def leg(number: int, nodes: tuple[Node, ...]) -> list[list[Any]]:
        own: list[list[Any]] = []
        await _run(ctx, nodes, f"{here}.{number}.", own, world)
        return own

    legs = [leg(number, nodes) for number, nodes in enumerate(node.legs)]
    try:
        results = await ctx.gather(*legs, max_concurrency=node.limit, return_exceptions=node.errors == "kept")
    except StepFailed:
        # Which leg failed first is chance; that one did is not.
        if node.errors != "caught":
            raise
        seen.append([here, "a leg failed"])
        return
    for result in results:
        if isinstance(result, BaseException):
            assert isinstance(result, StepFailed)
            seen.append([here, f"failed {result.message}"])
        else:
            seen.extend(result)


async def _tasks(ctx: Context, node: Tasks, here: str, seen: list[list[Any]], world: World) -> None:
    results: list[list[list[Any]]] = [[] for _ in node.branches]
    async with anyio.create_task_group() as group:
        for number, branch in enumerate(node.branches):
            named = tuple(
                replace(each, name=f"{number}{each.name}") if isinstance(each, Step) else each for each in branch
            )
            group.start_soon(_run, ctx, named, f"{here}.{number}.", results[number], world)
    for result in results:
        seen.extend(result)


async def _threads(ctx: Context, node: Threads, here: str, seen: list[list[Any]], world: World) -> None:
    def work(number: int) -> list[list[Any]]:
        own: list[list[Any]] = []
        for index, step in enumerate(node.branches[number]):
            ctx.from_thread(_step, ctx, step, f"{here}.{number}.{index}", own, world)
        return own

    if len(node.branches) == 1:
        seen.extend(await ctx.to_thread(work, 0))
        return
    for result in await ctx.map_threads(work, range(len(node.branches)), max_workers=node.limit):
        seen.extend(result)


# --- generated --------------------------------------------------------------------------------

_kinds = st.sampled_from(["async", "async", "inline", "thread"])
_calm = st.builds(
    Step,
    name=st.sampled_from(["a", "b", "c#2", "g1.0/a"]),
    kind=_kinds,
    fails=st.sampled_from([0, 0, 0, 1, FOR_EVER]),
    durable=st.booleans(),
    turns=st.integers(0, 3),
)
_wild = st.builds(
    Step,
    name=st.sampled_from(["a", "b"]),
    kind=_kinds,
    fails=st.sampled_from([0, 0, FOR_EVER]),
    caught=st.just(False),
    turns=st.integers(0, 3),
)
_values = st.builds(Value, st.sampled_from(["now", "uuid", "random", "checkpoint", "read", "commit", "stream"]))
_leg_values = st.builds(Value, st.sampled_from(["now", "uuid", "random", "commit", "stream"]))
_waits = st.one_of(
    st.builds(Wait, st.sampled_from([0.0, 5.0, 86_400.0])),
    st.builds(Signal, st.sampled_from(["buffered", "later", "never", "question"])),
)


def _legs(leaf: st.SearchStrategy[Node]) -> st.SearchStrategy[tuple[tuple[Node, ...], ...]]:
    return st.lists(st.lists(leaf, max_size=3).map(tuple), max_size=4).map(tuple)


_turns = st.builds(Turns, st.integers(1, 3))
_limits = st.sampled_from([None, 1, 2])
# In a thread every delay is waited out in place.
_short = _calm.map(lambda step: replace(step, durable=False))
_in_threads: st.SearchStrategy[Node] = st.builds(
    Threads, st.lists(st.lists(_short, max_size=3).map(tuple), min_size=1, max_size=3).map(tuple), _limits
)
_inner: st.SearchStrategy[Node] = st.one_of(
    _calm, _calm, _turns, _leg_values, _in_threads, st.builds(Gather, _legs(st.one_of(_calm, _leg_values)), _limits)
)
_gathers: st.SearchStrategy[Node] = st.one_of(
    st.builds(Gather, _legs(_inner), _limits),
    st.builds(Gather, _legs(st.one_of(_calm, _wild, _turns)), _limits, st.sampled_from(["kept", "caught"])),
)
_branch_step: st.SearchStrategy[Step | Turns] = st.one_of(_calm, _calm, _turns)
_groups: st.SearchStrategy[Node] = st.builds(
    Tasks, st.lists(st.lists(_branch_step, max_size=3).map(tuple), max_size=3).map(tuple)
)
_simple: st.SearchStrategy[Node] = st.one_of(_calm, _calm, _turns, _values, _waits)
_loops: st.SearchStrategy[Node] = st.builds(Loop, st.integers(0, 3), st.lists(_simple, max_size=3).map(tuple))
_nodes: st.SearchStrategy[Node] = st.one_of(_simple, _simple, _loops, _gathers, _groups, _in_threads)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Programs of a few calls; one in some ends with a failure."""
    nodes = draw(st.lists(_nodes, min_size=1, max_size=5))
    if draw(st.integers(0, 5)) == 0:
        nodes.append(draw(_wild))
    return Program(tuple(nodes))
