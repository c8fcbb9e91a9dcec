"""The value codec by example: what goes in, what comes out; and what functions say that they return."""

from __future__ import annotations

import collections
import datetime as dt
import functools
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from decimal import Decimal
from typing import (
    Annotated,
    Any,
    Literal,
    Optional,
    Union,
)
from uuid import UUID
from zoneinfo import ZoneInfo

import orjson
import pytest

from pyrula.contracts.errors import InvalidInput
from pyrula.contracts.values import decode, encode, normalize, return_annotation
from tests.unit.values_samples import (
    DAY,
    ID,
    ITEM,
    NOON,
    Bounded,
    Box,
    Cat,
    Colour,
    Constrained,
    DateBox,
    Dog,
    Flags,
    Item,
    Kind,
    Level,
    Model,
    Movie,
    Order,
    Plain,
    Point,
    Rows,
    Unwritable,
    UserId,
    round_trip,
)


def name_of(value: object) -> str:
    """A parameter's name in the report, the same in every process; the repr of a value that holds a set is not."""
    return value if isinstance(value, str) else type(value).__name__


@pytest.mark.parametrize(
    ("value", "annotation", "text"),
    [
        (None, None, "null"),
        (True, bool, "true"),
        (42, int, "42"),
        (2**64 - 1, int, "18446744073709551615"),
        (-(2**63), int, "-9223372036854775808"),
        (1.0, float, "1.0"),
        (-0.0, float, "-0.0"),
        ("é\u2028\0", str, '"é\u2028\\u0000"'),
        (NOON, dt.datetime, '"2024-05-01T12:00:00.000001Z"'),
        (dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime, '"0001-01-01T00:00:00.000000Z"'),
        (DAY, dt.date, '"2024-05-01"'),
        (dt.time(1, 2, 3, 4), dt.time, '"01:02:03.000004"'),
        (dt.time(1, tzinfo=dt.timezone(dt.timedelta(hours=2))), dt.time, '"01:00:00.000000+02:00"'),
        (dt.timedelta(days=1, seconds=3600, microseconds=1), dt.timedelta, '"P1DT3600.000001S"'),
        (dt.timedelta(microseconds=-1), dt.timedelta, '"-P0DT0.000001S"'),
        (dt.timedelta.min, dt.timedelta, '"-P999999999DT0S"'),
        (dt.timedelta.max, dt.timedelta, '"P999999999DT86399.999999S"'),
        (ID, UUID, '"12345678-1234-5678-1234-567812345678"'),
        (Decimal("1.500"), Decimal, '"1.500"'),
        (Decimal("-0E-7"), Decimal, '"-0E-7"'),
        (b"\x00\xff", bytes, '"AP8="'),
        (b"", bytes, '""'),
        (Colour.RED, Colour, '"red"'),
        (Colour.ONE, Colour, "1"),
        (Colour.PAIR, Colour, '[1,"x"]'),
        (Colour.DAY, Colour, '"2024-05-01"'),
        (Colour.NOTHING, Colour, "null"),
        (Level.HIGH, Level, "2"),
        (Flags.A | Flags.B, Flags, "3"),
        (Kind.CAT, Kind, '"cat"'),
        ((1, "a"), tuple[int, str], '[1,"a"]'),
        ((), tuple[()], "[]"),
        ((DAY, DAY), tuple[dt.date, ...], '["2024-05-01","2024-05-01"]'),
        ((1, 2), tuple, "[1,2]"),
        ({3, 1, 2}, set[int], "[1,2,3]"),
        (frozenset({"b", "a"}), frozenset[str], '["a","b"]'),
        ({DAY, None}, set[dt.date | None], '["2024-05-01",null]'),
        ({"k": [DAY]}, dict[str, list[dt.date]], '{"k":["2024-05-01"]}'),
        ({Kind.DOG: 1}, dict[Kind, int], '{"dog":1}'),
        ({"k": DAY}, Mapping[str, dt.date], '{"k":"2024-05-01"}'),
        ([b"a"], Sequence[bytes], '["YQ=="]'),
        (collections.OrderedDict(b=1, a=2), collections.OrderedDict[str, int], '{"b":1,"a":2}'),
        (collections.Counter("aab"), collections.Counter[str], '{"a":2,"b":1}'),
        (Point(1, NOON), Point, '[1,"2024-05-01T12:00:00.000001Z","none"]'),
        ({"title": "M", "released": DAY}, Movie, '{"title":"M","released":"2024-05-01"}'),
        (Plain("x"), Plain, '"x"'),
        (UserId(3), UserId, "3"),
        (3, Annotated[int, ["unhashable"]], "3"),
        ("b", Literal["a", "b"], '"b"'),
        (1, Literal[True, 1], "1"),
        (Colour.DAY, Literal[Colour.DAY, "x"], '"2024-05-01"'),
        (Unwritable.FINE, Unwritable, "1"),
        (DAY, Bounded, '"2024-05-01"'),
        (DAY, Constrained, '"2024-05-01"'),
        (Rows([1]), Rows, "[1]"),
        (Box([DAY]), Box[list[dt.date]], None),
        (Box(Box(DAY)), Box[Box[dt.date]], None),
        (UserId(1), UserId | dt.date | None, "1"),
        (None, Optional[int], "null"),  # noqa: UP045 - both spellings are an author's to choose
        (DAY, Union[int, dt.date], '"2024-05-01"'),  # noqa: UP007
        ([1, DAY], list[int | dt.date], '[1,"2024-05-01"]'),
        (Dog("d"), Cat | Dog, '{"name":"d","kind":"dog"}'),
        (Box(DAY, [DAY], Box(DAY)), Box[dt.date], None),
        (DateBox(DAY, [DAY], note="n"), DateBox, None),
        (Box(Dog("d")), Box[Cat | Dog], None),
        (Box([1]), Box, '{"content":[1],"more":[],"inner":null}'),
        (ITEM, Item, None),
        (Order(ID, NOON, [ITEM], Colour.PAIR), Order, None),
        (
            Model(name="n", at=NOON, tags={"a"}, prices=(Decimal("1.0"),), point=Point(1, NOON), Alias=3),
            Model,
            None,
        ),
        ([Model(name="n", at=NOON)], list[Model], None),
    ],
    ids=name_of,
)
def test_what_went_in_comes_back(value: object, annotation: Any, text: str | None) -> None:
    back = round_trip(value, annotation)
    assert back == value
    assert type(back) is type(value)
    if text is not None:
        assert encode(value).decode() == text
    data, live = normalize(value, annotation)
    assert (data, live) == (encode(value), back)


def test_a_decimal_keeps_its_trailing_zeros_and_its_exponent() -> None:
    for text in ("1.500", "1E+3", "-0", "0E-10", "123456789012345678901234567890.123"):
        assert str(round_trip(Decimal(text), Decimal)) == text


def test_a_moment_in_another_zone_comes_back_as_the_same_moment_in_utc() -> None:
    local = dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    back = round_trip(local, dt.datetime)
    assert back == local.astimezone(dt.UTC)
    assert back.tzinfo is dt.UTC


def test_without_an_annotation_values_stay_plain_json() -> None:
    value = {"at": NOON, "pair": (1, 2), "item": Dog("d")}
    assert decode(encode(value)) == {
        "at": "2024-05-01T12:00:00.000001Z",
        "pair": [1, 2],
        "item": {"name": "d", "kind": "dog"},
    }


@pytest.mark.parametrize("value", [None, True, 3, 2.5, "text"])
def test_a_scalar_is_its_own_normal_form(value: object) -> None:
    assert normalize(value) == (encode(value), value)


def test_normalize_shares_nothing_with_the_value() -> None:
    value = {"a": [1]}
    _, live = normalize(value)
    value["a"].append(2)
    assert live == {"a": [1]}


def test_a_result_that_does_not_fit_its_annotation_is_refused_live() -> None:
    with pytest.raises(InvalidInput, match=r"^result\.a: expected int, found str$") as caught:
        normalize({"a": "x"}, dict[str, int])
    assert caught.value.field == "a"


def test_sets_are_written_in_one_order_whatever_they_hold() -> None:
    items: list[Any] = [10, 9, "b", "a", None, 2.5, True, (3, 1), (2,), frozenset({2, 1}), DAY]
    texts = {encode(set(items)), encode(set(items[5:] + items[:5])), encode(frozenset(items[3:] + items[:3]))}
    assert len(texts) == 1
    assert encode({10, 9, 100}) == b"[9,10,100]"


def test_sets_in_a_model_are_written_in_order_too() -> None:
    tags = sorted(f"tag {number}" for number in range(30))
    assert orjson.loads(encode(Model(name="n", at=NOON, tags=set(tags))))["tags"] == tags


def test_the_order_of_a_set_does_not_depend_on_the_process() -> None:
    code = "from pyrula.contracts.values import encode; print(encode({'a', 'b', 'c', ('d', 1), ('e', 2), None}))"
    texts = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def test_pydantic_is_not_imported_for_those_who_do_not_use_it() -> None:
    code = (
        "import sys; from pyrula.contracts.values import decode, encode; from datetime import date\n"
        "assert decode(encode([date.min]), list[date]) == [date.min]\n"
        "assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_canonical_bytes_do_not_depend_on_the_order_of_keys() -> None:
    one, other = (
        {"b": {"y": 1, "x": 2}, "a": Box({"d": 1, "c": 2})},
        {"a": Box({"c": 2, "d": 1}), "b": {"x": 2, "y": 1}},
    )
    assert encode(one) != encode(other)
    assert encode(one, canonical=True) == encode(other, canonical=True)


# --- the return annotation ------------------------------------------------------------------


class Service:
    def load(self) -> list[Item]:
        return []

    async def fetch(self) -> Item:
        return ITEM

    def __call__(self) -> dict[str, Item]:
        return {}


def plain() -> Item:
    return ITEM


def awaiting() -> Awaitable[Item]:
    raise NotImplementedError


def calling() -> Coroutine[Any, Any, Item]:
    raise NotImplementedError


def unresolvable() -> NotThere:  # type: ignore[name-defined]  # noqa: F821 - the point of it
    return None


def half_resolvable(_: NotThere) -> Item:  # type: ignore[name-defined]  # noqa: F821 - the point of it
    return ITEM


@functools.wraps(plain)
def wrapping(*args: Any) -> Any:
    return plain(*args)


@functools.lru_cache
def cached() -> tuple[int, ...]:
    return ()


@pytest.mark.parametrize(
    ("fn", "annotation"),
    [
        (plain, Item),
        (awaiting, Item),
        (calling, Item),
        (Service().load, list[Item]),
        (Service.load, list[Item]),
        (Service().fetch, Item),
        (Service(), dict[str, Item]),
        (functools.partial(Service().load), list[Item]),
        (functools.partial(functools.partial(Service())), dict[str, Item]),
        (wrapping, Item),
        (cached, tuple[int, ...]),
        (half_resolvable, Item),
        (unresolvable, Any),
        (lambda: 1, Any),
        (len, Any),
        ("".join, Any),
        (Item, Item),
        (int, int),
    ],
)
def test_the_return_annotation_of_anything_that_can_be_called(fn: Callable[..., Any], annotation: Any) -> None:
    assert return_annotation(fn) == annotation
    assert return_annotation(fn) == annotation
