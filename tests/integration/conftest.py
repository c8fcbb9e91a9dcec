"""Fixtures for tests against real servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.integration.lua_shard import Shard, load_library

if TYPE_CHECKING:
    from pyrula.testing.servers import PrivateServer


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def shard(request: pytest.FixtureRequest, valkey_server: PrivateServer, namespace: str) -> Iterator[Shard]:
    """A shard of its own on the shared server, driven through the function library by either protocol."""
    client = valkey_server.client(protocol=request.param)
    load_library(client)
    yield Shard(client, namespace)
    client.close()
