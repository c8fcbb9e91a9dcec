"""What one process knows of a store's shards without asking: which may hold work, when timers are due.

Pure bookkeeping. Claims, bells and polls feed it; a wrong guess costs a call, never a run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

__all__ = ["DueTimes", "HotShards", "ServerClock"]

_TRUSTED_FOR: Final = 30.0


class HotShards:
    """The shards of one workflow that may hold runnable runs, in the order they will be asked next."""

    __slots__ = ("_order", "_present")

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._present: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._present)

    def add(self, shard: int) -> None:
        """Remember that a shard may hold work."""
        if shard not in self._present:
            self._present.add(shard)
            self._order.append(shard)

    def add_all(self, shards: Iterable[int]) -> None:
        """Remember several."""
        for shard in shards:
            self.add(shard)

    def take(self, limit: int) -> list[int]:
        """Up to `limit` shards to ask now, each forgotten until it is added again."""
        taken = [self._order.popleft() for _ in range(min(limit, len(self._order)))]
        self._present.difference_update(taken)
        return taken


class DueTimes:
    """The earliest timer of each shard of one workflow (microseconds), as far as it is known.

    Bells overtake answers: what was told after a question was asked stands beside its answer. A
    question is known by the `mark` taken before it.
    """

    __slots__ = ("_due", "_events", "_forgot", "_read_at", "_told", "listeners")

    def __init__(self) -> None:
        self._due: dict[int, int] = {}
        self._told: dict[int, tuple[int, int]] = {}  # shard -> the event's number, what it told last
        self._events = 0
        self._forgot = 0
        self._read_at: float | None = None
        self.listeners = 0

    def mark(self) -> int:
        """Where the news stand now; to be taken before the server is asked."""
        return self._events

    def fresh(self, monotonic: float) -> bool:
        """True while what is known can be trusted: read lately, and bells heard since."""
        return self.listeners > 0 and self._read_at is not None and monotonic - self._read_at < _TRUSTED_FOR

    def forget(self) -> None:
        """Bells were lost: read again before the next answer."""
        self._events += 1
        self._forgot = self._events
        self._read_at = None

    def replace(self, due: dict[int, int], monotonic: float, since: int) -> None:
        """What a full read has found that began at `since`."""
        self._due = due
        for shard, (event, told) in self._told.items():
            if event > since:
                self._take(shard, told)
        self._read_at = monotonic if self._forgot <= since else None

    def nearer(self, shard: int, due: int) -> None:
        """A bell told of a timer."""
        self._events += 1
        self._told[shard] = (self._events, due)
        self._take(shard, due)

    def set(self, shard: int, due: int | None, since: int) -> None:
        """What a shard itself has answered to a question asked at `since`."""
        event, told = self._told.get(shard, (0, 0))
        if due is None:
            self._due.pop(shard, None)
        else:
            self._due[shard] = due
        if event > since:
            self._take(shard, told)

    def _take(self, shard: int, due: int) -> None:
        known = self._due.get(shard)
        if known is None or due < known:
            self._due[shard] = due

    def earliest(self) -> int | None:
        """The nearest due time of all shards."""
        return min(self._due.values(), default=None)

    def due(self, now: int) -> list[int]:
        """The shards with a timer that is due."""
        return [shard for shard, due in self._due.items() if due <= now]


class ServerClock:
    """The server's time, carried on between its answers by the monotonic clock."""

    __slots__ = ("_offset",)

    def __init__(self) -> None:
        self._offset: float | None = None

    def update(self, server_micros: int, monotonic: float) -> None:
        """Take in the server's time, just received."""
        self._offset = server_micros - monotonic * 1e6

    def estimate(self, monotonic: float) -> int | None:
        """The server's time now (microseconds); None before the first answer."""
        return None if self._offset is None else int(monotonic * 1e6 + self._offset)
