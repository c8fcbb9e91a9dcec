"""The context: what a body types. Each method hands over to the run actor; see `pyrula.actors`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NoReturn, ParamSpec, TypeVar, overload
from uuid import UUID

from pyrula.actors import (
    children,
    emitting,
    gathering,
    lines,
    parking,
    patching,
    processes,
    threads,
    updating,
    values,
    waits,
)
from pyrula.actors.attempt import Attempt
from pyrula.actors.children import ChildSpec
from pyrula.actors.steps import StepSpec, run_step
from pyrula.contracts.errors import InvalidInput
from pyrula.contracts.events import from_micros, to_micros
from pyrula.contracts.ids import check_id, check_workflow_name
from pyrula.contracts.options import Retry
from pyrula.contracts.store import NewRun
from pyrula.contracts.values import decode_json, encode
from pyrula.workflows.registry import Workflow, registry
from pyrula.workflows.submission import new_run

__all__ = ["Context"]

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
_MISSING: Any = object()


class _RunLog(logging.LoggerAdapter[logging.Logger]):
    """Adds the run to each record, and drops records while the body replays what is known."""

    def __init__(self, attempt: Attempt) -> None:
        claim = attempt.claim
        super().__init__(
            logging.getLogger(f"pyrula.workflow.{claim.workflow}"),
            {"workflow": claim.workflow, "run_id": claim.run_id, "attempt": claim.attempt},
        )
        self._attempt = attempt

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the standard library's name
        return not self._attempt.replaying and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class Context:
    """What a workflow's body is given: `async def body(ctx, ...)`.

    Everything that is awaited here is recorded in the run's journal, and given back from there
    when the body is run again after a crash, a deploy or a wait.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        restart = attempt.journal.restart
        self._restored = None if restart is None else restart.data["state"]

    # --- facts --------------------------------------------------------------------------

    @cached_property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that names the run and drops records while the body replays what is known."""
        return _RunLog(self._attempt)

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._attempt.claim.run_id

    @property
    def name(self) -> str:
        """The workflow's name."""
        return self._attempt.claim.workflow

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._attempt.claim.attempt

    @property
    def owner(self) -> str | None:
        """The tenant the run belongs to."""
        return self._attempt.claim.owner or None

    @property
    def is_replaying(self) -> bool:
        """True while recorded outcomes are left that the body has not come to."""
        return self._attempt.replaying

    # --- steps --------------------------------------------------------------------------

    @overload
    def step(
        self,
        id: str,
        fn: Callable[..., Coroutine[Any, Any, T]],
        /,
        *args: Any,
        retry: Retry | None = None,
        timeout: float | None = None,
        at_most_once: bool = False,
        inline: bool = False,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def step(
        self,
        id: str,
        fn: Callable[..., T],
        /,
        *args: Any,
        retry: Retry | None = None,
        timeout: float | None = None,
        at_most_once: bool = False,
        inline: bool = False,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, T]: ...

    def step(
        self,
        id: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        retry: Retry | None = None,
        timeout: float | None = None,
        at_most_once: bool = False,
        inline: bool = False,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]:
        """Run `fn` and record its outcome under `id`; a later attempt gets the outcome without running it.

        An async function runs in place, a plain one in a worker thread, or in place too with
        `inline=True`. What comes back has been through the codec, decoded by `fn`'s return
        annotation, live as on replay.

        retry: the policy for failures; by default three tries. A delay of more than 3 s is a
            durable timer.
        timeout: seconds one try may take (a thread cannot be stopped; its result is dropped).
        at_most_once: record the intent first, and never run it a second time: after a crash in
            between, `StepFailed` with `AtMostOnceUnknown` inside.

        Raises `StepFailed` when it failed for good, `ConcurrentStepIdError` when the id is
        running already in this scope.
        """
        return run_step(self._attempt, StepSpec(id, fn, args, kwargs, retry, timeout, at_most_once, inline))

    async def gather(
        self, *aws: Awaitable[Any], max_concurrency: int | None = None, return_exceptions: bool = False
    ) -> list[Any]:
        """Run awaitables concurrently; results in argument order.

        The first error cancels the rest and is raised, or with `return_exceptions` errors are
        results. A leg may not sleep or wait: `SuspendInGatherLeg`.
        """
        return await gathering.gather(
            self._attempt, aws, max_concurrency=max_concurrency, return_exceptions=return_exceptions
        )

    # --- blocking code ------------------------------------------------------------------

    async def to_thread(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking function in a worker thread that carries the run's context; what it returns.

        Its result is not recorded: on a replay the function runs again, and the calls it makes on the
        run by `ctx.from_thread` get their recorded outcomes.
        """
        return await threads.to_thread(self._attempt, fn, args, kwargs)

    async def map_threads(self, fn: Callable[[S], T], items: Iterable[S], *, max_workers: int | None = 8) -> list[T]:
        """Run a blocking function once for each item, each in a thread as of `to_thread`; results in item order.

        max_workers: items at a time (None: as many as the pool has threads for). When an item raises,
            none is started any more, and when those that run have ended the error of the first of
            them by item order is raised.
        """
        return await threads.map_threads(self._attempt, fn, items, max_workers)

    async def par_map(self, fn: Callable[[S], T], items: Iterable[S], *, workers: int | None = None) -> list[T]:
        """Run a function that keeps a CPU busy once for each item, in worker processes; results in item order.

        fn: importable by its name; what it takes and returns is pickled. It knows nothing of the run, and
            as with `to_thread` nothing is recorded: put the map into a step to keep its result.
        workers: processes at a time, by default one for each CPU, over all runs of the event loop.

        Errors as of `map_threads`; `WorkerProcessDied` when a process ended without a result.
        """
        return await processes.par_map(self._attempt, fn, items, workers)

    def from_thread(self, call: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """In a thread of `to_thread` or `map_threads`: make a call in the run's loop and wait for its outcome.

            total = ctx.from_thread(ctx.step, "total", price, order)

        A plain step's function may write output this way, and nothing else. Raises what the call
        raises; `RunAttemptEnded`, which is no `Exception`, when the attempt is over; let it propagate.
        `LoopUnresponsive` when the loop is blocked, `SuspendInGatherLeg` for a sleep or another wait.
        """
        return lines.from_thread(self._attempt, lambda: call(*args, **kwargs))

    # --- waiting ------------------------------------------------------------------------

    async def sleep(self, seconds: float) -> None:
        """Sleep; the run holds no worker meanwhile and survives any restart."""
        await waits.sleep_until(self._attempt, None, seconds)

    async def sleep_until(self, when: datetime) -> None:
        """Sleep until an aware datetime; one that is past returns at once."""
        if not isinstance(when, datetime) or when.tzinfo is None:
            raise InvalidInput(f"sleep_until needs an aware datetime, not {when!r}", "when")
        await waits.sleep_until(self._attempt, to_micros(when.astimezone(UTC)))

    async def wait_for_signal(self, name: str, timeout: float | None = None) -> Any:
        """The next payload signalled under `name`, in order of arrival. Raises `SignalTimeout`."""
        return await waits.wait_for_signal(self._attempt, name, timeout)

    def on_update(
        self, name: str, handler: Callable[[Any], Any], *, validator: Callable[[Any], Any] | None = None
    ) -> None:
        """Have updates of this name handled, from the next wait on; see `client.update`.

        handler: a function of the payload, plain or async. What it returns is the caller's answer; an error it
            raises is the caller's too. It runs again at the same place on every replay, and may make calls on ctx.
        validator: a function of the payload that raises to reject it; a rejected update is not recorded.
        """
        updating.on_update(self._attempt, name, handler, validator)

    async def interrupt(self, question: Any, *, key: str | None = None, timeout: float | None = None) -> Any:
        """Park the run with a question for a person; gives what `client.resume` answers. Raises `SignalTimeout`."""
        return await waits.interrupt(self._attempt, question, key, timeout)

    # --- recorded values ----------------------------------------------------------------

    async def now(self) -> datetime:
        """The time, aware UTC, the same on every replay."""
        return from_micros(await values.now(self._attempt))

    async def uuid(self) -> UUID:
        """A random UUID, the same on every replay."""
        return await values.new_uuid(self._attempt)

    async def random(self) -> float:
        """A float in [0, 1), the same on every replay."""
        return await values.random_number(self._attempt)

    async def checkpoint(self, state: Any = _MISSING, *, restart: bool = False) -> Any:
        """Record a state and get it back; without one, get the last state recorded before (None if none).

        restart: replays start behind this call. A later attempt runs the body from its beginning, finds the
        state in `ctx.restored`, and must come from there to what follows this call, without asking for
        anything that came before.
        """
        given = state is not _MISSING
        return await values.checkpoint(self._attempt, state if given else None, given, restart=restart)

    @property
    def restored(self) -> Any:
        """The state of the last `checkpoint(restart=True)` that an earlier attempt recorded; None if none."""
        return self._restored

    async def patched(self, id: str) -> bool:
        """True for runs that come to this place for the first time, False for those that have passed it already.

        For code that changed under live runs: put the new way under `if await ctx.patched("..."):` and leave the
        old way in the `else`. The answer is the same for the whole run.
        """
        return await patching.patched(self._attempt, id)

    async def deprecate_patch(self, id: str) -> None:
        """In place of `patched`, once no run takes the old way any more; a later deploy may drop it."""
        await patching.deprecate_patch(self._attempt, id)

    async def continue_as_new(self, **inputs: Any) -> NoReturn:
        """End this journal, and go on under the same run id in a new one with these inputs. Does not return.

        Signals that have come and were not taken stay. Open children are closed as at an end. Raises
        `InvalidInput` for inputs that the workflow does not take.
        """
        known = registry.get(self.name)
        limit = self._attempt.settings.payload_limit
        raw = encode(inputs, path="inputs", limit=limit) if known is None else known.spec.check(inputs, limit=limit)
        await parking.continue_as_new(self._attempt, raw)
        raise AssertionError("a run that goes on in a new journal came back")

    # --- other runs ---------------------------------------------------------------------

    async def run_child(
        self,
        name: str | Workflow,
        input: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        poll_interval: float = 0.5,
        parent_close: str = "cancel",
        owner: str | None = None,
    ) -> Any:
        """Start a run of another workflow and wait for its result; a replayed parent finds the same child again.

        timeout: seconds to wait; the child goes on after that.
        poll_interval: seconds until the parent looks at the child by itself, in case the news of its end is lost.
        parent_close: what happens to the child when this run ends before it: `cancel`, `terminate` or `abandon`.
        owner: the child's tenant; this run's by default.

        Raises `ChildWorkflowError` when the child failed, was cancelled or terminated, `ChildTimedOut` after the
        timeout, and `InvalidInput` for an input that the workflow does not take.
        """
        if timeout is not None and not timeout >= 0:
            raise InvalidInput(f"timeout={timeout!r}: a number of seconds is needed", "timeout")
        if not poll_interval > 0:
            raise InvalidInput(f"poll_interval={poll_interval!r}: a number of seconds greater than 0", "poll_interval")
        spec = ChildSpec(
            self._submission(name, input, owner), timeout, poll_interval, children.checked_close(parent_close)
        )
        workflow, result = await children.run_child(self._attempt, spec)
        known = registry.get(workflow)
        return result if known is None else decode_json(result, known.spec.result_annotation, path="result")

    async def spawn(
        self, name: str | Workflow, input: Mapping[str, Any] | None = None, *, owner: str | None = None
    ) -> str:
        """Start a run of its own, once over all attempts; gives its id. It is never waited for and never closed."""
        return await children.spawn(self._attempt, self._submission(name, input, owner))

    async def send_signal(self, name: str, run_id: str, signal: str, payload: Any = None) -> None:
        """Deliver a signal to another run, once over all attempts. Raises `RunNotFound`."""
        check_id(signal, "signal")
        await children.send_signal(
            self._attempt, check_workflow_name(name), check_id(run_id, "run_id"), signal, payload
        )

    def _submission(
        self, name: str | Workflow, input: Mapping[str, Any] | None, owner: str | None
    ) -> Callable[[str, dict[str, Any] | None], NewRun]:
        """What submits a run of another workflow under an id."""

        def make(run_id: str, headers: dict[str, Any] | None) -> NewRun:
            return new_run(
                self._attempt.settings.payload_limit,
                name,
                input,
                run_id=run_id,
                owner=self.owner if owner is None else owner,
                headers=headers,
            )

        return make

    # --- what others see ----------------------------------------------------------------

    async def stream(self, chunk: Any) -> None:
        """Append a chunk to the run's output, which clients may follow live."""
        await values.stream(self._attempt, chunk)

    async def commit(self, key: str, value: Any) -> None:
        """Publish a named value of the run, visible at once."""
        await values.commit(self._attempt, key, value)

    async def emit(self, event: str, payload: Any = None) -> str:
        """Publish an application event, once over all attempts; triggers start runs by it. Gives the event's id."""
        return await emitting.emit(self._attempt, event, payload)

    def set_attributes(self, **attributes: Any) -> None:
        """Set search attributes of the run, visible in listings from the next record on."""
        values.set_attributes(self._attempt, attributes)
