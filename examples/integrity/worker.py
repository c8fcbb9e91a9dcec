"""A worker process of the demo. It ends on SIGTERM, and by itself when the process that started it is gone.

    python worker.py URL [--loop asyncio|trio]

The start and stop of a worker live here, and how fast a crash is noticed.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading

import anyio
import workflows

from pyrula.workflows import ValkeyStore, WorkerOptions, WorkflowWorker

__all__: list[str] = []

# A worker renews its claims every third of this time; one that was killed no longer does, and its
# runs are free as soon as it has passed. Short, so that the demo need not wait for half a minute.
LOCK_TTL = 3.0
# How often every worker looks for such runs.
ORPHAN_SCAN = 1.0


def main() -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(description="A worker for the integrity demo.")
    parser.add_argument("url", help="where the runs are, as for ValkeyStore")
    parser.add_argument("--loop", choices=["asyncio", "trio"], default="asyncio")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    anyio.run(serve, options.url, backend=options.loop)


async def serve(url: str) -> None:
    """Run the worker; its store is closed behind it."""
    store = ValkeyStore(url=url, lock_ttl=LOCK_TTL)
    worker = WorkflowWorker(
        store,
        workflows=[workflows.verify_distribution],
        options=WorkerOptions(orphan_scan_interval=ORPHAN_SCAN),
    )

    def watch_parent() -> None:
        # The other end of standard input closes when its holder ends, however it ended.
        sys.stdin.read()
        worker.stop()

    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    threading.Thread(target=watch_parent, daemon=True).start()
    try:
        await worker.run()
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()


if __name__ == "__main__":
    main()
