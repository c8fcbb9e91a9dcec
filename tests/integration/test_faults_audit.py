"""The audit of a namespace finds each kind of damage: data made by hand to break one rule at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyrula.testing.audit_valkey import audit_namespace
from pyrula.testing.servers import PrivateServer
from tests.integration.lua_shard import Shard, entry, load_library


@pytest.fixture
def shard(valkey_server: PrivateServer, namespace: str) -> Iterator[Shard]:
    """One run in each state, in a namespace that is registered as a store would do it."""
    client: Any = valkey_server.client()
    load_library(client)
    shard = Shard(client, namespace)
    client.sadd(f"{namespace}:workflows", "wf")
    client.set(f"{shard.prefix}shards", 1)
    for run_id in ("running", "asleep", "waiting", "done", "aside", "took"):
        shard.submit(run_id, "acme")
    running, asleep, waiting, done, aside, took = shard.claims(limit=6)
    shard.append(running, entry(key="a"))
    shard.park(asleep, entry("timer.set"), status="sleeping", wake=9 * 10**15 // 4)
    shard.park(waiting, entry("signal.awaited"), topic="signal:go")
    shard.finish(done, entry("run.completed", key=""))
    shard.finish(aside, status="failed", error='{"code":"version_skew"}')
    shard.deliver("took", "m1", "signal:x", raw='["signal","m1","x",1]')
    received = '[1,"signal.received",1764556800000000,1,"@wait",{"name":"x","message_id":"m1","payload":1}]'
    shard.append(took, received, consumed=['["signal","m1","x",1]'])
    shard.submit("queued", "beta")
    shard.submit("later", start_at=9 * 10**15 // 4)
    yield shard
    client.close()


def test_sound_data_are_sound(shard: Shard) -> None:
    assert audit_namespace(shard.client, shard.namespace) == []


Damage = Callable[[Any, str], Any]
DAMAGES: dict[str, tuple[Damage, str]] = {
    "claim lost": (lambda c, p: c.zrem(p + "claims", "running"), "in claims stands None"),
    "claim without end": (lambda c, p: c.zadd(p + "claims", {"running": "inf"}), "never runs out"),
    "claim of a parked run": (lambda c, p: c.zadd(p + "claims", {"asleep": 5}), "in claims stands 5.0"),
    "queue lost": (lambda c, p: c.delete(p + "queue:beta"), "and in queues {} where"),
    "in another's queue": (lambda c, p: c.zadd(p + "queue:acme", {"queued": 1}), "in queues"),
    "queued while running": (lambda c, p: c.zadd(p + "queue:acme", {"running": 1}), "in queues"),
    "turn lost": (lambda c, p: c.zrem(p + "tenants", "beta"), "and turns for"),
    "timer lost": (lambda c, p: c.zrem(p + "timers", "asleep"), "in timers stands None"),
    "timer moved": (lambda c, p: c.zadd(p + "timers", {"later": 7}), "in timers stands 7.0"),
    "not in the index": (lambda c, p: c.zrem(p + "index", "queued"), "in index stands None"),
    "kept for ever": (lambda c, p: c.zrem(p + "ended", "done"), "in ended stands None"),
    "nothing to wake it": (lambda c, p: c.hset(p + "run:waiting", "top", ""), "nothing will wake it"),
    "a signal slept through": (
        lambda c, p: (c.rpush(p + "inbox:waiting", '["signal","m2","go",1]'), c.sadd(p + "seen:waiting", "m2")),
        "signal 'm2' has come",
    ),
    "a cancel slept through": (
        lambda c, p: (c.rpush(p + "inbox:asleep", '["cancel","m3","",null]'), c.sadd(p + "seen:asleep", "m3")),
        "cancel 'm3' has come",
    ),
    "taken and still there": (
        lambda c, p: c.rpush(p + "inbox:took", '["signal","m1","x",1]'),
        "still lies in the inbox",
    ),
    "taken out of nowhere": (lambda c, p: c.srem(p + "seen:took", "m1"), "never seen to arrive"),
    "a gap": (lambda c, p: c.xdel(p + "log:running", "2-0"), "seq 3 stands where 2 should"),
    "a longer journal": (lambda c, p: c.xadd(p + "log:running", {"e": entry(key="b")}, id="4-0"), "the last seq is 3"),
    "two outcomes": (
        lambda c, p: (
            c.xadd(p + "log:running", {"e": entry(key="a")}, id="4-0"),
            c.hincrby(p + "run:running", "cur", 1),
        ),
        "and step.completed at seq 4",
    ),
    "growth after the end": (lambda c, p: c.xadd(p + "log:done", {"e": entry()}, id="4-0"), "is followed by"),
    "not announced": (lambda c, p: c.delete(p + "terminal"), "subscribers were told []"),
    "announced twice": (
        lambda c, p: c.xadd(p + "terminal", {"r": "done", "s": "completed", "o": "acme", "q": 3}),
        "subscribers were told",
    ),
    "a hash without status": (lambda c, p: c.hdel(p + "run:queued", "st"), "cannot be read"),
    "a journal without a run": (lambda c, p: c.delete(p + "run:running"), "there is no such run"),
    "a key of nobody's": (lambda c, p: c.set(p + "what", 1), "that nothing reads"),
    "not registered": (lambda c, p: c.delete(p + "shards"), "is not registered"),
    "another count": (lambda c, p: c.set(p + "shards", 64), "belongs into shard"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found(shard: Shard, name: str) -> None:
    damage, finding = DAMAGES[name]
    damage(shard.client, shard.prefix)
    findings = audit_namespace(shard.client, shard.namespace)
    assert any(finding in each for each in findings), findings
