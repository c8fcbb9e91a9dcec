"""How times, durations and values read to a person. Pure text: no store, no terminal, no clock."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson

from pyrula.contracts.errors import InvalidInput

__all__ = ["STATUS_STYLE", "ago", "clean", "clock", "compact", "count_of", "duration", "exact", "moment", "one_line"]

STATUS_STYLE: Final = {
    "queued": "cyan",
    "running": "bold blue",
    "sleeping": "magenta",
    "waiting": "yellow",
    "paused": "yellow",
    "completed": "green",
    "failed": "bold red",
    "cancelled": "red",
    "terminated": "red",
}

# What would move a terminal's cursor, change its colours or title, or end a line where no line ends.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")


def clean(text: str) -> str:
    """The text with control characters written out, so that it cannot drive a terminal. JSON stays JSON."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def one_line(text: str) -> str:
    """The text as one line."""
    return clean("; ".join(line.strip() for line in text.splitlines() if line.strip()))


def compact(value: Any) -> str:
    """A value as JSON on one line."""
    return clean(orjson.dumps(value).decode())


def count_of(number: int, noun: str) -> str:
    """`1 run`, `2 runs`, `1,200 runs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(span: timedelta | float) -> str:
    """A length of time: `85 ms`, `2.31 s`, `4 min 10 s`, `3 h 20 min`, `12 d`."""
    seconds = max(0.0, span.total_seconds() if isinstance(span, timedelta) else span)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.995:
        return f"{seconds:.0f} s" if seconds == int(seconds) else f"{seconds:.2f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    whole = round(seconds)
    for size, name, small, small_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            big, rest = divmod(whole, size)
            return f"{big} {name} {rest // small} {small_name}" if rest // small and big < 10 else f"{big} {name}"
    return f"{whole} s"


def ago(when: datetime | None, now: datetime) -> str:
    """How long ago, or how far ahead: `now`, `12 s ago`, `in 3 h`; empty for no time."""
    if when is None:
        return ""
    seconds = (now - when).total_seconds()
    if abs(seconds) < 1:
        return "now"
    size, name = next((s, n) for s, n in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")) if abs(seconds) >= s)
    text = f"{int(abs(seconds) // size)} {name}"
    return f"{text} ago" if seconds > 0 else f"in {text}"


def exact(when: datetime) -> str:
    """A time to the millisecond, in UTC."""
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{when.microsecond // 1000:03d} UTC"


def clock(when: datetime) -> str:
    """The time of the day to the millisecond, in UTC."""
    return when.astimezone(UTC).strftime("%H:%M:%S.") + f"{when.microsecond // 1000:03d}"


def moment(text: str, now: datetime) -> datetime:
    """A time as a person types it: ISO 8601 (UTC unless it says otherwise), or `15m`, `2h`, `7d` for so long ago.

    Raises `InvalidInput`.
    """
    if span := _SPAN.fullmatch(text.strip()):
        try:
            return now - timedelta(seconds=float(span[1]) * _UNITS[span[2]])
        except OverflowError:
            raise InvalidInput(f"{text!r} is longer ago than there are dates") from None
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInput(
            f"{text!r} is no time: use one like 2026-05-01, 2026-05-01T12:30+02:00, or 15m, 2h, 7d for so long ago"
        ) from None
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
