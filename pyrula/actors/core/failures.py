"""How an error becomes a record, and a record an error again. Pure; nothing is imported from a journal."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any, Final

from pyrula.contracts.errors import ChildWorkflowError, PyrulaError, ReplayRefused, StepFailed

__all__ = ["describe", "message_of", "step_failed"]

_MESSAGE_LIMIT: Final = 2000
_TRACE_LIMIT: Final = 4000


def _type_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def message_of(error: BaseException) -> str:
    """An error's text, bounded and always text, whatever the error itself does."""
    try:
        text = str(error)
    except Exception as broken:  # noqa: BLE001 - an error whose own text cannot be made is still recorded
        text = f"<no text: {type(broken).__name__}>"
    return text.encode("utf-8", "replace").decode()[:_MESSAGE_LIMIT]


def describe(error: BaseException, *, key: str | None = None) -> dict[str, Any]:
    """An error as JSON: `code`, `type`, `message`, `bases`, `detail`, `traceback`, and the failed call's `key`."""
    detail: dict[str, Any] = {}
    if isinstance(error, StepFailed):
        detail = {
            "step_id": error.step_id,
            "error_type": error.error_type,
            "message": error.message,
            "attempts": error.attempts,
        }
    elif isinstance(error, ChildWorkflowError):
        detail = {"workflow": error.workflow, "run_id": error.run_id, "status": error.status, "error": error.error}
    elif isinstance(error, ReplayRefused):
        detail = {"recorded": error.recorded, "asked": error.asked}
    described: dict[str, Any] = {
        "code": error.code if isinstance(error, PyrulaError) else "error",
        "type": _type_name(type(error)),
        "message": message_of(error),
        "bases": [f"{k.__module__}.{k.__qualname__}" for k in type(error).__mro__ if k is not object],
        "traceback": _trace(error),
    }
    if detail:
        described["detail"] = detail
    if key:
        described["key"] = key
    return described


def _trace(error: BaseException) -> str:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-12))
    return text.encode("utf-8", "replace").decode()[-_TRACE_LIMIT:]


def step_failed(step_id: str, key: str, data: Mapping[str, Any]) -> StepFailed:
    """The error that a recorded `step.failed` raises in the body, live and on replay alike."""
    error = data["error"]
    failure = StepFailed(
        step_id,
        error["type"],
        error["message"],
        data["attempts"],
        error.get("detail"),
        tuple(error.get("bases", ())),
    )
    failure.key = key
    return failure
