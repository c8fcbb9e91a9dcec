"""`pyrula schedules`: making, looking, changing, triggering."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.acceptance.conftest import Desk


def test_the_life_of_a_schedule(desk: Desk) -> None:
    made = desk(
        "schedules", "create", "approval", "30 2 * * *", '{"amount": 5}', "--id", "nightly",
        "--timezone", "Europe/Berlin", "--overlap", "skip", "--owner", "acme", "--attribute", "team=x",
    )  # fmt: skip
    assert made.code == 0, made.err
    assert made.out.startswith("schedule nightly of approval: created\nnext: ")
    assert " 02:30:00+0" in made.out

    listed = desk("schedules", "list").out
    assert "30 2 * * * Europe/Berlin" in listed
    [kept] = desk("schedules", "list", "--json").records
    assert (kept["schedule_id"], kept["overlap"], kept["owner"]) == ("nightly", "skip", "acme")
    assert (kept["input"], kept["attributes"], kept["outcomes"]) == ({"amount": 5}, {"team": "x"}, [])
    assert kept["next_at"].endswith("Z")

    times = desk("schedules", "next", "nightly", "-n", "3").lines
    assert len(times) == 3
    assert all(" 02:30:00+0" in each or " 03:00:00+02" in each for each in times)

    assert "changed" in desk("schedules", "update", "nightly", "--pause").out
    assert desk("schedules", "show", "nightly", "--json").json["next_at"] is None
    assert "paused" in desk("schedules", "list").out
    assert desk("schedules", "update", "nightly", "--enable", "--every", "60", "--json").json["interval"] == 60

    run = desk("schedules", "trigger", "nightly", "--json").json
    assert (run["name"], run["status"], run["input"]) == ("approval", "queued", {"amount": 5})
    shown = desk("schedules", "show", "nightly").out
    assert "every 60 s" in shown
    assert "triggered" in shown
    assert run["run_id"] in shown

    assert desk("schedules", "delete", "nightly").out == "schedule nightly: deleted\n"
    gone = desk("schedules", "show", "nightly")
    assert (gone.code, gone.err.count("\n")) == (1, 1)
    assert "no schedule 'nightly'" in gone.err
    assert desk("schedules", "list").err == "no schedules\n"


def test_an_interval_takes_the_place_of_an_expression(desk: Desk) -> None:
    made = desk("schedules", "create", "approval", '{"amount": 1}', "--every", "2.5", "--json").json
    assert (made["interval"], made["cron"], made["input"]) == (2.5, None, {"amount": 1})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["create", "approval", "61 * * * *"], "cron='61 * * * *' cannot be read"),
        (["create", "approval", "0 0 30 2 *"], "never comes due"),
        (["create", "approval"], "give a cron expression or an interval"),
        (["create", "approval", "* * * * *", "{}", "--every", "5"], "a cron expression or --every"),
        (["create", "approval", "* * * * *", "[1]"], "must be a JSON object"),
        (["create", "approval", "* * * * *", "--timezone", "Mars"], "timezone='Mars'"),
        (["update", "nobody", "--pause"], "no schedule 'nobody'"),
        (["update", "nobody"], "nothing to change"),
        (["trigger", "nobody"], "no schedule 'nobody'"),
        (["next", "nobody"], "no schedule 'nobody'"),
    ],
)
def test_mistakes_are_said_in_a_line(desk: Desk, words: list[str], said: str) -> None:
    done = desk("schedules", *words)
    assert done.code != 0
    assert said in done.err.replace("\n", " ")
    assert "Traceback" not in done.err
