"""`ctx.emit`: each event once, whatever write a worker dies at."""

from __future__ import annotations

from typing import Any

import pytest

from pyrula.contracts.runs import RunStatus
from pyrula.workflows import Context
from tests.unit.engine.crashing import CrashAt, all_crashes
from tests.unit.engine.harness import Bench

pytestmark = pytest.mark.anyio

LISTENER = "listener"


async def told(ctx: Context) -> list[str]:
    """Events from the body, from a loop and from legs beside each other."""
    ids = [await ctx.emit("order.paid", {"n": n}) for n in range(2)]
    await ctx.sleep(5)
    await ctx.step("s", lambda: 1)
    ids += await ctx.gather(*(ctx.emit("leg", n) for n in range(2)))
    return ids


async def emitted(bench: Bench) -> list[tuple[str, str, bytes]]:
    found = await bench.memory.events_read(LISTENER, limit=100, lease_ms=1)
    return sorted((event.event_id, event.name, event.payload) for event in found)


async def lived(*crashes: tuple[int, bool]) -> tuple[Any, list[tuple[str, str, bytes]], int]:
    """A run whose workers die at these writes; its result, the events, and the writes of its last worker."""
    bench = Bench(told)
    await emitted(bench)
    await bench.submit(run_id="r1")
    deaths = list(crashes)
    while True:
        at, after = deaths.pop(0) if deaths else (None, False)
        bench.store = worker = CrashAt(bench.memory, at, after=after)
        try:
            run = await bench.drive("r1")
        except BaseException as error:
            if not all_crashes(error):
                raise
            await bench.lose()
            continue
        if worker.dead:
            await bench.lose()
            continue
        assert run.status is RunStatus.COMPLETED
        return run.result, await emitted(bench), worker.writes


async def test_events_are_emitted_once_and_their_ids_given() -> None:
    ids, events, _ = await lived()
    assert sorted(each[1:] for each in events) == [
        ("leg", b"0"),
        ("leg", b"1"),
        ("order.paid", b'{"n":0}'),
        ("order.paid", b'{"n":1}'),
    ]
    assert sorted(ids) == [each[0] for each in events]
    assert len(set(ids)) == 4


async def test_a_worker_may_die_at_any_write() -> None:
    expected, events, writes = await lived()
    assert writes >= 10
    deaths = [[(at, after)] for at in range(writes) for after in (False, True)]
    for crashes in [*deaths, [(3, True), (0, False), (1, True)]]:
        result, found, _ = await lived(*crashes)
        assert (result, found) == (expected, events), crashes


async def test_two_runs_emit_events_of_their_own() -> None:
    bench = Bench(told)
    await emitted(bench)
    first, second = await bench.go(), await bench.go()
    assert set(first.result).isdisjoint(second.result)
    assert len(await emitted(bench)) == 8


@pytest.mark.parametrize(("name", "payload"), [("", 1), ("a b", 1), (5, 1), ("x", object())])
async def test_what_cannot_be_emitted_fails_the_run(name: Any, payload: Any) -> None:
    async def body(ctx: Context) -> None:
        await ctx.emit(name, payload)

    run = await Bench(body).go()
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert run.error["code"] in ("invalid_input", "not_encodable")


async def test_none_is_emitted_inside_a_step() -> None:
    bench: Bench

    async def body(ctx: Context) -> None:
        await ctx.step("s", lambda: 1)

        async def inside() -> None:
            await ctx.emit("x")

        await ctx.step("t", inside)

    bench = Bench(body)
    await emitted(bench)
    run = await bench.go()
    assert run.status is RunStatus.FAILED
    assert await emitted(bench) == []
