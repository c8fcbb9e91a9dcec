"""How one loop of a worker tells another that there is something to do."""

from __future__ import annotations

import anyio

__all__ = ["Doorbell"]


class Doorbell:
    """An event that can be rung again and again; ringing it twice before anyone looks counts once."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def ring(self) -> None:
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """True when it was rung, False after the time."""
        with anyio.move_on_after(seconds):
            await self._event.wait()
        rung = self._event.is_set()
        if rung:
            self._event = anyio.Event()
        return rung
