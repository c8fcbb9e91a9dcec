"""Importing a user's workflow modules, and saying in one line what is wrong with one that does not import."""

from __future__ import annotations

import importlib
import os
import site
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from pyrula.contracts.errors import ConfigurationError

__all__ = ["load_modules"]


def load_modules(names: Sequence[str]) -> list[ModuleType]:
    """Import each: a dotted name, or a path to a `.py` file. The current directory comes first on `sys.path`.

    Raises `ConfigurationError` naming the module, its error, and the place in the user's code.
    """
    _search_first(Path.cwd())
    return [_from_file(name) if _is_path(name) else _imported(name, name) for name in names]


def _is_path(name: str) -> bool:
    return name.endswith(".py") or os.sep in name


def _search_first(folder: Path) -> None:
    if (text := str(folder)) in sys.path:
        sys.path.remove(text)
    sys.path.insert(0, text)


def _from_file(name: str) -> ModuleType:
    path = Path(name).absolute()
    if not path.is_file():
        raise ConfigurationError(f"cannot import {name}: there is no such file")
    parts, folder = [path.stem], path.parent
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise ConfigurationError(
            f"cannot import {name}: a module's file is named like NAME.py, NAME without dots and dashes"
        )
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    if str(folder) not in sys.path:
        sys.path.insert(1, str(folder))
    module = _imported(".".join(parts), name)
    if module.__file__ is None or not path.samefile(module.__file__):
        found = module.__file__ or "a module that is built in"
        raise ConfigurationError(
            f"cannot import {name}: the name {'.'.join(parts)!r} belongs to {found}; rename the file"
        )
    return module


def _imported(dotted: str, given: str) -> ModuleType:
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError as error:
        if error.name is not None and (dotted == error.name or dotted.startswith(f"{error.name}.")):
            hint = f" (the file {dotted}.py? then give {dotted}.py)" if Path(f"{dotted}.py").is_file() else ""
            raise ConfigurationError(f"cannot import {given}: no module named {error.name!r}{hint}") from error
        raise _refused(given, error) from error
    except (Exception, SystemExit) as error:
        raise _refused(given, error) from error


def _refused(given: str, error: BaseException) -> ConfigurationError:
    where = _place(error)
    if isinstance(error, SystemExit):
        what = f"it ends the process (SystemExit: {error.code})"
    elif isinstance(error, SyntaxError):
        what = f"{type(error).__name__}: {error.msg}"
    else:
        what = f"{type(error).__name__}: {error}"
    return ConfigurationError(f"cannot import {given}: {what}{f' ({where})' if where else ''}")


def _place(error: BaseException) -> str:
    """File and line of the innermost frame in the user's own code."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith("<") and not _is_foreign(frame.filename)]
    return f"{_short(own[-1].filename)}:{own[-1].lineno}" if own else ""


def _is_foreign(filename: str) -> bool:
    roots = [sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    roots += [site.getusersitepackages(), str(Path(__file__).parents[1])]
    return any(Path(filename).is_relative_to(root) for root in roots)


def _short(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename
