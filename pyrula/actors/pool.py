"""Tasks that run one attempt after the other: starting a task costs as much as running a short attempt.

Attempts do not meet in them: a body runs in a copy of the context of its own, and a task whose
body was abandoned is not used again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

from pyrula.actors.attempt import Attempt

__all__ = ["RunnerPool"]


class _Seat:
    """Where an idle task waits for its next attempt."""

    __slots__ = ("attempt", "called")

    def __init__(self) -> None:
        self.attempt: Attempt | None = None
        self.called = anyio.Event()


class RunnerPool:
    """Starts attempts, each handled by `handle`, which must not raise. No more tasks than were ever needed at once."""

    def __init__(self, handle: Callable[[Attempt], Awaitable[None]]) -> None:
        self._handle = handle
        self._idle: list[_Seat] = []

    def start(self, group: TaskGroup, attempt: Attempt) -> None:
        """Have an attempt run, by an idle task or by a new one of the group."""
        if self._idle:
            seat = self._idle.pop()
            seat.attempt = attempt
            seat.called.set()
        else:
            group.start_soon(self._run, group, attempt)

    async def _run(self, group: TaskGroup, attempt: Attempt | None) -> None:
        while attempt is not None:
            await self._handle(attempt)
            if attempt.guard.abandoned:
                return
            attempt = None  # an idle task must not keep a journal alive
            seat = _Seat()
            self._idle.append(seat)
            try:
                await seat.called.wait()
            except BaseException:
                if seat.attempt is None:
                    self._idle.remove(seat)
                else:
                    group.start_soon(self._run, group, seat.attempt)
                raise
            attempt = seat.attempt
