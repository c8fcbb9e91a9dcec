"""When schedules are due: expressions, zones, turned clocks, intervals, jitter."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrula.contracts.errors import InvalidInput
from pyrula.contracts.events import from_micros, to_micros
from pyrula.contracts.schedules import Schedule
from pyrula.workflows.schedules import upcoming
from pyrula.workflows.stores.occurrences import check_times, due_time, following

BERLIN = "Europe/Berlin"
LORD_HOWE = "Australia/Lord_Howe"  # turns its clocks by half an hour


def local(cron: str, zone: str, start: str, count: int) -> list[str]:
    """Occurrences after a time of that zone, as `day hour:minute:second offset` of its clocks."""
    where = ZoneInfo(zone)
    after = datetime.fromisoformat(start).replace(tzinfo=where)
    found = upcoming(Schedule.create("w", cron, timezone=zone), count, after)
    return [each.astimezone(where).strftime("%d %H:%M:%S %z") for each in found]


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("0 2 * * *", ["2026-06-01T02:00", "2026-06-02T02:00"]),
        ("*/20 9-10 * * mon", ["2026-06-01T09:00", "2026-06-01T09:20"]),
        ("@daily", ["2026-06-02T00:00", "2026-06-03T00:00"]),
        ("@hourly", ["2026-06-01T01:00", "2026-06-01T02:00"]),
        ("0 0 L * *", ["2026-06-30T00:00", "2026-07-31T00:00"]),
        ("0 0 * * L5", ["2026-06-26T00:00", "2026-07-31T00:00"]),
        ("0 0 * * fri#2", ["2026-06-12T00:00", "2026-07-10T00:00"]),
        ("0 0 1 jan,jul *", ["2026-07-01T00:00", "2027-01-01T00:00"]),
        ("0 0 29 2 *", ["2028-02-29T00:00", "2032-02-29T00:00"]),
        ("0 0 * * * */30", ["2026-06-01T00:00:30", "2026-06-02T00:00"]),
    ],
)
def test_expressions(cron: str, expected: list[str]) -> None:
    found = upcoming(Schedule.create("w", cron), 2, datetime(2026, 6, 1, tzinfo=UTC))
    assert found == [datetime.fromisoformat(each).replace(tzinfo=UTC) for each in expected]


@pytest.mark.parametrize(
    ("cron", "zone", "start", "expected"),
    [
        # 29 March 2026: the clocks go from 02:00 to 03:00.
        ("30 2 * * *", BERLIN, "2026-03-28T12:00", ["29 03:00:00 +0200", "30 02:30:00 +0200"]),
        ("*/20 2,3 * * *", BERLIN, "2026-03-28T12:00", ["29 03:00:00 +0200", "29 03:20:00 +0200"]),
        ("15 * * * *", BERLIN, "2026-03-29T01:00", ["29 01:15:00 +0100", "29 03:15:00 +0200"]),
        # 25 October 2026: the clocks go from 03:00 back to 02:00.
        ("30 2 * * *", BERLIN, "2026-10-25T00:00", ["25 02:30:00 +0200", "26 02:30:00 +0100"]),
        ("0 3 * * *", BERLIN, "2026-10-25T00:00", ["25 03:00:00 +0100", "26 03:00:00 +0100"]),
        (
            "0 * * * *",
            BERLIN,
            "2026-10-25T01:30",
            ["25 02:00:00 +0200", "25 02:00:00 +0100", "25 03:00:00 +0100"],
        ),
        (
            "*/30 * * * *",
            LORD_HOWE,
            "2026-04-05T01:10",
            ["05 01:30:00 +1100", "05 01:30:00 +1030", "05 02:00:00 +1030"],
        ),
        # Samoa left out the 30th of December 2011.
        ("0 12 * * *", "Pacific/Apia", "2011-12-28T13:00", ["29 12:00:00 -1000", "31 00:00:00 +1400"]),
    ],
)
def test_turned_clocks(cron: str, zone: str, start: str, expected: list[str]) -> None:
    assert local(cron, zone, start, len(expected)) == expected


FIELDS = st.sampled_from(["*", "0", "*/20", "15,45", "59"])
HOURS = st.sampled_from(["*", "2", "1-3", "0,2", "*/2", "3"])
DAYS = st.sampled_from(["*", "29", "25", "L"])
TURNS = [
    (BERLIN, datetime(2026, 3, 29, 1, tzinfo=UTC)),
    (BERLIN, datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC)),
    (LORD_HOWE, datetime(2026, 4, 4, 15, tzinfo=UTC)),
    (LORD_HOWE, datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
    ("Asia/Kolkata", datetime(2026, 5, 5, tzinfo=UTC)),
]


def by_the_minute(cron: str, zone: str, start: datetime, end: datetime) -> list[datetime]:
    """The same by looking at the clock every minute."""
    where = ZoneInfo(zone)
    hourly = cron.split()[1] == "*"
    shown: set[datetime] = set()
    found: list[datetime] = []
    # It begins early, so that what the clock has shown before is known.
    moment = start - timedelta(hours=3)
    last = moment.astimezone(where).replace(tzinfo=None) - timedelta(minutes=1)
    while moment <= end:
        wall = moment.astimezone(where).replace(tzinfo=None, fold=0)
        skipped = [last + timedelta(minutes=n) for n in range(1, int((wall - last) / timedelta(minutes=1)))]
        due = croniter.match(cron, wall) and (hourly or wall not in shown)
        due = due or (not hourly and any(croniter.match(cron, each) for each in skipped))
        if due and moment > start:
            found.append(moment)
        shown.add(wall)
        last = wall
        moment += timedelta(minutes=1)
    return found


@settings(max_examples=40, deadline=None)
@given(FIELDS, HOURS, DAYS, st.sampled_from(TURNS), st.integers(-180, 90))
def test_it_is_as_if_the_clock_was_watched(
    minute: str, hour: str, day: str, turn: tuple[str, datetime], lead: int
) -> None:
    zone, turned = turn
    cron = f"{minute} {hour} {day} * *"
    start = turned + timedelta(minutes=lead)
    end = turned + timedelta(hours=4)
    schedule = Schedule.create("w", cron, timezone=zone, ends_at=end)
    assert upcoming(schedule, 1000, start) == by_the_minute(cron, zone, start, end)


@given(st.integers(0, 4_000_000_000_000_000), st.sampled_from(["*/7 * * * *", "0 3 * * *", "1 1 1 1 *", "* * * * * *"]))
def test_what_follows_is_later(after: int, cron: str) -> None:
    schedule = Schedule.create("w", cron, timezone=BERLIN)
    first = following(schedule, after)
    assert first > after
    assert following(schedule, first) > first
    assert following(schedule, first - 1) == first


def test_intervals_keep_their_beat() -> None:
    start = datetime(2026, 1, 1, 10, 0, 7, tzinfo=UTC)
    schedule = Schedule.create("w", interval=90, starts_at=start, ends_at=start + timedelta(minutes=5))
    expected = [start + timedelta(seconds=90 * n) for n in range(4)]
    assert upcoming(schedule, 10, start - timedelta(days=9)) == expected
    assert upcoming(schedule, 10, start) == expected[1:]
    unbound = Schedule.create("w", interval=0.25)
    assert [each.timestamp() for each in upcoming(unbound, 3, datetime.fromtimestamp(100.1, UTC))] == [
        100.25,
        100.5,
        100.75,
    ]


def test_a_time_span_bounds_an_expression() -> None:
    schedule = Schedule.create(
        "w",
        "0 0 * * *",
        starts_at=datetime(2026, 5, 2, tzinfo=UTC),
        ends_at=datetime(2026, 5, 3, tzinfo=UTC),
    )
    assert [each.day for each in upcoming(schedule, 10, datetime(2026, 1, 1, tzinfo=UTC))] == [2, 3]


def test_jitter_is_the_same_for_the_same_occurrence_and_spreads_the_others() -> None:
    schedule = Schedule.create("w", "* * * * *", jitter=30, schedule_id="a")
    times = list(islice((to_micros(each) for each in upcoming(schedule, 200)), 200))
    late = [due_time(schedule, each) - each for each in times]
    assert late == [due_time(schedule, each) - each for each in times]
    assert all(0 <= each < 30_000_000 for each in late)
    assert len(set(late)) == 200
    assert max(late) > 25_000_000 > 5_000_000 > min(late)
    other = Schedule.create("w", "* * * * *", jitter=30, schedule_id="b")
    assert due_time(other, times[0]) != due_time(schedule, times[0])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cron": "61 * * * *"}, "cron='61 * * * *' cannot be read"),
        ({"cron": "a b c d e"}, "cannot be read"),
        ({"cron": "* * * *"}, "has 4 fields; five are needed"),
        ({"cron": "* * * * * * *"}, "has 7 fields"),
        ({"cron": "@fortnightly"}, "cannot be read"),
        ({"cron": "R * * * *"}, "use jitter"),
        ({"cron": ""}, "an expression is needed"),
        ({"cron": "0 * * * *", "timezone": "Mars/Olympus"}, "timezone='Mars/Olympus' is not a time zone"),
        ({"cron": "0 * * * *", "timezone": "../../etc/passwd"}, "is not a time zone"),
        ({"cron": "0 * * * *", "timezone": ""}, "is not a time zone"),
        ({"cron": "0 * * * *", "interval": 5}, "a cron expression or an interval, and not both"),
        ({}, "a cron expression or an interval"),
        ({"interval": -1}, "interval=-1"),
        ({"interval": 0}, "a millisecond is the shortest"),
        ({"interval": float("nan")}, "interval=nan"),
        ({"cron": "0 * * * *", "jitter": -1}, "jitter=-1"),
        ({"cron": "0 * * * *", "overlap": "maybe"}, "overlap='maybe' is none of allow, skip, queue, cancel"),
        ({"cron": "0 * * * *", "starts_at": datetime(2026, 1, 1)}, "starts_at needs an aware datetime"),  # noqa: DTZ001
        ({"cron": "0 * * * *", "colour": "red"}, "colour"),
        ({"cron": "0 * * * *", "schedule_id": "a b"}, "schedule_id"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_times(Schedule.create("w", **fields))  # type: ignore[arg-type]
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_date_that_never_comes() -> None:
    assert upcoming(Schedule.create("w", "0 0 30 2 *")) == []
    assert following(Schedule.create("w", "0 0 30 2 *"), 0) == 0
    assert from_micros(following(Schedule.create("w", "0 0 29 2 *"), 0)).year == 1972
