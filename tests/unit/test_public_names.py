"""What each public module offers, and what its `__all__` says, are the same."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def public_modules() -> list[str]:
    """Modules without a leading underscore in any part; a package's file that says nothing offers nothing."""
    names = []
    for path in sorted((ROOT / "pyrula").rglob("*.py")):
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
            if len(ast.parse(path.read_text(encoding="utf-8")).body) <= 1:
                continue
        if not any(part.startswith("_") for part in parts):
            names.append(".".join(parts))
    return names


def sort_key(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest, each by name: the order that the linter keeps."""
    if name.isupper() and len(name) > 1:
        return 0, name
    return (1 if name[0].isupper() else 2), name


def defined_here(module: ModuleType) -> set[str]:
    """The public classes and functions whose definition stands in the module."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isroutine(value))
        and getattr(value, "__module__", None) == module.__name__
        and getattr(value, "__qualname__", name) == name
    }


def problems(module: ModuleType) -> list[str]:
    """What is wrong with the module's `__all__`; empty when nothing is."""
    names = getattr(module, "__all__", None)
    if names is None:
        return ["has no __all__"]
    found = []
    if list(names) != sorted(names, key=sort_key):
        found.append(f"__all__ is not sorted; expected {sorted(names, key=sort_key)}")
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        found.append(f"__all__ names twice: {doubled}")
    if missing := [name for name in names if not hasattr(module, name)]:
        found.append(f"__all__ names what is not there: {missing}")
    if hidden := sorted(defined_here(module) - set(names)):
        found.append(f"__all__ leaves out (or they want an underscore): {hidden}")
    return found


@pytest.mark.parametrize("name", public_modules())
def test_all_says_what_the_module_offers(name: str) -> None:
    assert problems(importlib.import_module(name)) == []


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def f(): ...", "has no __all__"),
        ("__all__ = ['g', 'f']\ndef f(): ...\ndef g(): ...", "not sorted"),
        ("__all__ = ['f', 'f']\ndef f(): ...", "twice"),
        ("__all__ = ['f', 'g']\ndef f(): ...", "not there: ['g']"),
        ("__all__ = ['f']\ndef f(): ...\nclass Hidden: ...", "leaves out (or they want an underscore): ['Hidden']"),
    ],
)
def test_each_problem_is_found(source: str, problem: str) -> None:
    module = ModuleType("planted")
    exec(source, vars(module))
    assert len(problems(module)) == 1
    assert problem in problems(module)[0]


def test_a_sound_module_passes() -> None:
    module = ModuleType("planted")
    source = (
        "from json import dumps\n__all__ = ['LIMIT', 'Name', 'act']\n"
        "LIMIT = 1\nclass Name: ...\ndef act(): ...\ndef _own(): ..."
    )
    exec(source, vars(module))
    assert problems(module) == []
