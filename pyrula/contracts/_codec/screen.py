"""What is plain already, and what orjson would refuse of it: a look at values without converting them.

`plain_size` is the fast way past `Writer`: one pass over a value that needs no conversion,
with the bounds on depth and size that orjson does not keep by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

from pyrula.contracts._codec.paths import Refusal

__all__ = ["plain_size", "unwritable"]

_INT_MIN = -(2**63)
_INT_MAX = 2**64 - 1

_FIXED = frozenset({int, bool, type(None)})
_MANY = 16


def plain_size(value: Any, room: int, ceiling: int) -> int:  # noqa: C901 - the hot loop; a call costs more than it
    """The least number of bytes of a dict, list or tuple that is plain throughout, or -1.

    -1 also for what only `Writer` can put into words: NaN, odd keys, too deep, too large.
    """
    if not room:
        return -1
    size = 2 * len(value)
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                return -1
            size += len(key)
        items: Iterable[Any] = value.values()
    else:
        items = value
        if len(value) > _MANY:
            known = _uniform_size(value)
            if known is not None:
                return size + known if 0 <= known <= ceiling - size else -1
    for item in items:
        kind = type(item)
        if kind is str:
            size += len(item)
        elif kind in _FIXED:
            continue
        elif kind is dict or kind is list or kind is tuple:
            inner = plain_size(item, room - 1, ceiling)
            size += inner
            if inner < 0 or size > ceiling:
                return -1
        elif kind is float:
            if item - item != 0.0:  # so for NaN and both infinities, and for nothing else
                return -1
        else:
            return -1
    return size if size <= ceiling else -1


def _uniform_size(items: list[Any] | tuple[Any, ...]) -> int | None:
    """What the items of a long list of one kind add to its size; -1 for NaN among them; None when mixed."""
    kinds = set(map(type, items))
    if kinds <= _FIXED:
        return 0
    if kinds == {str}:
        return sum(map(len, items))
    if kinds == {float}:
        return 0 if all(map(isfinite, items)) else -1
    return None


def unwritable(value: Any) -> Refusal | None:
    """Where plain data holds what orjson refuses (an integer beyond 64 bits, a lone surrogate), or None."""
    if isinstance(value, str):
        return None if _is_text(value) else Refusal(str, "a str with a lone surrogate is no Unicode text")
    if isinstance(value, int):
        if _INT_MIN <= value <= _INT_MAX:
            return None
        return Refusal(int, "an integer beyond 64 bits would not survive JSON; pass it as str or Decimal")
    if isinstance(value, dict):
        for key, item in value.items():
            refusal = unwritable(item)
            if not _is_text(key):
                refusal = Refusal(str, "a dict key with a lone surrogate is no Unicode text")
            if refusal is not None:
                return refusal.within(key, value)
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            refusal = unwritable(item)
            if refusal is not None:
                return refusal.within(place, value)
    return None


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
