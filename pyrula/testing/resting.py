"""What a parked run waits for in time. Reads a store; moves nothing."""

from __future__ import annotations

from typing import Final

from pyrula.contracts.events import EventType, parse
from pyrula.contracts.store import RunRecord, Store

__all__ = ["awaited_time"]

_FOR_CHILD: Final = "child"
_CHILD_ENDS: Final = frozenset({EventType.CHILD_COMPLETED, EventType.CHILD_FAILED, EventType.CHILD_TIMED_OUT})


async def awaited_time(store: Store, run: RunRecord) -> int | None:
    """When a run that rests goes on by itself (microseconds); None for one that waits for somebody.

    A parent that waits for a child is woken now and then only to look, which is left out: it is told when
    the child ends. What counts is the timeout that it has given.
    """
    if run.topic != _FOR_CHILD:
        return run.wake_at or None
    deadlines: dict[str, int] = {}
    after = 0
    while chunk := await store.read_journal(run.workflow, run.run_id, after=after):
        after = chunk[-1][0]
        for entry in (parse(seq, raw) for seq, raw in chunk):
            if entry.type == EventType.CHILD_STARTED and entry.data["deadline"] is not None:
                deadlines[entry.key] = entry.data["deadline"]
            elif entry.type in _CHILD_ENDS:
                deadlines.pop(entry.key, None)
    return min(deadlines.values(), default=None)
