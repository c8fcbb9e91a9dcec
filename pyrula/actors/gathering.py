"""Parallel legs: `ctx.gather`. Each leg is a scope of its own, so any interleaving replays."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Sequence
from typing import Any

import anyio

from pyrula.actors.attempt import Attempt
from pyrula.actors.calls import OwnedScope, call_scope
from pyrula.contracts.errors import AttemptEnded, InvalidInput, SuspendInGatherLeg

__all__ = ["gather"]


class _Legs:
    """The legs of one gather, while they run."""

    def __init__(self, attempt: Attempt, aws: Sequence[Awaitable[Any]], return_exceptions: bool) -> None:
        self.attempt = attempt
        self.scope: OwnedScope = attempt.current_scope()
        self.number = self.scope.next_gather()
        self.chained = self.scope.direct(attempt.loop.current_task())
        self.aws = aws
        self.results: list[Any] = [None] * len(aws)
        self.started = [False] * len(aws)
        self.return_exceptions = return_exceptions
        self.error: BaseException | None = None
        self.group: anyio.abc.TaskGroup | None = None

    async def leg(self, index: int, limiter: anyio.Semaphore | None = None) -> None:
        """Run one leg; its first error is kept and the others are cancelled."""
        self.started[index] = True
        scope = self.scope.leg(self.number, index)
        scope.task = self.attempt.loop.current_task()
        scope.chained = self.chained
        token = call_scope.set(scope)
        try:
            self.results[index] = await self.aws[index]
        except (AttemptEnded, SuspendInGatherLeg) as error:
            self._fail(error)
        except anyio.get_cancelled_exc_class() as error:
            if self.group is None or self.group.cancel_scope.cancel_called:
                raise
            self._fail(error)  # a cancel request of the run, delivered to this leg
        except Exception as error:  # noqa: BLE001 - any error of a leg is the gather's
            if self.return_exceptions:
                self.results[index] = error
            else:
                self._fail(error)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - asyncio would end the whole loop for a SystemExit of a task
            self._fail(error)
        finally:
            call_scope.reset(token)
            if limiter is not None:
                limiter.release()

    def _fail(self, error: BaseException) -> None:
        if self.error is None or (isinstance(error, AttemptEnded) and not isinstance(self.error, AttemptEnded)):
            self.error = error
        if self.group is not None:
            self.group.cancel_scope.cancel()

    async def run(self, max_concurrency: int | None) -> None:
        """Start the legs in argument order, at most so many at a time, and wait for all."""
        try:
            async with anyio.create_task_group() as self.group:
                if max_concurrency is None or max_concurrency >= len(self.aws):
                    for index in range(len(self.aws)):
                        self.group.start_soon(self.leg, index)
                else:
                    places = anyio.Semaphore(max_concurrency)
                    for index in range(len(self.aws)):
                        await places.acquire()
                        self.group.start_soon(self.leg, index, places)
        finally:
            for started, aw in zip(self.started, self.aws, strict=True):
                if not started and inspect.iscoroutine(aw):
                    aw.close()
        if self.error is not None:
            path = f"{self.scope.path}g{self.number}."
            self.attempt.journal.skip(path)
            if isinstance(self.error, Exception):
                self.attempt.cancel_absorbed(path)
            raise self.error


async def gather(
    attempt: Attempt, aws: Sequence[Awaitable[Any]], *, max_concurrency: int | None, return_exceptions: bool
) -> list[Any]:
    """Run awaitables concurrently; their results in argument order."""
    if max_concurrency is not None and (
        isinstance(max_concurrency, bool) or not isinstance(max_concurrency, int) or max_concurrency < 1
    ):
        for aw in aws:
            if inspect.iscoroutine(aw):
                aw.close()
        raise InvalidInput(f"max_concurrency={max_concurrency!r}: an int of at least 1, or None", "max_concurrency")
    legs = _Legs(attempt, aws, return_exceptions)
    if aws:
        await legs.run(max_concurrency)
    return legs.results
