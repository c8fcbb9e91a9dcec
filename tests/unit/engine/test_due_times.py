"""What a process knows of the timers of a workflow: bells and answers arrive in any order."""

from __future__ import annotations

from pyrula.workflows.stores.valkey.shards import DueTimes


def test_a_bell_during_a_full_read_stands_beside_what_was_read() -> None:
    due = DueTimes()
    due.listeners = 1
    since = due.mark()
    due.nearer(3, 500)
    due.replace({1: 900, 3: 700}, 0.0, since)
    assert due.earliest() == 500
    assert due.due(600) == [3]


def test_a_bell_before_a_full_read_is_in_it() -> None:
    due = DueTimes()
    due.nearer(3, 500)
    due.replace({1: 900}, 0.0, due.mark())
    assert due.earliest() == 900


def test_a_bell_during_a_shards_answer_stands() -> None:
    due = DueTimes()
    due.nearer(3, 500)
    since = due.mark()
    due.nearer(3, 450)
    due.set(3, None, since)
    assert due.earliest() == 450
    due.set(3, None, due.mark())
    assert due.earliest() is None


def test_bells_lost_during_a_read_make_it_doubtful() -> None:
    due = DueTimes()
    due.listeners = 1
    since = due.mark()
    due.forget()
    due.replace({}, 0.0, since)
    assert not due.fresh(0.0)
    due.replace({}, 0.0, due.mark())
    assert due.fresh(0.0)
