"""A workflow's input: bound to the body's parameters by name, through the codec and back."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrula.contracts.errors import ConfigurationError, InvalidInput, NotEncodable, PayloadTooLarge
from pyrula.contracts.values import InputSpec, bind_input

DAY = dt.date(2024, 5, 1)


@dataclass(frozen=True)
class User:
    name: str
    born: dt.date


async def order(ctx: Any, user: User, when: dt.date, *, count: int = 1, tags: set[str] = frozenset()) -> list[User]:  # type: ignore[assignment]
    return []


async def anything(ctx: Any, first: int = 0, **rest: dt.date) -> None: ...


async def untyped(ctx, a, b=2):  # type: ignore[no-untyped-def]
    return a


async def bare(ctx: Any) -> None: ...


def test_what_is_submitted_arrives_as_annotated() -> None:
    user = User("n", DAY)
    assert bind_input(order, {"user": user, "when": DAY, "tags": {"b", "a"}}) == {
        "user": user,
        "when": DAY,
        "tags": {"a", "b"},
    }
    as_json = {"when": "2024-05-01", "user": {"name": "n", "born": "2024-05-01"}, "count": 3}
    assert bind_input(order, as_json) == {"user": user, "when": DAY, "count": 3}


def test_nothing_is_an_empty_input() -> None:
    assert bind_input(bare, None) == bind_input(bare, {}) == {}
    assert InputSpec.of(bare).encode(None) == InputSpec.of(bare).encode({}) == b"{}"


def test_further_keys_go_to_the_bodys_own_keywords() -> None:
    assert bind_input(anything, {"x": DAY, "a-b": DAY}) == {"x": DAY, "a-b": DAY}
    with pytest.raises(InvalidInput, match=r"input\[\"a-b\"\]: expected date") as caught:
        bind_input(anything, {"a-b": 1})
    assert caught.value.field == "a-b"


def test_parameters_without_an_annotation_take_plain_json() -> None:
    assert bind_input(untyped, {"a": (DAY, 1)}) == {"a": ["2024-05-01", 1]}


@pytest.mark.parametrize(
    ("fn", "input", "field", "message"),
    [
        (order, {"user": User("n", DAY)}, "when", "workflow 'order', input.when: is missing"),
        (order, {}, None, "is missing"),
        (
            order,
            {"user": User("n", DAY), "when": DAY, "size": 1},
            "size",
            "input.size: no such parameter; .* user",
        ),
        (bare, {"x": 1}, "x", "workflow 'bare', input.x: no such parameter; the workflow takes: none"),
        (order, {"user": {"name": 1, "born": DAY}, "when": DAY}, "user", "input.user.name: expected str, found int"),
        (order, {"user": User("n", DAY), "when": DAY, "count": True}, "count", "input.count: expected int, found bool"),
        (order, {"user": User("n", DAY), "when": DAY, "ctx": 1}, "ctx", "input.ctx: no such parameter"),
        (anything, {"ctx": 1}, "ctx", "input.ctx: expected date"),
        (order, [1], None, "workflow 'order', input: expected dict, found list"),
        (order, "x", None, "expected dict, found str"),
    ],
)
def test_an_input_that_does_not_fit_names_workflow_and_parameter(
    fn: Callable[..., Any], input: Any, field: str | None, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        bind_input(fn, input)
    assert field is None or caught.value.field == field
    with pytest.raises(InvalidInput, match=message):
        InputSpec.of(fn).check(input)


def test_an_input_that_cannot_be_written_names_its_place() -> None:
    spec = InputSpec.of(order)
    with pytest.raises(NotEncodable) as caught:
        spec.encode({"user": {"e-mail": dt.datetime(2024, 1, 1)}})  # noqa: DTZ001 - the point of it
    assert caught.value.path == 'input.user["e-mail"]'
    with pytest.raises(PayloadTooLarge) as large:
        spec.encode({"user": "x" * 100}, limit=50)
    assert large.value.path == "input"


def test_a_recorded_input_is_read_from_its_bytes() -> None:
    spec = InputSpec.of(order, workflow="orders")
    data = spec.check({"when": DAY, "user": User("n", DAY)})
    assert data == b'{"user":{"born":"2024-05-01","name":"n"},"when":"2024-05-01"}'
    assert spec.decode(data) == {"when": DAY, "user": User("n", DAY)}
    for broken in (b"[]", b"nope", b"null"):
        with pytest.raises(InvalidInput, match="workflow 'orders', input: "):
            spec.decode(broken)


def test_a_spec_tells_what_the_body_takes_and_returns() -> None:
    spec = InputSpec.of(order)
    assert spec.workflow == "order"
    assert list(spec.hints) == ["user", "when", "count", "tags"]
    assert spec.required == {"user", "when"}
    assert not spec.open
    assert spec.result_annotation == list[User]
    assert InputSpec.of(anything).open


class Bodies:
    async def method(self, ctx: Any, day: dt.date) -> dt.date:
        return day


def test_a_body_may_be_a_method_a_partial_or_wrapped() -> None:
    @functools.wraps(order)
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        return await order(*args, **kwargs)

    assert bind_input(Bodies().method, {"day": "2024-05-01"}) == {"day": DAY}
    assert bind_input(functools.partial(Bodies().method, day=DAY), {}) == {}
    assert bind_input(functools.partial(anything, None), {"first": 1}, skip=0) == {"first": 1}
    assert bind_input(wrapped, {"user": User("n", DAY), "when": DAY})["user"] == User("n", DAY)
    assert bind_input(Bodies.method, {"day": "2024-05-01"}, skip=2) == {"day": DAY}


def test_a_signature_that_no_input_could_fill_is_refused_at_once() -> None:
    def no_context(*, a: int) -> None: ...

    def by_position(ctx: Any, a: int, /) -> None: ...

    with pytest.raises(ConfigurationError, match="must take its context"):
        InputSpec.of(no_context)
    with pytest.raises(ConfigurationError, match="'a' is positional-only"):
        InputSpec.of(by_position)


def test_what_a_checker_alone_knows_spoils_only_its_own_parameter() -> None:
    def body(ctx: Context, day: dt.date, other: NotThere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert bind_input(body, {"day": "2024-05-01", "other": [1]}) == {"day": DAY, "other": [1]}


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers(-9, 9) | st.none(), max_size=5))
def test_the_order_of_keys_does_not_change_the_bytes(input: dict[str, Any]) -> None:
    spec = InputSpec.of(lambda ctx, **rest: None)
    turned = dict(reversed(input.items()))
    assert spec.encode(input) == spec.encode(turned)
    assert spec.decode(spec.check(input)) == input
