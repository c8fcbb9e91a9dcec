"""Annotations as objects: of functions and of classes, with names in strings resolved; never values.

A name that cannot be resolved (a class local to a function, an import only for the type
checker) spoils its own annotation and no other one.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar, get_args, get_origin
from weakref import WeakKeyDictionary

__all__ = ["Unresolved", "annotation_name", "class_hints", "parameter_hint", "result_hint", "type_arguments"]

_HINTS_KEPT: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_ABSENT = object()


class Unresolved:
    """An annotation whose names cannot be resolved; `text` is what stands in the source."""

    __slots__ = ("text",)

    def __init__(self, text: object) -> None:
        self.text = text if isinstance(text, str) else repr(text)


def resolve(annotation: object, scope: dict[str, Any], local: Mapping[str, Any] | None = None) -> Any:
    """The annotation with every string in it evaluated in `scope`, or `Unresolved`."""

    def carrier() -> None:
        """Only carries the annotation, for `get_type_hints` to look at."""

    carrier.__annotations__ = {"it": annotation}
    try:
        return typing.get_type_hints(carrier, scope, dict(local or {}), include_extras=True)["it"]
    except Exception:  # noqa: BLE001 - the author's own expression may raise anything, mostly NameError
        return Unresolved(annotation)


def class_hints(kind: type) -> dict[str, Any]:
    """The annotations of a class and its bases, resolved where they can be."""
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:  # noqa: BLE001 - one name that cannot be resolved; the other fields are worth having
        hints: dict[str, Any] = {}
        for parent in reversed(kind.__mro__):
            scope = vars(sys.modules.get(parent.__module__, typing))
            for name, annotation in inspect.get_annotations(parent).items():
                hints[name] = resolve(annotation, scope, vars(parent))
        return hints


def type_arguments(kind: type, arguments: tuple[Any, ...] = ()) -> dict[TypeVar, Any]:
    """What stands for each type variable of a generic class and of its generic bases."""
    bound = dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=False))
    for base in getattr(kind, "__orig_bases__", ()):
        origin = get_origin(base)
        if isinstance(origin, type) and origin is not typing.Generic:
            inner = tuple(bound.get(argument, argument) for argument in get_args(base))
            bound |= type_arguments(origin, inner)
    return bound


def parameter_hint(fn: Callable[..., Any], annotation: object) -> Any:
    """The annotation of a parameter of `fn`, resolved; Any when it has none or it cannot be."""
    if annotation is inspect.Parameter.empty:
        return Any
    hint = resolve(annotation, _globals(fn))
    return Any if isinstance(hint, Unresolved) else hint


def result_hint(fn: Callable[..., Any]) -> Any:
    """What `fn` is annotated to return, resolved; Any when nothing is said or it cannot be.

    Looks through `functools.partial`, bound methods, wrappers and callable objects. A class
    returns itself, and what is awaited counts as what it yields.
    """
    owner: Any = fn
    if type(fn) is not types.FunctionType:
        while isinstance(fn, functools.partial):
            fn = fn.func
        if isinstance(fn, type):
            return fn
        owner = getattr(fn, "__func__", fn)
        if not inspect.isroutine(owner) and not hasattr(owner, "__wrapped__"):
            owner = type(owner).__call__
    try:
        annotation = owner.__annotations__.get("return", _ABSENT)
    except (AttributeError, NameError):  # built in; or a name known to type checkers only
        return Any
    if annotation is _ABSENT:
        return Any
    if annotation is None or type(annotation) is type:
        return annotation
    try:
        hint = _HINTS_KEPT.get(owner, _ABSENT)
        if hint is _ABSENT:
            hint = _HINTS_KEPT[owner] = _awaited(resolve(annotation, _globals(owner)))
        return hint
    except TypeError:  # an object that cannot be hashed, or not be referred to weakly
        return _awaited(resolve(annotation, _globals(owner)))


def _awaited(hint: Any) -> Any:
    if isinstance(hint, Unresolved):
        return Any
    origin = get_origin(hint)
    if origin is Coroutine or origin is Awaitable:
        return get_args(hint)[-1]
    return hint


def _globals(fn: Callable[..., Any]) -> dict[str, Any]:
    """The names that the annotations of `fn` were written among."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    found = getattr(getattr(fn, "__func__", fn), "__globals__", None)
    if found is None:
        found = getattr(type(fn).__call__, "__globals__", {})
    return typing.cast("dict[str, Any]", found)


def annotation_name(annotation: object) -> str:
    """An annotation as an author would write it, for messages."""
    if isinstance(annotation, Unresolved):
        return annotation.text
    if annotation is None or annotation is type(None):
        return "None"
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__qualname__
    return repr(annotation).replace("typing.", "")
