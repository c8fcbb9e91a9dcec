"""A reminder that sleeps: the sleep is kept by the server, so no worker need be there while it lasts.

    python reminder.py [TEXT] [--after SECONDS] [--loop asyncio|trio]

Stops the worker as soon as the run sleeps, and starts another when half of the time has passed.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial

import anyio

from pyrula.workflows import Context, Run, ValkeyStore, WorkflowClient, WorkflowWorker, workflow

__all__ = ["remind"]


@workflow(name="remind")
async def remind(ctx: Context, text: str, after: timedelta) -> str:
    """Note a text, wait, deliver it."""
    # Not datetime.now(): every attempt must see the time at which the run began.
    noted_at = await ctx.now()
    await ctx.sleep_until(noted_at + after)
    return await ctx.step("deliver", deliver, text, noted_at)


async def deliver(text: str, noted_at: datetime) -> str:
    """A step. A real one would send a mail."""
    return f"{text} (noted at {noted_at:%H:%M:%S})"


@asynccontextmanager
async def working(store: ValkeyStore) -> AsyncIterator[None]:
    """A worker, for as long as the block lasts."""
    worker = WorkflowWorker(store)
    async with anyio.create_task_group() as tasks:
        await tasks.start(worker.run)
        yield
        worker.stop()


async def main(text: str, seconds: float) -> None:
    """Start everything, and let a reminder sleep while no worker runs."""
    with tempfile.TemporaryDirectory() as directory:
        store = ValkeyStore(url=f"embedded://{directory}")
        try:
            await play(store, text, timedelta(seconds=seconds))
        finally:
            await store.aclose()


async def play(store: ValkeyStore, text: str, after: timedelta) -> None:
    """One reminder, two workers."""
    client = WorkflowClient(store)
    run = await client.submit(remind, {"text": text, "after": after})
    asleep = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow, client, run, asleep)
        async with working(store):
            print("a worker runs")
            await asleep.wait()
        run = await client.get(run.name, run.run_id)
        print(f"the worker has stopped; the run is {run.status} until {run.wake_at:%H:%M:%S}")
        await anyio.sleep(after.total_seconds() / 2)
        async with working(store):
            print("another worker runs")
            print(f"reminded: {await client.result(run.name, run.run_id)}")


async def follow(client: WorkflowClient, run: Run, asleep: anyio.Event) -> None:
    """Show the journal as it is written, and tell when the run goes to sleep."""
    async for event in client.events(run.name, run.run_id, follow=True):
        print(f"  {event.at:%H:%M:%S} {event.type}")
        if event.type == "timer.set":
            asleep.set()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A reminder that outlives its worker.")
    parser.add_argument("text", nargs="?", default="water the plants")
    parser.add_argument("--after", type=float, default=4.0, metavar="SECONDS")
    parser.add_argument("--loop", choices=["asyncio", "trio"], default="asyncio")
    options = parser.parse_args()
    anyio.run(partial(main, options.text, options.after), backend=options.loop)
