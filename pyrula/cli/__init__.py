"""The command line, `pyrula`. It sits on the public API and holds no rule of the engine.

This file is the entry point and imports nothing that an installation may lack.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0, 1 for an error, 2 for a usage error, 128 + n for signal n.

    argv: the words after the program's name; by default the process's own.
    """
    if missing := [name for name in ("typer", "rich") if find_spec(name) is None]:
        sys.stderr.write(f"pyrula: the command line needs {' and '.join(missing)}: pip install 'pyrula[cli]'\n")
        sys.exit(1)
    from pyrula.cli.running import run

    sys.exit(run(sys.argv[1:] if argv is None else list(argv)))
