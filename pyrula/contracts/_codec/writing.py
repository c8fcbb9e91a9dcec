"""A Python value as plain JSON data: what orjson writes without a question and without a loss; never annotations.

`Writer` converts whatever has a JSON form and says, by a `Refusal`, where in a value something
cannot be written and why. It bounds the depth, and it bounds the size before anything is
written: a value whose parts are shared can be small in memory and without end on paper.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from operator import attrgetter
from typing import Any, TypeAlias
from uuid import UUID

import orjson

from pyrula.contracts._codec import forms
from pyrula.contracts._codec.models import base_model, dump_model
from pyrula.contracts._codec.paths import Refusal
from pyrula.contracts._codec.screen import unwritable

__all__ = ["MAX_DEPTH", "Oversize", "Writer", "enum_texts"]

# Levels of containers in one value. Below orjson's own bound (254), and low enough that
# reading back through annotations stays far from the interpreter's recursion limit.
MAX_DEPTH = 200

_FIXED = frozenset({int, bool, type(None)})
_UUID_SIZE = 38
_HANDLERS_KEPT = 4096
_ENUM_CEILING = 2**20

_NOT_FINITE = "NaN and infinities are no JSON numbers; use None"
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels; flatten it"
_BAD_KEY = "a dict key must be a str, as in JSON; convert the keys, or use a list of pairs"

Handler: TypeAlias = "Callable[[Writer, Any, int], object]"


class Oversize(Exception):
    """The counted size passed the ceiling; `counted` is the least number of bytes that it would take."""

    def __init__(self, counted: int) -> None:
        super().__init__()
        self.counted = counted


class Writer:
    """Converts one value; `left` is what remains of the size it may count up to."""

    __slots__ = ("ceiling", "left")

    def __init__(self, ceiling: int) -> None:
        self.ceiling = ceiling
        self.left = ceiling

    def spend(self, size: int) -> None:
        """Count `size` bytes; `Oversize` once they pass the ceiling."""
        self.left -= size
        if self.left < 0:
            raise Oversize(self.ceiling - self.left)

    def plain(self, value: Any, room: int = MAX_DEPTH) -> object:
        """`value` as plain data. `room` is the number of container levels still allowed."""
        handler = _HANDLERS.get(type(value))
        if handler is None:
            handler = _remember(type(value))
        try:
            return handler(self, value, room)
        except (Refusal, Oversize):
            raise
        except RecursionError:
            raise Refusal(type(value), "nested too deep for what is left of the interpreter's stack") from None
        except Exception as error:  # from the value's own class: a property, a dump, an iterator
            raise Refusal(type(value), f"{type(error).__name__} was raised while it was read") from error

    def table(self, entries: Iterable[tuple[Any, Any]], owner: object, room: int) -> dict[str, object]:
        """A JSON object from key and value pairs of `owner`."""
        if not room:
            raise Refusal(type(owner), _TOO_DEEP, deep=True)
        written: dict[str, object] = {}
        count = 0
        for key, item in entries:
            if type(key) is not str:
                key = _key_text(key)  # noqa: PLW2901 - the same key, as it is written
            self.spend(len(key) + 4)
            count += 1
            if type(item) in _FIXED:
                written[key] = item
                continue
            try:
                written[key] = self.plain(item, room - 1)
            except Refusal as refusal:
                raise refusal.within(key, owner)  # noqa: B904 - the same error, on its way out
        if len(written) != count:
            raise Refusal(type(owner), "two of its keys are written alike")
        return written

    def row(self, items: Iterable[Any], owner: object, room: int) -> list[object]:
        """A JSON array from the items of `owner`."""
        if not room:
            raise Refusal(type(owner), _TOO_DEEP, deep=True)
        written: list[object] = []
        for place, item in enumerate(items):
            self.spend(2)
            if type(item) in _FIXED:
                written.append(item)
                continue
            try:
                written.append(self.plain(item, room - 1))
            except Refusal as refusal:
                raise refusal.within(place, owner)  # noqa: B904 - the same error, on its way out
        return written


def _key_text(key: object) -> str:
    if isinstance(key, enum.Enum):
        key = key._value_
    if isinstance(key, str):
        return str.__str__(key)
    raise Refusal(type(key), _BAD_KEY)


# --- one handler for each kind of value ------------------------------------------------------


def _as_it_is(_writer: Writer, value: object, _room: int) -> object:
    return value


def _float(_writer: Writer, value: float, _room: int) -> float:
    if not isfinite(value):
        raise Refusal(type(value), _NOT_FINITE)
    return float.__float__(value)


def _str(writer: Writer, value: str, _room: int) -> str:
    writer.spend(len(value))
    return str.__str__(value)


def _bytes(writer: Writer, value: bytes, _room: int) -> str:
    writer.spend(len(value) * 4 // 3)
    return forms.bytes_text(value)


def _uuid(writer: Writer, value: UUID, _room: int) -> UUID:
    writer.spend(_UUID_SIZE)
    return value  # orjson writes it by itself, in the usual form


def _dict(writer: Writer, value: Mapping[Any, Any], room: int) -> object:
    return writer.table(value.items(), value, room)


def _row(writer: Writer, value: Iterable[Any], room: int) -> object:
    return writer.row(value, value, room)


def _namedtuple(writer: Writer, value: tuple[Any, ...], room: int) -> object:
    return writer.row(tuple.__iter__(value), value, room)


def _set(writer: Writer, value: set[Any] | frozenset[Any], room: int) -> object:
    """A set as an array in an order that depends on nothing but its items."""
    written = writer.row(value, value, room)
    kinds = set(map(type, written))
    if kinds == {str} or kinds == {int}:
        return sorted(written)  # type: ignore[type-var]  # all of one ordered kind
    try:
        return sorted(written, key=orjson.dumps)
    except TypeError:
        raise unwritable(written) or Refusal(type(value), "its items have no order") from None


def _enum(writer: Writer, value: enum.Enum, room: int) -> object:
    return writer.plain(value._value_, room)


def _model(writer: Writer, value: Any, room: int) -> object:
    return writer.plain(dump_model(value), room)


def _text(form: Callable[[Any], str]) -> Handler:
    def handler(writer: Writer, value: object, _room: int) -> str:
        text = form(value)
        writer.spend(len(text))
        return text

    return handler


def _dataclass(kind: type) -> Handler:
    names = tuple(field.name for field in dataclasses.fields(kind))
    if len(names) > 1:
        get = attrgetter(*names)

        def handler(writer: Writer, value: Any, room: int) -> object:
            return writer.table(zip(names, get(value), strict=True), value, room)
    else:

        def handler(writer: Writer, value: Any, room: int) -> object:
            return writer.table([(name, getattr(value, name)) for name in names], value, room)

    return handler


def _refusing(reason: str) -> Handler:
    def handler(_writer: Writer, value: object, _room: int) -> object:
        raise Refusal(type(value), reason)

    return handler


def _bare(kind: type, base: type, convert: Handler) -> Handler:
    """A subclass is written as its base, unless its instance carries something that would be lost."""
    reason = (
        f"a {base.__name__} subclass with attributes of its own, which would be lost; "
        f"pass {base.__name__}(value), or use a dataclass"
    )
    if any(vars(parent).get("__slots__") for parent in kind.__mro__ if parent not in base.__mro__):
        return _refusing(reason)

    def handler(writer: Writer, value: object, room: int) -> object:
        if getattr(value, "__dict__", None):
            raise Refusal(type(value), reason)
        return convert(writer, value, room)

    return handler


_HANDLERS: dict[type, Handler] = {
    type(None): _as_it_is,
    bool: _as_it_is,
    int: _as_it_is,
    float: _float,
    str: _str,
    dict: _dict,
    list: _row,
    tuple: _row,
    set: _set,
    frozenset: _set,
    bytes: _bytes,
    UUID: _uuid,
    Decimal: _text(forms.decimal_text),
    datetime: _text(forms.datetime_text),
    date: _text(forms.date_text),
    time: _text(forms.time_text),
    timedelta: _text(forms.timedelta_text),
}
_BUILT_IN = dict(_HANDLERS)

_WAYS_OUT: tuple[tuple[Any, str], ...] = (
    (type, "a class has no JSON form; pass its name"),
    (bytearray | memoryview, "it has no JSON form; pass bytes(value)"),
    (BaseException, "an error has no JSON form; raise it, or pass str(error)"),
    (Awaitable, "it was not awaited"),
    (Iterator | AsyncIterator, "an iterator can be read only once; pass list(value)"),
    (Mapping, "it has no JSON form; pass dict(value)"),
    (Iterable, "it has no JSON form; pass list(value)"),
    (Callable, "code has no JSON form; pass data"),
)

# The first base that fits decides; a datetime is also a date.
_BASES: tuple[tuple[type, Handler], ...] = (
    (str, _str),
    (int, lambda _writer, value, _room: int.__int__(value)),
    (float, _float),
    (dict, _dict),
    (list, _row),
    (set, _set),
    (frozenset, _set),
    (bytes, _bytes),
    (UUID, _text(forms.uuid_text)),
    (Decimal, _HANDLERS[Decimal]),
    (datetime, _HANDLERS[datetime]),
    (date, _HANDLERS[date]),
    (time, _HANDLERS[time]),
    (timedelta, _HANDLERS[timedelta]),
)


def _remember(kind: type) -> Handler:
    if len(_HANDLERS) >= _HANDLERS_KEPT:  # classes made on the fly must not pile up here
        _HANDLERS.clear()
        _HANDLERS.update(_BUILT_IN)
    handler = _HANDLERS[kind] = _handler(kind)
    return handler


def _handler(kind: type) -> Handler:
    if issubclass(kind, enum.Enum):
        return _enum_handler(kind)
    model = base_model()
    if model is not None and issubclass(kind, model):
        return _model
    base = next((pair for pair in _BASES if issubclass(kind, pair[0])), None)
    if dataclasses.is_dataclass(kind):
        if base is not None or issubclass(kind, tuple):
            return _refusing("a dataclass that is also a built-in value; half of it would be lost")
        return _dataclass(kind)
    if base is not None:
        return _bare(kind, *base)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _bare(kind, tuple, _namedtuple)
    return _refusing(_way_out(kind))


def enum_texts(kind: type[enum.Enum]) -> dict[bytes, enum.Enum | None]:
    """Each member by its encoded value; None where two members are written alike and could not come back."""
    texts: dict[bytes, enum.Enum | None] = {}
    for member in kind.__members__.values():
        try:
            text = orjson.dumps(Writer(_ENUM_CEILING).plain(member._value_))
        except (Refusal, Oversize, TypeError):
            continue  # cannot be written; said where such a member comes up in a value
        texts[text] = None if texts.get(text, member) is not member else member
    return texts


def _enum_handler(kind: type[enum.Enum]) -> Handler:
    if None in enum_texts(kind).values():
        return _refusing("two members of this Enum have values that are written alike; it could not come back")
    return _enum


def _way_out(kind: type) -> str:
    """Why a value of this class is refused, and what to do instead."""
    if hasattr(kind, "tolist") and not issubclass(kind, memoryview):
        return "it has no JSON form; pass value.tolist() or value.item()"
    for base, reason in _WAYS_OUT:
        if issubclass(kind, base):
            return reason
    return "it has no JSON form; use a dataclass, a dict or another type that has one"
