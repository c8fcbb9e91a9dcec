"""The members of a union and the order in which they are tried.

First the member that is the JSON value's own scalar type (`None`, `bool`, `int`, `float`,
`str`); then the others as they are declared. So `str | datetime` reads every string as `str`,
`Point | dict` makes a `Point` wherever it can, and of two dataclasses that both fit the first
one is taken: give them a `Literal` field that tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pyrula.contracts._codec.annotations import annotation_name
from pyrula.contracts._codec.paths import Misfit, type_name

__all__ = ["union_decoder"]

_OWN_TYPES = frozenset({type(None), bool, int, float, str})


def union_decoder(
    members: tuple[Any, ...],
    bound: Mapping[TypeVar, Any],
    compile_decoder: Callable[[Any, Mapping[TypeVar, Any]], Callable[[Any], Any] | None],
) -> Callable[[Any], Any]:
    """A decoder for any one of `members`."""
    members = tuple(map(_stripped, members))
    own = {type(None) if member is None else member for member in members if _is_own(member)}
    others = [compile_decoder(member, bound) for member in members if member is float or not _is_own(member)]
    shown = " | ".join(map(annotation_name, members))

    def read_one(value: Any) -> Any:
        return value if type(value) in own or only is None else only(value)

    def read_any(value: Any) -> Any:
        if type(value) in own:
            return value
        closest: Misfit | None = None
        for read in others:
            if read is None:
                return value
            try:
                return read(value)
            except Misfit as misfit:
                if closest is None or len(misfit.trail) > len(closest.trail):
                    closest = misfit
        if closest is not None and closest.trail:
            raise closest
        raise Misfit(f"expected {shown}, found {type_name(type(value))}")

    only = others[0] if len(others) == 1 else None
    return read_one if len(others) == 1 else read_any


def _stripped(member: Any) -> Any:
    """The type itself, without metadata and without a new name for it."""
    while True:
        if get_origin(member) is Annotated:
            member = get_args(member)[0]
        elif hasattr(member, "__supertype__"):
            member = member.__supertype__
        else:
            return member


def _is_own(member: Any) -> bool:
    return member is None or (isinstance(member, type) and member in _OWN_TYPES)
