"""The functions that know a run's open children: right claim, stale claim, repeats."""

from __future__ import annotations

from tests.integration.lua_shard import Shard, both_protocols

pytestmark = both_protocols

CHILD = '["invoices","a","cancel"]'


def held(shard: Shard, run_id: str = "r1") -> list[str | int]:
    shard.submit(run_id)
    claim = shard.claim()
    return [run_id, claim.epoch, claim.life]


def test_a_child_is_noted_under_the_claim(shard: Shard) -> None:
    who = held(shard)
    assert shard.call("adopt", *who, "a", CHILD) == "OK"
    before = shard.snapshot()
    assert shard.call("adopt", *who, "a", CHILD) == "OK"
    assert shard.snapshot() == before
    assert shard.call("kids", "r1", read_only=True) == [CHILD]


def test_a_stale_claim_changes_nothing(shard: Shard) -> None:
    who = held(shard)
    shard.call("adopt", *who, "a", CHILD)
    before = shard.snapshot()
    for stale in ([who[0], int(who[1]) + 2, who[2]], [who[0], int(who[1]) - 1, who[2]], ["nobody", 1, who[2]]):
        assert shard.call("adopt", *stale, "b", CHILD) == "LOST"
        assert shard.call("collected", *stale, "a") == "LOST"
    assert shard.snapshot() == before


def test_collecting_twice_is_collecting_once(shard: Shard) -> None:
    who = held(shard)
    shard.call("adopt", *who, "a", CHILD)
    assert shard.call("collected", *who, "a") == "OK"
    assert shard.call("collected", *who, "a") == "OK"
    assert shard.call("kids", "r1", read_only=True) == []


def test_a_terminated_run_with_children_waits_for_their_closing(shard: Shard) -> None:
    who = held(shard)
    shard.call("adopt", *who, "a", CHILD)
    assert shard.call("closing", 0, 10, read_only=True) == []
    shard.call("terminate", "r1", "{}", 60_000)
    assert shard.call("closing", 0, 10, read_only=True) == [["r1", [CHILD]]]
    assert shard.call("closing", 60_000, 10, read_only=True) == []
    assert shard.call("closed", "r1") == 1
    before = shard.snapshot()
    assert shard.call("closed", "r1") == 0
    assert shard.snapshot() == before
    assert shard.call("closing", 0, 10, read_only=True) == []


def test_a_run_without_children_is_not_waited_for(shard: Shard) -> None:
    held(shard)
    shard.call("terminate", "r1", "{}", 60_000)
    assert shard.call("closing", 0, 10, read_only=True) == []
