"""Fixtures that every test may ask for: the two loops, a private Valkey server, a name of its own.

It also bounds async tests from inside their loop. Nothing here starts or imports a server until a test
asks for one, so the unit tests run without.
"""

from __future__ import annotations

import functools
import inspect
import uuid
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyrula.testing.servers import PrivateServer

# No deadline for a single example: the machine's other work decides how long one takes.
settings.register_profile("pyrula", deadline=None, print_blob=True)
settings.load_profile("pyrula")


def seconds_allowed(item: pytest.Item) -> float:
    """What pytest-timeout would allow the test; 0.0 for no limit."""
    if marker := item.get_closest_marker("timeout"):
        return float(marker.args[0] if marker.args else marker.kwargs["timeout"] or 0.0)
    given = item.config.getoption("timeout")
    return float(item.config.getini("timeout") or 0.0 if given is None else given)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Cancel an async test shortly before its timeout, so that it fails where it hangs and cleans up.

    The alarm of pytest-timeout interrupts whatever runs in the main thread. With trio that is a wait
    for trio's own thread, which goes on until the test's next deadline, perhaps for ever.
    """
    test = pyfuncitem.obj
    limit = seconds_allowed(pyfuncitem)
    if inspect.iscoroutinefunction(test) and limit:

        @functools.wraps(test)
        async def bounded(*args: Any, **kwargs: Any) -> None:
            with anyio.fail_after(limit * 0.9):
                await test(*args, **kwargs)

        pyfuncitem.obj = bounded
    return (yield)


@pytest.fixture(
    scope="module",
    params=[pytest.param(("asyncio", {}), id="asyncio"), pytest.param(("trio", {}), id="trio")],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Each async test runs under both loops."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


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
