"""The function library: whose run is claimed next."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.integration.lua_shard import Held, Shard, entry


def _submit_many(shard: Shard, owner: str, count: int, start: int = 0) -> None:
    """Queue `count` runs of a tenant, named by their number."""
    plain = Shard(shard.client.pipeline(transaction=False), shard.namespace)
    for n in range(start, start + count):
        plain.call("submit", f"{owner}-{n:06}", owner, 0, "", "", "{}", "d", "{}", "{}")
    plain.client.execute()


def _owners(held: list[Held]) -> str:
    return "".join(h.owner[0] for h in held)


@pytest.mark.parametrize("quiet", ["aquiet", "zquiet"], ids=["name sorts first", "name sorts last"])
@pytest.mark.parametrize(("backlog", "claimed_before", "limit"), [(10_000, 0, 1), (300, 150, 1), (300, 150, 16)])
def test_a_quiet_tenant_behind_the_backlog_of_another_goes_next_but_one(
    shard: Shard, quiet: str, backlog: int, claimed_before: int, limit: int
) -> None:
    _submit_many(shard, "noisy", backlog)
    for _ in range(claimed_before):
        shard.claim()
    _submit_many(shard, quiet, 10)
    held = [h for _ in range(24 // limit + 1) for h in shard.claims(limit=limit)]
    order = [h.owner for h in held]
    assert quiet in order[:2]
    # From then on they take turns, until the quiet one has been served.
    assert Counter(order[:20]) == {"noisy": 10, quiet: 10}
    assert all(order[n] != order[n + 1] for n in range(18))
    assert set(order[20:]) <= {"noisy"}


def test_within_a_tenant_runs_go_by_submission(shard: Shard) -> None:
    for owner in ("a", "b"):
        # Names against the order of submission.
        for n in range(20, 0, -1):
            shard.submit(f"{owner}{n:02}", owner)
    held = shard.claims(limit=40)
    for owner in ("a", "b"):
        assert [h.run_id for h in held if h.owner == owner] == [f"{owner}{n:02}" for n in range(20, 0, -1)]


def test_runs_without_an_owner_share_one_turn(shard: Shard) -> None:
    _submit_many(shard, "", 6)
    _submit_many(shard, "b", 3)
    held = shard.claims(limit=6)
    assert Counter(h.owner for h in held) == {"": 3, "b": 3}


def test_three_tenants_take_turns(shard: Shard) -> None:
    for owner, count in (("a", 300), ("b", 30), ("c", 9)):
        _submit_many(shard, owner, count)
    order = _owners([shard.claim() for _ in range(27)])
    assert all(set(order[n : n + 3]) == {"a", "b", "c"} for n in range(0, 27, 3))
    order = _owners([shard.claim() for _ in range(42)])
    assert Counter(order) == {"a": 21, "b": 21}


def test_a_tenant_that_was_away_has_saved_nothing(shard: Shard) -> None:
    _submit_many(shard, "a", 400)
    _submit_many(shard, "b", 400)
    _submit_many(shard, "c", 1)
    for _ in range(200):
        shard.claim()
    _submit_many(shard, "c", 100, start=1)
    order = _owners([shard.claim() for _ in range(30)])
    assert all(set(order[n : n + 3]) == {"a", "b", "c"} for n in range(0, 30, 3))


@pytest.mark.parametrize("comer", ["a", "z"], ids=["name sorts first", "name sorts last"])
def test_a_tenant_that_keeps_coming_back_with_one_run_does_not_jump_the_queue(shard: Shard, comer: str) -> None:
    _submit_many(shard, "m", 100)
    _submit_many(shard, "n", 100)
    order = ""
    waiting = False
    for n in range(60):
        if not waiting:
            shard.submit(f"{comer}{n}", comer)
        owner = shard.claim().owner
        waiting = owner != comer
        order += owner
    assert Counter(order) == {"m": 20, "n": 20, comer: 20}
    assert comer * 2 not in order


def test_a_tenant_waits_only_for_those_that_were_there_before_it(shard: Shard) -> None:
    """However many new tenants keep coming, and whatever their names."""
    _submit_many(shard, "old", 100)
    waiting = 0
    ahead = 0
    served = 0
    for n in range(150):
        shard.submit(f"new{n}", f"{n * 7919 % 1000:03}")
        waiting += 1
        if shard.claim().owner == "old":
            served += 1
            ahead = waiting
        else:
            waiting -= 1
            ahead -= 1
            assert ahead >= 0
    assert served > 10


def test_priority_is_a_head_start_of_one_minute_a_step(shard: Shard) -> None:
    submitted = {}
    for run_id, priority in (("plain", 0), ("first", 2), ("later", 1), ("last", -1)):
        submitted[run_id] = int(shard.submit(run_id, "acme", priority=priority)[3])
    scores = shard.scores("queue:acme")
    assert scores["plain"] == submitted["plain"]
    assert scores["first"] == submitted["first"] - 120_000_000
    assert scores["later"] == submitted["later"] - 60_000_000
    assert scores["last"] == submitted["last"] + 60_000_000
    # A run that has waited for a minute is not passed by a step of priority.
    shard.client.zadd(f"{shard.prefix}queue:acme", {"plain": submitted["later"] - 60_000_001})
    assert [h.run_id for h in shard.claims(limit=9)] == ["first", "plain", "later", "last"]


def test_priority_keeps_its_place_through_every_way_back_into_the_queue(shard: Shard) -> None:
    place = int(shard.submit("r1", "acme", priority=3)[3]) - 180_000_000
    shard.submit("delayed", "acme", priority=3, delay_ms=60_000)

    def queued() -> bool:
        return shard.scores("queue:acme") == {"r1": place}

    assert queued()
    shard.requeue(shard.claim())
    assert queued()
    held = shard.claim()
    shard.expire_lease("r1")
    shard.sweep()
    assert queued()
    shard.claim()
    shard.disown("w1")
    assert queued()
    held = shard.claim()
    shard.deliver("r1", "m0")
    assert shard.park(held, entry("timer.set"), seen=0) == "QUEUED"
    assert queued()
    shard.park(shard.claim(), entry("timer.set"), status="sleeping", wake=1, seen=1)
    shard.wake()
    assert queued()
    shard.park(shard.claim(), entry("signal.awaited"), topic="signal:go", seen=1)
    shard.deliver("r1", "m1", "signal:go")
    assert queued()
    shard.finish(shard.claim(), entry("run.failed"), status="failed")
    shard.revive("r1")
    assert queued()


def test_priority_gives_one_tenant_nothing_over_another(shard: Shard) -> None:
    for n in range(10):
        shard.submit(f"a{n}", "a", priority=100)
        shard.submit(f"b{n}", "b")
    assert Counter(_owners(shard.claims(limit=10))) == {"a": 5, "b": 5}
