"""A step: run a function, record its outcome, try again. One live call each."""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio
import anyio.to_thread
from anyio.lowlevel import checkpoint

from pyrula.actors.attempt import Attempt
from pyrula.actors.calls import Call, InsideStep, call_scope
from pyrula.actors.core.failures import describe, step_failed
from pyrula.actors.core.journal import Kind, Record
from pyrula.actors.core.retrying import DURABLE_DELAY, retry_delay
from pyrula.actors.core.scope import escape
from pyrula.actors.lines import lines_of
from pyrula.actors.parking import park, take_slot
from pyrula.contracts.errors import (
    AtMostOnceUnknown,
    AttemptEnded,
    ConcurrentStepIdError,
    InvalidInput,
    PyrulaError,
    StepFailed,
    StepTimedOut,
)
from pyrula.contracts.events import Entry, EventType, raw_json
from pyrula.contracts.ids import check_text
from pyrula.contracts.options import Retry
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Parking
from pyrula.contracts.values import decode_json, normalize, return_annotation

__all__ = ["StepSpec", "run_step"]

_COROUTINE: Final = inspect.CO_COROUTINE
_DEFAULT_RETRY: Final = Retry()


@dataclass(frozen=True, slots=True)
class StepSpec:
    """One `ctx.step` call as the author wrote it."""

    step_id: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    retry: Retry | None = None
    timeout: float | None = None
    at_most_once: bool = False
    inline: bool = False


async def run_step(attempt: Attempt, spec: StepSpec) -> Any:
    """Give the recorded outcome, or run the step and record it. Raises `StepFailed`."""
    if attempt.barred:
        await attempt.refused()
    scope = attempt.current_scope()
    step_id = spec.step_id
    if not isinstance(step_id, str) or not step_id:
        raise InvalidInput(f"ctx.step needs a non-empty string as its id, not {step_id!r}", "id")
    check_text(step_id, "id")
    if step_id in scope.running:
        error = ConcurrentStepIdError(
            f"step id {step_id!r} is already running in this scope; give each step an id of its own, or use ctx.gather"
        )
        attempt.poison = attempt.poison or error
        raise error
    key = scope.key(escape(step_id))
    record = attempt.match(key, Kind.STEP)
    if await attempt.stands(record):
        assert record is not None
        assert record.outcome is not None
        await attempt.in_turn(record.outcome.seq)
        if record.outcome.type == EventType.STEP_FAILED:
            if attempt.replaying:
                await checkpoint()  # tasks beside this one start before the failure cuts them off
            raise step_failed(step_id, key, record.outcome.data)
        return _replayed(spec, record.outcome)
    call = attempt.begin(key, step_id, scope)
    scope.running.add(step_id)
    try:
        if attempt.loop.scoped:
            with anyio.CancelScope() as call.scope:
                return await _live(attempt, spec, call, record)
            raise await attempt.loop.cancellation(direct=call.direct)
        return await _live(attempt, spec, call, record)
    finally:
        if call.interrupted:
            attempt.loop.calm()
        scope.running.discard(step_id)
        attempt.end(call)


def _replayed(spec: StepSpec, outcome: Entry) -> Any:
    return decode_json(outcome.data["result"], return_annotation(spec.fn), path=f"step {spec.step_id!r} result")


async def _live(attempt: Attempt, spec: StepSpec, call: Call, record: Record | None) -> Any:
    tries = record.tries if record is not None else 0
    if record is not None and record.opened is not None:
        if record.opened.type == EventType.STEP_STARTED:
            return await _unknown(attempt, spec, call)
        await _pause(attempt, call, record.opened.data["wake"])
    if spec.at_most_once:
        await attempt.recorder.flush(attempt.recorder.add(EventType.STEP_STARTED, call.key, {}))
    if attempt.cancel.delivered:
        value, tries = await _tried_in_clean_up(attempt, spec, call, tries)
    else:
        value, tries = await _tried(attempt, spec, call, tries)
    try:
        raw, result = normalize(value, return_annotation(spec.fn), path="result", limit=attempt.settings.payload_limit)
    except PyrulaError as error:
        # Its effect has happened: another try would only repeat it.
        raise step_failed(spec.step_id, call.key, await _record_failure(attempt, call, error, tries)) from error
    data: dict[str, Any] = {"result": raw_json(raw), "function": _name(spec.fn)}
    if tries > 1:
        data["attempts"] = tries
    seq = attempt.record(EventType.STEP_COMPLETED, call.key, data)
    call.settled = True
    if attempt.attributes_changed:
        await attempt.write_attributes()
    await attempt.recorder.flush(seq)
    return result


async def _tried(attempt: Attempt, spec: StepSpec, call: Call, tries: int) -> tuple[Any, int]:
    """Run the function until it returns; its value, and the number of tries."""
    while True:
        tries += 1
        try:
            if attempt.observer is None:
                value = await _invoke(attempt, spec)
            else:
                with attempt.observer.step(call.label, call.key, tries, _name(spec.fn)):
                    value = await _invoke(attempt, spec)
        except (AttemptEnded, GeneratorExit):
            raise
        except KeyboardInterrupt as error:
            # A real Ctrl-C: trio raises it in whatever runs in the main thread. Any other is the step's own.
            if attempt.loop.scoped and (spec.inline or _is_async(spec.fn)):
                raise
            await _failed(attempt, spec, call, error, tries)
            continue
        except attempt.loop.cancelled as error:
            if call.interrupted or attempt.loop.asked_to_cancel():
                raise
            await _failed(attempt, spec, call, error, tries)  # something that the step waited for was cancelled
            continue
        except BaseException as error:  # noqa: BLE001 - a step's SystemExit is the step's failure
            await _failed(attempt, spec, call, error, tries)
            continue
        if call.interrupted:
            raise await attempt.loop.cancellation(direct=call.direct)
        return value, tries


async def _tried_in_clean_up(attempt: Attempt, spec: StepSpec, call: Call, tries: int) -> tuple[Any, int]:
    """In the clean-up of a cancelled run a call has `cancel_timeout` for all its tries."""
    limit = attempt.settings.cancel_timeout
    with anyio.move_on_after(limit):
        return await _tried(attempt, spec, call, tries)
    late = StepTimedOut(
        f"step {spec.step_id!r} took longer than the {limit} s that a call has once its run is cancelled"
    )
    raise step_failed(spec.step_id, call.key, await _record_failure(attempt, call, late, tries + 1)) from late


async def _unknown(attempt: Attempt, spec: StepSpec, call: Call) -> Any:
    error = AtMostOnceUnknown(
        f"at-most-once step {spec.step_id!r} had been started when its worker was lost; "
        "whether it took effect is not known"
    )
    await _record_failure(attempt, call, error, 1)
    raise step_failed(spec.step_id, call.key, {"error": describe(error), "attempts": 1})


async def _record_failure(attempt: Attempt, call: Call, error: BaseException, tries: int) -> dict[str, Any]:
    data = {"error": describe(error), "attempts": tries}
    seq = attempt.record(EventType.STEP_FAILED, call.key, data)
    call.settled = True
    await attempt.recorder.flush(seq)
    return data


async def _failed(attempt: Attempt, spec: StepSpec, call: Call, error: BaseException, tries: int) -> None:
    """Return when the step is to be tried again now; raise when it has failed, or the run parks until then."""
    if call.interrupted:
        raise await attempt.loop.cancellation(direct=call.direct)
    policy = spec.retry or _DEFAULT_RETRY
    # Trying again is what an at-most-once step must not do: its first try may have taken effect.
    delay = None if spec.at_most_once else retry_delay(policy, error, tries, random.random())
    if delay is None:
        data = await _record_failure(attempt, call, error, tries)
        failure: StepFailed = step_failed(spec.step_id, call.key, data)
        raise failure from error
    if delay <= DURABLE_DELAY:
        await anyio.sleep(delay)
        return
    wake = attempt.now() + int(delay * 1e6)
    data = {"error": describe(error), "attempts": tries, "wake": wake}
    await attempt.recorder.flush(attempt.recorder.add(EventType.STEP_RETRYING, call.key, data))
    await _pause(attempt, call, wake)


async def _pause(attempt: Attempt, call: Call, wake: int) -> None:
    """Wait for a step's next try: parked when nothing else is under way, in place while other legs work."""
    call.retrying = True
    attempt.call_rests()
    try:
        await checkpoint()  # legs beside this one may not have begun yet
        while (left := wake - attempt.now()) > 0:
            alone = all(other.retrying for other in attempt.calls)
            if alone and not attempt.cancel.delivered and attempt.slot is None:
                await take_slot(attempt)
                await park(attempt, Parking(RunStatus.SLEEPING, "", wake), None, own=call)
            with anyio.move_on_after(left / 1e6):
                await attempt.next_rest()
        if not attempt.open():
            await attempt.admit()
    finally:
        call.retrying = False


async def _invoke(attempt: Attempt, spec: StepSpec) -> Any:
    if spec.timeout is None:
        return await _call(attempt, spec)
    with anyio.move_on_after(spec.timeout) as scope:
        return await _call(attempt, spec)
    if not scope.cancelled_caught:
        raise RuntimeError("a step's timeout scope ended without a reason")
    raise StepTimedOut(f"step {spec.step_id!r} took longer than its timeout of {spec.timeout} s")


async def _call(attempt: Attempt, spec: StepSpec) -> Any:
    token = call_scope.set(InsideStep(attempt, spec.step_id))
    try:
        return await _called(attempt, spec)
    finally:
        # An abandoned body is collected in whatever context that happens in, and has nothing to put back.
        with contextlib.suppress(ValueError):
            call_scope.reset(token)


async def _called(attempt: Attempt, spec: StepSpec) -> Any:
    fn = spec.fn
    if spec.inline or _is_async(fn):
        value = fn(*spec.args, **spec.kwargs)
    else:
        lines_of(attempt)  # the thread may write output
        # In a tuple: what a thread returns may be awaitable, and trio would take that for a mistake.
        (value,) = await anyio.to_thread.run_sync(
            lambda: (fn(*spec.args, **spec.kwargs),),
            abandon_on_cancel=True,
            limiter=attempt.settings.threads,
        )
    return await value if inspect.isawaitable(value) else value


def _is_async(fn: Callable[..., Any]) -> bool:
    """True when calling it gives a coroutine; looks through partials, methods and callable objects."""
    code = getattr(fn, "__code__", None)
    if code is not None:
        return bool(code.co_flags & _COROUTINE)
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(vars(type(fn)).get("__call__"))


def _name(fn: Callable[..., Any]) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__
