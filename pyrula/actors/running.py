"""Running one attempt: driving the body, and writing how it came back.

`run_attempt` is the actor's whole life under one claim. However a body ends (a result, an
error, a park, a cancellation, a stop from outside, or not at all), exactly one of the endings
below follows, and at most one call of the store writes it.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio

from pyrula.actors.attempt import Attempt
from pyrula.actors.binding import running
from pyrula.actors.bridge import CancelRequested
from pyrula.actors.calls import call_scope
from pyrula.actors.children import close_open, tell_parent
from pyrula.actors.core.failures import describe
from pyrula.actors.core.journal import never_asked
from pyrula.actors.core.retrying import retry_delay
from pyrula.actors.drive import Abandoned, drive
from pyrula.actors.observing import observe
from pyrula.actors.parking import hold_back
from pyrula.contracts.errors import (
    AttemptEnded,
    AttemptTimedOut,
    ClaimLost,
    Continued,
    Park,
    PyrulaError,
    ReplayRefused,
    RunAttemptEnded,
    Shutdown,
)
from pyrula.contracts.events import EventType, parse, raw_json
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Continuation, Ending, Parking
from pyrula.contracts.values import encode

__all__ = ["Ended", "run_attempt"]

log = logging.getLogger("pyrula.run")


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended: a final status, `parked`, `retrying`, `requeued`, `lost` or `set aside`."""

    how: str
    error: BaseException | None = None


async def run_attempt(attempt: Attempt) -> Ended:
    """Run the body until the attempt ends, and write how. Raises nothing but `KeyboardInterrupt`."""
    attempt.observer = observe(attempt.claim)
    if attempt.observer is None:
        return await _run(attempt)
    with attempt.observer as observer:
        ended = await _run(attempt)
        observer.ended(ended.how, ended.error)
        return ended


async def _run(attempt: Attempt) -> Ended:
    token = call_scope.set(attempt.root)
    running.add(attempt)
    attempt.hold_back = hold_back
    attempt.root.task = attempt.loop.current_task()
    endings = _Endings(attempt)
    concluding = False
    try:
        with anyio.CancelScope() as attempt.scope:
            outcome = await _drive(attempt, endings, attempt.scope)
            attempt.scope.deadline = math.inf
            if attempt.stop_reason is None and not attempt.scope.cancel_called:
                await attempt.loop.absorb()
                # Shielded: once decided, the end is written, unless `stop` says that time is up.
                concluding = attempt.scope.shield = True
                if attempt.lines is not None:
                    await attempt.lines.close()
                return await outcome()
        if concluding:
            raise attempt.stop_reason or Shutdown()
        return await _conclude(attempt, outcome)
    except ClaimLost as lost:
        attempt.close(ClaimLost(str(lost)))
        return Ended("lost", lost)
    except Shutdown as stopped:
        return Ended("requeued", stopped)
    finally:
        running.discard(attempt)
        call_scope.reset(token)


Outcome = Callable[[], Awaitable[Ended]]


async def _drive(attempt: Attempt, endings: _Endings, scope: anyio.CancelScope) -> Outcome:
    """Run the body; gives what is to be done about how it came back."""
    limit = attempt.body.timeout
    if attempt.stop_reason is not None:
        return endings.by(attempt.stop_reason)
    if limit is not None:
        scope.deadline = anyio.current_time() + limit
    try:
        attempt.take_control()
        if attempt.cancel.pending:
            attempt.bound_clean_up()
        if attempt.cancel.pending and not attempt.journal.begun:
            attempt.cancel.delivered = True
            return endings.cancelled  # asked for before anything was recorded: the body does not start
        body = attempt.body.start(attempt, attempt.journal.input)
        result = await drive(body, attempt.guard)
    except (Park, ClaimLost) as ended:
        return endings.by(ended)
    except AttemptEnded as ended:
        return endings.by(attempt.stop_reason or attempt.over or ended)
    except Abandoned:
        return _abandonment(attempt, endings)
    except attempt.loop.cancelled:
        return _cancellation(attempt, endings, scope)
    except BaseExceptionGroup as group:
        return endings.group(group)
    except BaseException as error:  # SystemExit of a body ends its run, not the worker
        if isinstance(error, KeyboardInterrupt) and attempt.loop.scoped:
            raise  # trio raises a real Ctrl-C in whatever task runs; asyncio cancels the main one
        failure = error
        return lambda: endings.failed(failure)
    return lambda: endings.returned(result)


def _abandonment(attempt: Attempt, endings: _Endings) -> Outcome:
    """What becomes of a run whose body was let go."""
    log.error("run %s: its body would not end and was abandoned", attempt.claim.run_id)
    if attempt.over is None and attempt.stop_reason is None:
        if (fatal := attempt.fatal) is not None:
            return lambda: endings.failed(fatal)
        if attempt.cancel.delivered:
            return endings.cancelled
    return endings.by(attempt.stop_reason or attempt.over or Shutdown())


def _cancellation(attempt: Attempt, endings: _Endings, scope: anyio.CancelScope) -> Outcome:
    """Whose cancellation the body came back with."""
    if attempt.stop_reason is not None or attempt.over is not None:
        return endings.by(attempt.stop_reason or attempt.over)
    if scope.cancel_called:
        if attempt.cancel.delivered or attempt.cancel.pending:
            attempt.cancel.delivered = True  # it never came to a call, or its clean-up took too long
            return endings.cancelled
        return lambda: endings.failed(_timed_out(attempt))
    if anyio.current_effective_deadline() == -math.inf:
        # The worker itself is being cancelled, and this task with it.
        attempt.stop_reason = Shutdown("the worker was cancelled")
        return endings.by(attempt.stop_reason)
    if not attempt.cancel.delivered:
        return lambda: endings.failed(RuntimeError("the body raised a cancellation that nobody asked for"))
    return endings.cancelled


async def _conclude(attempt: Attempt, outcome: Outcome) -> Ended:
    """Write the end of an attempt that was stopped or timed out: its own scope is used up."""
    if attempt.lines is not None:
        await attempt.lines.close()
    if attempt.stop_reason is None:
        with anyio.CancelScope(shield=True) as attempt.scope:
            return await outcome()
    else:
        attempt.close(attempt.stop_reason)
        with anyio.move_on_after(attempt.settings.cancel_timeout, shield=True):
            return await outcome()
    raise attempt.stop_reason or Shutdown()


def _timed_out(attempt: Attempt) -> AttemptTimedOut:
    return AttemptTimedOut(f"the body ran longer than its timeout of {attempt.body.timeout} s in one attempt")


class _Endings:
    """What is done about each way a body can come back."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt

    def group(self, group: BaseExceptionGroup[BaseException]) -> Outcome:
        """A task group's errors: what ends the attempt counts first, then errors, then cancellations."""
        ended, rest = group.split(AttemptEnded)
        if self.attempt.stop_reason or self.attempt.over or ended:
            return self.by(self.attempt.stop_reason or self.attempt.over or _leaf(ended))
        errors = rest.split(Exception)[0] if rest else None
        if errors is not None:
            failure = errors.exceptions[0] if len(errors.exceptions) == 1 else errors
            return lambda: self.failed(failure)
        if self.attempt.cancel.delivered:
            return self.cancelled
        return lambda: self.failed(group)

    def by(self, reason: BaseException | None) -> Outcome:
        async def end() -> Ended:
            if isinstance(reason, Park):
                return Ended("parked")
            if isinstance(reason, Continued):
                return await self._continued(reason)
            if isinstance(reason, ClaimLost):
                self.attempt.close(ClaimLost(str(reason)))
                return Ended("lost", reason)
            self.attempt.close(reason if isinstance(reason, AttemptEnded) else Shutdown())
            await self.attempt.recorder.requeue()
            return Ended("requeued", reason)

        return end

    async def _continued(self, reason: Continued) -> Ended:
        attempt = self.attempt
        await close_open(attempt, "continued")
        await attempt.write_attributes()
        link = attempt.journal.link
        attempt.recorder.add(EventType.RUN_CONTINUED, "", {"link": link, "input": raw_json(reason.input)})
        about = f'"link":{link + 1},"chunks":{attempt.chunks}'.encode()
        await attempt.recorder.go_on(Continuation(reason.input, about))
        return Ended("continued")

    async def returned(self, result: Any) -> Ended:
        if self.attempt.over is not None:  # the body kept what ended its attempt, and returned all the same
            return await self.by(self.attempt.over)()
        if self.attempt.fatal is not None:
            return await self.failed(self.attempt.fatal)
        if self._cancel_stands():
            return await self.cancelled()
        if self.attempt.poison is not None:
            return await self.failed(self.attempt.poison)
        left = await self.attempt.turns.all_asked()
        if left is not None:
            return await self.failed(never_asked(left))
        try:
            raw = encode(result, path="result", limit=self.attempt.settings.payload_limit)
        except PyrulaError as error:
            return await self.failed(error)
        await self._finish(EventType.RUN_COMPLETED, RunStatus.COMPLETED, {"result": raw_json(raw)})
        return Ended("completed")

    def _cancel_stands(self) -> bool:
        """True when the run was asked to cancel, whether its body has met the request or made no call since."""
        return self.attempt.cancel.delivered or (self.attempt.cancel.pending and self.attempt.journal.cancel_due)

    async def cancelled(self) -> Ended:
        await self._finish(
            EventType.RUN_CANCELLED,
            RunStatus.CANCELLED,
            self._request(),
        )
        return Ended("cancelled")

    def _request(self) -> dict[str, Any]:
        """What the cancel request said of itself."""
        about = self.attempt.cancel.about
        if about is None:
            about = {"reason": None}
            for seq, raw in self.attempt.claim.entries:
                if seq == self.attempt.journal.cancel_seq:
                    about = parse(seq, raw).data
        return {name: value for name, value in about.items() if name in ("reason", "requested_by", "detail")}

    async def failed(self, error: BaseException) -> Ended:
        if self.attempt.over is not None:
            return await self.by(self.attempt.over)()
        refused = self.attempt.fatal or (error if isinstance(error, ReplayRefused) else None)
        if refused is not None:
            if not self.attempt.journal.cancel_seq:
                return await self._set_aside(refused)
            self.attempt.cancel.delivered = True  # nobody wants it to go on: that its code is wrong is no matter
        if isinstance(error, CancelRequested):
            return await self.cancelled()
        if self._cancel_stands():
            await self._finish(
                EventType.RUN_CANCELLED,
                RunStatus.CANCELLED,
                {**self._request(), "error": describe(error)},
            )
            return Ended("cancelled", error)
        described = describe(error, key=getattr(error, "key", None))
        delay = self._run_retry(error)
        if delay is not None:
            wake = self.attempt.now() + int(delay * 1e6)
            self.attempt.recorder.add(EventType.RUN_RETRIED, "", {"error": described, "by": "policy", "wake": wake})
            await self.attempt.write_attributes()
            self.attempt.close(Park())
            await self.attempt.recorder.park(Parking(RunStatus.SLEEPING, "", wake), len(self.attempt.mail))
            return Ended("retrying", error)
        await self._finish(EventType.RUN_FAILED, RunStatus.FAILED, {"error": described})
        return Ended("failed", error)

    def _run_retry(self, error: BaseException) -> float | None:
        policy = self.attempt.body.retry
        if policy is None or not isinstance(error, Exception):
            return None
        failures = 1 + sum(
            b'"run.retried"' in raw[:20] and b'"by":"policy"' in raw for _, raw in self.attempt.claim.entries
        )
        return retry_delay(policy, error, failures, random.random())

    async def _set_aside(self, error: BaseException) -> Ended:
        """The replay was refused: no history is damaged, and `retry` goes on once the code is right."""
        self.attempt.close(RunAttemptEnded("the run was set aside"))
        reason = encode(describe(error))
        await self.attempt.recorder.finish(Ending(RunStatus.FAILED, 0, terminal=False, error=reason))
        return Ended("set aside", error)

    async def _finish(self, kind: str, status: RunStatus, data: dict[str, Any]) -> None:
        await close_open(self.attempt, str(status))
        await self.attempt.write_attributes()
        self.attempt.close(RunAttemptEnded("the run has ended"))
        self.attempt.recorder.add(kind, "", data)
        await self.attempt.recorder.finish(Ending(status, int(self.attempt.settings.completed_ttl * 1000)))
        claim = self.attempt.claim
        await tell_parent(self.attempt.store, claim.run_id, claim.headers)


def _leaf(group: BaseExceptionGroup[AttemptEnded] | None) -> AttemptEnded | None:
    while group is not None:
        first = group.exceptions[0]
        if isinstance(first, AttemptEnded):
            return first
        group = first
    return None
