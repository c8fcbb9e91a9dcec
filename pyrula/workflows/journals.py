"""Reading a run's journal for a client: what is there, what comes, and over into the next one of a run that goes on."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from pyrula.contracts.errors import InvalidInput
from pyrula.contracts.events import TERMINAL_TYPES, Event, parse
from pyrula.contracts.store import Continues, RunRecord, Store, TailChunk

__all__ = ["JournalReader"]


class JournalReader:
    """A place in a run's journals: which one, and the last seq that was read in it."""

    def __init__(self, store: Store, name: str, run_id: str) -> None:
        self._store = store
        self._run = (name, run_id)
        self._link = 1
        self._last = 0
        self._ended = False

    async def open(self, link: int | None) -> None:
        """Begin with this journal (the last one there is, for None). Raises `RunNotFound`, `InvalidInput`."""
        newest = (await self._record()).link
        if link is not None and not 1 <= link <= newest:
            raise InvalidInput(f"link={link!r}: the run has had {newest} journals, counted from 1", "link")
        self._link = newest if link is None else link

    async def there(self) -> AsyncGenerator[Event, None]:
        """What is there, to the end of the newest journal."""
        while True:
            newest = (await self._record()).link
            while chunk := await self._read(newest):
                for event in self._events(chunk):
                    yield event
            if self._link >= newest:
                return
            self._link, self._last = self._link + 1, 0

    async def coming(self) -> AsyncGenerator[Event, None]:
        """What comes until the run ends."""
        while not await self._over():
            async with self._store.tail(*self._run, after=self._last) as chunks:
                async for chunk in chunks:
                    for event in self._events(chunk):
                        yield event
                    if self._ended:  # a terminal event with more behind it was superseded by a retry
                        return
                    if not chunk and ((await self._record()).link > self._link or await self._over()):
                        break
            async with aclosing(self.there()) as there:
                async for event in there:
                    yield event

    async def _over(self) -> bool:
        """True when the run has ended and its journal holds nothing more."""
        record = await self._record()
        return record.status.ended and record.link == self._link and self._last >= record.seq

    async def _record(self) -> RunRecord:
        return await self._store.load(*self._run, ends=False)

    async def _read(self, newest: int) -> TailChunk:
        if self._link < newest and isinstance(self._store, Continues):
            return await self._store.read_link(*self._run, self._link, after=self._last)
        return await self._store.read_journal(*self._run, after=self._last)

    def _events(self, chunk: TailChunk) -> list[Event]:
        events = [parse(seq, raw).event() for seq, raw in chunk]
        if events:
            self._last = events[-1].seq
            self._ended = events[-1].type in TERMINAL_TYPES
        return events
