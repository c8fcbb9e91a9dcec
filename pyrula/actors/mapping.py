"""One call for each item of a list, at most so many at a time, results in order. Knows neither threads nor runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import anyio

from pyrula.contracts.errors import AttemptEnded, InvalidInput

__all__ = ["Results", "bound_of", "in_order"]

R = TypeVar("R")


def bound_of(value: Any, name: str) -> int | None:
    """A bound as its caller gave it: None for no bound. Raises `InvalidInput`."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise InvalidInput(f"{name}={value!r}: an int of at least 1, or None", name)
    bound: int | None = value
    return bound


class Results(Generic[R]):
    """What becomes of the items of a map: a result each, or the errors of those that failed."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.values: dict[int, R] = {}
        self.errors: dict[int, BaseException] = {}

    def failed(self) -> bool:
        """True once an item has failed: no other is started. May be asked in any thread."""
        return bool(self.errors)

    def given(self) -> list[R]:
        """The results in order; raises what ended the attempt, else the error of the first item that failed."""
        for error in self.errors.values():
            if isinstance(error, AttemptEnded):
                raise error
        if self.errors:
            raise self.errors[min(self.errors)]
        return [self.values[index] for index in range(self.count)]


async def in_order(results: Results[R], one: Callable[[int], Awaitable[R]], bound: int | None) -> None:
    """Start the items in order, and none after one has failed; those that run by then are waited for."""
    places = anyio.Semaphore(max(1, results.count if bound is None else bound))

    async def run(index: int) -> None:
        try:
            results.values[index] = await one(index)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001 - which of them is raised is decided when all have ended
            results.errors[index] = error
        finally:
            places.release()

    async with anyio.create_task_group() as group:
        for index in range(results.count):
            await places.acquire()
            if results.failed():
                return
            group.start_soon(run, index)
