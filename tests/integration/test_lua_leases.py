"""The function library: heartbeat, disown and sweep."""

from __future__ import annotations

import pytest

from tests.integration.lua_shard import SPAN, Held, Shard, entry


def _claimed(shard: Shard, run_id: str = "r1", owner: str = "acme") -> Held:
    shard.submit(run_id, owner)
    return shard.claim()


def _lose(shard: Shard, held: Held, *, budget: int = 3) -> list[int]:
    """The claim's lease runs out and the shard is swept: (requeued, failed, deleted)."""
    shard.expire_lease(held.run_id)
    found: list[int] = shard.sweep(budget=budget)
    return found


# --- heartbeat ---------------------------------------------------------------------------


def test_a_heartbeat_renews_the_leases_it_names(shard: Shard) -> None:
    first, second, third = (_claimed(shard, f"r{n}") for n in range(3))
    before = shard.scores("claims")
    assert shard.heartbeat((first.run_id, 1), (second.run_id, 1), lease_ms=600_000) == []
    after = shard.scores("claims")
    assert after["r0"] == after["r1"] > before["r0"] + 500_000
    assert after["r2"] == before["r2"] == before[third.run_id]


def test_a_heartbeat_repeated_answers_alike_and_touches_nothing_but_the_leases(shard: Shard) -> None:
    held = _claimed(shard)
    assert shard.heartbeat((held.run_id, held.epoch), lease_ms=10_000) == []
    before = shard.snapshot()
    assert shard.heartbeat((held.run_id, held.epoch), lease_ms=10_000) == []
    after = shard.snapshot()
    key = f"{shard.prefix}claims"
    assert before.pop(key)[2][0][1] <= after.pop(key)[2][0][1]
    assert after == before


def test_an_expired_lease_that_nobody_has_swept_can_be_renewed(shard: Shard) -> None:
    held = _claimed(shard)
    shard.expire_lease("r1")
    assert shard.heartbeat(("r1", held.epoch)) == []
    assert shard.sweep()[:2] == [0, 0]


@pytest.mark.parametrize("state", ["stale", "swept", "parked", "paused", "requeued", "ended", "terminated", "missing"])
def test_a_lease_that_is_lost_is_named_and_nothing_is_renewed(shard: Shard, state: str) -> None:
    held = _claimed(shard)
    epoch = held.epoch
    match state:
        case "stale":
            shard.requeue(held)
            shard.claim("w2")
        case "swept":
            _lose(shard, held)
        case "parked":
            shard.park(held, entry("signal.awaited"), topic="signal:go")
        case "paused":
            shard.park(held, entry("run.paused"), status="paused")
        case "requeued":
            shard.requeue(held)
        case "ended":
            shard.finish(held, entry("run.completed"))
        case "terminated":
            shard.terminate("r1")
    run_id = "ghost" if state == "missing" else "r1"
    before = shard.snapshot()
    assert shard.heartbeat((run_id, epoch)) == [run_id]
    assert shard.snapshot() == before


def test_a_heartbeat_tells_the_lost_from_the_held(shard: Shard) -> None:
    lost, held = _claimed(shard, "r1"), _claimed(shard, "r2")
    shard.requeue(lost)
    assert shard.heartbeat(("r1", 1), ("ghost", 1), (held.run_id, held.epoch)) == ["r1", "ghost"]
    assert shard.heartbeat() == []


# --- disown ------------------------------------------------------------------------------


def test_disowning_requeues_what_the_worker_does_not_know_of(shard: Shard) -> None:
    for n in range(4):
        shard.submit(f"r{n}", "acme")
    shard.claims("w1", limit=3)
    shard.claim("w2")
    assert shard.disown("w1", "r1") == 2
    assert list(shard.scores("queue:acme")) == ["r0", "r2"]
    assert set(shard.scores("claims")) == {"r1", "r3"}
    assert shard.fields("r0")["cur"] == str(2 * SPAN + 2)
    before = shard.snapshot()
    assert shard.disown("w1", "r1") == 0
    assert shard.disown("w3") == 0
    assert shard.snapshot() == before
    assert [h.epoch for h in shard.claims("w1", limit=9)] == [3, 3]


def test_disowning_leaves_alone_what_is_no_longer_held(shard: Shard) -> None:
    held = _claimed(shard)
    shard.park(held, entry("signal.awaited"), topic="signal:go")
    before = shard.snapshot()
    assert shard.disown("w1") == 0
    assert shard.snapshot() == before


# --- sweep: lost workers -----------------------------------------------------------------


def test_a_run_whose_lease_ran_out_goes_back_to_its_place(shard: Shard) -> None:
    for n in range(3):
        shard.submit(f"r{n}", "acme")
    held = shard.claim()
    assert _lose(shard, held) == [1, 0, 0]
    fields = shard.fields("r0")
    assert (fields["st"], fields["cur"], fields["rq"]) == ("queued", str(2 * SPAN + 2), "1")
    assert shard.scores("claims") == {}
    before = shard.snapshot()
    assert shard.sweep() == [0, 0, 0]
    assert shard.snapshot() == before
    again = shard.claims("w2", limit=3)
    assert [h.run_id for h in again] == ["r0", "r1", "r2"]
    assert (again[0].epoch, again[0].seq) == (3, 3)


def test_a_lease_that_still_runs_is_left_alone(shard: Shard) -> None:
    _claimed(shard)
    before = shard.snapshot()
    assert shard.sweep() == [0, 0, 0]
    assert shard.snapshot() == before


def test_sweeping_an_empty_shard_leaves_no_key(shard: Shard) -> None:
    assert shard.sweep() == [0, 0, 0]
    assert shard.snapshot() == {}


def test_no_more_than_the_limit_are_swept_at_once(shard: Shard) -> None:
    for n in range(5):
        _claimed(shard, f"r{n}")
        shard.expire_lease(f"r{n}")
    assert [shard.sweep(limit=2)[0] for _ in range(4)] == [2, 2, 1, 0]


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_a_run_that_gets_nowhere_is_failed_when_its_budget_is_spent(shard: Shard, budget: int) -> None:
    held = _claimed(shard)
    shard.deliver("r1", "m1")
    for _ in range(budget):
        assert _lose(shard, held, budget=budget) == [1, 0, 0]
        held = shard.claim()
    assert _lose(shard, held, budget=budget) == [0, 1, 0]
    fields = shard.fields("r1")
    assert (fields["st"], fields["err"]) == ("failed", "")
    assert shard.types("r1") == ["run.submitted", "run.started", *["run.resumed"] * budget, "run.failed"]
    last = shard.journal("r1")[-1]
    assert last[3] == budget + 1
    assert last[5]["error"]["code"] == "requeue_budget_exhausted"
    assert last[5]["error"]["detail"] == {"requeues": budget + 1}
    assert fields["cur"] == str((2 * budget + 2) * SPAN + len(shard.journal("r1")))
    ((_, told),) = shard.client.xrange(f"{shard.prefix}terminal")
    assert (told[b"r"], told[b"s"], told[b"q"]) == (b"r1", b"failed", str(len(shard.journal("r1"))).encode())
    assert list(shard.scores("ended")) == ["r1"]
    assert shard.scores("claims") == shard.scores("queue:acme") == {}
    before = shard.snapshot()
    assert shard.sweep(budget=budget) == [0, 0, 0]
    assert shard.snapshot() == before


@pytest.mark.parametrize("when", ["before", "between", "in a finished attempt"])
def test_whatever_is_recorded_gives_the_budget_back(shard: Shard, when: str) -> None:
    held = _claimed(shard)
    if when == "before":
        shard.append(held, entry())
    _lose(shard, held)
    held = shard.claim()
    assert shard.fields("r1")["rq"] == "1"
    if when == "between":
        shard.append(held, entry())
    if when == "in a finished attempt":
        shard.park(held, entry("signal.awaited"), topic="signal:go")
        shard.deliver("r1", "m1", "signal:go")
        held = shard.claim()
    _lose(shard, held)
    assert shard.fields("r1")["rq"] == ("2" if when == "before" else "1")


def test_attempts_that_only_came_and_went_do_not_give_the_budget_back(shard: Shard) -> None:
    held = _claimed(shard)
    for n in range(1, 4):
        _lose(shard, held, budget=9)
        assert shard.fields("r1")["rq"] == str(n)
        # A shutdown, and a reply that was lost: neither records anything of the body's.
        shard.requeue(shard.claim())
        shard.claim()
        shard.disown("w1")
        held = shard.claim()


def test_a_spent_requeue_counts_as_a_loss(shard: Shard) -> None:
    held = _claimed(shard)
    for n in range(1, 4):
        assert shard.requeue(held, spent=True) == "OK"
        assert shard.fields("r1")["rq"] == str(n)
        held = shard.claim()
    assert _lose(shard, held, budget=3) == [0, 1, 0]


def test_a_spent_requeue_after_a_record_starts_the_count_anew(shard: Shard) -> None:
    held = _claimed(shard)
    shard.requeue(held, spent=True)
    held = shard.claim()
    shard.requeue(held, spent=True)
    held = shard.claim()
    shard.append(held, entry())
    shard.requeue(held, spent=True, seq=held.seq + 1)
    assert shard.fields("r1")["rq"] == "1"


def test_an_ordinary_requeue_costs_nothing(shard: Shard) -> None:
    held = _claimed(shard)
    shard.requeue(held)
    assert "rq" not in shard.fields("r1")


def test_a_claim_that_cannot_be_failed_is_set_aside_and_the_others_are_swept(shard: Shard) -> None:
    for n in range(3):
        _claimed(shard, f"r{n}")
        shard.expire_lease(f"r{n}")
    shard.client.xadd(f"{shard.prefix}log:r1", {"e": "[]"}, id="9-0")
    assert shard.sweep(budget=0) == [0, 3, 0]
    assert [shard.fields(f"r{n}")["st"] for n in range(3)] == ["failed"] * 3
    assert [bool(shard.fields(f"r{n}")["err"]) for n in range(3)] == [False, True, False]


# --- sweep: retention --------------------------------------------------------------------


def _full_run(shard: Shard, run_id: str, status: str, keep_ms: int) -> None:
    """A run with every kind of key that a run may have, then ended."""
    shard.submit(run_id, "acme", attributes='{"a":1}', headers='{"h":1}')
    held = shard.claim()
    shard.call("commit", run_id, held.epoch, held.life, "total", "12")
    shard.call("output", run_id, held.epoch, held.life, 1, "chunk")
    shard.call("attributes", run_id, held.epoch, held.life, '{"a":2}')
    shard.deliver(run_id, "m1")
    shard.park(held, entry("timer.set"), status="sleeping", wake=2 * 10**15, seen=1)
    shard.deliver(run_id, "m2", control=True)
    if status == "terminated":
        shard.terminate(run_id, keep_ms=keep_ms)
    else:
        shard.finish(shard.claim(), entry(f"run.{status}"), status=status, keep_ms=keep_ms)


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled", "terminated"])
def test_when_a_runs_time_is_over_nothing_is_left_of_it(shard: Shard, status: str) -> None:
    _full_run(shard, "r1", status, -1)
    assert shard.sweep() == [0, 0, 1]
    left = shard.snapshot()
    # What subscribers have yet to read stays; all else is gone.
    assert list(left) == [f"{shard.prefix}terminal"]
    assert shard.sweep() == [0, 0, 0]
    assert shard.deliver("r1", "m1") == ["NONE", ""]
    assert shard.submit("r1")[0] == 1


def test_a_run_is_kept_until_its_time_is_over(shard: Shard) -> None:
    _full_run(shard, "r1", "completed", 60_000)
    _full_run(shard, "r2", "completed", -1)
    before = {k: v for k, v in shard.snapshot().items() if k.endswith(":r1")}
    assert shard.sweep() == [0, 0, 1]
    after = shard.snapshot()
    assert {k: v for k, v in after.items() if k.endswith(":r1")} == before
    assert [k for k in after if k.endswith(":r2")] == []
    assert list(shard.scores("index")) == list(shard.scores("ended")) == ["r1"]


def test_no_more_than_the_limit_are_deleted_at_once(shard: Shard) -> None:
    for n in range(5):
        shard.submit(f"r{n}")
        shard.terminate(f"r{n}", keep_ms=-1)
    assert [shard.sweep(limit=2)[2] for _ in range(4)] == [2, 2, 1, 0]


def test_a_run_that_was_set_aside_is_never_deleted(shard: Shard) -> None:
    held = _claimed(shard)
    shard.finish(held, status="failed", error='{"code":"x"}', keep_ms=-1)
    assert shard.sweep() == [0, 0, 0]
    assert shard.fields("r1")["st"] == "failed"


def test_a_revived_run_outlives_the_time_of_its_first_end(shard: Shard) -> None:
    held = _claimed(shard)
    shard.finish(held, entry("run.failed"), status="failed", keep_ms=-1)
    shard.revive("r1")
    assert shard.sweep() == [0, 0, 0]
    assert shard.fields("r1")["st"] == "queued"


def test_all_keys_of_a_shard_share_its_prefix_and_its_slot(shard: Shard) -> None:
    _full_run(shard, "done", "completed", 60_000)
    _claimed(shard, "held")
    shard.deliver("held", "m1")
    shard.submit("waits", start_at=2 * 10**15)
    shard.submit("queued", "a:b{c}d")
    keys = list(shard.snapshot())
    kinds = {k.removeprefix(shard.prefix).partition(":")[0] for k in keys}
    assert kinds == {
        *("run", "log", "inbox", "seen", "kv", "out"),
        *("queue", "tenants", "claims", "timers", "index", "ended", "terminal"),
    }
    assert all(k.startswith(shard.prefix) for k in keys)
    slots = {shard.client.execute_command("CLUSTER KEYSLOT", k) for k in (*keys, shard.prefix)}
    assert len(slots) == 1
