"""Time in a test's hands, on both stores: months pass in milliseconds, in their order, and nobody else notices."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from pyrula.contracts.errors import ChildTimedOut, ConfigurationError, SignalTimeout
from pyrula.contracts.options import Retry, WorkerOptions
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Store
from pyrula.lua import library, movable_library
from pyrula.testing import VirtualTime
from pyrula.testing.audit import audit
from pyrula.testing.servers import PrivateServer
from pyrula.workflows import Context, MemoryStore, ValkeyStore, Workflow, WorkflowWorker
from pyrula.workflows.client import WorkflowClient
from pyrula.workflows.schedules import Schedule

pytestmark = pytest.mark.anyio

DAY = 86400.0
OPTIONS = WorkerOptions(child_stay=0, timer_poll_interval_s=600, shutdown_grace=2, cancel_timeout=1)


@pytest.fixture(params=["memory", "valkey"])
async def store(request: pytest.FixtureRequest, namespace: str) -> AsyncIterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
        return
    server: PrivateServer = request.getfixturevalue("valkey_server")
    made = ValkeyStore(server.url, namespace=namespace, shard_count=4)
    yield made
    await made.aclose()


def made(fn: Any, name: str) -> Workflow:
    return Workflow(fn, name=name, version=None, timeout=None, retry=None)


async def sleeper(ctx: Context, days: list[int]) -> list[str]:
    began = await ctx.now()
    woken = []
    for day in days:
        await ctx.sleep(day * DAY)
        woken.append(str((await ctx.now() - began).days))
    return woken


async def asks(ctx: Context) -> str:
    try:
        return str(await ctx.wait_for_signal("go", timeout=30 * DAY))
    except SignalTimeout:
        return "nobody came"


@asynccontextmanager
async def serving(store: Store, *bodies: Any) -> AsyncIterator[WorkflowClient]:
    worker = WorkflowWorker(store, [made(body, body.__name__) for body in bodies], OPTIONS)
    async with anyio.create_task_group() as group:
        await group.start(worker.run)
        try:
            yield worker.client
        finally:
            worker.stop()


async def test_a_run_that_sleeps_for_months_takes_milliseconds(store: Store) -> None:
    began = time.monotonic()
    async with VirtualTime(store), serving(store, sleeper) as client:
        run = await client.submit("sleeper", {"days": [30, 60, 90, 1]})
        assert await client.result("sleeper", run.run_id, timeout=10) == ["30", "90", "180", "181"]
        events = [event async for event in client.events("sleeper", run.run_id)]
        assert timedelta(days=181) <= events[-1].at - events[0].at < timedelta(days=181, minutes=1)
        assert await audit(store) == []
    assert time.monotonic() - began < 5


async def test_timers_of_many_runs_fire_in_their_order(store: Store) -> None:
    woken: list[tuple[int, int]] = []

    async def one(ctx: Context, day: int) -> None:
        began = await ctx.now()
        await ctx.sleep(day * DAY)
        woken.append((day, (await ctx.now() - began).days))

    async with VirtualTime(store, by_itself=False) as moved, serving(store, one) as client:
        runs = [await client.submit("one", {"day": day}) for day in (3, 1, 2, 40)]
        await moved.advance(7 * DAY)
        assert woken == [(1, 1), (2, 2), (3, 3)]
        assert (await client.get("one", runs[-1].run_id)).status is RunStatus.SLEEPING
        await moved.advance(33 * DAY)
        assert woken[-1] == (40, 40)


async def test_time_stands_still_where_it_is_stopped(store: Store) -> None:
    async with VirtualTime(store) as moved, serving(store, asks) as client:
        async with moved.stopped():
            before = await moved.now()
            first = await client.submit("asks")
            await moved.settle()
            assert (await client.get("asks", first.run_id)).status is RunStatus.WAITING
            await client.signal("asks", first.run_id, "go", "it comes")
            assert await client.result("asks", first.run_id, timeout=5) == "it comes"
            assert await moved.now() - before < timedelta(days=1)
        second = await client.submit("asks")
        assert await client.result("asks", second.run_id, timeout=5) == "nobody came"
        assert await moved.now() - before >= timedelta(days=30)


async def test_a_delayed_start_and_a_long_retry_are_passed(store: Store) -> None:
    tries: list[int] = []

    def flaky() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("again")
        return len(tries)

    async def retries(ctx: Context) -> int:
        return await ctx.step("flaky", flaky, retry=Retry(initial=3600, maximum=7200))

    async with VirtualTime(store), serving(store, retries) as client:
        run = await client.submit("retries", delay=10 * DAY)
        assert await client.result("retries", run.run_id, timeout=10) == 3


async def waits_for_sleeper(ctx: Context) -> list[str]:
    found: list[str] = await ctx.run_child("sleeper", {"days": [200]})
    with pytest.raises(ChildTimedOut):
        await ctx.run_child("asks", timeout=5 * DAY)
    return found


async def test_a_child_that_sleeps_while_its_parent_waits(store: Store) -> None:
    async with VirtualTime(store), serving(store, waits_for_sleeper, sleeper, asks) as client:
        run = await client.submit("waits_for_sleeper")
        assert await client.result("waits_for_sleeper", run.run_id, timeout=10) == ["200"]
        events = [event async for event in client.events("waits_for_sleeper", run.run_id)]
        assert timedelta(days=205) <= events[-1].at - events[0].at < timedelta(days=205, minutes=1)
        assert len(events) < 20


async def nightly(ctx: Context) -> None:
    await ctx.sleep(60)


async def test_schedules_fire_in_their_turn(store: Store) -> None:
    async with VirtualTime(store) as moved, serving(store, nightly, sleeper) as client:
        await moved.advance(60)
        await client.schedule_create(Schedule.create("nightly", "0 2 * * *"))
        await moved.advance(7 * DAY)
        found = await client.list("nightly")
        assert len(found.runs) == 7
        assert {run.status for run in found} == {RunStatus.COMPLETED}
        assert {(run.submitted_at.hour, run.submitted_at.minute) for run in found} == {(2, 0)}
        # A schedule alone moves no time; a run that waits passes its occurrences.
        before = await moved.now()
        await anyio.sleep(0.05)
        assert await moved.now() - before < timedelta(minutes=1)
        run = await client.submit("sleeper", {"days": [3]})
        assert await client.result("sleeper", run.run_id, timeout=10) == ["3"]
        assert len((await client.list("nightly")).runs) == 10


async def test_afterwards_the_store_has_its_own_time(store: Store) -> None:
    async with VirtualTime(store, by_itself=False) as moved:
        await moved.advance(365 * DAY)
        assert await moved.now() - datetime.now(UTC) > timedelta(days=364)
    assert abs(datetime.now(UTC) - datetime.fromtimestamp(await store.now() / 1e6, UTC)) < timedelta(minutes=1)
    run = await WorkflowClient(store).submit(made(asks, "asks"))
    assert abs(run.submitted_at - datetime.now(UTC)) < timedelta(minutes=1)


async def test_runs_that_do_not_come_to_rest_are_named(store: Store) -> None:
    async with VirtualTime(store, patience=0.05) as moved:
        run = await WorkflowClient(store).submit(made(asks, "asks"))
        with pytest.raises(TimeoutError, match=f"run '{run.run_id}' of 'asks' is queued; is its worker running"):
            await moved.advance(1)


async def test_a_tests_own_error_comes_out_as_it_is(store: Store) -> None:
    with pytest.raises(LookupError, match="the test's"):
        async with VirtualTime(store):
            raise LookupError("the test's")


async def test_what_is_no_clock_and_no_time_is_refused() -> None:
    nothing: Any = object()
    with pytest.raises(ConfigurationError, match="not that of object"):
        VirtualTime(nothing)
    async with VirtualTime(MemoryStore()) as moved:
        for wrong in (-1.0, float("nan"), float("inf")):
            with pytest.raises(ConfigurationError, match="time passes forwards"):
                await moved.advance(wrong)


async def test_on_a_server_two_tests_move_time_apart_and_leave_nothing(
    valkey_server: PrivateServer, namespace: str
) -> None:
    one = ValkeyStore(valkey_server.url, namespace=f"{namespace}-1", shard_count=4)
    two = ValkeyStore(valkey_server.url, namespace=f"{namespace}-2", shard_count=4)
    async with VirtualTime(one, by_itself=False) as first, VirtualTime(two, by_itself=False) as second:
        await first.advance(DAY)
        await second.advance(9 * DAY)
        assert timedelta(days=7.9) < await second.now() - await first.now() < timedelta(days=8.1)
        with valkey_server.client(decode_responses=True) as client:
            assert len(client.execute_command("FUNCTION", "LIST", "LIBRARYNAME", "test_pyrula_*")) == 2
    with valkey_server.client(decode_responses=True) as client:
        assert client.execute_command("FUNCTION", "LIST", "LIBRARYNAME", "test_pyrula_*") == []
    await one.aclose()
    await two.aclose()


def test_the_movable_library_is_another_one_and_holds_the_same_functions() -> None:
    ours, moved = library(), movable_library("a")
    assert moved.name not in {ours.name, movable_library("b").name}
    assert "_move'" in moved.source
    assert "_move'" not in ours.source
    assert len(moved.source) - len(ours.source) < 400
