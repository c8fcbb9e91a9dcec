"""When a failure is tried again, and after how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrula.actors.core.retrying import retry_delay
from pyrula.contracts.errors import NonRetryable, StepTimedOut
from pyrula.contracts.options import Retry

STEADY = Retry(max_attempts=5, initial=1.0, factor=2.0, maximum=5.0, jitter=0.0)


class Refused(NonRetryable):
    """An author's own final error."""


def test_delays_grow_up_to_the_maximum() -> None:
    assert [retry_delay(STEADY, ValueError(), n, 0.5) for n in range(1, 6)] == [1.0, 2.0, 4.0, 5.0, None]


@pytest.mark.parametrize("error", [NonRetryable("x"), Refused("x")])
def test_final_errors_are_not_tried_again(error: Exception) -> None:
    assert retry_delay(STEADY, error, 1, 0.5) is None


@pytest.mark.parametrize("error", [SystemExit(1), ValueError("x"), StepTimedOut("x")])
def test_what_is_tried_again_by_default(error: BaseException) -> None:
    expected = isinstance(error, Exception)
    assert (retry_delay(Retry(), error, 1, 0.5) is not None) is expected


def test_the_policy_names_what_is_tried_again() -> None:
    policy = Retry(retry_on=(OSError,), give_up_on=(PermissionError,))
    assert retry_delay(policy, OSError(), 1, 0.5) is not None
    assert retry_delay(policy, PermissionError(), 1, 0.5) is None
    assert retry_delay(policy, ValueError(), 1, 0.5) is None


def test_one_attempt_means_none_after_it() -> None:
    assert retry_delay(Retry(max_attempts=1), ValueError(), 1, 0.5) is None


@given(
    attempts=st.integers(1, 10**6),
    chance=st.floats(0, 1, exclude_max=True),
    jitter=st.floats(0, 1),
    factor=st.floats(1, 1e6),
    initial=st.floats(0, 1e6),
)
def test_a_delay_is_never_negative_and_stays_near_the_maximum(
    attempts: int, chance: float, jitter: float, factor: float, initial: float
) -> None:
    policy = Retry(max_attempts=10**6 + 1, initial=initial, factor=factor, maximum=60.0, jitter=jitter)
    delay = retry_delay(policy, ValueError(), attempts, chance)
    assert delay is not None
    assert 0.0 <= delay <= 60.0 * (1 + jitter)
