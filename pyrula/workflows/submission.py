"""What callers ask for, checked and put into the store's terms: submissions, filters of listings, names of runs.

Nothing here talks to a store. What makes no sense is an `InvalidInput` that names the argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from pyrula.contracts.errors import InvalidInput, PyrulaError, RunNotFound
from pyrula.contracts.events import to_micros
from pyrula.contracts.ids import check_id, check_workflow_name, digest, new_id, run_id_for_key
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import NewRun
from pyrula.contracts.values import encode
from pyrula.workflows.registry import Workflow, registry

__all__ = ["checked_key", "filters", "found", "new_run"]

_LONGEST_DELAY: Final = 3e9  # seconds, about 95 years


def new_run(
    limit: int,
    workflow: str | Workflow,
    input: Mapping[str, Any] | None = None,
    *,
    owner: str | None = None,
    run_id: str | None = None,
    idempotency_key: str | None = None,
    delay: float | None = None,
    start_at: datetime | None = None,
    priority: int = 0,
    attributes: Mapping[str, Any] | None = None,
    headers: Mapping[str, Any] | None = None,
) -> NewRun:
    """One submission, as `WorkflowClient.submit` describes its arguments.

    limit: bytes of the encoded input. headers: what the engine notes of the run besides.
    """
    known = registry.get(workflow) if isinstance(workflow, str) else workflow
    if isinstance(known, Workflow):
        name = known.name
        raw = known.spec.check(input, limit=limit)
    else:
        name = check_workflow_name(workflow)  # type: ignore[arg-type]  # refuses what is no string
        raw = _encode_unknown(name, input, limit)
    if run_id is not None and idempotency_key is not None:
        raise InvalidInput("give a run_id or an idempotency_key, not both", "run_id")
    if delay is not None and start_at is not None:
        raise InvalidInput("give a delay or a start_at, not both", "delay")
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > 1_000_000:
        raise InvalidInput(f"priority={priority!r}: a whole number between -1000000 and 1000000", "priority")
    if idempotency_key is not None:
        run_id = run_id_for_key(name, checked_key(idempotency_key))
    delay_ms = None if delay is None else _milliseconds(delay)
    start = None if start_at is None else _micros(start_at, "start_at")
    about: dict[str, Any] = {"version": known.version} if known is not None and known.version is not None else {}
    about |= headers or {}
    about |= {"delay_ms": delay_ms} if delay_ms else {"start_at": start} if start else {}
    return NewRun(
        workflow=name,
        run_id=new_id() if run_id is None else check_id(run_id, "run_id"),
        input=raw,
        input_digest=digest(raw),
        owner="" if owner is None else check_id(owner, "owner"),
        priority=priority,
        delay_ms=delay_ms,
        start_at=start,
        attributes=encode(_mapping(attributes) or {}, path="attributes"),
        headers=orjson.dumps(about),
    )


def filters(
    status: str | RunStatus | None,
    owner: str | None,
    attributes: Mapping[str, Any] | None,
    after: datetime | None,
    before: datetime | None,
) -> dict[str, Any]:
    """The filters of a listing, as a store takes them."""
    try:
        wanted = None if status is None else RunStatus(status)
    except ValueError:
        raise InvalidInput(f"status {status!r} is none of {', '.join(RunStatus)}", "status") from None
    return {
        "status": wanted,
        "owner": owner,
        "attributes": _mapping(attributes),
        "submitted_after": None if after is None else _micros(after, "submitted_after"),
        "submitted_before": None if before is None else _micros(before, "submitted_before"),
    }


def found(name: str, run_id: str) -> tuple[str, str]:
    """The name and the id of a run that may be there; raises `RunNotFound` for what could never be one's."""
    try:
        return check_workflow_name(name), check_id(run_id, "run_id")
    except PyrulaError:
        raise RunNotFound(name, run_id) from None


def checked_key(key: str) -> str:
    """Refuse an idempotency key that is no text."""
    if not isinstance(key, str) or not key:
        raise InvalidInput(f"idempotency_key={key!r}: a non-empty string is needed", "idempotency_key")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise InvalidInput("idempotency_key holds a lone surrogate, which is not text", "idempotency_key") from None
    return key


def _milliseconds(delay: float) -> int:
    if isinstance(delay, bool) or not isinstance(delay, (int, float)) or not 0 <= delay <= _LONGEST_DELAY:
        raise InvalidInput(f"delay={delay!r}: a number of seconds, from 0 to {_LONGEST_DELAY:.0f}", "delay")
    return int(delay * 1000)


def _micros(when: datetime, what: str) -> int:
    if not isinstance(when, datetime) or when.tzinfo is None:
        raise InvalidInput(f"{what} needs an aware datetime, not {when!r}", what)
    return to_micros(when.astimezone(UTC))


def _mapping(attributes: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if attributes is not None and not isinstance(attributes, Mapping):
        raise InvalidInput(f"attributes: expected a dict, found {type(attributes).__name__}", "attributes")
    return dict(attributes) if attributes else None


def _encode_unknown(name: str, input: Mapping[str, Any] | None, limit: int) -> bytes:
    """The input of a workflow that this process does not know: encoded, not checked."""
    if input is not None and not isinstance(input, Mapping):
        raise InvalidInput(f"workflow {name!r}, input: expected a dict, found {type(input).__name__}")
    return encode(dict(input or {}), path="input", limit=limit, canonical=True)
