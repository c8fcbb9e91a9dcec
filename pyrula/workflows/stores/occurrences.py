"""When a schedule is due: cron expressions read by the clocks of a time zone, and intervals.

Pure: the moment to start from comes in, nothing is kept, nothing is stored. `croniter` reads the
expressions; what happens where clocks are turned is decided here:

* An expression that names hours means what a clock on the wall shows. A time that the clocks
  skip is due at the moment they jump; a time that comes twice is due at its first coming.
* An expression with every hour (`*`) means regular intervals: it goes on through the repeated
  hour, and has nothing in a skipped one.
* Whatever falls on one moment is one occurrence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from croniter import croniter
from croniter.croniter import CroniterError

from pyrula.contracts.errors import InvalidInput
from pyrula.contracts.events import from_micros, to_micros
from pyrula.contracts.schedules import Schedule

__all__ = ["check_times", "due_time", "following", "occurrences"]

_SECOND: Final = timedelta(seconds=1)
# No zone has ever turned its clocks by more than a day (Samoa and Kwajalein left one out).
_LONGEST_TURN: Final = timedelta(hours=25)
_YEARS: Final = (
    40  # an expression with no date in so many years has none: leap years repeat after 28, or 40 past a 2100
)


def check_times(schedule: Schedule) -> None:
    """Refuse an expression or a zone that cannot be read. Raises `InvalidInput`."""
    _zone(schedule.timezone)
    if schedule.cron is None:
        return
    text = schedule.cron
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(f"cron={text!r}: an expression is needed, such as '0 2 * * *'", "cron")
    fields = text.split()
    if not text.strip().startswith("@") and len(fields) not in (5, 6):
        raise InvalidInput(f"cron={text!r} has {len(fields)} fields; five are needed, or six with seconds last", "cron")
    if any(field.lower().startswith(("r", "h")) for field in fields):
        raise InvalidInput(f"cron={text!r}: chance has no place in it; use jitter", "cron")
    try:
        _expression(text)
    except (CroniterError, ValueError, KeyError, IndexError) as error:
        raise InvalidInput(f"cron={text!r} cannot be read: {error}", "cron") from error


def _zone(name: str) -> tzinfo:
    """A time zone by its IANA name. Raises `InvalidInput`."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, TypeError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise InvalidInput(f"timezone={name!r} is not a time zone that is known here", "timezone") from error
    except KeyError as error:
        raise InvalidInput(f"timezone={name!r} is not a time zone that is known here", "timezone") from error


def following(schedule: Schedule, after: int) -> int:
    """The first occurrence later than `after` (microseconds, UTC); 0 when there is none any more."""
    if schedule.starts_at is not None:
        after = max(after, to_micros(schedule.starts_at.astimezone(UTC)) - 1)
    if schedule.interval is not None:
        found = _after_interval(schedule, after)
    else:
        assert schedule.cron is not None
        found = _after_cron(schedule.cron, schedule.timezone, after)
    if found and schedule.ends_at is not None and found > to_micros(schedule.ends_at.astimezone(UTC)):
        return 0
    return found


def occurrences(schedule: Schedule, after: int) -> Iterator[int]:
    """One occurrence after the other."""
    while after := following(schedule, after):
        yield after


def due_time(schedule: Schedule, occurrence: int) -> int:
    """When an occurrence is acted on: put off by its own share of the jitter, the same wherever it is asked."""
    if not schedule.jitter or not occurrence:
        return occurrence
    raw = hashlib.blake2b(f"{schedule.schedule_id}\x00{occurrence}".encode(), digest_size=8).digest()
    return occurrence + int(schedule.jitter * 1e6 * int.from_bytes(raw, "big") / 2**64)


def _after_interval(schedule: Schedule, after: int) -> int:
    assert schedule.interval is not None
    step = max(1, round(schedule.interval * 1e6))
    anchor = 0 if schedule.starts_at is None else to_micros(schedule.starts_at.astimezone(UTC))
    return anchor + max(0, (after - anchor) // step + 1) * step


@lru_cache(maxsize=4096)
def _expression(text: str) -> tuple[bool, croniter]:
    """Whether it holds for every hour, and the expression read once; a copy is made for each search."""
    read = croniter(text, 0, max_years_between_matches=_YEARS)
    hours = read.expanded[1]
    return hours == ["*"] or len(hours) == 24, read


def _later(text: str, naive: datetime) -> datetime | None:
    """The first time by the expression later than a naive one, as a clock on the wall shows it; None for never."""
    try:
        # Reading an expression costs five times as much as copying one that was read.
        found = copy(_expression(text)[1]).get_next(datetime, start_time=naive)
    except CroniterError:
        return None
    return found if isinstance(found, datetime) else None


def _after_cron(text: str, zone_name: str, after: int) -> int:
    """Segment by segment: between two turns of the clocks, wall time is the moment plus a constant."""
    where = _zone(zone_name)
    hourly, _ = _expression(text)
    segment = from_micros(after)
    wall = _wall(segment, where)
    while True:
        if not hourly and (past := _turn(segment - _LONGEST_TURN, segment, where)):
            # What the clock shows for the second time was due the first time.
            wall = max(wall, _shown(past.moment, past.before) - _SECOND)
        found = _later(text, wall)
        if found is None:
            return 0
        turn = _turn(segment, segment + _LONGEST_TURN, where)
        if turn is None:
            moment = found.replace(tzinfo=UTC) - _offset(segment, where)
            if _wall(moment, where) == found:
                return to_micros(moment)
            moments = _moments(found, where, hourly=hourly)
            if moments:
                return to_micros(moments[0])
            wall = found
            segment = found.replace(tzinfo=where).astimezone(UTC)
            continue
        if found < _shown(turn.moment, turn.before):
            return to_micros(found.replace(tzinfo=UTC) - turn.before)
        if not hourly and found < _shown(turn.moment, turn.after):
            return to_micros(turn.moment)  # the clocks skip it
        segment = turn.moment
        wall = _shown(turn.moment, turn.after) - _SECOND


@dataclass(frozen=True, slots=True)
class _Turn:
    """A moment at which clocks are turned, and the offsets from UTC before and after."""

    moment: datetime
    before: timedelta
    after: timedelta


def _offset(moment: datetime, where: tzinfo) -> timedelta:
    return moment.astimezone(where).utcoffset() or timedelta()


def _wall(moment: datetime, where: tzinfo) -> datetime:
    """What a clock on the wall shows."""
    return moment.astimezone(where).replace(tzinfo=None, fold=0)


def _shown(moment: datetime, offset: timedelta) -> datetime:
    """What a clock with that offset shows."""
    return (moment + offset).replace(tzinfo=None)


def _turn(low: datetime, high: datetime, where: tzinfo) -> _Turn | None:
    """Where clocks are turned later than `low` and not later than `high`; found to the second."""
    before, after = _offset(low, where), _offset(high, where)
    if before == after:
        return None
    while high - low > _SECOND:
        middle = low + (high - low) // 2
        if _offset(middle, where) == before:
            low = middle
        else:
            high = middle
    return _Turn(high.replace(microsecond=0), before, after)


def _moments(naive: datetime, where: tzinfo, *, hourly: bool) -> list[datetime]:
    """The moments (UTC) at which a clock on the wall shows this time, the first one first."""
    first = naive.replace(tzinfo=where, fold=0).astimezone(UTC)
    second = naive.replace(tzinfo=where, fold=1).astimezone(UTC)
    if first <= second:  # the same, unless it comes twice
        return [first]
    if hourly:
        return []
    turn = _turn(second - _SECOND, first, where)  # the clocks skip it
    return [first if turn is None else turn.moment]
