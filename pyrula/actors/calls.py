"""Calls under way, and the scope that a task's calls belong to. State only; the rules are the attempt's."""

from __future__ import annotations

import contextvars
from dataclasses import dataclass
from typing import Final

import anyio

from pyrula.actors.core.scope import Scope

__all__ = ["Call", "InsideStep", "OwnedScope", "call_scope"]


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
    numbered; `retrying`: it waits for its next try; `direct` as of its scope.
    """

    key: str
    label: str
    direct: bool
    task: object | None = None
    scope: anyio.CancelScope | None = None
    interrupted: bool = False
    retrying: bool = False
    settled: bool = False
