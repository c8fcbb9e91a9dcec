"""Commands to one Valkey server over one pipelined connection, for all tasks of one event loop.

What is queued is joined, and what could be sent is never queued. Connecting, reconnecting, repeating
and giving up are decided here; bytes and turns are the link's. Nothing here knows what a command means.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

import anyio
from anyio.lowlevel import current_token
from libvalkey import ReplyError, pack_command

from pyrula.contracts.errors import OutOfMemory, StoreError, StoreUnavailable
from pyrula.workflows.stores.valkey.address import Address
from pyrula.workflows.stores.valkey.callbacks import open_link
from pyrula.workflows.stores.valkey.dial import PENDING, ConnectionBroken, LoginRefused, dial
from pyrula.workflows.stores.valkey.link import Breakage, Link, Owner
from pyrula.workflows.stores.valkey.loops import LoopLocal, Slot, call_later

__all__ = ["Batch", "ConnectionBroken", "LoginRefused", "ReplyError", "Wire", "WirePool", "translate"]

_TICKS: Final = 4
"""How often, within one `command_timeout`, somebody looks whether the connection still moves."""
_BACKOFF_FIRST: Final = 0.01
_BACKOFF_CAP: Final = 0.5

_UNAVAILABLE: Final = (
    "LOADING",
    "MASTERDOWN",
    "READONLY",
    "BUSY ",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "NOREPLICAS",
    "MISCONF",
    "NOAUTH",
    "UNKILLABLE",
)


def translate(error: ReplyError) -> StoreError:
    """The store's error for an error reply; the caller chains it. Arguments that the server echoes are cut off."""
    text = str(error).partition(", with args beginning with")[0]
    if text.startswith("OOM"):
        return OutOfMemory(text)
    if text.startswith(_UNAVAILABLE):
        return StoreUnavailable(text)
    return StoreError(text)


class Batch:
    """The place of several replies in a row; its slot gets them as one list."""

    __slots__ = ("_missing", "_replies", "slot")

    def __init__(self, slot: Slot, count: int) -> None:
        self.slot = slot
        self._missing = count
        self._replies: list[Any] = []

    def done(self) -> bool:
        return self.slot.done()

    def set_result(self, result: Any, /) -> None:
        if result.__class__ is Breakage:
            self.slot.set_result(result)
            return
        self._replies.append(result)
        self._missing -= 1
        if not self._missing:
            self.slot.set_result(self._replies)


class Wire(Owner):
    """One connection, shared by the tasks of the loop it is first used in.

    It connects with the first call and again, with backoff, when it broke. `max_pending` replies may
    be outstanding; further callers wait. A server that stands still for `command_timeout` seconds
    fails the calls with `StoreUnavailable`.
    """

    _link: Link | None = None

    def __init__(
        self,
        address: Address,
        *,
        connect_timeout: float = 5.0,
        command_timeout: float = 30.0,
        max_pending: int = 10_000,
        client_name: str = "pyrula",
    ) -> None:
        self.address = address
        self.connect_timeout = connect_timeout
        self.command_timeout = command_timeout
        self.max_pending = max_pending
        self.client_name = client_name
        self._waiting: deque[Slot | Batch] = deque()
        self._dialling: anyio.Lock | None = None
        self._room: anyio.Event | None = None
        self.noted: set[str] = set()
        """What its user has noted of the server it is connected to; a new connection begins with nothing."""
        self._was_connected = False
        self._closed = False
        self._watching = False
        self._watched: object = None  # the reply that was first in line at the last tick
        self._still = 0  # ticks since something moved

    def call(self, *args: bytes | str | int, retry: bool = True) -> Coroutine[Any, Any, Any]:
        """Send one command and give its reply; an error reply is raised as `ReplyError`.

        To be awaited. A call whose connection broke is repeated once over a new one; `retry=False` for a
        command that must not be sent twice. Raises `ConnectionBroken` when it may have taken effect, and
        `StoreUnavailable` when the server cannot be reached or stands still.
        """
        return self.call_packed(pack_command(args), retry=retry)

    async def call_packed(self, data: bytes, replies: int = 1, *, retry: bool = True) -> Any:
        """Send packed commands as they are, in one piece; errors as for `call`.

        The reply of one (an error reply is raised); of several the list of replies, in which an error
        reply stands as a `ReplyError` object.
        """
        link = self._link
        if link is None or len(self._waiting) >= self.max_pending:
            link = await self._ready()
        if not (retry or self._waiting):
            # What must not be sent twice is not sent into a connection that has ended meanwhile.
            link.receive()
            link = self._link or await self._ready()
        if not self._watching:
            self._watch()
        slot = link.slot()
        if replies == 1:
            self._waiting.append(slot)
        else:
            self._waiting.extend([Batch(slot, replies)] * replies)
        link.send(data)
        reply = await slot
        if reply.__class__ is Breakage or reply.__class__ is ReplyError:
            _raise(reply, retry)
            return await self.call_packed(data, replies, retry=False)
        return reply

    def expect(self, callers: int) -> None:
        """So many tasks were just woken and are about to call: their commands are worth joining."""
        if self._link is not None:
            self._link.expect(callers)

    async def aclose(self) -> None:
        """Close the connection, from any loop. Calls that wait fail, and so do later ones."""
        self._closed = True
        if self._link is not None:
            self._link.close()

    def __del__(self) -> None:
        if self._link is not None:
            self._link.abandon()

    def _closed_error(self) -> StoreUnavailable:
        return StoreUnavailable(f"the connection to {self.address.label} was closed")

    # --- replies ------------------------------------------------------------------------

    def take(self, gets: Callable[[], Any]) -> int:
        waiting = self._waiting
        first = waiting.popleft
        woken = 0
        while (reply := gets()) is not PENDING:
            slot = first()
            if not slot.done():
                slot.set_result(reply)
                woken += 1
        if self._room is not None and len(waiting) <= self.max_pending // 2:
            self._room.set()
            self._room = None
        return woken

    def lost(self, breakage: Breakage) -> None:
        self._link = None
        waiting, self._waiting = self._waiting, deque()
        for slot in waiting:
            if not slot.done():
                slot.set_result(breakage)
        if self._room is not None:
            self._room.set()
            self._room = None

    # --- connecting ---------------------------------------------------------------------

    async def _ready(self) -> Link:
        """A link with room for one more call."""
        while True:
            if self._closed:
                raise self._closed_error()
            link = self._link
            if link is None:
                link = await self._connect()
            elif len(self._waiting) >= self.max_pending:
                if self._room is None:
                    self._room = anyio.Event()
                await self._room.wait()
                continue
            return link

    async def _connect(self) -> Link:
        """A new link, or the one that another caller has made meanwhile.

        Before the first success one attempt must do: a wrong address shows at once. Later, attempts
        follow each other with backoff for `connect_timeout` seconds.
        """
        if self._dialling is None:
            self._dialling = anyio.Lock()
        deadline = anyio.current_time() + self.connect_timeout
        pause = _BACKOFF_FIRST
        async with self._dialling:
            while self._link is None:
                if self._closed:
                    raise self._closed_error()
                left = deadline - anyio.current_time()
                if left <= 0:
                    raise StoreUnavailable(f"no connection to Valkey at {self.address.label} in time")
                try:
                    dialled = await dial(self.address, timeout=left, client_name=self.client_name)
                except LoginRefused:
                    raise
                except StoreUnavailable:
                    if not self._was_connected or anyio.current_time() + pause >= deadline:
                        raise
                    await anyio.sleep(pause)
                    pause = min(pause * 2, _BACKOFF_CAP)
                else:
                    self._was_connected = True
                    self.noted = set()
                    if self._closed:
                        dialled.sock.close()
                    else:
                        self._link = open_link(dialled, self)
            return self._link

    # --- time ---------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look again in a while. One timer for all calls, so that a call pays nothing for its timeout."""
        self._watching = True
        call_later(current_token().native_token, self.command_timeout / _TICKS, self._tick)

    def _tick(self) -> None:
        self._watching = False
        link = self._link
        if link is None or not self._waiting:
            self._watched = None
            return
        if link.moved or self._waiting[0] is not self._watched:
            link.moved = False
            self._watched = self._waiting[0]
            self._still = 0
        else:
            self._still += 1
            if self._still >= _TICKS:
                self._watched = None
                message = f"no answer from Valkey at {self.address.label} within {self.command_timeout:g} s"
                link.fail(Breakage(message, timed_out=True))
                return
        self._watch()


def _raise(reply: ReplyError | Breakage, retry: bool) -> None:
    """Raise what came instead of a reply, unless the call may be repeated."""
    if isinstance(reply, ReplyError):
        raise reply
    if reply.timed_out:
        raise StoreUnavailable(reply.message) from reply.cause
    if not retry:
        raise ConnectionBroken(reply.message) from reply.cause


class WirePool:
    """A wire for each event loop, made when a call first comes from there.

    It can be built before any loop runs, and used from several threads with a loop each.
    """

    def __init__(
        self,
        address: Address,
        *,
        connect_timeout: float = 5.0,
        command_timeout: float = 30.0,
        max_pending: int = 10_000,
        client_name: str = "pyrula",
    ) -> None:
        self.address = address

        def make() -> Wire:
            return Wire(
                address,
                connect_timeout=connect_timeout,
                command_timeout=command_timeout,
                max_pending=max_pending,
                client_name=client_name,
            )

        self._wires: LoopLocal[Wire] = LoopLocal(make)
        self.here = self._wires.here
        """The running loop's wire."""

    async def aclose(self) -> None:
        """Close every loop's wire. A later call opens a new one."""
        for _, wire in self._wires.take_all():
            await wire.aclose()
