"""What starts runs by events: the events that an application emits, and the triggers that listen to them.

Records, the matching of names, and the protocol of a store that keeps events. Nothing here submits a run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import translate
from functools import lru_cache
from typing import Any, Final, Protocol, runtime_checkable

import orjson

from pyrula.contracts.errors import ConfigurationError, InvalidInput
from pyrula.contracts.events import from_micros
from pyrula.contracts.ids import check_id
from pyrula.contracts.store import Listener

__all__ = [
    "AppEvent",
    "Batch",
    "Events",
    "NewEvent",
    "On",
    "ReadyBatch",
    "StoredEvent",
    "Trigger",
    "TriggerState",
    "check_event_name",
    "run_id_for",
]

_LONGEST_WAIT: Final = 3e6  # seconds, about a month


@dataclass(frozen=True, slots=True)
class AppEvent:
    """An event that the application emitted, as a triggered body receives it."""

    name: str
    payload: Any
    id: str
    time: datetime


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event to be kept. `payload` is JSON. Two with one id are one event."""

    event_id: str
    name: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event that is lent to a trigger. `position` is its place in the log; `at` is in microseconds."""

    position: str
    event_id: str
    name: str
    payload: bytes
    at: int

    def as_json(self) -> dict[str, Any]:
        """The event as it goes into the input of a run."""
        return {
            "name": self.name,
            "payload": orjson.loads(self.payload),
            "id": self.event_id,
            "time": from_micros(self.at).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        }


@dataclass(frozen=True, slots=True)
class ReadyBatch:
    """A batch that has ended, lent to a trigger: its number, and its events as JSON, the oldest first."""

    number: int
    events: Sequence[bytes]


Condition = Mapping[str, Any] | Callable[[AppEvent], bool]


def _check_where(where: Condition | None) -> None:
    if where is not None and not isinstance(where, Mapping) and not callable(where):
        raise ConfigurationError(f"where={where!r}: a dict of payload fields, or a function of the event, is needed")


@dataclass(frozen=True, slots=True)
class On:
    """Start a run for each event whose name fits `pattern`. The body receives it as `event`.

    pattern: a name, with `*` for any text and `?` for any character.
    where: payload fields and the values they must have (dotted names reach into objects), or a
        function of the `AppEvent`; events for which it is not so start nothing.
    """

    pattern: str
    where: Condition | None = None

    def __post_init__(self) -> None:
        check_event_name(self.pattern, "pattern")
        _check_where(self.where)


@dataclass(frozen=True, slots=True)
class Batch:
    """Start one run for many events. The body receives them as `events`, the oldest first.

    on: the pattern (or an `On`) that names them.
    max_size: so many start a run at once. max_wait: seconds after which those that have come start one.
    key: a payload field (dotted names reach into objects); events are gathered apart for each value.
    """

    on: str | On
    max_size: int = 100
    max_wait: float = 10.0
    key: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.on, On):
            object.__setattr__(self, "on", On(self.on))
        if isinstance(self.max_size, bool) or not isinstance(self.max_size, int) or not 1 <= self.max_size <= 10_000:
            raise ConfigurationError(f"max_size={self.max_size!r}: a whole number from 1 to 10000 is needed")
        if not isinstance(self.max_wait, (int, float)) or not 0 < self.max_wait <= _LONGEST_WAIT:
            raise ConfigurationError(f"max_wait={self.max_wait!r}: a number of seconds greater than 0 is needed")
        if self.key is not None and (not isinstance(self.key, str) or not self.key):
            raise ConfigurationError(f"key={self.key!r}: the name of a payload field is needed")


@dataclass(frozen=True, slots=True)
class Trigger:
    """A workflow's trigger under its own name, which is the same in every process that has the workflow."""

    name: str
    workflow: str
    on: On
    batch: Batch | None = None

    @classmethod
    def all_of(cls, workflow: str, declared: Sequence[On | Batch]) -> tuple[Trigger, ...]:
        """The triggers of a workflow. Raises `ConfigurationError` for what is none."""
        found: dict[str, Trigger] = {}
        for each in declared:
            if not isinstance(each, (On, Batch)):
                raise ConfigurationError(
                    f"triggers of workflow {workflow!r}: {each!r} is neither On(...) nor Batch(...)"
                )
            on = each if isinstance(each, On) else each.on
            assert isinstance(on, On)
            kind = "on" if isinstance(each, On) else "batch"
            name = base = f"{workflow}/{kind}/{on.pattern}"
            number = 1
            while name in found:
                number += 1
                name = f"{base}/{number}"
            found[name] = cls(name, workflow, on, each if isinstance(each, Batch) else None)
        return tuple(found.values())

    def wants(self, event: StoredEvent) -> bool:
        """Whether the event is one of those it listens to. May raise what the author's own condition raises."""
        if not _matcher(self.on.pattern)(event.name):
            return False
        where = self.on.where
        if where is None:
            return True
        payload = orjson.loads(event.payload)
        if isinstance(where, Mapping):
            return all(_field(payload, name) == value for name, value in where.items())
        return bool(where(AppEvent(event.name, payload, event.event_id, from_micros(event.at))))

    def key_of(self, event: StoredEvent) -> str:
        """What a batch gathers the event under."""
        if self.batch is None or self.batch.key is None:
            return ""
        return orjson.dumps(_field(orjson.loads(event.payload), self.batch.key), option=orjson.OPT_SORT_KEYS).decode()


@dataclass(frozen=True, slots=True)
class TriggerState:
    """Where a trigger stands. lag: events it has not seen yet (None when the server cannot tell).

    lent: events that a worker has in hand. gathering, ready: its batches. refused: the last events it
    could not act on, newest first, each with `event`, `at` and `reason`.
    """

    name: str
    lag: int | None
    lent: int
    gathering: int = 0
    ready: int = 0
    refused: tuple[Mapping[str, Any], ...] = field(default_factory=tuple)


@runtime_checkable
class Events(Protocol):
    """A store that keeps application events and what triggers have seen of them."""

    async def emit(self, events: Sequence[NewEvent]) -> list[bool]:
        """Keep events for the store's `event_ttl`; False for one whose id is known."""
        ...

    async def events_read(self, trigger: str, *, limit: int, lease_ms: int) -> Sequence[StoredEvent]:
        """Lend events to one caller until `lease_ms` have passed; those first that another one did not get done.

        A trigger that the store does not know begins with what is emitted from now on.
        """
        ...

    async def events_done(self, trigger: str, positions: Sequence[str], refusals: Sequence[bytes] = ()) -> None:
        """These events need not be lent again. `refusals` (JSON) are kept for whoever looks."""
        ...

    async def batch_add(
        self, trigger: str, events: Sequence[tuple[str, str, bytes]], *, max_size: int, max_wait_ms: int
    ) -> int:
        """Put lent events (position, key, JSON) into batches, each once; gives how many went in."""
        ...

    async def batch_due(self, trigger: str, *, limit: int, lease_ms: int) -> tuple[Sequence[ReadyBatch], int | None]:
        """Lend batches that have ended; also the time (microseconds) at which to look again, None for never."""
        ...

    async def batch_done(self, trigger: str, numbers: Sequence[int], refusals: Sequence[bytes] = ()) -> None:
        """These batches need not be lent again."""
        ...

    async def trigger_list(self) -> list[TriggerState]:
        """All triggers that the store knows, by name."""
        ...

    async def trigger_seek(self, trigger: str, since: int | None) -> bool:
        """Have a trigger go over what is kept, from a time (microseconds, None for all). False when there is none."""
        ...

    async def trigger_drop(self, trigger: str) -> bool:
        """Forget a trigger, and the batches it gathered. False when there is none."""
        ...

    def event_bells(self) -> AbstractAsyncContextManager[Listener]:
        """A listener for news of events."""
        ...


def check_event_name(name: str, what: str = "event") -> str:
    """Refuse what is no name of an event."""
    try:
        return check_id(name, what)
    except InvalidInput as error:
        raise (ConfigurationError(str(error)) if what == "pattern" else error) from None


def run_id_for(trigger: str, what: str) -> str:
    """The id of the run that an event (its id) or a batch (its number) starts: the same for ever, everywhere."""
    return "e" + hashlib.blake2b(f"{trigger}\x00{what}".encode(), digest_size=16).hexdigest()


@lru_cache(maxsize=1024)
def _matcher(pattern: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile(translate(pattern)).match


def _field(payload: Any, name: str) -> Any:
    """A field of a payload; a dotted name reaches into objects. None when it is not there."""
    at = payload
    for part in name.split("."):
        if not isinstance(at, Mapping) or part not in at:
            return None
        at = at[part]
    return at
