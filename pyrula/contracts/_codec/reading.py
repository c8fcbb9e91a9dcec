"""Annotations compiled to decoders: functions from plain JSON data to the annotated type; never bytes, never I/O.

A decoder raises `Misfit` for a value that does not fit. `None` stands for the decoder that
changes nothing (`Any`), so that lists and dicts of it cost nothing. The classes with fields
are next door in `records`, and the order in which the members of a union are tried in `unions`.
"""

from __future__ import annotations

import collections
import enum
import types
import typing
from collections import abc
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

from pyrula.contracts._codec.leaves import LEAVES, Decoder, enum_decoder, exact, found, literal_decoder, unsupported
from pyrula.contracts._codec.models import base_model, load_model
from pyrula.contracts._codec.paths import Misfit, type_name
from pyrula.contracts._codec.records import dataclass_decoder, namedtuple_decoder, record_kind, typeddict_decoder
from pyrula.contracts._codec.unions import union_decoder

__all__ = ["Decoder", "compile_decoder", "decoder_for"]

Bound: TypeAlias = Mapping[TypeVar, Any]

_KEPT = 4096

# Decoders by annotation. By equality where that is safe; by identity, with the annotation kept
# alive beside, where it is not: `A | B` equals `B | A`, yet they are tried in different orders.
_BY_VALUE: dict[Any, Decoder | None] = {}
_BY_IDENTITY: dict[int, tuple[Any, Decoder | None]] = {}
_RECORDS: dict[tuple[type, Any], Decoder] = {}
_ABSENT: Any = object()


def decoder_for(annotation: Any) -> Decoder | None:
    """The decoder of an annotation, compiled once."""
    try:
        known = _BY_VALUE.get(annotation, _ABSENT)
        hashable = True
    except TypeError:
        known, hashable = _ABSENT, False
    if known is not _ABSENT:
        return known  # type: ignore[no-any-return]  # the sentinel is typed Any
    held = _BY_IDENTITY.get(id(annotation))
    if held is not None:
        return held[1]
    decoder = compile_decoder(annotation, {})
    if len(_BY_VALUE) + len(_BY_IDENTITY) >= _KEPT:  # annotations made on the fly must not pile up here
        _BY_VALUE.clear()
        _BY_IDENTITY.clear()
    if hashable and not _has_order(annotation):
        _BY_VALUE[annotation] = decoder
    else:
        _BY_IDENTITY[id(annotation)] = (annotation, decoder)
    return decoder


def _has_order(annotation: Any) -> bool:
    if get_origin(annotation) in (Union, types.UnionType):
        return True
    return any(map(_has_order, get_args(annotation))) if get_args(annotation) else isinstance(annotation, list)


def compile_decoder(annotation: Any, bound: Bound) -> Decoder | None:
    """A decoder for `annotation`, with `bound` for its type variables. What cannot be decoded to always misfits."""
    if annotation is Any or annotation is object or annotation is typing.NoReturn or annotation is typing.Never:
        return None
    if isinstance(annotation, TypeVar):
        return _type_variable(annotation, bound)
    origin = get_origin(annotation)
    if origin is not None:
        return _compile_generic(annotation, origin, get_args(annotation), bound)
    if annotation is None:
        return exact(type(None))
    if isinstance(annotation, type):
        return _compile_class(annotation, bound)
    for attribute in ("__supertype__", "__value__"):  # a NewType; a `type X = ...`
        if hasattr(annotation, attribute):
            return compile_decoder(getattr(annotation, attribute), bound)
    if annotation is typing.LiteralString:
        return exact(str)
    return unsupported(annotation)


def _type_variable(variable: TypeVar, bound: Bound) -> Decoder | None:
    if variable in bound and bound[variable] is not variable:
        return compile_decoder(bound[variable], bound)
    if variable.__constraints__:
        return union_decoder(variable.__constraints__, bound, compile_decoder)
    return compile_decoder(variable.__bound__, bound) if variable.__bound__ is not None else None


def _compile_generic(annotation: Any, origin: Any, arguments: tuple[Any, ...], bound: Bound) -> Decoder | None:
    if origin is Annotated or origin in _QUALIFIERS:
        return compile_decoder(arguments[0], bound)
    if origin is Union or origin is types.UnionType:
        return union_decoder(arguments, bound, compile_decoder)
    if origin is Literal:
        return literal_decoder(annotation, arguments)
    if hasattr(origin, "__value__"):  # a parametrised `type X[T] = ...`
        inner = dict(zip(origin.__type_params__, arguments, strict=False))
        return compile_decoder(origin.__value__, {**bound, **inner})
    if not isinstance(origin, type):
        return unsupported(annotation)
    if record_kind(origin) is not None:
        return _record(origin, tuple(_substituted(argument, bound) for argument in arguments))
    return _container(annotation, origin, arguments, bound)


def _substituted(argument: Any, bound: Bound) -> Any:
    if isinstance(argument, TypeVar):
        return bound.get(argument, argument)
    parameters = getattr(argument, "__parameters__", ())
    return argument[tuple(bound.get(each, each) for each in parameters)] if parameters else argument


def _compile_class(kind: type, bound: Bound) -> Decoder | None:
    leaf = LEAVES.get(kind)
    if leaf is not None:
        return leaf
    if issubclass(kind, enum.Enum):
        return enum_decoder(kind)
    model = base_model()
    if model is not None and issubclass(kind, model):
        return lambda value: load_model(kind, value)
    if record_kind(kind) is not None:
        return _record(kind, ())
    return _container(kind, kind, (), bound)


def _record(kind: type, arguments: tuple[Any, ...]) -> Decoder:
    """One decoder for a class and its arguments, wherever it comes up: a class may refer to itself."""
    key = (kind, tuple(map(_structure, arguments)))
    decoder = _RECORDS.get(key)
    if decoder is None:
        if len(_RECORDS) >= _KEPT:
            _RECORDS.clear()
        make = {"dataclass": dataclass_decoder, "typeddict": typeddict_decoder, "namedtuple": namedtuple_decoder}
        decoder = _RECORDS[key] = make[record_kind(kind) or ""](kind, arguments, compile_decoder)
    return decoder


def _structure(annotation: Any) -> object:
    """An annotation as a key that, unlike its own equality, heeds the order of a union's members."""
    if isinstance(annotation, list):  # the parameters of a Callable
        return tuple(map(_structure, annotation))
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _structure(arguments[0])
    if origin is Literal:
        return origin, tuple((type(argument), argument) for argument in arguments)
    return (origin, tuple(map(_structure, arguments))) if arguments else annotation


# --- containers ------------------------------------------------------------------------------

_QUALIFIERS = frozenset(
    qualifier
    for name in ("Final", "ClassVar", "Required", "NotRequired", "ReadOnly")
    if (qualifier := getattr(typing, name, None)) is not None
)
_LISTS = frozenset(
    {list, abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection, abc.Container, abc.Reversible}
)
_SETS: dict[type, type] = {set: set, frozenset: frozenset, abc.Set: set, abc.MutableSet: set}
_DICTS = frozenset({dict, abc.Mapping, abc.MutableMapping})
_SCALAR_BASES = (str, int, float, bytes)


def _container(annotation: Any, kind: type, arguments: tuple[Any, ...], bound: Bound) -> Decoder | None:
    if kind in _DICTS:
        return _dict(*[compile_decoder(argument, bound) for argument in arguments])
    if kind is collections.Counter and arguments:
        arguments = (arguments[0], int)
    if kind is tuple:
        return _tuple(annotation, arguments, bound)
    items = [compile_decoder(argument, bound) for argument in arguments]
    if kind in _LISTS:
        return _list(*items)
    if kind in _SETS:
        return _built(_SETS[kind], _list(*items))
    if issubclass(kind, dict):
        return _built(kind, _dict(*items))
    if issubclass(kind, list | set | frozenset):
        return _built(kind, _list(*items))
    base = next((base for base in (*LEAVES, tuple) if issubclass(kind, base)), None)
    if base in _SCALAR_BASES:
        return _built(kind, LEAVES[base])
    return unsupported(annotation)


def _built(kind: type, inner: Decoder) -> Decoder:
    """What `inner` reads, handed to the class: a set, a subclass of a built-in type."""
    name = type_name(kind)

    def read(value: Any) -> Any:
        value = inner(value)
        try:
            return kind(value)
        except Exception as error:  # the author's own class may raise anything
            raise Misfit(f"expected {name}, which cannot be made of it: {error}") from error

    return read


def _list(item: Decoder | None = None, *_unused: object) -> Decoder:
    def read(value: Any) -> Any:
        if type(value) is not list:
            raise Misfit(f"expected list, found {found(value)}")
        return value if item is None else _items(value, item)

    return read


def _items(value: list[Any], item: Decoder) -> list[Any]:
    done: list[Any] = []
    try:
        for each in value:
            done.append(item(each))  # noqa: PERF401 - its length says where a misfit was
    except Misfit as misfit:
        raise misfit.inside(len(done))  # noqa: B904 - the same error, on its way out
    return done


def _dict(key: Decoder | None = None, item: Decoder | None = None) -> Decoder:
    if key is LEAVES[str]:
        key = None  # JSON has no other keys

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise Misfit(f"expected dict, found {found(value)}")
        if key is None and item is None:
            return value
        done: dict[Any, Any] = {}
        for name, each in value.items():
            try:
                done[name if key is None else key(name)] = each if item is None else item(each)
            except Misfit as misfit:
                raise misfit.inside(name)  # noqa: B904 - the same error, on its way out
            except TypeError:
                raise Misfit("its key is decoded to something that cannot be hashed").inside(name) from None
        if len(done) != len(value):
            raise Misfit("two of its keys are read alike")
        return done

    return read


def _tuple(annotation: Any, arguments: tuple[Any, ...], bound: Bound) -> Decoder:
    if annotation is tuple or annotation is typing.Tuple:  # noqa: UP006 - as an annotation of somebody's
        return _built(tuple, _list())
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return _built(tuple, _list(compile_decoder(arguments[0], bound)))
    if any(get_origin(argument) is typing.Unpack for argument in arguments):
        return unsupported(annotation)
    items = [compile_decoder(argument, bound) for argument in arguments]

    def read(value: Any) -> Any:
        if type(value) is not list:
            raise Misfit(f"expected tuple, found {found(value)}")
        if len(value) != len(items):
            raise Misfit(f"expected {len(items)} items, found {len(value)}")
        done: list[Any] = []
        try:
            for item, each in zip(items, value, strict=True):
                done.append(each if item is None else item(each))
        except Misfit as misfit:
            raise misfit.inside(len(done))  # noqa: B904 - the same error, on its way out
        return tuple(done)

    return read
