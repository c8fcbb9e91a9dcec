"""The function library: deliver, wake, and the bells that workers listen to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from valkey.client import PubSub

from tests.integration.lua_shard import Held, Shard, both_protocols, entry

pytestmark = both_protocols

FAR = 2 * 10**15 + 1


def _queued(shard: Shard) -> None:
    shard.submit("r1", "acme")


def _held_back(shard: Shard) -> None:
    shard.submit("r1", "acme", start_at=FAR)


def _running(shard: Shard) -> Held:
    shard.submit("r1", "acme")
    return shard.claim()


def _sleeping(shard: Shard) -> None:
    shard.park(_running(shard), entry("timer.set"), status="sleeping", wake=FAR)


def _waiting(shard: Shard) -> None:
    shard.park(_running(shard), entry("signal.awaited"), topic="signal:go", wake=FAR)


def _paused(shard: Shard) -> None:
    shard.park(_running(shard), entry("run.paused"), status="paused")


def _aside(shard: Shard) -> None:
    shard.finish(_running(shard), status="failed", error='{"code":"version_skew"}')


def _completed(shard: Shard) -> None:
    shard.finish(_running(shard), entry("run.completed"))


def _failed(shard: Shard) -> None:
    shard.finish(_running(shard), entry("run.failed"), status="failed")


def _cancelled(shard: Shard) -> None:
    shard.finish(_running(shard), entry("run.cancelled"), status="cancelled")


def _terminated(shard: Shard) -> None:
    _queued(shard)
    shard.terminate("r1")


Make = Callable[[Shard], object]
# How to get there, the status, and whether a message for `signal:go`, another message, or a control one queues the run.
STATES: dict[str, tuple[Make, str, bool, bool, bool]] = {
    "queued": (_queued, "queued", False, False, False),
    "held back": (_held_back, "queued", False, False, True),
    "running": (_running, "running", False, False, False),
    "sleeping": (_sleeping, "sleeping", False, False, True),
    "waiting": (_waiting, "waiting", True, False, True),
    "paused": (_paused, "paused", False, False, True),
    "set aside": (_aside, "failed", False, False, True),
}
ENDS: dict[str, tuple[Make, str]] = {
    "completed": (_completed, "completed"),
    "failed": (_failed, "failed"),
    "cancelled": (_cancelled, "cancelled"),
    "terminated": (_terminated, "terminated"),
}


@pytest.mark.parametrize("kind", ["awaited", "other", "control"])
@pytest.mark.parametrize("state", STATES)
def test_a_message_is_kept_and_queues_the_run_that_waits_for_it(shard: Shard, state: str, kind: str) -> None:
    make, status, *queues = STATES[state]
    make(shard)
    was_queued = state == "queued"
    topic = "signal:go" if kind == "awaited" else "signal:stop"
    assert shard.deliver("r1", "m1", topic, control=kind == "control") == ["OK", status]
    assert shard.inbox("r1") == ['["m1"]']
    released = queues[["awaited", "other", "control"].index(kind)]
    fields = shard.fields("r1")
    assert fields["st"] == ("queued" if released else status)
    assert shard.scores("queue:acme") == ({"r1": int(fields["sub"])} if released or was_queued else {})
    if released:
        assert (fields.get("wake", ""), fields.get("top", ""), fields.get("err", "")) == ("", "", "")
        assert fields.get("fin", "") == ""
        assert shard.scores("timers") == {}
        assert shard.claim().inbox == ['["m1"]']


@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize("state", STATES)
def test_a_message_that_is_known_already_changes_nothing(shard: Shard, state: str, control: bool) -> None:
    STATES[state][0](shard)
    shard.deliver("r1", "m1", "signal:go", control=control)
    before = shard.snapshot()
    status = shard.fields("r1")["st"]
    for _ in range(2):
        assert shard.deliver("r1", "m1", "signal:go", control=control) == ["REPEAT", status]
    assert shard.snapshot() == before


@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize("state", ENDS)
def test_a_run_that_has_ended_takes_no_message(shard: Shard, state: str, control: bool) -> None:
    make, status = ENDS[state]
    make(shard)
    before = shard.snapshot()
    assert shard.deliver("r1", "m1", "signal:go", control=control) == ["ENDED", status]
    assert shard.snapshot() == before


def test_a_message_that_came_before_the_end_is_still_known_after_it(shard: Shard) -> None:
    held = _running(shard)
    shard.deliver("r1", "m1")
    shard.finish(held, entry("run.completed"))
    before = shard.snapshot()
    assert shard.deliver("r1", "m1") == ["REPEAT", "completed"]
    assert shard.deliver("r1", "m2") == ["ENDED", "completed"]
    assert shard.snapshot() == before


def test_a_run_that_does_not_exist_takes_no_message(shard: Shard) -> None:
    assert shard.deliver("ghost", "m1", control=True) == ["NONE", ""]
    assert shard.snapshot() == {}


def test_a_sleeping_run_without_a_topic_is_not_woken_by_a_message_without_one(shard: Shard) -> None:
    _sleeping(shard)
    shard.deliver("r1", "m1", "")
    assert shard.fields("r1")["st"] == "sleeping"


def test_messages_are_kept_in_the_order_of_their_arrival(shard: Shard) -> None:
    _waiting(shard)
    for n in range(20):
        shard.deliver("r1", f"m{n}", raw=json.dumps({"n": n, "text": "é\u2028" * 50}))
    shard.deliver("r1", "c", control=True, raw="{}")
    assert [json.loads(m).get("n") for m in shard.claim().inbox] == [*range(20), None]


# --- timers ------------------------------------------------------------------------------


def _sleeper(shard: Shard, run_id: str, wake: int, status: str = "sleeping") -> None:
    shard.submit(run_id)
    held = shard.claim()
    assert held.run_id == run_id
    assert shard.park(held, entry("timer.set"), status=status, topic="signal:go", wake=wake) == "PARKED"


@pytest.mark.parametrize("status", ["sleeping", "waiting"])
def test_what_is_due_is_queued_and_the_next_due_time_told(shard: Shard, status: str) -> None:
    for run_id, wake in (("r1", 1), ("r2", FAR), ("r3", 2)):
        _sleeper(shard, run_id, wake, status)
    shard.submit("late", start_at=FAR - 1)
    assert shard.wake() == [2, str(FAR - 1)]
    assert shard.scores("timers") == {"late": FAR - 1, "r2": FAR}
    fields = shard.fields("r1")
    assert (fields["st"], fields["wake"], fields["top"]) == ("queued", "", "")
    before = shard.snapshot()
    assert shard.wake() == [0, str(FAR - 1)]
    assert shard.snapshot() == before
    assert [h.run_id for h in shard.claims(limit=9)] == ["r1", "r3"]


def test_a_delayed_run_joins_the_queue_at_the_place_of_its_submission(shard: Shard) -> None:
    shard.submit("early", delay_ms=1)
    shard.submit("late")
    assert shard.claim().run_id == "late"
    shard.client.zadd(f"{shard.prefix}timers", {"early": 1}, xx=True)
    shard.submit("latest")
    assert shard.wake() == [1, ""]
    assert [h.run_id for h in shard.claims(limit=9)] == ["early", "latest"]


def test_no_more_than_the_limit_are_woken_at_once(shard: Shard) -> None:
    for n in range(5):
        _sleeper(shard, f"r{n}", n + 1)
    assert shard.wake(2) == [2, "3"]
    assert shard.wake(2) == [2, "5"]
    assert shard.wake(2) == [1, ""]
    assert shard.wake(2) == [0, ""]


def test_a_timer_without_a_run_to_wake_is_dropped(shard: Shard) -> None:
    _running(shard)
    shard.client.zadd(f"{shard.prefix}timers", {"ghost": 1, "r1": 2})
    assert shard.wake() == [0, ""]
    assert shard.fields("r1")["st"] == "running"
    assert not shard.client.exists(f"{shard.prefix}run:ghost", f"{shard.prefix}timers")


def test_waking_an_empty_shard_leaves_no_key(shard: Shard) -> None:
    assert shard.wake() == [0, ""]
    assert shard.snapshot() == {}


# --- bells -------------------------------------------------------------------------------


class Bells:
    """What a shard's workers hear."""

    def __init__(self, shard: Shard, pubsub: PubSub) -> None:
        self._shard = shard
        self._pubsub = pubsub

    def heard(self) -> list[str]:
        """All that was rung since the last look, in order; a mark of our own tells where to stop."""
        self._shard.client.execute_command("SPUBLISH", f"{self._shard.prefix}bell", "mark")
        rung: list[str] = []
        while True:
            message = self._pubsub.get_message(ignore_subscribe_messages=True, timeout=10)
            if message is None:
                continue
            if message["data"] == b"mark":
                return rung
            rung.append(message["data"].decode())


@contextmanager
def _listening(shard: Shard, channel: str = "bell") -> Iterator[PubSub]:
    client = shard.client
    pubsub = client.pubsub()
    pubsub.ssubscribe(f"{shard.prefix}{channel}")
    confirmed = pubsub.get_message(timeout=10)
    assert confirmed is not None
    try:
        yield pubsub
    finally:
        pubsub.close()


def test_workers_hear_of_what_is_queued(shard: Shard) -> None:
    with _listening(shard) as pubsub:
        bells = Bells(shard, pubsub)
        shard.submit("r1")
        assert bells.heard() == ["q"]
        shard.submit("r1")
        assert bells.heard() == []
        held = shard.claim()
        assert bells.heard() == []
        shard.requeue(held)
        assert bells.heard() == ["q"]
        shard.park(shard.claim(), entry("signal.awaited"), topic="signal:go")
        assert bells.heard() == []
        shard.deliver("r1", "m1", "signal:no")
        assert bells.heard() == []
        shard.deliver("r1", "m2", "signal:go")
        assert bells.heard() == ["q"]
        shard.claim()
        shard.expire_lease("r1")
        shard.sweep()
        assert bells.heard() == ["q"]
        held = shard.claim()
        shard.finish(held, entry("run.failed"), status="failed")
        assert bells.heard() == []
        shard.revive("r1")
        assert bells.heard() == ["q"]


def test_workers_hear_of_a_timer_only_when_it_is_the_nearest(shard: Shard) -> None:
    with _listening(shard) as pubsub:
        bells = Bells(shard, pubsub)
        shard.submit("r1", start_at=FAR + 5)
        assert bells.heard() == [f"t:{FAR + 5}"]
        shard.submit("r2", start_at=FAR + 9)
        assert bells.heard() == []
        shard.submit("r3", start_at=FAR)
        assert bells.heard() == [f"t:{FAR}"]
        shard.submit("r4")
        held = shard.claim()
        bells.heard()
        shard.park(held, entry("timer.set"), status="sleeping", wake=FAR - 3)
        assert bells.heard() == [f"t:{FAR - 3}"]


def test_workers_hear_once_of_all_that_was_woken(shard: Shard) -> None:
    _sleeper(shard, "r1", 1)
    _sleeper(shard, "r2", 2)
    with _listening(shard) as pubsub:
        bells = Bells(shard, pubsub)
        shard.wake()
        assert bells.heard() == ["q"]
        shard.wake()
        assert bells.heard() == []


def test_the_holder_hears_of_messages_and_of_a_termination(shard: Shard) -> None:
    _running(shard)
    with _listening(shard) as pubsub:
        bells = Bells(shard, pubsub)
        shard.deliver("r1", "m1")
        shard.deliver("r1", "m2", control=True)
        assert bells.heard() == ["i:r1", "i:r1"]
        shard.deliver("r1", "m1")
        assert bells.heard() == []
        shard.terminate("r1")
        assert bells.heard() == ["x:r1"]


@pytest.mark.parametrize("state", ["queued", "sleeping", "waiting", "paused", "set aside"])
def test_nobody_is_called_when_a_run_that_nobody_holds_is_terminated(shard: Shard, state: str) -> None:
    STATES[state][0](shard)
    with _listening(shard) as pubsub:
        shard.terminate("r1")
        assert Bells(shard, pubsub).heard() == []


@pytest.mark.parametrize(("size", "told"), [(10, True), (20_000, False)])
def test_callers_hear_of_the_end_with_the_last_entry_unless_it_is_large(shard: Shard, size: int, told: bool) -> None:
    held = _running(shard)
    raw = entry("run.completed", key="", result="x" * size)
    with _listening(shard, "end:r1") as pubsub:
        shard.finish(held, raw)
        message = pubsub.get_message(timeout=10)
        assert message is not None
        assert message["data"].decode() == f"3 {raw if told else ''}"


def test_callers_hear_that_a_run_was_set_aside(shard: Shard) -> None:
    with _listening(shard, "end:r1") as pubsub:
        _aside(shard)
        message = pubsub.get_message(timeout=10)
        assert message is not None
        assert message["data"] == b"0 "
