"""The codec itself: a value to JSON bytes and back, refused with its place where it does not do.

The common case is kept short: scalars go straight to orjson, plain dicts and lists after one
look (`screen`), everything else through `Writer`.
"""

from __future__ import annotations

from typing import Any, NoReturn

import orjson

from pyrula.contracts._codec.paths import Misfit, Refusal, type_name
from pyrula.contracts._codec.reading import decoder_for
from pyrula.contracts._codec.screen import plain_size, unwritable
from pyrula.contracts._codec.writing import MAX_DEPTH, Oversize, Writer
from pyrula.contracts.errors import InvalidInput, NotEncodable, PayloadTooLarge

__all__ = ["DEFAULT_LIMIT", "decode", "decode_json", "encode", "normalize"]

DEFAULT_LIMIT = 1_048_576

# Sizes are exact up to this multiple of the limit; what is larger is not written to be measured.
_CEILING_FACTOR = 4

_FIXED_TEXT = {None: b"null", True: b"true", False: b"false"}
_IMMUTABLE = frozenset({type(None), bool, int, float, str})
_CONTAINERS = frozenset({dict, list, tuple})

_dumps = orjson.dumps
_loads = orjson.loads


def encode(value: object, *, path: str = "value", limit: int = DEFAULT_LIMIT, canonical: bool = False) -> bytes:
    """`value` as JSON. `path` is what errors call the value; `limit` is in bytes.

    With `canonical`, keys are sorted at every level, so that equal data gives equal bytes.
    Raises `NotEncodable` for what has no JSON form and `PayloadTooLarge` past `limit`; its
    size is exact up to four times the limit, beyond that what had been counted by then.
    """
    kind = type(value)
    if kind is str or kind is int:
        try:
            data = _dumps(value)
        except TypeError:
            _refuse(value, unwritable(value), path)
    elif kind is float and value - value == 0.0:  # type: ignore[operator]  # not so for NaN and infinities
        return _dumps(value)
    elif kind is bool or value is None:
        return _FIXED_TEXT[value]  # type: ignore[index]  # one of the three
    else:
        option = orjson.OPT_SORT_KEYS if canonical else None
        try:
            if kind not in _CONTAINERS or plain_size(value, MAX_DEPTH, limit * _CEILING_FACTOR) < 0:
                data = _encode_other(value, path, limit, option)
            else:
                data = _dumps(value, None, option)
        except (TypeError, RuntimeError):  # RuntimeError: near the end of the stack, or changed meanwhile by a thread
            data = _encode_other(value, path, limit, option)
    if len(data) > limit:
        raise PayloadTooLarge(path, len(data), limit)
    return data


def _encode_other(value: object, path: str, limit: int, option: int | None) -> bytes:
    """The long way, which converts, and which knows where something is wrong."""
    try:
        plain = Writer(limit * _CEILING_FACTOR).plain(value)
    except Refusal as refusal:
        _refuse(value, refusal, path)
    except Oversize as oversize:
        raise PayloadTooLarge(path, oversize.counted, limit) from None
    try:
        return _dumps(plain, None, option)
    except TypeError as error:
        _refuse(value, unwritable(plain) or Refusal(type(value), str(error)), path)


def _refuse(value: object, refusal: Refusal | None, path: str) -> NoReturn:
    if refusal is None:  # orjson refused what nothing here objects to
        refusal = Refusal(type(value), "it cannot be written as JSON")
    cycle = refusal.cycle(path) if refusal.deep else None
    if cycle is None:
        raise NotEncodable(refusal.path(path), type_name(refusal.kind), refusal.reason) from refusal.__cause__
    outer, inner = cycle
    raise NotEncodable(inner, type_name(refusal.kind), f"it contains itself: it is {outer} again")


def decode(data: bytes, annotation: Any = Any, *, path: str = "value") -> Any:
    """The value that `data` holds, as `annotation` says; plain JSON data for Any.

    Raises `InvalidInput` for data that is no JSON or does not fit; its `field` is the first
    step below `path`, None when the value as a whole does not fit.
    """
    try:
        value = _loads(data)
    except ValueError as error:
        raise InvalidInput(f"{path}: not JSON: {error}") from None
    if annotation is Any:
        return value
    return decode_json(value, annotation, path=path)


def decode_json(value: Any, annotation: Any, *, path: str = "value") -> Any:
    """As `decode`, from data that orjson has parsed already. `value` may be used up in the result."""
    decoder = decoder_for(annotation)
    if decoder is None:
        return value
    try:
        return decoder(value)
    except Misfit as misfit:
        field = str(misfit.trail[-1]) if misfit.trail else None
        raise InvalidInput(f"{misfit.path(path)}: {misfit.message}", field) from misfit.__cause__
    except RecursionError:
        raise InvalidInput(f"{path}: nested too deep to be read") from None


def normalize(
    value: object, annotation: Any = Any, *, path: str = "result", limit: int = DEFAULT_LIMIT
) -> tuple[bytes, Any]:
    """`value` encoded, and what it will be after it was decoded again.

    What a step returns goes through this, so that the body sees live what it sees on replay.
    Raises as `encode` and `decode` do.
    """
    data = encode(value, path=path, limit=limit)
    kind = type(value)
    if kind in _IMMUTABLE and (annotation is Any or annotation is kind or (value is None and annotation is None)):
        return data, value  # it would come back equal, and nobody can change it
    return data, decode(data, annotation, path=path)
