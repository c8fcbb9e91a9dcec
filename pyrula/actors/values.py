"""Small recorded values: the time, ids, chance, checkpoints, published values, the output stream."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

import anyio

from pyrula.actors.attempt import Attempt
from pyrula.actors.core.journal import Kind, never_asked
from pyrula.actors.core.scope import RESTART, VALUE
from pyrula.contracts.errors import InvalidInput, SuspendInGatherLeg
from pyrula.contracts.events import EventType, raw_json
from pyrula.contracts.ids import check_text
from pyrula.contracts.values import decode, encode

__all__ = ["checkpoint", "commit", "new_uuid", "now", "random_number", "set_attributes", "stream"]


async def _recorded(attempt: Attempt, kind: str, make: Callable[[], Any]) -> Any:
    """The value recorded at this place, or a new one, recorded before the body sees it."""
    if attempt.barred:
        await attempt.refused()
    key = attempt.current_scope().key(VALUE)
    record = attempt.match(key, kind)
    if await attempt.stands(record):
        assert record is not None
        assert record.outcome is not None
        return record.outcome.data["value"]
    value = make()
    await attempt.recorder.flush(attempt.record(EventType.VALUE_RECORDED, key, {"kind": kind, "value": value}))
    return value


async def now(attempt: Attempt) -> int:
    """The run's time (microseconds): when this was first asked."""
    value: int = await _recorded(attempt, Kind.NOW, attempt.now)
    return value


async def new_uuid(attempt: Attempt) -> uuid.UUID:
    """A random UUID (version 4)."""
    return uuid.UUID(await _recorded(attempt, Kind.UUID, lambda: str(uuid.uuid4())))


async def random_number(attempt: Attempt) -> float:
    """A float in [0, 1)."""
    value: float = await _recorded(attempt, Kind.RANDOM, random.random)
    return value


async def checkpoint(attempt: Attempt, state: Any, given: bool, *, restart: bool = False) -> Any:
    """Record a state and give it back; without one, give the last state recorded before this place.

    restart: later attempts replay nothing that came before.
    """
    if restart:
        return await _restart(attempt, state)
    if attempt.barred:
        await attempt.refused()
    key = attempt.current_scope().key(VALUE)
    record = attempt.match(key, Kind.CHECKPOINT)
    if await attempt.stands(record):
        assert record is not None
        assert record.outcome is not None
        return record.outcome.data["state"]
    if given:
        raw = encode(state, path="state", limit=attempt.settings.payload_limit)
    else:
        last = attempt.journal.checkpoint
        raw = encode(None if last is None else last.data["state"])
    decoded = decode(raw)
    seq = attempt.record(EventType.CHECKPOINT_SAVED, key, {"state": raw_json(raw)})
    await attempt.recorder.flush(seq)
    attempt.journal.remember_checkpoint(seq, decoded)
    return decoded


async def _restart(attempt: Attempt, state: Any) -> Any:
    """Record a state behind which replays start. It is always live: a replay that started behind it has passed it."""
    if attempt.barred:
        await attempt.refused()
    scope = attempt.current_scope()
    if scope is not attempt.root or attempt.calls:
        raise SuspendInGatherLeg(
            "ctx.checkpoint(restart=True) beside other calls: nothing else may be under way where replays start"
        )
    key = scope.key(RESTART)
    record = attempt.match(key, Kind.CHECKPOINT)
    await attempt.stands(record)
    if (left := await attempt.turns.all_asked()) is not None:
        raise attempt.refuse(never_asked(left))
    raw = encode(state, path="state", limit=attempt.settings.payload_limit)
    data = {"state": raw_json(raw), "restart": True}
    seq = attempt.record(EventType.CHECKPOINT_SAVED, key, data)
    await attempt.recorder.flush(seq)
    decoded = decode(raw)
    attempt.journal.remember_restart(seq, key, decoded)
    scope.restart()
    return decoded


async def stream(attempt: Attempt, chunk: Any) -> None:
    """Append a chunk to the run's output, once over all attempts.

    It is recorded with its number first and then written, one chunk after the other; so of all
    recorded ones only the last may not have been written, and it is written again, which
    changes nothing where it is there, before the first new one or when a replay comes to it.
    """
    raw = encode(chunk, path="chunk", limit=attempt.settings.payload_limit)
    if attempt.barred:
        await attempt.refused()
    # A step that runs again streams again: its chunks are numbered, and nobody asks for them on a replay.
    key = "" if attempt.inside_step else attempt.current_scope().key(VALUE)
    record = attempt.match(key, Kind.STREAM) if key else None
    if attempt.output is None:
        attempt.output = anyio.Lock()
    # A step that streams is waited for; its chunks are not held back.
    if key and await attempt.stands(record):
        assert record is not None
        if record.outcome is attempt.journal.chunk:
            async with attempt.output:
                await _written(attempt)
        return
    async with attempt.output:
        await _written(attempt)
        attempt.chunks += 1
        index = attempt.chunks
        add = attempt.record if key else attempt.recorder.add
        await attempt.recorder.flush(add(EventType.OUTPUT_WRITTEN, key, {"index": index, "chunk": raw_json(raw)}))
        await attempt.recorder.through_outages(lambda: attempt.store.write_output(attempt.claim, index, raw))


async def _written(attempt: Attempt) -> None:
    """Make sure that the last chunk which earlier attempts recorded is in the output."""
    if attempt.unwritten is not None:
        data = attempt.unwritten.data
        await attempt.recorder.through_outages(
            lambda: attempt.store.write_output(attempt.claim, data["index"], encode(data["chunk"]))
        )
        attempt.unwritten = None


async def commit(attempt: Attempt, name: str, value: Any) -> None:
    """Publish a named value, and record that it was, so that a replay does not publish it again."""
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"ctx.commit needs a non-empty string as its key, not {name!r}", "key")
    check_text(name, "key")
    if attempt.inside_step:  # it is published again when the step runs again, and not on a replay
        raw = encode(value, path=f"value of {name!r}", limit=attempt.settings.payload_limit)
        await attempt.recorder.through_outages(lambda: attempt.store.commit(attempt.claim, name, raw))
        return
    if attempt.barred:
        await attempt.refused()
    key = attempt.current_scope().key(VALUE)
    record = attempt.match(key, Kind.COMMIT)
    if await attempt.stands(record):
        return
    raw = encode(value, path=f"value of {name!r}", limit=attempt.settings.payload_limit)
    await attempt.recorder.through_outages(lambda: attempt.store.commit(attempt.claim, name, raw))
    await attempt.recorder.flush(attempt.record(EventType.VALUE_COMMITTED, key, {"name": name}))


def set_attributes(attempt: Attempt, values: dict[str, Any]) -> None:
    """Merge search attributes; they are written with the next record, at the latest when the attempt ends."""
    encode(values, path="attributes", limit=attempt.settings.payload_limit)
    merged = {**attempt.attributes, **values}
    if merged != attempt.attributes:
        attempt.attributes = merged
        attempt.attributes_changed = True
