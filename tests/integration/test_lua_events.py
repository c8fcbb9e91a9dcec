"""The functions that keep events and triggers: each event once, leases, batches, what is not there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pyrula.testing.audit_valkey import audit_namespace
from tests.integration.lua_shard import Shard, both_protocols

pytestmark = both_protocols

KEEP = 3_600_000
LEASE = 60_000
T = "wf/on/order.*"


@pytest.fixture
def events(shard: Shard) -> Iterator[Shard]:
    shard.prefix = f"{shard.namespace}:{{$events}}:"
    yield shard
    assert audit_namespace(shard.client, shard.namespace) == []


def emit(events: Shard, *ids: str, keep: int = KEEP) -> Any:
    return events.call("emit", keep, *(part for each in ids for part in (each, "order.paid", '{"n":1}')))


def read(events: Shard, trigger: str = T, *, limit: int = 10, lease: int = LEASE, start: str = "$") -> list[Any]:
    found: list[Any] = events.call("events_read", trigger, limit, lease, start)
    return found


def ids(found: list[Any]) -> list[str]:
    return [each[1] for each in found]


def test_an_event_is_kept_once(events: Shard) -> None:
    read(events)
    assert emit(events, "e1", "e2", "e1") == [1, 1, 0]
    before = events.snapshot()
    assert emit(events, "e1", "e2") == [0, 0]
    assert events.snapshot() == before
    position, event_id, name, payload, at = read(events)[0]
    assert (event_id, name, payload) == ("e1", "order.paid", '{"n":1}')
    assert position.startswith(at[:-3])


def test_old_events_are_given_up_and_their_ids_with_them(events: Shard) -> None:
    for n in range(300):
        emit(events, f"e{n}", keep=0)
    assert events.client.zcard(f"{events.prefix}ids") <= 2
    assert events.client.xlen(f"{events.prefix}log") < 300  # nodes of a stream are given up whole
    events.client.xtrim(f"{events.prefix}log", maxlen=0)


def test_an_event_is_lent_to_one_until_its_lease_is_over(events: Shard) -> None:
    read(events)
    emit(events, "e1", "e2", "e3")
    assert ids(read(events, limit=2)) == ["e1", "e2"]
    assert ids(read(events, limit=2)) == ["e3"]
    assert read(events) == []
    assert ids(read(events, lease=0)) == ["e1", "e2", "e3"]
    assert ids(read(events, "other", start="0")) == ["e1", "e2", "e3"]


def test_what_is_done_is_not_lent_again(events: Shard) -> None:
    read(events)
    emit(events, "e1", "e2")
    first, second = [each[0] for each in read(events)]
    assert events.call("events_done", T, 1, first) == 1
    assert events.call("events_done", T, 1, first) == 0
    assert ids(read(events, lease=0)) == ["e2"]
    assert events.call("events_done", T, 2, first, second, '{"event":"e2"}') == 1
    before = events.snapshot()
    assert events.call("events_done", T, 1, second, '{"event":"e2"}') == 0
    assert events.snapshot() == before
    [state] = events.call("trigger_list", read_only=True)
    assert (state[0], state[2], state[6]) == (T, 0, ['{"event":"e2"}'])


def test_refusals_are_bounded(events: Shard) -> None:
    read(events)
    for n in range(120):
        events.call("events_done", T, 0, json.dumps({"event": n}))
    [state] = events.call("trigger_list", read_only=True)
    assert len(state[6]) == 100
    assert state[6][0] == '{"event": 119}'


def test_a_batch_takes_each_event_once(events: Shard) -> None:
    read(events)
    emit(events, "e1", "e2", "e3")
    found = read(events)
    items = [part for each in found for part in (each[0], "k", f'"{each[1]}"')]
    assert events.call("batch_add", T, 2, LEASE, *items[:3]) == 1
    assert events.call("batch_add", T, 2, LEASE, *items) == 2
    before = events.snapshot()
    assert events.call("batch_add", T, 2, LEASE, *items) == 0
    assert events.snapshot() == before
    _, _, [[number, inside]] = events.call("batch_due", T, 10, LEASE)
    assert (number, inside) == ("1", ['"e1"', '"e2"'])
    [state] = events.call("trigger_list", read_only=True)
    assert (state[4], state[5]) == (1, 1)


def test_a_batch_ends_by_time_and_is_lent_until_it_is_done(events: Shard) -> None:
    read(events)
    emit(events, "e1")
    [found] = read(events)
    events.call("batch_add", T, 9, 0, found[0], "k", '"e1"')
    at, nearest, [[number, inside]] = events.call("batch_due", T, 10, LEASE)
    assert (number, inside) == ("1", ['"e1"'])
    assert int(nearest) == int(at) + LEASE * 1000
    assert events.call("batch_due", T, 10, 0)[2] == []
    assert events.call("batch_done", T, 1, "1", '{"event":"e1"}') == 1
    assert events.call("batch_due", T, 10, 0)[1:] == ["", []]
    before = events.snapshot()
    assert events.call("batch_done", T, 1, "1", '{"event":"e1"}') == 0
    assert events.snapshot() == before


def test_a_trigger_is_sent_back_or_forgotten(events: Shard) -> None:
    assert events.call("trigger_list", read_only=True) == []
    assert events.call("trigger_seek", T, "0") == 0
    emit(events, "e1")
    assert read(events) == []
    assert events.call("trigger_seek", "nobody", "0") == 0
    assert events.call("trigger_seek", T, "0") == 1
    [found] = read(events)
    events.call("batch_add", T, 9, LEASE, found[0], "a:b", '"e1"')
    assert events.call("trigger_drop", T) == 1
    assert events.call("trigger_drop", T) == 0
    assert events.call("trigger_list", read_only=True) == []
    assert sorted(events.client.keys(f"{events.prefix}*")) == [f"{events.prefix}{k}".encode() for k in ("ids", "log")]


def test_the_audit_knows_what_is_wrong(shard: Shard) -> None:
    client, prefix = shard.client, f"{shard.namespace}:{{$events}}:"
    client.xadd(f"{prefix}log", {"i": "e1"})
    client.rpush(f"{prefix}batch:{T}:k", "x")
    client.rpush(f"{prefix}ended:{T}:4", "x")
    client.zadd(f"{prefix}waiting:{T}", {"gone": 1})
    client.set(f"{prefix}what", "x")
    found = "\n".join(audit_namespace(client, shard.namespace))
    for said in (
        "b'e1' is kept and not known",
        "batch:wf/on/order.*:k': nobody will look at this batch",
        "ended:wf/on/order.*:4': nobody will look at this batch",
        "holds b'gone', which is no batch",
        "has a key b'what' that nothing reads",
    ):
        assert said in found
