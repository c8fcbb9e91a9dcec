"""A function over items in worker processes, for work that keeps a CPU busy. Processes know nothing of the run."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import anyio
import anyio.to_process

from pyrula.actors.attempt import Attempt
from pyrula.actors.calls import Call
from pyrula.actors.mapping import Results, bound_of, in_order
from pyrula.actors.threads import let_in, meanwhile
from pyrula.contracts.errors import InvalidInput, WorkerProcessDied

__all__ = ["par_map"]

R = TypeVar("R")


async def par_map(attempt: Attempt, fn: Callable[[Any], R], items: Iterable[Any], workers: int | None) -> list[R]:
    """Run `fn` once for each item, each in a process of its own or one that is free; results in order.

    Raises what `fn` raised, of the first item that failed; `WorkerProcessDied`; `InvalidInput` for a
    function or an item that cannot be sent to a process.
    """
    bound = bound_of(workers, "workers")
    given = list(items)
    _check(fn, given)
    limiter = anyio.to_process.current_default_process_limiter() if bound is None else anyio.CapacityLimiter(bound)
    results: Results[R] = Results(len(given))

    async def one(index: int) -> R:
        try:
            return await anyio.to_process.run_sync(fn, given[index], cancellable=True, limiter=limiter)
        except anyio.BrokenWorkerProcess as error:
            raise WorkerProcessDied(f"par_map: the process that worked on item {index} died") from error

    async def run(_: Call | None) -> list[R]:
        await in_order(results, one, int(limiter.total_tokens))
        return results.given()

    if attempt.inside_step:
        return await run(None)
    scope = attempt.current_scope()
    await let_in(attempt)
    return await meanwhile(attempt, scope, f"{scope.path}par_map", run)


def _check(fn: Callable[..., Any], items: list[Any]) -> None:
    """A process is sent the function by its name, and the item by its value."""
    if inspect.iscoroutinefunction(fn):
        raise InvalidInput(f"par_map needs a plain function, and {fn!r} is async", "fn")
    for what, value in (("fn", fn), *((f"items[{index}]", item) for index, item in enumerate(items))):
        try:
            pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # pickle lets through whatever a value's own method raises
            raise InvalidInput(
                f"par_map cannot send {what} to a process ({error}); "
                "a function must be importable by its name, and an item picklable",
                what,
            ) from error
