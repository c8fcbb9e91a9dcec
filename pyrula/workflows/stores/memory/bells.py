"""Who listens to a memory store: workers for bells, callers for the end of a run, readers of a journal.

Everything is bounded, works in whichever event loop the listener runs in, and is forgotten when
its context is left. No run is touched here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from pyrula.contracts.store import Bell, BellKind, TailChunk

__all__ = ["Exchange", "Follower", "Mailbox"]

_K = TypeVar("_K", bound=Hashable)
_L = TypeVar("_L")

_CAPACITY: Final = 1024
# Seconds between the empty chunks of a tail on which nothing happens. Nothing marks the end of an
# output, so its readers look more often whether the run has ended.
_JOURNAL_BEAT: Final = 1.0
_OUTPUT_BEAT: Final = 0.25


class _Waiter:
    """Lets tasks of one event loop sleep until something is new."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    async def wait(self) -> None:
        """Sleep until `wake`."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()

    def wake(self) -> None:
        """Let all sleepers go on."""
        event, self._event = self._event, None
        if event is not None:
            event.set()


class Mailbox:
    """A listener: bells in order. When more came than it holds, one LOOK stands for all of them."""

    __slots__ = ("_bells", "_waiter")

    def __init__(self) -> None:
        self._bells: deque[Bell] = deque()
        self._waiter = _Waiter()

    def put(self, bell: Bell) -> None:
        """Take a bell in."""
        if len(self._bells) >= _CAPACITY:
            self._bells.clear()
            bell = Bell(BellKind.LOOK, bell.workflow)
        self._bells.append(bell)
        self._waiter.wake()

    async def next(self) -> Bell:
        """The next bell; waits for it."""
        await checkpoint()
        while not self._bells:
            await self._waiter.wait()
        return self._bells.popleft()


class Follower:
    """Reads on behind a position, for as long as someone asks. `read` gives what is there after a position."""

    __slots__ = ("_after", "_beat", "_read", "_waiter")

    def __init__(self, read: Callable[[int], TailChunk], after: int, beat: float) -> None:
        self._beat = beat
        self._read = read
        self._after = after
        self._waiter = _Waiter()

    def wake(self) -> None:
        """Something was written."""
        self._waiter.wake()

    def __aiter__(self) -> Follower:
        return self

    async def __anext__(self) -> TailChunk:
        await checkpoint()
        chunk = self._read(self._after)
        if not chunk:
            with anyio.move_on_after(self._beat):
                await self._waiter.wait()
            chunk = self._read(self._after)
        if chunk:
            self._after = chunk[-1][0]
        return chunk


class Exchange:
    """Routes what happens in a store to those who are listening."""

    __slots__ = ("_ends", "_followers", "_workers")

    def __init__(self) -> None:
        self._workers: dict[str, list[Mailbox]] = {}
        self._ends: dict[tuple[str, str], list[Mailbox]] = {}
        self._followers: dict[tuple[str, str, bool], list[Follower]] = {}

    def ring(self, bell: Bell) -> None:
        """Tell the workers of a workflow."""
        for mailbox in self._workers.get(bell.workflow, ()):
            mailbox.put(bell)

    def end(self, bell: Bell) -> None:
        """Tell those who wait for the end of a run."""
        for mailbox in self._ends.get((bell.workflow, bell.run_id), ()):
            mailbox.put(bell)

    def written(self, workflow: str, run_id: str, *, output: bool = False) -> None:
        """Tell those who follow a run's journal or output."""
        for follower in self._followers.get((workflow, run_id, output), ()):
            follower.wake()

    @contextmanager
    def workers(self, workflows: Sequence[str]) -> Iterator[Mailbox]:
        """A mailbox for the bells of some workflows."""
        with _registered(self._workers, tuple(dict.fromkeys(workflows)), Mailbox()) as mailbox:
            yield mailbox

    @contextmanager
    def ends(self, workflow: str, run_id: str) -> Iterator[Mailbox]:
        """A mailbox for the end of one run."""
        with _registered(self._ends, ((workflow, run_id),), Mailbox()) as mailbox:
            yield mailbox

    @contextmanager
    def followers(
        self, workflow: str, run_id: str, read: Callable[[int], TailChunk], after: int, *, output: bool
    ) -> Iterator[Follower]:
        """A follower of one run's journal or output, reading from behind `after`."""
        follower = Follower(read, after, _OUTPUT_BEAT if output else _JOURNAL_BEAT)
        with _registered(self._followers, ((workflow, run_id, output),), follower):
            yield follower


@contextmanager
def _registered(table: dict[_K, list[_L]], keys: Sequence[_K], listener: _L) -> Iterator[_L]:
    for key in keys:
        table.setdefault(key, []).append(listener)
    try:
        yield listener
    finally:
        for key in keys:
            table[key].remove(listener)
            if not table[key]:
                del table[key]
