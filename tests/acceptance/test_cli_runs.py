"""`pyrula runs`: finding, listing, showing and following runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.acceptance.conftest import Desk


def test_a_list_for_people_and_one_for_programs(desk: Desk) -> None:
    first = desk("submit", "order", "--owner", "acme", "--attribute", "tier=gold").out.strip()
    second = desk("submit", "invoice", "--delay", "7200").out.strip()
    listed = desk("runs", "list")
    assert listed.lines[0].split() == ["RUN", "WORKFLOW", "STATUS", "OWNER", "SUBMITTED", "ATTRIBUTES", "NOTE"]
    assert [line.split()[:3] for line in listed.lines[1:]] == [
        [second, "invoice", "queued"],
        [first, "order", "queued"],
    ]
    assert "starts in 1 h" in listed.lines[1]
    assert "tier=gold" in listed.lines[2]
    records = desk("runs", "list", "--json").records
    assert [(run["run_id"], run["status"], run["owner"]) for run in records] == [
        (second, "queued", None),
        (first, "queued", "acme"),
    ]
    assert records[1]["attributes"] == {"tier": "gold"}


def test_filters(desk: Desk) -> None:
    ids = {
        name: desk("submit", name, "--owner", f"o-{name}", "--attribute", f"at={name}").out.strip() for name in "abc"
    }
    desk("runs", "terminate", ids["c"])

    def listed(*argv: str) -> list[str]:
        return [run["name"] for run in desk("runs", "list", "--json", *argv).records]

    assert listed("--name", "a") == ["a"]
    assert listed("--status", "terminated") == ["c"]
    assert listed("--status", "queued") == ["b", "a"]
    assert listed("--owner", "o-b") == ["b"]
    assert listed("--attribute", "at=b") == ["b"]
    assert listed("--attribute", "at=b", "--name", "a") == []
    assert listed("--after", "10m") == ["c", "b", "a"]
    assert listed("--before", "10m") == []
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).date().isoformat()
    assert listed("--before", tomorrow) == ["c", "b", "a"]
    assert listed("--after", tomorrow) == []


def test_page_by_page_and_all_at_once(desk: Desk) -> None:
    ids = [desk.submit("order", n=n) for n in range(5)]
    page = desk("runs", "list", "--json", "--limit", "2")
    assert [run["run_id"] for run in page.records] == [ids[4], ids[3]]
    cursor = page.err.split("--cursor ")[1].split()[0]
    following = desk("runs", "list", "--json", "--limit", "2", "--cursor", cursor)
    assert [run["run_id"] for run in following.records] == [ids[2], ids[1]]
    everything = desk("runs", "list", "--json", "--limit", "2", "--all")
    assert [run["run_id"] for run in everything.records] == ids[::-1]
    assert everything.err == ""


def test_nothing_to_list_is_said_beside_the_output(desk: Desk) -> None:
    done = desk("runs", "list")
    assert (done.code, done.out, done.err) == (0, "", "no runs\n")
    assert desk("runs", "list", "--json") == type(done)(0, "", "")


def test_a_completed_run_in_full(served: Desk) -> None:
    run_id = served.submit("order", skus=["a", "bc"])
    served.until("order", run_id, "run.completed")
    shown = served("runs", "show", run_id).out
    assert shown.startswith(f"order  {run_id}  completed\n")
    for part in (
        'Input  {"skus":["a","bc"]}',
        'Result  {"total":300}',
        "attributes    size=2",
        "Published as total  300",
        "Journal  8 events: 2 steps completed",
        "price:bc  200",
        "UTC  (",
        "took ",
    ):
        assert part in shown
    document = served("runs", "show", run_id, "--json").json
    assert (document["result"], document["committed"], document["events"]) == ({"total": 300}, {"total": 300}, 8)


def test_a_failed_run_shows_the_authors_frames_and_not_the_engines(served: Desk) -> None:
    run_id = served.submit("doomed")
    served.until("doomed", run_id, "run.failed")
    shown = served("runs", "show", run_id).out
    assert "Error  StepFailed: step 'pay' failed after 1 try" in shown
    assert 'cli_workflows.py", line' in shown
    assert 'await ctx.step("pay", pay)' in shown
    assert "pyrula/actors" not in shown
    assert "\x1b" not in shown


def test_a_run_is_found_by_id_by_beginning_and_with_its_workflow(desk: Desk) -> None:
    run_id = desk.submit("order")
    wanted = f"order  {run_id}  queued"
    for words in ((run_id,), (run_id[:20],), ("order", run_id), (run_id, "--name", "order")):
        assert desk("runs", "show", *words).lines[0] == wanted
    missing = desk("runs", "show", "invoice", run_id)
    assert (missing.code, missing.out) == (1, "")
    assert "no run" in missing.err


def test_an_id_that_fits_several_runs_is_refused_with_their_names(desk: Desk) -> None:
    for name in ("order", "invoice"):
        desk("submit", name, "--run-id", "same")
    done = desk("runs", "cancel", "same")
    assert done.code == 1
    assert done.err == "pyrula: 'same' fits 2 runs: invoice same, order same; say which\n"
    assert desk("runs", "show", "order", "same").code == 0
    run_id = desk.submit("order")
    assert run_id[:8] == desk.submit("order")[:8]
    done = desk("runs", "show", run_id[:8])
    assert "fits 2 runs" in done.err


def test_the_journal_for_people_and_for_programs(served: Desk) -> None:
    run_id = served.submit("order", skus=["a"])
    served.until("order", run_id, "run.completed")
    lines = served("runs", "events", run_id).lines
    assert [line.split()[2] for line in lines] == [
        "run.submitted",
        "run.started",
        "step.completed",
        "output.written",
        "value.committed",
        "run.completed",
    ]
    records = served("runs", "events", run_id, "--json").records
    assert [event["seq"] for event in records] == [1, 2, 3, 4, 5, 6]
    assert records[2].keys() == {"workflow", "run_id", "seq", "type", "at", "attempt", "key", "data"}
    assert {record["run_id"] for record in records} == {run_id}
    assert (records[2]["key"], records[2]["data"]["result"]) == ("price:a", 100)
    assert served("runs", "events", run_id, "--json", "--follow").records == records


def test_following_shows_events_and_output_until_the_end(served: Desk) -> None:
    run_id = served.submit("steady", seconds=0.3)
    followed = served("runs", "tail", run_id)
    assert followed.code == 0
    assert followed.lines[0].startswith(f"steady  {run_id}  ")
    assert followed.lines[-1] == f"steady  {run_id}  completed"
    assert "output  under way" in followed.out
    assert "work  0.3" in followed.out
    records = served("runs", "tail", run_id, "--json").records
    assert {"output": "under way"} in records
    assert [record["event"]["type"] for record in records if "event" in record][-1] == "run.completed"


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("list", "--status", "odd"), 2, "'odd' is not one of 'queued', 'running'"),
        (("list", "--after", "yesterday"), 2, "'yesterday' is no time"),
        (("list", "--attribute", "tier"), 2, "'tier' is not KEY=VALUE"),
        (("list", "--limit", "0"), 2, "--limit"),
        (("list", "--cursor", "odd"), 1, "cursor 'odd' is not one that a listing gave"),
        (("show",), 2, "Missing argument '[WORKFLOW] RUN_ID'"),
        (("show", "a", "b", "c"), 2, "expected RUN_ID, or WORKFLOW RUN_ID; got a b c"),
        (("show", "a", "b", "--name", "c"), 2, "expected RUN_ID, since --name is given; got a b"),
        (("show", "nobody"), 1, "no run 'nobody' of any workflow"),
        (("events", "nobody"), 1, "no run 'nobody' of any workflow"),
        (("tail", "nobody"), 1, "no run 'nobody' of any workflow"),
        (("list", "--namespace", "a b"), 1, "namespace 'a b' is not valid"),
        (("nonsense",), 2, "No such command 'nonsense'"),
    ],
)
def test_mistakes_are_one_line(desk: Desk, argv: tuple[str, ...], code: int, message: str) -> None:
    done = desk("runs", *argv)
    assert (done.code, done.out) == (code, "")
    [line] = done.err.splitlines()
    assert line.startswith("pyrula: ")
    assert message in line


def test_a_server_that_is_away_is_named_without_its_password(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    done = desk("runs", "list", "--url", "redis://:sesame@127.0.0.1:1")
    assert done.code == 1
    assert done.err == "pyrula: cannot reach Valkey at 127.0.0.1:1: Connection refused\n"
    assert desk("--url", "redis://:sesame@127.0.0.1:1", "runs", "list").err == done.err
    monkeypatch.delenv("PYRULA_VALKEY_URL")
    monkeypatch.setattr("pyrula.workflows.stores.valkey.server._DEFAULT_URL", "redis://127.0.0.1:1")
    assert desk("runs", "list").err.endswith("(--url or PYRULA_VALKEY_URL names another server)\n")


def test_a_traceback_comes_only_when_asked_for(desk: Desk) -> None:
    assert "Traceback" not in desk("runs", "show", "nobody").err
    told = desk("runs", "show", "nobody", "--debug").err
    assert told.startswith("Traceback")
    assert told.splitlines()[-1].startswith("pyrula: no run 'nobody'")
