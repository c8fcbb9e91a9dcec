"""The function library of the Valkey store: Lua files, joined in a fixed order, and their name.

The library is content-addressed: its name comes from a hash of its source, and every
function's name begins with it, so the libraries of several builds live side by side in one
server. Nothing here talks to a server.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["PREFIX", "Library", "library", "movable_library"]

PREFIX = "pyrula_"


@dataclass(frozen=True, slots=True)
class Library:
    """The library's name and its source, ready for `FUNCTION LOAD`."""

    name: str
    source: str

    def function(self, name: str) -> str:
        """The full name of one of its functions, for `FCALL`."""
        return f"{self.name}_{name}"


@cache
def _body() -> str:
    parts = {f.name: f.read_text(encoding="utf-8") for f in files(__name__).iterdir() if f.name.endswith(".lua")}
    first, last = parts.pop("prelude.lua"), parts.pop("register.lua")
    return "\n".join([first, *(parts[name] for name in sorted(parts)), last])


def _named(prefix: str, body: str) -> Library:
    name = prefix + hashlib.sha256(body.encode()).hexdigest()[:12]
    return Library(name, f"#!lua name={name}\nlocal LIBRARY = '{name}'\n{body}")


@cache
def library() -> Library:
    """The function library of this build."""
    return _named(PREFIX, _body())


_CLOCK = "  return text, tonumber(text)\nend\n"
_MOVED_CLOCK = "  local at = tonumber(text) + moved\n  return int(at), at\nend\n"
_MOVE = """
redis.register_function(LIBRARY .. '_move', function(_, args)
  moved = tonumber(args[1])
  return (now())
end)
"""


def movable_library(tag: str) -> Library:
    """The same functions with a clock that can be moved, for tests: `move` takes the microseconds it is ahead.

    Its name is one that no build of the package calls, and another one for each tag; so a library of
    this kind in a server changes nothing for anybody else.
    """
    body = _body()
    if body.count(_CLOCK) != 1:
        raise ValueError("the library's clock is not where it was")
    return _named(f"test_{PREFIX}", f"local moved = 0 -- {tag}\n{body.replace(_CLOCK, _MOVED_CLOCK)}{_MOVE}")
