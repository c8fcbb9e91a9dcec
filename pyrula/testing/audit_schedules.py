"""What must hold of the schedules that a Valkey store keeps in a shard; a part of `audit_valkey`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

__all__ = ["ScheduleKeys"]

_FIELDS: Final = frozenset({"doc", "rev", "crt", "next", "due", "last"})


class ScheduleKeys:
    """The keys of a shard's schedules, by what they are for."""

    def __init__(self) -> None:
        self._kept: dict[str, set[str]] = {}
        self._times: set[str] = set()
        self._fired: set[str] = set()

    def put(self, name: str, value: Sequence[Any]) -> bool:
        """Take in one key; False when it is none of a schedule's."""
        kind, _, rest = name.partition(":")
        if kind == "schedule":
            self._kept[rest] = {bytes(each).decode() for each in value[::2]}
        elif name == "schedules":
            self._times = {bytes(each).decode() for each in value[::2]}
        elif kind == "fired":
            self._fired.add(rest)
        else:
            return False
        return True

    def problems(self, shard: int) -> Iterator[str]:
        """Everything that is wrong, one sentence each."""
        if shard and (self._kept or self._times or self._fired):
            yield "holds schedules, which belong into the first shard"
        for schedule_id, fields in self._kept.items():
            if missing := sorted(_FIELDS - fields):
                yield f"schedule {schedule_id}: it has no {', '.join(missing)}"
            if schedule_id not in self._times:
                yield f"schedule {schedule_id}: nothing will look at it"
        for schedule_id in sorted(self._times - set(self._kept)):
            yield f"schedule {schedule_id}: it is looked at, and does not exist"
        for schedule_id in sorted(self._fired - set(self._kept)):
            yield f"schedule {schedule_id}: it has outcomes, and does not exist"
