"""Application events and triggers for those who use them: the declarations, and the client's calls."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pyrula.contracts.errors import ConfigurationError, InvalidInput, TriggerNotFound
from pyrula.contracts.events import to_micros
from pyrula.contracts.ids import check_id, new_id
from pyrula.contracts.store import Store
from pyrula.contracts.triggers import AppEvent, Batch, Events, NewEvent, On, TriggerState, check_event_name
from pyrula.contracts.values import encode

__all__ = ["AppEvent", "Batch", "EventClient", "On", "TriggerState"]


class EventClient:
    """The part of a `WorkflowClient` that concerns application events."""

    store: Store
    _limit: int

    async def emit(self, event: str, payload: Any = None, *, idempotency_key: str | None = None) -> str:
        """Publish an application event; triggers start runs by it. Gives the event's id.

        idempotency_key: becomes the id; an event whose id is known is not kept again.

        Raises `InvalidInput` for what is no name, `NotEncodable` and `PayloadTooLarge` for the payload.
        """
        name = check_event_name(event)
        event_id = new_id() if idempotency_key is None else check_id(idempotency_key, "idempotency_key")
        await self._events().emit([NewEvent(event_id, name, encode(payload, path="payload", limit=self._limit))])
        return event_id

    async def trigger_list(self) -> list[TriggerState]:
        """The triggers that workers have served so far, with their lag and what they refused."""
        return await self._events().trigger_list()

    async def trigger_replay(self, trigger: str, since: datetime | None = None) -> None:
        """Have a trigger go over the events that are kept, from a time on (all, for None).

        An event that it has acted on starts nothing new as long as that run is kept. Batches gather anew.
        Raises `TriggerNotFound`.
        """
        if since is not None and since.tzinfo is None:
            raise InvalidInput(f"since needs an aware datetime, not {since!r}", "since")
        start = None if since is None else to_micros(since.astimezone(UTC))
        if not await self._events().trigger_seek(trigger, start):
            raise TriggerNotFound(trigger)

    async def trigger_drop(self, trigger: str) -> None:
        """Forget a trigger that no code has any more, with the batches it gathered. Raises `TriggerNotFound`."""
        if not await self._events().trigger_drop(trigger):
            raise TriggerNotFound(trigger)

    def _events(self) -> Events:
        if not isinstance(self.store, Events):
            raise ConfigurationError(f"{type(self.store).__name__} keeps no application events; use a store that does")
        return self.store
