"""Fixtures for tests against real servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.lua_shard import Shard, load_library

if TYPE_CHECKING:
    from pyrula.testing.servers import PrivateServer


@pytest.fixture
def shard(request: pytest.FixtureRequest, valkey_server: PrivateServer, namespace: str) -> Iterator[Shard]:
    """A shard on the shared server, driven through the function library.

    In RESP2, or in what a test asks for (`both_protocols` of `lua_shard`). It has a database to
    itself, so that looking at all keys looks at its own only.
    """
    client: Any = valkey_server.client(protocol=getattr(request, "param", 2), db=9)
    load_library(client)
    yield Shard(client, namespace)
    client.flushdb()
    client.close()
