"""The value codec: Python values to JSON bytes and back, as annotations say; never a journal, never a store.

What goes in
    None, bool, int (64 bits, signed or unsigned), float, str, list, tuple, set, frozenset, dict with str
    keys, dataclass, NamedTuple, TypedDict, Enum (by value), datetime (aware), date, time, timedelta,
    UUID, Decimal, bytes, and pydantic models. A subclass of a built-in type is written as its base.
What comes out
    What the annotation says. Without one, plain JSON data: a datetime is its text, a tuple a list.
What is refused
    By `NotEncodable`, with the place and the way out: NaN and infinities, integers beyond 64 bits,
    keys that are no str, lone surrogates, naive datetimes, more than 200 levels, cycles, whatever
    else has no JSON form. By `PayloadTooLarge`: more than 1 MiB, or the `limit` given.
    By `InvalidInput`, on the way back: what does not fit its annotation.

| type | JSON |
| --- | --- |
| datetime | `"2024-05-01T12:00:00.000000Z"`, always in UTC |
| date, time | `"2024-05-01"`, `"12:30:00.000000"` with the offset when it has one |
| timedelta | ISO 8601, `"P1DT3600.000001S"` |
| Decimal | its digits, `"12.50"` |
| bytes | base64 |
| set, frozenset | an array, in an order that its items alone decide |
| tuple, NamedTuple | an array |
| dataclass, TypedDict | an object with the fields' names |

The members of a union are tried in this order: the JSON value's own scalar type, then the others
as declared. Of two classes that both fit, the first is taken; a `Literal` field tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyrula.contracts._codec.annotations import result_hint
from pyrula.contracts._codec.codec import DEFAULT_LIMIT, decode, decode_json, encode, normalize
from pyrula.contracts._codec.inputs import InputSpec, bind_input
from pyrula.contracts._codec.writing import MAX_DEPTH

__all__ = [
    "DEFAULT_LIMIT",
    "MAX_DEPTH",
    "InputSpec",
    "bind_input",
    "decode",
    "decode_json",
    "encode",
    "normalize",
    "return_annotation",
]


def return_annotation(fn: Callable[..., Any]) -> Any:
    """What `fn` is annotated to return, for `normalize` and `decode`; Any when nothing usable is said.

    Looks through `functools.partial`, bound methods, wrappers and callable objects. A class
    returns itself; what is awaited counts as what it yields. Cheap enough to ask for each call.
    """
    return result_hint(fn)
