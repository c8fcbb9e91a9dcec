"""What the value codec refuses on the way out: where, why, and without ever hanging."""

from __future__ import annotations

import datetime as dt
import math
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import (
    Any,
)
from zoneinfo import ZoneInfo

import orjson
import pytest

from pyrula.contracts.errors import NotEncodable, PayloadTooLarge
from pyrula.contracts.values import DEFAULT_LIMIT, MAX_DEPTH, decode, encode
from tests.unit.values_samples import (
    ID,
    NOON,
    Alike,
    Box,
    Kind,
    Level,
    Model,
    Money,
    Plain,
    Slotted,
    Unwritable,
    round_trip,
)


def cyclic_list() -> list[Any]:
    value: list[Any] = [1]
    value.append({"again": [value]})
    return value


def cyclic_object() -> Box[Any]:
    box: Box[Any] = Box(None)
    box.content = {"box": box}
    return box


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def money() -> Money:
    value = Money(3)
    value.currency = "EUR"
    return value


def slotted() -> Slotted:
    return Slotted("x")


SAMPLES = Box.__module__


class Precise(dt.datetime):
    """A moment with more digits than a datetime writes, as a data frame's has."""

    __slots__ = ()
    nanosecond = 7


@dataclass
class Both(dict[str, int]):
    a: int = 0


class ArrayLike:
    def tolist(self) -> list[int]:
        return [1]


class Meddling(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        return iter("a")

    def __len__(self) -> int:
        return 1


@dataclass
class Raising:
    good: int

    def __getattribute__(self, name: str) -> Any:
        if name == "good":
            raise ZeroDivisionError("no")
        return object.__getattribute__(self, name)


class Liar(dict[str, int]):
    def items(self) -> Any:
        return [("a", 1), ("a", 2)]


async def never_awaited() -> None:
    """Returns a coroutine, which a forgetful step would return as its result."""


@pytest.mark.parametrize(
    ("value", "path", "type_name", "reason"),
    [
        (math.nan, "result", "float", "NaN"),
        (-math.inf, "result", "float", "infinit"),
        ({"a": [1, {"b": (0, math.nan)}]}, "result.a[1].b[1]", "float", "NaN"),
        ({"a": [1.0] * 20 + [math.inf]}, "result.a[20]", "float", "NaN"),
        ([None, "null", math.nan], "result[2]", "float", "NaN"),
        ([{1.5, math.nan}], None, "float", "NaN"),
        ([Decimal("NaN")], "result[0]", "decimal.Decimal", "NaN"),
        (Decimal("-Infinity"), "result", "decimal.Decimal", "NaN"),
        (2**64, "result", "int", "str or Decimal"),
        ({"a": {"b": -(2**63) - 1}}, "result.a.b", "int", "str or Decimal"),
        ([10**5000], "result[0]", "int", "64 bits"),
        ("\ud800", "result", "str", "surrogate"),
        ({"e-mail": "ok\udfff"}, 'result["e-mail"]', "str", "surrogate"),
        ({"\ud800": 1}, 'result["\\ud800"]', "str", "surrogate"),
        ([{"\ud800", 1}], None, "str", "surrogate"),
        ({1: "a"}, "result", "int", "key must be a str"),
        ({"a": {None: 1}}, "result.a", "None", "key must be a str"),
        ({"a": {(1, 2): 1}}, "result.a", "tuple", "key must be a str"),
        ({Level.LOW: 1}, "result", "int", "key must be a str"),
        ({Kind.CAT: 1, "cat ": 2, ID: 3}, "result", "uuid.UUID", "key must be a str"),
        (dt.datetime(2024, 1, 1), "result", "datetime.datetime", "naive"),  # noqa: DTZ001
        ({"items": [Box(0), Box(dt.datetime.min)]}, "result.items[1].content", "datetime.datetime", "naive"),  # noqa: DTZ901
        (dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-1))), "result", "datetime.datetime", "9999"),
        (dt.time(1, tzinfo=ZoneInfo("Europe/Berlin")), "result", "datetime.time", "fixed offset"),
        (nested(MAX_DEPTH + 1), None, "list", "200 levels"),
        (nested(100_000), None, "list", "200 levels"),
        (cyclic_list(), "result[1].again[0]", "list", "contains itself"),
        (cyclic_object(), "result.content.box", f"{SAMPLES}.Box", "contains itself"),
        (object(), "result", "object", "no JSON form"),
        ({"user": {"f": [print]}}, "result.user.f[0]", "builtin_function_or_method", "code"),
        ([lambda: 1], "result[0]", "function", "code"),
        ((i for i in "ab"), "result", "generator", "list"),
        (range(3), "result", "range", "list"),
        (bytearray(b"a"), "result", "bytearray", "bytes"),
        (ValueError("x"), "result", "ValueError", "str"),
        (int, "result", "type", "name"),
        (1j, "result", "complex", "no JSON form"),
        (Meddling(), "result", f"{__name__}.Meddling", "dict"),
        (types.MappingProxyType({}), "result", "mappingproxy", "dict"),
        (Path("/"), "result", None, "no JSON form"),
        (orjson.Fragment(b"{not json"), "result", "orjson.Fragment", "no JSON form"),
        ([1, {"a": orjson.Fragment(b"1")}], "result[1].a", "orjson.Fragment", "no JSON form"),
        ([money()], "result[0]", f"{SAMPLES}.Money", "would be lost"),
        ({"s": slotted()}, "result.s", f"{SAMPLES}.Slotted", "would be lost"),
        ([Alike.TEXT], "result[0]", f"{SAMPLES}.Alike", "written alike"),
        (
            {Kind.CAT: 1, Plain("dog"): 2, "x": Raising.__new__(Raising)},
            "result.x",
            f"{__name__}.Raising",
            "ZeroDivision",
        ),
        (Liar(a=1), "result", f"{__name__}.Liar", "alike"),
        (Precise(2024, 1, 1, tzinfo=ZoneInfo("UTC")), "result", f"{__name__}.Precise", "nanoseconds"),
        (Both(a=1), "result", f"{__name__}.Both", "half of it"),
        ({"rows": ArrayLike()}, "result.rows", f"{__name__}.ArrayLike", "tolist"),
        ([Unwritable.NEVER], "result[0]", "object", "no JSON form"),
        ({"k" * 100: math.nan}, f'result["{"k" * 60}..."]', "float", "NaN"),
        (sys.version_info, "result", "sys.version_info", "list"),
        (Model(name="n", at=NOON, ratio=math.nan), "result.ratio", "float", "NaN"),
        (Model(name="n", at=dt.datetime(2024, 1, 1)), "result.at", "datetime.datetime", "naive"),  # noqa: DTZ001
        ({"a b": {"": math.nan}}, 'result["a b"][""]', "float", "NaN"),
        ({'q"\n': math.nan}, 'result["q\\"\\n"]', "float", "NaN"),
        ({"straße": math.nan}, "result.straße", "float", "NaN"),
    ],
    ids=lambda part: part if isinstance(part, str) and len(part) < 40 else "",
)
def test_what_cannot_be_written_is_refused_with_its_place(
    value: object, path: str | None, type_name: str | None, reason: str
) -> None:
    with pytest.raises(NotEncodable, match=reason) as caught:
        encode(value, path="result")
    assert path is None or caught.value.path == path
    assert type_name is None or caught.value.type_name == type_name
    str(caught.value).encode()  # can be printed and stored


def test_a_coroutine_as_a_result_says_that_it_was_not_awaited() -> None:
    coroutine = never_awaited()
    with pytest.raises(NotEncodable, match="not awaited"):
        encode(coroutine)
    coroutine.close()


def test_the_bound_on_depth_is_exact_and_what_passes_it_can_be_read() -> None:
    assert decode(encode(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    deep: Any = None
    for _ in range(MAX_DEPTH - 1):  # the list in the innermost box is the last level
        deep = Box(1, [], deep)
    assert round_trip(deep, Box[int]) == deep
    mixed: Any = ()
    for _ in range(MAX_DEPTH - 1):
        mixed = frozenset({mixed})
    encode(mixed)
    with pytest.raises(NotEncodable, match="200 levels"):
        encode(Box(1, [], deep))
    with pytest.raises(NotEncodable, match="200 levels"):
        encode(frozenset({frozenset({mixed})}))


def test_a_very_deep_place_is_shown_by_its_head_and_its_tail() -> None:
    with pytest.raises(NotEncodable) as caught:
        encode(nested(MAX_DEPTH + 1))
    assert len(caught.value.path) < 100


def test_deep_values_near_the_end_of_the_stack_are_refused_not_fatal() -> None:
    value = nested(MAX_DEPTH)
    outcomes = set()

    def at_depth(left: int) -> None:
        if left:
            at_depth(left - 1)
            return
        try:
            outcomes.add(len(encode(value)))
        except NotEncodable:
            outcomes.add(-1)

    for margin in range(20, 400, 40):
        with_room = sys.getrecursionlimit() - len(_frames()) - margin
        at_depth(with_room)
    assert outcomes <= {-1, 2 * MAX_DEPTH + 1}
    assert -1 in outcomes


def _frames() -> list[Any]:
    frame: types.FrameType | None = sys._getframe()
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


@pytest.mark.parametrize(
    "wide",
    [
        lambda value: [value, value],
        lambda value: (value, {"a": value, "b": [value]}),
        lambda value: Box(value, [value]),
        lambda value: frozenset({(value, 1), (value, 2)}),
        lambda value: [Model.model_construct(name="n", at=NOON), value, value],
    ],
)
def test_shared_parts_that_would_never_end_on_paper_are_too_large(wide: Callable[[Any], Any]) -> None:
    value: Any = ("leaf",)
    for _ in range(60):
        value = wide(value)
    with pytest.raises(PayloadTooLarge) as caught:
        encode(value, limit=1000)
    assert caught.value.size > 4 * caught.value.limit


@pytest.mark.parametrize("share", [lambda text: [text] * 10**5, lambda text: [{text: 1}] * 10**5])
def test_a_long_string_shared_often_is_never_written_out(share: Callable[[str], Any]) -> None:
    with pytest.raises(PayloadTooLarge):
        encode(share("x" * 10**6))


def test_the_limit_is_on_the_encoded_size_and_names_both() -> None:
    assert len(encode("x" * (DEFAULT_LIMIT - 2))) == DEFAULT_LIMIT
    with pytest.raises(PayloadTooLarge) as caught:
        encode("x" * (DEFAULT_LIMIT - 1), path="input.text")
    assert (caught.value.path, caught.value.size, caught.value.limit) == (
        "input.text",
        DEFAULT_LIMIT + 1,
        DEFAULT_LIMIT,
    )
    with pytest.raises(PayloadTooLarge) as caught:
        encode({"d": [Decimal(1)] * 10}, limit=40)
    assert caught.value.size == len(encode({"d": [Decimal(1)] * 10}))
