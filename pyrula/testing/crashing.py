"""A store in front of another one, through which a worker dies at a chosen write. What was written stays.

From the crash on every call through it fails in the same way, so that nothing the dying worker still
does in its clean-up can be seen by anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from pyrula.contracts.store import Store

__all__ = ["CrashAt", "Crashed", "all_crashes"]

_WRITES: Final = frozenset({"append", "park", "finish", "requeue", "commit", "write_output", "set_attributes", "emit"})

_JOURNALED: Final = frozenset({"append", "park", "finish"})  # with the entries behind claim and seq


class Crashed(BaseException):
    """The worker is dead. No body and no engine may take it for something else."""


def all_crashes(error: BaseException) -> bool:
    """True when nothing else than the crash came out of a dead worker, however grouped."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(all_crashes, error.exceptions))
    return isinstance(error, Crashed)


class CrashAt:
    """Passes everything on to `inner`; at write number `at` (from 0) the worker dies, before or after it.

    `at=None` counts the writes and never crashes. `died_with` are the entries of the last write.
    """

    def __init__(self, inner: Store, at: int | None = None, *, after: bool = False) -> None:
        self.inner = inner
        self.at = at
        self.after = after
        self.writes = 0
        self.dead = False
        self.died_with: Sequence[bytes] = ()
        # As attributes of its own: what a store can do is looked for without its `__getattr__`.
        for name in dir(inner):
            if not name.startswith("_") and callable(found := getattr(inner, name)):
                setattr(self, name, self._write(found) if name in _WRITES else self._call(found))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def die(self) -> None:
        """The worker is dead from here on."""
        self.dead = True
        raise Crashed

    async def written(self, number: int) -> None:
        """A write has been made and its worker lives; for subclasses."""

    def _call(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.dead:
                raise Crashed
            return method(*args, **kwargs)

        return call

    def _write(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def write(*args: Any, **kwargs: Any) -> Any:
            if self.dead:
                raise Crashed
            number = self.writes
            self.writes += 1
            if number == self.at and method.__name__ in _JOURNALED:
                self.died_with = args[2]
            if number == self.at and not self.after:
                self.die()
            answer = await method(*args, **kwargs)
            if number == self.at:
                self.die()
            await self.written(number)
            return answer

        return write
