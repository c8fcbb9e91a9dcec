"""Every error that pyrula raises, and what ends an attempt without being an error.

One root, `PyrulaError`; the families below it say whose turn it is: the author's
(`AuthorError`), the caller's (`CallerError`), the store's (`StoreError`), the
engine's (`EngineError`). A stable `code` is there where outside code must tell
errors apart. Nothing here may hold a password, a payload or a live object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

__all__ = [
    "AtMostOnceUnknown",
    "AttemptEnded",
    "AttemptTimedOut",
    "AuthorError",
    "CallInsideStep",
    "CallerError",
    "ChildTimedOut",
    "ChildWorkflowError",
    "ClaimLost",
    "ConcurrentCallIdError",
    "ConcurrentStepIdError",
    "ConfigurationError",
    "Continued",
    "EngineError",
    "EventOutOfOrder",
    "ForeignContext",
    "HistoryTooLong",
    "IdempotencyConflict",
    "InvalidInput",
    "LoopUnresponsive",
    "NonRetryable",
    "NotEncodable",
    "OutOfMemory",
    "Park",
    "PayloadTooLarge",
    "PyrulaError",
    "ReplayInputChanged",
    "ReplayRefused",
    "RunAttemptEnded",
    "RunCancelled",
    "RunEnded",
    "RunFailed",
    "RunNotFound",
    "RunTerminated",
    "RunTimedOut",
    "ScheduleNotFound",
    "Shutdown",
    "SignalTimeout",
    "StepFailed",
    "StepTimedOut",
    "StoreError",
    "StoreUnavailable",
    "SuspendInGatherLeg",
    "TriggerNotFound",
    "UpdateFailed",
    "UpdateTimedOut",
    "VersionSkew",
    "WorkerProcessDied",
    "WrongRunState",
]


class PyrulaError(Exception):
    """The root of everything that pyrula raises as an error.

    `code` is stable and machine-readable; the message is for people.
    """

    code: ClassVar[str] = "error"


# --- the author's -----------------------------------------------------------------------


class AuthorError(PyrulaError):
    """The workflow's own code or values are at fault."""

    code = "author_error"


class ConfigurationError(AuthorError):
    """A name, option or setting contradicts another; the message names both and the way out."""

    code = "configuration_error"


class NotEncodable(AuthorError):
    """A value cannot be written to the journal.

    Raised at the call that would write it, before anything is written. `path` is the
    place inside the value (`result.items[3].price`), `type_name` what was found there.
    """

    code = "not_encodable"

    def __init__(self, path: str, type_name: str, reason: str) -> None:
        super().__init__(f"{path}: {reason} ({type_name})")
        self.path = path
        self.type_name = type_name
        self.reason = reason


class PayloadTooLarge(AuthorError):
    """An encoded value is larger than the limit. Keep the data elsewhere and pass its address.

    `size` and `limit` are in bytes.
    """

    code = "payload_too_large"

    def __init__(self, path: str, size: int, limit: int) -> None:
        super().__init__(
            f"{path}: {size} bytes encoded, the limit is {limit}; store the data elsewhere and pass a reference"
        )
        self.path = path
        self.size = size
        self.limit = limit


class NonRetryable(AuthorError):
    """Raise this (or a subclass) in a step to fail it at once, without another try."""

    code = "non_retryable"


class StepFailed(AuthorError):
    """A step failed for good: its tries are used up, or its error is never retried.

    The same class, with the same attributes, live and on replay. `key` is the call's place
    in the journal.
    """

    code = "step_failed"

    def __init__(
        self,
        step_id: str,
        error_type: str,
        message: str,
        attempts: int,
        detail: Mapping[str, Any] | None = None,
        bases: tuple[str, ...] = (),
    ) -> None:
        tries = "1 try" if attempts == 1 else f"{attempts} tries"
        super().__init__(f"step {step_id!r} failed after {tries}: {error_type}: {message}")
        self.step_id = step_id
        self.error_type = error_type
        self.message = message
        self.attempts = attempts
        self.detail = dict(detail) if detail else {}
        self.bases = bases
        self.key = ""

    def matches(self, kind: type[BaseException]) -> bool:
        """True when the step's own error was an instance of `kind`, by the class's recorded name; imports nothing."""
        return f"{kind.__module__}.{kind.__qualname__}" in self.bases


class ChildWorkflowError(AuthorError):
    """A child run did not complete. The same class, with the same attributes, live and on replay.

    `workflow`, `run_id`: the child; `status`: how it ended. `error`: its own error as recorded (`code`, `type`,
    `message`, `bases`, `detail`), or for a run that was cancelled or terminated its reason.
    """

    code = "child_failed"

    def __init__(self, workflow: str, run_id: str, status: str, error: Mapping[str, Any] | None = None) -> None:
        self.error = dict(error) if error else {}
        why = self.error.get("message") or self.error.get("reason")
        super().__init__(f"child run {run_id!r} of workflow {workflow!r} {status}" + (f": {why}" if why else ""))
        self.workflow = workflow
        self.run_id = run_id
        self.status = status

    def matches(self, kind: type[BaseException]) -> bool:
        """True when the child's own error was an instance of `kind`."""
        return f"{kind.__module__}.{kind.__qualname__}" in self.error.get("bases", ())


class ChildTimedOut(ChildWorkflowError, TimeoutError):
    """A child run has not ended within the `timeout` that its parent gave it. It stays open."""

    code = "child_timed_out"


class HistoryTooLong(AuthorError):
    """The run has recorded as many events as one journal may hold; go on with `ctx.continue_as_new`."""

    code = "history_too_long"


class StepTimedOut(AuthorError, TimeoutError):
    """A step's try took longer than its `timeout`. Retried like any other step error."""

    code = "step_timed_out"


class CallInsideStep(NonRetryable):
    """A call on `ctx` that is recorded was made inside a step's function.

    A replayed step does not run its function, so nobody would ask for that record. Make the
    call in the body and pass its outcome to the step. `ctx.stream` and `ctx.commit` are fine.
    """

    code = "call_inside_step"


class ForeignContext(AuthorError):
    """`ctx` was used outside of its run: by another run, a thread of one's own, or a task started elsewhere."""

    code = "foreign_context"


class AtMostOnceUnknown(AuthorError):
    """An at-most-once step had been started, and its outcome is not known.

    The worker died between the recorded intent and the outcome. The step is not run
    again; look outside whether it took effect.
    """

    code = "at_most_once_unknown"


class SignalTimeout(AuthorError, TimeoutError):
    """`wait_for_signal` or `interrupt` waited for its `timeout` and nothing came."""

    code = "signal_timeout"


class SuspendInGatherLeg(AuthorError):
    """A sleep, signal wait or interrupt inside a leg of `ctx.gather`, or from a thread.

    A run has one suspension slot; wait before or after the gather or the thread.
    """

    code = "suspend_in_gather_leg"


class ConcurrentStepIdError(AuthorError):
    """Two calls of one step id ran at the same time in one scope; they would share a journal key.

    The run fails with it even when the body catches it. Give each call an id of its own,
    or put the calls into `ctx.gather`, where each leg has a scope of its own.
    """

    code = "concurrent_step_id"


class ConcurrentCallIdError(ConcurrentStepIdError):
    """Two direct calls of one name carried one `id=` at the same time."""

    code = "concurrent_call_id"


class WorkerProcessDied(AuthorError):
    """A process of `ctx.par_map` ended before it gave a result: it crashed, was killed, or had no memory left.

    The run fails with it unless the body catches it; a step around the map would try it again.
    """

    code = "worker_process_died"


class AttemptTimedOut(AuthorError, TimeoutError):
    """The body ran longer in one attempt than the workflow's `timeout`."""

    code = "attempt_timed_out"


# --- the caller's -----------------------------------------------------------------------


class CallerError(PyrulaError):
    """What the caller asked for cannot be done as asked."""

    code = "caller_error"


class InvalidInput(CallerError):
    """The input does not fit the workflow's parameters; `field` names the one at fault."""

    code = "invalid_input"

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class IdempotencyConflict(CallerError):
    """A run exists under this run id or idempotency key, and its input differs."""

    code = "idempotency_conflict"


class RunNotFound(CallerError):
    """There is no such run: never submitted, or deleted after its retention time."""

    code = "run_not_found"

    def __init__(self, name: str, run_id: str) -> None:
        super().__init__(f"no run {run_id!r} of workflow {name!r}; it was never submitted, or its retention is over")
        self.name = name
        self.run_id = run_id


class ScheduleNotFound(CallerError):
    """There is no schedule of this id."""

    code = "schedule_not_found"

    def __init__(self, schedule_id: str) -> None:
        super().__init__(f"no schedule {schedule_id!r}; `pyrula schedules list` shows those there are")
        self.schedule_id = schedule_id


class TriggerNotFound(CallerError):
    """No worker has ever served a trigger of this name."""

    code = "trigger_not_found"

    def __init__(self, trigger: str) -> None:
        super().__init__(f"no trigger {trigger!r}; `pyrula triggers list` shows those there are")
        self.trigger = trigger


class UpdateFailed(CallerError):
    """A run did not apply an update: its validator (`rejected`) or its handler raised. `detail`: that error."""

    code = "update_failed"

    def __init__(self, update: str, *, rejected: bool, detail: Mapping[str, Any]) -> None:
        super().__init__(f"update {update!r} {'was rejected' if rejected else 'failed'}: {detail.get('message', '')}")
        self.rejected = rejected
        self.detail = dict(detail)


class UpdateTimedOut(CallerError, TimeoutError):
    """A run has not answered an update in time; it may still apply it."""

    code = "update_timed_out"


class WrongRunState(CallerError):
    """The run is in a status that does not allow this; `status` says which."""

    code = "wrong_run_state"

    def __init__(self, name: str, run_id: str, status: str, wanted: str) -> None:
        super().__init__(f"run {run_id!r} of workflow {name!r} is {status}; {wanted}")
        self.name = name
        self.run_id = run_id
        self.status = status


class RunEnded(CallerError):
    """The run ended in another way than by completing. Raised by `client.result`.

    `code` is the run's own error code, `detail` the structured detail of its terminal event.
    """

    code = "run_ended"

    def __init__(
        self, name: str, run_id: str, message: str, code: str | None = None, detail: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(f"run {run_id!r} of workflow {name!r} {message}")
        self.name = name
        self.run_id = run_id
        self.detail = dict(detail) if detail else {}
        if code is not None:
            self.code = code  # type: ignore[misc]  # the run's code, on the instance


class RunFailed(RunEnded):
    """The run failed, or was set aside for a retry after a fix of its code."""

    code = "run_failed"


class RunCancelled(RunEnded):
    """The run was cancelled."""

    code = "run_cancelled"


class RunTerminated(RunEnded):
    """The run was ended from outside, without clean-up."""

    code = "run_terminated"


class RunTimedOut(RunEnded, TimeoutError):
    """The run used up its time, or `client.result(timeout=...)` did."""

    code = "run_timed_out"


# --- the store's ------------------------------------------------------------------------


class StoreError(PyrulaError):
    """The store could not do what was asked."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The server cannot be reached, or cannot serve now. Names host and port, never a password."""

    code = "store_unavailable"


class OutOfMemory(StoreUnavailable):
    """The server is full and refuses writes; nothing was written. Wait, or give it memory."""

    code = "store_out_of_memory"


class EventOutOfOrder(StoreError):
    """An append did not follow the journal's last event: the server lost acknowledged writes."""

    code = "event_out_of_order"


# --- the engine's -----------------------------------------------------------------------


class EngineError(PyrulaError):
    """The engine refuses to go on with a run as things are."""

    code = "engine_error"


class ReplayRefused(EngineError):
    """The code asks for something else than the journal holds; nothing ran and nothing was written.

    The run is set aside with its journal untouched; after a fix of the code `retry` goes on.
    """

    code = "replay_refused"

    def __init__(self, message: str, *, recorded: str, asked: str) -> None:
        super().__init__(message)
        self.recorded = recorded
        self.asked = asked


class ReplayInputChanged(ReplayRefused):
    """A replayed call, or the workflow itself, is asked for with other inputs than were recorded."""

    code = "replay_input_changed"


class VersionSkew(ReplayRefused):
    """Another kind of call stands at this key, or the code no longer asks for a recorded one."""

    code = "version_skew"


class LoopUnresponsive(EngineError):
    """A thread waited on its run's event loop past the worker's `loop_stall_limit`: something blocks the loop."""

    code = "loop_unresponsive"


# --- what ends an attempt without being an error ------------------------------------------


class AttemptEnded(BaseException):
    """The attempt is over, the run is not. Not an `Exception`, so that no body keeps it by accident."""


class Park(AttemptEnded):
    """The run waits for a time, a signal or an answer, and holds no worker meanwhile."""


class Continued(AttemptEnded):
    """The run goes on in a new journal, with another input. `input` is that as JSON."""

    def __init__(self, input: bytes) -> None:
        super().__init__("the run goes on in a new journal")
        self.input = input


class ClaimLost(AttemptEnded):
    """Another worker holds the run now, or it was ended from outside; this attempt's appends are refused."""


class Shutdown(AttemptEnded):
    """The worker stops; the run goes back to its queue."""


class RunAttemptEnded(AttemptEnded):
    """A call on `ctx` came after its attempt had ended (a leaked task, a thread); let it propagate."""
