"""A set whose members each have a score, taken lowest first. Knows nothing of runs."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

__all__ = ["Ranking"]

S = TypeVar("S", int, tuple[int, int])

_SLACK = 64


class Ranking(Generic[S]):
    """Members by score; equal scores go by name.

    A heap beside a dict: what was removed or scored anew stays in the heap until it comes up,
    or until such leftovers outnumber the members.
    """

    __slots__ = ("_heap", "_scores")

    def __init__(self) -> None:
        self._scores: dict[str, S] = {}
        self._heap: list[tuple[S, str]] = []

    def __len__(self) -> int:
        return len(self._scores)

    def __contains__(self, member: str) -> bool:
        return member in self._scores

    def score(self, member: str) -> S:
        """A member's score; KeyError when it is none."""
        return self._scores[member]

    def put(self, member: str, score: S) -> None:
        """Add a member, or move it to another score."""
        self._scores[member] = score
        heappush(self._heap, (score, member))
        if len(self._heap) > 2 * len(self._scores) + _SLACK:
            self._heap = [(score, member) for member, score in self._scores.items()]
            heapify(self._heap)

    def discard(self, member: str) -> None:
        """Remove a member if it is one."""
        self._scores.pop(member, None)

    def first(self) -> str | None:
        """The member with the lowest score; None when there is none."""
        while self._heap:
            score, member = self._heap[0]
            if self._scores.get(member) == score:
                return member
            heappop(self._heap)
        return None

    def pop(self) -> str | None:
        """Remove and give the member with the lowest score."""
        member = self.first()
        if member is not None:
            del self._scores[member]
        return member

    def pop_up_to(self, score: S, limit: int) -> list[str]:
        """Remove and give the members whose score is at most `score`, lowest first, at most `limit` of them."""
        taken: list[str] = []
        while len(taken) < limit:
            member = self.first()
            if member is None or self._scores[member] > score:
                break
            del self._scores[member]
            taken.append(member)
        return taken
