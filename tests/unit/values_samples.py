"""The classes and values that the codec's tests share."""

from __future__ import annotations

import datetime as dt
import enum
import json
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    TypedDict,
    TypeVar,
)
from uuid import UUID

import pydantic

from pyrula.contracts.values import decode, encode

T = TypeVar("T")


Bounded = TypeVar("Bounded", bound=dt.date)


Constrained = TypeVar("Constrained", int, dt.date)


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


class Rows(list[int]):
    """A list by another name."""


class Unwritable(enum.Enum):
    FINE = 1
    NEVER = object()


class Model(pydantic.BaseModel):
    name: str
    at: dt.datetime
    tags: set[str] = set()
    prices: tuple[Decimal, ...] = ()
    wait: dt.timedelta = dt.timedelta(0)
    point: Point | None = None
    alias: int = pydantic.Field(default=0, alias="Alias")
    ratio: float = 0.0


NOON = dt.datetime(2024, 5, 1, 12, 0, 0, 1, tzinfo=dt.UTC)


DAY = dt.date(2024, 5, 1)


ID = UUID("12345678-1234-5678-1234-567812345678")


ITEM = Item("a", Decimal("1.50"), frozenset({"y", "x"}), Item("b", Decimal("1E+3")))


def round_trip(value: object, annotation: Any) -> Any:
    data = encode(value)
    assert json.loads(data) is not ...  # any JSON parser reads it
    return decode(data, annotation)
