"""Updates: what callers ask of a live run and get an answer to. Each is applied where a wait opens, once.

A handler changes what the body knows, so a replay calls it again at the same place, with the recorded payload.
An update that its validator rejects leaves nothing in the journal.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pyrula.actors.attempt import Attempt
from pyrula.actors.core.failures import describe
from pyrula.actors.core.journal import Kind, Record
from pyrula.actors.core.scope import UPDATE
from pyrula.contracts.errors import InvalidInput, PyrulaError
from pyrula.contracts.events import EventType, raw_json
from pyrula.contracts.ids import check_id
from pyrula.contracts.mail import Mail, MailKind
from pyrula.contracts.values import decode, encode

__all__ = ["REPLY", "Handler", "apply_updates", "on_update"]

REPLY = "@update:"
"""Under this and the update's id a run publishes the answer."""

Handler = tuple[Callable[[Any], Any], Callable[[Any], Any] | None]


def on_update(
    attempt: Attempt, name: str, handler: Callable[[Any], Any], validator: Callable[[Any], Any] | None
) -> None:
    """Have updates of a name handled from here on."""
    check_id(name, "update")
    for each, what in ((handler, "handler"), (validator, "validator")):
        if not callable(each) and not (each is None and what == "validator"):
            raise InvalidInput(f"ctx.on_update({name!r}): {each!r} is no {what}; give a function of the payload", what)
    attempt.handlers[name] = (handler, validator)


async def apply_updates(attempt: Attempt, wait: Record | None) -> None:
    """Apply what is recorded before the wait's outcome, then what has come. The wait is the body's own."""
    scope = attempt.current_scope()
    end = None if wait is None or wait.outcome is None else wait.outcome.seq
    while (record := attempt.journal.peek(scope.next_key(UPDATE))) is not None and (end is None or record.since < end):
        await _again(attempt, scope.key(UPDATE))
    if end is None and not attempt.cancel.pending and not attempt.cancel.delivered and not attempt.barred:
        for mail in [m for m in attempt.mail if m.kind == MailKind.UPDATE and m.name in attempt.handlers]:
            await _apply(attempt, mail)


async def _again(attempt: Attempt, key: str) -> None:
    """Call the handler of a recorded update; go on with it where its outcome is not recorded."""
    record = attempt.match(key, Kind.UPDATE)
    assert record is not None
    entry = record.opened or record.outcome
    assert entry is not None
    name, message_id = entry.data["name"], entry.data["message_id"]
    if name not in attempt.handlers:
        raise InvalidInput(
            f"the journal holds an update {name!r} here, and the code handles none of that name", "update"
        )
    try:
        result = await _called(attempt.handlers[name][0], entry.data["payload"])
    except Exception as error:  # noqa: BLE001 - the author's own, and recorded as the update's outcome
        if record.outcome is None:
            await _record(attempt, key, name, message_id, error=error)
        return
    if record.outcome is None:
        await _record(attempt, key, name, message_id, result=result)


async def _apply(attempt: Attempt, mail: Mail) -> None:
    handler, validator = attempt.handlers[mail.name]
    if validator is not None:
        try:
            await _called(validator, mail.payload)
        except Exception as error:  # noqa: BLE001 - whatever the author's validator raises is the answer
            attempt.consume(mail)
            attempt.recorder.discard(mail.raw)
            await _answer(attempt, mail.message_id, {"status": "rejected", "error": describe(error)})
            return
    key = attempt.current_scope().key(UPDATE)
    attempt.match(key, Kind.UPDATE)
    attempt.consume(mail)
    payload = raw_json(encode(mail.payload, path="payload"))
    data = {"name": mail.name, "message_id": mail.message_id, "payload": payload}
    await attempt.recorder.flush(attempt.recorder.add(EventType.UPDATE_ACCEPTED, key, data, mail.raw))
    try:
        result = await _called(handler, mail.payload)
    except Exception as error:  # noqa: BLE001 - the author's own
        await _record(attempt, key, mail.name, mail.message_id, error=error)
        return
    await _record(attempt, key, mail.name, mail.message_id, result=result)


async def _called(function: Callable[[Any], Any], payload: Any) -> Any:
    value = function(payload)
    return await value if inspect.isawaitable(value) else value


async def _record(
    attempt: Attempt, key: str, name: str, message_id: str, *, result: Any = None, error: Exception | None = None
) -> None:
    """Answer, then record how the update ended: so what is recorded has been answered."""
    data: dict[str, Any] = {"name": name}
    kind, answer = EventType.UPDATE_APPLIED, {"status": "applied"}
    if error is None:
        try:
            raw = encode(result, path="result", limit=attempt.settings.payload_limit)
            data["result"], answer["result"] = raw_json(raw), decode(raw)
        except PyrulaError as refused:
            error = refused
    if error is not None:
        kind = EventType.UPDATE_FAILED
        data["error"] = describe(error)
        answer = {"status": "failed", "error": data["error"]}
    await _answer(attempt, message_id, answer)
    await attempt.recorder.flush(attempt.record(kind, key, data))


async def _answer(attempt: Attempt, message_id: str, answer: dict[str, Any]) -> None:
    raw = encode(answer, path="answer")
    await attempt.recorder.through_outages(lambda: attempt.store.commit(attempt.claim, REPLY + message_id, raw))
