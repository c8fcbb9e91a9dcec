"""Sleeping and waiting: what a body may suspend for. One slot a run; see `parking`.

A wait looks in the journal, then in the inbox, then at the clock, and parks the run when none
of them has an answer.
"""

from __future__ import annotations

from typing import Any

import anyio

from pyrula.actors.attempt import Attempt
from pyrula.actors.core.journal import Kind, Record
from pyrula.actors.core.scope import WAIT
from pyrula.actors.parking import free_slot, park, take_slot
from pyrula.actors.updating import apply_updates
from pyrula.contracts.errors import InvalidInput, ReplayInputChanged, SignalTimeout, SuspendInGatherLeg
from pyrula.contracts.events import Entry, EventType, raw_json
from pyrula.contracts.ids import check_id
from pyrula.contracts.mail import Mail, MailKind
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Parking
from pyrula.contracts.values import encode

__all__ = ["interrupt", "sleep_until", "wait_for_signal"]


def _key(attempt: Attempt, what: str) -> str:
    scope = attempt.current_scope()
    if scope.in_gather:
        branch = "thread" if scope.in_thread else "leg of ctx.gather"
        raise SuspendInGatherLeg(
            f"ctx.{what} inside a {branch}: a run has one suspension slot; wait in the body, before or after it"
        )
    return scope.key(WAIT)


def _deadline(attempt: Attempt, record: Record | None, timeout: float | None) -> int | None:
    """The recorded deadline stands; else the timeout counts from now."""
    if record is not None and record.opened is not None:
        recorded: int | None = record.opened.data.get("deadline")
        return recorded
    return None if timeout is None else attempt.now() + int(timeout * 1e6)


def _number(value: float | None, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise InvalidInput(f"{what} needs a number of seconds, not {value!r}", what)
    if abs(value) > 3e9:
        raise InvalidInput(f"{what}={value!r} s is more than 95 years", what)


async def sleep_until(attempt: Attempt, when: int | None, seconds: float | None = None) -> None:
    """Sleep until a time (microseconds), or for some seconds from now, over any number of attempts."""
    if when is None:
        _number(seconds, "seconds")
    if attempt.barred:
        await attempt.refused()
    key = _key(attempt, "sleep" if when is None else "sleep_until")
    record = attempt.match(key, Kind.SLEEP)
    if attempt.handlers:
        await _updated(attempt, record)
    if await attempt.stands(record):
        await _met(attempt, record)
        return
    if record is not None and record.opened is not None:
        wake = record.opened.data["wake"]
    else:
        wake = when if when is not None else attempt.now() + int(max(0.0, seconds or 0.0) * 1e6)
    if attempt.cancel.delivered:
        await _sleep_in_place(attempt, wake)
    elif attempt.now() < wake:
        await take_slot(attempt)
        opener = None if record is not None else (EventType.TIMER_SET, key, {"wake": wake})
        await park(attempt, Parking(RunStatus.SLEEPING, "", wake), opener)
    # That the time has come needs no proof on disk before the body goes on: it stays so.
    attempt.record(EventType.TIMER_FIRED, key, {})


async def _updated(attempt: Attempt, record: Record | None) -> None:
    """Apply updates before the wait opens."""
    if (record is None or record.outcome is None) and attempt.open():
        await _refreshed(attempt)
    await apply_updates(attempt, record)


async def _sleep_in_place(attempt: Attempt, wake: int) -> None:
    """In the clean-up of a cancelled run nothing parks; a sleep is bounded like any call there."""
    left = max(0, wake - attempt.now()) / 1e6
    await anyio.sleep(min(left, attempt.settings.cancel_timeout))
    if left > attempt.settings.cancel_timeout:
        raise await attempt.loop.cancellation()


async def _refreshed(attempt: Attempt) -> None:
    """Read the inbox again when there is something new in it."""
    if attempt.mail_stale:
        attempt.mail_stale = False
        attempt.receive(await attempt.recorder.through_outages(lambda: attempt.store.inbox(attempt.claim)))
        if not attempt.open():
            await attempt.admit()


async def _wait(
    attempt: Attempt,
    key: str,
    record: Record | None,
    opener: tuple[str, str, dict[str, Any]],
    *,
    topic: str,
    deadline: int | None,
    accepts: Any,
    received: str,
    timed_out: str,
) -> Any:
    """Take the message that answers this wait, or time out, or park."""
    if not attempt.open():
        await attempt.admit()
    await _refreshed(attempt)
    mail: Mail | None = next((m for m in attempt.mail if accepts(m)), None)
    if mail is None and attempt.cancel.delivered:
        # Nothing parks in the clean-up of a cancelled run.
        raise await attempt.loop.cancellation()
    if mail is None and (deadline is None or attempt.now() < deadline):
        await take_slot(attempt)
        mail = next((m for m in attempt.mail if accepts(m)), None)
        if mail is None:
            await park(attempt, Parking(RunStatus.WAITING, topic, deadline), None if record is not None else opener)
        free_slot(attempt)
    if mail is None:
        await attempt.recorder.flush(attempt.record(timed_out, key, {}))
        raise SignalTimeout(f"nothing came for {topic!r} before its deadline")
    attempt.consume(mail)
    raw = raw_json(encode(mail.payload, path="payload"))
    data = {"name": mail.name, "message_id": mail.message_id, "payload": raw}
    await attempt.recorder.flush(attempt.record(received, key, data, mail.raw))
    return mail.payload


async def _met(attempt: Attempt, record: Record | None) -> Entry:
    """The recorded outcome of a wait, in its turn."""
    assert record is not None
    assert record.outcome is not None
    await attempt.in_turn(record.outcome.seq)
    return record.outcome


def _outcome(outcome: Entry, topic: str, timed_out: str) -> Any:
    if outcome.type == timed_out:
        raise SignalTimeout(f"nothing came for {topic!r} before its deadline")
    return outcome.data["payload"]


def _same(attempt: Attempt, record: Record | None, field: str, asked: str, what: str) -> None:
    """Refuse a wait that is recorded under another name."""
    if record is None:
        return
    entry = record.opened or record.outcome
    assert entry is not None
    recorded = entry.data.get(field)
    if recorded is not None and recorded != asked:
        raise attempt.refuse(
            ReplayInputChanged(
                f"the journal holds a wait for {what} {recorded!r} at {record.key!r}, "
                f"the code now waits for {asked!r}; restore the code, then retry the run",
                recorded=str(recorded),
                asked=asked,
            )
        )


async def wait_for_signal(attempt: Attempt, name: str, timeout: float | None) -> Any:
    """The next buffered payload of a signal, first come first served. Raises `SignalTimeout`."""
    check_id(name, "signal")  # as the client does: nobody could send another
    if timeout is not None:
        _number(timeout, "timeout")
    if attempt.barred:
        await attempt.refused()
    key = _key(attempt, "wait_for_signal")
    record = attempt.match(key, Kind.SIGNAL)
    if attempt.handlers:
        await _updated(attempt, record)
    _same(attempt, record, "name", name, "signal")
    topic = f"signal:{name}"
    if await attempt.stands(record):
        return _outcome(await _met(attempt, record), topic, EventType.SIGNAL_TIMED_OUT)
    deadline = _deadline(attempt, record, timeout)
    return await _wait(
        attempt,
        key,
        record,
        (EventType.SIGNAL_AWAITED, key, {"name": name, "deadline": deadline}),
        topic=topic,
        deadline=deadline,
        accepts=lambda m: m.kind == MailKind.SIGNAL and m.name == name,
        received=EventType.SIGNAL_RECEIVED,
        timed_out=EventType.SIGNAL_TIMED_OUT,
    )


async def interrupt(attempt: Attempt, question: Any, name: str | None, timeout: float | None) -> Any:
    """Ask a person; the answer is what `client.resume` gives. Raises `SignalTimeout`."""
    if name is not None:
        check_id(name, "key")
    if timeout is not None:
        _number(timeout, "timeout")
    if attempt.barred:
        await attempt.refused()
    key = _key(attempt, "interrupt")
    record = attempt.match(key, Kind.INTERRUPT)
    if attempt.handlers:
        await _updated(attempt, record)
    asked = name or key
    _same(attempt, record, "name", asked, "an answer to")
    topic = f"interrupt:{asked}"
    if await attempt.stands(record):
        return _outcome(await _met(attempt, record), topic, EventType.INTERRUPT_TIMED_OUT)
    deadline = _deadline(attempt, record, timeout)
    raw = raw_json(encode(question, path="question", limit=attempt.settings.payload_limit))
    return await _wait(
        attempt,
        key,
        record,
        (EventType.INTERRUPT_RAISED, key, {"name": asked, "question": raw, "deadline": deadline}),
        topic=topic,
        deadline=deadline,
        accepts=lambda m: m.kind == MailKind.ANSWER and m.name == asked,
        received=EventType.INTERRUPT_RESUMED,
        timed_out=EventType.INTERRUPT_TIMED_OUT,
    )
