"""Application events that a body emits: each once, also when a crash falls between the event and its record."""

from __future__ import annotations

from typing import Any

from pyrula.actors.attempt import Attempt
from pyrula.actors.core.journal import Kind
from pyrula.actors.core.scope import VALUE
from pyrula.contracts.errors import ConfigurationError
from pyrula.contracts.events import EventType
from pyrula.contracts.triggers import Events, NewEvent, check_event_name
from pyrula.contracts.values import encode

__all__ = ["emit"]


async def emit(attempt: Attempt, name: str, payload: Any) -> str:
    """Publish an event and record that it was. Its id follows from the call's place, so that a repeat is known."""
    check_event_name(name)
    store = attempt.store
    if not isinstance(store, Events):
        raise ConfigurationError(f"{type(store).__name__} keeps no application events; use a store that does")
    if attempt.barred:
        await attempt.refused()
    key = attempt.current_scope().key(VALUE)
    record = attempt.match(key, Kind.EMIT)
    if await attempt.stands(record):
        assert record is not None
        assert record.outcome is not None
        recorded: str = record.outcome.data["event_id"]
        return recorded
    raw = encode(payload, path=f"payload of {name!r}", limit=attempt.settings.payload_limit)
    event_id = f"{attempt.identity}:{key}"
    await attempt.recorder.through_outages(lambda: store.emit([NewEvent(event_id, name, raw)]))
    data = {"name": name, "event_id": event_id}
    await attempt.recorder.flush(attempt.record(EventType.EVENT_EMITTED, key, data))
    return event_id
