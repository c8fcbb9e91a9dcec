"""An order and its trace, from the request that submits it over two attempts to its end.

    python traced_order.py [--loop asyncio|trio]

Prints the spans as a tree. With OTEL_EXPORTER_OTLP_ENDPOINT set (`http://localhost:4318`) they are sent there
as well; that needs `opentelemetry-exporter-otlp-proto-http`. Runs on a store in memory and needs no server.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

import anyio
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pyrula.workflows import Context, MemoryStore, Retry, WorkflowWorker, workflow

__all__ = ["order"]

tracer = trace.get_tracer("shop")
_declined = ["once"]


@workflow(name="order")
async def order(ctx: Context, item: str) -> str:
    """Check stock and price side by side, charge, have somebody approve, ship."""
    await ctx.gather(ctx.step("stock", look_up, item), ctx.step("price", look_up, item))
    await ctx.step("charge", charge, retry=Retry(initial=0.05))
    # The run is parked here. The attempt that goes on replays the steps above: they get no second span.
    await ctx.interrupt("ship it?", key="approval")
    return await ctx.step("ship", ship, item)


async def look_up(item: str) -> int:
    """A step, async."""
    await anyio.sleep(0.02)
    return len(item)


async def charge() -> None:
    """A step that fails the first time: each try is a span, and the first one bears the error's type."""
    if _declined:
        raise ConnectionError(_declined.pop())


def ship(item: str) -> str:
    """A plain step, run in a thread. A span of the shop's own, there, is a child of the step's."""
    with tracer.start_as_current_span("carrier"):
        return f"parcel for {item}"


def install() -> InMemorySpanExporter:
    """Set up the SDK; from here on the engine's hooks find a provider."""
    provider = TracerProvider(resource=Resource.create({"service.name": "shop"}))
    kept = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return kept


async def play() -> None:
    """Submit an order within a request, and approve it when it asks."""
    worker = WorkflowWorker(MemoryStore(), [order])
    async with anyio.create_task_group() as tasks:
        await tasks.start(worker.run)
        client = worker.client
        with tracer.start_as_current_span("POST /orders"):
            run = await client.submit(order, {"item": "lamp"})
        async for event in client.events(run.name, run.run_id, follow=True):
            if event.type == "interrupt.raised":
                await client.resume(run.name, run.run_id, answer=True, key="approval")
        print(f"result: {await client.result(run.name, run.run_id)}")
        worker.stop()


def show(spans: Sequence[ReadableSpan]) -> None:
    """Print a tree for each trace, children by their start."""
    children: dict[int | None, list[ReadableSpan]] = {}
    for span in sorted(spans, key=lambda span: span.start_time or 0):
        children.setdefault(span.parent.span_id if span.parent else None, []).append(span)

    def branch(span: ReadableSpan, depth: int) -> None:
        context = span.get_span_context()
        assert context is not None
        took = ((span.end_time or 0) - (span.start_time or 0)) / 1e6
        print(f"{took:8.1f} ms  {'  ' * depth}{span.name}{_remarks(span)}")
        for child in children.get(context.span_id, []):
            branch(child, depth + 1)

    for root in children[None]:
        branch(root, 0)


def _remarks(span: ReadableSpan) -> str:
    attributes = span.attributes or {}
    number = attributes.get("pyrula.try", attributes.get("pyrula.attempt"))
    said = [f"{'try' if 'pyrula.try' in attributes else 'attempt'} {number}"] if number else []
    said += [str(attributes[name]) for name in ("pyrula.status", "error.type") if name in attributes]
    return f"  ({', '.join(said)})" if said else ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="An order and its trace.")
    parser.add_argument("--loop", choices=["asyncio", "trio"], default="asyncio")
    options = parser.parse_args()
    exporter = install()
    anyio.run(play, backend=options.loop)
    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    provider.shutdown()
    show(exporter.get_finished_spans())
