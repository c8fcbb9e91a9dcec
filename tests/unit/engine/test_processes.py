"""Functions over items in worker processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from pyrula.actors.running import Ended, run_attempt
from pyrula.contracts.errors import InvalidInput, WorkerProcessDied
from pyrula.workflows.context import Context
from tests.unit.engine import processes
from tests.unit.engine.harness import Bench, outcomes, until

pytestmark = pytest.mark.anyio


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def test_results_come_in_item_order_from_other_processes() -> None:
    async def body(ctx: Context) -> list[Any]:
        squares = await ctx.par_map(processes.square, range(5), workers=2)
        pids = await ctx.par_map(processes.of_process, range(2), workers=1)
        empty = await ctx.par_map(processes.square, [])
        return [squares, os.getpid() in pids, len(set(pids)), empty]

    bench = Bench(body)
    assert (await bench.go()).result == [[0, 1, 4, 9, 16], False, 1, []]
    assert outcomes(await bench.events("r1")) == {}


async def test_inside_a_step_its_result_is_the_steps() -> None:
    async def body(ctx: Context) -> list[int]:
        found: list[int] = await ctx.step("squares", ctx.par_map, processes.square, [2, 3], workers=1)
        return found

    bench = Bench(body)
    assert (await bench.go()).result == [4, 9]
    assert list(outcomes(await bench.events("r1"))) == ["squares"]


async def test_the_first_item_that_failed_is_raised_and_a_dead_process_is_told() -> None:
    async def body(ctx: Context) -> str:
        with pytest.raises(ValueError, match="1 is odd"):
            await ctx.par_map(processes.fail_odd, [0, 1, 2, 3], workers=1)
        with pytest.raises(WorkerProcessDied, match="item 0"):
            await ctx.par_map(processes.die, [0], workers=1)
        return "done"

    assert (await Bench(body).go()).result == "done"


async def test_what_cannot_be_sent_is_refused() -> None:
    async def body(ctx: Context) -> str:
        with pytest.raises(InvalidInput, match="cannot send fn"):
            await ctx.par_map(lambda x: x, [1])
        unsendable: list[Any] = [1, lambda: None]
        with pytest.raises(InvalidInput, match=r"cannot send items\[1\]"):
            await ctx.par_map(processes.square, unsendable)
        wrong: list[Any] = [0, True, "2"]
        for bound in wrong:
            with pytest.raises(InvalidInput, match="workers="):
                await ctx.par_map(processes.square, [1], workers=bound)
        return "done"

    assert (await Bench(body).go()).result == "done"


async def test_a_cancel_request_kills_the_process(tmp_path: Path) -> None:
    file = tmp_path / "pid"

    async def body(ctx: Context) -> None:
        await ctx.par_map(processes.sleep_for_ever, [str(file)])

    bench = Bench(body)
    run = await bench.submit()
    attempt = bench.attempt(await bench.claim(run.run_id))
    ended: list[Ended] = []

    async def work() -> None:
        ended.append(await run_attempt(attempt))

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await until(lambda: file.exists() and file.read_text(), seconds=15)
        await bench.client.cancel(bench.name, run.run_id)
        attempt.receive(await bench.memory.inbox(attempt.claim))
    assert ended[0].how == "cancelled"
    await until(lambda: gone(int(file.read_text())))
