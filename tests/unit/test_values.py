"""The value codec by example: what goes in, what comes out, what is refused and where."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import functools
import json
import math
import os
import subprocess
import sys
import types
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    TypedDict,
    TypeVar,
    Union,
)
from uuid import UUID
from zoneinfo import ZoneInfo

import orjson
import pydantic
import pytest

from pyrula.contracts.errors import InvalidInput, NotEncodable, PayloadTooLarge
from pyrula.contracts.values import DEFAULT_LIMIT, MAX_DEPTH, decode, encode, normalize, return_annotation

T = TypeVar("T")
UserId = NewType("UserId", int)


class Colour(enum.Enum):
    """Values of several kinds, some of which equal each other in Python."""

    RED = "red"
    ONE = 1
    PAIR = (1, "x")
    DAY = dt.date(2024, 5, 1)
    NOTHING = None


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Flags(enum.Flag):
    A = 1
    B = 2


class Kind(enum.StrEnum):
    CAT = "cat"
    DOG = "dog"

    @classmethod
    def _missing_(cls, value: object) -> Kind | None:
        return next((kind for kind in cls if isinstance(value, str) and kind.value == value.lower()), None)


class Alike(enum.Enum):
    TEXT = "1"
    NUMBER = Decimal(1)


class Point(NamedTuple):
    x: int
    when: dt.datetime
    label: str = "none"


class Movie(TypedDict):
    title: str
    released: dt.date
    stars: NotRequired[int]


@dataclass(frozen=True, slots=True)
class Item:
    sku: str
    price: Decimal
    tags: frozenset[str] = frozenset()
    parent: Item | None = None


@dataclass
class Order:
    id: UUID
    at: dt.datetime
    items: list[Item]
    state: Colour = Colour.RED
    total: Decimal = field(init=False, default=Decimal(0))

    def __post_init__(self) -> None:
        self.total = sum((item.price for item in self.items), Decimal(0))


@dataclass
class Box(Generic[T]):
    content: T
    more: list[T] = field(default_factory=list)
    inner: Box[T] | None = None


@dataclass
class DateBox(Box[dt.date]):
    note: str = ""


@dataclass
class Guarded:
    amount: int

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise ValueError("amount must not be negative")


@dataclass
class NeedsMore:
    a: int
    b: InitVar[int]


@dataclass
class Cat:
    name: str
    kind: Literal["cat"] = "cat"


@dataclass
class Dog:
    name: str
    kind: Literal["dog"] = "dog"


class Money(int):
    """An int that remembers its currency; written as an int it would forget it."""

    currency: str


class Slotted(str):
    __slots__ = ("extra",)


class Plain(str):
    __slots__ = ()


class Model(pydantic.BaseModel):
    name: str
    at: dt.datetime
    tags: set[str] = set()
    prices: tuple[Decimal, ...] = ()
    wait: dt.timedelta = dt.timedelta(0)
    point: Point | None = None
    alias: int = pydantic.Field(default=0, alias="Alias")
    ratio: float = 0.0


def round_trip(value: object, annotation: Any) -> Any:
    data = encode(value)
    assert json.loads(data) is not ...  # any JSON parser reads it
    return decode(data, annotation)


NOON = dt.datetime(2024, 5, 1, 12, 0, 0, 1, tzinfo=dt.UTC)
DAY = dt.date(2024, 5, 1)
ID = UUID("12345678-1234-5678-1234-567812345678")
ITEM = Item("a", Decimal("1.50"), frozenset({"y", "x"}), Item("b", Decimal("1E+3")))


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
            Model(name="n", at=NOON, tags={"b", "a"}, prices=(Decimal("1.0"),), point=Point(1, NOON), Alias=3),
            Model,
            None,
        ),
        ([Model(name="n", at=NOON)], list[Model], None),
    ],
    ids=repr,
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


# --- what is refused on the way out ---------------------------------------------------------


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
        (cyclic_object(), "result.content.box", f"{__name__}.Box", "contains itself"),
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
        ([money()], "result[0]", f"{__name__}.Money", "would be lost"),
        ({"s": slotted()}, "result.s", f"{__name__}.Slotted", "would be lost"),
        ([Alike.TEXT], "result[0]", f"{__name__}.Alike", "written alike"),
        (
            {Kind.CAT: 1, Plain("dog"): 2, "x": Raising.__new__(Raising)},
            "result.x",
            f"{__name__}.Raising",
            "ZeroDivision",
        ),
        (Liar(a=1), "result", f"{__name__}.Liar", "alike"),
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


# --- what does not fit on the way back ------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "annotation", "message"),
    [
        ("true", int, "value: expected int, found bool"),
        ("3.0", int, "value: expected int, found float"),
        ("1", bool, "value: expected bool, found int"),
        ("1", str, "value: expected str, found int"),
        ("null", int, "value: expected int, found None"),
        ("0", None, "value: expected None, found int"),
        ('"x"', float, "value: expected float, found str"),
        ("[1]", dict[str, int], "value: expected dict, found list"),
        ('{"a":[1,"x"]}', dict[str, list[int]], r"value\.a\[1\]: expected int, found str"),
        ("[1,2]", tuple[int], "value: expected 1 items, found 2"),
        ("[1]", tuple[()], "value: expected 0 items, found 1"),
        ('"2024-05-01T00:00:00"', dt.datetime, "value: expected datetime with an offset"),
        ('"2024-05-01T00:00:00Z"', dt.date, "value: expected date"),
        ('"P1M"', dt.timedelta, "value: expected timedelta"),
        ('"P"', dt.timedelta, "value: expected timedelta"),
        ('"PT"', dt.timedelta, "value: expected timedelta"),
        ('"P999999999DT90000S"', dt.timedelta, "value: expected timedelta"),
        ("1.5", Decimal, "value: expected Decimal as a str, found float"),
        ('"NaN"', Decimal, "value: expected Decimal"),
        ('"1,5"', Decimal, "value: expected Decimal"),
        ('"a"', bytes, "value: expected bytes"),
        ('"YQ==junk"', bytes, "value: expected bytes"),
        ('"x"', UUID, "value: expected UUID"),
        ('"blue"', Colour, "value: expected a value of"),
        ("1.0", Colour, "value: expected a value of"),
        ("8", Flags, "value: expected a value of"),
        ("true", Flags, "value: expected a value of"),
        ('"bird"', Kind, "value: expected a value of"),
        ('"c"', Literal["a", "b"], "value: expected one of 'a', 'b'"),
        ("1", Literal[True], "value: expected one of True"),
        ('{"sku":"a"}', Item, "value.price: is missing"),
        ('{"sku":"a","price":"1","colour":1}', Item, "value.colour: .*has no such field"),
        ('{"sku":"a","price":"1","parent":{"sku":1,"price":"1"}}', Item, "value.parent.sku: expected str, found int"),
        ('{"amount":-1}', Guarded, "value: expected .*Guarded, which refused it: ValueError: amount must not"),
        ('{"a":1}', NeedsMore, "value: expected .*NeedsMore, which refused it"),
        ('{"title":"t"}', Movie, "value.released: is missing"),
        ('{"title":"t","released":"2024-05-01","x":1}', Movie, "value.x: .*has no such field"),
        ("[1]", Point, "value: expected .*Point with 3 items, found 1"),
        ('[1,"x"]', Point, r"value\[1\]: expected datetime"),
        ('"x"', int | dt.date, "value: expected date as a str such as"),
        ("[]", int | dt.date | Decimal, r"value: expected int \| date \| Decimal, found list"),
        ('{"name":1,"kind":"dog"}', Cat | Dog, "value.(name: expected str, found int|kind: .*)"),
        ("[[1]]", set[list[int]], "value: expected set, which cannot be made of it"),
        ('{"a":1}', dict[int, int], r"value\.a: expected int, found str"),
        ('{"cat":1,"CAT":2}', dict[Kind, int], "value: two of its keys are read alike"),
        ("{}", Path, "value: the annotation Path names no type"),
        ("{}", Iterator[int], "value: the annotation .*Iterator.* names no type"),
        ('{"name":"n","at":"x"}', Model, "value.at: does not fit Model"),
        ('{"name":"n","at":"2024-05-01T00:00:00Z","point":[1]}', Model, "value.point"),
        ("nope", Any, "value: not JSON"),
        ('"\\ud800"', str, "value: not JSON"),
        ("", Any, "value: not JSON"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(text: str, annotation: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match="^" + message):
        decode(text.encode(), annotation)


def test_the_field_is_the_first_step_below_the_value() -> None:
    with pytest.raises(InvalidInput) as caught:
        decode(b'{"user":{"tags":[1]}}', dict[str, dict[str, list[str]]], path="input")
    assert caught.value.field == "user"
    assert str(caught.value).startswith("input.user.tags[0]: ")
    with pytest.raises(InvalidInput) as caught:
        decode(b"1", str)
    assert caught.value.field is None


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("3", float, 3.0),
        ("3", int | float, 3),
        ("3", float | None, 3.0),
        ("3", Decimal, Decimal(3)),
        ('"2024-05-01"', str | dt.date, "2024-05-01"),
        ('"2024-05-01"', dt.date | str, "2024-05-01"),
        ('"2024-05-01T12:00:00+02:00"', dt.datetime, dt.datetime(2024, 5, 1, 10, tzinfo=dt.UTC)),
        ('"P1W2DT3H4M5.5S"', dt.timedelta, dt.timedelta(days=9, hours=3, minutes=4, seconds=5.5)),
        ('"DOG"', Kind, Kind.DOG),
        ('{"sku":"a","price":2}', Item, Item("a", Decimal(2))),
        ('{"name":"x"}', Cat | Dog, Cat("x")),
        ('{"name":"x"}', Dog | Cat, Dog("x")),
        ('{"name":"x"}', Dog | dict[str, Any], Dog("x")),
        ('{"nom":"x"}', Dog | dict[str, Any], {"nom": "x"}),
        ('{"name":"x"}', dict[str, Any] | Dog, {"name": "x"}),
        ('["x",1]', list[Any], ["x", 1]),
        ("[[1]]", object, [[1]]),
        ('[1,"2024-05-01T12:00:00.000001Z"]', Point, Point(1, NOON)),
        ('{"name":"n","at":"2024-05-01T12:00:00.000001Z"}', Model | None, Model(name="n", at=NOON)),
    ],
)
def test_what_a_caller_may_also_send(text: str, annotation: Any, expected: object) -> None:
    found = decode(text.encode(), annotation)
    assert found == expected
    assert type(found) is type(expected)


def test_unions_of_equal_members_keep_their_own_order() -> None:
    one, other = Cat | Dog, Dog | Cat
    assert one == other
    assert [type(decode(b'{"name":"x"}', union)) for union in (one, other, one, other)] == [Cat, Dog, Cat, Dog]
    assert type(decode(b'[{"name":"x"}]', list[Cat | Dog])[0]) is Cat
    assert type(decode(b'[{"name":"x"}]', list[Dog | Cat])[0]) is Dog


def test_a_class_whose_annotations_are_local_is_read_as_far_as_they_resolve() -> None:
    @dataclass
    class Inner:
        day: dt.date

    @dataclass
    class Outer:
        day: dt.date
        inner: Inner

    with pytest.raises(InvalidInput, match=r"value\.inner: the annotation 'Inner' cannot be resolved"):
        decode(b'{"day":"2024-05-01","inner":{}}', Outer)
    assert decode(b'{"day":"2024-05-01"}', Inner) == Inner(DAY)


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
