"""What the connections need from an event loop: one object for each loop, and timers.

A loop with callbacks (asyncio, uvloop) offers them on its native token, and they are used from
there; a loop without (trio) is served by its own tasks. No loop library is imported here.
"""

from __future__ import annotations

import heapq
import threading
import time
import weakref
from collections.abc import Callable, Generator
from itertools import count
from threading import get_ident
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from anyio.lowlevel import current_token

__all__ = ["CallbackLoop", "LoopLocal", "Slot", "call_later", "callback_loop", "run_soon"]

T = TypeVar("T")


class Slot(Protocol):
    """The place of one reply: filled once, awaited by one caller. An abandoned slot counts as done."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> object: ...

    def __await__(self) -> Generator[Any, Any, Any]: ...


class CallbackLoop(Protocol):
    """The part of asyncio's loop interface that the connections use."""

    def create_future(self) -> Slot: ...

    def call_soon(self, callback: Callable[[], object], /) -> object: ...

    def call_later(self, delay: float, callback: Callable[[], object], /) -> object: ...

    def call_soon_threadsafe(self, callback: Callable[[], object], /) -> object: ...

    def add_reader(self, fd: int, callback: Callable[[], object], /) -> object: ...

    def remove_reader(self, fd: int, /) -> object: ...

    def add_writer(self, fd: int, callback: Callable[[], object], /) -> object: ...

    def remove_writer(self, fd: int, /) -> object: ...

    def is_closed(self) -> bool: ...


def callback_loop(token: object) -> CallbackLoop | None:
    """The native token as a loop with callbacks, or None where the loop has none."""
    return cast("CallbackLoop", token) if hasattr(token, "add_reader") else None


def run_soon(token: object, callback: Callable[[], object]) -> bool:
    """Run a callback in the loop of that native token, from any thread. False when that loop is over."""
    loop = callback_loop(token)
    try:
        if loop is not None:
            loop.call_soon_threadsafe(callback)
        else:
            cast("Any", token).run_sync_soon(callback)
    except RuntimeError:  # a closed asyncio loop; trio.RunFinishedError is one as well
        return False
    return True


def call_later(token: object, delay: float, callback: Callable[[], object]) -> None:
    """Run a callback in that loop after `delay` seconds; it is dropped when the loop ends before."""
    loop = callback_loop(token)
    if loop is not None:
        loop.call_later(delay, callback)
    else:
        _TIMERS.add(delay, token, callback)


class _Timers:
    """One thread that calls back into loops which have no timers outside of their tasks.

    It holds tokens and callbacks (bound methods) weakly, starts with the first timer and ends after a
    minute without one.
    """

    _LINGER: Final = 60.0

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, weakref.ref[Any], weakref.WeakMethod[Callable[[], object]]]] = []
        self._order = count()
        self._thread: threading.Thread | None = None

    def add(self, delay: float, token: object, callback: Callable[[], object]) -> None:
        with self._changed:
            due = time.monotonic() + delay
            heapq.heappush(self._due, (due, next(self._order), weakref.ref(token), weakref.WeakMethod(callback)))
            # A thread does not survive a fork; is_alive() says so in the child.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="pyrula-timers", daemon=True)
                self._thread.start()
            else:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._due:
                    self._changed.wait(self._LINGER)
                    if not self._due:
                        self._thread = None
                        return
                wait = self._due[0][0] - time.monotonic()
                if wait > 0:
                    self._changed.wait(wait)
                    continue
                _, _, token_ref, callback_ref = heapq.heappop(self._due)
            token, callback = token_ref(), callback_ref()
            if token is not None and callback is not None:
                run_soon(token, callback)
            del token, callback  # or the last timer's objects would live until the next one


_TIMERS: Final = _Timers()


class LoopLocal(Generic[T]):
    """One object for each event loop that asks for it, made on first use.

    Safe from several threads, each with a loop of its own. An object goes with its loop: it must not
    hold that loop strongly, or neither would ever be freed.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._items: weakref.WeakKeyDictionary[Any, T] = weakref.WeakKeyDictionary()
        # What each thread asked for last: the backend's own current_token(), the loop, the object.
        # Asking a backend is ten times cheaper than finding out which backend runs.
        self._recent: dict[int, tuple[Callable[[], object], weakref.ref[Any], weakref.ref[T]]] = {}

    def here(self) -> T:
        """The object of the running loop."""
        recent = self._recent.get(get_ident())
        if recent is not None:
            native, loop, item_ref = recent
            try:
                item = item_ref() if native() is loop() else None
            except RuntimeError:  # another kind of loop runs in this thread by now
                item = None
            if item is not None:
                return item
        return self._find()

    def _find(self) -> T:
        token = current_token()
        native = token.native_token
        with self._lock:
            for loop in [loop for loop in self._items if _is_over(loop)]:
                del self._items[loop]
            for thread in [thread for thread, (_, ref, _) in self._recent.items() if _is_over(ref())]:
                del self._recent[thread]
            item = self._items.get(native)
            if item is None:
                item = self._items[native] = self._make()
            self._recent[get_ident()] = (token.backend_class.current_token, weakref.ref(native), weakref.ref(item))
        return item

    def take_all(self) -> list[tuple[object, T]]:
        """Every (native token, object) there is; none is kept."""
        with self._lock:
            items = list(self._items.items())
            self._items.clear()
            self._recent.clear()
        return items


def _is_over(loop: Any) -> bool:
    if loop is None:
        return True
    asyncio_loop = callback_loop(loop)
    return asyncio_loop is not None and asyncio_loop.is_closed()
