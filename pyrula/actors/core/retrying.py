"""When a failed step or run is tried again, and after how long. Pure: chance comes in as a number."""

from __future__ import annotations

from typing import Final

from pyrula.contracts.errors import NonRetryable
from pyrula.contracts.options import Retry

__all__ = ["DURABLE_DELAY", "retry_delay"]

# A longer pause between tries is a durable timer; a shorter one is waited out in place.
DURABLE_DELAY: Final = 3.0


def retry_delay(policy: Retry, error: BaseException, attempts: int, chance: float) -> float | None:
    """Seconds until the next try after `attempts` failed ones; None when there is none.

    `chance` in [0, 1) spreads the delay by the policy's jitter. Exponential backoff, capped.
    """
    if attempts >= policy.max_attempts or isinstance(error, NonRetryable):
        return None
    if isinstance(error, policy.give_up_on) or not isinstance(error, policy.retry_on):
        return None
    delay = min(policy.maximum, _grown(policy, attempts))
    return max(0.0, delay * (1.0 + policy.jitter * (2.0 * chance - 1.0)))


def _grown(policy: Retry, attempts: int) -> float:
    try:
        return policy.initial * policy.factor ** (attempts - 1)
    except OverflowError:  # larger than any float
        return policy.maximum if policy.initial else 0.0
