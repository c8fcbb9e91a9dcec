"""Where in the body a call stands: the scope's path and the n-th use of an id in it. Pure.

Keys: `<scope><label>` for the first use of a label in a scope, `<scope><label>#<n>` for the
n-th. A scope's path is empty for the body's root and `g<k>.<i>/` for leg i of the k-th gather
of its parent. Labels that the engine gives itself begin with `@`; a user's id that could be
mistaken for a path, an occurrence or one of those is escaped with `%`.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["VALUE", "WAIT", "Scope", "escape", "gather_prefix"]

WAIT: Final = "@wait"
VALUE: Final = "@value"
_SPECIAL: Final = re.compile(r"[%#/]|^@")


def escape(label: str) -> str:
    """A user's id as part of a key: unchanged unless it holds `%`, `#`, `/` or begins with `@`."""
    if _SPECIAL.search(label) is None:
        return label
    return _SPECIAL.sub(lambda found: f"%{ord(found.group()):02X}", label)


class Scope:
    """The calls of one branch of the body: how often each label was used, which ids run right now."""

    __slots__ = ("_gathers", "_used", "path", "running")

    def __init__(self, path: str = "") -> None:
        self.path = path
        self.running: set[str] = set()
        self._used: dict[str, int] = {}
        self._gathers = 0

    def key(self, label: str) -> str:
        """The key of the next use of a label (already escaped)."""
        count = self._used.get(label, 0) + 1
        self._used[label] = count
        return f"{self.path}{label}" if count == 1 else f"{self.path}{label}#{count}"

    def next_gather(self) -> int:
        """The number of the next gather in this scope, from 1."""
        self._gathers += 1
        return self._gathers

    def leg(self, gather: int, index: int) -> Scope:
        """The scope of a leg of a gather, from 0."""
        return Scope(f"{self.path}g{gather}.{index}/")

    @property
    def in_gather(self) -> bool:
        """True inside a leg of a gather."""
        return self.path != ""


def gather_prefix(key: str) -> str | None:
    """What the keys of all legs of a key's innermost gather begin with; None outside gathers."""
    path, slash, _ = key.rpartition("/")
    if not slash:
        return None
    return path.rpartition(".")[0] + "."
