"""Calls that threads make on their run's loop, and wait for: the way back from a thread. Starts no threads.

Each call is a task of the loop, in the context of the thread that makes it, and belongs to the
attempt: when that ends, its calls are cut off before its end is written.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from contextvars import copy_context
from typing import Any, Final, Generic, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import current_token

from pyrula.actors.attempt import Attempt
from pyrula.actors.bridge import CancelRequested, run_soon
from pyrula.actors.calls import Call, ThreadScope, call_scope
from pyrula.contracts.errors import AttemptEnded, ForeignContext, LoopUnresponsive, RunAttemptEnded

__all__ = ["Lines", "from_thread", "lines_of"]

T = TypeVar("T")
# A waiting thread looks so often (seconds) whether the loop it waits for still runs.
_LOOK: Final = 1.0


def lines_of(attempt: Attempt) -> Lines:
    """The attempt's lines, made on first use; called in its loop."""
    if attempt.lines is None:
        attempt.lines = Lines(attempt)
    return attempt.lines


def from_thread(attempt: Attempt, make: Callable[[], Awaitable[T]]) -> T:
    """Have `make` called and awaited in the attempt's loop, under the calling thread's scope; what it gives.

    Raises what the call raises; `RunAttemptEnded` when the attempt is over or the call was cut off
    with it, `LoopUnresponsive` when the loop does not answer, `ForeignContext` for a thread that does
    not carry the run's context, and for the loop's own thread.
    """
    scope = call_scope.get(None)
    if scope is None or scope.owner is not attempt or attempt.lines is None:
        raise ForeignContext(
            f"ctx.from_thread of run {attempt.claim.run_id!r} was called in a thread that does not carry the run's "
            "context; start it with ctx.to_thread or ctx.map_threads"
        )
    return attempt.lines.call(scope, make)


class Lines:
    """The calls that the threads of one attempt have under way. `threads`: those that make them."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.threads: set[ThreadScope] = set()
        self.over = False
        self._home = threading.get_ident()
        self._token = current_token().native_token
        self._calls: set[_Line[Any]] = set()
        self._emptied: anyio.Event | None = None

    # --- in a thread --------------------------------------------------------------------

    def call(self, scope: object, make: Callable[[], Awaitable[T]]) -> T:
        """Make a call in the loop, and wait for it."""
        if threading.get_ident() == self._home:
            raise ForeignContext("ctx.from_thread was called in the event loop's own thread; await the call instead")
        line = _Line(self, scope, make)
        if not run_soon(self._token, line.start):
            raise self.ended()
        limit, since = self.attempt.settings.loop_limit, time.monotonic()
        while not line.done.wait(min(_LOOK, limit / 4)):
            if line.answered:
                line.answered, since = False, time.monotonic()
                if not run_soon(self._token, line.answer):
                    raise self.ended()
            elif time.monotonic() - since > limit:
                line.given_up = True
                raise LoopUnresponsive(
                    f"a thread of run {self.attempt.claim.run_id!r} waited for {limit:g} s, and the run's event loop "
                    "did not run; give blocking code to a plain (not async) step or to ctx.to_thread"
                )
        return line.outcome()

    def ended(self) -> RunAttemptEnded:
        """What a call gets that comes too late."""
        return RunAttemptEnded(f"run {self.attempt.claim.run_id!r}: the attempt that this thread belongs to is over")

    # --- in the loop --------------------------------------------------------------------

    def opened(self, line: _Line[Any]) -> None:
        """A call begins."""
        self._calls.add(line)

    def closed(self, line: _Line[Any]) -> None:
        """A call is over."""
        self._calls.discard(line)
        if self._emptied is not None and not self._calls:
            self._emptied.set()

    def refuses(self, scope: object) -> bool:
        """True when a thread's call comes too late: after the attempt, or after a cancel request that cut it off."""
        if self.over:
            return True
        if not isinstance(scope, ThreadScope):
            return False
        return scope.cut or (scope.alone and (self.attempt.cancel.pending or self.attempt.cancel.delivered))

    def cut(self, calls: Iterable[Call] = ()) -> None:
        """The run was asked to cancel: the threads it has make no more calls, and those under way get no outcome.

        Threads of its clean-up may make calls.
        """
        for call in calls:
            call.interrupted = True
        for thread in tuple(self.threads):
            thread.cut = True
        for line in tuple(self._calls):
            line.cut()

    def cut_off(self, key: str) -> bool:
        """True for a call of a thread that makes no more calls; a cancelled task may go on to its next wait."""
        return any(thread.cut and key.startswith(thread.path) for thread in self.threads)

    async def close(self) -> None:
        """The attempt ends: cut off what is under way, and refuse the rest."""
        self.over = True
        self.cut()
        with anyio.move_on_after(self.attempt.settings.cancel_timeout, shield=True):
            while self._calls:
                self._emptied = anyio.Event()
                await self._emptied.wait()


class _Line(Generic[T]):
    """One call of a thread: posted to the loop, run there as a task, its outcome handed back."""

    __slots__ = (
        "_cut",
        "_error",
        "_lines",
        "_make",
        "_of",
        "_scope",
        "_task",
        "_value",
        "answered",
        "context",
        "done",
        "given_up",
    )

    def __init__(self, lines: Lines, of: object, make: Callable[[], Awaitable[T]]) -> None:
        self._lines = lines
        self._of = of
        self._make = make
        self._value: tuple[T, ...] = ()
        self._error: BaseException | None = None
        self._task: object = None
        self.context = copy_context()
        self.done = threading.Event()
        self.answered = False
        self.given_up = False
        self._cut = False
        self._scope: anyio.CancelScope | None = None

    def outcome(self) -> T:
        """In the thread: what the call gave, or raised."""
        if self._error is None:
            return self._value[0]
        raise self._error

    def answer(self) -> None:
        """In the loop: show that it runs."""
        self.answered = True

    def start(self) -> None:
        """In the loop: begin, unless nobody waits any more or it is too late."""
        self.answered = True
        if self.given_up:
            return
        if self._lines.refuses(self._of):
            self._error = self._lines.ended()
            self.done.set()
            return
        self._lines.opened(self)
        self._task = self._lines.attempt.loop.spawn(self._run, self.context)

    async def _run(self) -> None:
        """The task. A thread that waits takes no place in its pool: what it calls may need one."""
        places = self._lines.attempt.settings.threads or anyio.to_thread.current_default_thread_limiter()
        places.total_tokens += 1
        try:
            with anyio.CancelScope() as self._scope:
                if not self._cut:
                    self._value = (await self._make(),)
            if not self._value:
                self._error = self._lines.ended()
        except BaseException as error:  # noqa: BLE001 - all of it belongs to the thread that waits
            self._error = self._told(error)
        finally:
            places.total_tokens -= 1
            self._lines.closed(self)
            self.done.set()

    def cut(self) -> None:
        """In the loop: cancel it."""
        self._cut = True
        if self._scope is not None:
            self._scope.cancel()

    def _told(self, error: BaseException) -> BaseException:
        """What the thread is told of an error: of the many ends of an attempt one."""
        if isinstance(error, CancelRequested):
            self._pass_on_cancel()
        elif isinstance(error, RunAttemptEnded) or not isinstance(
            error, (AttemptEnded, self._lines.attempt.loop.cancelled)
        ):
            return error
        ended = self._lines.ended()
        ended.__cause__ = error
        return ended

    def _pass_on_cancel(self) -> None:
        """A cancel request was met by this call: it belongs to the body, which waits for the thread."""
        waiting = self._of.call if isinstance(self._of, ThreadScope) else None
        if waiting is not None and waiting.scope is not None:
            waiting.interrupted = True
            waiting.scope.cancel()
