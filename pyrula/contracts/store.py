"""What a store must do, as protocols by capability, and the records that cross the border.

A store keeps runs, their journals and inboxes, and decides every contest between workers.
It never looks inside an input, an event's data or a message. All mutating calls are
idempotent: a repeat of what was already done answers as it did the first time, so a caller
whose connection broke may simply call again.

Times are integers: microseconds since the epoch for what is recorded, milliseconds for
lease lengths and delays. The store's clock is the only clock of a run: every claim carries
the store's time, and a worker counts on from it with a monotonic clock.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pyrula.contracts.runs import RunStatus

__all__ = [
    "Bell",
    "BellKind",
    "Claim",
    "ClaimBatch",
    "Continuation",
    "Continues",
    "Delivery",
    "Ending",
    "Interventions",
    "JoinsCalls",
    "Lease",
    "LeaseKeeper",
    "Listener",
    "Listing",
    "Message",
    "NewRun",
    "Parking",
    "RunRecord",
    "Store",
    "Submitted",
    "TailChunk",
    "Timers",
]


@dataclass(frozen=True, slots=True)
class NewRun:
    """One submission. `input` is encoded JSON; `attributes` and `headers` (trace context, version) too.

    `delay_ms` counts from the store's now; `start_at` (microseconds) is absolute; at most one
    of them is given.
    """

    workflow: str
    run_id: str
    input: bytes
    input_digest: str
    owner: str = ""
    priority: int = 0
    delay_ms: int | None = None
    start_at: int | None = None
    attributes: bytes = b"{}"
    headers: bytes = b"{}"


@dataclass(frozen=True, slots=True)
class Submitted:
    """The answer to a submission. `created` is False when the run existed; then `input_digest` is the first one's."""

    run_id: str
    created: bool
    status: RunStatus
    input_digest: str
    submitted_at: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A run held by a worker: the token that its appends carry, and the journal it goes on from.

    `seq` is the journal's last seq, the claim's own event included; `entries` holds the
    journal in order as (seq, raw entry); `inbox` the raw messages not yet consumed; `now` the
    store's time (microseconds) when it was claimed; `token` is the store's own, which it wants back
    with whatever is done under this claim.
    """

    workflow: str
    run_id: str
    epoch: int
    attempt: int
    seq: int
    now: int
    owner: str = ""
    submitted_at: int = 0
    attributes: bytes = b"{}"
    headers: bytes = b"{}"
    entries: Sequence[tuple[int, bytes]] = ()
    inbox: Sequence[bytes] = ()
    token: bytes = b""


@dataclass(frozen=True, slots=True)
class ClaimBatch:
    """What a claim call gave. `more` is True when runnable runs may be left where it looked."""

    claims: Sequence[Claim] = ()
    more: bool = False


@dataclass(frozen=True, slots=True)
class Parking:
    """How an append parks its run.

    `topic` is what must arrive to queue the run again (`signal:NAME`, `interrupt:KEY`; empty
    for a sleep); control messages always do. `wake_at` (microseconds) queues it by time.
    `inbox_seen` is the number of messages the worker knows of: when there are more, the run
    goes straight back to its queue instead.
    """

    status: RunStatus
    topic: str = ""
    wake_at: int | None = None
    inbox_seen: int = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """How an append ends its run. `terminal` is False for a run that is only set aside (`status` failed)."""

    status: RunStatus
    keep_ms: int
    terminal: bool = True
    error: bytes = b""


@dataclass(frozen=True, slots=True)
class Continuation:
    """How a run goes on in a new journal: its input (JSON), and what the new journal says of itself besides."""

    input: bytes
    about: bytes = b""
    """JSON fields without their braces."""


@dataclass(frozen=True, slots=True)
class Message:
    """Something for a run's inbox: `raw` is the encoded message, `message_id` makes a repeat harmless.

    `topic` is compared with what a parked run waits for; a `control` message wakes any parked run, one that
    `wakes` any that waits or sleeps.
    """

    message_id: str
    topic: str
    raw: bytes
    control: bool = False
    wakes: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of a message: `accepted` is False when the run has ended; `repeat` when it was known already."""

    accepted: bool
    status: RunStatus
    repeat: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """A claim to be renewed; `token` is the claim's."""

    workflow: str
    run_id: str
    epoch: int
    token: bytes = b""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as stored. `first` and `last` are its journal's first and last entries as (seq, raw), when asked for.

    `input` is there only until the first claim moves it into the journal. `error` is the
    reason of a run that was set aside. `wake_at`, `started_at`, `finished_at` are
    microseconds, 0 for none. `link` counts the journals of a run that went on in a new one.
    """

    workflow: str
    run_id: str
    status: RunStatus
    owner: str = ""
    epoch: int = 0
    attempt: int = 0
    seq: int = 0
    priority: int = 0
    requeues: int = 0
    submitted_at: int = 0
    started_at: int = 0
    finished_at: int = 0
    wake_at: int = 0
    topic: str = ""
    worker: str = ""
    input: bytes = b""
    input_digest: str = ""
    attributes: bytes = b"{}"
    headers: bytes = b"{}"
    error: bytes = b""
    first: tuple[int, bytes] | None = None
    last: tuple[int, bytes] | None = None
    link: int = 1


@dataclass(frozen=True, slots=True)
class Listing:
    """A slice of runs, newest first, and where the next slice begins (None: no more)."""

    runs: Sequence[RunRecord]
    cursor: str | None = None


class BellKind:
    """What a bell tells: a run was queued, a timer is nearer, a claimed run got a message or was ended,
    a schedule is new or has changed, look again.
    """

    QUEUED = "q"
    TIMER = "t"
    INBOX = "i"
    ENDED = "x"
    SCHEDULE = "s"
    LOOK = "look"


@dataclass(frozen=True, slots=True)
class Bell:
    """A notification. `run_id` for INBOX and ENDED; `due` (microseconds) for TIMER. LOOK means that some were lost.

    An ENDED bell of `wait_end` may bring the terminal entry along as `seq` and `entry`.
    """

    kind: str
    workflow: str = ""
    shard: int = 0
    run_id: str = ""
    due: int = 0
    seq: int = 0
    entry: bytes = b""


class Listener(Protocol):
    """A subscription to bells."""

    async def next(self) -> Bell:
        """The next bell; waits for it."""
        ...


TailChunk = Sequence[tuple[int, bytes]]


@runtime_checkable
class Store(Protocol):
    """The minimum of a store. Every method raises `StoreUnavailable` when the server cannot be reached."""

    async def submit(self, runs: Sequence[NewRun]) -> list[Submitted]:
        """Queue runs (or hold them until they are due). A run id that exists starts nothing."""
        ...

    async def claim(self, workflow: str, *, worker: str, limit: int, lease_ms: int) -> ClaimBatch:
        """Take up to `limit` runnable runs, fairly across owners.

        Each gets the next epoch and attempt, and the event `run.started` (the first time,
        after `run.submitted` with the input) or `run.resumed`.
        """
        ...

    async def claim_run(self, workflow: str, run_id: str, *, worker: str, lease_ms: int) -> Claim | None:
        """Take one given run, if it is runnable now."""
        ...

    async def append(self, claim: Claim, seq: int, entries: Sequence[bytes], *, consumed: Sequence[bytes] = ()) -> None:
        """Append entries after `seq` and take `consumed` messages out of the inbox, in one step.

        Raises `ClaimLost` when the run is no longer held under this claim's epoch,
        `EventOutOfOrder` when the journal does not end at `seq`.
        """
        ...

    async def park(
        self, claim: Claim, seq: int, entries: Sequence[bytes], parking: Parking, *, consumed: Sequence[bytes] = ()
    ) -> bool:
        """Append, and give the claim up with the run parked. False: it went back to the queue (inbox had grown)."""
        ...

    async def finish(
        self, claim: Claim, seq: int, entries: Sequence[bytes], ending: Ending, *, consumed: Sequence[bytes] = ()
    ) -> None:
        """Append, the terminal event last, and end the run; its data is deleted `keep_ms` later."""
        ...

    async def requeue(self, claim: Claim, seq: int, *, spent: bool = False) -> None:
        """Give the claim up and put the run back in its queue, in its old place. `spent` counts against its budget."""
        ...

    async def inbox(self, claim: Claim) -> Sequence[bytes]:
        """All messages in the inbox of a claimed run, oldest first."""
        ...

    async def deliver(self, workflow: str, run_id: str, message: Message) -> Delivery:
        """Put a message into a run's inbox, and queue the run when it waits for it. Raises `RunNotFound`."""
        ...

    async def terminate(self, workflow: str, run_id: str, entry_data: bytes, *, keep_ms: int) -> RunStatus:
        """End a run from outside: fence its worker off, write `run.terminated` with this JSON data.

        Gives the status the run had before. A run that has ended is left alone.
        """
        ...

    async def revive(self, workflow: str, run_id: str, entry_data: bytes) -> RunStatus:
        """Queue a failed (or set aside) run again with `run.retried` and this JSON data; gives the status before."""
        ...

    async def heartbeat(self, leases: Sequence[Lease], *, lease_ms: int) -> list[Lease]:
        """Renew leases; gives those that are lost."""
        ...

    async def sweep(self, workflow: str, *, limit: int, requeue_budget: int, keep_ms: int) -> int:
        """Requeue runs whose lease ran out (fail those over their budget), delete runs kept long enough.

        Handles at most `limit` of each per shard; gives the number of runs requeued or failed.
        """
        ...

    async def set_attributes(self, claim: Claim, attributes: bytes) -> None:
        """Replace the search attributes of a claimed run (JSON object)."""
        ...

    async def commit(self, claim: Claim, key: str, value: bytes) -> None:
        """Publish a named value of the run."""
        ...

    async def committed(self, workflow: str, run_id: str) -> dict[str, bytes]:
        """All published values of a run."""
        ...

    async def write_output(self, claim: Claim, index: int, chunk: bytes) -> None:
        """Append chunk number `index` (1, 2, 3 ...) to the run's output; one that is there already is left alone."""
        ...

    async def load(self, workflow: str, run_id: str, *, ends: bool = True) -> RunRecord:
        """One run, with its journal's first and last entry when `ends`. Raises `RunNotFound`."""
        ...

    async def read_journal(self, workflow: str, run_id: str, *, after: int = 0, limit: int = 1000) -> TailChunk:
        """Journal entries with a seq above `after`, oldest first."""
        ...

    async def listing(
        self,
        workflows: Sequence[str],
        *,
        status: RunStatus | None = None,
        owner: str | None = None,
        attributes: dict[str, object] | None = None,
        submitted_after: int | None = None,
        submitted_before: int | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Listing:
        """Runs that match, newest first."""
        ...

    async def count(
        self,
        workflows: Sequence[str],
        *,
        status: RunStatus | None = None,
        owner: str | None = None,
        attributes: dict[str, object] | None = None,
        submitted_after: int | None = None,
        submitted_before: int | None = None,
    ) -> int:
        """How many runs match."""
        ...

    async def workflows(self) -> list[str]:
        """The workflow names this store has seen, sorted."""
        ...

    def tail(
        self, workflow: str, run_id: str, *, output: bool = False, after: int = 0
    ) -> AbstractAsyncContextManager[AsyncIterator[TailChunk]]:
        """Follow a run's journal, or its output, from behind `after`.

        Yields a chunk as soon as there is something, and an empty one now and then, so that
        the reader can look whether the run still exists.
        """
        ...

    def wait_end(self, workflow: str, run_id: str) -> AbstractAsyncContextManager[Listener]:
        """A listener for the end of one run; subscribed when entered, so look at the run after entering."""
        ...

    def bells(self, workflows: Sequence[str]) -> AbstractAsyncContextManager[Listener]:
        """A listener for everything a worker of these workflows wants to know at once."""
        ...

    async def now(self) -> int:
        """The store's time in microseconds."""
        ...

    async def aclose(self) -> None:
        """Close what this event loop has opened. The store can be used again afterwards."""
        ...


@runtime_checkable
class Continues(Protocol):
    """A store in which a run may go on in a new journal under its old id."""

    async def continue_as_new(
        self,
        claim: Claim,
        seq: int,
        entries: Sequence[bytes],
        continuation: Continuation,
        *,
        consumed: Sequence[bytes] = (),
    ) -> None:
        """Append, keep the journal as one link of a chain, and queue the run with a new one; the inbox stays.

        Raises as `Store.append` does; a repeat is refused with `ClaimLost`.
        """
        ...

    async def read_link(self, workflow: str, run_id: str, link: int, *, after: int = 0, limit: int = 1000) -> TailChunk:
        """Entries of an earlier journal (links count from 1) with a seq above `after`."""
        ...


@runtime_checkable
class Interventions(Protocol):
    """A store whose runs can be held back, and copied."""

    async def pause(self, workflow: str, run_id: str, message: Message) -> Delivery:
        """Hold a run back until it is unpaused; one that a worker holds gets the message instead.

        Gives the status before; not accepted when it has ended. Raises `RunNotFound`.
        """
        ...

    async def unpause(self, workflow: str, run_id: str, message: Message) -> Delivery:
        """Let a run go on, as `pause`. What came meanwhile is there for it; a time that passed is over."""
        ...

    async def fork(self, new: NewRun, entries: Sequence[bytes], *, claims: int) -> Submitted:
        """Queue a run that begins with this journal, which tells of so many claims; once for an id."""
        ...


@runtime_checkable
class Timers(Protocol):
    """A store that can wake sleeping runs."""

    async def next_due(self, workflow: str) -> int | None:
        """The time (microseconds) of the earliest timer of a workflow; None when there is none."""
        ...

    async def wake(self, workflow: str, *, limit: int) -> int:
        """Queue runs whose timer is due, at most `limit`; gives how many."""
        ...


@runtime_checkable
class JoinsCalls(Protocol):
    """A store that sends calls of one turn of the event loop together."""

    def expect(self, callers: int) -> None:
        """So many tasks were just woken and are about to call. A hint: they may call or not."""
        ...


@runtime_checkable
class LeaseKeeper(Protocol):
    """A store that can renew leases from a thread of its own, without the event loop."""

    def heartbeat_sync(self, leases: Sequence[Lease], *, lease_ms: int) -> list[Lease]:
        """`heartbeat`, blocking; called from one thread only."""
        ...
