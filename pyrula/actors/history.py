"""How long a journal may grow: a warning first, then no more calls. Nothing here changes a journal."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyrula.contracts.errors import HistoryTooLong

if TYPE_CHECKING:
    from pyrula.actors.attempt import Attempt

__all__ = ["check_history"]

log = logging.getLogger("pyrula.run")


def check_history(attempt: Attempt) -> None:
    """Say once that the journal grows long. Raises `HistoryTooLong` for one that is, but in a clean-up."""
    length, limit = attempt.recorder.seq, attempt.settings.history_limit
    if length >= limit and not (attempt.cancel.pending or attempt.cancel.delivered):
        raise HistoryTooLong(
            f"run {attempt.claim.run_id!r} has recorded {length} events, the limit is {limit}; "
            "go on in a new journal with ctx.continue_as_new"
        )
    if not attempt.warned:
        attempt.warned = True
        log.warning(
            "run %s has recorded %d events, and fails at %d; it should go on with ctx.continue_as_new",
            attempt.claim.run_id,
            length,
            limit,
        )
