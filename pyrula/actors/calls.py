"""Calls under way, and the scope that a task's calls belong to. State only; the rules are the attempt's."""

from __future__ import annotations

import contextvars
import threading
from dataclasses import dataclass
from typing import Final

import anyio

from pyrula.actors.core.scope import Scope

__all__ = ["Call", "InsideStep", "OwnedScope", "ThreadScope", "call_scope"]


class OwnedScope(Scope):
    """A scope that knows whose it is, so that a task can be told to which attempt it belongs.

    `task` is the one that the scope was opened for; others that were started in it share it.
    `chained`: what that task raises reaches the body, by way of gathers alone.
    """

    __slots__ = ("chained", "owner", "task")

    def __init__(self, owner: object, path: str = "") -> None:
        super().__init__(path)
        self.owner = owner
        self.task: object = None
        self.chained = True

    def leg(self, gather: int, index: int) -> OwnedScope:
        return OwnedScope(self.owner, super().leg(gather, index).path)

    def direct(self, task: object) -> bool:
        """True when a cancellation that is raised in this task reaches the body by itself."""
        return self.chained and task is self.task


class ThreadScope(OwnedScope):
    """The scope of a thread of the run's.

    `call`: the call that waits for the thread. `alone`: that call was cancelled, and the thread goes on
    by itself. `cut`: the run was asked to cancel, and the thread makes no more calls.
    """

    __slots__ = ("alone", "call", "cut", "ident")

    def __init__(self, parent: OwnedScope, path: str) -> None:
        super().__init__(parent.owner, path)
        self.chained = False
        self.call: Call | None = None
        self.alone = False
        self.cut = False
        self.ident = 0

    def enter(self) -> None:
        """The calling thread is the one."""
        self.ident = threading.get_ident()

    @property
    def astray(self) -> bool:
        """True in the thread itself: calls are made in the loop."""
        return threading.get_ident() == self.ident


class InsideStep:
    """Stands in a scope's place while a step's function runs."""

    __slots__ = ("owner", "step_id")

    def __init__(self, owner: object, step_id: str) -> None:
        self.owner = owner
        self.step_id = step_id


call_scope: Final[contextvars.ContextVar[OwnedScope | InsideStep]] = contextvars.ContextVar("pyrula_call_scope")


@dataclass(slots=True, eq=False)
class Call:
    """A live call under way.

    `task` (asyncio) or `scope` (trio) is how it is interrupted. `settled`: its outcome is
    numbered; `retrying`: it waits for its next try; `direct` as of its scope; `waited`: a run that
    parks waits for it; `remote`: it is made by a thread.
    """

    key: str
    label: str
    direct: bool
    task: object | None = None
    scope: anyio.CancelScope | None = None
    interrupted: bool = False
    retrying: bool = False
    settled: bool = False
    waited: bool = True
    remote: bool = False
