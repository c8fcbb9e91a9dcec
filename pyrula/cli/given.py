"""What is typed on a command line, turned into values: JSON, attributes, times. A mistake is a usage error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import typer

from pyrula.cli.wording import moment
from pyrula.contracts.errors import InvalidInput

__all__ = ["attributes_given", "json_given", "moment_given", "object_given"]


def json_given(text: str, what: str) -> Any:
    """The value of a JSON argument; `-` reads stdin, `@FILE` a file."""
    try:
        if text == "-":
            source, raw = "stdin", sys.stdin.buffer.read()
        elif text.startswith("@"):
            source, raw = text[1:], Path(text[1:]).read_bytes()
        else:
            source, raw = repr(text), text.encode("utf-8", "surrogateescape")
    except OSError as error:
        raise typer.BadParameter(f"{what}: cannot read {text[1:]}: {error.strerror}") from None
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        hint = f"; a text needs its own quotes: '\"{text}\"'" if text.isalnum() else ""
        raise typer.BadParameter(f"{what}: {source} is not JSON: {error}{hint}") from None


def object_given(text: str | None, what: str) -> dict[str, Any]:
    """The value of a JSON argument that must be an object; nothing given is an empty one."""
    value = {} if text is None else json_given(text, what)
    if not isinstance(value, dict):
        raise typer.BadParameter(f'{what} must be a JSON object, such as \'{{"name": "value"}}\'')
    return value


def attributes_given(pairs: Sequence[str]) -> dict[str, Any]:
    """Attributes from `KEY=VALUE`; a value that is JSON counts as that, any other as text."""
    attributes: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint="--attribute")
        try:
            attributes[key] = orjson.loads(text)
        except orjson.JSONDecodeError:
            attributes[key] = text
    return attributes


def moment_given(text: str | None, option: str) -> datetime | None:
    """The time that an option names."""
    if text is None:
        return None
    try:
        return moment(text, datetime.now(UTC))
    except InvalidInput as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
