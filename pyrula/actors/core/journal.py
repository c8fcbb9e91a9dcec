"""A run's journal, indexed for replay: which call has which record, and what is left over. Pure.

One `Record` for each key. A call asks with its key and kind and gets the record or nothing;
another kind at that key is refused here. What a retry makes void, where a cancel request
stands, and which records the code never asked for are read off the same index.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from pyrula.actors.core.scope import Tail
from pyrula.contracts.errors import VersionSkew
from pyrula.contracts.events import Entry, EventType

__all__ = ["Journal", "Kind", "Record", "never_asked", "out_of_order"]


class Kind:
    """Kinds of calls; what a record at a key must agree on with the call that asks for it."""

    STEP: Final = "step"
    SLEEP: Final = "sleep"
    SIGNAL: Final = "signal wait"
    INTERRUPT: Final = "interrupt"
    NOW: Final = "now"
    UUID: Final = "uuid"
    RANDOM: Final = "random"
    CHECKPOINT: Final = "checkpoint"
    COMMIT: Final = "commit"
    EMIT: Final = "emit"
    PATCH: Final = "patch"
    UPDATE: Final = "update"
    CHILD: Final = "child run"
    SPAWN: Final = "spawn"
    SEND: Final = "signal to another run"
    STREAM: Final = "stream"


# event type -> (kind, True when it is the outcome); None: the kind is in the data
_ROLES: Final[dict[str, tuple[str | None, bool]]] = {
    EventType.STEP_STARTED: (Kind.STEP, False),
    EventType.STEP_RETRYING: (Kind.STEP, False),
    EventType.STEP_COMPLETED: (Kind.STEP, True),
    EventType.STEP_FAILED: (Kind.STEP, True),
    EventType.TIMER_SET: (Kind.SLEEP, False),
    EventType.TIMER_FIRED: (Kind.SLEEP, True),
    EventType.SIGNAL_AWAITED: (Kind.SIGNAL, False),
    EventType.SIGNAL_RECEIVED: (Kind.SIGNAL, True),
    EventType.SIGNAL_TIMED_OUT: (Kind.SIGNAL, True),
    EventType.INTERRUPT_RAISED: (Kind.INTERRUPT, False),
    EventType.INTERRUPT_RESUMED: (Kind.INTERRUPT, True),
    EventType.INTERRUPT_TIMED_OUT: (Kind.INTERRUPT, True),
    EventType.VALUE_RECORDED: (None, True),
    EventType.CHECKPOINT_SAVED: (Kind.CHECKPOINT, True),
    EventType.VALUE_COMMITTED: (Kind.COMMIT, True),
    EventType.EVENT_EMITTED: (Kind.EMIT, True),
    EventType.PATCH_MARKED: (Kind.PATCH, True),
    EventType.UPDATE_ACCEPTED: (Kind.UPDATE, False),
    EventType.UPDATE_APPLIED: (Kind.UPDATE, True),
    EventType.UPDATE_FAILED: (Kind.UPDATE, True),
    EventType.CHILD_STARTED: (Kind.CHILD, False),
    EventType.CHILD_COMPLETED: (Kind.CHILD, True),
    EventType.CHILD_FAILED: (Kind.CHILD, True),
    EventType.CHILD_TIMED_OUT: (Kind.CHILD, True),
    EventType.RUN_SPAWNED: (Kind.SPAWN, True),
    EventType.SIGNAL_SENT: (Kind.SEND, True),
    EventType.OUTPUT_WRITTEN: (Kind.STREAM, True),
}


class Record:
    """What the journal holds for one key, since seq `since`. `opened` is the last entry before the outcome, if any."""

    __slots__ = ("key", "kind", "opened", "outcome", "since", "tries", "used")

    def __init__(self, key: str, kind: str, since: int) -> None:
        self.key = key
        self.since = since
        self.kind = kind
        self.opened: Entry | None = None
        self.outcome: Entry | None = None
        self.tries = 0
        self.used = False


class Journal:
    """The index over the entries that a claim brought along.

    `input` is the workflow's recorded input, `cancel_seq` the seq of a cancel request (0:
    none), `checkpoint` the last saved state's entry, `chunk` that of the last output chunk.
    `link` counts the run's journals, `chunks_before` the output chunks of earlier ones;
    `restart` is the checkpoint behind which the replay starts, `deprecated` holds patch ids.
    """

    __slots__ = (
        "_alone",
        "_before_cancel",
        "_first",
        "_order",
        "_records",
        "_unasked",
        "cancel_seq",
        "checkpoint",
        "chunk",
        "chunks_before",
        "deprecated",
        "input",
        "last_seq",
        "link",
        "restart",
    )

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._records: dict[str, Record] = {}
        self._before_cancel = 0
        self._alone: dict[str, deque[Record]] | None = None
        self.input: Any = None
        self.cancel_seq = 0
        self.checkpoint: Entry | None = None
        self.chunk: Entry | None = None
        self.last_seq = 0
        self.link = 1
        self.chunks_before = 0
        self.deprecated: set[str] = set()
        self.restart: Entry | None = None
        history = list(entries)
        for position, entry in enumerate(history):
            self.last_seq = entry.seq
            if entry.key:
                self._index(entry)
            elif entry.type == EventType.OUTPUT_WRITTEN:
                self.chunk = entry
            elif entry.type == EventType.RUN_SUBMITTED:
                self.input = entry.data["input"]
                self.link = entry.data.get("link", 1)
                self.chunks_before = entry.data.get("chunks", 0)
            elif entry.type == EventType.PATCH_DEPRECATED:
                self.deprecated.add(entry.data["id"])
            elif entry.type == EventType.RUN_CANCEL_REQUESTED and not self.cancel_seq:
                self.cancel_seq = entry.seq
            elif entry.type == EventType.RUN_RETRIED:
                self._void(history[:position], entry)
        self._order = iter(self._records.values())
        self._first = next(self._order, None)  # of those not known to have been asked for
        self._unasked = sum(not record.used for record in self._records.values())
        if self.cancel_seq:
            self._before_cancel = sum(1 for r in self._records.values() if self._settled_before_cancel(r))

    def _index(self, entry: Entry) -> None:
        kind, outcome = _ROLES[entry.type]
        if kind is None:
            kind = entry.data["kind"]
        record = self._records.get(entry.key)
        if record is None:
            record = self._records[entry.key] = Record(entry.key, kind, entry.seq)
        if outcome:
            if record.outcome is None:
                record.outcome = entry
        else:
            record.opened = entry
            if entry.type == EventType.STEP_RETRYING:
                record.tries = entry.data["attempts"]
        if entry.type == EventType.CHECKPOINT_SAVED:
            self.checkpoint = entry
            if entry.data.get("restart"):
                self._begin_anew(entry)
        elif entry.type == EventType.OUTPUT_WRITTEN:
            self.chunk = entry

    def _begin_anew(self, restart: Entry) -> None:
        """Replays start behind this checkpoint: what was recorded before is not asked for again.

        Children that are open stay so: they are closed with the run.
        """
        self.restart = restart
        kept = {entry.key for entry in self.open_children()}
        self._records = {f"{key}@{restart.seq}": r for key, r in self._records.items() if key in kept}
        for record in self._records.values():
            record.used = True

    def _void(self, history: list[Entry], retried: Entry) -> None:
        """A retry makes anew the failed steps and child runs that were the last things recorded when the run failed.

        In a gather, that is the last thing of a leg. A run that was only set aside died of no
        step; what was voided before is not voided twice. An at-most-once step is made anew on a
        person's word alone.
        """
        by_policy = retried.data.get("by") == "policy"
        for entry in _last_failures(history, failed=by_policy):
            record = self._records.get(entry.key)
            if record is None or record.outcome is not entry:
                continue
            if by_policy and record.opened is not None and record.opened.type == EventType.STEP_STARTED:
                continue
            del self._records[entry.key]

    def match(self, key: str, kind: str) -> Record | None:
        """The record of a call, marked as asked for; None for a live call.

        Raises `VersionSkew` when another kind of call was recorded at this key.
        """
        record = self._records.get(key)
        if record is None:
            return None
        if record.kind != kind:
            raise VersionSkew(
                f"the journal holds a {record.kind} at {key!r}, the code now makes a {kind} there; "
                "restore the code (or branch with ctx.patched), then retry the run",
                recorded=f"{record.kind} {key!r}",
                asked=f"{kind} {key!r}",
            )
        if not record.used:
            self._use(record)
        return record

    def _use(self, record: Record) -> None:
        record.used = True
        self._unasked -= 1
        if self.cancel_seq and self._settled_before_cancel(record):
            self._before_cancel -= 1

    def asked_up_to(self, seq: int) -> bool:
        """True when every call that was recorded before `seq` has been asked for."""
        while self._first is not None and self._first.used:
            self._first = next(self._order, None)
        return self._first is None or self._first.since >= seq

    def skip(self, prefix: str) -> None:
        """The legs under this prefix are cut off: what they have not asked for by now, they never will."""
        for record in self._records.values():
            if not record.used and record.key.startswith(prefix):
                self._use(record)

    def peek(self, key: str) -> Record | None:
        """The record at a key, without asking for it."""
        return self._records.get(key)

    def passed_over(self, path: str) -> Record | None:
        """The first outcome of a scope that nobody has asked for, and beside which nothing else was open.

        A call without a record that comes before it is one that the recorded code did not make.
        """
        if self._alone is None:
            self._alone = {}
            for record in self._records.values():
                if record.outcome is not None and not record.outcome.data.get("beside"):
                    self._alone.setdefault(record.key[: record.key.rfind("/") + 1], deque()).append(record)
        waiting = self._alone.get(path)
        while waiting and waiting[0].used:
            waiting.popleft()
        return waiting[0] if waiting else None

    def _settled_before_cancel(self, record: Record) -> bool:
        return record.outcome is not None and record.outcome.seq < self.cancel_seq

    def before_cancel(self, record: Record | None) -> bool:
        """True when a record was settled before the cancel request, so that it still stands."""
        return record is not None and self._settled_before_cancel(record)

    @property
    def cancel_due(self) -> bool:
        """True once everything settled before the cancel request has been asked for."""
        return self.cancel_seq > 0 and self._before_cancel == 0

    def open_children(self) -> list[Entry]:
        """The entries that began child runs whose end is not recorded."""
        return [
            record.opened
            for record in self._records.values()
            if record.opened is not None
            and record.opened.type == EventType.CHILD_STARTED
            and (record.outcome is None or record.outcome.type == EventType.CHILD_TIMED_OUT)
        ]

    def unused(self) -> Record | None:
        """The first record that the code never asked for."""
        return next((r for r in self._records.values() if not r.used), None)

    def request_cancel(self, seq: int) -> None:
        """A cancel request was recorded: what is settled so far still stands before it."""
        self.cancel_seq = seq
        self._before_cancel = sum(1 for r in self._records.values() if not r.used and self._settled_before_cancel(r))

    def remember_checkpoint(self, seq: int, state: Any) -> None:
        """A checkpoint was saved in this attempt."""
        self.checkpoint = Entry(seq, EventType.CHECKPOINT_SAVED, 0, 0, "", {"state": state})

    def remember_restart(self, seq: int, key: str, state: Any) -> None:
        """A checkpoint was saved in this attempt behind which replays start: what comes next is counted from there."""
        self.restart = self.checkpoint = Entry(seq, EventType.CHECKPOINT_SAVED, 0, 0, key, {"state": state})
        self._records.clear()
        self._first, self._unasked, self._alone = None, 0, None

    @property
    def begun(self) -> bool:
        """True when some call of the body has a record."""
        return bool(self._records) or self.restart is not None

    @property
    def replaying(self) -> bool:
        """True while there are records that no call has asked for yet, settled or only begun."""
        return self._unasked > 0


def _last_failures(history: list[Entry], *, failed: bool) -> list[Entry]:
    """The failed steps after which nothing was recorded in their branch; none when the run has not failed since.

    `failed` says that it has, although no event of its own tells so.
    """
    tail = Tail()
    found: list[Entry] = []
    for entry in reversed(history):
        if not entry.key:
            failed = failed or entry.type == EventType.RUN_FAILED
            continue
        if not failed:
            break
        if entry.type in (EventType.STEP_FAILED, EventType.CHILD_FAILED) and tail.is_last(entry.key):
            found.append(entry)
        if not tail.add(entry.key):
            break
    return found


def never_asked(left: Record) -> VersionSkew:
    """The refusal of a replay that ends with a record which nothing asked for."""
    return VersionSkew(
        f"the journal holds a {left.kind} at {left.key!r} that the code no longer asks for; "
        "restore the code (or branch with ctx.patched), then retry the run",
        recorded=f"{left.kind} {left.key!r}",
        asked="nothing",
    )


def out_of_order(passed: Record, key: str, kind: str) -> VersionSkew:
    """The refusal of a call that the recorded code did not make before an outcome it did record."""
    return VersionSkew(
        f"the code makes a {kind} {key!r} before the {passed.kind} {passed.key!r} that the journal holds; "
        "restore the code (or branch with ctx.patched), then retry the run",
        recorded=f"{passed.kind} {passed.key!r}",
        asked=f"{kind} {key!r}",
    )
