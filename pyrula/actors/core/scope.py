"""Where in the body a call stands: the scope's path and the n-th use of an id in it. Pure.

Keys: `<scope><label>` for the first use of a label in a scope, `<scope><label>#<n>` for the
n-th. A scope's path is empty for the body's root and `g<k>.<i>/` for leg i of the k-th gather
of its parent. Labels that the engine gives itself begin with `@`; a user's id that could be
mistaken for a path, an occurrence or one of those is escaped with `%`.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["VALUE", "WAIT", "Scope", "Tail", "escape"]

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


class Tail:
    """Which branches a journal's last records stand in, read from its end: is a record the last of its branch?

    Legs of one gather stand beside each other. A record of a scope itself is in sequence with all
    that is below that scope, and gathers of one scope are in sequence with each other.
    """

    __slots__ = ("_gathers", "_scopes")

    def __init__(self) -> None:
        self._scopes: set[str] = set()  # paths that have a record of their own
        self._gathers: dict[str, set[str]] = {}  # path -> its gathers whose legs have records

    def add(self, key: str) -> bool:
        """Take in the record before those known; False when nothing can be the last of its branch any more."""
        path = ""
        for part in key.split("/")[:-1]:
            self._gathers.setdefault(path, set()).add(part.partition(".")[0])
            path += part + "/"
        self._scopes.add(path)
        return path != ""

    def is_last(self, key: str) -> bool:
        """True when each known record stands in another leg of a gather that this one stands in."""
        path = ""
        for part in key.split("/")[:-1]:
            if path in self._scopes or self._gathers.get(path, set()) - {part.partition(".")[0]}:
                return False
            path += part + "/"
        return path not in self._scopes and path not in self._gathers
