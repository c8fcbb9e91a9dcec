"""`pyrula runs signal`, `resume`, `cancel`, `terminate`, `retry`: what an operator does to a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.acceptance.conftest import Desk, Terminal


def test_a_question_is_shown_answered_and_signalled(served: Desk) -> None:
    run_id = served.submit("approval", amount=7)
    served.until("approval", run_id, "interrupt.raised")
    shown = served("runs", "show", run_id).out
    assert "waiting for   an answer to boss" in shown
    assert 'Question  {"approve":7}' in shown
    assert f"pyrula runs resume {run_id} JSON" in shown

    answered = served("runs", "resume", run_id, '"yes"')
    assert (answered.code, answered.out) == (0, f"run {run_id} of approval: answered\n")
    served.until("approval", run_id, "signal.awaited")
    sent = served("runs", "signal", run_id, "paid", '{"by": "card"}')
    assert (sent.code, sent.out) == (0, f"run {run_id} of approval: signal paid sent\n")
    served.until("approval", run_id, "run.completed")
    assert served("runs", "show", run_id, "--json").json["result"] == ["yes", {"by": "card"}]

    late = served("runs", "resume", run_id, "1")
    assert late.code == 1
    assert "is completed; it has no open question to answer" in late.err


@pytest.mark.parametrize("form", ["ID SIGNAL", "ID SIGNAL JSON", "WF ID SIGNAL", "WF ID SIGNAL JSON", "ID SIGNAL -"])
def test_every_way_to_write_a_signal(served: Desk, form: str) -> None:
    run_id = served.submit("approval", amount=1)
    words = {"ID": run_id, "WF": "approval", "SIGNAL": "paid", "JSON": "5", "-": "-"}
    done = served("runs", "signal", *(words[word] for word in form.split()), stdin=b"5")
    assert done.code == 0, done.err
    served("runs", "resume", "approval", run_id, "null", "--key", "boss")
    served.until("approval", run_id, "run.completed")
    expected = 5 if form.endswith(("JSON", "-")) else None
    assert served("runs", "show", run_id, "--json").json["result"] == [None, expected]


def test_a_signal_with_a_key_is_delivered_once(served: Desk) -> None:
    run_id = served.submit("approval", amount=1)
    for payload in ("1", "2"):
        assert served("runs", "signal", run_id, "paid", payload, "--idempotency-key", "k").code == 0
    served("runs", "resume", run_id, "0", "--key", "boss")
    served.until("approval", run_id, "run.completed")
    assert served("runs", "show", run_id, "--json").json["result"] == [0, 1]


def test_cancel_with_a_reason(served: Desk) -> None:
    run_id = served.submit("approval", amount=1)
    served.until("approval", run_id, "interrupt.raised")
    assert (
        served("runs", "cancel", run_id, "--reason", "changed my mind").out
        == f"run {run_id} of approval: asked to cancel\n"
    )
    served.until("approval", run_id, "run.cancelled")
    assert "Reason  changed my mind" in served("runs", "show", run_id).out
    again = served("runs", "cancel", run_id)
    assert again.code == 1
    assert "is cancelled; it takes no more messages" in again.err


def test_terminate_and_the_run_as_json(desk: Desk) -> None:
    run_id = desk.submit("order")
    document = desk("runs", "terminate", run_id, "--reason", "test", "--json").json
    assert (document["status"], document["error"]["reason"]) == ("terminated", "test")
    assert desk("runs", "terminate", run_id).code == 0


@pytest.mark.parametrize(("answer", "status", "code"), [("n", "queued", 1), ("y", "terminated", 0)])
def test_terminate_asks_on_a_terminal(
    desk: Desk, terminal: Callable[..., Terminal], answer: str, status: str, code: int
) -> None:
    run_id = desk.submit("order")
    screen = terminal("runs", "terminate", run_id, env=desk.environment)
    screen.expect(f"End run {run_id} of order (queued) without clean-up? [y/N]")
    screen.type(f"{answer}\n")
    assert screen.end() == code
    assert desk("runs", "show", run_id, "--json").json["status"] == status


def test_retry_makes_a_failed_run_go_on(served: Desk) -> None:
    run_id = served.submit("doomed")
    served.until("doomed", run_id, "run.failed")
    assert served("runs", "retry", run_id).out == f"run {run_id} of doomed: queued again\n"
    types = [event["type"] for event in served("runs", "events", run_id, "--json").records]
    assert "run.retried" in types
    refused = served("runs", "retry", served.submit("approval", amount=1))
    assert refused.code == 1
    assert "only a failed run can be retried" in refused.err


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("signal", "x"), 2, "expected [WORKFLOW] RUN_ID SIGNAL [JSON]; got x"),
        (("signal", "x", "y", "{bad", "--name", "order"), 2, "the payload: '{bad' is not JSON"),
        (("resume", "x"), 2, "expected [WORKFLOW] RUN_ID ANSWER"),
        (("resume", "x", "yes"), 2, "a text needs its own quotes: '\"yes\"'"),
        (("cancel", "nobody"), 1, "no run 'nobody' of any workflow"),
        (("terminate", "order", "nobody"), 1, "no run 'nobody' of workflow 'order'"),
        (("retry", "nobody"), 1, "no run 'nobody' of any workflow"),
    ],
)
def test_mistakes_are_one_line(desk: Desk, argv: tuple[str, ...], code: int, message: str) -> None:
    done = desk("runs", *argv)
    assert (done.code, done.out) == (code, "")
    [line] = done.err.splitlines()
    assert line.startswith("pyrula: ")
    assert message in line


def test_a_run_is_paused_forked_and_goes_on(served: Desk) -> None:
    run_id = served.submit("approval", amount=3)
    served.until("approval", run_id, "interrupt.raised")
    assert served("runs", "pause", run_id, "--json").json["status"] == "paused"
    assert served("runs", "resume", run_id, "1").code == 0
    assert served("runs", "show", run_id, "--json").json["status"] == "paused"
    made = served(
        "runs", "fork", run_id, "--at", "2", "--input", '{"amount": 4}', "--run-id", f"{run_id}-fork", "--json"
    )
    assert made.json["run_id"] == f"{run_id}-fork"
    assert made.json["input"] == {"amount": 4}
    served.until("approval", f"{run_id}-fork", "interrupt.raised")
    assert "goes on" in served("runs", "unpause", run_id).out
    served.until("approval", run_id, "signal.awaited")
    wrong = served("runs", "fork", run_id, "--at", "999")
    assert (wrong.code, "has events 1 to" in wrong.err) == (1, True)
    for each in (run_id, f"{run_id}-fork"):
        served("runs", "terminate", each, "--yes")


def test_what_a_run_has_published_and_an_update_that_nobody_handles(served: Desk) -> None:
    run_id = served.submit("approval", amount=3)
    served.until("approval", run_id, "interrupt.raised")
    assert served("runs", "query", run_id).code == 0
    missing = served("runs", "query", run_id, "nothing")
    assert (missing.code, "has published no 'nothing'" in missing.err) == (1, True)
    late = served("runs", "update", run_id, "add", "1", "--timeout", "0.1")
    assert (late.code, "has not answered the update 'add' in time" in late.err) == (1, True)
    assert served("runs", "update", run_id).code == 2
    served("runs", "terminate", run_id, "--yes")
