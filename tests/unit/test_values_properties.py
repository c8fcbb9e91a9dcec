"""The value codec over generated values: identity over every annotation, and no value that it gets wrong in silence."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
import re
import sys
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyrula.contracts.errors import InvalidInput, NotEncodable, PayloadTooLarge
from pyrula.contracts.values import MAX_DEPTH, decode, encode, normalize

T = TypeVar("T")
Case = tuple[Any, st.SearchStrategy[Any]]


class Shade(Enum):
    LIGHT = 1
    DARK = 1.5
    MIXED = ("a", dt.date(2024, 1, 1))


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


class Word(StrEnum):
    YES = "yes"
    NO = "no"


class Pair(NamedTuple):
    left: dt.timedelta
    right: Shade = Shade.DARK


class Entry(TypedDict, total=False):
    price: Decimal
    raw: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Record(Generic[T]):
    number: int
    content: T
    at: dt.datetime | None = None
    shades: frozenset[Shade] = frozenset()


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ZONES = st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=-5)), ZoneInfo("Europe/Berlin")])
# In UTC, as they come back; a day off both ends, for there is no year 0 and no year 10000. UTC knows no fold.
MOMENTS = st.datetimes(
    dt.datetime.min + dt.timedelta(days=1),  # noqa: DTZ901 - bounds of the strategy, which adds the zone
    dt.datetime.max - dt.timedelta(days=1),  # noqa: DTZ901
    timezones=ZONES,
).map(lambda at: at.astimezone(dt.UTC).replace(fold=0))
HASHABLE: list[Case] = [
    (None, st.none()),
    (bool, st.booleans()),
    (int, st.integers(-(2**63), 2**64 - 1)),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (str, TEXT),
    (dt.datetime, MOMENTS),
    (dt.date, st.dates()),
    (dt.time, st.times().map(lambda at: at.replace(fold=0))),
    (dt.timedelta, st.timedeltas()),
    (UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (bytes, st.binary(max_size=8)),
    (Shade, st.sampled_from(Shade)),
    (Size, st.sampled_from(Size)),
    (Word, st.sampled_from(Word)),
    (Literal["a", 1, True], st.sampled_from(["a", 1, True])),
    (Pair, st.builds(Pair, st.timedeltas(), st.sampled_from(Shade))),
]


def of(kind: Any, *arguments: Any) -> Any:
    """`kind[arguments]`, with arguments that are known at run time only."""
    return kind[arguments]


def wider(inner: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
    """Annotations around an annotation, each with the values that it takes."""

    def around(case: Case) -> st.SearchStrategy[Case]:
        annotation, values = case
        cases: list[Case] = [
            (of(list, annotation), st.lists(values, max_size=3)),
            (of(tuple, annotation, ...), st.lists(values, max_size=3).map(tuple)),
            (of(tuple, annotation, int), st.tuples(values, st.integers(0, 9))),
            (of(dict, str, annotation), st.dictionaries(TEXT, values, max_size=3)),
            (of(dict, Word, annotation), st.dictionaries(st.sampled_from(Word), values, max_size=2)),
            (
                of(Record, annotation),
                st.builds(Record, st.integers(0, 9), values, st.none(), st.frozensets(st.sampled_from(Shade))),
            ),
            (
                Entry,
                st.fixed_dictionaries({}, optional={"price": st.just(Decimal("1.0")), "raw": st.binary(max_size=3)}),
            ),
        ]
        if annotation is not None:
            cases.append((annotation | None, st.none() | values))
        return st.sampled_from(cases)

    return inner.flatmap(around)


SETS: list[Case] = [
    *((of(set, annotation), st.sets(values, max_size=4)) for annotation, values in HASHABLE),
    *((of(frozenset, annotation), st.frozensets(values, max_size=4)) for annotation, values in HASHABLE),
]
ANNOTATED = st.recursive(st.sampled_from(HASHABLE + SETS), wider, max_leaves=4)
TYPED = ANNOTATED.flatmap(lambda case: st.tuples(st.just(case[0]), case[1]))


def exact(value: object) -> object:
    """A form in which only what is the same in type, sign, zeros and content is equal."""
    if isinstance(value, dict):
        return type(value), {exact(key): exact(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return type(value), sorted(map(repr, map(exact, value)))
    if isinstance(value, list | tuple):
        return type(value), tuple(map(exact, value))
    if dataclasses.is_dataclass(value):
        return type(value), tuple(exact(getattr(value, each.name)) for each in dataclasses.fields(value))
    return type(value), repr(value)


@settings(max_examples=100)
@given(TYPED)
def test_every_annotated_value_comes_back_as_it_went_in(case: tuple[Any, Any]) -> None:
    annotation, value = case
    data = encode(value)
    assert repr(exact(decode(data, annotation))) == repr(exact(value))
    live_data, live = normalize(value, annotation)
    assert live_data == data
    assert repr(exact(live)) == repr(exact(value))


@settings(max_examples=100)
@given(TYPED)
def test_what_was_read_is_written_as_it_was(case: tuple[Any, Any]) -> None:
    annotation, value = case
    data = encode(value, canonical=True)
    assert encode(decode(data, annotation), canonical=True) == data
    assert encode(json.loads(data), canonical=True) == data


# --- any object at all ----------------------------------------------------------------------


class OddInt(int):
    pass


class OddStr(str):
    __slots__ = ()


class OddDict(dict[Any, Any]):
    pass


class OddFloat(float):
    pass


@dataclasses.dataclass
class Holder:
    content: Any


class Bad(Exception):
    """The model below refuses the value."""


def model(value: Any, room: int = MAX_DEPTH) -> Any:
    """What the codec must make of a value, said slowly and by the book; a set in the order of its encoded items."""
    if isinstance(value, Enum):
        return model(value.value, room)
    if isinstance(value, Holder | dict | list | tuple | set | frozenset):
        if room == 0:
            raise Bad
        return model_of_container(value, room - 1)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, str) and not any("\ud800" <= each <= "\udfff" for each in value):
        return str(value)
    raise Bad


def model_of_container(value: Any, room: int) -> Any:
    """As `model`, for what holds other values."""
    if isinstance(value, Holder):
        return {"content": model(value.content, room)}
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise Bad
        return {model(key): model(item, room) for key, item in value.items()}
    items = [model(item, room) for item in value]
    return sorted(items, key=orjson.dumps) if isinstance(value, set | frozenset) else items


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1]),
    st.floats(),
    TEXT,
    st.sampled_from(["null", "\ud800", "a\udfffb", "[", "{", '"']),
    st.sampled_from([OddInt(3), OddStr("null"), OddFloat("nan"), OddFloat(2.5), Shade.DARK, Word.YES, object(), 1j]),
)
KEYS = st.one_of(TEXT, st.sampled_from(["e-mail", "\ud800", OddStr("k"), Word.NO, 1, None, (1, 2), Size.LARGE, b"k"]))
HASHABLES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3), max_leaves=5
)
ANYTHING = st.recursive(
    SCALARS | HASHABLES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, min_size=17, max_size=20),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
        st.dictionaries(KEYS, inner, max_size=2).map(OddDict),
        st.builds(Holder, inner),
        st.sets(HASHABLES, max_size=3),
        inner.map(lambda value: [value, value]),
    ),
    max_leaves=12,
)


@settings(max_examples=200)
@given(ANYTHING)
@example([1.0] * 20 + [math.nan])
@example([None] * 20 + [math.nan])
@example(({"null": None}, frozenset({(1, math.inf)})))
def test_any_object_is_written_by_the_book_or_refused(value: Any) -> None:
    try:
        expected = model(value)
    except Bad:
        with pytest.raises(NotEncodable):
            encode(value)
        with pytest.raises(NotEncodable):
            normalize(value)
        return
    data = encode(value)
    assert repr(sorted_sets(json.loads(data), value)) == repr(expected)
    assert repr(orjson.loads(data)) == repr(normalize(value)[1])


def sorted_sets(read: Any, value: Any) -> Any:
    """What was read, with the arrays that were sets in the model's order."""
    if isinstance(value, Holder):
        return {"content": sorted_sets(read["content"], value.content)}
    if isinstance(value, dict):
        return {key: sorted_sets(item, value[origin]) for (key, item), origin in zip(read.items(), value, strict=True)}
    if isinstance(value, set | frozenset):
        return sorted(read, key=orjson.dumps)
    if isinstance(value, list | tuple):
        return [sorted_sets(item, origin) for item, origin in zip(read, value, strict=True)]
    return read


PLAIN_AND_BAD = st.recursive(
    st.one_of(st.integers(0, 9), TEXT, st.just(math.nan), st.just(2**64), st.just("\ud800"), st.just(1j)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4) | st.builds(Holder, inner),
    max_leaves=10,
)


@given(PLAIN_AND_BAD)
def test_the_path_of_a_refusal_leads_to_what_was_refused(value: Any) -> None:
    refused = refusal(value)
    if refused is None:
        model(value)
        return
    found = follow(value, refused.path.removeprefix("it"))
    assert type(found).__name__ == refused.type_name
    with pytest.raises(Bad):
        model(found)


def refusal(value: Any) -> NotEncodable | None:
    """The error that `encode` raises, if it does."""
    try:
        encode(value, path="it")
    except NotEncodable as error:
        return error
    return None


def follow(value: Any, path: str) -> Any:
    """Walk a path as errors show it."""
    while path:
        if match := re.match(r"\[(\d+)\]", path):
            value = value[int(match[1])]
        elif match := re.match(r'\[("(?:[^"\\]|\\.)*")\]', path):
            value = value[json.loads(match[1])]
        else:
            match = re.match(r"\.(\w+)", path)
            assert match, path
            value = getattr(value, match[1]) if isinstance(value, Holder) else value[match[1]]
        path = path[match.end() :]
    return value


@settings(max_examples=50)
@given(st.integers(1, 230), st.data())
def test_depth_is_counted_alike_through_every_kind_of_container(levels: int, data: st.DataObject) -> None:
    wrappers = st.sampled_from([lambda v: [v], lambda v: (v,), lambda v: {"a": v}, Holder, lambda v: OddDict(a=v)])
    value: Any = 1
    for wrap in data.draw(st.lists(wrappers, min_size=levels, max_size=levels)):
        value = wrap(value)
    if levels <= MAX_DEPTH:
        encode(value)
    else:
        with pytest.raises(NotEncodable, match="levels"):
            encode(value)


SHARING = st.lists(
    st.sampled_from(
        [
            lambda v: [v, v],
            lambda v: (v, v, v),
            lambda v: {"a": v, "b": v},
            lambda v: Holder([v, v]),
            lambda v: frozenset({(v, 1), (v, 2)}),
            lambda v: [v] * 20,
        ]
    ),
    min_size=40,
    max_size=80,
)


@settings(max_examples=40)
@given(SHARING)
def test_sharing_never_makes_it_hang(wrappers: list[Any]) -> None:
    value: Any = ("leaf",)
    for wrap in wrappers:
        try:
            value = wrap(value)
        except TypeError:  # a list in a set
            value = [value, value]
    with pytest.raises(PayloadTooLarge):
        encode(value, limit=4096)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100)
@given(ANNOTATED, JSON)
def test_any_json_fits_an_annotation_or_is_invalid_input(case: Case, value: Any) -> None:
    data = encode(value)
    try:
        found = decode(data, case[0])
    except InvalidInput:
        return
    encode(found)


def test_the_interpreter_can_still_recurse_as_deep_as_the_bound_needs() -> None:
    assert sys.getrecursionlimit() >= 4 * MAX_DEPTH
