"""The function library: terminate, revive, and what a run publishes beside its journal."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.lua_shard import SPAN, Held, Shard, entry

FAR = 2 * 10**15 + 1
Make = Callable[[Shard], Any]


def _queued(shard: Shard) -> None:
    shard.submit("r1", "acme", input='{"a":1}')


def _held_back(shard: Shard) -> None:
    shard.submit("r1", "acme", input='{"a":1}', start_at=FAR)


def _running(shard: Shard) -> Held:
    shard.submit("r1", "acme", input='{"a":1}')
    return shard.claim()


def _sleeping(shard: Shard) -> None:
    shard.park(_running(shard), entry("timer.set"), status="sleeping", wake=FAR)


def _waiting(shard: Shard) -> None:
    shard.park(_running(shard), entry("signal.awaited"), topic="signal:go", wake=FAR)


def _paused(shard: Shard) -> None:
    shard.park(_running(shard), entry("run.paused"), status="paused")


def _requeued(shard: Shard) -> None:
    shard.requeue(_running(shard))


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


OPEN: dict[str, tuple[Make, str]] = {
    "queued": (_queued, "queued"),
    "held back": (_held_back, "queued"),
    "running": (_running, "running"),
    "sleeping": (_sleeping, "sleeping"),
    "waiting": (_waiting, "waiting"),
    "paused": (_paused, "paused"),
    "requeued": (_requeued, "queued"),
    "set aside": (_aside, "failed"),
}
ENDED: dict[str, tuple[Make, str]] = {
    "completed": (_completed, "completed"),
    "failed": (_failed, "failed"),
    "cancelled": (_cancelled, "cancelled"),
    "terminated": (_terminated, "terminated"),
}


# --- terminate ---------------------------------------------------------------------------


@pytest.mark.parametrize("state", OPEN)
def test_a_run_can_be_terminated_in_every_state(shard: Shard, state: str) -> None:
    make, status = OPEN[state]
    make(shard)
    shard.deliver("r1", "m1")
    epoch, seq = divmod(int(shard.fields("r1")["cur"]), SPAN)
    assert shard.terminate("r1", '{"reason":"why"}', 60_000) == ["OK", status]
    journal = shard.journal("r1")
    assert journal[0][1] == "run.submitted"
    assert journal[0][5] == {"input": {"a": 1}}
    assert journal[-1][1] == "run.terminated"
    assert journal[-1][3:] == [(epoch + 1) // 2, "", {"reason": "why"}]
    assert len(journal) == max(seq, 1) + 1
    fields = shard.fields("r1")
    assert fields["cur"] == str((epoch + (status == "running")) * SPAN + len(journal))
    assert (fields["st"], fields["in"], fields["wake"], fields["top"], fields["err"]) == ("terminated", "", "", "", "")
    assert list(shard.scores("ended")) == ["r1"]
    for kind in ("claims", "timers", "queue:acme", "tenants"):
        assert shard.scores(kind) == {}
    assert shard.inbox("r1") == []
    ((_, told),) = shard.client.xrange(f"{shard.prefix}terminal")
    assert told == {b"r": b"r1", b"s": b"terminated", b"o": b"acme", b"q": str(len(journal)).encode()}


@pytest.mark.parametrize("state", ENDED)
def test_a_run_that_has_ended_is_not_terminated(shard: Shard, state: str) -> None:
    make, status = ENDED[state]
    make(shard)
    before = shard.snapshot()
    assert shard.terminate("r1") == ["ENDED", status]
    assert shard.terminate("ghost") == ["NONE", ""]
    assert shard.snapshot() == before


@pytest.mark.parametrize("state", OPEN)
def test_terminating_twice_ends_a_run_once(shard: Shard, state: str) -> None:
    OPEN[state][0](shard)
    shard.terminate("r1")
    before = shard.snapshot()
    assert shard.terminate("r1") == ["ENDED", "terminated"]
    assert shard.snapshot() == before


def test_the_holder_of_a_terminated_run_is_refused(shard: Shard) -> None:
    held = _running(shard)
    shard.terminate("r1")
    before = shard.snapshot()
    assert shard.append(held, entry()) == "LOST"
    # Moves the cursor as the termination did; only the records differ.
    assert shard.finish(held, entry("run.completed")) == "LOST"
    assert shard.park(held, entry("timer.set"), status="sleeping", wake=1) == "LOST"
    assert shard.snapshot() == before


def test_terminating_one_of_a_tenants_runs_leaves_the_others_queued(shard: Shard) -> None:
    for n in range(3):
        shard.submit(f"r{n}", "acme")
    shard.terminate("r1")
    assert [h.run_id for h in shard.claims(limit=9)] == ["r0", "r2"]


def test_an_old_schedule_of_wakes_does_not_touch_a_terminated_run(shard: Shard) -> None:
    _sleeping(shard)
    shard.terminate("r1")
    shard.client.zadd(f"{shard.prefix}timers", {"r1": 1})
    assert shard.wake() == [0, ""]
    assert shard.fields("r1")["st"] == "terminated"
    assert shard.claims() == []


# --- revive ------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["failed", "set aside"])
def test_a_failed_run_goes_on_where_it_stopped(shard: Shard, state: str) -> None:
    held = _running(shard)
    shard.append(held, entry(key="done"))
    if state == "failed":
        shard.finish(held, entry("run.failed"), status="failed", seq=3)
    else:
        shard.finish(held, status="failed", error='{"code":"x"}', seq=3)
    recorded = shard.journal("r1")
    assert shard.revive("r1", '{"by":"me"}', "req1") == ["OK", "failed"]
    fields = shard.fields("r1")
    assert (fields["st"], fields["err"], fields["fin"], fields["rq"]) == ("queued", "", "", "0")
    assert shard.journal("r1")[:-1] == recorded
    assert shard.journal("r1")[-1][1] == "run.retried"
    assert shard.journal("r1")[-1][3:] == [1, "", {"by": "me"}]
    assert shard.scores("ended") == {}
    again = shard.claim("w2")
    assert (again.run_id, again.epoch, again.seq) == ("r1", 3, len(recorded) + 2)
    assert [e for _, e in again.entries] == shard.journal("r1")
    assert shard.finish(again, entry("run.completed", attempt=2)) == "OK"
    assert shard.fields("r1")["st"] == "completed"
    assert list(shard.scores("ended")) == ["r1"]


@pytest.mark.parametrize("since", ["queued", "running", "completed", "failed again"])
def test_a_revival_repeated_answers_as_the_first_time(shard: Shard, since: str) -> None:
    _failed(shard)
    shard.revive("r1", "{}", "req1")
    if since != "queued":
        held = shard.claim()
        if since == "completed":
            shard.finish(held, entry("run.completed", attempt=2))
        elif since == "failed again":
            shard.finish(held, entry("run.failed", attempt=2), status="failed")
    before = shard.snapshot()
    assert shard.revive("r1", "{}", "req1") == ["OK", "failed"]
    assert shard.snapshot() == before


def test_a_run_can_be_revived_again_by_another_request(shard: Shard) -> None:
    _failed(shard)
    for n in range(1, 4):
        assert shard.revive("r1", "{}", f"req{n}") == ["OK", "failed"]
        shard.finish(shard.claim(), entry("run.failed", attempt=n + 1), status="failed")
    assert shard.types("r1").count("run.retried") == 3


@pytest.mark.parametrize("state", [*(s for s in OPEN if s != "set aside"), "completed", "cancelled", "terminated"])
def test_only_a_failed_run_can_be_revived(shard: Shard, state: str) -> None:
    make, status = {**OPEN, **ENDED}[state]
    make(shard)
    before = shard.snapshot()
    assert shard.revive("r1") == ["STATE", status]
    assert shard.revive("ghost") == ["NONE", ""]
    assert shard.snapshot() == before


# --- attributes, commit, output ----------------------------------------------------------

ASIDE: dict[str, tuple[str | int, ...]] = {
    "attributes": ('{"k":2}',),
    "commit": ("total", "12.5"),
    "output": (1, "chunk"),
}
every_aside = pytest.mark.parametrize("name", ASIDE)


@every_aside
def test_the_holder_may_publish(shard: Shard, name: str) -> None:
    held = _running(shard)
    assert shard.call(name, "r1", held.epoch, held.life, *ASIDE[name]) == "OK"
    match name:
        case "attributes":
            assert shard.fields("r1")["attr"] == '{"k":2}'
        case "commit":
            assert shard.client.hgetall(f"{shard.prefix}kv:r1") == {b"total": b"12.5"}
        case "output":
            assert shard.client.xrange(f"{shard.prefix}out:r1") == [(b"1-0", {b"e": b"chunk"})]


@every_aside
def test_publishing_the_same_again_changes_nothing(shard: Shard, name: str) -> None:
    held = _running(shard)
    shard.call(name, "r1", held.epoch, held.life, *ASIDE[name])
    before = shard.snapshot()
    for _ in range(2):
        assert shard.call(name, "r1", held.epoch, held.life, *ASIDE[name]) == "OK"
    assert shard.snapshot() == before


@every_aside
@pytest.mark.parametrize("state", [*OPEN, *ENDED])
def test_whoever_does_not_hold_the_run_publishes_nothing(shard: Shard, name: str, state: str) -> None:
    {**OPEN, **ENDED}[state][0](shard)
    before = shard.snapshot()
    # Epoch 1 is the right one of the state `running`, and the lost one of all others.
    for epoch in (0, 2, 3) if state == "running" else (0, 1, 2, 3):
        assert shard.call(name, "r1", epoch, "", *ASIDE[name]) == "LOST"
    assert shard.call(name, "ghost", 1, "", *ASIDE[name]) == "LOST"
    assert shard.snapshot() == before


def test_new_attributes_replace_the_old_and_reach_the_next_claim(shard: Shard) -> None:
    shard.submit("r1", attributes='{"a":1}')
    held = shard.claim()
    shard.call("attributes", "r1", held.epoch, held.life, '{"b":2}')
    shard.requeue(held)
    assert shard.claim().attributes == '{"b":2}'


def test_chunks_of_output_keep_their_numbers(shard: Shard) -> None:
    held = _running(shard)
    for n in (1, 2, 3, 2, 1, 3, 4):
        assert shard.call("output", "r1", held.epoch, held.life, n, f"chunk {n}") == "OK"
    stored = shard.client.xrange(f"{shard.prefix}out:r1")
    assert stored == [(f"{n}-0".encode(), {b"e": f"chunk {n}".encode()}) for n in range(1, 5)]


def test_a_hole_in_the_output_does_not_stop_it(shard: Shard) -> None:
    held = _running(shard)
    for n in (1, 5, 5, 3, 6):
        assert shard.call("output", "r1", held.epoch, held.life, n, f"chunk {n}") == "OK"
    assert [i for i, _ in shard.client.xrange(f"{shard.prefix}out:r1")] == [b"1-0", b"5-0", b"6-0"]


def test_committed_values_are_kept_by_key(shard: Shard) -> None:
    held = _running(shard)
    for key, value in (("a", "1"), ("b", json.dumps("é" * 5000)), ("a", "2")):
        assert shard.call("commit", "r1", held.epoch, held.life, key, value) == "OK"
    kept = shard.client.hgetall(f"{shard.prefix}kv:r1")
    assert kept == {b"a": b"2", b"b": json.dumps("é" * 5000).encode()}
