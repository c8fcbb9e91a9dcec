"""An order that a person must approve: the run waits, for as long as it takes, and holds no worker meanwhile.

    python order.py [--deny] [--loop asyncio|trio]

Starts everything it needs in this process: an embedded server, a worker, and a client that plays the person.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Literal

import anyio

from pyrula.workflows import Context, ValkeyStore, WorkflowClient, WorkflowWorker, workflow

__all__ = ["Approval", "Receipt", "order"]

PRICES = {"lamp": Decimal("89.90"), "desk": Decimal("640.00")}
# Orders below this go through without anybody being asked.
APPROVE_FROM = Decimal(500)


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of a run."""

    status: Literal["shipped", "denied"]
    total: Decimal
    parcel: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Approval:
    """What the person answers."""

    approved: bool
    reason: str | None = None


@workflow(name="order")
async def order(ctx: Context, item: str, quantity: int) -> Receipt:
    """Price an order, have a large one approved, charge, ship."""
    total = await ctx.step("price", price, item, quantity)

    if total >= APPROVE_FROM:
        # The run is parked here. Workers may come and go; the question stays until someone answers it.
        answer = Approval(**await ctx.interrupt({"approve": f"{quantity} x {item} for {total}?"}, key="approval"))
        if not answer.approved:
            return Receipt("denied", total, reason=answer.reason)

    # Charging twice would be worse than not knowing: after a crash in the middle this step fails instead.
    await ctx.step("charge", charge, total, at_most_once=True)
    parcel = await ctx.step("ship", ship, item, quantity)
    return Receipt("shipped", total, parcel=parcel)


async def price(item: str, quantity: int) -> Decimal:
    """A step. Its result comes back as annotated, whether it ran just now or before a crash."""
    return PRICES[item] * quantity


async def charge(amount: Decimal) -> None:
    """A step. A real one would call a payment service."""
    print(f"  charged {amount}")


async def ship(item: str, quantity: int) -> str:
    """A step. Gives the number of the parcel."""
    return f"parcel-{quantity}-{item}"


async def main(approval: Approval) -> None:
    """Submit an order for two desks, answer its question, show how it ended."""
    with tempfile.TemporaryDirectory() as directory:
        store = ValkeyStore(url=f"embedded://{directory}")
        worker = WorkflowWorker(store)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(worker.run)
                await play(worker.client, approval)
                worker.stop()
        finally:
            await store.aclose()


async def play(client: WorkflowClient, approval: Approval) -> None:
    """The part of everybody outside the workflow."""
    run = await client.submit("order", {"item": "desk", "quantity": 2})
    print(f"submitted run {run.run_id}")

    # The journal as it is written: every outcome, in order, until the run ends.
    async for event in client.events(run.name, run.run_id, follow=True):
        print(f"  {event.seq} {event.type:20} {event.key}")
        if event.type == "interrupt.raised":
            print(f"waiting for an answer: {event.data['question']}")
            await client.resume(run.name, run.run_id, approval, key="approval")

    receipt = await client.result(run.name, run.run_id)
    print(f"result: {receipt}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="An order with a human approval.")
    parser.add_argument("--deny", action="store_true", help="say no")
    parser.add_argument("--loop", choices=["asyncio", "trio"], default="asyncio")
    options = parser.parse_args()
    said = Approval(False, "too expensive") if options.deny else Approval(True)
    anyio.run(partial(main, said), backend=options.loop)
