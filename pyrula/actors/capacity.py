"""Places for runs, shared by claim loops in turn, so that a busy workflow cannot keep the others out."""

from __future__ import annotations

from collections import deque

import anyio

__all__ = ["Capacity", "Place"]


class Capacity:
    """A number of places. Whoever asks first is served first, each with what is free, up to what it wants."""

    def __init__(self, places: int) -> None:
        self.total = places
        self.free = places
        self.lent = 0
        """Places of runs that only wait; no more of them than `most_lent`, as each is held in memory."""
        self.most_lent = max(100, 10 * places)
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
        more = 0 if self._waiting else max(0, min(wanted - taken, self.free))
        self.free -= more
        return taken + more

    def give_back(self, places: int) -> None:
        """Free places; whoever waits gets one each, in turn."""
        self.free += places
        while self.free > 0 and self._waiting:
            self.free -= 1
            self._waiting.popleft().set()


class Place:
    """One place that was taken. Whoever has it may lend it while it only waits, and takes it back at once.

    Then more may be taken than there are, until one is given back.
    """

    __slots__ = ("_capacity", "_lent")

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._lent = False

    def lend(self) -> bool:
        """Let others have it; False when too many are lent already."""
        if not self._lent:
            if self._capacity.lent >= self._capacity.most_lent:
                return False
            self._lent = True
            self._capacity.lent += 1
            self._capacity.give_back(1)
        return True

    def take_back(self) -> None:
        """Have it again."""
        if self._lent:
            self._lent = False
            self._capacity.lent -= 1
            self._capacity.free -= 1

    def give_up(self) -> None:
        """It is not needed any more."""
        if self._lent:
            self._lent = False
            self._capacity.lent -= 1
        else:
            self._capacity.give_back(1)
