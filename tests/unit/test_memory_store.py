"""The memory store keeps the contract of every store, and what it alone promises."""

from __future__ import annotations

import threading

import anyio
import pytest
from anyio.lowlevel import checkpoint

from pyrula.contracts.errors import RunNotFound
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import BellKind, Lease, LeaseKeeper, Parking, Store, Timers
from pyrula.testing.store_contract import StoreContract
from pyrula.testing.store_contract.scenes import (
    WORKFLOW,
    claimed,
    claims,
    finished,
    message,
    new_run,
    note,
    parked,
    submit,
)
from pyrula.workflows.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 1_700_000_000.0

    def __call__(self) -> float:
        return self.seconds


class TestOnTheSystemsClock(StoreContract):
    """The contract, as time goes by."""

    @pytest.fixture
    async def store(self) -> MemoryStore:
        return MemoryStore()


class TestOnAVirtualClock(StoreContract):
    """The contract while time stands still between the moments that a test lets pass."""

    clock: Clock

    @pytest.fixture
    async def store(self) -> MemoryStore:
        self.clock = Clock()
        return MemoryStore(clock=self.clock)

    async def pass_time(self, store: Store, seconds: float) -> None:
        self.clock.seconds += seconds
        await checkpoint()


def test_it_offers_every_capability() -> None:
    store = MemoryStore()
    assert isinstance(store, Store)
    assert isinstance(store, Timers)
    assert isinstance(store, LeaseKeeper)


async def test_times_are_the_clocks() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    assert await store.now() == 1_700_000_000_000_000
    clock.seconds += 12.345678
    [answer] = await submit(store, "r1", delay_ms=1500)
    assert answer.submitted_at == 1_700_000_012_345_678
    assert await store.next_due(WORKFLOW) == 1_700_000_013_845_678
    clock.seconds += 1.5
    assert await store.wake(WORKFLOW, limit=10) == 1
    [claim] = await claims(store, 1)
    assert claim.now == 1_700_000_013_845_678


async def test_leases_and_retention_follow_the_clock() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    claim = await claimed(store, lease_ms=30_000)
    await finished(store, "r2", keep_ms=60_000)
    clock.seconds += 29.9
    assert await store.sweep(WORKFLOW, limit=10, requeue_budget=9, keep_ms=0) == 0
    await store.heartbeat([Lease(WORKFLOW, "r1", claim.epoch)], lease_ms=30_000)
    clock.seconds += 29.9
    assert await store.sweep(WORKFLOW, limit=10, requeue_budget=9, keep_ms=0) == 0
    clock.seconds += 0.3
    assert await store.sweep(WORKFLOW, limit=10, requeue_budget=9, keep_ms=0) == 1
    with pytest.raises(RunNotFound):
        await store.load(WORKFLOW, "r2")


async def test_runs_of_one_moment_keep_the_order_they_came_in() -> None:
    store = MemoryStore(clock=Clock())
    names = ["r3", "r1", "r2", "r5", "r4"]
    await store.submit([new_run(name) for name in names])
    assert [claim.run_id for claim in await claims(store, 5)] == names
    pages: list[str] = []
    cursor: str | None = None
    while True:
        page = await store.listing([WORKFLOW], limit=2, cursor=cursor)
        pages += [record.run_id for record in page.runs]
        if (cursor := page.cursor) is None:
            break
    assert pages == names[::-1]


async def test_priority_is_a_head_start_of_a_minute_a_step() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    await submit(store, "old")
    clock.seconds += 59
    await submit(store, "soon", priority=1)
    clock.seconds += 2
    await submit(store, "too late", priority=1)
    await submit(store, "plain")
    assert [claim.run_id for claim in await claims(store, 4)] == ["soon", "old", "too late", "plain"]


async def test_a_clock_that_is_set_back_does_no_harm() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    await submit(store, "r1")
    clock.seconds -= 3600
    await submit(store, "r2")
    assert [record.run_id for record in (await store.listing([WORKFLOW])).runs] == ["r1", "r2"]
    assert {claim.run_id for claim in await claims(store, 2)} == {"r1", "r2"}


async def test_a_listener_who_does_not_listen_is_told_to_look() -> None:
    store = MemoryStore()
    await claimed(store)
    async with store.bells([WORKFLOW]) as listener:
        for n in range(5000):
            await store.deliver(WORKFLOW, "r1", message(f"m{n}"))
        bells = [await listener.next()]
        with anyio.move_on_after(0.05):
            while True:
                bells.append(await listener.next())
    assert bells[0].kind == BellKind.LOOK
    assert len(bells) < 2000
    assert {bell.kind for bell in bells[1:]} == {BellKind.INBOX}


async def test_an_abandoned_wait_for_a_bell_loses_none() -> None:
    store = MemoryStore()
    async with store.bells([WORKFLOW]) as listener:
        for _ in range(3):
            with anyio.move_on_after(0):
                await listener.next()
        await submit(store, "r1")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await listener.next()
        with anyio.fail_after(5):
            assert (await listener.next()).kind == BellKind.QUEUED


async def test_listeners_are_forgotten() -> None:
    store = MemoryStore()
    for n in range(10):
        async with (
            store.bells([WORKFLOW, f"w{n}"]),
            store.wait_end(WORKFLOW, f"r{n}"),
            store.tail(WORKFLOW, f"r{n}") as chunks,
        ):
            await submit(store, f"r{n}")
            await claims(store, 1)
            await chunks.__anext__()
    exchange = store._exchange
    assert (exchange._workers, exchange._ends, exchange._followers) == ({}, {}, {})


async def test_ended_runs_take_no_memory_after_their_time() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    for n in range(3000):
        run_id = f"r{n}"
        await finished(store, run_id, owner=f"o{n % 7}", keep_ms=1000)
        await store.deliver(WORKFLOW, run_id, message("m1"))
        clock.seconds += 0.01
        await store.sweep(WORKFLOW, limit=10, requeue_budget=9, keep_ms=0)
        assert await store.count([WORKFLOW]) <= 101
    clock.seconds += 2
    while await store.count([WORKFLOW]):
        await store.sweep(WORKFLOW, limit=10, requeue_budget=9, keep_ms=0)
    shard = store._shards[WORKFLOW]
    assert (len(shard.runs), len(shard._queue._queues), len(shard._claims), len(shard._kept)) == (0, 0, 0, 0)
    assert (len(store._index._places), len(store._index._runs)) == (0, 0)
    assert sum(len(ranking._heap) for ranking in (shard._claims, shard._timers, shard._kept)) < 500


async def test_timers_and_leases_that_were_moved_take_no_memory() -> None:
    store = MemoryStore()
    claim = await claimed(store)
    for _ in range(3000):
        assert await store.heartbeat([Lease(WORKFLOW, "r1", claim.epoch)], lease_ms=60_000) == []
    await store.requeue(claim, 2)
    far = await store.now() + 10**12
    for n in range(1000):
        [claim] = await claims(store, 1)
        await store.park(claim, claim.seq, [], Parking(RunStatus.WAITING, "signal:go", far, inbox_seen=n))
        await store.deliver(WORKFLOW, "r1", message(f"m{n}"))
    shard = store._shards[WORKFLOW]
    assert max(len(shard._claims._heap), len(shard._timers._heap)) < 200


async def test_leases_are_renewed_by_a_thread_while_the_loop_works() -> None:
    store = MemoryStore()
    held = [await claimed(store, f"held{n}", lease_ms=200) for n in range(20)]
    leases = [Lease(WORKFLOW, claim.run_id, claim.epoch) for claim in held]
    stop = threading.Event()
    lost: list[Lease] = []
    rounds = 0

    def keep() -> None:
        nonlocal rounds
        while not stop.is_set():
            lost.extend(store.heartbeat_sync(leases, lease_ms=200))
            rounds += 1
            stop.wait(0.001)

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        start = await store.now()
        n = 0
        while await store.now() < start + 600_000:
            n += 1
            await finished(store, f"r{n}", keep_ms=0)
            assert await store.sweep(WORKFLOW, limit=100, requeue_budget=9, keep_ms=0) == 0
    finally:
        stop.set()
        thread.join()
    assert lost == []
    assert rounds > 10
    for claim in held:
        await store.append(claim, 2, [note(claim, "a")])


def test_it_is_used_by_several_loops_one_after_the_other() -> None:
    store = MemoryStore()

    async def use(n: int) -> list[str]:
        async with store.bells([WORKFLOW]) as listener, store.wait_end(WORKFLOW, f"r{n}") as end:
            await finished(store, f"r{n}")
            with anyio.fail_after(5):
                return [(await listener.next()).kind, (await end.next()).run_id]

    for n, backend in enumerate(["asyncio", "trio", "asyncio", "trio"]):
        assert anyio.run(use, n, backend=backend) == [BellKind.QUEUED, f"r{n}"]


async def test_what_it_gives_out_does_not_change_afterwards() -> None:
    store = MemoryStore()
    await parked(store)
    await store.deliver(WORKFLOW, "r1", message("m1"))
    [claim] = await claims(store, 1)
    record = await store.load(WORKFLOW, "r1")
    inbox = await store.inbox(claim)
    journal = await store.read_journal(WORKFLOW, "r1")
    values = await store.committed(WORKFLOW, "r1")
    before = (list(claim.entries), list(claim.inbox), list(inbox), list(journal), dict(values), record)
    await store.append(claim, claim.seq, [b'[1,"step.completed",1,2,"k",{}]'], consumed=[message("m1").raw])
    await store.commit(claim, "k", b"1")
    assert (list(claim.entries), list(claim.inbox), list(inbox), list(journal), dict(values), record) == before
