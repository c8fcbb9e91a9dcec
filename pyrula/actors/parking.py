"""How a run parks: the one suspension slot, the calls that are waited for, and what happens to those that still come.

Whoever parks holds the slot. What is asked for after the decision is made on the attempt after it.
"""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import anyio

from pyrula.actors.attempt import Attempt
from pyrula.actors.calls import Call
from pyrula.actors.core.journal import never_asked
from pyrula.contracts.errors import Continued, Park, Shutdown, SuspendInGatherLeg
from pyrula.contracts.events import EventType
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Parking

__all__ = ["continue_as_new", "free_slot", "hold_back", "park", "take_slot"]

log = logging.getLogger("pyrula.run")


async def take_slot(attempt: Attempt) -> None:
    """Hold the run's one suspension slot, or wait until its holder has let go of it."""
    await attempt.admit()
    while attempt.slot is not None:
        await attempt.slot.wait()
        await attempt.admit()
    attempt.slot = anyio.Event()


def free_slot(attempt: Attempt) -> None:
    """The wait ended at once; the next one may open."""
    if attempt.slot is not None:
        attempt.slot.set()
        attempt.slot = None


async def park(
    attempt: Attempt, parking: Parking, opener: tuple[str, str, dict[str, Any]] | None, own: Call | None = None
) -> None:
    """Park the run: the slot is held. Waits for calls under way, then never returns but raises `Park`."""
    if attempt.poison is not None:
        raise attempt.poison
    scope = attempt.scope
    assert scope is not None
    attempt.closing = True
    # The decision stands: from here on the attempt's timeout bounds the calls under way, not the park.
    deadline, scope.deadline = scope.deadline, math.inf
    try:
        if _working(attempt, own):
            if opener is not None:
                await attempt.recorder.flush(attempt.recorder.add(*opener))
            await _drained(attempt, own)
        if attempt.cancel.pending and attempt.journal.cancel_seq > attempt.claim.seq:
            attempt.closing = False
            await attempt.admit()
    except BaseException:  # the request to cancel, or the body's own timeout around the wait: it goes on
        _reopen(attempt)
        scope.deadline = deadline
        raise
    if attempt.lines is not None:
        await attempt.lines.close()
    if opener is not None:
        attempt.recorder.add(*opener)
    # Shielded: what the store was asked for is not to be taken back by the body. A stop can.
    with anyio.CancelScope(shield=True) as writing:
        attempt.scope = writing
        try:
            await attempt.write_attributes()
            await attempt.recorder.park(parking, len(attempt.mail))
        finally:
            attempt.scope = scope
        scope.deadline = anyio.current_time() + attempt.settings.cancel_timeout  # for a body that goes on all the same
        raise attempt.close(Park(f"run {attempt.claim.run_id!r} is parked"))
    raise attempt.close(attempt.stop_reason or Shutdown())


async def hold_back(attempt: Attempt) -> None:
    """Park the run until it is unpaused. Returns when somebody else holds the slot, or it is to be cancelled."""
    if attempt.slot is not None:
        await attempt.slot.wait()
        return
    asked = attempt.pausing
    assert asked is not None
    attempt.slot = anyio.Event()
    await park(attempt, Parking(RunStatus.PAUSED), (EventType.RUN_PAUSED, "", {"reason": asked.payload}))


async def continue_as_new(attempt: Attempt, raw: bytes) -> None:
    """End this journal and go on in a new one with this input. Waits for calls under way, then never returns."""
    if attempt.barred:
        await attempt.refused()
    if attempt.current_scope().in_gather:
        raise SuspendInGatherLeg("ctx.continue_as_new inside a leg: a run goes on as one; call it in the body")
    await take_slot(attempt)
    if attempt.poison is not None:
        raise attempt.poison
    attempt.closing = True
    try:
        await _drained(attempt, None)
        left = await attempt.turns.all_asked()
        if left is not None:
            raise attempt.refuse(never_asked(left))
    except BaseException:
        _reopen(attempt)
        raise
    if attempt.lines is not None:
        await attempt.lines.close()
    raise attempt.close(Continued(raw))


def _reopen(attempt: Attempt) -> None:
    """The run does not park after all: who came to a closed door goes on."""
    attempt.closing = False
    free_slot(attempt)
    if attempt.door is not None:
        attempt.door.set()
        attempt.door = None


async def _drained(attempt: Attempt, own: Call | None) -> None:
    """Wait for the calls under way; those still running at the attempt's timeout are cut off."""
    limit = attempt.body.timeout
    with anyio.move_on_after(None if limit is None else max(0.0, limit - (time.monotonic() - attempt.anchor))):
        while _working(attempt, own):
            await attempt.next_rest()
        return
    for call in _working(attempt, own):
        log.warning(
            "run %s: call %r was still running at the attempt's timeout; it is cut off and runs again",
            attempt.claim.run_id,
            call.label,
        )


def _working(attempt: Attempt, own: Call | None) -> list[Call]:
    """Calls under way that will have an outcome by themselves; one that waits for its next try will not."""
    return [call for call in attempt.calls if call is not own and call.waited and not call.retrying]
