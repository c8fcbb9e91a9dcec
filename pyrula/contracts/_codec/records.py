"""Decoders for the classes that have fields: dataclasses, TypedDicts, NamedTuples.

Strict: a field that the class does not have is a misfit, for dropping it would lose it.
The fields are looked at when a value first comes by, so a class may refer to itself.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, TypeVar, get_origin

from pyrula.contracts._codec.annotations import class_hints, type_arguments
from pyrula.contracts._codec.paths import Misfit, type_name

__all__ = ["dataclass_decoder", "namedtuple_decoder", "record_kind", "typeddict_decoder"]

Decoder: TypeAlias = Callable[[Any], Any]
Compile: TypeAlias = Callable[[Any, Mapping[TypeVar, Any]], Decoder | None]

_NOT_REQUIRED = {typing.NotRequired}
_REQUIRED = {typing.Required}


def record_kind(kind: type) -> Literal["dataclass", "typeddict", "namedtuple"] | None:
    """Which sort of class with fields this is, or None."""
    if dataclasses.is_dataclass(kind):
        return "dataclass"
    if issubclass(kind, dict) and hasattr(kind, "__total__") and hasattr(kind, "__required_keys__"):
        return "typeddict"
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return "namedtuple"
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    """What is known of a class's fields. `late` are those that its constructor does not take."""

    decoders: dict[str, Decoder | None]
    required: frozenset[str]
    late: frozenset[str] = frozenset()

    def read(self, value: Any, name: str) -> dict[str, Any]:
        """The fields of a JSON object, decoded."""
        if type(value) is not dict:
            raise Misfit(f"expected {name} as dict, found {type_name(type(value))}")
        done: dict[str, Any] = {}
        decoders = self.decoders
        for field, item in value.items():
            try:
                decoder = decoders[field]
                done[field] = item if decoder is None else decoder(item)
            except Misfit as misfit:
                raise misfit.inside(field)  # noqa: B904 - the same error, on its way out
            except KeyError:
                if field in decoders:  # raised inside the decoder
                    raise
                raise Misfit(f"{name} has no such field").inside(field) from None
        if not self.required <= done.keys():
            missing = next(field for field in decoders if field in self.required and field not in done)
            raise Misfit(f"is missing; {name} requires it").inside(missing)
        return done


def _made(kind: Callable[..., Any], name: str, fields: dict[str, Any]) -> Any:
    try:
        return kind(**fields)
    except Exception as error:  # __post_init__ and __new__ are the author's and may raise anything
        raise Misfit(f"expected {name}, which refused it: {type(error).__name__}: {error}") from error


def dataclass_decoder(kind: type, arguments: tuple[Any, ...], compile_decoder: Compile) -> Decoder:
    """From an object with the fields' names, through the constructor; fields with a default may be absent.

    Fields that the constructor does not take are set after it as they were written.
    """
    name = type_name(kind)
    known: list[_Plan] = []

    def prepare() -> _Plan:
        hints = class_hints(kind)
        bound = type_arguments(kind, arguments)
        fields = dataclasses.fields(kind)
        plan = _Plan(
            {field.name: compile_decoder(hints.get(field.name, Any), bound) for field in fields},
            frozenset(
                field.name
                for field in fields
                if field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            ),
            frozenset(field.name for field in fields if not field.init),
        )
        known.append(plan)
        return plan

    def read(value: Any) -> Any:
        plan = known[0] if known else prepare()
        done = plan.read(value, name)
        if not plan.late:
            return _made(kind, name, done)
        late = {field: done.pop(field) for field in plan.late & done.keys()}
        made = _made(kind, name, done)
        for field, item in late.items():
            object.__setattr__(made, field, item)  # also where the class is frozen
        return made

    return read


def typeddict_decoder(kind: type, arguments: tuple[Any, ...], compile_decoder: Compile) -> Decoder:
    """From an object with its keys; the ones that are not required may be absent."""
    name = type_name(kind)
    known: list[_Plan] = []

    def prepare() -> _Plan:
        hints = class_hints(kind)
        bound = type_arguments(kind, arguments)
        required = {key for key in hints if _is_required(hints[key], key in kind.__required_keys__)}  # type: ignore[attr-defined]
        plan = _Plan({key: compile_decoder(hint, bound) for key, hint in hints.items()}, frozenset(required))
        known.append(plan)
        return plan

    return lambda value: (known[0] if known else prepare()).read(value, name)


def _is_required(hint: Any, otherwise: bool) -> bool:
    """What the resolved annotation says; where it stood in a string, the class itself could not see it."""
    origin = get_origin(hint)
    if origin in _NOT_REQUIRED:
        return False
    return True if origin in _REQUIRED else otherwise


def namedtuple_decoder(kind: type, arguments: tuple[Any, ...], compile_decoder: Compile) -> Decoder:
    """From an array in the order of its fields; trailing ones with a default may be absent."""
    name = type_name(kind)
    known: list[tuple[list[Decoder | None], int]] = []

    def prepare() -> tuple[list[Decoder | None], int]:
        hints = class_hints(kind)
        bound = type_arguments(kind, arguments)
        names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
        least = len(names) - len(kind._field_defaults)  # type: ignore[attr-defined]
        known.append(([compile_decoder(hints.get(field, Any), bound) for field in names], least))
        return known[0]

    def read(value: Any) -> Any:
        decoders, least = known[0] if known else prepare()
        if type(value) is not list:
            raise Misfit(f"expected {name} as list, found {type_name(type(value))}")
        if not least <= len(value) <= len(decoders):
            raise Misfit(f"expected {name} with {len(decoders)} items, found {len(value)}")
        done: list[Any] = []
        try:
            for decoder, item in zip(decoders, value, strict=False):
                done.append(item if decoder is None else decoder(item))
        except Misfit as misfit:
            raise misfit.inside(len(done))  # noqa: B904 - the same error, on its way out
        return kind(*done)

    return read
