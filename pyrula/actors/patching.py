"""Branches for code that changed under live runs: which of them a run takes is decided once, and recorded."""

from __future__ import annotations

from pyrula.actors.attempt import Attempt
from pyrula.actors.core.journal import Kind
from pyrula.actors.core.scope import PATCH, escape
from pyrula.contracts.errors import InvalidInput
from pyrula.contracts.events import EventType
from pyrula.contracts.ids import check_text

__all__ = ["deprecate_patch", "patched"]


def _checked(patch_id: str) -> str:
    if not isinstance(patch_id, str) or not patch_id:
        raise InvalidInput(f"a patch needs a non-empty string as its id, not {patch_id!r}", "id")
    check_text(patch_id, "id")
    return f"{PATCH}:{escape(patch_id)}"


async def patched(attempt: Attempt, patch_id: str) -> bool:
    """True where the run has the mark, or comes here for the first time; False where it has passed here without it.

    The same for a whole run, wherever and however often it is asked.
    """
    key = _checked(patch_id)
    if attempt.barred:
        await attempt.refused()
    attempt.current_scope()
    if patch_id in attempt.patches:
        return attempt.patches[patch_id]
    if attempt.journal.peek(key) is None and attempt.replaying and not attempt.cancel.pending:
        attempt.patches[patch_id] = False
        return False
    attempt.patches[patch_id] = True
    record = attempt.match(key, Kind.PATCH)
    if not await attempt.stands(record):
        await attempt.recorder.flush(attempt.record(EventType.PATCH_MARKED, key, {"id": patch_id}))
    return True


async def deprecate_patch(attempt: Attempt, patch_id: str) -> None:
    """Meet the mark where the run has one; leave one that later code need not ask for where it has none."""
    key = _checked(patch_id)
    if attempt.barred:
        await attempt.refused()
    attempt.current_scope()
    attempt.patches[patch_id] = True
    if attempt.journal.peek(key) is not None:
        attempt.match(key, Kind.PATCH)
    elif patch_id not in attempt.journal.deprecated and not attempt.replaying:
        attempt.journal.deprecated.add(patch_id)
        await attempt.recorder.flush(attempt.recorder.add(EventType.PATCH_DEPRECATED, "", {"id": patch_id}))
