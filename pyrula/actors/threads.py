"""Blocking functions in worker threads that carry the run's context: one call, or one for each item.

Nothing is recorded for the call itself: the function runs again on every replay, and the calls it
makes on the run (see `lines`) find their records under the thread's own scope.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread

from pyrula.actors.attempt import Attempt
from pyrula.actors.calls import Call, OwnedScope, ThreadScope, call_scope
from pyrula.actors.lines import lines_of
from pyrula.actors.mapping import Results, bound_of, in_order
from pyrula.contracts.errors import InvalidInput

__all__ = ["let_in", "map_threads", "meanwhile", "to_thread"]

T = TypeVar("T")
R = TypeVar("R")
_NOTHING: Final[Any] = object()


async def to_thread(attempt: Attempt, fn: Callable[..., T], args: Sequence[Any], kwargs: Mapping[str, Any]) -> T:
    """Run a blocking function in a worker thread that carries the run's context."""
    _check(fn, "to_thread")
    work = partial(fn, *args, **kwargs)
    if attempt.inside_step:
        return await _in_thread(attempt, work, None)
    scope = attempt.current_scope()
    await let_in(attempt)
    thread = ThreadScope(scope, scope.next_thread())
    return await meanwhile(attempt, scope, thread.path, lambda call: _in_thread(attempt, work, thread, call))


def _check(fn: Callable[..., Any], what: str) -> None:
    if inspect.iscoroutinefunction(fn):
        raise InvalidInput(f"ctx.{what} needs a plain function, and {fn!r} is async: await it", "fn")


async def map_threads(
    attempt: Attempt, fn: Callable[[Any], R], items: Iterable[Any], max_workers: int | None
) -> list[R]:
    """Run a blocking function once for each item; results in the order of the items."""
    _check(fn, "map_threads")
    bound = bound_of(max_workers, "max_workers")
    given = list(items)
    results: Results[R] = Results(len(given))
    if attempt.inside_step:

        async def plain(index: int) -> R:
            return await _in_thread(attempt, partial(fn, given[index]), None, skip=results.failed)

        await in_order(results, plain, bound)
        return results.given()
    scope = attempt.current_scope()
    await let_in(attempt)
    number = scope.next_map()
    threads = [ThreadScope(scope, scope.item(number, index)) for index in range(len(given))]

    async def run(call: Call) -> list[R]:
        async def one(index: int) -> R:
            work = partial(fn, given[index])
            return await _in_thread(attempt, work, threads[index], call, skip=results.failed)

        await in_order(results, one, bound)
        return results.given()

    return await meanwhile(attempt, scope, f"{scope.path}map:{number}", run)


async def _in_thread(
    attempt: Attempt,
    fn: Callable[[], T],
    scope: ThreadScope | None,
    call: Call | None = None,
    *,
    skip: Callable[[], bool] = lambda: False,
) -> T:
    """Run it in a thread of the pool. `skip` is asked when it has one: True gives nothing, and does not run it."""
    lines = lines_of(attempt)
    if scope is not None:
        scope.call = call
        lines.threads.add(scope)

    def work() -> tuple[T | None, BaseException | None]:
        try:
            if skip():
                return _NOTHING, None
            if scope is not None:
                call_scope.set(scope)  # the thread's context is a copy, and ends with this call
                scope.enter()
            return fn(), None
        except BaseException as error:  # noqa: BLE001 - it is raised where the thread was asked for
            return None, error
        finally:
            if scope is not None:
                lines.threads.discard(scope)

    try:
        value, error = await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=attempt.settings.threads)
    except BaseException:
        if scope is not None:  # the thread goes on by itself; what it asks for now is nobody's concern
            scope.alone, scope.call = True, None
            attempt.journal.skip(scope.path)
        raise
    if isinstance(error, attempt.loop.cancelled):  # of a loop of its own: nobody has cancelled this one
        raise RuntimeError(f"a function in a thread raised {type(error).__name__}") from error  # noqa: TRY004
    if error is not None:
        raise error
    return value  # type: ignore[return-value]  # without an error it is the function's


async def let_in(attempt: Attempt) -> None:
    """Let a call begin that is not recorded; a cancel request is met here once everything before it was asked for."""
    while True:
        if attempt.barred:
            await attempt.refused()
        cancel = attempt.cancel.pending and attempt.journal.cancel_due
        if not (cancel or attempt.closing or time.monotonic() >= attempt.lease_until):
            return
        await attempt.admit()


async def meanwhile(attempt: Attempt, scope: OwnedScope, key: str, run: Callable[[Call], Awaitable[T]]) -> T:
    """Do what is not recorded as a call under way: a cancel request interrupts it, a park does not wait for it.

    key: where it stands, though nothing is recorded there.
    """
    call = attempt.begin(key, key, scope)
    call.waited = False
    try:
        if attempt.loop.scoped:
            with anyio.CancelScope() as call.scope:
                return await _bounded(attempt, call, run)
            raise await attempt.loop.cancellation(direct=call.direct)
        return await _bounded(attempt, call, run)
    finally:
        if call.interrupted:
            attempt.loop.calm()
        attempt.end(call)


async def _bounded(attempt: Attempt, call: Call, run: Callable[[Call], Awaitable[T]]) -> T:
    """In the clean-up of a cancelled run it has `cancel_timeout`, as any call there."""
    with anyio.move_on_after(attempt.settings.cancel_timeout if attempt.cancel.delivered else None):
        value = await run(call)
        if call.interrupted:
            raise await attempt.loop.cancellation(direct=call.direct)
        return value
    raise await attempt.loop.cancellation(direct=call.direct)
