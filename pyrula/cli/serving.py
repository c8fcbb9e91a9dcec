"""Running a worker in this process until somebody stops it: once in order, twice at once.

Used by `pyrula worker` and `pyrula dev`. It knows signals and loops, and nothing of what is shown.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from enum import StrEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import anyio

from pyrula.contracts.errors import ConfigurationError

if TYPE_CHECKING:
    from types import FrameType

    from anyio.abc import TaskStatus

    from pyrula.workflows.worker import WorkflowWorker

__all__ = ["LoopName", "log_to", "run_on", "serve"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
# What a worker that is told to stop at once may take to give its runs back.
_PATIENCE: Final = 3.0


class LoopName(StrEnum):
    """Event loops that a worker can run on."""

    ASYNCIO = "asyncio"
    TRIO = "trio"
    UVLOOP = "uvloop"


def run_on(loop: LoopName, work: Callable[[], Awaitable[int]]) -> int:
    """Run under that loop. Raises `ConfigurationError` when uvloop is asked for and not installed."""
    if loop is LoopName.UVLOOP and find_spec("uvloop") is None:
        raise ConfigurationError("uvloop is not installed: pip install 'pyrula[uvloop]'")
    backend = "trio" if loop is LoopName.TRIO else "asyncio"
    options = {"use_uvloop": True} if loop is LoopName.UVLOOP else {}
    return anyio.run(work, backend=backend, backend_options=options)


def log_to(handler: logging.Handler, *, debug: bool) -> None:
    """Send the log of pyrula and of the user's own code there, from INFO on (DEBUG for pyrula's with `debug`)."""
    formatter = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    if debug:
        logging.getLogger("pyrula").setLevel(logging.DEBUG)


async def serve(
    worker: WorkflowWorker,
    *,
    stopping: Callable[[], None],
    beside: Callable[[], Coroutine[Any, Any, object]] | None = None,
) -> int:
    """Run the worker until SIGINT or SIGTERM; the exit code.

    The first signal lets runs in flight finish (`stopping` is called to say so), a second one
    gives them back to their queues at once. `beside` runs next to the worker and ends with it.
    """
    at_once: list[int] = []

    async with anyio.create_task_group() as group:

        async def listen(*, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
            with anyio.open_signal_receiver(*_SIGNALS) as received, _impatient():
                task_status.started()
                stopped = False
                async for number in received:
                    if stopped:
                        at_once.append(128 + number)
                        group.cancel_scope.cancel()
                        return
                    stopped = True
                    stopping()
                    worker.stop()

        await group.start(listen)
        if beside is not None:
            group.start_soon(beside)
        await worker.run()
        group.cancel_scope.cancel()
    return at_once[0] if at_once else 0


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """See to it that a second signal ends the process even when a step blocks the loop or will not end.

    The loop's own handlers only work while the loop turns; these stand in front of them.
    """
    count = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count == 2:
            threading.Thread(target=_end_process, args=(number,), daemon=True).start()
        before = previous[number]
        if callable(before):
            before(number, frame)

    previous = {int(number): signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in _SIGNALS:
            signal.signal(number, previous[int(number)])


def _end_process(number: int) -> None:
    time.sleep(_PATIENCE)
    if sys.stdout.isatty():
        os.write(1, b"\x1b[?25h")  # a live view hides the cursor
    os.write(2, b"pyrula: ended with runs in flight; another worker takes them over when their leases run out\n")
    os._exit(128 + number)
