#!/usr/bin/env python3
"""Runs the Python of the documentation as printed.

Every fenced block that opens with ```` ```python ```` is code that runs. The blocks of one page are
one program, in the order of the page, so a later block may use what an earlier one defined. Two words
may follow on the fence:

- `fresh`: this block begins a new program;
- `no-run`: shown, not run (it needs a service, or never ends); it must still be valid Python.

A program keeps the line numbers of its page: line 40 of a traceback is line 40 of the document.

    python tools/doc_snippets.py [FILE...]

checks fences and syntax only, by default of README.md and docs/*.md; the test suite runs the programs.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARKS = frozenset({"fresh", "no-run"})
_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,})\s*(?P<info>[^`]*)$")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced Python block; `line` is the document line of its first line of code."""

    path: Path
    line: int
    source: str
    marks: frozenset[str]


@dataclass(frozen=True, slots=True)
class Program:
    """The blocks of a page that run together, padded so that line numbers are the page's."""

    path: Path
    line: int
    source: str

    @property
    def name(self) -> str:
        """`README.md:12`: the page and the line where the program begins."""
        return f"{self.path.name}:{self.line}"


class BadDocument(Exception):
    """A page whose Python cannot be taken as it stands; the message names file and line."""


def pages(root: Path = ROOT) -> list[Path]:
    """The documents whose Python must run."""
    return [path for path in (root / "README.md", *sorted((root / "docs").glob("*.md"))) if path.is_file()]


def blocks(path: Path) -> Iterator[Block]:
    """The Python blocks of one page; `BadDocument` for an unknown mark, an open fence or a syntax error."""
    lines = path.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        number += 1
        if opening is None:
            continue
        start, indent, ticks = number, opening["indent"], opening["ticks"]
        while number < len(lines) and not _closes(lines[number], ticks):
            number += 1
        if number == len(lines):
            raise BadDocument(f"{path}:{start}: the fence is never closed")
        body = [line.removeprefix(indent) for line in lines[start:number]]
        number += 1
        language, *marks = opening["info"].split() or [""]
        if language == "python":
            yield _block(path, start + 1, "\n".join(body) + "\n", frozenset(marks))


def _closes(line: str, ticks: str) -> bool:
    bare = line.strip()
    return len(bare) >= len(ticks) and set(bare) == {ticks[0]}


def _block(path: Path, line: int, source: str, marks: frozenset[str]) -> Block:
    if unknown := marks - MARKS:
        raise BadDocument(f"{path}:{line - 1}: unknown mark {min(unknown)!r}; a block may be {sorted(MARKS)}")
    try:
        ast.parse(source)
    except SyntaxError as error:
        at = line + (error.lineno or 1) - 1
        raise BadDocument(f"{path}:{at}: {error.msg}") from error
    return Block(path, line, source, marks)


def programs(path: Path) -> list[Program]:
    """What is to be run of one page."""
    groups: list[list[Block]] = []
    for block in blocks(path):
        if "no-run" in block.marks:
            continue
        if "fresh" in block.marks or not groups:
            groups.append([])
        groups[-1].append(block)
    return [Program(path, group[0].line, _padded(group)) for group in groups]


def _padded(group: list[Block]) -> str:
    source = ""
    for block in group:
        source += "\n" * (block.line - 1 - source.count("\n")) + block.source
    return source


def run(program: Program, *, environment: Mapping[str, str], timeout: float = 45.0) -> subprocess.CompletedProcess[str]:
    """Run one program in a process and an empty folder of its own; `timeout` is in seconds.

    `environment` is added to the caller's. The output holds both streams; the caller judges the
    exit code.
    """
    with tempfile.TemporaryDirectory(prefix="snippets-") as folder:
        script = Path(folder) / f"{program.path.stem.lower().replace('-', '_')}_page.py"
        script.write_text(program.source, encoding="utf-8")
        return subprocess.run(
            [sys.executable, script.name],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )


def main(arguments: list[str]) -> int:
    """Check fences and syntax; print how many programs each page holds."""
    failed = False
    for path in [Path(each) for each in arguments] or pages():
        try:
            found = programs(path)
        except BadDocument as error:
            print(error)
            failed = True
        else:
            print(f"{path.name}: {len(found)} to run")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
