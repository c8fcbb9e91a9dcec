"""Listening to sharded channels over one connection, for all tasks of one event loop.

Any number of listeners share the connection; a channel is subscribed while somebody listens to it.
After a break it is all made anew, and every listener is told to look for itself. What a message
means is not known here, and nothing is published from here.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Literal

import anyio
from anyio.lowlevel import checkpoint
from libvalkey import ReplyError, pack_command

from pyrula.contracts.errors import StoreError, StoreUnavailable
from pyrula.workflows.stores.valkey.address import Address
from pyrula.workflows.stores.valkey.callbacks import open_link
from pyrula.workflows.stores.valkey.dial import PENDING, LoginRefused, dial
from pyrula.workflows.stores.valkey.link import Breakage, Link, Owner
from pyrula.workflows.stores.valkey.loops import Slot
from pyrula.workflows.stores.valkey.wire import translate

__all__ = ["RESUBSCRIBED", "Heard", "Listener", "Marker", "Message", "Subscriptions"]

_PARTING: Final = 64
"""So many channels that nobody listens to any more are kept until there is something else to send."""
_BACKOFF_FIRST: Final = 0.01
_BACKOFF_CAP: Final = 1.0
_BUFFER: Final = 1000


class Marker(enum.Enum):
    """What a listener hears besides messages."""

    RESUBSCRIBED = "resubscribed"


RESUBSCRIBED: Final = Marker.RESUBSCRIBED
"""Messages may have been missed (a new connection, or a full buffer): look at the store once."""

Message = tuple[bytes, bytes]
"""Channel and payload."""

Heard = Message | Literal[Marker.RESUBSCRIBED]


class _Inbox:
    """What one listener has heard and not taken yet."""

    __slots__ = ("active", "error", "heard", "limit", "slot")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.heard: deque[Heard] = deque()
        self.slot: Slot | None = None
        self.error: StoreError | None = None
        self.active = False
        """Its subscriptions were confirmed once, so that it must know of a break."""

    def put(self, item: Heard) -> None:
        heard = self.heard
        if len(heard) >= self.limit:
            heard.clear()
            item = RESUBSCRIBED
        elif item is RESUBSCRIBED and heard and heard[-1] is RESUBSCRIBED:
            return
        heard.append(item)
        self.wake()

    def refuse(self, error: StoreError) -> None:
        self.error = error
        self.wake()

    def wake(self) -> None:
        if self.slot is not None:
            _fill(self.slot, None)


class _Channel:
    """One subscribed channel: who listens, and who waits for the server to confirm it."""

    __slots__ = ("confirmed", "inboxes", "waiting")

    def __init__(self) -> None:
        self.confirmed = False
        self.inboxes: dict[_Inbox, None] = {}
        self.waiting: list[_Countdown] = []


class _Countdown:
    """Finishes with the last of so many confirmations, or at once with the reason why they will not come."""

    __slots__ = ("_finish", "_missing", "_tolerant")

    def __init__(self, missing: int, finish: Callable[[object], None], *, tolerant: bool = False) -> None:
        self._missing = missing
        self._finish = finish
        self._tolerant = tolerant

    def one(self) -> None:
        self._missing -= 1
        if self._missing == 0:
            self._finish(None)

    def refused(self, error: ReplyError) -> None:
        """One channel was refused; a tolerant countdown goes on with the others."""
        if self._tolerant:
            self.one()
        else:
            self.fail(error)

    def fail(self, reason: object) -> None:
        if self._missing > 0:
            self._missing = 0
            self._finish(reason)


class Listener:
    """Hears the messages of its channels, in the order the server sent them.

    What comes faster than it is taken is kept up to a bound; beyond that it collapses into `RESUBSCRIBED`.
    """

    __slots__ = ("_inbox", "_subscriptions", "channels")

    def __init__(self, subscriptions: Subscriptions, channels: tuple[bytes, ...], inbox: _Inbox) -> None:
        self._subscriptions = subscriptions
        self._inbox = inbox
        self.channels = channels
        """What it listens to."""

    async def next(self, timeout: float | None = None) -> Heard | None:
        """The next message as `(channel, payload)`, or `RESUBSCRIBED`; None after `timeout` seconds.

        With a timeout of zero, what has come already.
        While the server is away it goes on trying to reach it. Raises `StoreError` when the server
        refuses a channel or the login, or when the subscriptions were closed. For one task at a time.
        """
        heard = self._inbox.heard
        if not heard:
            if timeout is None:
                await self._subscriptions.hear(self._inbox)
            elif timeout <= 0:
                self._subscriptions.receive()
                await checkpoint()
            else:
                with anyio.move_on_after(timeout):
                    await self._subscriptions.hear(self._inbox)
        return heard.popleft() if heard else None


class Subscriptions(Owner):
    """One connection in subscribe mode, shared by the tasks of the loop it is first used in."""

    _link: Link | None = None

    def __init__(
        self, address: Address, *, connect_timeout: float = 5.0, client_name: str = "pyrula", buffer: int = _BUFFER
    ) -> None:
        self.address = address
        self.connect_timeout = connect_timeout
        self.client_name = client_name
        self.buffer = buffer
        """How many messages each listener keeps."""
        self._channels: dict[bytes, _Channel] = {}
        self._inboxes: dict[_Inbox, None] = {}
        self._parting: dict[bytes, _Channel] = {}  # left, and to be unsubscribed from with the next command
        # What the server has been asked, in order: it confirms in that order.
        self._asked: deque[tuple[bytes, bytes, _Channel]] = deque()
        self._dialling: anyio.Lock | None = None
        self._was_connected = False
        self._pause = _BACKOFF_FIRST
        self._closed = False

    @asynccontextmanager
    async def listen(self, channels: Iterable[str | bytes]) -> AsyncIterator[Listener]:
        """Listen to these channels; entered when the server has confirmed all of them.

        So what is in the store before need not be heard, and what changes after is. Raises
        `StoreUnavailable` when that takes longer than `connect_timeout`, `StoreError` when the server
        refuses a channel.
        """
        names = tuple(dict.fromkeys(name.encode() if isinstance(name, str) else name for name in channels))
        inbox = _Inbox(self.buffer)
        try:
            try:
                with anyio.fail_after(self.connect_timeout):
                    await self._join(inbox, names)
            except TimeoutError as error:
                raise StoreUnavailable(
                    f"Valkey at {self.address.label} confirmed no subscription within {self.connect_timeout:g} s"
                ) from error
            yield Listener(self, names, inbox)
        finally:
            self._leave(inbox, names)

    def receive(self) -> None:
        """Take what has come, without waiting."""
        if self._link is not None:
            self._link.receive()

    async def hear(self, inbox: _Inbox) -> None:
        """Wait until the inbox holds something."""
        while not inbox.heard:
            if inbox.error is not None:
                raise inbox.error
            if self._closed:
                raise self._closed_error()
            link = self._link
            if link is None:
                await self._connected(patient=True)
                continue
            inbox.slot = link.slot()
            try:
                await inbox.slot
            finally:
                inbox.slot = None

    async def aclose(self) -> None:
        """Close the connection, from any loop. Listeners get `StoreUnavailable`."""
        self._closed = True
        if self._link is not None:
            self._link.close()

    def __del__(self) -> None:
        if self._link is not None:
            self._link.abandon()

    def _closed_error(self) -> StoreUnavailable:
        return StoreUnavailable(f"the subscriptions at {self.address.label} were closed")

    # --- joining and leaving ------------------------------------------------------------

    async def _join(self, inbox: _Inbox, names: tuple[bytes, ...]) -> None:
        self._inboxes[inbox] = None
        while True:
            link = await self._connected(patient=self._was_connected)
            new: list[bytes] = []
            for name in names:
                channel = self._channels.get(name) or self._rejoined(name)
                if channel is None:
                    channel = self._channels[name] = _Channel()
                    new.append(name)
                channel.inboxes[inbox] = None
            if new:
                self._ask(link, b"SSUBSCRIBE", new)
            # Every channel that is known was asked for on this link, unless the link has just broken.
            waiting = [self._channels[name] for name in names if not self._channels[name].confirmed]
            if waiting and self._link is link:
                slot = link.slot()
                countdown = _Countdown(len(waiting), partial(_fill, slot))
                for channel in waiting:
                    channel.waiting.append(countdown)
                result = await slot
                if isinstance(result, ReplyError):
                    raise translate(result) from result
            if self._link is link:
                inbox.active = True
                return

    def _leave(self, inbox: _Inbox, names: tuple[bytes, ...]) -> None:
        self._inboxes.pop(inbox, None)
        unused: list[bytes] = []
        for name in names:
            channel = self._channels.get(name)
            if channel is not None and inbox in channel.inboxes:
                del channel.inboxes[inbox]
                if not channel.inboxes:
                    unused.append(name)
        for name in unused:
            self._parting[name] = self._channels.pop(name)
        if self._link is None:
            self._parting.clear()
        elif len(self._parting) > _PARTING:
            self._ask(self._link, b"SUNSUBSCRIBE", ())

    def _rejoined(self, name: bytes) -> _Channel | None:
        """A channel that was left and not yet unsubscribed from."""
        channel = self._parting.pop(name, None)
        if channel is not None:
            self._channels[name] = channel
        return channel

    def _ask(self, link: Link, command: bytes, names: Iterable[bytes]) -> None:
        """A command for each channel: a refusal then concerns one, and their slots need not be the same.

        Channels that were left go along: a message of their own would cost as much as the command that
        follows anyway.
        """
        packed = []
        for name, channel in self._parting.items():
            packed.append(pack_command((b"SUNSUBSCRIBE", name)))
            self._asked.append((b"sunsubscribe", name, channel))
        self._parting.clear()
        for name in names:
            packed.append(pack_command((command, name)))
            self._asked.append((command.lower(), name, self._channels[name]))
        if packed:
            link.send(b"".join(packed))

    # --- what the server sends ----------------------------------------------------------

    def take(self, gets: Callable[[], Any]) -> int:
        while (reply := gets()) is not PENDING:
            if reply.__class__ is list:
                kind, name = reply[0], reply[1]
                if kind == b"smessage":
                    channel = self._channels.get(name)
                    if channel is not None:
                        message = (name, reply[2])
                        for inbox in channel.inboxes:
                            inbox.put(message)
                else:
                    self._confirmed(kind, name)
            elif reply.__class__ is ReplyError:
                self._refused(reply)
            else:
                raise LookupError(reply)  # nothing was asked that is answered like this
        return 0

    def _confirmed(self, kind: bytes, name: bytes) -> None:
        if not self._asked or self._asked[0][:2] != (kind, name):
            # The server ended a subscription by itself: the channel's slot has moved to another server.
            if name in self._channels and self._link is not None:
                self._link.fail(Breakage(f"{self.address.label} gave up a subscription"))
            return
        channel = self._asked.popleft()[2]
        if kind == b"ssubscribe":
            channel.confirmed = True
            self._pause = _BACKOFF_FIRST
            waiting, channel.waiting = channel.waiting, []
            for countdown in waiting:
                countdown.one()

    def _refused(self, error: ReplyError) -> None:
        _, name, channel = self._asked.popleft()
        if self._channels.get(name) is channel:
            del self._channels[name]
        for countdown in channel.waiting:
            countdown.refused(error)
        for inbox in channel.inboxes:
            refused = translate(error)
            refused.__cause__ = error
            inbox.refuse(refused)

    def lost(self, breakage: Breakage) -> None:
        self._link = None
        self._asked.clear()
        self._parting.clear()
        for channel in self._channels.values():
            channel.confirmed = False
            waiting, channel.waiting = channel.waiting, []
            for countdown in waiting:
                countdown.fail(breakage)
        for inbox in self._inboxes:
            inbox.wake()

    # --- connecting ---------------------------------------------------------------------

    async def _connected(self, *, patient: bool) -> Link:
        """The link; a new one asks for all channels at once. Patient callers try until they are cancelled."""
        if self._link is not None:
            return self._link
        if self._dialling is None:
            self._dialling = anyio.Lock()
        async with self._dialling:
            pausing = self._was_connected
            while self._link is None:
                if self._closed:
                    raise self._closed_error()
                if pausing:
                    await anyio.sleep(self._pause)
                    self._pause = min(self._pause * 2, _BACKOFF_CAP)
                try:
                    dialled = await dial(self.address, timeout=self.connect_timeout, client_name=self.client_name)
                except LoginRefused:
                    raise
                except StoreUnavailable:
                    if not patient:
                        raise
                    pausing = True
                else:
                    if self._closed:
                        dialled.sock.close()
                    else:
                        self._open(open_link(dialled, self))
            return self._link

    def _open(self, link: Link) -> None:
        self._link = link
        self._was_connected = True
        if self._channels:
            countdown = _Countdown(len(self._channels), self._resubscribed, tolerant=True)
            for channel in self._channels.values():
                channel.waiting.append(countdown)
            self._ask(link, b"SSUBSCRIBE", list(self._channels))

    def _resubscribed(self, result: object) -> None:
        if isinstance(result, Breakage):
            return  # the connection after this one says it
        for inbox in self._inboxes:
            if inbox.active:
                inbox.put(RESUBSCRIBED)


def _fill(slot: Slot, result: object) -> None:
    if not slot.done():
        slot.set_result(result)
