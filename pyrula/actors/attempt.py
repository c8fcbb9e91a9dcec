"""The run actor: one attempt at a run, from its claim to the park, the requeue or the end.

An `Attempt` drives the body, decides which of its calls are replayed and which are live,
delivers what the inbox brings, and writes how it ended. What each call does lives beside it:
`steps`, `waits`, `values`, `gathering`; they use the attempt's rules of admission (`admit`,
`served`) and its journal. One attempt belongs to one event loop.
"""

from __future__ import annotations

import contextvars
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import orjson

from pyrula.actors.bridge import Loop, current_loop
from pyrula.actors.core.failures import describe
from pyrula.actors.core.journal import Journal, Record
from pyrula.actors.core.retrying import retry_delay
from pyrula.actors.core.scope import Scope
from pyrula.actors.drive import Abandoned, Board, Guard, drive
from pyrula.actors.recorder import Outage, Recorder
from pyrula.contracts.errors import (
    AttemptEnded,
    AttemptTimedOut,
    ClaimLost,
    Park,
    PyrulaError,
    ReplayRefused,
    RunAttemptEnded,
    Shutdown,
)
from pyrula.contracts.events import EventType, parse
from pyrula.contracts.options import Retry
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Claim, Ending, Parking, Store
from pyrula.contracts.values import encode

__all__ = ["Attempt", "Body", "Call", "Mail", "Settings", "call_scope"]

log = logging.getLogger("pyrula.run")

call_scope: Final[contextvars.ContextVar[OwnedScope]] = contextvars.ContextVar("pyrula_call_scope")


class OwnedScope(Scope):
    """A scope that knows its attempt, so that a task can be told whose it is."""

    __slots__ = ("owner",)

    def __init__(self, owner: Attempt, path: str = "") -> None:
        super().__init__(path)
        self.owner = owner

    def leg(self, gather: int, index: int) -> OwnedScope:
        return OwnedScope(self.owner, super().leg(gather, index).path)


@dataclass(frozen=True, slots=True)
class Body:
    """What is run: `start` makes the body's coroutine from the recorded input."""

    name: str
    start: Callable[[Attempt, Mapping[str, Any]], Coroutine[Any, Any, Any]]
    retry: Retry | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """A worker's settings as far as an attempt needs them. Times in seconds, sizes in bytes."""

    cancel_timeout: float = 5.0
    completed_ttl: float = 86400.0
    payload_limit: int = 1_048_576
    threads: anyio.CapacityLimiter | None = None


@dataclass(slots=True, eq=False)
class Call:
    """A live call under way. `task` (asyncio) or `scope` (trio) is how it is interrupted."""

    key: str
    label: str
    task: object | None = None
    scope: anyio.CancelScope | None = None
    interrupted: bool = False
    retrying: bool = False
    settled: bool = False


@dataclass(frozen=True, slots=True)
class Mail:
    """One message of the inbox, parsed: `[kind, id, name, payload]`."""

    raw: bytes
    kind: str
    message_id: str
    name: str
    payload: Any


def parse_mail(raw: bytes) -> Mail:
    """Decode an inbox message."""
    kind, message_id, name, payload = orjson.loads(raw)
    return Mail(raw, kind, message_id, name, payload)


@dataclass(slots=True)
class _Cancel:
    """A cancel request: recorded, then delivered once."""

    pending: bool = False
    delivered: bool = False
    reason: str | None = None


@dataclass(slots=True)
class Ended:
    """How an attempt ended, for logs and metrics: a status, or `requeued`, `lost`, `set aside`."""

    how: str
    error: BaseException | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class Attempt:
    """One attempt at a run under one claim."""

    def __init__(
        self,
        store: Store,
        claim: Claim,
        body: Body,
        *,
        settings: Settings,
        outage: Outage,
        board: Board | None = None,
        tracer: Any = None,
    ) -> None:
        self.store = store
        self.claim = claim
        self.body = body
        self.settings = settings
        self.tracer = tracer
        self.loop: Loop = current_loop()
        self._anchor = time.monotonic()
        self.journal = Journal(parse(seq, raw) for seq, raw in claim.entries)
        self.recorder = Recorder(store, claim, self.now, outage)
        self.guard = Guard(board or Board(), claim.run_id)
        self.root = OwnedScope(self)
        self.mail: list[Mail] = [parse_mail(raw) for raw in claim.inbox]
        self.taken: set[str] = set()
        self.mail_stale = False
        self.calls: set[Call] = set()
        self.cancel = _Cancel(pending=self.journal.cancel_seq > 0)
        self.attributes: dict[str, Any] = orjson.loads(claim.attributes)
        self.attributes_changed = False
        self.chunks = 0
        self.scope: anyio.CancelScope | None = None
        self.fatal: ReplayRefused | None = None
        self.poison: PyrulaError | None = None
        self.over: AttemptEnded | None = None
        self.slot: anyio.Event | None = None
        self._idle: anyio.Event | None = None
        self._door: anyio.Event | None = None
        self._stop_reason: AttemptEnded | None = None
        self.closing = False

    # --- time and place -----------------------------------------------------------------

    def now(self) -> int:
        """The store's time (microseconds), carried on since the claim by the monotonic clock."""
        return self.claim.now + int((time.monotonic() - self._anchor) * 1e6)

    def current_scope(self) -> OwnedScope:
        """The scope of the calling task."""
        scope = call_scope.get(self.root)
        return scope if scope.owner is self else self.root

    @property
    def replaying(self) -> bool:
        """True while recorded outcomes are left that the body has not come to."""
        return self.journal.replaying

    # --- admission ----------------------------------------------------------------------

    def served(self, record: Record | None) -> bool:
        """True when a call gets its recorded outcome now; the body does not wait for anything then."""
        if record is None or record.outcome is None:
            return False
        if self.over is not None or self.fatal is not None:
            return False
        return not self.cancel.pending or self.journal.before_cancel(record)

    def match(self, key: str, kind: str) -> Record | None:
        """The record of a call. A refusal ends the attempt even when the body catches it."""
        if self.fatal is not None:
            raise self.fatal
        try:
            return self.journal.match(key, kind)
        except ReplayRefused as error:
            raise self.refuse(error) from None

    def refuse(self, error: ReplayRefused) -> ReplayRefused:
        """Note a refusal of the replay: whatever the body does now, the run is set aside."""
        if self.fatal is None:
            self.fatal = error
        return error

    def open(self) -> bool:
        """True when a live call may start without waiting: the usual case."""
        return self.over is None and not self.closing and not self.cancel.pending and self.fatal is None

    async def admit(self) -> None:
        """Let a live call start, or raise what ends it instead."""
        while not self.open():
            if self.over is not None:
                raise RunAttemptEnded(f"run {self.claim.run_id!r}: this attempt is over")
            if self.fatal is not None:
                raise self.fatal
            if self.closing:
                # The run has decided to park: the call is made on the attempt after it.
                if self._door is None:
                    self._door = anyio.Event()
                await self._door.wait()
            elif self.journal.cancel_seq and not self.journal.cancel_due:
                await self._replayed_up_to_cancel()
            else:
                await self._deliver_cancel()

    async def _replayed_up_to_cancel(self) -> None:
        """Wait until other tasks have taken what was recorded before the cancel request."""
        with anyio.move_on_after(self.settings.cancel_timeout):
            while not self.journal.cancel_due:
                await anyio.sleep(0.005)
            return
        left = self.journal.unused()
        raise self.refuse(_never_asked(left)) if left else RunAttemptEnded("the replay did not reach its cancel request")

    async def _deliver_cancel(self) -> None:
        self.cancel.pending = False
        self.cancel.delivered = True
        raise await self.loop.cancellation()

    def begin(self, key: str, label: str) -> Call:
        """Count a live call as under way."""
        call = Call(key, label, None if self.loop.scoped else self.loop.current_task())
        self.calls.add(call)
        return call

    def end(self, call: Call) -> None:
        """The call is over, its outcome known to the recorder."""
        self.calls.discard(call)
        if self._idle is not None:
            self._idle.set()

    # --- what comes from outside --------------------------------------------------------

    def receive(self, raw: Sequence[bytes]) -> None:
        """Take in the whole inbox as it is now. A cancel request takes effect at once."""
        known = {mail.message_id for mail in self.mail} | self.taken
        self.mail.extend(mail for mail in map(parse_mail, raw) if mail.message_id not in known)
        self.take_control()

    def take_control(self) -> None:
        """Record a cancel request found in the mail, and interrupt what is under way."""
        for mail in [m for m in self.mail if m.kind == "cancel"]:
            self.consume(mail)
            if self.journal.cancel_seq:
                self.recorder.add(EventType.RUN_CANCEL_REQUESTED, "", {"reason": mail.payload, "repeat": True}, mail.raw)
                continue
            self.cancel.reason = mail.payload
            self.journal.request_cancel(
                self.recorder.add(EventType.RUN_CANCEL_REQUESTED, "", {"reason": mail.payload}, mail.raw)
            )
            if self.closing or self.over is not None:
                self.cancel.pending = True
                continue
            # A call whose outcome is numbered already stands before the request, and ends as it would have.
            under_way = [call for call in self.calls if not call.settled]
            self.cancel.pending = not under_way
            self.cancel.delivered = bool(under_way)
            for call in under_way:
                call.interrupted = True
                if call.scope is not None:
                    call.scope.cancel()
                elif call.task is not None:
                    self.loop.interrupt(call.task)

    def consume(self, mail: Mail) -> None:
        """A message is about to leave the inbox with the next append."""
        self.mail.remove(mail)
        self.taken.add(mail.message_id)

    def stop(self, reason: AttemptEnded) -> None:
        """End the attempt from outside: its claim is lost, or the worker shuts down."""
        if self._stop_reason is None and self.over is None:
            self._stop_reason = reason
            if self.scope is not None:
                self.scope.cancel()

    def abandon(self) -> None:
        """The body did not end when it was stopped: let go of it."""
        self.guard.abandoned = True
        if self.scope is not None:
            self.scope.cancel()

    # --- parking ------------------------------------------------------------------------

    async def take_slot(self) -> None:
        """Hold the run's one suspension slot, or wait until its holder has let go of it."""
        await self.admit()
        while self.slot is not None:
            await self.slot.wait()
            await self.admit()
        self.slot = anyio.Event()

    def free_slot(self) -> None:
        """The wait ended at once; the next one may open."""
        if self.slot is not None:
            self.slot.set()
            self.slot = None

    async def park(self, parking: Parking, opener: tuple[str, str, dict[str, Any]] | None, own: Call | None = None) -> None:
        """Park the run: the slot is held. Waits for calls under way, then never returns but raises `Park`."""
        if self.poison is not None:
            raise self.poison
        self.closing = True
        if self._working(own):
            if opener is not None:
                await self.recorder.flush(self.recorder.add(*opener))
            await self._drained(own)
        if opener is not None:
            self.recorder.add(*opener)
        if self.cancel.pending and self.journal.cancel_seq > self.claim.seq:
            self.closing = False
            self.free_slot()
            await self.admit()
        await self.write_attributes()
        await self.recorder.park(parking, len(self.mail))
        raise self._over(Park(f"run {self.claim.run_id!r} is parked"))

    async def _drained(self, own: Call | None) -> None:
        """Wait for the calls under way; those still running at the attempt's timeout are cut off."""
        limit = self.body.timeout
        with anyio.move_on_after(None if limit is None else max(0.0, limit - (time.monotonic() - self._anchor))):
            while self._working(own):
                self._idle = anyio.Event()
                await self._idle.wait()
            return
        for call in self._working(own):
            log.warning("run %s: call %r was still running at the attempt's timeout; it is cut off and runs again",
                        self.claim.run_id, call.label)

    def _working(self, own: Call | None) -> list[Call]:
        """Calls under way that will have an outcome by themselves; one that waits for its next try will not."""
        return [call for call in self.calls if call is not own and not call.retrying]

    def _over(self, reason: AttemptEnded) -> AttemptEnded:
        self.over = reason
        if self.slot is not None:
            self.slot.set()
        if self._door is not None:
            self._door.set()
        return reason

    async def write_attributes(self) -> None:
        """Make changed search attributes visible."""
        if self.attributes_changed:
            self.attributes_changed = False
            raw = encode(self.attributes, path="attributes", limit=self.settings.payload_limit)
            await self.recorder.through_outages(lambda: self.store.set_attributes(self.claim, raw))

    # --- one attempt --------------------------------------------------------------------

    async def run(self) -> Ended:
        """Run the body until the attempt ends, and write how. Never raises but `KeyboardInterrupt`."""
        token = call_scope.set(self.root)
        concluding = False
        try:
            with anyio.CancelScope() as self.scope:
                outcome = await self._drive(self.scope)
                self.scope.deadline = math.inf
                if self._stop_reason is None and not self.scope.cancel_called:
                    # Shielded: once decided, the end is written, unless `stop` says that time is up.
                    concluding = self.scope.shield = True
                    return await outcome()
            if concluding:
                raise self._stop_reason or Shutdown()
            return await self._conclude(outcome)
        except ClaimLost as lost:
            self._over(ClaimLost(str(lost)))
            return Ended("lost", lost)
        except Shutdown as stopped:
            return Ended("requeued", stopped)
        finally:
            call_scope.reset(token)

    async def _drive(self, scope: anyio.CancelScope) -> Callable[[], Awaitable[Ended]]:
        """Run the body; gives what is to be done about how it came back."""
        cancelled = self.loop.cancelled
        limit = self.body.timeout
        if self._stop_reason is not None:
            return self._ended_by(self._stop_reason)
        if limit is not None:
            scope.deadline = anyio.current_time() + limit
        try:
            self.take_control()
            if self.cancel.pending and not self.journal.begun:
                self.cancel.delivered = True
                return self._cancelled  # asked for before anything was recorded: the body does not start
            body = self.body.start(self, self.journal.input)
            result = await drive(body, self.guard)
        except (Park, ClaimLost) as ended:
            return self._ended_by(ended)
        except AttemptEnded as ended:
            return self._ended_by(self._stop_reason or self.over or ended)
        except Abandoned:
            log.error("run %s: its body would not end and was abandoned", self.claim.run_id)
            return self._ended_by(self._stop_reason or self.over or Shutdown())
        except cancelled:
            if self._stop_reason is not None or self.over is not None:
                return self._ended_by(self._stop_reason or self.over)
            if scope.cancel_called:
                return lambda: self._failed(self._timed_out())
            if anyio.current_effective_deadline() == -math.inf:
                # The worker itself is being cancelled, and this task with it.
                self._stop_reason = Shutdown("the worker was cancelled")
                return self._ended_by(self._stop_reason)
            if not self.cancel.delivered:
                return lambda: self._failed(RuntimeError("the body raised a cancellation that nobody asked for"))
            return self._cancelled
        except KeyboardInterrupt:
            raise
        except BaseExceptionGroup as group:
            return self._group(group)
        except BaseException as error:  # SystemExit of a body ends its run, not the worker
            failure = error
            return lambda: self._failed(failure)
        return lambda: self._returned(result)

    def _group(self, group: BaseExceptionGroup[BaseException]) -> Callable[[], Awaitable[Ended]]:
        """A task group's errors: what ends the attempt counts first, then errors, then cancellations."""
        ended, rest = group.split(AttemptEnded)
        if self._stop_reason or self.over or ended:
            return self._ended_by(self._stop_reason or self.over or _leaf(ended))
        errors = rest.split(Exception)[0] if rest else None
        if errors is not None:
            failure = errors.exceptions[0] if len(errors.exceptions) == 1 else errors
            return lambda: self._failed(failure)
        if self.cancel.delivered:
            return self._cancelled
        return lambda: self._failed(group)

    def _ended_by(self, reason: BaseException | None) -> Callable[[], Awaitable[Ended]]:
        async def end() -> Ended:
            if isinstance(reason, Park):
                return Ended("parked")
            if isinstance(reason, ClaimLost):
                self._over(ClaimLost(str(reason)))
                return Ended("lost", reason)
            self._over(reason if isinstance(reason, AttemptEnded) else Shutdown())
            await self.recorder.requeue()
            return Ended("requeued", reason)

        return end

    async def _conclude(self, outcome: Callable[[], Awaitable[Ended]]) -> Ended:
        """Write the end of an attempt that was stopped or timed out: its own scope is used up."""
        if self._stop_reason is None:
            with anyio.CancelScope(shield=True) as self.scope:
                return await outcome()
        else:
            self._over(self._stop_reason)
            with anyio.move_on_after(self.settings.cancel_timeout, shield=True):
                return await outcome()
        raise self._stop_reason or Shutdown()

    def _timed_out(self) -> AttemptTimedOut:
        return AttemptTimedOut(f"the body ran longer than its timeout of {self.body.timeout} s in one attempt")

    async def _returned(self, result: Any) -> Ended:
        if self.over is not None:  # the body kept what ended its attempt, and returned all the same
            return await self._ended_by(self.over)()
        if self.fatal is not None:
            return await self._set_aside(self.fatal)
        if self.cancel.delivered:
            return await self._cancelled()
        if self.cancel.pending and (not self.journal.cancel_seq or self.journal.cancel_due):
            return await self._cancelled()
        if self.poison is not None:
            return await self._failed(self.poison)
        left = self.journal.unused()
        if left is not None:
            return await self._set_aside(_never_asked(left))
        try:
            raw = encode(result, path="result", limit=self.settings.payload_limit)
        except PyrulaError as error:
            return await self._failed(error)
        await self._finish(EventType.RUN_COMPLETED, RunStatus.COMPLETED, {"result": orjson.Fragment(raw)})
        return Ended("completed")

    async def _cancelled(self) -> Ended:
        await self._finish(EventType.RUN_CANCELLED, RunStatus.CANCELLED, {"reason": self.cancel.reason or self._recorded_reason()})
        return Ended("cancelled")

    def _recorded_reason(self) -> Any:
        for seq, raw in self.claim.entries:
            if seq == self.journal.cancel_seq:
                return parse(seq, raw).data.get("reason")
        return None

    async def _failed(self, error: BaseException) -> Ended:
        if self.over is not None:
            return await self._ended_by(self.over)()
        if isinstance(error, ReplayRefused) or self.fatal is not None:
            return await self._set_aside(self.fatal or error)
        if self.cancel.delivered:
            await self._finish(
                EventType.RUN_CANCELLED,
                RunStatus.CANCELLED,
                {"reason": self.cancel.reason or self._recorded_reason(), "error": describe(error)},
            )
            return Ended("cancelled", error)
        described = describe(error, key=getattr(error, "key", None))
        delay = self._run_retry(error)
        if delay is not None:
            wake = self.now() + int(delay * 1e6)
            self.recorder.add(EventType.RUN_RETRIED, "", {"error": described, "by": "policy", "wake": wake})
            await self.write_attributes()
            self._over(Park())
            await self.recorder.park(Parking(RunStatus.SLEEPING, "", wake), len(self.mail))
            return Ended("retrying", error)
        await self._finish(EventType.RUN_FAILED, RunStatus.FAILED, {"error": described})
        return Ended("failed", error)

    def _run_retry(self, error: BaseException) -> float | None:
        policy = self.body.retry
        if policy is None or not isinstance(error, Exception):
            return None
        failures = 1 + sum(b'"run.retried"' in raw[:20] and b'"by":"policy"' in raw for _, raw in self.claim.entries)
        return retry_delay(policy, error, failures, 0.5)

    async def _set_aside(self, error: BaseException) -> Ended:
        """The replay was refused: no history is damaged, and `retry` goes on once the code is right."""
        self._over(RunAttemptEnded("the run was set aside"))
        reason = orjson.dumps(describe(error))
        await self.recorder.finish(Ending(RunStatus.FAILED, 0, terminal=False, error=reason))
        return Ended("set aside", error)

    async def _finish(self, kind: str, status: RunStatus, data: dict[str, Any]) -> None:
        await self.write_attributes()
        self._over(RunAttemptEnded("the run has ended"))
        self.recorder.add(kind, "", data)
        await self.recorder.finish(Ending(status, int(self.settings.completed_ttl * 1000)))


def _leaf(group: BaseExceptionGroup[AttemptEnded] | None) -> AttemptEnded | None:
    while group is not None:
        first = group.exceptions[0]
        if isinstance(first, AttemptEnded):
            return first
        group = first
    return None


def _never_asked(left: Record) -> ReplayRefused:
    from pyrula.contracts.errors import VersionSkew

    return VersionSkew(
        f"the journal holds a {left.kind} at {left.key!r} that the code no longer asks for; "
        "restore the code (or branch with ctx.patched), then retry the run",
        recorded=f"{left.kind} {left.key!r}",
        asked="nothing",
    )
