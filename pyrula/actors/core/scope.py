"""Where in the body a call stands: the scope's path and the n-th use of an id in it. Pure.

Keys: `<scope><label>` for the first use of a label in a scope, `<scope><label>#<n>` for the
n-th. A scope's path is empty for the body's root; below its parent's path it is `g<k>.<i>/` for
leg i of the k-th gather, `thread:<k>/` for the k-th thread call, `map:<k>:<i>/` for item i of the
k-th map. Labels that the engine gives itself begin with `@`; a user's id that could be mistaken
for a path, an occurrence or one of those is escaped with `%`.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["CHILD", "PATCH", "RESTART", "UPDATE", "VALUE", "WAIT", "Scope", "Tail", "escape"]

WAIT: Final = "@wait"
VALUE: Final = "@value"
CHILD: Final = "@child"
PATCH: Final = "@patch"
RESTART: Final = "@restart"
UPDATE: Final = "@update"
_THREAD: Final = "@thread"
_MAP: Final = "@map"
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
        key = self.next_key(label)
        self._used[label] = self._used.get(label, 0) + 1
        return key

    def next_key(self, label: str) -> str:
        """The key that the next use of a label will have."""
        count = self._used.get(label, 0) + 1
        return f"{self.path}{label}" if count == 1 else f"{self.path}{label}#{count}"

    def next_gather(self) -> int:
        """The number of the next gather in this scope, from 1."""
        self._gathers += 1
        return self._gathers

    def restart(self) -> None:
        """Count from the beginning again."""
        self._used.clear()
        self._gathers = 0

    def leg(self, gather: int, index: int) -> Scope:
        """The scope of a leg of a gather, from 0."""
        return Scope(f"{self.path}g{gather}.{index}/")

    def next_thread(self) -> str:
        """The path of the next thread call in this scope, counted from 1."""
        count = self._used[_THREAD] = self._used.get(_THREAD, 0) + 1
        return f"{self.path}thread:{count}/"

    def next_map(self) -> int:
        """The number of the next thread map in this scope, from 1."""
        count = self._used[_MAP] = self._used.get(_MAP, 0) + 1
        return count

    def item(self, map_: int, index: int) -> str:
        """The path of an item of a map, from 0."""
        return f"{self.path}map:{map_}:{index}/"

    @property
    def in_gather(self) -> bool:
        """True in a branch of the body: a leg of a gather, a thread."""
        return self.path != ""

    @property
    def in_thread(self) -> bool:
        """True for calls that a thread makes."""
        return ":" in self.path  # nothing else in a path has one


def _fan(part: str) -> str:
    """The gather or map that a part of a path is one branch of; a thread call is a branch by itself."""
    return part.rpartition(":" if part.startswith("map:") else ".")[0] or part


class Tail:
    """Which branches a journal's last records stand in, read from its end: is a record the last of its branch?

    Legs of one gather stand beside each other, as do items of one map. A record of a scope itself is in
    sequence with all that is below that scope, and gathers of one scope are in sequence with each other.
    """

    __slots__ = ("_gathers", "_scopes")

    def __init__(self) -> None:
        self._scopes: set[str] = set()  # paths that have a record of their own
        self._gathers: dict[str, set[str]] = {}  # path -> its gathers and maps with records below

    def add(self, key: str) -> bool:
        """Take in the record before those known; False when nothing can be the last of its branch any more."""
        path = ""
        for part in key.split("/")[:-1]:
            self._gathers.setdefault(path, set()).add(_fan(part))
            path += part + "/"
        self._scopes.add(path)
        return path != ""

    def is_last(self, key: str) -> bool:
        """True when each known record stands in another leg of a gather that this one stands in."""
        path = ""
        for part in key.split("/")[:-1]:
            if path in self._scopes or self._gathers.get(path, set()) - {_fan(part)}:
                return False
            path += part + "/"
        return path not in self._scopes and path not in self._gathers
