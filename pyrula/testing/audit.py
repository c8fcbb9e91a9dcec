"""Checks what a store holds, from the data alone: what must always hold of runs and their journals.

Reads through a store's public methods and changes nothing, so it may look at a store in use. The
judgement of one run (`examine`) is pure; `audit` reads all runs and adds what concerns them together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from pyrula.contracts.errors import RunNotFound
from pyrula.contracts.events import TERMINAL_TYPES, Entry, EventType, parse
from pyrula.contracts.runs import ENDED, PARKED, RunStatus
from pyrula.contracts.store import RunRecord, Store, Timers

__all__ = ["audit", "examine"]

_PAGE: Final = 200
_TRIES: Final = 20

# After one of these, nothing else may become of the same call.
_OUTCOMES: Final = frozenset(
    {
        EventType.STEP_COMPLETED,
        EventType.STEP_FAILED,
        EventType.TIMER_FIRED,
        EventType.SIGNAL_RECEIVED,
        EventType.SIGNAL_TIMED_OUT,
        EventType.INTERRUPT_RESUMED,
        EventType.INTERRUPT_TIMED_OUT,
        EventType.VALUE_RECORDED,
        EventType.CHECKPOINT_SAVED,
        EventType.VALUE_COMMITTED,
        EventType.EVENT_EMITTED,
        EventType.PATCH_MARKED,
        EventType.UPDATE_APPLIED,
        EventType.UPDATE_FAILED,
        EventType.CHILD_COMPLETED,
        EventType.CHILD_FAILED,
        EventType.CHILD_TIMED_OUT,
        EventType.RUN_SPAWNED,
        EventType.SIGNAL_SENT,
        EventType.OUTPUT_WRITTEN,
    }
)
_MADE_ANEW: Final = frozenset({EventType.STEP_FAILED, EventType.CHILD_FAILED})
_CLAIMED: Final = frozenset({EventType.RUN_STARTED, EventType.RUN_RESUMED})
_FROM_OUTSIDE: Final = frozenset({EventType.RUN_TERMINATED, EventType.RUN_RETRIED})
_ENDS_AS: Final = {
    EventType.RUN_COMPLETED: RunStatus.COMPLETED,
    EventType.RUN_FAILED: RunStatus.FAILED,
    EventType.RUN_CANCELLED: RunStatus.CANCELLED,
    EventType.RUN_TERMINATED: RunStatus.TERMINATED,
}


async def audit(store: Store, workflows: Sequence[str] | None = None) -> list[str]:
    """What is wrong with the runs of a store (of these workflows, or of all): one sentence for each finding.

    Empty when everything holds that must hold whatever crashed: journals without gaps, one terminal event
    at the end of an ended run, a status that the journal bears out, no call with two outcomes, entries of
    one attempt at a time, nobody parked without something that wakes it. A run that changes while it is
    read is read again. Costs three calls for each run.
    """
    names = await store.workflows() if workflows is None else workflows
    findings: list[str] = []
    for workflow in names:
        listed = [record.run_id async for record in _listed(store, workflow)]
        findings += [
            f"{workflow}/{run_id} is listed {times} times" for run_id, times in Counter(listed).items() if times > 1
        ]
        records: list[RunRecord] = []
        for run_id in dict.fromkeys(listed):
            seen = await _read(store, workflow, run_id)
            if isinstance(seen, str):
                findings.append(seen)
            elif seen is not None:
                record, entries = seen
                records.append(record)
                findings += examine(record, entries)
        findings += await _timers(store, workflow, records)
    return findings


async def _listed(store: Store, workflow: str) -> AsyncIterator[RunRecord]:
    cursor: str | None = None
    while True:
        page = await store.listing([workflow], limit=_PAGE, cursor=cursor)
        for record in page.runs:
            yield record
        if page.cursor is None:
            return
        cursor = page.cursor


async def _read(store: Store, workflow: str, run_id: str) -> tuple[RunRecord, list[tuple[int, bytes]]] | str | None:
    """A run and its journal as they were at one moment; None when it was deleted meanwhile."""
    for _ in range(_TRIES):
        try:
            before = await store.load(workflow, run_id)
            entries: list[tuple[int, bytes]] = []
            while chunk := await store.read_journal(workflow, run_id, after=entries[-1][0] if entries else 0):
                entries.extend(chunk)
            if before == await store.load(workflow, run_id):
                return before, entries
        except RunNotFound:
            # Deleted after it was listed; one that cannot be loaded yet is still listed is a finding.
            still = [each.run_id async for each in _listed(store, workflow)]
            if run_id not in still:
                return None
            return f"{workflow}/{run_id} is listed and cannot be loaded"
    return f"{workflow}/{run_id} changed each of the {_TRIES} times it was read"


async def _timers(store: Store, workflow: str, records: Iterable[RunRecord]) -> list[str]:
    held = [each for each in records if each.wake_at and each.status is not RunStatus.PAUSED]
    if not held or not isinstance(store, Timers):
        return []
    nearest = min(held, key=lambda each: each.wake_at)
    due = await store.next_due(workflow)
    if due is not None and due <= nearest.wake_at:
        return []
    # It may have been woken since it was read.
    try:
        if (await store.load(workflow, nearest.run_id)).wake_at != nearest.wake_at:
            return []
    except RunNotFound:
        return []
    return [f"{workflow}/{nearest.run_id} waits until {nearest.wake_at}, the nearest timer is {due}"]


def examine(record: RunRecord, entries: Sequence[tuple[int, bytes]]) -> list[str]:
    """What is wrong with one run, given its record and its whole journal as (seq, raw)."""
    name = f"{record.workflow}/{record.run_id}"
    try:
        journal = [parse(seq, raw) for seq, raw in entries]
    except (ValueError, TypeError) as error:
        return [f"{name}: an entry of the journal cannot be read: {error}"]
    problems = [*_sequence(record, journal), *_status(record, journal)]
    if journal:
        problems += [*_beginning(record, journal), *_attempts(record, journal), *_endings(record, journal)]
        problems += _outcomes(journal)
    return [f"{name}: {problem}" for problem in problems]


def _sequence(record: RunRecord, journal: Sequence[Entry]) -> Iterator[str]:
    for expected, each in enumerate(journal, 1):
        if each.seq != expected:
            yield f"seq {each.seq} stands where {expected} should"
            return
    if record.seq != len(journal):
        yield f"the last seq is {record.seq}, the journal has {len(journal)} entries"
    if record.attempt and not journal:
        yield "it was claimed and has no journal"


def _goes_on(record: RunRecord) -> bool:
    """True for a journal that others came before: of the same run, or of the one it was forked from."""
    return record.link > 1 or b'"forked_from"' in record.headers


def _beginning(record: RunRecord, journal: Sequence[Entry]) -> Iterator[str]:
    first = journal[0]
    if first.type != EventType.RUN_SUBMITTED:
        yield f"the journal begins with {first.type}"
    elif first.at != record.submitted_at and not _goes_on(record):
        yield f"it was submitted at {record.submitted_at}, by its journal at {first.at}"
    for kind in (EventType.RUN_SUBMITTED, EventType.RUN_STARTED):
        found = [each.seq for each in journal if each.type == kind]
        if len(found) > 1:
            yield f"{kind} stands at {found}"
    claims = [each for each in journal if each.type in _CLAIMED]
    if claims and claims[0].type != EventType.RUN_STARTED:
        yield f"its first claim wrote {claims[0].type}"
    if record.input:
        yield "its input is kept beside a journal that holds it"


def _attempts(record: RunRecord, journal: Sequence[Entry]) -> Iterator[str]:
    """Each claim counts one up, and what follows is written under it, until the next."""
    current = 0
    for each in journal:
        if each.type in _CLAIMED:
            earlier = not current and _goes_on(record)
            if each.attempt != current + 1 and not earlier:
                yield f"seq {each.seq}, {each.type}, has attempt {each.attempt} after {current}"
            current = each.attempt
        elif each.attempt != current and not (each.attempt == 0 and each.type in _FROM_OUTSIDE):
            yield f"seq {each.seq}, {each.type}, was written under attempt {each.attempt} during {current}"
    if record.attempt != current:
        yield f"its attempt is {record.attempt}, by its journal {current}"


def _endings(record: RunRecord, journal: Sequence[Entry]) -> Iterator[str]:
    for each, following in pairwise(journal):
        if each.type not in TERMINAL_TYPES:
            continue
        if each.type != EventType.RUN_FAILED or following.type != EventType.RUN_RETRIED:
            yield f"seq {each.seq}, {each.type}, is followed by {following.type}"
    last = journal[-1]
    if last.type in TERMINAL_TYPES:
        if record.status is not _ENDS_AS[last.type]:
            yield f"it is {record.status}, its journal ends with {last.type}"
        elif record.error:
            yield f"it is set aside, its journal ends with {last.type}"
    elif record.status is RunStatus.FAILED:
        if not record.error:
            yield f"it is failed, its journal ends with {last.type}, and no reason is kept"
    elif record.status in ENDED:
        yield f"it is {record.status}, its journal ends with {last.type}"


def _status(record: RunRecord, journal: Sequence[Entry]) -> Iterator[str]:
    status = record.status
    if (record.epoch % 2 == 1) is not (status is RunStatus.RUNNING):
        yield f"it is {status} in epoch {record.epoch}"
    if (record.finished_at > 0) is not (status in ENDED):
        yield f"it is {status} and finished at {record.finished_at}"
    if (record.started_at > 0) is not (record.attempt > 0):
        yield f"it was claimed {record.attempt} times and started at {record.started_at}"
    if status is RunStatus.RUNNING and not record.worker:
        yield "it is running and nobody's"
    if status in ENDED and not journal:
        yield f"it is {status} and has no journal"
    if status is RunStatus.QUEUED and not journal and not record.input:
        yield "it is queued for the first time, and its input is gone"
    if status in (RunStatus.SLEEPING, RunStatus.WAITING) and not (record.wake_at or record.topic):
        yield f"it is {status}, and neither a time nor a message will wake it"
    if status not in PARKED and record.topic:
        yield f"it is {status} and waits for {record.topic!r}"
    if status not in PARKED and status is not RunStatus.QUEUED and record.wake_at:
        yield f"it is {status} and has a timer"


def _outcomes(journal: Sequence[Entry]) -> Iterator[str]:
    """No call has two outcomes; what failed may be done again after a retry of the run."""
    known: dict[str, Entry] = {}
    for each in journal:
        if each.type == EventType.RUN_RETRIED:
            known = {key: outcome for key, outcome in known.items() if outcome.type not in _MADE_ANEW}
        elif each.type == EventType.CHECKPOINT_SAVED and each.data.get("restart"):
            known = {}  # calls are counted anew behind it
        elif each.type in _OUTCOMES and each.key:
            first = known.setdefault(each.key, each)
            if first is not each:
                yield f"{each.key!r} has {first.type} at seq {first.seq} and {each.type} at seq {each.seq}"
