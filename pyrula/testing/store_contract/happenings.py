"""Application events: kept, lent to triggers, gathered into batches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pyrula.contracts.store import Store
from pyrula.contracts.triggers import Events, NewEvent, ReadyBatch, StoredEvent
from pyrula.testing.store_contract.base import Contract

__all__ = ["Happenings"]

_LEASE = 600_000  # ms, longer than any test
_T = "orders/on/order.*"


def _event(event_id: str, payload: bytes = b'{"n":1}') -> NewEvent:
    return NewEvent(event_id, "order.paid", payload)


class Happenings(Contract):
    """`emit`, `events_read`, `events_done`, the batches, and what is shown of triggers."""

    def events(self, store: Store) -> Events:
        """The store as one with events; leaves the test out for one without."""
        if not isinstance(store, Events):
            pytest.skip("a store without application events")
        return store

    async def _given(self, events: Events, trigger: str = _T, *, limit: int = 100, lease_ms: int = _LEASE) -> list[str]:
        found = await events.events_read(trigger, limit=limit, lease_ms=lease_ms)
        return [event.event_id for event in found]

    async def _begun(self, store: Store, *trigger: str) -> Events:
        events = self.events(store)
        for name in trigger or (_T,):
            assert await self._given(events, name) == []
        return events

    async def test_an_event_is_kept_as_it_was_emitted(self, store: Store) -> None:
        events = await self._begun(store)
        before = await store.now()
        assert await events.emit([_event("e1", '{"é":[1,null]}'.encode())]) == [True]
        [found] = await events.events_read(_T, limit=10, lease_ms=_LEASE)
        assert (found.event_id, found.name, found.payload) == ("e1", "order.paid", '{"é":[1,null]}'.encode())
        await self.passed(store, found.at)
        assert before - 1000 <= found.at <= await store.now()

    async def test_one_id_is_one_event(self, store: Store) -> None:
        events = await self._begun(store)
        assert await events.emit([_event("e1"), _event("e2"), _event("e1", b"2")]) == [True, True, False]
        assert await events.emit([_event("e2")]) == [False]
        assert await self._given(events) == ["e1", "e2"]
        assert await self._given(events) == []

    async def test_a_new_trigger_begins_with_what_comes(self, store: Store) -> None:
        events = self.events(store)
        await events.emit([_event("e1")])
        assert await self._given(events) == []
        await events.emit([_event("e2")])
        assert await self._given(events) == ["e2"]

    async def test_each_trigger_sees_every_event(self, store: Store) -> None:
        events = await self._begun(store, "a", "b")
        await events.emit([_event("e1")])
        assert await self._given(events, "a") == ["e1"]
        assert await self._given(events, "b") == ["e1"]

    async def test_a_limit_is_kept_and_the_order(self, store: Store) -> None:
        events = await self._begun(store)
        await events.emit([_event(f"e{n}") for n in range(5)])
        assert await self._given(events, limit=2) == ["e0", "e1"]
        assert await self._given(events, limit=2) == ["e2", "e3"]
        assert await self._given(events, limit=2) == ["e4"]

    async def test_what_was_not_done_is_lent_again(self, store: Store) -> None:
        events = await self._begun(store)
        await events.emit([_event("e1"), _event("e2")])
        first, _ = await events.events_read(_T, limit=10, lease_ms=20)
        await events.events_done(_T, [first.position])

        async def again() -> list[str]:
            return await self._given(events, lease_ms=20)

        assert await self.until(store, again) == ["e2"]
        [second] = await self._waited(store, events)
        await events.events_done(_T, [second.position])
        [state] = await events.trigger_list()
        assert (state.name, state.lent, state.lag in (0, None)) == (_T, 0, True)

    async def _waited(self, store: Store, events: Events) -> Sequence[StoredEvent]:
        async def again() -> Sequence[StoredEvent]:
            return await events.events_read(_T, limit=10, lease_ms=20)

        return await self.until(store, again)

    async def test_refusals_are_kept_once(self, store: Store) -> None:
        events = await self._begun(store)
        for _ in range(2):
            await events.events_done(_T, [], [b'{"event":"e1","at":1,"reason":"no"}'])
        await events.events_done(_T, [], [b'{"event":"e2","at":1,"reason":"no"}'])
        [state] = await events.trigger_list()
        assert [each["event"] for each in state.refused] == ["e2", "e1"]

    async def test_a_full_batch_ends_at_once(self, store: Store) -> None:
        events = await self._begun(store)
        await self._gathered(events, "", "a", "b", "c", max_size=2)
        [batch] = await self._due(events)
        assert (batch.number, list(batch.events)) == (1, [b'"a"', b'"b"'])
        assert await self._due(events) == []
        await events.batch_done(_T, [1])
        [state] = await events.trigger_list()
        assert (state.gathering, state.ready, state.lent) == (1, 0, 0)

    async def test_a_batch_ends_by_time(self, store: Store) -> None:
        events = await self._begun(store)
        await self._gathered(events, "", "a", "b", max_wait_ms=30)
        _, nearest = await events.batch_due(_T, limit=10, lease_ms=_LEASE)
        assert nearest is not None
        assert nearest <= await store.now() + 30_000

        async def due() -> Sequence[ReadyBatch]:
            return await self._due(events)

        [batch] = await self.until(store, due)
        assert list(batch.events) == [b'"a"', b'"b"']

    async def test_each_key_has_a_batch_of_its_own(self, store: Store) -> None:
        events = await self._begun(store)
        await self._gathered(events, "k1", "a", max_size=2)
        await self._gathered(events, "k2", "b", max_size=2)
        assert await self._due(events) == []
        await self._gathered(events, "k1", "c", max_size=2)
        [batch] = await self._due(events)
        assert list(batch.events) == [b'"a"', b'"c"']

    async def test_an_event_goes_into_a_batch_once(self, store: Store) -> None:
        events = await self._begun(store)
        await events.emit([_event("e1")])
        [found] = await events.events_read(_T, limit=10, lease_ms=_LEASE)
        for added in (1, 0):
            items = [(found.position, "", b'"a"')]
            assert await events.batch_add(_T, items, max_size=2, max_wait_ms=_LEASE) == added
        [state] = await events.trigger_list()
        assert (state.gathering, state.ready) == (1, 0)

    async def test_a_batch_that_was_not_done_is_lent_again(self, store: Store) -> None:
        events = await self._begun(store)
        await self._gathered(events, "", "a", max_size=1)

        async def due() -> Sequence[ReadyBatch]:
            return (await events.batch_due(_T, limit=10, lease_ms=10))[0]

        first = await self.until(store, due)
        assert await self.until(store, due) == first
        await events.batch_done(_T, [first[0].number], [b'{"event":"a","at":1,"reason":"no"}'])
        assert await events.batch_due(_T, limit=10, lease_ms=10) == ([], None)

    async def test_a_trigger_goes_over_what_is_kept(self, store: Store) -> None:
        events = self.events(store)
        await events.emit([_event("e1")])
        [at] = [await store.now()]
        await self.passed(store, at + 5_000)
        await events.emit([_event("e2")])
        assert await self._given(events) == []
        assert await events.trigger_seek(_T, None)
        assert await self._given(events) == ["e1", "e2"]
        assert await events.trigger_seek(_T, at + 2_500)
        assert await self._given(events) == ["e2"]
        assert not await events.trigger_seek("nobody", None)

    async def test_nothing_remains_of_a_trigger_that_is_dropped(self, store: Store) -> None:
        events = await self._begun(store)
        await self._gathered(events, "", "a", max_size=1)
        await self._gathered(events, "", "b", max_size=2)
        assert await events.trigger_drop(_T)
        assert await events.trigger_list() == []
        assert not await events.trigger_drop(_T)
        assert await self._given(events) == []
        assert await self._due(events) == []
        await self._gathered(events, "", "c", max_size=1)
        [batch] = await self._due(events)
        assert batch.number == 2  # the run of number 1 may still be there

    async def _due(self, events: Events) -> Sequence[ReadyBatch]:
        return (await events.batch_due(_T, limit=10, lease_ms=_LEASE))[0]

    async def _gathered(
        self, events: Events, key: str, *names: str, max_size: int = 100, max_wait_ms: int = _LEASE
    ) -> None:
        await events.emit([_event(f"{key}{name}") for name in names])
        found = await events.events_read(_T, limit=100, lease_ms=_LEASE)
        items = [(event.position, key, b'"%b"' % name.encode()) for event, name in zip(found, names, strict=True)]
        added = await events.batch_add(_T, items, max_size=max_size, max_wait_ms=max_wait_ms)
        assert added == len(names)
