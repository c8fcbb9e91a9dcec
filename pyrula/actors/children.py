"""Child runs: started once, waited for over any number of attempts, closed when their parent ends.

A child's id follows from the call's place, so a parent that is replayed finds the same child. Its worker tells
the parent of its end by a message to the parent's inbox; a look at the child now and then is the safety net.
A parent that only waits for children gives its place to others, and after a while it parks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import anyio

from pyrula.actors.attempt import Attempt
from pyrula.actors.calls import Call
from pyrula.actors.core.journal import Kind, Record
from pyrula.actors.core.scope import CHILD
from pyrula.actors.parking import park, take_slot
from pyrula.actors.tracing import submitted
from pyrula.contracts.children import Child, ParentClose, Parents, cause_of, derived_run_id, parent_of
from pyrula.contracts.errors import (
    ChildTimedOut,
    ChildWorkflowError,
    InvalidInput,
    ReplayInputChanged,
    RunNotFound,
    StoreError,
    StoreUnavailable,
)
from pyrula.contracts.events import EventType, parse, raw_json
from pyrula.contracts.mail import Mail, MailKind, pack
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Message, NewRun, Parking, RunRecord, Store
from pyrula.contracts.values import encode

__all__ = [
    "ChildSpec",
    "checked_close",
    "close_children",
    "close_open",
    "run_child",
    "send_signal",
    "spawn",
    "tell_parent",
]

log = logging.getLogger("pyrula.run")

WAITING_FOR_CHILD: Final = "child"
"""What a parked parent waits for; the message of any child's end wakes it."""
_STAYS: Final = 20.0
"""So many seconds a parent waits in its worker before it parks, unless the worker's settings say less."""
_STAYS_AGAIN: Final = 1.0
"""The same for one that comes back and finds its child still running."""
_LOOKS_RARELY: Final = 20
"""The pauses between looks at a child grow to so many times the first one."""
_PARKED: Final = (30.0, 3600.0)
"""A parked parent is woken to look after a tenth of the time it has waited, within these bounds in seconds."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One `ctx.run_child`: `make` builds the submission for a run id. Times in seconds."""

    make: Callable[[str, dict[str, Any] | None], NewRun]
    timeout: float | None
    poll_interval: float
    parent_close: ParentClose


async def run_child(attempt: Attempt, spec: ChildSpec) -> tuple[str, Any]:
    """Start the child, or find it again, and wait for its end: its workflow's name and its result as JSON.

    Raises `ChildWorkflowError` for one that did not complete, `ChildTimedOut` after the timeout.
    """
    if attempt.barred:
        await attempt.refused()
    scope = attempt.current_scope()
    key = scope.key(CHILD)
    record = attempt.match(key, Kind.CHILD)
    begun = None if record is None else record.opened or record.outcome
    child_id = derived_run_id(attempt.identity, key) if begun is None else begun.data["run_id"]
    new = spec.make(child_id, {"parent": {"workflow": attempt.claim.workflow, "run_id": attempt.claim.run_id}})
    _same(attempt, record, new)
    if await attempt.stands(record):
        assert record is not None
        assert record.outcome is not None
        await attempt.in_turn(record.outcome.seq)
        return new.workflow, _outcome(new.workflow, child_id, record.outcome.type, record.outcome.data)
    call = attempt.begin(key, f"child run of {new.workflow}", scope)
    call.waited = False
    try:
        if attempt.loop.scoped:
            with anyio.CancelScope() as call.scope:
                return new.workflow, await _live(attempt, spec, call, record, new)
            raise await attempt.loop.cancellation(direct=call.direct)
        return new.workflow, await _live(attempt, spec, call, record, new)
    finally:
        if call.interrupted:
            attempt.loop.calm()
        attempt.end(call)


def _same(attempt: Attempt, record: Record | None, new: NewRun) -> None:
    """Refuse a child that is recorded as another one."""
    entry = None if record is None else record.opened or record.outcome
    if record is None or entry is None or "workflow" not in entry.data:
        return
    for what, recorded, asked in (
        ("workflow", entry.data["workflow"], new.workflow),
        ("input", entry.data["input_digest"], new.input_digest),
    ):
        if recorded != asked:
            shown = f"{recorded!r}" if what == "workflow" else f"another input (digest {recorded})"
            raise attempt.refuse(
                ReplayInputChanged(
                    f"the journal holds a child run of {shown} at {record.key!r}, the code now asks for "
                    f"{new.workflow!r} with digest {new.input_digest}; restore the code, then retry the run",
                    recorded=str(recorded),
                    asked=str(asked),
                )
            )


async def _live(attempt: Attempt, spec: ChildSpec, call: Call, record: Record | None, new: NewRun) -> Any:
    again = record is not None and record.opened is not None
    if record is not None and record.opened is not None:
        deadline, since = record.opened.data["deadline"], record.opened.at
    else:
        since = attempt.now()
        deadline = None if spec.timeout is None else since + int(spec.timeout * 1e6)
        data = {
            "workflow": new.workflow,
            "run_id": new.run_id,
            "input_digest": new.input_digest,
            "deadline": deadline,
            "parent_close": str(spec.parent_close),
        }
        await attempt.recorder.flush(attempt.recorder.add(EventType.CHILD_STARTED, call.key, data))
    attempt.children[call.key] = Child(new.workflow, new.run_id, spec.parent_close)
    if not (again and await _exists(attempt, new)):
        await _start(attempt, spec, new, again=again)
    ended = await _wait(attempt, spec, call, new, deadline=deadline, since=since, again=again)
    return await _collect(attempt, call, new, ended)


async def _exists(attempt: Attempt, new: NewRun) -> bool:
    try:
        await attempt.recorder.through_outages(lambda: attempt.store.load(new.workflow, new.run_id, ends=False))
    except RunNotFound:
        return False
    return True


async def _start(attempt: Attempt, spec: ChildSpec, new: NewRun, *, again: bool) -> None:
    store = attempt.store
    if spec.parent_close is not ParentClose.ABANDON and isinstance(store, Parents):
        child = Child(new.workflow, new.run_id, spec.parent_close)
        await attempt.recorder.through_outages(lambda: store.adopt(attempt.claim, child))
    if not attempt.open():  # a worker that stood still must not start what others may have closed meanwhile
        await attempt.admit()
    [answer] = await attempt.recorder.through_outages(lambda: submitted(store, [new]))
    if answer.status is RunStatus.FAILED and not again:
        # It failed its parent, which is retried: then so is the child.
        about = encode({"by": "parent"})
        await attempt.recorder.through_outages(lambda: store.revive(new.workflow, new.run_id, about))


async def _wait(
    attempt: Attempt, spec: ChildSpec, call: Call, new: NewRun, *, deadline: int | None, since: int, again: bool
) -> tuple[RunRecord | None, Mail | None]:
    """Wait for the child's end: its record (None after the deadline), and the message that told of it."""
    call.retrying = True  # it rests: whoever parks the run need not wait for it
    attempt.call_rests()
    pause = first = max(0.01, spec.poll_interval)
    stays = anyio.current_time() + min(attempt.settings.child_stay, _STAYS_AGAIN if again else _STAYS)
    limit = anyio.current_time() + attempt.settings.cancel_timeout if attempt.cancel.delivered else None
    try:
        while True:
            heard = attempt.news
            mail = next((m for m in attempt.mail if m.kind == MailKind.CHILD and m.name == new.run_id), None)
            record = await attempt.recorder.through_outages(lambda: attempt.store.load(new.workflow, new.run_id))
            if _has_ended(record):
                return record, mail
            left = None if deadline is None else (deadline - attempt.now()) / 1e6
            if left is not None and left <= 0:
                return None, None
            if limit is not None and anyio.current_time() >= limit:
                # In the clean-up of a cancelled run a call is bounded.
                raise await attempt.loop.cancellation(direct=call.direct)
            if attempt.pausing is not None and not attempt.open():
                await attempt.admit()
            await _rest(attempt, call, since, deadline, stays)
            with anyio.move_on_after(pause if left is None else min(pause, left)):
                while attempt.news == heard:
                    await attempt.next_mail()
            pause = first if attempt.news != heard else min(pause * 2, first * _LOOKS_RARELY)
    finally:
        call.retrying = False
        attempt.take_place_back()


async def _rest(attempt: Attempt, call: Call, since: int, deadline: int | None, stays: float) -> None:
    """Give the place to others while nothing but waiting is done; park when that lasts."""
    if attempt.cancel.delivered or not all(other.retrying for other in attempt.calls) or attempt.slot is not None:
        return
    lent = attempt.lend_place()
    if lent and anyio.current_time() < stays:
        return
    shortest, longest = _PARKED
    now = attempt.now()
    wake = now + int(min(longest, max(shortest, (now - since) / 1e7)) * 1e6)
    if deadline is not None:
        wake = min(wake, deadline)
    await take_slot(attempt)
    await park(attempt, Parking(RunStatus.WAITING, WAITING_FOR_CHILD, wake), None, own=call)


def _has_ended(record: RunRecord) -> bool:
    """True when it is over for good; one that was set aside may go on."""
    return record.status.ended and not record.error


async def _collect(attempt: Attempt, call: Call, new: NewRun, ended: tuple[RunRecord | None, Mail | None]) -> Any:
    """Record how the wait ended, and give or raise it."""
    record, mail = ended
    data: dict[str, Any] = {"workflow": new.workflow, "run_id": new.run_id, "input_digest": new.input_digest}
    if record is None:
        kind = EventType.CHILD_TIMED_OUT
    else:
        assert record.last is not None
        terminal = parse(*record.last)
        if terminal.type == EventType.RUN_COMPLETED:
            kind = EventType.CHILD_COMPLETED
            data["result"] = raw_json(encode(terminal.data["result"]))
        else:
            kind = EventType.CHILD_FAILED
            error = (
                terminal.data.get("error", terminal.data) if terminal.type == EventType.RUN_FAILED else terminal.data
            )
            data |= {"status": str(record.status), "error": error}
    if mail is not None:
        attempt.consume(mail)
    seq = attempt.record(kind, call.key, data, None if mail is None else mail.raw)
    call.settled = True
    await attempt.recorder.flush(seq)
    if record is not None:
        child = attempt.children.pop(call.key)
        store = attempt.store
        if child.parent_close is not ParentClose.ABANDON and isinstance(store, Parents):
            await attempt.recorder.through_outages(lambda: store.collected(attempt.claim, child.run_id))
    if kind == EventType.CHILD_COMPLETED:
        assert record is not None
        assert record.last is not None
        return parse(*record.last).data["result"]
    return _outcome(new.workflow, new.run_id, kind, data)


def _outcome(workflow: str, child_id: str, kind: str, data: dict[str, Any]) -> Any:
    if kind == EventType.CHILD_COMPLETED:
        return data["result"]
    if kind == EventType.CHILD_TIMED_OUT:
        raise ChildTimedOut(workflow, child_id, "has not ended within the timeout")
    raise ChildWorkflowError(workflow, child_id, data["status"], data["error"])


# --- what else a body does to other runs ----------------------------------------------------


async def spawn(attempt: Attempt, make: Callable[[str, dict[str, Any] | None], NewRun]) -> str:
    """Start a run of its own, once over all attempts; its id."""
    if attempt.barred:
        await attempt.refused()
    key = attempt.current_scope().key(CHILD)
    new = make(derived_run_id(attempt.identity, key), None)
    record = attempt.match(key, Kind.SPAWN)
    _same(attempt, record, new)
    if await attempt.stands(record):
        return new.run_id
    await attempt.recorder.through_outages(lambda: submitted(attempt.store, [new]))
    data = {"workflow": new.workflow, "run_id": new.run_id, "input_digest": new.input_digest}
    await attempt.recorder.flush(attempt.record(EventType.RUN_SPAWNED, key, data))
    return new.run_id


async def send_signal(attempt: Attempt, workflow: str, run_id: str, name: str, payload: Any) -> None:
    """Deliver a signal to another run, once over all attempts. Raises `RunNotFound`; one that has ended takes none."""
    if attempt.barred:
        await attempt.refused()
    key = attempt.current_scope().key(CHILD)
    message_id = derived_run_id(attempt.identity, key)
    raw = pack(MailKind.SIGNAL, message_id, name, payload, limit=attempt.settings.payload_limit)
    record = attempt.match(key, Kind.SEND)
    if await attempt.stands(record):
        assert record is not None
        assert record.outcome is not None
        if record.outcome.data["found"] is False:
            raise RunNotFound(workflow, run_id)
        return
    message = Message(message_id, f"signal:{name}", raw)
    found = True
    try:
        await attempt.recorder.through_outages(lambda: attempt.store.deliver(workflow, run_id, message))
    except RunNotFound:
        found = False
    data = {"workflow": workflow, "run_id": run_id, "name": name, "found": found}
    await attempt.recorder.flush(attempt.record(EventType.SIGNAL_SENT, key, data))
    if not found:
        raise RunNotFound(workflow, run_id)


# --- when a run ends ----------------------------------------------------------------------------


async def close_open(attempt: Attempt, ended: str) -> None:
    """Close the children that are open, as each was told to be: before the parent's terminal event is written."""
    children = list(attempt.children.values())
    if children:
        claim = attempt.claim
        await attempt.recorder.through_outages(
            lambda: close_children(
                attempt.store, claim.workflow, claim.run_id, children, ended, attempt.settings.completed_ttl
            )
        )


async def close_children(
    store: Store, workflow: str, run_id: str, children: Sequence[Child], ended: str, completed_ttl: float
) -> None:
    """Close these children of a run. May be repeated: each is closed once. Raises `StoreUnavailable`."""
    cause = cause_of(workflow, run_id, ended)
    for child in children:
        if child.parent_close is ParentClose.ABANDON:
            continue
        try:
            # A terminated parent had no say in it, and leaves no worker to wait for.
            if child.parent_close is ParentClose.TERMINATE or ended == "terminated":
                await _terminate(store, child, cause, completed_ttl)
            else:
                message_id = f"parent:{run_id}:{child.run_id}"
                raw = pack(MailKind.CANCEL, message_id, "parent", cause)
                await store.deliver(child.workflow, child.run_id, Message(message_id, "", raw, control=True))
        except RunNotFound:
            continue  # it was never submitted, or is gone already


async def _terminate(store: Store, child: Child, cause: dict[str, Any], completed_ttl: float) -> None:
    keep_ms = int(completed_ttl * 1000)
    before = await store.terminate(child.workflow, child.run_id, encode(cause), keep_ms=keep_ms)
    if isinstance(store, Parents) and not before.ended:
        grandchildren = await store.open_children(child.workflow, child.run_id)
        await close_children(store, child.workflow, child.run_id, grandchildren, "terminated", completed_ttl)


async def tell_parent(store: Store, run_id: str, headers: bytes) -> None:
    """Tell a run's parent, if it has one, that the run has ended. The parent finds out by itself if that fails."""
    parent = parent_of(headers)
    if parent is None:
        return
    message_id = f"child:{run_id}"
    message = Message(message_id, WAITING_FOR_CHILD, pack(MailKind.CHILD, message_id, run_id, None))
    try:
        await store.deliver(*parent, message)
    except RunNotFound:
        return
    except StoreUnavailable as error:
        log.debug("run %s: its parent %s was not told of its end: %s", run_id, parent[1], error)
    except StoreError as error:
        log.warning("run %s: its parent %s was not told of its end: %s", run_id, parent[1], error)


def checked_close(parent_close: str) -> ParentClose:
    """The policy by its name. Raises `InvalidInput`."""
    try:
        return ParentClose(parent_close)
    except ValueError:
        raise InvalidInput(
            f"parent_close={parent_close!r} is none of {', '.join(ParentClose)}", "parent_close"
        ) from None
