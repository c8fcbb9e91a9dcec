"""Pydantic models, in pydantic's own JSON form, for users who have pydantic: it is never imported from here.

What a model's fields become and how they are read is the model's business. Added to it:
sets are put in order, so that equal models are written alike, and a naive datetime is refused
here as everywhere.
"""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

import orjson

from pyrula.contracts._codec.paths import Misfit, Refusal

__all__ = ["base_model", "dump_model", "load_model"]


def base_model() -> type[Any] | None:
    """`pydantic.BaseModel` (version 2) when something in this process has imported pydantic, else None."""
    model = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    return model if hasattr(model, "model_dump") else None


def dump_model(value: Any) -> object:
    """The model as JSON data that its class reads back equal."""
    written = value.model_dump(mode="json", round_trip=True, by_alias=True)
    return _checked(value.model_dump(mode="python", round_trip=True, by_alias=True), written)


def load_model(kind: type[Any], value: object) -> object:
    """A model from JSON data; `Misfit` with the place of the first thing that does not fit."""
    try:
        return kind.model_validate_json(orjson.dumps(value))
    except ValueError as error:  # pydantic's ValidationError is one
        problems = error.errors(include_url=False, include_input=False) if hasattr(error, "errors") else []
        if not problems:
            raise Misfit(f"does not fit {kind.__qualname__}: {error}") from error
        misfit = Misfit(f"does not fit {kind.__qualname__}: {problems[0]['msg']}")
        for step in reversed(problems[0]["loc"]):
            misfit.inside(step)
        raise misfit from error


def _checked(value: Any, written: Any) -> Any:
    """`written` with its sets in order; `value` is the same data as Python objects, walked side by side."""
    if isinstance(value, set | frozenset):
        return sorted(written, key=orjson.dumps) if isinstance(written, list) else written
    if isinstance(value, datetime) and value.utcoffset() is None:
        raise Refusal(type(value), "a naive datetime names no moment; give it a time zone, such as datetime.UTC")
    pairs: Any
    if isinstance(value, dict) and isinstance(written, dict) and len(value) == len(written):
        pairs = zip(written, value.values(), written.values(), strict=True)
    elif isinstance(value, list | tuple) and isinstance(written, list) and len(value) == len(written):
        pairs = zip(range(len(written)), value, written, strict=True)
    else:
        return written
    for step, inner, text in pairs:
        try:
            written[step] = _checked(inner, text)
        except Refusal as refusal:
            raise refusal.within(step, value)  # noqa: B904 - the same error, on its way out
    return written
