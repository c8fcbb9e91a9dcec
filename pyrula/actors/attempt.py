"""The run actor's state under one claim: what is replayed, what is live, what the inbox brings.

What each call does lives beside it, in `steps`, `waits`, `values`, `gathering` and `parking`; they follow the
attempt's rules of admission (`admit`, `served`). `running` drives the body and writes its end.
One attempt belongs to one event loop.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from pyrula.actors.bridge import Loop, current_loop
from pyrula.actors.calls import Call, InsideStep, OwnedScope, ThreadScope, call_scope
from pyrula.actors.capacity import Place
from pyrula.actors.core.journal import Journal, Record
from pyrula.actors.drive import Board, Guard
from pyrula.actors.history import check_history
from pyrula.actors.observing import Observer
from pyrula.actors.recorder import Outage, Recorder
from pyrula.actors.requests import drop_old_news, requested, standing_pause
from pyrula.actors.turns import Turns
from pyrula.contracts.children import Child, ParentClose
from pyrula.contracts.errors import (
    AttemptEnded,
    CallInsideStep,
    ClaimLost,
    ForeignContext,
    PyrulaError,
    ReplayRefused,
    RunAttemptEnded,
)
from pyrula.contracts.events import EventType, parse
from pyrula.contracts.mail import Mail, MailKind, parse_mail
from pyrula.contracts.options import Retry
from pyrula.contracts.store import Claim, Lease, Store
from pyrula.contracts.values import decode, encode

if TYPE_CHECKING:
    from pyrula.actors.lines import Lines

__all__ = ["Attempt", "Body", "Settings"]


# A body that keeps what ends its attempt may do so in every `finally` it has, and not for ever.
_REFUSALS: Final = 100
# The clean-up of a cancelled body may take so many times the `cancel_timeout` of one call.
_CLEAN_UP: Final = 10
log = logging.getLogger("pyrula.run")


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
    lock_ttl: float = math.inf
    threads: anyio.CapacityLimiter | None = None
    loop_limit: float = 300.0
    history_warning: int = 10_000
    history_limit: int = 50_000
    child_stay: float = math.inf


@dataclass(slots=True)
class _Cancel:
    """A cancel request: recorded, then delivered once."""

    pending: bool = False
    delivered: bool = False
    about: Mapping[str, Any] | None = None  # the reason, and who asked when that was the parent
    cut: Sequence[str] = ()  # the keys of the calls it was delivered to, or the scope


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
    ) -> None:
        self.store = store
        self.claim = claim
        self.body = body
        self.settings = settings
        self.observer: Observer | None = None  # set while it is run, where somebody listens
        self.loop: Loop = current_loop()
        self.anchor = time.monotonic()
        self.lease_until = self.anchor + settings.lock_ttl
        """Until then (monotonic) the run is surely this attempt's; moved on by whoever renews the lease."""
        self.journal = Journal(parse(seq, raw) for seq, raw in claim.entries)
        self.turns = Turns(self.journal, settings.cancel_timeout)
        self.recorder = Recorder(store, claim, self.now, outage)
        self.guard = Guard(board or Board(), claim.run_id)
        self.root = OwnedScope(self)
        self.mail: list[Mail] = [parse_mail(raw) for raw in claim.inbox]
        self._known = set(claim.inbox)  # all that was ever read from the inbox, taken out or not
        self.mail_stale = False
        self.calls: set[Call] = set()
        self.lines: Lines | None = None  # to threads of the run, once it has some
        self.cancel = _Cancel(pending=self.journal.cancel_seq > 0)
        self.attributes: dict[str, Any] = decode(claim.attributes)
        self.attributes_changed = False
        self.chunks = self.journal.chunks_before if self.journal.chunk is None else self.journal.chunk.data["index"]
        self.unwritten = self.journal.chunk  # it was recorded; whether it was written as well is not known
        self.output: anyio.Lock | None = None
        self.children: dict[str, Child] = {  # those that are open, by the key of their call
            each.key: Child(each.data["workflow"], each.data["run_id"], ParentClose(each.data["parent_close"]))
            for each in self.journal.open_children()
        }
        self.news = 0
        """How often something came into the inbox."""
        self._news: anyio.Event | None = None
        self.place: Place | None = None
        """The worker's place that this attempt holds, if it may be lent."""
        self.scope: anyio.CancelScope | None = None
        self.fatal: ReplayRefused | None = None
        self.poison: PyrulaError | None = None
        self.over: AttemptEnded | None = None
        self.slot: anyio.Event | None = None
        self._idle: anyio.Event | None = None
        self.door: anyio.Event | None = None
        self._open: dict[str, int] = {}  # by scope: calls without an outcome, those that were cut off among them
        self._refusals = 0
        self.warned = False
        self.pausing: Mail | None = None
        self.hold_back: Callable[[Attempt], Awaitable[None]] | None = None  # how it is done, set by who runs it
        self.patches: dict[str, bool] = {}
        self.handlers: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any] | None]] = {}  # of updates, by name
        self.stop_reason: AttemptEnded | None = None
        self.closing = False

    # --- time and place -----------------------------------------------------------------

    def now(self) -> int:
        """The store's time (microseconds), carried on since the claim by the monotonic clock."""
        return self.claim.now + int((time.monotonic() - self.anchor) * 1e6)

    def current_scope(self) -> OwnedScope:
        """The scope of the calling task. Raises `ForeignContext` and `CallInsideStep`."""
        scope = call_scope.get(None)
        if scope is None or scope.owner is not self:
            raise ForeignContext(
                f"ctx of run {self.claim.run_id!r} was used outside of the run's own tasks; "
                "each run has a ctx of its own, and a thread of yours has none"
            )
        if isinstance(scope, InsideStep):
            raise CallInsideStep(
                f"step {scope.step_id!r} makes a recorded call on ctx: a replayed step does not run its function; "
                "make the call in the body and pass its outcome to the step"
            )
        if type(scope) is ThreadScope and scope.astray:
            raise ForeignContext("a thread makes its calls on ctx by ctx.from_thread(ctx.step, ...), in the run's loop")
        return scope

    @property
    def inside_step(self) -> bool:
        """True for a call that is made by a step's function."""
        scope = call_scope.get(None)
        return isinstance(scope, InsideStep) and scope.owner is self

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
        if self.lines is not None and self.lines.cut_off(key):
            raise self.lines.ended()
        self.turns.called()
        try:
            record = self.journal.match(key, kind)
            if record is None or record.outcome is None:
                self._live(key, kind)
        except ReplayRefused as error:
            raise self.refuse(error) from None
        return record

    def _live(self, key: str, kind: str) -> None:
        """Count a call that has no outcome yet, and hold it back where it comes before its turn."""
        path = key[: key.rfind("/") + 1]
        if self.recorder.seq >= self.settings.history_warning:
            check_history(self)
        if not self.cancel.pending:
            self.turns.check(path, key, kind)
        self._open[path] = self._open.get(path, 0) + 1

    def record(self, kind: str, key: str, data: dict[str, Any], consumed: bytes | None = None) -> int:
        """Number the outcome of a live call; its seq. Marks one that others are open beside, or were cut off before."""
        path = key[: key.rfind("/") + 1]
        open_ = self._open.get(path, 1)
        if open_ > 1:
            data["beside"] = True
        self._open[path] = open_ - 1
        return self.recorder.add(kind, key, data, consumed)

    @property
    def barred(self) -> bool:
        """True once no call is let through any more: `refused` says why."""
        return self.over is not None or self.fatal is not None

    async def refused(self) -> NoReturn:
        """Raise what ended the attempt. A body that keeps it again and again is let go."""
        self._refusals += 1
        if self._refusals > _REFUSALS:
            self.abandon()
            await anyio.sleep_forever()
        if self.over is not None:
            raise RunAttemptEnded(f"run {self.claim.run_id!r}: this attempt is over")
        assert self.fatal is not None
        raise self.fatal

    def refuse(self, error: ReplayRefused) -> ReplayRefused:
        """Note a refusal of the replay: whatever the body does now, the run is set aside."""
        if self.fatal is None:
            self.fatal = error
        return error

    def open(self) -> bool:
        """True when a live call may start without waiting: the usual case."""
        return (
            self.over is None
            and not self.closing
            and self.pausing is None
            and not self.cancel.pending
            and self.fatal is None
            and not self.turns.ahead
            and time.monotonic() < self.lease_until
        )

    async def stands(self, record: Record | None) -> bool:
        """True when a call gets its recorded outcome, False once it may start live; or raises what ends it instead."""
        if self.served(record):
            return True
        if self.open():
            return False
        await self.admit()
        # It may have waited for a cancel request to be met by others: what was recorded behind that stands now.
        return self.served(record)

    async def admit(self) -> None:
        """Let a live call start, or raise what ends it instead."""
        while not self.open():
            if self.barred:
                await self.refused()
            if self.closing:
                # The run has decided to park: the call is made on the attempt after it.
                if self.door is None:
                    self.door = anyio.Event()
                await self.door.wait()
            elif time.monotonic() >= self.lease_until:
                await self._confirm_lease()
            elif self.pausing is not None and not self.cancel.pending and self.hold_back is not None:
                await self.hold_back(self)
            elif self.turns.ahead:
                if refusal := await self.turns.caught_up():
                    raise self.refuse(refusal)
            elif self.journal.cancel_seq and not self.journal.cancel_due:
                if refusal := await self.turns.up_to_cancel():
                    raise self.refuse(refusal)
            else:
                await self._deliver_cancel()
        if self.lines is not None:
            await checkpoint_if_cancelled()  # a thread's call may have been cut off while it waited here

    async def _confirm_lease(self) -> None:
        """Ask whether the run is still this attempt's, before it does what another may have done already.

        Its lease was not renewed in time: the process stood still, or the store was away for long.
        """
        until = time.monotonic() + self.settings.lock_ttl
        lease = Lease(self.claim.workflow, self.claim.run_id, self.claim.epoch, self.claim.token)
        lease_ms = int(self.settings.lock_ttl * 1000)
        if await self.recorder.through_outages(lambda: self.store.heartbeat([lease], lease_ms=lease_ms)):
            raise self.close(
                ClaimLost(f"the lease of run {self.claim.run_id!r} ran out, and the run went on without it")
            )
        self.lease_until = until

    async def in_turn(self, seq: int) -> None:
        """Wait for the turn of an outcome recorded at `seq`. A clean-up does not: others were cut off before it."""
        if not self.cancel.delivered:
            await self.turns.up_to(seq)

    async def _deliver_cancel(self) -> None:
        self.cancel.pending = False
        self.cancel.delivered = True
        self.bound_clean_up()
        self._cut_threads()
        scope = call_scope.get(None)
        direct = isinstance(scope, OwnedScope) and scope.direct(self.loop.current_task())
        if isinstance(scope, OwnedScope):
            self.cancel.cut = [scope.path]
        if not direct:
            self.loop.interrupt_body(self.root.task)
        raise await self.loop.cancellation(direct=direct)

    @property
    def identity(self) -> str:
        """What the ids of all that this run starts are derived from."""
        journal = self.journal
        restart = f"@{journal.restart.seq}" if journal.restart is not None else ""
        return f"{self.claim.workflow}/{self.claim.run_id}" + (f"~{journal.link}" if journal.link > 1 else "") + restart

    def lend_place(self) -> bool:
        """Let others have this attempt's place while it only waits; False when no more may wait like that."""
        return self.place is None or self.place.lend()

    def take_place_back(self) -> None:
        """The attempt does something again."""
        if self.place is not None:
            self.place.take_back()

    async def next_mail(self) -> None:
        """Wait until something has come into the inbox."""
        if self._news is None:
            self._news = anyio.Event()
        await self._news.wait()

    def begin(self, key: str, label: str, scope: OwnedScope) -> Call:
        """Count a live call as under way."""
        self.take_place_back()
        task = self.loop.current_task()
        call = Call(key, label, scope.direct(task), None if self.loop.scoped else task)
        if scope.in_thread:
            call.waited, call.remote = False, True
        self.calls.add(call)
        return call

    def end(self, call: Call) -> None:
        """The call is over, its outcome known to the recorder."""
        self.calls.discard(call)
        self.call_rests()

    def call_rests(self) -> None:
        """A call under way has ended, or waits for its next try: who waits for that looks again."""
        if self._idle is not None:
            self._idle.set()
            self._idle = None

    async def next_rest(self) -> None:
        """Wait until a call under way has ended or rests."""
        if self._idle is None:
            self._idle = anyio.Event()
        await self._idle.wait()

    # --- what comes from outside --------------------------------------------------------

    def receive(self, raw: Sequence[bytes]) -> None:
        """Take in the whole inbox as it is now. A cancel request takes effect at once."""
        fresh = [message for message in raw if message not in self._known]
        self._known.update(fresh)
        self.mail.extend(map(parse_mail, fresh))
        self.take_control()
        self.news += 1
        if self._news is not None:
            self._news.set()
            self._news = None

    def take_control(self) -> None:
        """Record a cancel request found in the mail, and interrupt what is under way."""
        drop_old_news(self)
        self.pausing = standing_pause(self)
        for mail in [m for m in self.mail if m.kind == MailKind.CANCEL]:
            self.consume(mail)
            about = requested(mail)
            if self.journal.cancel_seq:
                self.recorder.add(EventType.RUN_CANCEL_REQUESTED, "", {**about, "repeat": True}, mail.raw)
                continue
            self.cancel.about = about
            self.journal.request_cancel(self.recorder.add(EventType.RUN_CANCEL_REQUESTED, "", about, mail.raw))
            if self.closing or self.over is not None:
                self.cancel.pending = True
                continue
            # A call whose outcome is numbered already stands before the request, and ends as it would have.
            under_way = [call for call in self.calls if not call.settled and not call.remote]
            self._cut_threads()
            self.cancel.pending = not under_way
            self.cancel.delivered = bool(under_way)
            self.cancel.cut = [call.key for call in under_way]
            self.bound_clean_up()
            for call in under_way:
                call.interrupted = True
                if call.scope is not None:
                    call.scope.cancel()
                elif call.task is not None:
                    self.loop.interrupt(call.task)
            if under_way and not any(call.direct for call in under_way):
                self.loop.interrupt_body(self.root.task)

    def _cut_threads(self) -> None:
        if self.lines is not None:
            self.lines.cut(call for call in self.calls if call.remote and not call.settled)

    def cancel_absorbed(self, path: str) -> None:
        """A gather ended by an error of its own, and what it cancelled for that may have met a cancel request.

        If nothing else met it, the body has not seen it: its next call will, as it would on a replay.
        """
        if self.cancel.cut and all(key.startswith(path) for key in self.cancel.cut):
            self.cancel.cut = ()
            self.cancel.pending, self.cancel.delivered = True, False
            self.bound_clean_up()

    def bound_clean_up(self) -> None:
        """A cancelled body has so long to come to a call, and from there so long in all for its clean-up."""
        if self.scope is None:
            return
        self.guard.ending = True
        limit = self.settings.cancel_timeout * (_CLEAN_UP if self.cancel.delivered else 1)
        self.scope.deadline = min(
            self.scope.deadline if not self.cancel.delivered else math.inf, anyio.current_time() + limit
        )

    def consume(self, mail: Mail) -> None:
        """A message is about to leave the inbox with the next append."""
        self.mail.remove(mail)

    def stop(self, reason: AttemptEnded) -> None:
        """End the attempt from outside: its claim is lost, or the worker shuts down."""
        if isinstance(reason, ClaimLost) and self.recorder.leaving:
            return  # the claim is being given up: the store's answer to that says what became of it
        if self.stop_reason is None and self.over is None:
            self.stop_reason = reason
            self.guard.ending = True
            if self.scope is not None:
                self.scope.cancel()

    def abandon(self) -> None:
        """The body did not end when it was stopped: let go of it."""
        self.guard.abandoned = True
        if self.scope is not None:
            self.scope.cancel()

    def close(self, reason: AttemptEnded) -> AttemptEnded:
        """The attempt is over; calls that still come are refused."""
        self.over = reason
        self.guard.ending = True
        if self.slot is not None:
            self.slot.set()
        if self.door is not None:
            self.door.set()
        return reason

    async def write_attributes(self) -> None:
        """Make changed search attributes visible."""
        if self.attributes_changed:
            self.attributes_changed = False
            raw = encode(self.attributes, path="attributes", limit=self.settings.payload_limit)
            await self.recorder.through_outages(lambda: self.store.set_attributes(self.claim, raw))
