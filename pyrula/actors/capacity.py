"""Places for runs, shared by claim loops in turn, so that a busy workflow cannot keep the others out."""

from __future__ import annotations

from collections import deque

import anyio

__all__ = ["Capacity"]


class Capacity:
    """A number of places. Whoever asks first is served first, each with what is free, up to what it wants."""

    def __init__(self, places: int) -> None:
        self.total = places
        self.free = places
        self._waiting: deque[anyio.Event] = deque()

    async def take(self, wanted: int) -> int:
        """Wait for at least one place; gives how many were taken."""
        taken = 0
        if self.free <= 0 or self._waiting:
            turn = anyio.Event()
            self._waiting.append(turn)
            try:
                await turn.wait()
            except BaseException:
                if turn.is_set():
                    self.give_back(1)
                else:
                    self._waiting.remove(turn)
                raise
            taken = 1  # handed over: nobody could take it in between
        more = 0 if self._waiting else min(wanted - taken, self.free)
        self.free -= more
        return taken + more

    def give_back(self, places: int) -> None:
        """Free places; whoever waits gets one each, in turn."""
        self.free += places
        while self.free > 0 and self._waiting:
            self.free -= 1
            self._waiting.popleft().set()
