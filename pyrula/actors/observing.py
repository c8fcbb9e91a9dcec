"""What an attempt tells OpenTelemetry: one observer beside it, or none where nobody listens.

The engine's hooks are here. None of them decides anything, waits for anything or changes what is recorded.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final

import anyio
from opentelemetry.trace import SpanKind, Tracer

from pyrula.actors.metrics import Instruments, instruments
from pyrula.actors.supervision import OutageLog
from pyrula.actors.tracing import Live, attempt_span, error_type, headers_of, tracer
from pyrula.contracts.errors import AttemptEnded, StoreUnavailable
from pyrula.contracts.events import parse
from pyrula.contracts.store import Claim

__all__ = ["CountedOutages", "Observer", "StepTry", "observe"]

_ERRORS: Final = frozenset({"failed", "set aside", "retrying", "lost"})
_RUN_ENDS: Final = frozenset({"completed", "failed", "cancelled"})


def observe(claim: Claim) -> Observer | None:
    """An observer for an attempt; None when the process has neither a tracer nor a meter provider."""
    by, counted = tracer(), instruments()
    return None if by is None and counted is None else Observer(claim, by, counted)


class Observer(AbstractContextManager["Observer"]):
    """Around one attempt: its span, current inside, and its figures."""

    def __init__(self, claim: Claim, by: Tracer | None, counted: Instruments | None) -> None:
        self.claim = claim
        self.by = by
        self.counted = counted
        self._live = None if by is None else attempt_span(by, claim)
        self._since = time.monotonic()

    def __enter__(self) -> Observer:
        if self._live is not None:
            self._live.__enter__()
        if self.counted is not None and self.claim.attempt == 1:
            self.counted.claim_wait.record(_waited(self.claim), {"pyrula.workflow": self.claim.workflow})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace_)

    def ended(self, how: str, error: BaseException | None) -> None:
        """The attempt is over, in one of the ways that `Ended` names."""
        status = how.replace(" ", "_")
        at_fault = error if how in _ERRORS else None
        if self._live is not None:
            self._live.span.set_attribute("pyrula.status", status)
            if at_fault is not None:
                self._live.blame(at_fault)
        if self.counted is not None:
            self._count(self.counted, how, status, at_fault)

    def _count(self, counted: Instruments, how: str, status: str, error: BaseException | None) -> None:
        took = time.monotonic() - self._since
        workflow = {"pyrula.workflow": self.claim.workflow}
        ending = {**workflow, "pyrula.status": status}
        if error is not None:
            ending["error.type"] = error_type(error)
        counted.attempt_duration.record(took, ending)
        if how in _RUN_ENDS:
            counted.run_duration.record(_since_start(self.claim) + took, ending)
        elif how == "parked":
            counted.run_parks.add(1, workflow)
        elif how == "retrying":
            counted.run_parks.add(1, workflow)
            counted.run_retries.add(1, workflow)
        elif how == "lost":
            counted.claim_losses.add(1, workflow)

    def step(self, step_id: str, key: str, number: int, function: str) -> StepTry:
        """To be entered around try `number` of a step."""
        return StepTry(self, step_id, key, number, function)


class StepTry(AbstractContextManager["StepTry"]):
    """Around one try of a step: its span, current inside, also in the thread that runs it, and its figures."""

    __slots__ = ("_function", "_live", "_number", "_observer", "_since")

    def __init__(self, observer: Observer, step_id: str, key: str, number: int, function: str) -> None:
        self._observer = observer
        self._function = function
        self._number = number
        self._live: Live | None = None
        if observer.by is not None:
            claim = observer.claim
            self._live = Live(
                observer.by,
                f"step {step_id}",
                kind=SpanKind.INTERNAL,
                attributes={
                    "pyrula.workflow": claim.workflow,
                    "pyrula.run_id": claim.run_id,
                    "pyrula.attempt": claim.attempt,
                    "pyrula.step_id": step_id,
                    "pyrula.key": key,
                    "pyrula.try": number,
                    "pyrula.function": function,
                },
            )
        self._since = time.monotonic()

    def __enter__(self) -> StepTry:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_: TracebackType | None
    ) -> None:
        status = "completed" if error is None else "interrupted" if _interrupts(error) else "failed"
        if self._live is not None:
            self._live.span.set_attribute("pyrula.status", status)
            if status == "failed" and not isinstance(error, Exception) and error is not None:
                self._live.blame(error)
            self._live.__exit__(kind, error, trace_)
        counted = self._observer.counted
        if counted is None:
            return
        attributes: dict[str, Any] = {
            "pyrula.workflow": self._observer.claim.workflow,
            "pyrula.function": self._function,
        }
        if self._number > 1:
            counted.step_retries.add(1, attributes)
        if status == "failed" and error is not None:
            attributes["error.type"] = error_type(error)
        if status != "interrupted":
            counted.step_duration.record(time.monotonic() - self._since, attributes)


def _interrupts(error: BaseException) -> bool:
    """True for what ends a step from outside; a step's own SystemExit is its failure."""
    if isinstance(error, Exception):
        return False
    if isinstance(error, AttemptEnded | KeyboardInterrupt | GeneratorExit):
        return True
    return isinstance(error, anyio.get_cancelled_exc_class())


def _waited(claim: Claim) -> float:
    """Seconds from when the run could start to its claim. A delayed submission says in its headers when that was."""
    headers = headers_of(claim)
    delay, start = (value if isinstance(value, int) else 0 for value in map(headers.get, ("delay_ms", "start_at")))
    return max(0.0, (claim.now - max(claim.submitted_at + delay * 1000, start)) / 1e6)


def _since_start(claim: Claim) -> float:
    """Seconds from the run's first claim, which is its second event, to this one."""
    started = parse(*claim.entries[1]).at if len(claim.entries) > 1 else claim.now
    return max(0.0, (claim.now - started) / 1e6)


class CountedOutages(OutageLog):
    """Counts what the log says once for each outage."""

    def failed(self, error: StoreUnavailable, by: object = None) -> None:
        """A call to the store failed; `by` will try again."""
        first = self._since is None
        super().failed(error, by)
        counted = instruments() if first else None
        if counted is not None:
            counted.store_outages.add(1)
