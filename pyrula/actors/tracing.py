"""Spans, by opentelemetry-api alone: for what is submitted, sent and tried, and how a run carries its trace.

An input, a result, a payload or an error's message never goes into a span: errors are named by their
type and by pyrula's own codes. Without a tracer provider in the process nothing here does anything.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Token
from dataclasses import replace
from types import TracebackType
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.environment_variables import OTEL_PYTHON_TRACER_PROVIDER
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

from pyrula import __version__
from pyrula.actors.providers import Provided
from pyrula.contracts.errors import PyrulaError, StepFailed
from pyrula.contracts.events import parse
from pyrula.contracts.mail import MailKind
from pyrula.contracts.store import Claim, NewRun, Store, Submitted
from pyrula.contracts.values import decode, encode

__all__ = [
    "LONGEST_REST",
    "LONGEST_TRACE",
    "Live",
    "acting",
    "attempt_span",
    "error_type",
    "headers_of",
    "submitted",
    "tracer",
]

log = logging.getLogger("pyrula.tracing")
# A run that nobody worked on for this long (seconds) goes on in traces of its own, linked to the
# submitter's; so does one that was submitted longer ago than a trace should last.
LONGEST_REST: Final = 300.0
LONGEST_TRACE: Final = 3600.0
_NOTHING: Final = nullcontext()
_VERBS: Final = {MailKind.ANSWER: "resume"}  # where the client's word is not the message's


def _tracer_of(provider: Any) -> Tracer | None:
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    found: Tracer = provider.get_tracer("pyrula", __version__)
    return None if isinstance(found, trace.NoOpTracer) else found


_TRACER: Final = Provided(
    trace.get_tracer_provider, variable="_TRACER_PROVIDER", selector=OTEL_PYTHON_TRACER_PROVIDER, make=_tracer_of
)
tracer: Final = _TRACER.now


class Live(AbstractContextManager["Live"]):
    """A span, current while this is entered. What leaves it as an exception is noted, by type, as its error.

    A tracing set-up that raises (a sampler or span processor of the application's) costs the span, never
    the run: the first such error is logged.
    """

    __slots__ = ("_token", "context", "span")
    _complained = False

    def __init__(
        self,
        by: Tracer,
        name: str,
        *,
        kind: SpanKind,
        attributes: Mapping[str, AttributeValue],
        parent: Context | None = None,
        links: Sequence[Link] = (),
    ) -> None:
        self.span: Span = trace.INVALID_SPAN
        try:
            self.span = by.start_span(name, parent, kind, attributes, links)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on; it is logged
            self._complain(error)
        self.context = trace.set_span_in_context(self.span, parent)
        self._token: Token[Context] | None = None

    @staticmethod
    def _complain(error: Exception) -> None:
        if not Live._complained:
            Live._complained = True
            log.error("the application's tracing fails; spans are missing, runs are not affected", exc_info=error)

    def __enter__(self) -> Live:
        self._token = otel_context.attach(self.context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_: TracebackType | None
    ) -> None:
        if self._token is not None and kind is not GeneratorExit:
            # A coroutine that is thrown away ends in whatever context happens to be there.
            otel_context.detach(self._token)
        if error is not None and isinstance(error, Exception):
            self.blame(error)
        self.end()

    def end(self) -> None:
        """End the span, now rather than on leaving; a second time does nothing."""
        try:
            self.span.end()
        except Exception as error:  # noqa: BLE001 - as above
            self._complain(error)

    def blame(self, error: BaseException) -> None:
        """Name the error that the span ended with."""
        self.span.set_attribute("error.type", error_type(error))
        if isinstance(error, PyrulaError):
            self.span.set_attribute("pyrula.error_code", error.code)
        self.span.set_status(StatusCode.ERROR)


def error_type(error: BaseException) -> str:
    """The qualified name of an error's class; of a failed step, of the error that failed it."""
    if isinstance(error, StepFailed):
        return error.error_type
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# --- from outside a run -----------------------------------------------------------------


async def submitted(store: Store, runs: Sequence[NewRun]) -> list[Submitted]:
    """Submit runs under one span of the caller's trace, and have them carry it."""
    by = tracer()
    if by is None or not runs:
        return await store.submit(runs)
    with Live(by, _submission(runs), kind=SpanKind.PRODUCER, attributes=_submission_attributes(runs)) as live:
        carrier: dict[str, str] = {}
        propagate.inject(carrier, live.context)
        known: dict[bytes, bytes] = {}
        for headers in {run.headers for run in runs}:
            known[headers] = encode({**decode(headers), **carrier}, path="headers")
        answers = await store.submit([replace(run, headers=known[run.headers]) for run in runs])
        live.span.set_attribute("pyrula.created", sum(answer.created for answer in answers))
        return answers


def _submission(runs: Sequence[NewRun]) -> str:
    names = {run.workflow for run in runs}
    return f"submit {names.pop()}" if len(names) == 1 else "submit"


def _submission_attributes(runs: Sequence[NewRun]) -> dict[str, AttributeValue]:
    first = runs[0]
    attributes: dict[str, AttributeValue] = {"pyrula.runs": len(runs)}
    if all(run.workflow == first.workflow for run in runs):
        attributes["pyrula.workflow"] = first.workflow
    if len(runs) == 1:
        attributes["pyrula.run_id"] = first.run_id
        if first.owner:
            attributes["pyrula.owner"] = first.owner
    return attributes


def acting(verb: str, workflow: str, run_id: str, topic: str = "") -> AbstractContextManager[object]:
    """A span around what a client does to a run: `signal order`, `cancel order` ..."""
    by = tracer()
    if by is None:
        return _NOTHING
    attributes = {"pyrula.workflow": workflow, "pyrula.run_id": run_id}
    if topic:
        attributes["pyrula.topic"] = topic
    return Live(by, f"{_VERBS.get(verb, verb)} {workflow}", kind=SpanKind.CLIENT, attributes=attributes)


# --- a run's attempts -------------------------------------------------------------------


def attempt_span(by: Tracer, claim: Claim) -> Live:
    """The span of an attempt: in the submitter's trace, or in a linked one when the run has rested for long."""
    parent = _carried(claim)
    links: list[Link] = []
    origin = trace.get_current_span(parent).get_span_context()
    if origin.is_valid and _apart(claim):
        links = [Link(origin)]
        parent = trace.set_span_in_context(trace.INVALID_SPAN, parent)
    attributes: dict[str, AttributeValue] = {
        "pyrula.workflow": claim.workflow,
        "pyrula.run_id": claim.run_id,
        "pyrula.attempt": claim.attempt,
    }
    if claim.owner:
        attributes["pyrula.owner"] = claim.owner
    if worker := _worker(claim):
        attributes["pyrula.worker"] = worker
    return Live(by, f"run {claim.workflow}", kind=SpanKind.CONSUMER, attributes=attributes, parent=parent, links=links)


def _carried(claim: Claim) -> Context:
    """The submitter's context, and nothing of what happens to be current where the worker was started."""
    carrier = {name: value for name, value in headers_of(claim).items() if isinstance(value, str)}
    return propagate.extract(carrier, Context())


def headers_of(claim: Claim) -> dict[str, Any]:
    """What the submission carries beside its input; empty for what no client of pyrula's has written."""
    headers = decode(claim.headers)
    return headers if isinstance(headers, dict) else {}


def _apart(claim: Claim) -> bool:
    """True when the run rested too long, at any time, or its submission is too long ago.

    Once true, it is so for every later attempt: a trace that was left is not taken up again.
    """
    if claim.submitted_at and claim.now - claim.submitted_at > LONGEST_TRACE * 1e6:
        return True
    entries = claim.entries
    for index in range(1, len(entries)):
        seq, raw = entries[index]
        # The run's own events (claims, retries, requests) are what comes after a rest.
        if b'"run.' in raw[:10] and parse(seq, raw).at - parse(*entries[index - 1]).at > LONGEST_REST * 1e6:
            return True
    return False


def _worker(claim: Claim) -> str:
    """The worker, as the claim's own event names it."""
    if not claim.entries:
        return ""
    return str(parse(*claim.entries[-1]).data.get("worker", ""))
