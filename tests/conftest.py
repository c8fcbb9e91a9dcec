"""Fixtures that every test may ask for: the two loops, a private Valkey server, a name of its own.

Nothing here starts or imports a server until a test asks for one, so the unit tests run without.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyrula.testing.servers import PrivateServer

# No deadline for a single example: the machine's other work decides how long one takes.
settings.register_profile("pyrula", deadline=None, print_blob=True)
settings.load_profile("pyrula")


@pytest.fixture(
    scope="module",
    params=[pytest.param(("asyncio", {}), id="asyncio"), pytest.param(("trio", {}), id="trio")],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Each async test runs under both loops."""
    return request.param


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[PrivateServer]:
    """One real server for the whole session. Tests share it: use `namespace`, and never kill it.

    A test that kills, fills or reconfigures a server starts a `PrivateServer` of its own.
    """
    from pyrula.testing.servers import PrivateServer

    with PrivateServer() as server:
        yield server


@pytest.fixture
def namespace() -> str:
    """A key prefix that no other test uses."""
    return f"t-{uuid.uuid4().hex[:12]}"
