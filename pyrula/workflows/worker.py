"""The worker: the composition root. Loops that claim, wake and recover runs, and the attempts they start."""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import anyio
from anyio.abc import TaskGroup, TaskStatus
from anyio.lowlevel import checkpoint_if_cancelled, current_token

from pyrula.actors.attempt import Attempt, Settings
from pyrula.actors.bridge import current_loop, run_soon
from pyrula.actors.calls import call_scope
from pyrula.actors.capacity import Capacity, Place
from pyrula.actors.children import close_children
from pyrula.actors.core.failures import message_of
from pyrula.actors.doorbell import Doorbell
from pyrula.actors.drive import Board
from pyrula.actors.holding import HeldAttempts
from pyrula.actors.leases import LeaseThread
from pyrula.actors.metrics import Countable, QueueDepths
from pyrula.actors.observing import CountedOutages
from pyrula.actors.pool import RunnerPool
from pyrula.actors.running import Ended, run_attempt
from pyrula.actors.supervision import supervise
from pyrula.contracts.children import Parents
from pyrula.contracts.errors import (
    ClaimLost,
    ConfigurationError,
    Shutdown,
    StoreUnavailable,
)
from pyrula.contracts.ids import new_id
from pyrula.contracts.options import WorkerOptions
from pyrula.contracts.schedules import Schedules
from pyrula.contracts.store import Bell, BellKind, Claim, JoinsCalls, Lease, LeaseKeeper, Store, Timers
from pyrula.workflows.bodies import body_of, settings_of
from pyrula.workflows.client import WorkflowClient
from pyrula.workflows.registry import Workflow, registry
from pyrula.workflows.scheduling import Scheduler
from pyrula.workflows.triggering import Triggering

__all__ = ["WorkflowWorker"]

log = logging.getLogger("pyrula.worker")
_TICK: Final = 0.25
_SLOWEST_POLL: Final = 2.0
_CLAIM_BATCH: Final = 16
_SWEEP_LIMIT: Final = 100
# After an inbox was read: so many seconds for each message in it until the next look.
_GULP: Final = 1e-5
_LOGGED: Final = 500
_NEVER: Final = 1 << 62
# The loops by name; each says under its own when the store has served it.
_BELLS: Final = "bell loop"
_CLAIMS: Final = "claim loop of "
_ORPHANS: Final = "orphan recovery"
_HEARTBEATS: Final = "heartbeat loop"
_TIMERS: Final = "timer loop"
_SCHEDULES: Final = "schedule loop"
_TRIGGERS: Final = "trigger loop"
# A worker that has just been told that its run was terminated may still start a child of it.
_LEFT_MS: Final = 30_000
# A due time learned from the server may lie a little ahead of the estimate of its clock.
_EARLY: Final = 0.001


def _first(group: BaseExceptionGroup[ConfigurationError] | None) -> ConfigurationError | None:
    """The first error in a group of groups."""
    while group is not None:
        error = group.exceptions[0]
        if isinstance(error, ConfigurationError):
            return error
        group = error
    return None


class WorkflowWorker:
    """Executes runs. `run()` blocks until `stop()`, under asyncio or trio.

    store: where the runs are.
    workflows: what to serve; by default everything registered when the worker is made.
    options: see `WorkerOptions`.
    """

    def __init__(
        self,
        store: Store,
        workflows: Iterable[Workflow | str] | None = None,
        options: WorkerOptions | None = None,
    ) -> None:
        self.store = store
        self.options = options or WorkerOptions()
        self.client = WorkflowClient(store, payload_limit=self.options.payload_limit)
        self.ready = anyio.Event()
        self.worker_id = f"{socket.gethostname()}:{os.getpid()}:{new_id()[-6:]}"
        self._completed_ttl: float = getattr(store, "completed_ttl", 86400.0)
        self._workflows = registry.select(workflows)
        self._bodies = {name: body_of(item) for name, item in self._workflows.items()}
        self._attempts = HeldAttempts()
        self._outage = CountedOutages()
        self._board = Board()
        self._capacity = Capacity(self.options.max_concurrent_runs)
        self._doorbells: dict[str, Doorbell] = {}
        self._timer_bell: Doorbell | None = None
        self._schedule_bell: Doorbell | None = None
        self._inbox_bell: Doorbell | None = None
        self._inboxes: dict[tuple[str, str], None] = {}  # to be read, in the order their bells were heard
        self._stop_requested = False
        self._stopping: anyio.Event | None = None
        self._loop: object = None  # while it runs: the event loop's native token
        self._idle: anyio.Event | None = None
        self._over: list[Attempt] = []
        self._asking: set[anyio.CancelScope] = set()
        self._early: set[tuple[str, str]] = set()  # bells of runs whose claims are perhaps on their way
        self._runners = RunnerPool(self._attempt)
        self._joins = store if isinstance(store, JoinsCalls) else None
        self._lease_ms = int(getattr(store, "lock_ttl", 30.0) * 1000)

    # --- start and stop -----------------------------------------------------------------

    def stop(self) -> None:
        """Stop claiming, let runs in flight finish, then return from `run`. Safe from anywhere, more than once."""
        self._stop_requested = True
        if self._loop is not None:
            run_soon(self._loop, self._hear_stop)

    def _hear_stop(self) -> None:
        if self._stop_requested and self._stopping is not None:
            self._stopping.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop()`.

        Raises `ConfigurationError` when the store's settings contradict what is recorded in it,
        and `RuntimeError` when the worker runs already.
        """
        if self._stopping is not None:
            raise RuntimeError("this worker is running already")
        self._stopping = anyio.Event()
        self._runners = RunnerPool(self._attempt)
        self._loop = current_token().native_token
        self._doorbells = {name: Doorbell() for name in self._workflows}
        self._timer_bell = Doorbell()
        self._inbox_bell = Doorbell()
        settings = settings_of(
            self.options,
            completed_ttl=self._completed_ttl,
            lock_ttl=self._lease_ms / 1000,
            threads=anyio.CapacityLimiter(min(32, (os.cpu_count() or 1) + 4)),
        )
        leases = self._lease_thread()
        try:
            async with anyio.create_task_group() as group:
                leases.start()
                async with anyio.create_task_group() as loops:
                    group.start_soon(self._tick, leases)
                    loops.start_soon(supervise, _BELLS, partial(self._bell_loop, task_status), self._outage)
                    self._start_loops(loops, group, settings)
                    try:
                        await self._stopping.wait()
                    except BaseException:  # the host cancels `run`: no grace, but no run is lost either
                        self._stop_asking()
                        self._stop_attempts()
                        raise
                    self._stop_asking()
                    loops.cancel_scope.cancel()
                await self._drain()
                group.cancel_scope.cancel()
            if not self.ready.is_set():
                task_status.started()  # whoever waits for a worker that was stopped early is let go
        except BaseExceptionGroup as group_of_errors:
            if (fault := _first(group_of_errors.subgroup(ConfigurationError))) is None:
                raise
            raise fault from None
        finally:
            await self._close(leases)

    def _start_loops(self, loops: TaskGroup, group: TaskGroup, settings: Settings) -> None:
        for name in self._workflows:
            loops.start_soon(supervise, _CLAIMS + name, partial(self._claim_loop, name, group, settings), self._outage)
        loops.start_soon(supervise, "inbox loop", self._inbox_loop, self._outage)
        loops.start_soon(supervise, _ORPHANS, self._orphan_loop, self._outage)
        if isinstance(self.store, Countable):
            depths = QueueDepths(self.store, self._workflows)
            loops.start_soon(partial(supervise, "queue depth loop", depths.run, self._outage, tells=False))
        if not isinstance(self.store, LeaseKeeper):
            loops.start_soon(supervise, _HEARTBEATS, self._heartbeat_loop, self._outage)
        if isinstance(self.store, Timers):
            loops.start_soon(supervise, _TIMERS, self._timer_loop, self._outage)
        if isinstance(self.store, Schedules):
            bell = self._schedule_bell = Doorbell()
            scheduler = Scheduler(
                self.store,
                self.client,
                list(self._workflows),
                bell,
                limit=self.options.payload_limit,
            )
            loops.start_soon(supervise, _SCHEDULES, partial(scheduler.run, self._outage, _SCHEDULES), self._outage)
        if triggers := [each for item in self._workflows.values() for each in item.triggers]:
            triggering = Triggering(self.store, triggers, limit=self.options.payload_limit)
            loops.start_soon(supervise, _TRIGGERS, partial(triggering.run, self._outage, _TRIGGERS), self._outage)

    async def _drain(self) -> None:
        """Let runs finish, then send them back to the queue, then let go of those that will not end."""
        for patience, act in (
            (self.options.shutdown_grace, None),
            (self.options.cancel_timeout, self._stop_attempts),
            (self.options.cancel_timeout, self._abandon_attempts),
        ):
            if act is not None:
                act()
            with anyio.move_on_after(patience):
                while self._attempts:
                    self._idle = anyio.Event()
                    await self._idle.wait()
            if not self._attempts:
                return

    def _stop_asking(self) -> None:
        """Claims that are under way get a moment to be answered."""
        for asking in self._asking:
            asking.deadline = anyio.current_time() + self.options.cancel_timeout

    def _stop_attempts(self) -> None:
        for attempt in list(self._attempts.values()):
            attempt.stop(Shutdown("the worker stops"))

    def _abandon_attempts(self) -> None:
        for attempt in list(self._attempts.values()):
            attempt.abandon()

    async def _close(self, leases: LeaseThread) -> None:
        leases.stop()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(leases.join, abandon_on_cancel=False)
        self._stopping = self._loop = None
        self._stop_requested = False
        self.ready = anyio.Event()

    def _lease_thread(self) -> LeaseThread:
        lock_ttl = getattr(self.store, "lock_ttl", 30.0)
        return LeaseThread(
            self._renew_from_thread,
            self._attempts.leases,
            self._board,
            lock_ttl=lock_ttl,
            warn_after=self.options.loop_stall_warning,
            give_up_after=self.options.loop_stall_limit,
        )

    def _renew_from_thread(self, leases: Sequence[Lease]) -> list[Lease]:
        if not isinstance(self.store, LeaseKeeper):
            return []  # then `_heartbeat_loop` does it
        until = time.monotonic() + self._lease_ms / 1000
        lost = self.store.heartbeat_sync(leases, lease_ms=self._lease_ms)
        self._attempts.extend(leases, lost, until)
        return lost

    async def _heartbeat_loop(self) -> None:
        """Renew leases from the event loop, for a store that cannot do it from a thread."""
        while True:
            await anyio.sleep(self._lease_ms / 3000)
            if leases := self._attempts.leases():
                until = time.monotonic() + self._lease_ms / 1000
                lost = await self.store.heartbeat(leases, lease_ms=self._lease_ms)
                self._outage.succeeded(_HEARTBEATS)
                self._attempts.extend(leases, lost, until)
                self._attempts.end(lost)

    # --- loops --------------------------------------------------------------------------

    async def _tick(self, leases: LeaseThread) -> None:
        """Show that the loop is alive, hear a stop from elsewhere, end what lost its lease, look for strays."""
        assert self._stopping is not None
        while True:
            leases.beat()
            self._hear_stop()
            while leases.lost:
                self._attempts.end([leases.lost.popleft()])
            self._sweep_strays()
            await anyio.sleep(_TICK)

    def _sweep_strays(self) -> None:
        """Cancel tasks that bodies left behind when their attempts ended."""
        over, self._over = self._over, []
        if not over:
            return
        for task in current_loop().strays(call_scope, over):
            log.warning("a task of an ended attempt was left behind and is cancelled: %r", task)
            task.cancel()

    def _is_ready(self, task_status: TaskStatus[None]) -> None:
        if not self.ready.is_set():
            self.ready.set()
            task_status.started()

    async def _bell_loop(self, task_status: TaskStatus[None]) -> None:
        """Hear what is new. The loops behind it poll as well, so they need not wait for it."""
        async with self.store.bells(list(self._workflows)) as listener:
            self._outage.succeeded(_BELLS)
            self._ring_all()
            self._is_ready(task_status)
            await self._look_into_inboxes()
            while True:
                await self._heard(await listener.next())

    def _ring_all(self) -> None:
        for doorbell in self._doorbells.values():
            doorbell.ring()
        if self._timer_bell is not None:
            self._timer_bell.ring()
        if self._schedule_bell is not None:
            self._schedule_bell.ring()
        for attempt in self._attempts.values():
            attempt.mail_stale = True

    async def _heard(self, bell: Bell) -> None:
        if bell.kind == BellKind.QUEUED:
            self._doorbells[bell.workflow].ring()
        elif bell.kind == BellKind.TIMER and self._timer_bell is not None:
            self._timer_bell.ring()
        elif bell.kind == BellKind.SCHEDULE and self._schedule_bell is not None:
            self._schedule_bell.ring()
        elif bell.kind == BellKind.LOOK:
            self._ring_all()
            await self._look_into_inboxes()
        attempt = self._attempts.get((bell.workflow, bell.run_id))
        if attempt is None:
            if bell.kind == BellKind.INBOX and self._asking:
                self._early.add((bell.workflow, bell.run_id))
            return
        if bell.kind == BellKind.ENDED:
            attempt.stop(ClaimLost(f"run {bell.run_id!r} was ended from outside"))
        elif bell.kind == BellKind.INBOX and self._inbox_bell is not None:
            self._inboxes[bell.workflow, bell.run_id] = None
            self._inbox_bell.ring()

    async def _inbox_loop(self) -> None:
        """Read the inboxes that bells have named. A storm of messages for one run is read in gulps."""
        bell = self._inbox_bell
        assert bell is not None
        while True:
            await bell.wait(math.inf)
            named, self._inboxes = self._inboxes, {}
            for key in named:
                attempt = self._attempts.get(key)
                if attempt is not None:
                    messages = await self.store.inbox(attempt.claim)
                    attempt.receive(messages)
                    await anyio.sleep(len(messages) * _GULP)

    async def _look_into_inboxes(self) -> None:
        """Bells were missed: a message may have come to any run that is held, a cancel among them."""
        for attempt in list(self._attempts.values()):
            attempt.receive(await self.store.inbox(attempt.claim))

    async def _look_again(self, attempt: Attempt) -> None:
        """A bell for this run was heard before its claim was: the message may have come after the claim."""
        try:
            attempt.receive(await self.store.inbox(attempt.claim))
        except StoreUnavailable as error:
            # With the store away bells are missed, and all inboxes are looked into afterwards.
            self._outage.failed(error)

    async def _claim_loop(self, name: str, group: TaskGroup, settings: Settings) -> None:
        """Claim while there is work and room; else wait for a bell, or for the poll that slows down."""
        doorbell = self._doorbells[name]
        poll = self.options.claim_poll_interval
        while True:
            await checkpoint_if_cancelled()
            places = await self._capacity.take(_CLAIM_BATCH)
            claims: tuple[Claim, ...] = ()
            try:
                # Shielded: what was claimed must be known here, also when the worker ends meanwhile.
                with anyio.CancelScope(shield=True) as asking:
                    self._asking.add(asking)
                    batch = await self.store.claim(name, worker=self.worker_id, limit=places, lease_ms=self._lease_ms)
                    claims = tuple(batch.claims)
                if asking.cancelled_caught:
                    return  # the worker ends, and the store is too slow to wait for
            finally:
                self._asking.discard(asking)
                self._capacity.give_back(places - len(claims))
            self._outage.succeeded(_CLAIMS + name)
            for claim in claims:
                self._start(claim, group, settings)
            if not self._asking:
                self._early.clear()
            if self._joins is not None and claims:
                self._joins.expect(len(claims))
            if batch.more or len(claims) == places:
                poll = self.options.claim_poll_interval
                continue
            if await doorbell.wait(poll) or claims:
                poll = self.options.claim_poll_interval
            else:
                poll = min(poll * 2, max(_SLOWEST_POLL, self.options.claim_poll_interval))

    def _start(self, claim: Claim, group: TaskGroup, settings: Settings) -> None:
        try:
            attempt = Attempt(
                self.store,
                claim,
                self._bodies[claim.workflow],
                settings=settings,
                outage=self._outage,
                board=self._board,
            )
        except Exception:
            # A journal that cannot be read is set aside by the sweep's budget; the loop goes on.
            log.exception("run %s: its journal cannot be read; its claim is left to run out", claim.run_id)
            self._capacity.give_back(1)
            return
        attempt.place = Place(self._capacity)
        key = (claim.workflow, claim.run_id)
        former = self._attempts.get(key)
        if former is not None:
            former.stop(ClaimLost(f"run {claim.run_id!r} was claimed anew"))
        self._attempts[key] = attempt
        self._runners.start(group, attempt)
        if key in self._early:
            group.start_soon(self._look_again, attempt)

    async def _attempt(self, attempt: Attempt) -> None:
        run_id = attempt.claim.run_id
        started = time.monotonic()
        try:
            ended = await run_attempt(attempt)
            self._report(attempt, ended, time.monotonic() - started)
        except Exception:
            log.exception("run %s: the attempt failed in the engine; its claim is left to run out", run_id)
        finally:
            key = (attempt.claim.workflow, run_id)
            if self._attempts.get(key) is attempt:
                del self._attempts[key]
            self._over.append(attempt)
            assert attempt.place is not None
            attempt.place.give_up()
            if self._idle is not None:
                self._idle.set()

    def _report(self, attempt: Attempt, ended: Ended, seconds: float) -> None:
        claim = attempt.claim
        if ended.how in ("failed", "set aside", "lost", "retrying"):
            why = "" if ended.error is None else message_of(ended.error)[:_LOGGED]
            log.warning("run %s of %s %s: %s", claim.run_id, claim.workflow, ended.how, why)
        else:
            log.debug("run %s of %s %s after %.3f s", claim.run_id, claim.workflow, ended.how, seconds)

    async def _timer_loop(self) -> None:
        store = self.store
        assert isinstance(store, Timers)
        assert self._timer_bell is not None
        while True:
            nearest = _NEVER
            for name in self._workflows:
                due = await store.next_due(name)
                if due is not None and due <= await store.now():
                    await store.wake(name, limit=self.options.timer_max_batch)
                    self._doorbells[name].ring()
                    due = await store.next_due(name)
                nearest = min(nearest, _NEVER if due is None else due)
            self._outage.succeeded(_TIMERS)
            wait = self.options.timer_poll_interval_s
            if nearest != _NEVER:
                wait = min(wait, max(_EARLY, (nearest - await store.now()) / 1e6))
            await self._timer_bell.wait(wait)

    async def _close_children(self, name: str) -> None:
        """Close what terminated runs left behind, once more: whoever terminated them may not have come to it."""
        store = self.store
        if isinstance(store, Parents):
            for run_id, children in await store.terminated_parents(name, older_than_ms=_LEFT_MS):
                await close_children(store, name, run_id, children, "terminated", self._completed_ttl)
                await store.closed(name, run_id)

    async def _orphan_loop(self) -> None:
        keep_ms = int(self._completed_ttl * 1000)
        while True:
            for name in self._workflows:
                await self._close_children(name)
                while await self.store.sweep(
                    name, limit=_SWEEP_LIMIT, requeue_budget=self.options.requeue_budget, keep_ms=keep_ms
                ):
                    self._doorbells[name].ring()
            self._outage.succeeded(_ORPHANS)
            await anyio.sleep(self.options.orphan_scan_interval)
