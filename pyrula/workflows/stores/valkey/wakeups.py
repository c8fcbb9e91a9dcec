"""How one waiting task is woken, at the least price that its loop allows.

Under trio a task is woken directly; everywhere else by anyio's event. Nothing here knows what for.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from anyio.lowlevel import current_token

if TYPE_CHECKING:
    from trio.lowlevel import Abort, Task

__all__ = ["Wakeup", "wakeup_kind"]


class Wakeup(Protocol):
    """For one task, once: it waits, and another sets it, or the other way round."""

    def set(self) -> object: ...

    def wait(self) -> Coroutine[Any, Any, object]: ...


def wakeup_kind() -> Callable[[], Wakeup]:
    """The running loop's kind. Asked once a connection: asking costs as much as a wake-up."""
    if "trio" in current_token().backend_class.__module__:
        return _trio_kind()
    return type(anyio.Event())


def _trio_kind() -> Callable[[], Wakeup]:
    from trio.lowlevel import Abort, checkpoint, current_task, reschedule, wait_task_rescheduled

    class TaskWakeup:
        """A third cheaper than `trio.Event`, which keeps a set of tasks and can be waited for again."""

        __slots__ = ("_set", "_task")

        def __init__(self) -> None:
            self._set = False
            self._task: Task | None = None

        def set(self) -> None:
            self._set = True
            if self._task is not None:
                task, self._task = self._task, None
                reschedule(task)

        def wait(self) -> Coroutine[Any, Any, object]:
            if self._set:
                return checkpoint()  # noqa: ASYNC105  # the caller awaits it: a frame less
            self._task = current_task()
            return wait_task_rescheduled(self._abort)  # noqa: ASYNC105

        def _abort(self, _: object) -> Abort:
            self._task = None
            return Abort.SUCCEEDED

    return TaskWakeup
