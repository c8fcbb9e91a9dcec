"""A workflow's input: a JSON object whose keys are the parameters of the body after its context.

Arguments in, keyword arguments out; never a run, never a call of the body.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Self
from weakref import WeakKeyDictionary

from pyrula.contracts._codec.annotations import parameter_hint, result_hint
from pyrula.contracts._codec.codec import DEFAULT_LIMIT, decode, decode_json, encode
from pyrula.contracts._codec.paths import render, type_name
from pyrula.contracts.errors import ConfigurationError, InvalidInput

__all__ = ["InputSpec", "bind_input"]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """What a workflow's body takes as input and returns.

    `hints` has the annotation of each parameter after the context, `required` those without
    a default; `open` when `**kwargs` takes further keys, each annotated with `extra_hint`.
    """

    workflow: str
    hints: Mapping[str, Any]
    required: frozenset[str]
    open: bool
    extra_hint: Any
    result_annotation: Any

    @classmethod
    def of(cls, fn: Callable[..., Any], *, skip: int = 1, workflow: str | None = None) -> Self:
        """Read off `fn`, leaving out its first `skip` parameters (the context).

        `workflow` is what errors call it, by default the function's name. Raises
        `ConfigurationError` for a signature that no input could fill.
        """
        name = workflow or _name(fn)
        try:
            parameters = list(inspect.signature(fn).parameters.values())
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"workflow {name!r}: its parameters cannot be read: {error}") from None
        skipped = [each for each in parameters[:skip] if each.kind in _POSITIONAL]
        if len(skipped) < skip and not any(each.kind is each.VAR_POSITIONAL for each in parameters):
            raise ConfigurationError(f"workflow {name!r}: the body must take its context as its first parameter")
        hints: dict[str, Any] = {}
        required: set[str] = set()
        is_open, extra_hint = False, Any
        for each in parameters[len(skipped) :]:
            hint = parameter_hint(fn, each.annotation)
            if each.kind is each.VAR_KEYWORD:
                is_open, extra_hint = True, hint
            elif each.kind is each.POSITIONAL_ONLY and each.default is each.empty:
                raise ConfigurationError(
                    f"workflow {name!r}: parameter {each.name!r} is positional-only; inputs are passed by name"
                )
            elif each.kind is not each.VAR_POSITIONAL and each.kind is not each.POSITIONAL_ONLY:
                hints[each.name] = hint
                if each.default is each.empty:
                    required.add(each.name)
        return cls(
            workflow=name,
            hints=hints,
            required=frozenset(required),
            open=is_open,
            extra_hint=extra_hint,
            result_annotation=result_hint(fn),
        )

    def encode(self, input: Mapping[str, object] | None, *, limit: int = DEFAULT_LIMIT) -> bytes:
        """The input in canonical form: the same input gives the same bytes, whatever the order of its keys.

        None is the empty input. Raises `InvalidInput` for what is no mapping, and as `values.encode`.
        """
        if input is None:
            return b"{}"
        if not isinstance(input, Mapping):
            raise InvalidInput(f"workflow {self.workflow!r}, input: expected dict, found {type_name(type(input))}")
        return encode(dict(input), path="input", limit=limit, canonical=True)

    def check(self, input: Mapping[str, object] | None, *, limit: int = DEFAULT_LIMIT) -> bytes:
        """`encode`, once it is certain that the body can be called with the result.

        Raises `InvalidInput` for a missing key, an unknown one, and a value that does not fit.
        """
        data = self.encode(input, limit=limit)
        self.decode(data)
        return data

    def decode(self, input: bytes | Mapping[str, Any]) -> dict[str, Any]:
        """The keyword arguments for the body, from encoded input or from its parsed JSON.

        Parameters that have a default and are not in the input are left to the default.
        Raises `InvalidInput` as `check` does.
        """
        label = f"workflow {self.workflow!r}, input"
        given: Mapping[str, Any] = decode(input, dict, path=label) if isinstance(input, bytes) else input
        for name in self.required:
            if name not in given:
                raise InvalidInput(f"{render(label, [name])}: is missing; the workflow requires it", name)
        arguments: dict[str, Any] = {}
        for name, value in given.items():
            hint = self.hints.get(name, self.extra_hint)
            if name not in self.hints and not self.open:
                known = ", ".join(self.hints) or "none"
                raise InvalidInput(f"{render(label, [name])}: no such parameter; the workflow takes: {known}", name)
            try:
                arguments[name] = decode_json(value, hint, path=label)
            except InvalidInput as error:
                place = str(error).removeprefix(label)
                raise InvalidInput(render(label, [name]) + place, name) from error.__cause__
        return arguments


_SPECS_KEPT: WeakKeyDictionary[Callable[..., Any], dict[int, InputSpec]] = WeakKeyDictionary()


def bind_input(fn: Callable[..., Any], input: Mapping[str, object] | None, *, skip: int = 1) -> dict[str, Any]:
    """The keyword arguments that `fn` is called with for `input`, each through the codec and back.

    Raises as `InputSpec.check` does. Where one function is bound often and without a worker
    in between, keep an `InputSpec` instead.
    """
    try:
        specs = _SPECS_KEPT.setdefault(fn, {})
    except TypeError:  # cannot be hashed, or not be referred to weakly
        specs = {}
    spec = specs.get(skip)
    if spec is None:
        spec = specs[skip] = InputSpec.of(fn, skip=skip)
    return spec.decode(spec.encode(input))


def _name(fn: Callable[..., Any]) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__name__", None)
    return name if isinstance(name, str) else type(fn).__name__
