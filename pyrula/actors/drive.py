"""Driving a body's coroutine from outside: who runs right now, and how to let go of one that will not end.

The driver stands between the event loop and the body. It hands everything through in both
directions, notes on a board which run holds the loop (so that a blocked loop can be named),
and can abandon a body that swallows every cancellation.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from types import coroutine
from typing import Any, Final

__all__ = ["Abandoned", "Board", "Guard", "drive"]


_THROWN: Final = 1000


class Abandoned(BaseException):
    """The body would not end and was let go; raised by the driver in its place."""


class Board:
    """Who holds the event loop at this moment; read by other threads."""

    __slots__ = ("run", "since")

    def __init__(self) -> None:
        self.run: str | None = None
        self.since = 0.0


class Guard:
    """The switch of one driven body."""

    __slots__ = ("abandoned", "board", "ending", "run", "thrown")

    def __init__(self, board: Board, run: str) -> None:
        self.board = board
        self.run = run
        self.abandoned = False
        self.ending = False  # the attempt is over or stopped: the body is expected to end
        self.thrown = 0


@coroutine
def drive(body: Coroutine[Any, Any, Any], guard: Guard) -> Generator[Any, Any, Any]:
    """Run a coroutine to its end, as `await` would.

    When `guard.abandoned` is set, the next time the body waits instead of ending it is left
    where it is and `Abandoned` is raised. Its pending `finally` blocks do not run then.
    What the body does to context variables stays in a context of its own.
    """
    board, run = guard.board, guard.run
    within = copy_context().run
    value: Any = None
    error: BaseException | None = None
    while True:
        board.since = time.monotonic()
        board.run = run
        try:
            waits_for = within(body.send, value) if error is None else within(body.throw, error)
        except StopIteration as stop:
            return stop.value
        finally:
            board.run = None
        if guard.abandoned:
            raise Abandoned
        try:
            value = yield waits_for
            error = None
        except GeneratorExit:
            within(body.close)
            raise
        except BaseException as thrown:  # noqa: BLE001 - all of it belongs to the body, cancellation too
            error = thrown
            if guard.ending:  # a body that goes on after so many cancellations will not end by itself
                guard.thrown += 1
                guard.abandoned = guard.abandoned or guard.thrown > _THROWN
