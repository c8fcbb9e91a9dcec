"""An error as a record, and back: whatever the error is like, it can be written and read again."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from pyrula.actors.core.failures import describe, step_failed
from pyrula.contracts.errors import StepFailed, VersionSkew


class Shop:
    """Holds a nested class, so that qualified names are told from names."""

    class SoldOut(LookupError):
        """An author's own error."""


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text today")


class Bottomless(Exception):
    def __str__(self) -> str:
        return str(self)


def through(error: BaseException, **options: Any) -> dict[str, Any]:
    """Described, written, read."""
    described: dict[str, Any] = orjson.loads(orjson.dumps(describe(error, **options)))
    return described


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_a_failure_knows_what_its_error_was() -> None:
    failure = step_failed("pay", "pay#2", {"error": through(raised(Shop.SoldOut("none left"))), "attempts": 3})
    assert isinstance(failure, StepFailed)
    assert (failure.step_id, failure.key, failure.attempts) == ("pay", "pay#2", 3)
    assert failure.message == "none left"
    assert failure.error_type.endswith("Shop.SoldOut")
    assert failure.matches(Shop.SoldOut)
    assert failure.matches(LookupError)
    assert failure.matches(Exception)
    assert not failure.matches(KeyError)
    assert "none left" in str(failure)
    assert "3 tries" in str(failure)


def test_builtins_are_named_plainly() -> None:
    assert through(ValueError("x"))["type"] == "ValueError"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("\ud800 half a pair"),
        ValueError("x" * 10**6),
        ValueError(b"\xff\xfe"),
        Silent(),
        Bottomless(),
        SystemExit(3),
        KeyboardInterrupt(),
        ExceptionGroup("some", [ValueError("a"), ExceptionGroup("more", [KeyError("b")])]),
        BaseExceptionGroup("some", [SystemExit(1)]),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        type("Odd\nName", (Exception,), {})("x"),
    ],
)
def test_any_error_can_be_written(error: BaseException) -> None:
    described = through(raised(error))
    assert described["type"]
    assert len(orjson.dumps(described)) < 20_000
    failure = step_failed("s", "s", {"error": described, "attempts": 1})
    assert failure.matches(type(error))


def test_a_deep_chain_of_causes_can_be_written() -> None:
    error: BaseException = ValueError("first")
    for n in range(3000):
        following = ValueError(n)
        following.__cause__ = error
        error = following
    assert len(orjson.dumps(through(error))) < 20_000


def test_a_step_failure_as_a_runs_error_says_which_step() -> None:
    inner = step_failed("pay", "g1.0/pay", {"error": through(ValueError("no")), "attempts": 2})
    described = through(inner, key="g1.0/pay")
    assert described["code"] == "step_failed"
    assert described["detail"]["step_id"] == "pay"
    assert described["detail"]["error_type"] == "ValueError"
    assert described["key"] == "g1.0/pay"


def test_a_refused_replay_says_what_was_recorded_and_what_was_asked() -> None:
    described = through(VersionSkew("no", recorded="step 'a'", asked="sleep '@wait'"))
    assert described["code"] == "version_skew"
    assert described["detail"] == {"recorded": "step 'a'", "asked": "sleep '@wait'"}
