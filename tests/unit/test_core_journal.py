"""The journal's index: matching, refusals, what a retry makes void, where a cancel stands, what is left over."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrula.actors.core.journal import Journal, Kind
from pyrula.contracts.errors import VersionSkew
from pyrula.contracts.events import Entry, EventType


def history(*events: Any) -> list[Entry]:
    """Entries numbered from 1, after a submission and a start."""
    all_events: list[Any] = [("run.submitted", "", {"input": {"n": 1}}), ("run.started", ""), *events]
    return [
        Entry(seq, kind, 0, 1, key, rest[0] if rest else {}) for seq, (kind, key, *rest) in enumerate(all_events, 1)
    ]


def completed(key: str) -> tuple[str, str, dict[str, Any]]:
    return ("step.completed", key, {"result": key})


def failed(key: str) -> tuple[str, str, dict[str, Any]]:
    return ("step.failed", key, {"error": {"type": "ValueError", "message": "no"}, "attempts": 1})


RUN_FAILED = ("run.failed", "", {"error": {"code": "step_failed"}})
RETRIED = ("run.retried", "", {"by": "operator"})
BY_POLICY = ("run.retried", "", {"by": "policy", "error": {"code": "step_failed"}})
RESUMED = ("run.resumed", "")


def test_an_empty_journal_matches_nothing() -> None:
    journal = Journal(history())
    assert journal.match("a", Kind.STEP) is None
    assert not journal.replaying
    assert not journal.begun
    assert journal.unused() is None
    assert journal.input == {"n": 1}


def test_a_record_is_given_to_the_call_that_asks() -> None:
    journal = Journal(history(completed("a"), completed("a#2")))
    assert journal.replaying
    second = journal.match("a#2", Kind.STEP)
    assert second is not None
    assert second.outcome is not None
    assert second.outcome.seq == 4
    assert journal.replaying
    journal.match("a", Kind.STEP)
    assert not journal.replaying
    assert journal.unused() is None


def test_asking_twice_counts_once() -> None:
    journal = Journal(history(completed("a"), completed("b")))
    journal.match("a", Kind.STEP)
    journal.match("a", Kind.STEP)
    assert journal.replaying
    left = journal.unused()
    assert left is not None
    assert left.key == "b"


def test_another_kind_is_refused_and_both_are_named() -> None:
    journal = Journal(history(("timer.fired", "@wait")))
    with pytest.raises(VersionSkew) as caught:
        journal.match("@wait", Kind.SIGNAL)
    assert "sleep" in caught.value.recorded
    assert "signal wait" in caught.value.asked
    assert "sleep" in str(caught.value)
    assert "signal wait" in str(caught.value)
    assert "@wait" in str(caught.value)
    assert caught.value.code == "version_skew"


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (("step.started", "k", {}), Kind.STEP),
        (("step.retrying", "k", {"attempts": 1, "wake": 5}), Kind.STEP),
        (completed("k"), Kind.STEP),
        (failed("k"), Kind.STEP),
        (("timer.set", "k", {"wake": 5}), Kind.SLEEP),
        (("timer.fired", "k"), Kind.SLEEP),
        (("signal.awaited", "k", {}), Kind.SIGNAL),
        (("signal.received", "k", {}), Kind.SIGNAL),
        (("signal.timed_out", "k"), Kind.SIGNAL),
        (("interrupt.raised", "k", {}), Kind.INTERRUPT),
        (("interrupt.resumed", "k", {}), Kind.INTERRUPT),
        (("interrupt.timed_out", "k"), Kind.INTERRUPT),
        (("value.recorded", "k", {"kind": "now", "value": 1}), Kind.NOW),
        (("value.recorded", "k", {"kind": "uuid", "value": "u"}), Kind.UUID),
        (("value.recorded", "k", {"kind": "random", "value": 0.5}), Kind.RANDOM),
        (("checkpoint.saved", "k", {"state": 1}), Kind.CHECKPOINT),
        (("value.committed", "k", {"name": "x"}), Kind.COMMIT),
        (("event.emitted", "k", {"name": "x"}), Kind.EMIT),
        (("child.started", "k", {"workflow": "w"}), Kind.CHILD),
        (("child.completed", "k", {"result": 1}), Kind.CHILD),
        (("child.failed", "k", {"status": "failed"}), Kind.CHILD),
        (("child.timed_out", "k"), Kind.CHILD),
        (("run.spawned", "k", {"workflow": "w"}), Kind.SPAWN),
        (("signal.sent", "k", {"name": "x"}), Kind.SEND),
        (("patch.marked", "k", {"id": "p"}), Kind.PATCH),
        (("update.accepted", "k", {"name": "x"}), Kind.UPDATE),
        (("update.applied", "k", {"name": "x"}), Kind.UPDATE),
        (("update.failed", "k", {"name": "x"}), Kind.UPDATE),
    ],
)
def test_each_event_belongs_to_one_kind_of_call(event: Any, kind: str) -> None:
    kinds = {value for name, value in vars(Kind).items() if name.isupper()}
    assert Journal(history(event)).match("k", kind) is not None
    for other in kinds - {kind}:
        with pytest.raises(VersionSkew):
            Journal(history(event)).match("k", other)


def test_every_event_type_with_a_key_is_known() -> None:
    """A journal that this version can write, it can read."""
    keyless = {EventType.PATCH_DEPRECATED}  # it concerns the run, and nobody asks for it
    types = {value for name, value in vars(EventType).items() if name.isupper() and not value.startswith("run.")}
    for event_type in (types - keyless) | {EventType.RUN_SPAWNED}:
        data = {"kind": Kind.NOW, "value": 1, "attempts": 1, "wake": 1, "state": 1}
        assert Journal(history((event_type, "k", data))).begun


def test_an_opened_call_has_no_outcome() -> None:
    journal = Journal(history(("step.retrying", "a", {"attempts": 2, "wake": 77})))
    record = journal.match("a", Kind.STEP)
    assert record is not None
    assert record.outcome is None
    assert record.tries == 2
    assert record.opened is not None
    assert record.opened.data["wake"] == 77
    assert not journal.replaying


def test_a_wait_written_twice_is_one_record() -> None:
    opened = ("interrupt.raised", "@wait", {"name": "q"})
    journal = Journal(history(opened, completed("a"), opened))
    record = journal.match("@wait", Kind.INTERRUPT)
    assert record is not None
    assert record.opened is not None
    assert record.opened.seq == 5


def test_the_first_outcome_stands() -> None:
    journal = Journal(history(completed("a"), failed("a")))
    record = journal.match("a", Kind.STEP)
    assert record is not None
    assert record.outcome is not None
    assert record.outcome.type == "step.completed"


def test_the_last_checkpoint_is_known() -> None:
    journal = Journal(
        history(("checkpoint.saved", "@value", {"state": 1}), ("checkpoint.saved", "@value#2", {"state": 2}))
    )
    assert journal.checkpoint is not None
    assert journal.checkpoint.data == {"state": 2}
    journal.remember_checkpoint(9, {"n": 3})
    assert journal.checkpoint.data == {"state": {"n": 3}}


# --- retry --------------------------------------------------------------------------------


def void(*events: Any, key: str = "x") -> bool:
    """Whether the call at `key` is to be made anew."""
    record = Journal(history(*events)).match(key, Kind.STEP)
    return record is None or record.outcome is None


def test_the_failure_that_ended_the_run_is_made_again() -> None:
    assert void(completed("a"), failed("x"), RUN_FAILED, RETRIED)


def test_so_it_is_when_the_policy_retries() -> None:
    assert void(completed("a"), failed("x"), BY_POLICY)


def test_a_failure_that_was_caught_before_other_calls_is_served() -> None:
    assert not void(failed("x"), completed("a"), RUN_FAILED, RETRIED)


def test_a_completed_step_is_never_made_again() -> None:
    assert not void(completed("x"), RUN_FAILED, RETRIED)
    assert not void(failed("a"), completed("x"), RUN_FAILED, RETRIED)


def test_without_a_retry_it_is_served() -> None:
    assert not void(failed("x"), RUN_FAILED)
    assert not void(failed("x"), RESUMED)


def test_a_run_that_was_set_aside_goes_on_from_what_is_recorded() -> None:
    """It failed of its code, not of the step: nothing recorded runs again."""
    assert not void(failed("x"), RETRIED)


def test_set_aside_after_a_retry_keeps_the_failure_void() -> None:
    assert void(failed("x"), RUN_FAILED, RETRIED, RESUMED, RETRIED, RESUMED, RETRIED)


def test_failing_again_makes_it_again() -> None:
    assert void(failed("x"), RUN_FAILED, RETRIED, RESUMED, failed("x"), RUN_FAILED, RETRIED)
    assert not void(failed("x"), RUN_FAILED, RETRIED, RESUMED, failed("x"), RUN_FAILED)


def test_failing_before_anything_was_recorded_again() -> None:
    assert void(failed("x"), RUN_FAILED, RETRIED, RESUMED, RUN_FAILED, RETRIED)


def test_a_success_after_a_retry_stands() -> None:
    assert not void(failed("x"), RUN_FAILED, RETRIED, RESUMED, completed("x"), failed("y"), RUN_FAILED, RETRIED)


def test_a_timeout_after_a_caught_failure() -> None:
    assert not void(failed("x"), ("timer.set", "@wait", {"wake": 1}), RUN_FAILED, RETRIED)


def test_the_tries_before_a_failure_are_void_with_it() -> None:
    journal = Journal(
        history(("step.retrying", "x", {"attempts": 1, "wake": 1}), failed("x"), RUN_FAILED, RETRIED, RESUMED)
    )
    record = journal.match("x", Kind.STEP)
    assert record is None or record.tries == 0


def test_other_legs_of_the_gather_recorded_meanwhile() -> None:
    assert void(failed("g1.0/x"), completed("g1.1/y"), RUN_FAILED, RETRIED, key="g1.0/x")


def test_two_legs_that_failed_in_one_turn_are_both_made_again() -> None:
    events = (failed("g1.0/x"), failed("g1.1/y"), RUN_FAILED, RETRIED)
    assert void(*events, key="g1.0/x")
    assert void(*events, key="g1.1/y")


def test_a_failure_in_a_gather_of_a_gather() -> None:
    events = (failed("g1.0/g1.0/x"), completed("g1.1/y"), RUN_FAILED, RETRIED)
    assert void(*events, key="g1.0/g1.0/x")


def test_a_failure_that_its_leg_went_on_from_is_served() -> None:
    events = (failed("g1.0/x"), completed("g1.0/y"), failed("g1.1/z"), RUN_FAILED, RETRIED)
    assert not void(*events, key="g1.0/x")
    assert void(*events, key="g1.1/z")


def test_a_failure_in_an_earlier_gather_is_served() -> None:
    assert not void(failed("g1.0/x"), completed("g2.0/y"), RUN_FAILED, RETRIED, key="g1.0/x")
    assert not void(failed("g1.0/x"), completed("y"), RUN_FAILED, RETRIED, key="g1.0/x")


def test_an_at_most_once_step_is_made_again_by_a_person_only() -> None:
    started: Any = ("step.started", "x", {})
    assert void(started, failed("x"), RUN_FAILED, RETRIED)
    assert not void(started, failed("x"), BY_POLICY)


def test_a_long_journal_is_read_in_time() -> None:
    """10,000 legs, every second one failed, retried ten times: reading is linear."""
    legs = [failed(f"g1.{n}/x") if n % 2 else completed(f"g1.{n}/x") for n in range(10_000)]
    journal = Journal(history(*legs, *[RUN_FAILED, RETRIED] * 10))
    assert journal.match("g1.1/x", Kind.STEP) is None
    assert journal.match("g1.2/x", Kind.STEP) is not None


# --- cancel -------------------------------------------------------------------------------

CANCEL = ("run.cancel_requested", "", {"reason": "r"})


def test_a_cancel_request_is_due_once_what_stands_before_it_was_asked_for() -> None:
    journal = Journal(history(completed("a"), completed("b"), CANCEL, completed("clean")))
    assert journal.cancel_seq == 5
    assert not journal.cancel_due
    first = journal.match("a", Kind.STEP)
    assert journal.before_cancel(first)
    assert not journal.cancel_due
    journal.match("b", Kind.STEP)
    assert journal.cancel_due
    assert not journal.before_cancel(journal.match("clean", Kind.STEP))


def test_no_request_is_never_due() -> None:
    assert not Journal(history(completed("a"))).cancel_due


def test_a_request_before_everything_is_due_at_once() -> None:
    assert Journal(history(CANCEL)).cancel_due


def test_a_call_that_was_open_at_the_request_does_not_hold_it_up() -> None:
    journal = Journal(history(("timer.set", "@wait", {"wake": 1}), CANCEL))
    assert journal.cancel_due


def test_a_repeated_request_counts_once() -> None:
    repeat = ("run.cancel_requested", "", {"reason": "again", "repeat": True})
    assert Journal(history(completed("a"), CANCEL, repeat)).cancel_seq == 4


def test_a_request_taken_now_stands_behind_what_was_not_asked_for_yet() -> None:
    journal = Journal(history(completed("a"), completed("b")))
    journal.match("a", Kind.STEP)
    journal.request_cancel(9)
    assert not journal.cancel_due
    journal.match("b", Kind.STEP)
    assert journal.cancel_due


# --- any journal -----------------------------------------------------------------------------

keys = st.sampled_from(["a", "b", "a#2", "g1.0/a", "g1.1/a", "g1.0/g1.0/a", "g2.0/b"])
events = st.one_of(
    st.builds(completed, keys),
    st.builds(failed, keys),
    st.builds(lambda key: ("step.retrying", key, {"attempts": 1, "wake": 1}), keys),
    st.sampled_from([RUN_FAILED, RETRIED, BY_POLICY, RESUMED, CANCEL]),
)


@given(st.lists(events, max_size=30), st.data())
def test_any_journal_is_read_and_asked_in_any_order(found: list[Any], data: st.DataObject) -> None:
    entries = history(*found)
    journal = Journal(entries)
    asked = data.draw(st.permutations(sorted({entry.key for entry in entries if entry.key})))
    for key in asked:
        record = journal.match(key, Kind.STEP)
        if record is not None and record.outcome is not None:
            assert record.outcome.key == key
    assert journal.unused() is None
    assert not journal.replaying
    assert journal.cancel_due == (journal.cancel_seq > 0)


@given(st.lists(events, max_size=30))
def test_a_retry_makes_no_success_void(found: list[Any]) -> None:
    entries = history(*found)
    journal = Journal(entries)
    for key in {entry.key for entry in entries if entry.type == "step.completed"}:
        first = next(e for e in entries if e.key == key and e.type in ("step.completed", "step.failed"))
        if first.type == "step.completed":
            record = journal.match(key, Kind.STEP)
            assert record is not None
            assert record.outcome is first


# --- in turn -----------------------------------------------------------------------------------


def test_what_stands_before_a_place_was_asked_for_or_not() -> None:
    journal = Journal(history(completed("a"), completed("b"), completed("c")))
    assert journal.asked_up_to(3)
    assert not journal.asked_up_to(4)
    journal.match("b", Kind.STEP)
    assert not journal.asked_up_to(5)
    journal.match("a", Kind.STEP)
    assert journal.asked_up_to(5)
    assert not journal.asked_up_to(6)


def test_a_call_that_was_begun_before_a_place_stands_before_it() -> None:
    journal = Journal(history(("timer.set", "@wait", {"wake": 1}), completed("a"), ("timer.fired", "@wait")))
    assert not journal.asked_up_to(4)


def test_legs_that_were_cut_off_count_as_asked() -> None:
    journal = Journal(history(completed("g1.0/a"), completed("g1.10/a"), completed("g10.0/a"), CANCEL))
    journal.skip("g1.")
    left = journal.unused()
    assert left is not None
    assert left.key == "g10.0/a"
    assert not journal.cancel_due
    journal.match("g10.0/a", Kind.STEP)
    assert journal.cancel_due
    assert not journal.replaying
