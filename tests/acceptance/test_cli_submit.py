"""`pyrula submit`: what goes in, what comes out, and how it says no."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.acceptance.conftest import Desk


def test_prints_the_id_of_a_queued_run(desk: Desk) -> None:
    done = desk(
        "submit", "order", '{"skus": ["a"]}', "--owner", "acme", "--attribute", "tier=gold", "--attribute", "n=3"
    )
    assert done.code == 0
    [run_id] = done.lines
    run = desk("runs", "show", run_id, "--json").json
    assert (run["name"], run["status"], run["input"]) == ("order", "queued", {"skus": ["a"]})
    assert (run["owner"], run["attributes"]) == ("acme", {"tier": "gold", "n": 3})


def test_a_workflow_that_nobody_has_served_is_pointed_out_once(desk: Desk) -> None:
    assert "no worker has served a workflow 'ordr' here yet" in desk("submit", "ordr").err
    assert desk("submit", "ordr").err == ""


@pytest.mark.parametrize("given", ["-", "@FILE"])
def test_input_from_stdin_and_from_a_file(desk: Desk, tmp_path: Path, given: str) -> None:
    file = tmp_path / "input.json"
    file.write_text('{"skus": ["file"]}')
    done = desk("submit", "order", given.replace("FILE", str(file)), "--json", stdin=b'{"skus": ["stdin"]}')
    assert done.json["input"] == {"skus": ["stdin" if given == "-" else "file"]}


def test_the_result_with_wait(served: Desk) -> None:
    done = served("submit", "order", '{"skus": ["a", "bc"]}', "--wait")
    assert (done.code, done.json, done.err) == (0, {"total": 300}, "")


def test_a_failed_run_with_wait_is_one_line_and_exit_code_1(served: Desk) -> None:
    done = served("submit", "doomed", "--wait")
    assert (done.code, done.out) == (1, "")
    [line] = done.err.splitlines()
    assert line.startswith("pyrula: run ")
    assert "the card; was refused" in line
    assert "\x1b" not in line


def test_waiting_ends_after_its_timeout(desk: Desk) -> None:
    done = desk("submit", "order", "--wait", "--timeout", "0.05")
    assert done.code == 1
    assert "has not ended within 0.05 s; it is queued" in done.err


def test_a_repeat_starts_nothing(desk: Desk) -> None:
    by_id = [desk("submit", "order", "--run-id", "mine").out for _ in range(2)]
    by_key = [desk("submit", "order", "--idempotency-key", "k-1").out for _ in range(2)]
    assert by_id == ["mine\n", "mine\n"]
    assert by_key[0] == by_key[1]
    assert len(desk("runs", "list", "--json").records) == 2
    conflict = desk("submit", "order", '{"other": 1}', "--run-id", "mine")
    assert (conflict.code, conflict.out) == (1, "")
    assert "exists with another input" in conflict.err


def test_delay_and_priority(desk: Desk) -> None:
    run = desk("submit", "order", "--delay", "3600", "--priority", "5", "--json").json
    shown = desk("runs", "show", run["run_id"])
    assert run["priority"] == 5
    assert "starts" in shown.out
    assert "(in 59 min)" in shown.out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("order", "{bad"), "the input: '{bad' is not JSON"),
        (("order", "[1]"), "the input must be a JSON object"),
        (("order", "@nowhere.json"), "the input: cannot read nowhere.json: No such file or directory"),
        (("order", "--attribute", "tier"), "'tier' is not KEY=VALUE"),
        (("order", "--timeout", "3"), "goes with --wait"),
        (("order", "--delay", "soon"), "--delay"),
        ((), "Missing argument 'NAME'"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(desk: Desk, argv: tuple[str, ...], message: str) -> None:
    done = desk("submit", *argv)
    assert (done.code, done.out) == (2, "")
    [line] = done.err.splitlines()
    assert line.startswith("pyrula: ")
    assert message in line
    assert line.endswith("(see 'pyrula submit --help')")


def test_what_the_engine_refuses_is_exit_code_1(desk: Desk) -> None:
    done = desk("submit", "no braces {please}")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("pyrula: workflow name 'no braces {please}' holds")
    assert len(done.err.splitlines()) == 1
