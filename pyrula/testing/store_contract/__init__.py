"""The contract of a store, as tests that any store can be put to. What a store is for is not judged here.

A store's own tests hand it over, empty, in a fixture, and inherit the rest:

    class TestMyStore(StoreContract):
        @pytest.fixture
        async def store(self) -> AsyncIterator[MyStore]:
            store = MyStore()
            yield store
            await store.aclose()

Every test runs under each backend of the `anyio_backend` fixture. A store with a clock that can be
moved overrides `pass_time`; one that splits a workflow's queue sets `one_queue` to False.
"""

import pytest

_PARTS = (
    "appending",
    "base",
    "claiming",
    "continuing",
    "delivering",
    "family",
    "finishing",
    "following",
    "giving_up",
    "happenings",
    "intervening",
    "leases",
    "outside",
    "publishing",
    "reading",
    "scenes",
    "scheduling",
    "submitting",
    "timing",
    "walk",
    "walking",
)
# So that a failed assert shows its values; it must be said before the parts are imported.
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from pyrula.testing.store_contract.suite import StoreContract  # noqa: E402

__all__ = ["StoreContract"]
