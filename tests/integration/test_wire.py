"""The wire against real servers, under every loop and with both kinds of link."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest
from libvalkey import ReplyError, pack_command

from pyrula.contracts.errors import OutOfMemory, StoreError, StoreUnavailable
from pyrula.testing.servers import PrivateServer
from pyrula.workflows.stores.valkey import wire as wire_module
from pyrula.workflows.stores.valkey.address import Address
from pyrula.workflows.stores.valkey.turns import TurnLink
from pyrula.workflows.stores.valkey.wire import ConnectionBroken, LoginRefused, Wire, WirePool, translate

LOOPS: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "asyncio-in-turns": ("asyncio", {}),  # as on a loop without callbacks for sockets
    "trio": ("trio", {}),
}


@pytest.fixture(scope="module", params=LOOPS)
def loop_name(request: pytest.FixtureRequest) -> str:
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def anyio_backend(loop_name: str) -> tuple[str, dict[str, Any]]:
    return LOOPS[loop_name]


@pytest.fixture(autouse=True)
def link_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "loop_name" in request.fixturenames and request.getfixturevalue("loop_name") == "asyncio-in-turns":
        monkeypatch.setattr(wire_module, "open_link", TurnLink)


@asynccontextmanager
async def open_wire(url: str, **options: Any) -> AsyncIterator[Wire]:
    wire = Wire(Address.parse(url), **options)
    try:
        yield wire
    finally:
        await wire.aclose()


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    while True:
        met = condition()
        if met if isinstance(met, bool) else await met:
            return
        await anyio.sleep(0.002)


def blocked(server: PrivateServer) -> int:
    with server.client() as client:
        return int(client.info("clients")["blocked_clients"])


def push(server: PrivateServer, key: str, value: str) -> None:
    with server.client() as client:
        client.rpush(key, value)


# --- calls and replies ------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_reply_of_every_kind_comes_back(valkey_server: PrivateServer, namespace: str) -> None:
    async with open_wire(valkey_server.url) as wire:
        assert await wire.call("SET", f"{namespace}:a", b"\x00\xff") == b"OK"
        assert await wire.call("GET", f"{namespace}:a") == b"\x00\xff"
        assert await wire.call("GET", f"{namespace}:none") is None
        assert await wire.call("INCRBY", f"{namespace}:n", 41) == 41
        assert await wire.call("HSET", f"{namespace}:h", "ä", 1) == 1
        assert await wire.call("HGETALL", f"{namespace}:h") == ["ä".encode(), b"1"]


@pytest.mark.anyio
async def test_a_batch_gives_its_replies_in_order_with_errors_in_their_places(
    valkey_server: PrivateServer, namespace: str
) -> None:
    async with open_wire(valkey_server.url) as wire:
        commands = [("SET", f"{namespace}:s", "text"), ("INCR", f"{namespace}:s"), ("GET", f"{namespace}:s")]
        ok, error, text = await wire.call_packed(b"".join(map(pack_command, commands)), 3)
        assert (ok, text) == (b"OK", b"text")
        assert isinstance(error, ReplyError)
        assert await wire.call("ECHO", "after") == b"after"


@pytest.mark.anyio
async def test_an_error_reply_is_raised_and_harms_nobody_else(valkey_server: PrivateServer) -> None:
    async with open_wire(valkey_server.url) as wire:
        heard: list[object] = []

        async def echo(text: str) -> None:
            heard.append(await wire.call("ECHO", text))

        async with anyio.create_task_group() as group:
            group.start_soon(echo, "a")
            group.start_soon(echo, "b")
            with pytest.raises(ReplyError, match="unknown command"):
                await wire.call("NOSUCHCOMMAND", "x")
        assert sorted(heard, key=str) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", OutOfMemory),
        ("LOADING Valkey is loading the dataset in memory", StoreUnavailable),
        ("MASTERDOWN Link with MASTER is down", StoreUnavailable),
        ("READONLY You can't write against a read only replica.", StoreUnavailable),
        ("BUSY Valkey is busy running a script.", StoreUnavailable),
        ("BUSYGROUP Consumer Group name already exists", StoreError),
        ("WRONGTYPE Operation against a key", StoreError),
    ],
)
def test_an_error_reply_becomes_the_error_of_its_kind(text: str, kind: type[StoreError]) -> None:
    error = translate(ReplyError(text))
    assert type(error) is kind
    assert str(error) == text


def test_arguments_that_a_server_echoes_do_not_get_into_the_message() -> None:
    error = translate(ReplyError("ERR unknown command 'X', with args beginning with: 'secret' "))
    assert "secret" not in str(error)


@pytest.mark.anyio
async def test_a_full_server_is_told_as_such() -> None:
    with PrivateServer({"maxmemory": "1mb", "maxmemory-policy": "noeviction"}) as server:
        async with open_wire(server.url) as wire:
            sets = b"".join(pack_command(("SET", f"k{i}", b"x" * 100_000)) for i in range(20))
            assert isinstance((await wire.call_packed(sets, 20))[-1], ReplyError)
            with pytest.raises(ReplyError) as caught:
                await wire.call("SET", "one more", b"x" * 100_000)
            assert type(translate(caught.value)) is OutOfMemory


@pytest.mark.anyio
async def test_every_caller_gets_its_own_reply_while_others_are_cancelled(valkey_server: PrivateServer) -> None:
    rng = random.Random(7)
    answered = cancelled = 0

    async def caller(wire: Wire, number: int) -> None:
        nonlocal answered, cancelled
        for i in range(30):
            text = f"{number}-{i}".encode()
            with anyio.move_on_after(rng.choice((0.0, 0.0005, 0.002, 10.0, 10.0, 10.0))) as scope:
                # A reply that is a list, and one of several commands, go the same way.
                if i % 5 == 0:
                    assert await wire.call_packed(pack_command(("ECHO", text)) * 3, 3) == [text] * 3
                else:
                    assert await wire.call("ECHO", text) == text
                answered += 1
            cancelled += scope.cancelled_caught

    async with open_wire(valkey_server.url) as wire:
        async with anyio.create_task_group() as group:
            for number in range(200):
                group.start_soon(caller, wire, number)
        assert await wire.call("ECHO", "last") == b"last"
    assert answered > 1000
    assert cancelled > 100


@pytest.mark.anyio
async def test_twenty_megabytes_go_there_and_back_beside_small_calls(
    valkey_server: PrivateServer, namespace: str
) -> None:
    big = random.Random(1).randbytes(20_000_000)
    async with open_wire(valkey_server.url) as wire:

        async def echoes() -> None:
            for i in range(100):
                assert await wire.call("ECHO", str(i)) == str(i).encode()

        async with anyio.create_task_group() as group:
            group.start_soon(echoes)
            assert await wire.call("SET", f"{namespace}:big", big) == b"OK"
            assert await wire.call("GET", f"{namespace}:big") == big
        await wire.call("UNLINK", f"{namespace}:big")


@pytest.mark.anyio
async def test_no_more_than_max_pending_replies_are_outstanding() -> None:
    heard: list[object] = []

    async def caller(wire: Wire, number: int) -> None:
        heard.append(await wire.call("ECHO", str(number)))

    with PrivateServer() as server:
        async with open_wire(server.url, max_pending=4) as wire:
            assert await wire.call("PING") == b"PONG"
            server.pause()
            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(caller, wire, number)
                await until(lambda: len(wire._waiting) == 4)
                await anyio.wait_all_tasks_blocked()
                assert len(wire._waiting) == 4
                server.resume()
    assert sorted(heard, key=str) == sorted((str(number).encode() for number in range(20)), key=str)


# --- cancellation -----------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("who", ["first", "second"])
async def test_a_cancelled_caller_leaves_the_other_its_reply(
    valkey_server: PrivateServer, namespace: str, who: str
) -> None:
    """The first caller may be the one who reads for both; either may leave."""
    key = f"{namespace}:list"
    heard: dict[str, object] = {}
    scopes = {"first": anyio.CancelScope(), "second": anyio.CancelScope()}
    async with open_wire(valkey_server.url) as wire:

        async def caller(name: str, *command: str) -> None:
            with scopes[name]:
                heard[name] = await wire.call(*command)

        async with anyio.create_task_group() as group:
            group.start_soon(caller, "first", "BLPOP", key, "0")
            await until(lambda: blocked(valkey_server) == 1)
            group.start_soon(caller, "second", "ECHO", "second")
            await until(lambda: len(wire._waiting) == 2)
            scopes[who].cancel()
            await anyio.wait_all_tasks_blocked()
            push(valkey_server, key, "x")
        other = {"first": "second", "second": "first"}[who]
        assert heard == {other: {"first": [key.encode(), b"x"], "second": b"second"}[other]}
        assert await wire.call("ECHO", "after") == b"after"


@pytest.mark.anyio
@pytest.mark.parametrize("queued", [False, True])
async def test_a_caller_cancelled_in_the_middle_of_a_large_write(queued: bool) -> None:
    """Whatever was sent of it, the replies of later calls are their own."""
    heard: list[object] = []
    with PrivateServer() as server:
        async with open_wire(server.url) as wire:
            assert await wire.call("PING") == b"PONG"
            server.pause()
            scope = anyio.CancelScope()

            async def large() -> None:
                with scope:
                    await wire.call("SET", "big", b"x" * 20_000_000)

            async def small() -> None:
                heard.append(await wire.call("ECHO", "small"))

            async with anyio.create_task_group() as group:
                group.start_soon(large)
                await until(lambda: wire._link is not None and wire._link._rest is not None)
                if queued:
                    group.start_soon(small)
                    await until(lambda: len(wire._waiting) == 2)
                scope.cancel()
                await anyio.wait_all_tasks_blocked()
                server.resume()
            assert heard == [b"small"] * queued
            assert await wire.call("ECHO", "after") == b"after"
            # All of it, or nothing.
            assert await wire.call("STRLEN", "big") in (0, 20_000_000)


@pytest.mark.anyio
async def test_all_callers_leave_and_the_next_one_is_served(valkey_server: PrivateServer, namespace: str) -> None:
    async with open_wire(valkey_server.url) as wire:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                for _ in range(10):
                    group.start_soon(wire.call, "BLPOP", f"{namespace}:list", "0")
                await until(lambda: blocked(valkey_server) == 1)
                scope.cancel()
        for i in range(10):
            push(valkey_server, f"{namespace}:list", str(i))
        assert await wire.call("ECHO", "after") == b"after"


# --- servers that fail ------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_server_killed_and_started_again_is_seen_as_a_delay() -> None:
    written: list[str] = []
    going = True

    async def caller(wire: Wire, number: int) -> None:
        i = 0
        while going:
            key = f"{number}:{i}"
            await wire.call("SET", key, key)
            written.append(key)
            i += 1

    with PrivateServer({"appendfsync": "always"}) as server:
        async with open_wire(server.url, connect_timeout=20.0) as wire:
            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(caller, wire, number)
                for _ in range(2):
                    before = len(written)
                    await until(lambda before=before: len(written) > before + 200)  # type: ignore[misc]
                    await anyio.to_thread.run_sync(server.kill)
                    await anyio.to_thread.run_sync(server.start)
                before = len(written)
                await until(lambda: len(written) > before + 200)
                going = False
            found = await wire.call("MGET", *written)
            assert found == [key.encode() for key in written]


async def _break_own_connection(wire: Wire, server: PrivateServer, **call: Any) -> list[object]:
    """The outcome of a blocking call whose connection is cut while it waits, with a value pushed afterwards."""
    outcome: list[object] = []
    own = await wire.call("CLIENT", "ID")

    async def caller() -> None:
        try:
            outcome.append(await wire.call("BLPOP", "list", "0", **call))
        except StoreError as error:
            outcome.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(caller)
        await until(lambda: blocked(server) == 1)
        with server.client() as client:
            client.client_kill_filter(_id=own)
        await until(lambda: bool(outcome) or blocked(server) == 1)
        push(server, "list", "x")
    return outcome


@pytest.mark.anyio
async def test_a_call_whose_connection_broke_is_repeated_once() -> None:
    with PrivateServer() as server:
        async with open_wire(server.url) as wire:
            assert await _break_own_connection(wire, server) == [[b"list", b"x"]]


@pytest.mark.anyio
async def test_a_call_that_may_not_be_repeated_says_that_the_connection_broke() -> None:
    with PrivateServer() as server:
        async with open_wire(server.url) as wire:
            (error,) = await _break_own_connection(wire, server, retry=False)
            assert isinstance(error, ConnectionBroken)
            assert str(server.socket_path) in str(error)
            assert await wire.call("ECHO", "after") == b"after"


@pytest.mark.anyio
async def test_an_idle_connection_that_ended_does_not_fail_a_call_that_may_not_be_repeated(
    valkey_server: PrivateServer,
) -> None:
    async with open_wire(valkey_server.url) as wire:
        own = await wire.call("CLIENT", "ID")
        with valkey_server.client() as client:
            client.client_kill_filter(_id=own)
        assert await wire.call("ECHO", "x", retry=False) == b"x"


@pytest.mark.anyio
async def test_a_frozen_server_fails_the_calls_in_time_and_serves_later_ones() -> None:
    with PrivateServer() as server:
        async with open_wire(server.url, command_timeout=0.4, connect_timeout=0.4) as wire:
            assert await wire.call("PING") == b"PONG"
            errors: list[StoreError] = []

            async def caller() -> None:
                with pytest.raises(StoreUnavailable, match="no answer") as caught:
                    await wire.call("PING")
                errors.append(caught.value)

            server.pause()
            start = time.monotonic()
            async with anyio.create_task_group() as group:
                for _ in range(5):
                    group.start_soon(caller)
            assert 0.35 < time.monotonic() - start < 5
            assert all(str(server.socket_path) in str(error) for error in errors)
            # Nor can a new connection be had.
            with pytest.raises(StoreUnavailable, match="no answer"):
                await wire.call("PING")
            server.resume()
            assert await wire.call("PING") == b"PONG"


@pytest.mark.anyio
async def test_a_slow_server_that_goes_on_answering_is_not_given_up(valkey_server: PrivateServer) -> None:
    async with open_wire(valkey_server.url, command_timeout=0.8) as wire:
        commands = [("BLPOP", "never-there", "0.2")] * 8
        assert await wire.call_packed(b"".join(map(pack_command, commands)), 8) == [None] * 8


@pytest.mark.anyio
async def test_nobody_listens_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        async with open_wire(f"redis://:hush@127.0.0.1:{port}") as wire:
            start = time.monotonic()
            with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{port}") as caught:
                await wire.call("PING")
            assert time.monotonic() - start < 3
            assert isinstance(caught.value.__cause__, ConnectionRefusedError)
            assert "hush" not in str(caught.value)


@pytest.mark.anyio
async def test_a_server_that_comes_back_too_late_is_unavailable() -> None:
    with PrivateServer() as server:
        async with open_wire(server.url, connect_timeout=0.3) as wire:
            await wire.call("PING")
            await anyio.to_thread.run_sync(server.kill)
            start = time.monotonic()
            with pytest.raises(StoreUnavailable, match="cannot reach"):
                await wire.call("PING")
            assert 0.1 < time.monotonic() - start < 5


@pytest.mark.anyio
async def test_the_login_is_refused_without_a_second_try_and_without_the_password() -> None:
    with PrivateServer({"requirepass": "right"}, tcp=True) as server:
        for login, words in ((":wr0ng@", "refused the login"), ("", "asks for a password")):
            async with open_wire(f"redis://{login}127.0.0.1:{server.port}") as wire:
                with pytest.raises(LoginRefused, match=words) as caught:
                    await wire.call("PING")
                assert f"127.0.0.1:{server.port}" in str(caught.value)
                assert "wr0ng" not in str(caught.value)
                assert "wr0ng" not in repr(wire.address)


@pytest.mark.anyio
async def test_user_password_and_database_of_the_url_are_used() -> None:
    with PrivateServer({"user": ["ann on >s3cret ~* &* +@all"]}, tcp=True) as server:
        async with open_wire(f"valkey://ann:s3cret@127.0.0.1:{server.port}/3") as wire:
            assert await wire.call("ACL", "WHOAMI") == b"ann"
            await wire.call("SET", "key", "in three")
        async with open_wire(f"redis://127.0.0.1:{server.port}?db=3") as wire:
            assert await wire.call("GET", "key") == b"in three"
        async with open_wire(f"redis://127.0.0.1:{server.port}/999") as wire:
            with pytest.raises(LoginRefused, match="SELECT"):
                await wire.call("PING")


@contextmanager
def scripted_server(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port where each connection is treated by `answer`, in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.anyio
async def test_what_answers_is_no_valkey_server() -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with scripted_server(answer) as port:
        async with open_wire(f"redis://127.0.0.1:{port}") as wire:
            with pytest.raises(StoreUnavailable, match="does not speak"):
                await wire.call("PING")


@pytest.mark.anyio
async def test_what_answers_says_nothing() -> None:
    def answer(connection: socket.socket) -> None:
        while connection.recv(1000):
            pass

    with scripted_server(answer) as port:
        async with open_wire(f"redis://127.0.0.1:{port}", connect_timeout=0.2) as wire:
            with pytest.raises(StoreUnavailable, match=f"no answer from Valkey at 127.0.0.1:{port}"):
                await wire.call("PING")


@pytest.mark.anyio
async def test_a_reply_that_nobody_asked_for_is_given_to_nobody() -> None:
    connections = 0

    def answer(connection: socket.socket) -> None:
        nonlocal connections
        connections += 1
        connection.recv(1000)
        connection.sendall(b"+OK\r\n+PONG\r\n")
        while connection.recv(1000):
            connection.sendall(b":%d\r\n:-1\r\n" % connections)

    with scripted_server(answer) as port:
        async with open_wire(f"redis://127.0.0.1:{port}") as wire:
            assert await wire.call("FIRST") == 1
            assert await wire.call("SECOND") == 2


@pytest.mark.anyio
async def test_a_call_that_breaks_its_connection_again_is_not_sent_a_third_time() -> None:
    sent: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"+OK\r\n+PONG\r\n")
        sent.append(connection.recv(1000))

    with scripted_server(answer) as port:
        async with open_wire(f"redis://127.0.0.1:{port}") as wire:
            with pytest.raises(ConnectionBroken, match=f"127.0.0.1:{port}"):
                await wire.call("DEADLY")
    assert sent == [pack_command(("DEADLY",))] * 2


@pytest.mark.anyio
async def test_a_connection_that_is_reset_with_bytes_unread_is_noticed_at_once() -> None:
    asked, reset = threading.Event(), threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"+OK\r\n+PONG\r\n")
        connection.recv(1000)
        asked.set()
        connection.sendall(b"$1000000\r\n" + b"x" * 100_000)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        reset.set()

    async def caller(wire: Wire) -> None:
        with anyio.fail_after(10), pytest.raises(ConnectionBroken, match=f"127.0.0.1:{port}"):
            await wire.call("GET", "x", retry=False)

    with scripted_server(answer) as port:
        async with open_wire(f"redis://127.0.0.1:{port}") as wire, anyio.create_task_group() as group:
            group.start_soon(caller, wire)
            await until(asked.is_set)
            reset.wait()  # the loop stands still meanwhile, and finds bytes and reset together


@pytest.mark.anyio
async def test_a_host_without_an_address() -> None:
    async with open_wire("redis://nowhere.invalid:6379") as wire:
        with pytest.raises(StoreUnavailable, match=r"nowhere\.invalid:6379"):
            await wire.call("PING")


# --- closing, loops and threads ---------------------------------------------------------


@pytest.mark.anyio
async def test_closing_fails_those_who_wait_and_those_who_come(valkey_server: PrivateServer, namespace: str) -> None:
    errors: list[StoreError] = []
    async with open_wire(valkey_server.url) as wire:

        async def caller() -> None:
            with pytest.raises(StoreUnavailable, match="closed") as caught:
                await wire.call("BLPOP", f"{namespace}:list", "0")
            errors.append(caught.value)

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(caller)
            await until(lambda: blocked(valkey_server) == 1)
            await wire.aclose()
        with pytest.raises(StoreUnavailable, match="closed"):
            await wire.call("PING")
    assert len(errors) == 3


@pytest.mark.anyio
async def test_a_pool_gives_one_loop_one_wire(valkey_server: PrivateServer) -> None:
    pool = WirePool(Address.parse(valkey_server.url))
    wire = pool.here()
    assert await wire.call("PING") == b"PONG"
    assert pool.here() is wire
    await pool.aclose()
    assert await pool.here().call("PING") == b"PONG"
    await pool.aclose()


@pytest.mark.anyio
async def test_a_wire_that_is_dropped_takes_its_connection_along(valkey_server: PrivateServer, namespace: str) -> None:
    async with open_wire(valkey_server.url) as other:

        async def connections(count: int) -> bool:
            clients = await other.call("CLIENT", "LIST")
            return bool(clients.decode().count(f"name={namespace} ") == count)

        wire = Wire(Address.parse(valkey_server.url), client_name=namespace)
        assert await wire.call("PING") == b"PONG"
        assert await connections(1)
        del wire
        gc.collect()
        await until(lambda: connections(0))


def test_two_loops_take_turns_in_one_thread(valkey_server: PrivateServer) -> None:
    pool = WirePool(Address.parse(valkey_server.url))

    async def work(text: str) -> tuple[Wire, object]:
        wire = pool.here()
        return wire, await wire.call("ECHO", text)

    with asyncio.Runner() as first, asyncio.Runner() as second:
        wires = set()
        for i in range(3):
            for runner in (first, second):
                wire, reply = runner.run(work(str(i)))
                assert reply == str(i).encode()
                wires.add(wire)
        assert len(wires) == 2
        wires.clear()


def _in_every_loop(work: Callable[[], Any]) -> list[threading.Thread]:
    def run(backend: str, options: dict[str, Any]) -> None:
        anyio.run(work, backend=backend, backend_options=options)

    return [threading.Thread(target=run, args=LOOPS[name]) for name in ("asyncio", "trio", "asyncio")]


def test_loops_in_several_threads_share_one_pool(valkey_server: PrivateServer) -> None:
    pool = WirePool(Address.parse(valkey_server.url), client_name="threads")
    barrier = threading.Barrier(3)
    done: list[tuple[int, int]] = []

    async def work() -> None:
        wire = pool.here()
        number = await wire.call("CLIENT", "ID")
        barrier.wait()  # all three loops are open now

        async def caller(first: int) -> None:
            for i in range(first, first + 200):
                assert await pool.here().call("ECHO", str(i)) == str(i).encode()

        async with anyio.create_task_group() as group:
            for n in range(5):
                group.start_soon(caller, n * 1000)
        assert pool.here() is wire
        done.append((id(wire), number))
        barrier.wait()

    threads = _in_every_loop(work)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({wire for wire, _ in done}) == len({number for _, number in done}) == 3


def test_closing_a_pool_reaches_the_loops_of_other_threads(valkey_server: PrivateServer, namespace: str) -> None:
    pool = WirePool(Address.parse(valkey_server.url))
    errors: list[str] = []

    async def work() -> None:
        try:
            await pool.here().call("BLPOP", f"{namespace}:list", "0")
        except StoreUnavailable as error:
            errors.append(str(error))

    threads = _in_every_loop(work)
    for thread in threads:
        thread.start()

    async def close() -> None:
        await until(lambda: blocked(valkey_server) == 3)
        await pool.aclose()

    anyio.run(close)
    for thread in threads:
        thread.join()
    assert len(errors) == 3
    assert all("closed" in error for error in errors)


def test_one_loop_after_another_leaves_no_connection_behind(valkey_server: PrivateServer, namespace: str) -> None:
    pool = WirePool(Address.parse(valkey_server.url), client_name=namespace)

    async def work() -> int:
        wire = pool.here()
        assert await wire.call("PING") == b"PONG"
        clients = await wire.call("CLIENT", "LIST")
        return int(clients.decode().count(f"name={namespace} "))

    for name in ("asyncio", "trio", "asyncio", "trio"):
        backend, options = LOOPS[name]
        anyio.run(work, backend=backend, backend_options=options)
        gc.collect()

    async def alone() -> bool:
        return await work() == 1

    anyio.run(until, alone)


_UNCLOSED = """
import gc, sys, anyio
from pyrula.workflows.stores.valkey.address import Address
from pyrula.workflows.stores.valkey.pubsub import Subscriptions
from pyrula.workflows.stores.valkey.wire import Wire, WirePool

pool = WirePool(Address.parse(sys.argv[1]))

async def work():
    await pool.here().call("PING")
    await Wire(Address.parse(sys.argv[1])).call("PING")
    subscriptions = Subscriptions(Address.parse(sys.argv[1]))
    async with subscriptions.listen(["a"]) as listener:
        await listener.next(timeout=0)
        with anyio.move_on_after(0.01):
            await pool.here().call("BLPOP", "never-there", "0")

for _ in range(2):
    anyio.run(work, backend=sys.argv[2], backend_options={"use_uvloop": True} if sys.argv[3] else {})
    gc.collect()
print("done")
"""


def test_a_program_that_never_closes_hears_no_warning(
    loop_name: str, anyio_backend: tuple[str, dict[str, Any]], valkey_server: PrivateServer
) -> None:
    uvloop = "yes" if loop_name == "uvloop" else ""
    finished = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", _UNCLOSED, valkey_server.url, anyio_backend[0], uvloop],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (finished.stdout, finished.stderr, finished.returncode) == ("done\n", "", 0)
