"""What all parts of the contract share: the mark, the store's peculiarities, and waiting without guessing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar, TypeVar

import anyio
import pytest

from pyrula.contracts.store import Store, Timers

__all__ = ["Contract"]

T = TypeVar("T")

_TRIES = 2000
_PAUSE = 0.005  # seconds


class Contract:
    """The hooks of the suite. A store under test may set them in its subclass.

    one_queue: False for a store that splits a workflow's queue, so that order and fairness hold
        within each part only; what the suite asks of the whole queue is then left out.
    """

    pytestmark: ClassVar[pytest.MarkDecorator | list[pytest.MarkDecorator]] = pytest.mark.anyio
    one_queue: ClassVar[bool] = True

    async def pass_time(self, store: Store, seconds: float) -> None:
        """Let time pass for the store. Override it where the store's clock can be moved."""
        await anyio.sleep(seconds)

    async def until(self, store: Store, probe: Callable[[], Awaitable[T]]) -> T:
        """Ask `probe` while time passes, until it gives something true, and give that."""
        for _ in range(_TRIES):
            if found := await probe():
                return found
            await self.pass_time(store, _PAUSE)
        raise AssertionError(f"still not so after {_TRIES * _PAUSE:.0f} seconds of the store's time")

    async def passed(self, store: Store, moment: int) -> None:
        """Wait until the store's time is past a moment (microseconds)."""

        async def there() -> bool:
            return await store.now() > moment

        await self.until(store, there)

    def need_one_queue(self) -> None:
        """Leave a test out for a store whose queue is split."""
        if not self.one_queue:
            pytest.skip("order over the whole queue is not asked of a store that splits it")

    def timers(self, store: Store) -> Timers:
        """The store as one with timers; leaves the test out for one without."""
        if not isinstance(store, Timers):
            pytest.skip("a store without timers")
        return store
