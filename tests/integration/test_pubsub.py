"""Subscriptions against real servers, under every loop and with both kinds of link."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest

from pyrula.contracts.errors import StoreError, StoreUnavailable
from pyrula.testing.servers import PrivateServer
from pyrula.workflows.stores.valkey import pubsub as pubsub_module
from pyrula.workflows.stores.valkey.address import Address
from pyrula.workflows.stores.valkey.pubsub import RESUBSCRIBED, Listener, Subscriptions
from pyrula.workflows.stores.valkey.turns import TurnLink
from pyrula.workflows.stores.valkey.wire import Wire

LOOPS: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {}),
    "asyncio-in-turns": ("asyncio", {}),  # as on a loop without callbacks for sockets
    "trio": ("trio", {}),
}


@pytest.fixture(scope="module", params=LOOPS)
def loop_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def anyio_backend(loop_name: str) -> tuple[str, dict[str, Any]]:
    return LOOPS[loop_name]


@pytest.fixture(autouse=True)
def link_kind(loop_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if loop_name == "asyncio-in-turns":
        monkeypatch.setattr(pubsub_module, "open_link", TurnLink)


pytestmark = pytest.mark.anyio


@asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[tuple[Subscriptions, Wire]]:
    subscriptions, wire = Subscriptions(Address.parse(url), **options), Wire(Address.parse(url))
    try:
        yield subscriptions, wire
    finally:
        await subscriptions.aclose()
        await wire.aclose()


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    while True:
        met = condition()
        if met if isinstance(met, bool) else await met:
            return
        await anyio.sleep(0.002)


async def polled(listener: Listener) -> object:
    """What a listener hears that never waits."""
    while (heard := await listener.next(timeout=0)) is None:
        pass
    return heard


async def test_messages_are_heard_in_order_by_all_who_listen(valkey_server: PrivateServer, namespace: str) -> None:
    async with (
        connected(valkey_server.url) as (subscriptions, wire),
        subscriptions.listen([f"{namespace}:a", f"{namespace}:b"]) as both,
        subscriptions.listen([f"{namespace}:b".encode()]) as second,
    ):
        for i in range(3):
            assert await wire.call("SPUBLISH", f"{namespace}:{'ab'[i % 2]}", f"m{i}") == 1
        a, b = f"{namespace}:a".encode(), f"{namespace}:b".encode()
        assert [await both.next() for _ in range(3)] == [(a, b"m0"), (b, b"m1"), (a, b"m2")]
        assert await second.next() == (b, b"m1")
        assert await second.next(timeout=0.01) is None
        assert await second.next(timeout=0) is None
        await wire.call("SPUBLISH", f"{namespace}:b", "last")
        assert await polled(second) == (b, b"last")


async def test_what_is_published_once_listen_has_returned_is_heard(
    valkey_server: PrivateServer, namespace: str
) -> None:
    async with connected(valkey_server.url) as (subscriptions, wire):
        for i in range(50):
            async with subscriptions.listen([f"{namespace}:{i % 3}"]) as listener:
                await wire.call("SPUBLISH", f"{namespace}:{i % 3}", str(i))
                assert await listener.next(timeout=10) == (f"{namespace}:{i % 3}".encode(), str(i).encode())


async def test_a_channel_is_subscribed_as_long_as_somebody_listens(
    valkey_server: PrivateServer, namespace: str
) -> None:
    channel = f"{namespace}:a"

    async def subscribed(count: int) -> bool:
        reply = await wire.call("PUBSUB", "SHARDNUMSUB", channel)
        return bool(reply == [channel.encode(), count])

    async with connected(valkey_server.url) as (subscriptions, wire):
        async with subscriptions.listen([channel]):
            async with subscriptions.listen([channel, f"{namespace}:b"]):
                assert await subscribed(1)
            assert await subscribed(1)
        # Nobody listens: it goes with the next command, and can be joined again before.
        async with subscriptions.listen([channel]) as listener:
            assert await subscribed(1)
            await wire.call("SPUBLISH", channel, "x")
            assert await listener.next() == (channel.encode(), b"x")
        async with subscriptions.listen([f"{namespace}:c"]):
            await until(lambda: subscribed(0))
        async with subscriptions.listen([channel]) as listener:
            assert await subscribed(1)
            await wire.call("SPUBLISH", channel, "y")
            assert await listener.next() == (channel.encode(), b"y")


async def test_channels_that_nobody_listens_to_do_not_pile_up(valkey_server: PrivateServer, namespace: str) -> None:
    async with connected(valkey_server.url) as (subscriptions, wire):
        for number in range(200):
            async with subscriptions.listen([f"{namespace}:{number}"]):
                pass

        async def few_left() -> bool:
            return len(await wire.call("PUBSUB", "SHARDCHANNELS", f"{namespace}:*")) <= 66

        await until(few_left)


async def test_a_thousand_listeners_each_hear_their_own(valkey_server: PrivateServer, namespace: str) -> None:
    heard: dict[int, object] = {}
    ready = 0

    async def listen(subscriptions: Subscriptions, number: int) -> None:
        nonlocal ready
        async with subscriptions.listen([f"{namespace}:{number}"]) as listener:
            ready += 1
            heard[number] = await listener.next(timeout=40)

    async with connected(valkey_server.url, connect_timeout=30) as (subscriptions, wire):
        async with anyio.create_task_group() as group:
            for number in range(1000):
                group.start_soon(listen, subscriptions, number)
            await until(lambda: ready == 1000)
            for number in range(999, -1, -1):
                await wire.call("SPUBLISH", f"{namespace}:{number}", str(number))
        assert heard == {n: (f"{namespace}:{n}".encode(), str(n).encode()) for n in range(1000)}


async def test_one_listener_of_1280_channels(valkey_server: PrivateServer, namespace: str) -> None:
    channels = [f"{namespace}:{{wf:{n}}}:bell" for n in range(1280)]
    async with connected(valkey_server.url) as (subscriptions, wire), subscriptions.listen(channels) as listener:
        for n in (0, 640, 1279):
            await wire.call("SPUBLISH", channels[n], "rang")
            assert await listener.next(timeout=10) == (channels[n].encode(), b"rang")


async def test_a_cancelled_listener_leaves_the_others_listening(valkey_server: PrivateServer, namespace: str) -> None:
    """The first may be the one who reads for all."""
    scopes = [anyio.CancelScope() for _ in range(3)]
    heard: list[int] = []

    async def listen(listener: Listener, number: int) -> None:
        with scopes[number]:
            assert await listener.next() == (f"{namespace}:a".encode(), b"x")
            heard.append(number)

    async with connected(valkey_server.url) as (subscriptions, wire):
        channel = f"{namespace}:a"
        async with (
            subscriptions.listen([channel]) as first,
            subscriptions.listen([channel]) as second,
            subscriptions.listen([channel]) as third,
            anyio.create_task_group() as group,
        ):
            for number, listener in enumerate((first, second, third)):
                group.start_soon(listen, listener, number)
                await anyio.wait_all_tasks_blocked()
            scopes[0].cancel()
            await anyio.wait_all_tasks_blocked()
            await wire.call("SPUBLISH", channel, "x")
    assert sorted(heard) == [1, 2]


async def test_after_a_restart_every_listener_is_told_to_look_and_hears_on() -> None:
    told: list[int] = []
    heard: list[int] = []

    async def listen(subscriptions: Subscriptions, number: int) -> None:
        async with subscriptions.listen([f"own:{number}", "all"]) as listener:
            assert await listener.next() == (b"all", b"before")
            assert await listener.next() is RESUBSCRIBED
            told.append(number)
            assert await listener.next() == (f"own:{number}".encode(), b"after")
            heard.append(number)

    with PrivateServer() as server:
        async with connected(server.url) as (subscriptions, wire), anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(listen, subscriptions, number)
            await until(lambda: len(subscriptions._inboxes) == 20 and all(i.active for i in subscriptions._inboxes))
            await wire.call("SPUBLISH", "all", "before")
            await until(lambda: all(not inbox.heard for inbox in subscriptions._inboxes))
            await anyio.to_thread.run_sync(server.kill)
            await anyio.to_thread.run_sync(server.start)
            await until(lambda: len(told) == 20)
            for number in range(20):
                assert await wire.call("SPUBLISH", f"own:{number}", "after") == 1
    assert sorted(heard) == list(range(20))


async def test_a_break_that_nobody_watched_is_told_with_the_next_question(
    valkey_server: PrivateServer, namespace: str
) -> None:
    name = f"{namespace}-idle"
    async with (
        connected(valkey_server.url, client_name=name) as (subscriptions, wire),
        subscriptions.listen([f"{namespace}:a"]) as listener,
    ):
        with valkey_server.client() as client:
            (own,) = [c["id"] for c in client.client_list() if c["name"] == name]
            client.client_kill_filter(_id=own)
        assert await listener.next(timeout=10) is RESUBSCRIBED
        await wire.call("SPUBLISH", f"{namespace}:a", "x")
        assert await listener.next(timeout=10) == (f"{namespace}:a".encode(), b"x")


async def test_a_listener_that_does_not_keep_up_is_told_to_look(valkey_server: PrivateServer, namespace: str) -> None:
    channel = f"{namespace}:a"
    async with (
        connected(valkey_server.url, buffer=5) as (subscriptions, wire),
        subscriptions.listen([channel]) as slow,
        subscriptions.listen([channel]) as fast,
    ):
        for i in range(20):
            await wire.call("SPUBLISH", channel, str(i))
            assert await fast.next(timeout=10) == (channel.encode(), str(i).encode())
        heard = [item async for item in _all(slow)]
        assert RESUBSCRIBED in heard
        assert len(heard) <= 5
        assert heard[-1] == (channel.encode(), b"19")


async def _all(listener: Listener) -> AsyncIterator[object]:
    while (item := await listener.next(timeout=0.05)) is not None:
        yield item


async def test_a_refused_channel_is_the_error_of_its_listener_only() -> None:
    user = "bob on nopass ~* resetchannels &open:* +@all"
    with PrivateServer({"user": [user]}, tcp=True) as server:
        async with (
            connected(f"redis://bob@127.0.0.1:{server.port}") as (subscriptions, wire),
            subscriptions.listen(["open:a"]) as listener,
        ):
            with pytest.raises(StoreError, match="NOPERM"):
                async with subscriptions.listen(["open:b", "closed:a"]):
                    pytest.fail("entered")
            await wire.call("SPUBLISH", "open:a", "x")
            assert await listener.next(timeout=10) == (b"open:a", b"x")


async def test_no_server_is_said_at_once_at_first_and_in_time_later() -> None:
    with PrivateServer() as server:
        async with (
            connected(server.url, connect_timeout=0.3) as (subscriptions, _),
            subscriptions.listen(["a"]) as listener,
        ):
            await anyio.to_thread.run_sync(server.kill)
            assert await listener.next(timeout=0.05) is None
            with pytest.raises(StoreUnavailable, match=r"valkey\.sock"):
                async with subscriptions.listen(["b"]):
                    pytest.fail("entered")
        async with connected(server.url) as (subscriptions, _):
            with pytest.raises(StoreUnavailable, match="cannot reach"):
                async with subscriptions.listen(["a"]):
                    pytest.fail("entered")


async def test_closing_ends_those_who_listen(valkey_server: PrivateServer, namespace: str) -> None:
    async def close(subscriptions: Subscriptions) -> None:
        await anyio.wait_all_tasks_blocked()
        await subscriptions.aclose()

    async with connected(valkey_server.url) as (subscriptions, _):
        async with anyio.create_task_group() as group, subscriptions.listen([f"{namespace}:a"]) as listener:
            group.start_soon(close, subscriptions)
            with pytest.raises(StoreUnavailable, match="closed"):
                await listener.next()
        with pytest.raises(StoreUnavailable, match="closed"):
            async with subscriptions.listen([f"{namespace}:a"]):
                pytest.fail("entered")
