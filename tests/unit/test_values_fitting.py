"""What the value codec reads on the way back: what does not fit, what a caller may also send, unions."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import (
    Any,
    Literal,
)
from uuid import UUID

import pytest

from pyrula.contracts._codec import reading, writing
from pyrula.contracts.errors import InvalidInput
from pyrula.contracts.values import decode, decode_json, encode
from tests.unit.values_samples import (
    DAY,
    ITEM,
    NOON,
    Cat,
    Colour,
    Dog,
    Flags,
    Guarded,
    Item,
    Kind,
    Model,
    Movie,
    NeedsMore,
    Point,
    round_trip,
)


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


def test_data_that_was_parsed_already_is_read_alike() -> None:
    assert decode_json(["2024-05-01"], list[dt.date]) == [DAY]
    with pytest.raises(InvalidInput, match=r"^result\[0\]: expected date"):
        decode_json([1], list[dt.date], path="result")


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


def test_classes_and_annotations_made_on_the_fly_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = 100
    monkeypatch.setattr(reading, "_KEPT", bound)
    monkeypatch.setattr(writing, "_HANDLERS_KEPT", bound)
    for number in range(3 * bound):
        assert decode(b"%d" % number, Literal[number]) == number
        made = dataclasses.make_dataclass("Made", [("n", int)])
        assert encode(made(1)) == b'{"n":1}'
        assert decode(b'{"n":1}', made) == made(1)
    kept = (len(reading._BY_VALUE), len(reading._BY_IDENTITY), len(reading._RECORDS), len(writing._HANDLERS))
    assert max(kept) <= bound
    assert round_trip(ITEM, Item) == ITEM
