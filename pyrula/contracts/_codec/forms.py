"""The text form of each scalar that JSON has no word for, both ways: never containers, never annotations.

Writers raise `Refusal`, readers raise `ValueError`. Every form is exact: what was written
reads back equal, to the microsecond and to the last zero of a decimal.
"""

from __future__ import annotations

import binascii
import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from uuid import UUID

from pyrula.contracts._codec.paths import Refusal

__all__ = [
    "bytes_text",
    "date_text",
    "datetime_text",
    "decimal_text",
    "parse_bytes",
    "parse_date",
    "parse_datetime",
    "parse_decimal",
    "parse_duration",
    "parse_time",
    "parse_uuid",
    "time_text",
    "timedelta_text",
    "uuid_text",
]

_MICROSECOND = timedelta(microseconds=1)
_DAY_IN_SECONDS = 86_400
_DURATION = re.compile(
    r"(?P<sign>[+-]?)P(?=.)(?:(\d{1,9})W)?(?:(\d{1,9})D)?"
    r"(?:T(?=.)(?:(\d{1,12})H)?(?:(\d{1,14})M)?"
    r"(?:(\d{1,16})(?:\.(?P<fraction>\d{1,6}))?S)?)?",
    re.ASCII,
)


def datetime_text(value: datetime) -> str:
    """RFC 3339 in UTC with microseconds and `Z`. A naive datetime is refused: it names no moment."""
    if value.tzinfo is not UTC:
        if value.utcoffset() is None:
            raise Refusal(type(value), "a naive datetime names no moment; give it a time zone, such as datetime.UTC")
        if getattr(value, "nanosecond", 0):
            raise Refusal(type(value), "nanoseconds would be lost; round it to microseconds first")
        try:
            value = value.astimezone(UTC)
        except OverflowError:
            raise Refusal(type(value), "it lies outside the years 1 to 9999 in UTC") from None
    return datetime.isoformat(value, timespec="microseconds")[:26] + "Z"


def parse_datetime(text: str) -> datetime:
    """Any ISO 8601 moment with an offset, as a datetime in UTC."""
    value = datetime.fromisoformat(text)
    if value.tzinfo is None:
        raise ValueError("no offset")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("outside the years 1 to 9999 in UTC") from None


def date_text(value: date) -> str:
    """`2024-05-01`."""
    return date.isoformat(value)


def parse_date(text: str) -> date:
    """An ISO 8601 date."""
    return date.fromisoformat(text)


def time_text(value: time) -> str:
    """`12:30:00.000000`, with the offset when it has a fixed one; a zone needs a date to mean anything."""
    if value.tzinfo is not None and value.utcoffset() is None:
        raise Refusal(type(value), "a time of day in a zone without a fixed offset; use an aware datetime")
    return time.isoformat(value, timespec="microseconds")


def parse_time(text: str) -> time:
    """An ISO 8601 time of day."""
    return time.fromisoformat(text)


def timedelta_text(value: timedelta) -> str:
    """An ISO 8601 duration in days and seconds, `P1DT3600.000001S`, with a leading minus when negative."""
    if getattr(value, "nanoseconds", 0):
        raise Refusal(type(value), "nanoseconds would be lost; round it to microseconds first")
    sign = ""
    if value.days < 0:
        sign, value = "-", -value
    fraction = f".{value.microseconds:06}" if value.microseconds else ""
    return f"{sign}P{value.days}DT{value.seconds}{fraction}S"


def parse_duration(text: str) -> timedelta:
    """An ISO 8601 duration of weeks, days, hours, minutes and seconds; months and years have no fixed length."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError("no duration")
    weeks, days, hours, minutes, seconds = (int(digits or 0) for digits in found.groups()[1:6])
    micros = int((found["fraction"] or "").ljust(6, "0"))
    days += weeks * 7
    seconds += (hours * 60 + minutes) * 60
    # Carried by hand: the constructor would take large counts of seconds through floats.
    days, seconds = days + seconds // _DAY_IN_SECONDS, seconds % _DAY_IN_SECONDS
    try:
        value = timedelta(days=days, seconds=seconds, microseconds=micros)
        return -value if found["sign"] == "-" else value
    except OverflowError:
        raise ValueError("too long") from None


def uuid_text(value: UUID) -> str:
    """The usual form, in lower case."""
    return UUID.__str__(value)


def parse_uuid(text: str) -> UUID:
    """Any form that `uuid.UUID` reads."""
    return UUID(text)


def decimal_text(value: Decimal) -> str:
    """The decimal's own digits, trailing zeros and exponent included. NaN and infinities are refused."""
    if not value.is_finite():
        raise Refusal(type(value), "NaN and infinities are no numbers that a journal can hold; use None")
    return Decimal.__str__(value)


def parse_decimal(text: str) -> Decimal:
    """A finite decimal from its digits."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError("no decimal") from None
    if not value.is_finite():
        raise ValueError("not finite")
    return value


def bytes_text(value: bytes) -> str:
    """Base64, standard alphabet, padded."""
    return binascii.b2a_base64(value, newline=False).decode("ascii")


def parse_bytes(text: str) -> bytes:
    """Bytes from base64, strictly: nothing outside the alphabet, nothing after the padding."""
    return binascii.a2b_base64(text, strict_mode=True)
