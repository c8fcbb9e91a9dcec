"""Runs by submission time, for listings: newest first, in slices that stay exact while runs come and go."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyrula.contracts.errors import InvalidInput
from pyrula.contracts.runs import RunStatus
from pyrula.workflows.stores.memory.run import StoredRun

__all__ = ["Criteria", "TimeIndex"]

_Place = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """Which runs are meant; None for whatever does not matter. Times in microseconds, both exclusive."""

    workflows: frozenset[str]
    status: RunStatus | None = None
    owner: str | None = None
    attributes: dict[str, object] | None = None
    submitted_after: int | None = None
    submitted_before: int | None = None

    def fits(self, run: StoredRun) -> bool:
        """True for a run that is meant. Its submission time is the index's business."""
        return (
            run.workflow in self.workflows
            and (self.status is None or run.status is self.status)
            and (self.owner is None or run.owner == self.owner)
            and (not self.attributes or _has(run.decoded_attributes(), self.attributes))
        )


def _has(attributes: dict[str, object], wanted: dict[str, object]) -> bool:
    return all(key in attributes and _same(attributes[key], value) for key, value in wanted.items())


def _same(a: object, b: object) -> bool:
    """Equality as JSON has it, which tells true from 1."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return isinstance(a, bool) is isinstance(b, bool) and a == b


class TimeIndex:
    """All runs of a store in the order of their submission; runs of one microsecond in the order they came."""

    __slots__ = ("_places", "_runs")

    def __init__(self) -> None:
        self._places: list[_Place] = []
        self._runs: dict[_Place, StoredRun] = {}

    def add(self, run: StoredRun) -> None:
        """Take a run in."""
        place = (run.submitted_at, run.serial)
        self._runs[place] = run
        insort(self._places, place)

    def remove(self, runs: Sequence[StoredRun]) -> None:
        """Forget runs."""
        for run in runs:
            place = (run.submitted_at, run.serial)
            del self._runs[place]
            del self._places[bisect_left(self._places, place)]

    def matching(self, criteria: Criteria, below: _Place | None = None) -> Iterator[StoredRun]:
        """Runs that fit, newest first, behind the place `below`."""
        end = len(self._places) if below is None else bisect_left(self._places, below)
        if criteria.submitted_before is not None:
            end = min(end, bisect_left(self._places, (criteria.submitted_before, 0)))
        start = 0
        if criteria.submitted_after is not None:
            start = bisect_left(self._places, (criteria.submitted_after + 1, 0))
        for number in range(end - 1, start - 1, -1):
            run = self._runs[self._places[number]]
            if criteria.fits(run):
                yield run

    def slice(self, criteria: Criteria, limit: int, cursor: str | None) -> tuple[list[StoredRun], str | None]:
        """Up to `limit` runs that fit, and where the next slice begins; None when nothing more fits."""
        found: list[StoredRun] = []
        for run in self.matching(criteria, None if cursor is None else _place(cursor)):
            if len(found) == limit:
                last = found[-1]
                return found, f"{last.submitted_at}.{last.serial}"
            found.append(run)
        return found, None


def _place(cursor: str) -> _Place:
    submitted_at, _, serial = cursor.partition(".")
    if not (submitted_at.isdecimal() and serial.isdecimal()):
        raise InvalidInput(f"cursor {cursor!r} does not come from a listing of this store", "cursor")
    return int(submitted_at), int(serial)
