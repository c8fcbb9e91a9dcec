"""Which run the calling code belongs to, and a warning for code that belongs to none beside runs in the same process.

The context variable that tells is set by whoever drives bodies and starts their threads; nothing here sets it.
"""

from __future__ import annotations

import inspect
import logging
from types import FrameType
from typing import Final

from pyrula.actors.attempt import Attempt
from pyrula.actors.calls import call_scope

__all__ = ["bound_run", "running"]

log = logging.getLogger("pyrula.run")
_PACKAGE: Final = __name__.partition(".")[0]

running: Final[set[Attempt]] = set()
"""The attempts that this process is driving right now. Adding and discarding are safe from any thread."""

_warned: Final[set[tuple[str, int]]] = set()


def bound_run(what: str) -> Attempt | None:
    """The attempt whose context the calling task or thread carries; None where it carries none.

    For calls that are recorded in a run and are ordinary calls outside of one. Without a run they are
    made again by every resume of the body that wanted them; so where runs are being driven in this
    process, a warning names the call's site, once for each. `what` is the call as its author knows it.
    """
    owner = getattr(call_scope.get(None), "owner", None)
    if isinstance(owner, Attempt):
        return owner
    if running:
        _warn(what)
    return None


def _warn(what: str) -> None:
    frame = _caller()
    site = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("", 0)
    if site in _warned:
        return
    _warned.add(site)
    log.warning(
        "%s at %s:%d is made outside of any run, in a process that has runs: it is recorded nowhere, and a resumed "
        "run makes it again; a thread of a run is started with ctx.to_thread or ctx.map_threads",
        what,
        *site,
    )


def _caller() -> FrameType | None:
    """The innermost frame that is not this package's own."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    return frame
