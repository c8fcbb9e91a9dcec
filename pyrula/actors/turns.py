"""Whose turn it is in a replay: tasks of a body beside each other come as far as they were, before others go on.

Waits for calls to be made, always for a bounded time; it makes none, and writes nothing. A body
whose calls follow each other never waits here.
"""

from __future__ import annotations

from typing import Final

import anyio

from pyrula.actors.core.journal import Journal, Record, never_asked, out_of_order
from pyrula.contracts.errors import ReplayRefused

__all__ = ["Turns"]

# A body may end before tasks that it started: so long (seconds) its end waits for them to ask for their records.
_LAST_CALLS: Final = 0.25


class Turns:
    """The order in which the calls of an attempt meet its journal. `patience`: seconds that one waits for others."""

    __slots__ = ("_ahead", "_journal", "_next", "_patience", "_patient")

    def __init__(self, journal: Journal, patience: float) -> None:
        self._journal = journal
        self._patience = patience
        self._patient = True
        self._next: anyio.Event | None = None
        self._ahead: list[tuple[str, str, str]] = []  # live calls before which recorded ones come: path, key, kind

    def called(self) -> None:
        """A call was made: who waits for others looks again."""
        if self._next is not None:
            self._next.set()
            self._next = None

    async def _next_call(self) -> None:
        if self._next is None:
            self._next = anyio.Event()
        await self._next.wait()

    @property
    def ahead(self) -> bool:
        """True while live calls are held back because recorded ones come before them."""
        return bool(self._ahead)

    def check(self, path: str, key: str, kind: str) -> None:
        """Hold a live call back where it comes before its turn.

        What was recorded while nothing else was open in its scope comes before whatever is open now.
        """
        if self._journal.replaying and self._journal.passed_over(path) is not None:
            self._ahead.append((path, key, kind))

    async def caught_up(self) -> ReplayRefused | None:
        """Wait until what comes before the live calls was asked for; gives the refusal when nobody does.

        Tasks of a body's own may come in another order than when they were recorded: the one that
        is behind needs a moment. Where there is none, the code has left the recorded path.
        """
        with anyio.move_on_after(self._patience):
            while self._ahead:
                if self._journal.passed_over(self._ahead[0][0]) is None:
                    self._ahead.pop(0)
                else:
                    await self._next_call()
            return None
        path, key, kind = self._ahead[0]
        passed = self._journal.passed_over(path)
        return None if passed is None else out_of_order(passed, key, kind)

    async def up_to(self, seq: int) -> None:
        """Before a recorded outcome is met anew: let other tasks come as far as they were when it was recorded.

        Which of two tasks is first may decide what a body does next, and a failure may cut the
        others off.
        """
        if self._patient and not self._journal.asked_up_to(seq):
            with anyio.move_on_after(self._patience) as scope:
                while not self._journal.asked_up_to(seq):
                    await self._next_call()
            if scope.cancelled_caught:  # what nobody asked for by now is gone from the code, or was cut off
                self._patient = False

    async def up_to_cancel(self) -> ReplayRefused | None:
        """Wait until tasks have taken what was recorded before a cancel request; the refusal when they do not."""
        with anyio.move_on_after(self._patience):
            while not self._journal.cancel_due:
                await self._next_call()
            return None
        left = self._journal.unused()
        return None if left is None else never_asked(left)

    async def all_asked(self) -> Record | None:
        """At the body's end: let tasks that it left running ask for their records; the first that nobody asked for."""
        if self._journal.unused() is not None:
            with anyio.move_on_after(min(_LAST_CALLS, self._patience)):
                while self._journal.unused() is not None:
                    await self._next_call()
        return self._journal.unused()
