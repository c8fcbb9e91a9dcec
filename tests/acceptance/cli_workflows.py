"""Workflows that the command line's tests serve, through a worker process."""

from __future__ import annotations

import time
from typing import Any

from pyrula.workflows import Context, NonRetryable, workflow


async def price(sku: str) -> int:
    return 100 * len(sku)


async def pay() -> None:
    raise NonRetryable("the card\nwas refused \x1b[31m")


def work(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@workflow
async def order(ctx: Context, skus: list[str]) -> dict[str, int]:
    ctx.set_attributes(size=len(skus))
    total = 0
    for sku in skus:
        total += await ctx.step(f"price:{sku}", price, sku)
        await ctx.stream(f"priced {sku}")
    await ctx.commit("total", total)
    return {"total": total}


@workflow
async def approval(ctx: Context, amount: int) -> list[Any]:
    answer = await ctx.interrupt({"approve": amount}, key="boss")
    return [answer, await ctx.wait_for_signal("paid")]


@workflow
async def doomed(ctx: Context) -> None:
    await ctx.step("pay", pay)


@workflow
async def steady(ctx: Context, seconds: float) -> float:
    await ctx.stream("under way")
    return await ctx.step("work", work, seconds)
