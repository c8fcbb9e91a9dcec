"""Decoders for what holds no other values: scalars, enums, literals; never containers, never classes with fields."""

from __future__ import annotations

import enum
import typing
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

import orjson

from pyrula.contracts._codec import forms
from pyrula.contracts._codec.annotations import Unresolved, annotation_name
from pyrula.contracts._codec.paths import Misfit, Refusal, type_name
from pyrula.contracts._codec.writing import Writer, enum_texts

__all__ = ["LEAVES", "Decoder", "enum_decoder", "exact", "found", "literal_decoder", "unsupported"]

Decoder: TypeAlias = Callable[[Any], Any]

_LITERAL_CEILING = 2**20


def found(value: object) -> str:
    """What a message calls the type of `value`."""
    return type_name(type(value))


def unsupported(annotation: Any) -> Decoder:
    """The decoder of an annotation that no value can be decoded to: it misfits, and says so."""
    if isinstance(annotation, Unresolved | str | typing.ForwardRef):
        text = annotation.__forward_arg__ if isinstance(annotation, typing.ForwardRef) else annotation
        why = f"the annotation {annotation_name(text) if isinstance(text, Unresolved) else text!r} cannot be resolved"
    else:
        why = f"the annotation {annotation_name(annotation)} names no type that a value can be decoded to"

    def read(value: Any) -> Any:
        raise Misfit(f"{why}; found {found(value)}")

    return read


def exact(kind: type) -> Decoder:
    """Values whose type is `kind` and no other: a bool is no int."""
    name = type_name(kind)

    def read(value: Any) -> Any:
        if type(value) is kind:
            return value
        raise Misfit(f"expected {name}, found {found(value)}")

    return read


def _float(value: Any) -> float:
    kind = type(value)
    if kind is float:
        return value  # type: ignore[no-any-return]  # narrowed by the line above
    if kind is int:
        return float(value)
    raise Misfit(f"expected float, found {found(value)}")


def _decimal(value: Any) -> Decimal:
    if type(value) is int:
        return Decimal(value)
    if type(value) is float:
        raise Misfit("expected Decimal as a str, found float, which has lost digits already")
    return _DECIMAL_TEXT(value)  # type: ignore[no-any-return]  # decoders are typed loosely


def _from_text(name: str, parse: Callable[[str], Any], example: str) -> Decoder:
    def read(value: Any) -> Any:
        if type(value) is not str:
            raise Misfit(f"expected {name} as a str such as {example}, found {found(value)}")
        try:
            return parse(value)
        except ValueError:
            raise Misfit(f"expected {name} as a str such as {example}, found a str that is none") from None

    return read


_DECIMAL_TEXT = _from_text("Decimal", forms.parse_decimal, "'12.50'")
LEAVES: dict[type, Decoder] = {
    type(None): exact(type(None)),
    bool: exact(bool),
    int: exact(int),
    float: _float,
    str: exact(str),
    datetime: _from_text("datetime with an offset", forms.parse_datetime, "'2024-05-01T12:00:00Z'"),
    date: _from_text("date", forms.parse_date, "'2024-05-01'"),
    time: _from_text("time", forms.parse_time, "'12:30:00'"),
    timedelta: _from_text("timedelta", forms.parse_duration, "'PT90S'"),
    UUID: _from_text("UUID", forms.parse_uuid, "'12345678-1234-5678-1234-567812345678'"),
    Decimal: _decimal,
    bytes: _from_text("bytes", forms.parse_bytes, "'aGVsbG8='"),
}


def enum_decoder(kind: type[enum.Enum]) -> Decoder:
    """Members by their encoded value, so that `1`, `1.0` and `true` stay apart; then by the class's own `_missing_`."""
    members = enum_texts(kind)
    own, inherited = kind._missing_, enum.Enum._missing_
    tolerant = getattr(own, "__func__", own) is not getattr(inherited, "__func__", inherited)
    name = type_name(kind)

    def read(value: Any) -> Any:
        member = members.get(orjson.dumps(value))
        if member is None and tolerant and type(value) is not bool:
            try:
                member = kind._missing_(value)
            except Exception:  # noqa: BLE001 - the author's own; a Flag's own refuses unknown bits and types so
                member = None
        if not isinstance(member, kind):
            raise Misfit(f"expected a value of {name}, found {found(value)} that is none")
        return member

    return read


def literal_decoder(annotation: Any, arguments: tuple[Any, ...]) -> Decoder:
    """One of the values of a `Literal`, by their encoded form."""
    choices: dict[bytes, Any] = {}
    for choice in arguments:
        try:
            choices[orjson.dumps(Writer(_LITERAL_CEILING).plain(choice))] = choice
        except (Refusal, TypeError):
            return unsupported(annotation)
    shown = ", ".join(map(repr, arguments))

    def read(value: Any) -> Any:
        try:
            return choices[orjson.dumps(value)]
        except KeyError:
            raise Misfit(f"expected one of {shown}, found {found(value)} that is none") from None

    return read
