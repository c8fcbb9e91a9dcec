"""The rooms are where a reader looks for them, and no file or function outgrows a reader."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINKS = ("actors", "projections", "lua", "sql")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80


def function_lengths(source: str) -> Iterator[tuple[str, int, int]]:
    """Name, first line and length of each function, its docstring not counted."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            first = node.body[0]
            if ast.get_docstring(node, clean=False) is not None:
                length -= (first.end_lineno or first.lineno) - first.lineno + 1
            yield node.name, node.lineno, length


def test_the_top_level_shows_the_rooms() -> None:
    rooms = ("pyproject.toml", "pyrula", "tests", "examples")
    assert [name for name in rooms if not (ROOT / name).exists()] == []


@pytest.mark.skipif((ROOT / "PKG-INFO").exists(), reason="a source archive holds the package without the links")
@pytest.mark.parametrize("name", LINKS)
def test_a_link_at_the_top_leads_into_the_package(name: str) -> None:
    link = ROOT / name
    assert link.is_symlink()
    assert link.readlink() == Path("pyrula") / name
    assert link.resolve().is_dir()


def test_the_package_is_typed_and_named_once() -> None:
    assert (ROOT / "pyrula" / "py.typed").is_file()
    nested = [path for path in (ROOT / "pyrula").rglob("*") if path.is_symlink()]
    assert nested == [], "the links are at the top only; the package holds real folders"


def test_every_module_says_what_lives_there() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "pyrula").rglob("*.py")
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == [], "these modules open without a docstring"


def test_no_file_outgrows_its_reader() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for pattern in ("*.py", "*.lua", "*.sql")
        for path in (ROOT / "pyrula").rglob(pattern)
    }
    over = {name: lines for name, lines in lengths.items() if lines > MAX_FILE_LINES}
    assert over == {}, f"a file holds one noun, in at most {MAX_FILE_LINES} lines"


def test_no_function_outgrows_its_reader() -> None:
    over = [
        f"{path.relative_to(ROOT)}:{line} {name}: {length} lines"
        for path in sorted((ROOT / "pyrula").rglob("*.py"))
        for name, line, length in function_lengths(path.read_text(encoding="utf-8"))
        if length > MAX_FUNCTION_LINES
    ]
    assert over == [], f"a function has at most {MAX_FUNCTION_LINES} lines besides its docstring"


def test_a_long_function_is_seen() -> None:
    source = 'def f():\n    """One.\n\n    Two.\n    """\n' + "    pass\n" * 90
    assert list(function_lengths(source)) == [("f", 1, 91)]
