"""A worker process that writes each span it ends to a file at once: started by the tracing tests.

python traced_worker.py URL NAMESPACE SPANS LOOP HOLD
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from pyrula.workflows import Context, ValkeyStore, WorkerOptions, WorkflowWorker, workflow


class FileExporter(SpanExporter):
    """One JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._path.open("a") as file:
            file.writelines(f"{span.to_json(indent=None)}\n" for span in spans)
        return SpanExportResult.SUCCESS


@workflow(name="traced-processes")
async def body(ctx: Context) -> str:
    """Three steps; the second one holds while a file is there."""
    await ctx.step("first", quick)
    await ctx.step("second", held)
    return await ctx.step("third", quick)


def quick() -> str:
    return "done"


def held() -> None:
    hold = Path(sys.argv[5])
    if hold.exists():
        hold.with_name("hold.reached").touch()
    while hold.exists():
        time.sleep(0.01)


async def main(url: str, namespace: str) -> None:
    """Serve until killed. Leases are short, so that a killed worker's run is soon found."""
    store = ValkeyStore(url, namespace=namespace, lock_ttl=1.0)
    await WorkflowWorker(store, [body], WorkerOptions(orphan_scan_interval=0.2)).run()


if __name__ == "__main__":
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(FileExporter(Path(sys.argv[3]))))
    trace.set_tracer_provider(provider)
    anyio.run(main, sys.argv[1], sys.argv[2], backend=sys.argv[4])
