"""The functions that keep schedules: right revision, stale revision, repeats, what is not there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyrula.testing.audit_valkey import audit_namespace
from tests.integration.lua_shard import Shard, both_protocols

pytestmark = both_protocols

DOC = '{"cron":"* * * * *"}'
SOON = "1000"  # microseconds after 1970: due for long
FAR = "4102444800000000"


def put(shard: Shard, schedule_id: str = "s1", revision: str = "", doc: str = DOC, due: str = SOON) -> Any:
    return shard.call("schedule_put", schedule_id, revision, doc, due, due)


def record(shard: Shard, schedule_id: str = "s1") -> dict[str, Any]:
    [found] = shard.call("schedule_list", schedule_id, read_only=True)
    names = ("id", "doc", "revision", "created", "next", "due", "last", "outcomes")
    return dict(zip(names, found, strict=True))


def lent(shard: Shard, limit: int = 10, lease_ms: int = 60_000) -> list[str]:
    return [each[0] for each in shard.call("schedule_due", limit, lease_ms)[2]]


def test_a_creation_and_its_repeat(shard: Shard) -> None:
    answer, made = put(shard)
    assert answer == "OK"
    assert (made[0], made[1], made[2], made[4], made[5], made[6], made[7]) == ("s1", DOC, "1", SOON, SOON, "0", [])
    before = shard.snapshot()
    assert put(shard) == ["OK", made]
    assert put(shard, doc="{}") == ["EXISTS"]
    assert shard.snapshot() == before


def test_a_change_needs_the_revision(shard: Shard) -> None:
    put(shard)
    before = shard.snapshot()
    assert put(shard, revision="7", doc="{}") == ["MOVED"]
    assert put(shard, "nobody", revision="1") == ["NONE"]
    assert shard.snapshot() == before
    assert put(shard, revision="1", doc="{}", due=FAR)[0] == "OK"
    assert (record(shard)["doc"], record(shard)["revision"], record(shard)["due"]) == ("{}", "2", FAR)
    assert put(shard, revision="1", doc="{}") == ["MOVED"]


def test_what_is_due_is_lent_in_order_and_up_to_the_limit(shard: Shard) -> None:
    for n, due in enumerate((SOON, "3000", "2000", FAR, "0")):
        put(shard, f"s{n}", due=due)
    assert lent(shard, limit=2) == ["s0", "s2"]
    assert lent(shard) == ["s1"]
    assert lent(shard) == []


def test_the_next_time_is_told(shard: Shard) -> None:
    at, nearest, found = shard.call("schedule_due", 10, 1000)
    assert (nearest, found) == ("", [])
    put(shard, due="0")
    assert shard.call("schedule_due", 10, 1000)[1] == ""
    put(shard, "s2", due=FAR)
    assert shard.call("schedule_due", 10, 1000)[1] == FAR
    put(shard, "s3")
    _, back, [_] = shard.call("schedule_due", 10, 1000)
    assert int(at) + 1_000_000 <= int(back) < int(FAR)


def test_moving_on_needs_the_revision_it_was_lent_at(shard: Shard) -> None:
    put(shard)
    put(shard, "s2")
    assert lent(shard) == ["s1", "s2"]
    moves = ["s1", 1, FAR, FAR, SOON, "said", "s2", 9, FAR, FAR, SOON, "said", "nobody", 1, FAR, FAR, "", ""]
    assert shard.call("schedule_fired", *moves) == [1, 0, 0]
    s1, s2 = record(shard), record(shard, "s2")
    assert (s1["next"], s1["last"], s1["revision"], s1["outcomes"]) == (FAR, SOON, "2", ["said"])
    assert (s2["next"], s2["last"], s2["revision"], s2["outcomes"]) == (SOON, "0", "1", [])
    before = shard.snapshot()
    assert shard.call("schedule_fired", *moves) == [0, 0, 0]
    assert shard.snapshot() == before


def test_a_wait_moves_the_time_and_says_nothing(shard: Shard) -> None:
    put(shard)
    lent(shard)
    assert shard.call("schedule_fired", "s1", 1, SOON, FAR, "", "") == [1]
    found = record(shard)
    assert (found["next"], found["due"], found["last"], found["outcomes"]) == (SOON, FAR, "0", [])


def test_a_change_while_lent_wins(shard: Shard) -> None:
    put(shard)
    lent(shard)
    put(shard, revision="1", doc="{}", due="0")
    before = shard.snapshot()
    assert shard.call("schedule_fired", "s1", 1, FAR, FAR, SOON, "said") == [0]
    assert shard.snapshot() == before
    assert lent(shard) == []


def test_notes_are_taken_once_and_so_many_kept(shard: Shard) -> None:
    assert shard.call("schedule_note", "s1", "x") == 0
    put(shard)
    for n in range(25):
        assert shard.call("schedule_note", "s1", f"n{n}") == 1
        assert shard.call("schedule_note", "s1", f"n{n}") == 1
    assert record(shard)["outcomes"] == [f"n{n}" for n in range(24, 4, -1)]
    assert record(shard)["revision"] == "1"


def test_nothing_remains_of_one_that_is_deleted(shard: Shard) -> None:
    before = shard.snapshot()
    put(shard)
    shard.call("schedule_note", "s1", "x")
    assert shard.call("schedule_delete", "s1") == 1
    assert shard.snapshot() == before
    assert shard.call("schedule_delete", "s1") == 0
    assert shard.call("schedule_list", read_only=True) == []


def test_an_entry_without_its_schedule_is_dropped(shard: Shard) -> None:
    shard.client.zadd(f"{shard.prefix}schedules", {"ghost": 1})
    assert lent(shard) == []
    assert shard.client.exists(f"{shard.prefix}schedules") == 0


@pytest.mark.parametrize("text", ["é\u2028\0", "x" * 100_000, json.dumps({"a": [1, None]})])
def test_documents_are_kept_byte_for_byte(shard: Shard, text: str) -> None:
    put(shard, doc=text)
    assert record(shard)["doc"] == text


def test_the_audit_knows_schedules(shard: Shard) -> None:
    put(shard)
    shard.call("schedule_note", "s1", "x")
    client, prefix = shard.client, shard.prefix
    ours = [each for each in audit_namespace(client, shard.namespace) if "schedule" in each]
    assert ours == []
    client.zrem(f"{prefix}schedules", "s1")
    client.zadd(f"{prefix}schedules", {"ghost": 1})
    client.hdel(f"{prefix}schedule:s1", "due")
    client.lpush(f"{prefix}fired:gone", "x")
    client.zadd(f"{prefix.replace(':0}', ':1}')}schedules", {"s2": 1})
    found = "\n".join(audit_namespace(client, shard.namespace))
    for said in (
        "schedule s1: it has no due",
        "schedule s1: nothing will look at it",
        "schedule ghost: it is looked at, and does not exist",
        "schedule gone: it has outcomes, and does not exist",
        "holds schedules, which belong into the first shard",
    ):
        assert said in found
