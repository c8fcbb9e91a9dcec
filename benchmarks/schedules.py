"""Many schedules due in the same second, and worker processes that share them.

The figure is the time from the moment all are due until the last run is in the store, by the server's
own clock. Each must have fired once.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections import Counter
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection

import anyio

from pyrula.testing.servers import PrivateServer
from pyrula.workflows import Context, ValkeyStore, WorkerOptions, WorkflowClient, WorkflowWorker, workflow
from pyrula.workflows.schedules import Schedule

__all__ = ["main"]

_LIMIT = 5.0  # seconds
_TOGETHER = 100


@workflow(name="bench-scheduled")
async def scheduled(ctx: Context) -> None:
    """Nothing: what is measured is how it comes to be started."""


def _serve(url: str, told: Connection) -> None:
    async def serve() -> None:
        worker = WorkflowWorker(ValkeyStore(url), [scheduled], WorkerOptions(max_concurrent_runs=50))
        async with anyio.create_task_group() as group:
            await group.start(worker.run)
            told.send("ready")
            await anyio.to_thread.run_sync(told.recv)
            worker.stop()

    anyio.run(serve)


async def _created(store: ValkeyStore, count: int, due: datetime) -> None:
    async def some(first: int) -> None:
        for n in range(first, count, _TOGETHER):
            cron = f"{due.minute} {due.hour} {due.day} {due.month} * {due.second}"
            await store.aschedule_create(Schedule.create(scheduled, cron, schedule_id=f"s{n}"))

    async with anyio.create_task_group() as group:
        for first in range(_TOGETHER):
            group.start_soon(some, first)


async def _measured(url: str, count: int, lead: float, workers: list[Connection]) -> float:
    store = ValkeyStore(url)
    client = WorkflowClient(store)
    due = (datetime.now(UTC) + timedelta(seconds=lead)).replace(microsecond=0)
    await _created(store, count, due)
    if datetime.now(UTC) >= due:
        raise SystemExit("the schedules took too long to create; give more --lead")
    for told in workers:
        await anyio.to_thread.run_sync(told.recv)
    while await client.count("bench-scheduled", status="completed") < count:  # noqa: ASYNC110 - it is in a server
        await anyio.sleep(0.5)
    last = due
    started: Counter[str] = Counter()
    cursor: str | None = None
    while True:
        page = await client.list("bench-scheduled", limit=1000, cursor=cursor)
        started.update(str(run.attributes["schedule_id"]) for run in page)
        last = max([last, *(run.submitted_at for run in page)])
        cursor = page.cursor
        if cursor is None:
            break
    await store.aclose()
    if len(started) != count or set(started.values()) != {1}:
        raise SystemExit(f"{len(started)} of {count} fired; some {max(started.values())} times")
    return (last - due).total_seconds()


def main() -> None:
    """Print the figure; exit with 1 when it is over the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--lead", type=float, default=25.0, help="seconds until they are due")
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with PrivateServer({"appendfsync": "everysec"}) as server:
        ends = [spawn.Pipe() for _ in range(options.workers)]
        processes = [spawn.Process(target=_serve, args=(server.url, theirs)) for _, theirs in ends]
        for process in processes:
            process.start()
        try:
            took = anyio.run(_measured, server.url, options.schedules, options.lead, [ours for ours, _ in ends])
        finally:
            for ours, _ in ends:
                ours.send("stop")
            for process in processes:
                process.join()
    met = "" if took <= _LIMIT else "  MISSED"
    print(
        f"{options.schedules:,} schedules due in one second, {options.workers} workers: each fired once, "
        f"the last {took:.2f} s after it was due; at most {_LIMIT:g} s{met}"
    )
    raise SystemExit(took > _LIMIT)


if __name__ == "__main__":
    main()
