"""Running a body against a recorded journal and nothing else: what it asks differently, or how far it comes.

No step runs and nothing is written anywhere. A call that the journal has no outcome for stays where
it is: that is as far as the recording goes.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, NoReturn

import anyio

from pyrula.actors.attempt import Attempt, Body, Settings
from pyrula.actors.calls import OwnedScope
from pyrula.actors.core.failures import message_of
from pyrula.actors.core.journal import Record
from pyrula.actors.running import Ended, run_attempt
from pyrula.actors.supervision import OutageLog
from pyrula.contracts import children, store, triggers
from pyrula.contracts.errors import ReplayRefused, Shutdown
from pyrula.contracts.events import TERMINAL_TYPES, Entry, EventType, parse
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Claim

__all__ = ["Difference", "Rehearsed", "rehearse"]

_PACKAGE: Final = __name__.partition(".")[0]
# What the engine ends a run with from outside its body; the body may have been anywhere then.
_FROM_OUTSIDE: Final = frozenset({"attempt_timed_out", "requeue_budget_exhausted"})
_ENDS: Final = {EventType.RUN_COMPLETED: "completed", EventType.RUN_FAILED: "failed"}
# A body that comes to no call of the run is given so many seconds.
_LONGEST: Final = 30.0


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that today's code asks otherwise than a journal holds.

    seq: of the record at fault; None where it is the run's end, or nothing at all.
    recorded, asked: what the journal holds, and what the code does instead.
    where: `file.py:line` of the call in the author's code; empty where there is none.
    """

    seq: int | None
    recorded: str
    asked: str
    where: str
    message: str


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """How a rehearsal went. `reached` tells in words how far the body came."""

    difference: Difference | None
    reached: str


async def _nothing(*_: Any, **__: Any) -> Any:
    """What a store does that there is none of."""
    return ()


async def _terminated(*_: Any, **__: Any) -> RunStatus:
    """What a run that the body would end is found to be: ended already."""
    return RunStatus.TERMINATED


def _no_store() -> Any:
    """A store that can do everything, and forgets it: what an attempt writes beside its journal goes nowhere."""
    protocols = [each for module in (store, triggers, children) for each in vars(module).values() if _is_protocol(each)]
    names = {name for each in protocols for name in (*vars(each), *each.__annotations__) if not name.startswith("_")}
    acts = {**dict.fromkeys(sorted(names), staticmethod(_nothing)), "terminate": staticmethod(_terminated)}
    return type("NoStore", (), acts)()


def _is_protocol(value: object) -> bool:
    return isinstance(value, type) and bool(getattr(value, "_is_protocol", False))


class _Rehearsal(Attempt):
    """An attempt whose live calls never begin. `live`: where they stand, each as what it is and its place."""

    def __init__(self, claim: Claim, body: Body, patience: float) -> None:
        super().__init__(_no_store(), claim, body, settings=Settings(cancel_timeout=patience), outage=OutageLog())
        self.live: list[tuple[str, str]] = []
        self.difference: Difference | None = None
        self._asked = 0
        self._last = ""
        self._places: dict[str, str] = {}
        self._scopes: dict[str, str] = {}  # by path: the place of the last call that was made in it
        self._seqs: dict[str, int] = {}
        self._arrived = anyio.Event()

    def current_scope(self) -> OwnedScope:
        scope = super().current_scope()
        if place := _caller():
            self._scopes[scope.path] = place
        return scope

    def match(self, key: str, kind: str) -> Record | None:
        self._asked += 1
        self._last = f"{kind} {key!r}"
        self._places[self._last] = self._place(key)
        held = self.journal.peek(key)
        if held is not None:
            self._seqs[self._last] = self._seqs[f"{held.kind} {held.key!r}"] = held.since
        return super().match(key, kind)

    def _place(self, key: str) -> str:
        """Where a call stands in the author's code; for one in a leg or a thread perhaps where that was started."""
        path = key[: key.rfind("/") + 1]
        while path and path not in self._scopes:
            path = path[: path.rfind("/", 0, -1) + 1]
        return self._scopes.get(path, "")

    def refuse(self, error: ReplayRefused) -> ReplayRefused:
        if self.difference is None:
            where = (
                "" if error.asked == "nothing" else self._places.get(error.asked) or self._places.get(self._last, "")
            )
            seq, recorded = self._seq_of(error), error.recorded
            first = self.journal.unused()
            if self.turns.ahead and first is not None and seq is not None and first.since < seq:
                # Named is what comes next in the call's own scope; legs that come before it are passed over, too.
                seq, recorded = first.since, f"{first.kind} {first.key!r}"
            self.difference = Difference(seq, recorded, error.asked, where, str(error))
        return super().refuse(error)

    def _seq_of(self, error: ReplayRefused) -> int | None:
        if not self._last:
            return 1  # the input
        for record in map(self.journal.peek, {parse(seq, raw).key for seq, raw in self.claim.entries}):
            if record is not None and f"{record.kind} {record.key!r}" == error.recorded:
                return record.since
        return self._seqs.get(self._last)

    def open(self) -> bool:
        return False

    async def admit(self) -> None:
        while True:
            if self.barred:
                await self.refused()
            if self.turns.ahead:
                if refusal := await self.turns.caught_up():
                    raise self.refuse(refusal)
            elif self.cancel.pending:
                await super().admit()  # the request belongs to the recording, and is met where it was
            else:
                await self._stay()

    async def _stay(self) -> NoReturn:
        standing = (self._last, self._places.get(self._last, ""))
        self.live.append(standing)
        self._arrived.set()
        try:
            while True:
                await anyio.sleep_forever()
        finally:
            self.live.remove(standing)

    async def come_to_rest(self, patience: float) -> None:
        """Wait until the body stands at the recording's end and asks for nothing any more."""
        with anyio.move_on_after(_LONGEST):
            await self._arrived.wait()
        asked = -1
        while asked != self._asked and self.journal.unused() is not None:
            asked = self._asked
            await anyio.sleep(patience)


async def rehearse(
    body: Body, workflow: str, run_id: str, history: Sequence[tuple[int, bytes]], *, patience: float = 0.5
) -> Rehearsed:
    """Run a body against its recorded entries, all of them in order, the first of them `run.submitted`.

    patience: seconds that calls wait for others beside them to come as far as they were; only a body
        that differs takes so long.
    """
    entries = [parse(seq, raw) for seq, raw in history]
    end = entries[-1] if entries[-1].type in TERMINAL_TYPES else None
    kept = history if end is None else history[:-1]
    attempts = max(entry.attempt for entry in entries)
    claim = Claim(workflow, run_id, 1, attempts + 1, kept[-1][0], entries[-1].at, entries=kept)
    attempt = _Rehearsal(claim, body, patience)
    expected = None if end is None else _expected(end)
    standing: list[tuple[str, str]] = []

    async def stop_at_rest() -> None:
        await attempt.come_to_rest(patience)
        if expected is not None:
            await anyio.sleep(patience)  # a call that stands may be cut off, as it was then
        standing.extend(attempt.live)
        attempt.stop(Shutdown("the recording has ended"))

    async with anyio.create_task_group() as group:
        group.start_soon(stop_at_rest)
        ended = await run_attempt(attempt)
        group.cancel_scope.cancel()
    if attempt.difference is None and isinstance(ended.error, ReplayRefused):
        attempt.refuse(ended.error)  # what the code no longer asks for is found when it has ended
    if attempt.difference is not None:
        return Rehearsed(attempt.difference, ended.how)
    if ended.how == "requeued":
        return _stopped(attempt.journal.unused(), standing, end, expected)
    return _came_back(ended, end, expected)


def _expected(end: Entry) -> str | None:
    """How the body must come back; None where it was ended from outside, wherever it was."""
    if end.type == EventType.RUN_FAILED and end.data.get("error", {}).get("code") in _FROM_OUTSIDE:
        return None
    return _ENDS.get(end.type)


def _stopped(
    left: Record | None, standing: list[tuple[str, str]], end: Entry | None, expected: str | None
) -> Rehearsed:
    """The body stood still."""
    what, where = standing[0] if standing else ("nothing", "")
    if left is not None:
        recorded = f"{left.kind} {left.key!r}"
        message = f"the journal holds a {recorded} that the code does not ask for; it makes a {what} instead"
        return Rehearsed(Difference(left.since, recorded, what, where, message), "stopped")
    if expected is not None and end is not None:
        message = f"the recorded run has {expected} where the code makes a {what}"
        return Rehearsed(Difference(end.seq, f"the run's end: {expected}", what, where, message), "stopped")
    return Rehearsed(None, f"the end of the recording, before {what}")


def _came_back(ended: Ended, end: Entry | None, expected: str | None) -> Rehearsed:
    """The body ended by itself."""
    allowed = ("completed", "retrying", "cancelled") if end is None else (expected, "retrying")
    if ended.how in allowed or (end is not None and expected is None):
        return Rehearsed(None, ended.how)
    reason = "" if ended.error is None else f" ({type(ended.error).__name__}: {message_of(ended.error)})"
    recorded = "a run that goes on" if end is None else f"the run's end: {expected}"
    message = f"the journal holds {recorded}, the code's run has {ended.how}{reason}"
    where = "" if ended.error is None else _raised_at(ended.error)
    seq = None if end is None else end.seq
    return Rehearsed(Difference(seq, recorded, f"{ended.how}{reason}", where, message), ended.how)


def _foreign(module: str) -> bool:
    return module.partition(".")[0] in {_PACKAGE, "anyio", "asyncio", "trio"}


def _caller() -> str:
    """File and line of the author's code that makes the call at hand; empty where a task begins before it is found."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] != _PACKAGE:
            return "" if _foreign(module) else f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _raised_at(error: BaseException) -> str:
    """File and line of the innermost frame of the author's own that an error came through."""
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if not _foreign(str(frame.f_globals.get("__name__", ""))):
            found = f"{frame.f_code.co_filename}:{line}"
    return found
