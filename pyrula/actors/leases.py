"""Renewing leases from a thread of its own, so that a blocked event loop does not lose its runs.

The same thread notices that the loop is blocked, and names the run that blocks it. A loop that
stays blocked past a limit is given up: its runs are no longer renewed and go to other workers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from pyrula.actors.drive import Board
from pyrula.contracts.errors import PyrulaError
from pyrula.contracts.store import Lease

__all__ = ["LeaseThread"]

log = logging.getLogger("pyrula.worker")
_TICK: Final = 0.25
# After a renewal that failed, so many times as often.
_HASTE: Final = 10


class LeaseThread:
    """Renews what `current` gives, every third of `lock_ttl` seconds.

    `beat` is to be called by the loop at least every tick; `lost` holds the leases that turned
    out to be lost, for the loop to collect.
    """

    def __init__(
        self,
        renew: Callable[[Sequence[Lease]], list[Lease]],
        current: Callable[[], list[Lease]],
        board: Board,
        *,
        lock_ttl: float,
        warn_after: float,
        give_up_after: float,
    ) -> None:
        self._renew = renew
        self._current = current
        self._board = board
        self._every = lock_ttl / 3
        self._warn_after = warn_after
        self._give_up_after = give_up_after
        self._stop = threading.Event()
        self._beat = time.monotonic()
        self._warned = False
        self._away = False
        self.lost: deque[Lease] = deque()
        self._thread = threading.Thread(target=self._run, name="pyrula-leases", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def beat(self) -> None:
        """The loop is alive."""
        self._beat = time.monotonic()

    def stop(self) -> None:
        """Ask the thread to end; it does within a tick, or when its call to the store returns."""
        self._stop.set()

    def join(self) -> None:
        """Wait for the thread's end."""
        self._thread.join()

    def _run(self) -> None:
        due = time.monotonic() + self._every
        while not self._stop.wait(_TICK):
            blocked = time.monotonic() - self._beat
            self._watch(blocked)
            if time.monotonic() >= due:
                due = time.monotonic() + self._every
                if blocked < self._give_up_after and not self._renew_all():
                    # Every moment counts now: the leases go on running out while the store is away.
                    due = time.monotonic() + self._every / _HASTE

    def _watch(self, blocked: float) -> None:
        if blocked < self._warn_after + _TICK:
            if self._warned:
                log.warning("the event loop runs again")
            self._warned = False
        elif not self._warned:
            self._warned = True
            run = self._board.run
            culprit = f"run {run!r} holds it" if run else "nothing of pyrula's holds it"
            log.warning(
                "the event loop has been blocked for %.1f s: %s; give blocking code to a plain (not async) step, "
                "which runs in a thread",
                blocked,
                culprit,
            )

    def _renew_all(self) -> bool:
        """False when the store could not be reached."""
        leases = self._current()
        if not leases:
            return True
        try:
            self.lost.extend(self._renew(leases))
        except Exception as error:
            # Said once; the next round tries again. Nothing may end this thread but `stop`.
            if not self._away:
                self._away = True
                log.warning(
                    "leases could not be renewed: %s", error, exc_info=None if isinstance(error, PyrulaError) else error
                )
            return False
        self._away = False
        return True
