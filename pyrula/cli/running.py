"""One run of the command line: every way it can end becomes an exit code and at most one line on stderr."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Final

import typer
import typer.main

from pyrula.cli.app import app
from pyrula.cli.output import OutputClosed
from pyrula.cli.wording import one_line
from pyrula.contracts.errors import PyrulaError, StoreUnavailable

__all__ = ["FAILED", "INTERRUPTED", "MISUSED", "run"]

FAILED: Final = 1
MISUSED: Final = 2
INTERRUPTED: Final = 130
_PIPE_BROKEN: Final = 141

# typer shows its caller the errors of its parser under this one name; the classes above it are not public.
_Usage: Final[type[Exception]] = typer.BadParameter.__mro__[1]


def run(argv: Sequence[str]) -> int:
    """Run one command line; its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _dispatch(list(argv))
        sys.stdout.flush()
        return code
    except BaseException as error:  # noqa: BLE001 - this is where every error ends
        return _explained(error, argv)


def _dispatch(argv: list[str]) -> int:
    code = typer.main.get_command(app).main(args=argv, prog_name="pyrula", standalone_mode=False)
    return code if isinstance(code, int) else 0


def _pacify() -> None:
    """The reader of our output has gone: whatever is still buffered goes nowhere, without a word."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def _explained(error: BaseException, argv: Sequence[str]) -> int:
    error = _innermost(error)
    if isinstance(error, (BrokenPipeError, OutputClosed)):
        _pacify()
        return _PIPE_BROKEN
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return INTERRUPTED
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 0
    if isinstance(error, _Usage):
        return _misused(error)
    if "--debug" in argv:
        traceback.print_exception(error)
    message = _message(error)
    if isinstance(error, StoreUnavailable) and not _names_server(argv):
        message += " (--url or PYRULA_VALKEY_URL names another server)"
    _say(message)
    return FAILED


def _innermost(error: BaseException) -> BaseException:
    """A task group wraps what ended it; the first cause is what a person wants to read."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _names_server(argv: Sequence[str]) -> bool:
    return "PYRULA_VALKEY_URL" in os.environ or any(word.partition("=")[0] == "--url" for word in argv)


def _message(error: BaseException) -> str:
    if isinstance(error, PyrulaError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return f"unexpected {type(error).__name__}: {error} (--debug shows where)"


def _misused(error: Exception) -> int:
    context = getattr(error, "ctx", None)
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stdout.write(f"{text}\n")
        return MISUSED
    # The parser's own words around ours, and its library's around its own.
    text = text.removeprefix("Invalid value: ").replace("Value error, ", "")
    path = getattr(context, "command_path", "pyrula")
    _say(f"{text.rstrip('.')} (see '{path} --help')")
    return MISUSED


def _say(message: str) -> None:
    sys.stderr.write(f"pyrula: {one_line(message)}\n")
