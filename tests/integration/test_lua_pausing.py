"""Holding runs back and copying them: each status, repeats, what is not there."""

from __future__ import annotations

from tests.integration.lua_shard import Shard, both_protocols, entry

pytestmark = both_protocols


def test_a_queued_run(shard: Shard) -> None:
    shard.submit("r1")
    assert shard.call("pause", "r1", "p", "P") == ["OK", "queued"]
    before = shard.snapshot()
    assert shard.call("pause", "r1", "p2", "P") == ["OK", "paused"]
    assert shard.snapshot() == before
    assert shard.claims() == []
    assert shard.call("unpause", "r1", "u", "U") == ["OK", "paused"]
    before = shard.snapshot()
    assert shard.call("unpause", "r1", "u", "U") == ["OK", "queued"]
    assert shard.snapshot() == before
    assert shard.claim().run_id == "r1"


def test_a_run_that_a_worker_holds_is_asked_once(shard: Shard) -> None:
    shard.submit("r1")
    held = shard.claim()
    assert shard.call("pause", "r1", "p", "P") == ["ASKED", "running"]
    before = shard.snapshot()
    assert shard.call("pause", "r1", "p", "P") == ["ASKED", "running"]
    assert shard.snapshot() == before
    assert shard.park(held, status="paused", seen=1) == "PARKED"
    assert shard.call("unpause", "r1", "u", "U") == ["OK", "paused"]
    assert shard.claim().inbox == ["P", "U"]


def test_who_is_asked_while_it_parks_comes_back(shard: Shard) -> None:
    shard.submit("r1")
    held = shard.claim()
    shard.call("pause", "r1", "p", "P")
    shard.call("unpause", "r1", "u", "U")
    assert shard.park(held, status="paused", seen=1) == "QUEUED"


def test_ended_and_unknown_runs_are_left_alone(shard: Shard) -> None:
    shard.submit("r1")
    shard.finish(shard.claim(), entry("run.completed", ""))
    before = shard.snapshot()
    for name in ("pause", "unpause"):
        assert shard.call(name, "r1", "m", "M") == ["ENDED", "completed"]
        assert shard.call(name, "nobody", "m", "M") == ["NONE", ""]
    assert shard.snapshot() == before


def test_a_fork_exists_once(shard: Shard) -> None:
    args = ("f1", "acme", 0, "{}", "{}", "digest", 2, 2, entry("run.submitted", ""), entry("run.started", ""))
    created, status, digest, at = shard.call("fork", *args)
    assert (created, status, digest) == (1, "queued", "digest")
    before = shard.snapshot()
    assert shard.call("fork", *args) == [0, "queued", "digest", at]
    assert shard.snapshot() == before
    held = shard.claim()
    assert (held.run_id, held.owner, held.epoch, held.seq) == ("f1", "acme", 5, 3)
    assert shard.append(held, entry()) == "OK"
