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

__all__ = ["PREFIX", "Library", "library"]

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
def library() -> Library:
    """The function library of this build."""
    parts = {f.name: f.read_text(encoding="utf-8") for f in files(__name__).iterdir() if f.name.endswith(".lua")}
    first, last = parts.pop("prelude.lua"), parts.pop("register.lua")
    body = "\n".join([first, *(parts[name] for name in sorted(parts)), last])
    name = PREFIX + hashlib.sha256(body.encode()).hexdigest()[:12]
    return Library(name, f"#!lua name={name}\nlocal LIBRARY = '{name}'\n{body}")
