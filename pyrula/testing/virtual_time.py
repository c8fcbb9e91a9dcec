"""Time that a test moves: runs sleep for months, and the test takes milliseconds.

Only the store's clock is moved, which is the only clock of a run. What waits in the test's own process
(a step's `asyncio.sleep`, `client.result(timeout=...)`) waits for real.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Protocol, Self

import anyio

from pyrula.contracts.errors import ConfigurationError
from pyrula.contracts.events import from_micros
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.schedules import Schedules
from pyrula.contracts.store import RunRecord, Store, Timers
from pyrula.lua import library, movable_library
from pyrula.testing.resting import awaited_time
from pyrula.workflows.client import WorkflowClient
from pyrula.workflows.scheduling import Scheduler
from pyrula.workflows.stores.memory import MemoryStore
from pyrula.workflows.stores.valkey.shards import ServerClock
from pyrula.workflows.stores.valkey.store import ValkeyStore

__all__ = ["VirtualTime"]

_LOOK: Final = 0.001
_SLOWEST_LOOK: Final = 0.02
_WOKEN: Final = 1000
_PAGE: Final = 1000
_PAYLOAD: Final = 1_048_576  # bytes that a schedule's input may have


class _MovedClock(Protocol):
    async def enter(self) -> None: ...

    async def move(self, micros: int) -> None: ...

    async def leave(self) -> None: ...


class VirtualTime:
    """A store's time in a test's hands, from `async with VirtualTime(store) as time` on.

    Whenever all runs of the store have come to rest and some of them wait for a time, time passes by
    itself to the nearest of these. `by_itself=False`, or `async with time.stopped():`, leaves that to
    `advance`: a test that answers a question or sends a signal before its timeout wants time to stand
    still until then.

    store: the very object that the test's worker and clients use, a `MemoryStore` or a `ValkeyStore`;
        nobody else sees the moved time. On Valkey give the test a namespace of its own, since what it
        wrote keeps its times.
    patience: seconds of real time that `advance` waits for runs to come to rest.
    """

    def __init__(self, store: Store, *, by_itself: bool = True, patience: float = 10.0) -> None:
        self._store = store
        self._clock = _clock_of(store)
        self._patience = patience
        self._ahead = 0
        self._stops = 0 if by_itself else 1
        self._moving = anyio.Lock()

    async def __aenter__(self) -> Self:
        await self._clock.enter()
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._pass)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self._group.cancel_scope.cancel()
        try:
            if error is None or isinstance(error, anyio.get_cancelled_exc_class()):
                return await self._group.__aexit__(kind, error, traceback)
            await self._group.__aexit__(None, None, None)  # the test's own error comes out as it is
            return False
        finally:
            with anyio.CancelScope(shield=True):
                await self._clock.leave()

    # --- for the test -------------------------------------------------------------------

    async def now(self) -> datetime:
        """The store's time, aware UTC."""
        return from_micros(await self._store.now())

    async def advance(self, seconds: float) -> None:
        """Let time pass. Timers and schedules that are due meanwhile fire in their turn, and the runs come to rest.

        Raises `TimeoutError` when runs do not come to rest within the patience: one is being
        executed all the time, or is queued and no worker serves it.
        """
        if not 0 <= seconds < math.inf:
            raise ConfigurationError(f"advance({seconds!r}): time passes forwards, by a number of seconds")
        async with self._moving:
            due = await self._next()
            target = await self._store.now() + int(seconds * 1e6)
            while due is not None and due <= target:
                await self._move_to(due)
                due = await self._next()
            await self._move_to(target)
            await self._scheduled()
            await self._at_rest()

    async def settle(self) -> None:
        """Wait until all runs have come to rest: none is executed, and none is queued. Raises `TimeoutError`."""
        await self._at_rest()

    @asynccontextmanager
    async def stopped(self) -> AsyncIterator[None]:
        """Inside, time passes by `advance` alone."""
        self._stops += 1
        try:
            async with self._moving:  # what passes by itself right now has passed
                pass
            yield
        finally:
            self._stops -= 1

    # --- how it passes ------------------------------------------------------------------

    async def _pass(self) -> None:
        """Let time pass by itself."""
        pause = _LOOK
        while True:
            moved = False
            if not self._stops:
                async with self._moving:
                    moved = await self._pass_once()
            pause = _LOOK if moved else min(pause * 1.5, _SLOWEST_LOOK)
            await anyio.sleep(0 if moved else pause)

    async def _pass_once(self) -> bool:
        """Let time pass to what comes next, if all runs rest and one of them waits for a time; True when it has."""
        runs = await self._stable()
        if runs is None or self._stops or (due := await self._nearest(runs)) is None:
            return False
        scheduled = await self._scheduled()  # no run waits for it, but it may come first
        if await self._stable() != runs:
            return False
        await self._move_to(due if scheduled is None else min(due, scheduled))
        return True

    async def _next(self) -> int | None:
        """Wait for rest; gives the time at which the next run wakes or the next schedule fires."""
        times = [await self._scheduled(), await self._at_rest()]  # in this order: what it fires must come to rest
        return min((each for each in times if each is not None), default=None)

    async def _scheduled(self) -> int | None:
        """Fire the schedules that are due, as a worker does; gives when the next one is."""
        store = self._store
        if not isinstance(store, Schedules):
            return None
        names = sorted({schedule.workflow for schedule in await store.aschedule_list()})
        unheard: Any = None  # its bell is for those who wait
        scheduler = Scheduler(store, WorkflowClient(self._store), names, unheard, limit=_PAYLOAD)
        times = [await scheduler.fire_due(name) for name in names]
        return min((each for each in times if each is not None), default=None)

    async def _at_rest(self) -> int | None:
        """Wait for rest; gives the time of the nearest timer."""
        pause, runs = _LOOK, None
        with anyio.move_on_after(self._patience):
            while (runs := await self._stable()) is None:
                await anyio.sleep(pause)
                pause = min(pause * 1.5, _SLOWEST_LOOK)
        if runs is None:
            busy = next((run for run in await self._runs() if _busy(run)), None)
            told = "" if busy is None else f": run {busy.run_id!r} of {busy.workflow!r} is {busy.status}"
            raise TimeoutError(f"runs did not come to rest within {self._patience:g} s{told}; is its worker running?")
        return await self._nearest(runs)

    async def _nearest(self, runs: list[RunRecord]) -> int | None:
        times = [await awaited_time(self._store, run) for run in runs if run.wake_at]
        return min((each for each in times if each is not None), default=None)

    async def _stable(self) -> list[RunRecord] | None:
        """All runs, when none of them is busy. Seen twice the same: one listing is not one moment over all shards."""
        runs = await self._runs()
        if any(map(_busy, runs)):
            return None
        return runs if await self._runs() == runs else None

    async def _runs(self) -> list[RunRecord]:
        names = await self._store.workflows()
        found: list[RunRecord] = []
        cursor: str | None = None
        while names:
            page = await self._store.listing(names, limit=_PAGE, cursor=cursor)
            found.extend(page.runs)
            if (cursor := page.cursor) is None:
                break
        return found

    async def _move_to(self, micros: int) -> None:
        """Be at that time, or a moment behind it, and wake whoever is due."""
        ahead = micros - await self._store.now()
        if ahead > 0:
            self._ahead += ahead
            await self._clock.move(self._ahead)
        assert isinstance(self._store, Timers)
        for name in await self._store.workflows():
            while await self._store.wake(name, limit=_WOKEN) >= _WOKEN:
                pass


def _busy(run: RunRecord) -> bool:
    return run.status is RunStatus.RUNNING or (run.status is RunStatus.QUEUED and not run.wake_at)


def _clock_of(store: Any) -> _MovedClock:
    if isinstance(store, MemoryStore):
        return _MemoryClock(store)
    if isinstance(store, ValkeyStore):
        return _ServerClock(store)
    raise ConfigurationError(
        f"VirtualTime knows the clocks of MemoryStore and ValkeyStore, and not that of {type(store).__name__}"
    )


class _MemoryClock:
    """A memory store asks a clock that it is given; here it is given another one."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._before: Callable[[], float] | None = None
        self._ahead = 0.0

    async def enter(self) -> None:
        self._before = self._store.clock
        real = self._before or time.time
        self._store.clock = lambda: real() + self._ahead

    async def move(self, micros: int) -> None:
        self._ahead = micros / 1e6

    async def leave(self) -> None:
        self._store.clock = self._before


class _ServerClock:
    """A Valkey store calls another function library meanwhile, the same but for its clock.

    The store has no door for that, on purpose; hence the private names.
    """

    def __init__(self, store: ValkeyStore) -> None:
        self._store = store
        self._library = movable_library(uuid.uuid4().hex)

    async def enter(self) -> None:
        server = self._store._server  # noqa: SLF001 - see above
        await server.command("FUNCTION", "LOAD", "REPLACE", self._library.source)
        await self.move(0)
        server.use(self._library)

    async def move(self, micros: int) -> None:
        server = self._store._server  # noqa: SLF001 - see above
        now = await server.command("FCALL", self._library.function("move"), 1, server.keys.workflows, micros)
        self._store._clock.update(int(now), time.monotonic())  # noqa: SLF001 - see above

    async def leave(self) -> None:
        server = self._store._server  # noqa: SLF001 - see above
        server.use(library())
        self._store._clock = ServerClock()  # noqa: SLF001 - see above
        await server.command("FUNCTION", "DELETE", self._library.name)
