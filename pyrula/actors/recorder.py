"""Writing a run's journal: numbering, joining what is known in one turn into one append, outages.

Entries are numbered the moment they are known and sent in that order. While one append is
under way, the next gather behind it. A caller that is cancelled while its append is under way
leaves the batch to whoever comes next, who sends the very same one again: the store answers a
repeat as it did the first time.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import anyio

from pyrula.contracts.errors import ClaimLost, ConfigurationError, StoreError, StoreUnavailable
from pyrula.contracts.events import entry
from pyrula.contracts.store import Claim, Continuation, Continues, Ending, Parking, Store

__all__ = ["Outage", "Recorder"]

T = TypeVar("T")
log = logging.getLogger("pyrula.run")
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0


class Outage(Protocol):
    """Told of each failed and each successful call to the store, to log an outage once."""

    def failed(self, error: StoreUnavailable, by: object) -> None: ...

    def succeeded(self, by: object) -> None: ...

    def left(self, by: object) -> None: ...


class Recorder:
    """The journal's writing end for one claim. `seq` is the last number given out."""

    __slots__ = (
        "_batch",
        "_claim",
        "_consumed",
        "_now",
        "_outage",
        "_queue",
        "_sending",
        "_store",
        "_waiters",
        "_written",
        "leaving",
        "seq",
    )

    def __init__(self, store: Store, claim: Claim, now: Callable[[], int], outage: Outage) -> None:
        self._store = store
        self._claim = claim
        self._now = now
        self._outage = outage
        self.seq = claim.seq
        self.leaving = False  # the claim is being given up by a call under way, or was
        self._written = claim.seq
        self._queue: list[bytes] = []
        self._consumed: list[bytes] = []
        self._batch: tuple[list[bytes], list[bytes]] | None = None
        self._sending = False
        self._waiters: anyio.Event | None = None

    def add(self, kind: str, key: str, data: dict[str, Any], consumed: bytes | None = None) -> int:
        """Put an entry behind all others, with the inbox message it takes out; its seq. Does not wait."""
        self._queue.append(entry(kind, self._now(), self._claim.attempt, key, data))
        if consumed is not None:
            self._consumed.append(consumed)
        self.seq += 1
        return self.seq

    def discard(self, message: bytes) -> None:
        """Take a message out of the inbox with the next append, whatever that holds."""
        self._consumed.append(message)

    async def flush(self, seq: int) -> None:
        """Wait until everything up to `seq` is in the journal. Raises `ClaimLost`."""
        while self._written < seq:
            if self._sending:
                await self._sent()
                continue
            self._sending = True
            try:
                await self._send()
            finally:
                self._sending = False
                if self._waiters is not None:
                    self._waiters.set()
                    self._waiters = None

    async def _sent(self) -> None:
        """Wait for the append that is under way. The event is made only when somebody waits."""
        if self._waiters is None:
            self._waiters = anyio.Event()
        await self._waiters.wait()

    async def _send(self) -> None:
        if self._batch is None:
            self._batch = (self._queue, self._consumed)
            self._queue, self._consumed = [], []
        entries, consumed = self._batch
        try:
            # The first try without the retry loop around it: this is the hot path.
            await self._store.append(self._claim, self._written, entries, consumed=consumed)
        except StoreUnavailable as error:
            self._outage.failed(error, self)
            await self.through_outages(
                lambda: self._store.append(self._claim, self._written, entries, consumed=consumed), paused=True
            )
        except StoreError as error:
            raise self._refused(error) from error
        self._batch = None
        self._written += len(entries)

    async def through_outages(self, call: Callable[[], Awaitable[T]], *, paused: bool = False) -> T:
        """Call the store until it answers, with growing pauses. All its calls may be repeated."""
        pause = _FIRST_PAUSE
        try:
            while True:
                if paused:
                    await anyio.sleep(pause)
                    pause = min(pause * 2, _LONGEST_PAUSE)
                try:
                    answer = await call()
                except StoreUnavailable as error:
                    self._outage.failed(error, self)
                    paused = True
                except StoreError as error:
                    raise self._refused(error) from error
                else:
                    self._outage.succeeded(self)
                    return answer
        finally:
            self._outage.left(self)

    def _refused(self, error: StoreError) -> ClaimLost:
        """The store refuses what the engine writes: the attempt ends, and the run goes on from its journal."""
        log.error("run %s: the store refused an append, the attempt is given up: %s", self._claim.run_id, error)
        return ClaimLost(str(error))

    async def _rest(self) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """What has not been sent yet, once nothing is under way and no batch is in doubt."""
        while self._sending or self._batch is not None:
            if self._sending:
                await self._sent()
            else:
                assert self._batch is not None
                await self.flush(self._written + len(self._batch[0]))
        entries, consumed = self._queue, self._consumed
        self._queue, self._consumed = [], []
        return entries, consumed

    async def park(self, parking: Parking, mail: int) -> bool:
        """Send the rest and park the run; False when it went back to the queue.

        `mail` is the number of messages that are known and stay in the inbox.
        """
        entries, consumed = await self._rest()
        before = self._written
        parking = replace(parking, inbox_seen=mail + len(consumed))
        self.leaving = True
        stays = await self.through_outages(
            lambda: self._store.park(self._claim, before, entries, parking, consumed=consumed)
        )
        self._written += len(entries)
        return stays

    async def finish(self, ending: Ending) -> None:
        """Send the rest and end the run."""
        entries, consumed = await self._rest()
        before = self._written
        self.leaving = True
        await self.through_outages(lambda: self._store.finish(self._claim, before, entries, ending, consumed=consumed))
        self._written += len(entries)

    async def go_on(self, continuation: Continuation) -> None:
        """Send the rest and have the run go on in a new journal. Raises `ConfigurationError` where a store cannot."""
        store = self._store
        if not isinstance(store, Continues):
            raise ConfigurationError(f"{type(store).__name__} cannot go on in a new journal; use a store that can")
        entries, consumed = await self._rest()
        before = self._written
        self.leaving = True
        await self.through_outages(
            lambda: store.continue_as_new(self._claim, before, entries, continuation, consumed=consumed)
        )
        self._written += len(entries)

    async def requeue(self) -> None:
        """Send the rest and give the run back to its queue."""
        entries, consumed = await self._rest()
        before = self._written
        if entries:
            await self.through_outages(lambda: self._store.append(self._claim, before, entries, consumed=consumed))
            self._written += len(entries)
        self.leaving = True
        await self.through_outages(lambda: self._store.requeue(self._claim, self._written))
