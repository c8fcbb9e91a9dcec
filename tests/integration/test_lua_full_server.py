"""The function library on a server that is full: nothing half done, leases and sweeps go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from valkey.exceptions import OutOfMemoryError

from tests.integration.lua_shard import Held, Shard, entry, load_library

if TYPE_CHECKING:
    from pyrula.testing.servers import PrivateServer


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateServer]:
    from pyrula.testing.servers import PrivateServer

    with PrivateServer({"maxmemory-policy": "noeviction"}) as server:
        yield server


@pytest.fixture
def shard(server: PrivateServer, namespace: str) -> Iterator[Shard]:
    client: Any = server.client()
    load_library(client)
    yield Shard(client, namespace)
    client.flushdb()
    client.close()


@contextmanager
def _full(shard: Shard) -> Iterator[None]:
    shard.client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        shard.client.config_set("maxmemory", 0)


def _shard_at_work(shard: Shard) -> Held:
    """A held run with messages, one queued, one asleep and due, one that failed; gives the held one."""
    for run_id in ("held", "asleep", "failed"):
        shard.submit(run_id, "acme")
    held, asleep, failed = shard.claims(limit=3)
    shard.park(asleep, entry("timer.set"), status="sleeping", wake=1)
    shard.finish(failed, entry("run.failed"), status="failed")
    shard.deliver("held", "m1")
    shard.submit("queued", "acme")
    return held


WRITES: dict[str, Callable[[Shard, Held], Any]] = {
    "submit": lambda s, h: s.submit("new"),
    "claim": lambda s, h: s.claims(limit=16),
    "claim_run": lambda s, h: s.claim_run("queued"),
    "append": lambda s, h: s.append(h, entry(), entry(), consumed=['["m1"]']),
    "park": lambda s, h: s.park(h, entry("timer.set"), wake=5, seen=1),
    "finish": lambda s, h: s.finish(h, entry("run.completed")),
    "set aside": lambda s, h: s.finish(h, status="failed", error="{}"),
    "requeue": lambda s, h: s.requeue(h),
    "deliver": lambda s, h: s.deliver("held", "m2"),
    "wake": lambda s, h: s.wake(),
    "disown": lambda s, h: s.disown("w1"),
    "terminate": lambda s, h: s.terminate("held"),
    "revive": lambda s, h: s.revive("failed"),
    "attributes": lambda s, h: s.call("attributes", "held", h.epoch, h.life, "{}"),
    "commit": lambda s, h: s.call("commit", "held", h.epoch, h.life, "k", "v"),
    "output": lambda s, h: s.call("output", "held", h.epoch, h.life, 1, "chunk"),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_full_server_refuses_a_write_wholly_and_takes_it_later(shard: Shard, name: str) -> None:
    held = _shard_at_work(shard)
    before = shard.snapshot()
    with _full(shard):
        with pytest.raises(OutOfMemoryError):
            WRITES[name](shard, held)
        assert shard.snapshot() == before
    WRITES[name](shard, held)
    assert shard.snapshot() != before


def test_a_full_server_renews_leases(shard: Shard) -> None:
    held = _shard_at_work(shard)
    before = shard.scores("claims")["held"]
    with _full(shard):
        assert shard.heartbeat(("held", held.epoch), ("asleep", 1), lease_ms=600_000) == ["asleep"]
    assert shard.scores("claims")["held"] > before + 500_000


def test_a_full_server_is_swept(shard: Shard) -> None:
    _shard_at_work(shard)
    shard.submit("old")
    shard.terminate("old", keep_ms=-1)
    shard.expire_lease("held")
    with _full(shard):
        assert shard.sweep() == [1, 0, 1]
        assert shard.sweep() == [0, 0, 0]
    assert [h.run_id for h in shard.claims(limit=9)] == ["held", "queued"]


def test_a_full_server_fails_runs_over_their_budget(shard: Shard) -> None:
    _shard_at_work(shard)
    shard.expire_lease("held")
    with _full(shard):
        assert shard.sweep(budget=0) == [0, 1, 0]
    assert shard.types("held")[-1] == "run.failed"


def test_a_full_server_can_be_read(shard: Shard) -> None:
    _shard_at_work(shard)
    with _full(shard):
        assert shard.listing()[0] == 4
        assert shard.call("load", "held", 1, read_only=True)[2][0] == "2-0"
        assert shard.inbox("held") == ['["m1"]']
