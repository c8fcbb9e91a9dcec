"""Keeping long services alive: restart with growing pauses, and one log line for a whole outage."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from pyrula.contracts.errors import ConfigurationError, StoreUnavailable

__all__ = ["OutageLog", "supervise"]

log = logging.getLogger("pyrula.worker")
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0
# A service that ran this long before it failed starts over with the shortest pause.
_SETTLED: Final = 30.0


class OutageLog:
    """Logs that the store is away when that is first seen, and that it is back; nothing in between.

    A store may serve some calls and refuse others: a full server, or a replica. So whoever waits for it
    gives its name (`by`), and the outage lasts until each of them was served or has left.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._waiting: set[object] = set()

    def failed(self, error: StoreUnavailable, by: object = None) -> None:
        """A call to the store failed; `by` will try again."""
        if by is not None:
            self._waiting.add(by)
        if self._since is None:
            self._since = time.monotonic()
            log.warning("the store is away, waiting for it: %s", error)

    def succeeded(self, by: object = None) -> None:
        """A call to the store worked."""
        if self._since is None:
            return
        self._waiting.discard(by)
        if not self._waiting:
            log.warning("the store is back after %.1f s", time.monotonic() - self._since)
            self._since = None

    def left(self, by: object) -> None:
        """Whoever this is does not try again."""
        self._waiting.discard(by)


async def supervise(
    name: str, service: Callable[[], Awaitable[None]], outage: OutageLog, *, tells: bool = True
) -> None:
    """Run a service for ever. An outage of the store is waited out; any other error is logged with its trace.

    tells: the service says itself, under this name, when the store has served it.

    Raises `ConfigurationError`: trying again would not help.
    """
    pause = _FIRST_PAUSE
    while True:
        started = time.monotonic()
        try:
            await service()
        except StoreUnavailable as error:
            outage.failed(error, name if tells else None)
        except ConfigurationError:
            raise
        except Exception:
            log.exception("the %s failed and is started again", name)
        if time.monotonic() - started > _SETTLED:
            pause = _FIRST_PAUSE
        await anyio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
