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

from pyrula.cli.wording import clean
from pyrula.contracts.errors import ConfigurationError

if TYPE_CHECKING:
    from types import FrameType

    from anyio.abc import TaskStatus

    from pyrula.workflows.worker import WorkflowWorker

__all__ = ["LoopName", "end_within", "log_to", "run_on", "serve"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
# What a worker that is told to stop at once may take to give its runs back.
_PATIENCE: Final = 3.0
_ABANDONED: Final = "ended with runs in flight; another worker takes them over when their leases run out"


class LoopName(StrEnum):
    """Event loops that a worker can run on."""

    ASYNCIO = "asyncio"
    TRIO = "trio"
    UVLOOP = "uvloop"


def run_on(loop: LoopName, work: Callable[[], Awaitable[int]]) -> int:
    """Run under that loop; the exit code, with which the process ends soon, whatever threads are left.

    Raises `ConfigurationError` when uvloop is asked for and not installed.
    """
    if loop is LoopName.UVLOOP and find_spec("uvloop") is None:
        raise ConfigurationError("uvloop is not installed: pip install 'pyrula[uvloop]'")
    backend = "trio" if loop is LoopName.TRIO else "asyncio"
    options = {"use_uvloop": True} if loop is LoopName.UVLOOP else {}
    code = anyio.run(work, backend=backend, backend_options=options)
    end_within(2.0, code, "ended while the thread of a step was still running")
    return code


def log_to(handler: logging.Handler, *, debug: bool) -> None:
    """Send the log of pyrula and of the user's own code there, from INFO on (DEBUG for pyrula's with `debug`)."""
    handler.setFormatter(_CleanFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    if debug:
        logging.getLogger("pyrula").setLevel(logging.DEBUG)


class _CleanFormatter(logging.Formatter):
    """Messages can hold what a run holds."""

    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record))


async def serve(
    worker: WorkflowWorker,
    *,
    stopping: Callable[[], None],
    beside: Callable[[], Coroutine[Any, Any, object]] | None = None,
) -> int:
    """Run the worker until SIGINT or SIGTERM; the exit code.

    The first signal lets runs in flight finish (`stopping` is called to say so, in a thread), a second
    one gives them back to their queues at once. `beside` runs next to the worker and ends with it.
    """
    at_once: list[int] = []

    async with anyio.create_task_group() as group:

        async def listen(*, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
            with anyio.open_signal_receiver(*_SIGNALS) as received, _impatient(stopping):
                task_status.started()
                stopped = False
                async for number in received:
                    if stopped:
                        at_once.append(128 + number)
                        group.cancel_scope.cancel()
                        return
                    stopped = True
                    worker.stop()

        await group.start(listen)
        if beside is not None:
            group.start_soon(beside)
        await worker.run()
        group.cancel_scope.cancel()
    return at_once[0] if at_once else 0


@contextlib.contextmanager
def _impatient(stopping: Callable[[], None]) -> Iterator[None]:
    """Answer a signal even when a step blocks the loop: say so at the first, end the process after a second.

    The loop's own handlers only work while the loop turns; these stand in front of them.
    """
    count = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count == 1:
            threading.Thread(target=stopping, daemon=True).start()
        elif count == 2:
            end_within(_PATIENCE, 128 + number, _ABANDONED)
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


def end_within(seconds: float, code: int, message: str) -> None:
    """End the process with that code and a line on stderr, unless it has ended in order by then.

    A step's thread cannot be stopped, and an interpreter waits for its threads.
    """

    def end() -> None:
        time.sleep(seconds)
        if sys.stdout.isatty():
            os.write(1, b"\x1b[?25h")  # a live view hides the cursor
        os.write(2, f"pyrula: {message}\n".encode())
        os._exit(code)

    threading.Thread(target=end, daemon=True).start()
