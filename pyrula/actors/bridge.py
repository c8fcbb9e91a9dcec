"""What the engine needs of a loop beyond anyio: a task as an object, one cancellation, tasks gone astray.

The named bridge to asyncio's own tasks: bodies may start some with `asyncio.create_task` or
`asyncio.gather`, and those belong to no scope of anyio's. Under trio every task has a nursery,
and a scope around the call does what a task's `cancel` does here.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

import anyio
from anyio.lowlevel import checkpoint

__all__ = ["CancelRequested", "Loop", "current_loop", "run_soon"]


class CancelRequested(BaseException):
    """Raised in a task of a nursery when its run is asked to cancel: unlike `Cancelled`, it ends the whole nursery."""


class Loop(Protocol):
    """One of the two kinds of loop."""

    scoped: bool
    """True when a call must run in a cancel scope of its own to be interruptible."""

    @property
    def cancelled(self) -> type[BaseException]:
        """The loop's own cancellation."""
        ...

    def current_task(self) -> object | None:
        """The running task, as an object; under asyncio one that `interrupt` takes."""
        ...

    def interrupt(self, task: object) -> None:
        """Have a waiting task raise the loop's cancellation once."""
        ...

    def interrupt_body(self, task: object) -> None:
        """Have a body's own task, wherever it waits, raise the loop's cancellation once."""
        ...

    def calm(self) -> None:
        """Take back the mark that an interrupt has left on the current task."""
        ...

    def asked_to_cancel(self) -> bool:
        """True when the cancellation that the current task has just caught was meant for it."""
        ...

    async def cancellation(self, *, direct: bool = True) -> BaseException:
        """The loop's own cancellation, to be raised; for a task that is not `direct`, what stands for it there.

        A task group takes the cancellation of one of its tasks for that task's end, and goes on.
        """
        ...

    async def absorb(self) -> None:
        """Take back the cancellations of the current task that its body has asked for by itself."""
        ...

    def spawn(self, run: Callable[[], Coroutine[Any, Any, None]], context: contextvars.Context) -> object:
        """Start a task that belongs to whoever keeps it: it must catch all its errors, and be ended by its keeper."""
        ...

    def strays(self, scope: contextvars.ContextVar[Any], ended: Iterable[object]) -> list[Any]:
        """Tasks that still carry the context of an ended attempt."""
        ...


class _Asyncio:
    scoped = False
    cancelled: type[BaseException] = asyncio.CancelledError

    def current_task(self) -> object | None:
        return asyncio.current_task()

    def interrupt(self, task: object) -> None:
        assert isinstance(task, asyncio.Task)
        task.cancel()

    def interrupt_body(self, task: object) -> None:
        assert isinstance(task, asyncio.Task)
        task.cancel()
        task.get_loop().call_soon(task.uncancel)  # it has been raised by then, and nothing else is to be seen of it

    def calm(self) -> None:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            task.uncancel()

    def asked_to_cancel(self) -> bool:
        # Who awaits a future that somebody cancelled gets the same error, with nobody asking the task itself.
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    async def cancellation(self, *, direct: bool = True) -> BaseException:
        return asyncio.CancelledError()

    async def absorb(self) -> None:
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            return
        with contextlib.suppress(asyncio.CancelledError):  # one that is pending comes with the next wait
            await asyncio.sleep(0)
        while task.cancelling():
            task.uncancel()

    def spawn(self, run: Callable[[], Coroutine[Any, Any, None]], context: contextvars.Context) -> object:
        return asyncio.get_running_loop().create_task(run(), context=context)

    def strays(self, scope: contextvars.ContextVar[Any], ended: Iterable[object]) -> list[Any]:
        over = set(map(id, ended))
        current = asyncio.current_task()
        found = []
        for task in asyncio.all_tasks():
            context = _context_of(task)
            if task is not current and context is not None and id(getattr(context.get(scope), "owner", None)) in over:
                found.append(task)
        return found


def run_soon(token: object, callback: Callable[[], object]) -> bool:
    """Run a callback in the loop of that native token; False, and nothing happens, when the loop is over.

    Safe from any thread, and from a signal handler, which may have interrupted the loop's own bookkeeping.
    """
    loop: Any = token
    with contextlib.suppress(RuntimeError):  # a closed asyncio loop; trio.RunFinishedError is one as well
        (loop.call_soon_threadsafe if hasattr(loop, "call_soon_threadsafe") else loop.run_sync_soon)(callback)
        return True
    return False


def _context_of(task: asyncio.Task[Any]) -> contextvars.Context | None:
    if hasattr(task, "get_context"):  # Python 3.12 and newer
        context: contextvars.Context = task.get_context()
        return context
    # Python 3.11 does not tell a task's context; the future it waits for holds it beside the
    # callback that will wake the task.
    waits_for = getattr(task, "_fut_waiter", None)
    callbacks = getattr(waits_for, "_callbacks", None) or ()
    return next((context for callback, context in callbacks if getattr(callback, "__self__", None) is task), None)


class _Trio:
    scoped = True

    @property
    def cancelled(self) -> type[BaseException]:
        return anyio.get_cancelled_exc_class()

    def current_task(self) -> object | None:
        task: object = sys.modules["trio"].lowlevel.current_task()
        return task

    def interrupt(self, task: object) -> None:
        raise RuntimeError("under trio a call is interrupted through its scope")

    def interrupt_body(self, task: object) -> None:
        """Nothing: a `CancelRequested` in one of its tasks ends the nursery that the body waits in."""

    def calm(self) -> None:
        """Nothing to take back: a scope ends with its call."""

    def asked_to_cancel(self) -> bool:
        return True  # trio lets nobody else make its Cancelled

    async def cancellation(self, *, direct: bool = True) -> BaseException:
        if not direct:
            return CancelRequested("the run was asked to cancel")
        # trio makes its Cancelled itself and only in a cancelled scope; this one is caught in
        # such a scope and then belongs to whoever raises it.
        with anyio.CancelScope() as scope:
            scope.cancel()
            try:
                await checkpoint()
            except anyio.get_cancelled_exc_class() as cancelled:
                return cancelled.with_traceback(None)
        raise RuntimeError("a cancelled scope let a checkpoint pass")

    async def absorb(self) -> None:
        """Nothing: a task cannot cancel itself here but through a scope, which the body has left."""

    def spawn(self, run: Callable[[], Coroutine[Any, Any, None]], context: contextvars.Context) -> object:
        task: object = sys.modules["trio"].lowlevel.spawn_system_task(run, context=context)
        return task

    def strays(self, scope: contextvars.ContextVar[Any], ended: Iterable[object]) -> list[Any]:
        return []


_ASYNCIO: Loop = _Asyncio()
_TRIO: Loop = _Trio()


def current_loop() -> Loop:
    """The kind of the running event loop."""
    return _ASYNCIO if anyio.get_cancelled_exc_class() is asyncio.CancelledError else _TRIO
