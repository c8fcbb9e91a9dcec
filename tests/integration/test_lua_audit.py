"""The function library: what must always hold, audited from the data alone after random calls."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.lua_shard import SPAN, Held, Shard, both_protocols, entry

pytestmark = both_protocols

OWNERS = ("", "acme", "beta")
FAR = 2 * 10**15
ENDS = {"run.completed", "run.failed", "run.cancelled", "run.terminated"}


def audit(shard: Shard) -> None:
    """Every run of the shard is in exactly the places that its status asks for, and its journal has no gap."""
    index, claims, timers, ended = (shard.scores(k) for k in ("index", "claims", "timers", "ended"))
    queues = {o: shard.scores(f"queue:{o}") for o in OWNERS}
    for run_id in index:
        fields = shard.fields(run_id)
        status, owner = fields["st"], fields.get("own", "")
        aside = status == "failed" and bool(fields.get("err"))
        over = status in ("completed", "failed", "cancelled", "terminated") and not aside
        held_back = status == "queued" and bool(fields.get("wake"))
        wake = fields.get("wake", "")
        epoch, seq = divmod(int(fields["cur"]), SPAN)
        facts = f"{run_id}: {fields}"
        assert (run_id in claims) == (status == "running") == (epoch % 2 == 1), facts
        assert timers.get(run_id) == (int(wake) if wake else None), facts
        assert not wake or status in ("sleeping", "waiting", "paused", "queued"), facts
        assert (run_id in queues[owner]) == (status == "queued" and not held_back), facts
        assert all(run_id not in q for o, q in queues.items() if o != owner), facts
        assert (run_id in ended) == over, facts
        types = shard.types(run_id)
        assert len(types) == seq, facts
        assert over == (bool(types) and types[-1] in ENDS), facts
        assert types[:1] == (["run.submitted"] if seq else []), facts
        assert ("in" in fields and fields["in"] != "") == (seq == 0), facts
        resumed = types.count("run.started") + types.count("run.resumed")
        assert resumed == (epoch + 1) // 2, facts
    for other in (claims, timers, ended, *queues.values()):
        assert set(other) <= set(index)
    assert set(shard.scores("tenants")) == {o for o, q in queues.items() if q}
    turns = list(shard.scores("tenants").values())
    assert len(set(turns)) == len(turns)
    keys = {k.removeprefix(shard.prefix).partition(":")[2] for k in shard.snapshot() if ":run:" in k or ":log:" in k}
    assert keys <= set(index)


class Walk:
    """Random calls by two workers and a client, stale ones and repeats among them."""

    def __init__(self, shard: Shard, seed: int) -> None:
        self.shard = shard
        self.random = random.Random(seed)
        self.claims: list[tuple[Held, int]] = []
        self.lost: list[tuple[Held, int]] = []
        self.last: Callable[[], Any] | None = None
        self.serial = 0

    def step(self) -> None:
        """One call; now and then, the last one once more, which must change nothing."""
        calls = [self.submit, self.claim, self.claim, self.claim_run, self.write, self.write, self.write]
        calls += [
            self.give_up,
            self.give_up,
            self.deliver,
            self.deliver,
            self.wake,
            self.sweep,
            self.disown,
            self.terminate,
            self.revive,
        ]
        self.random.choice(calls)()
        if self.last is not None and self.random.random() < 0.3:
            before = self.shard.snapshot()
            self.last()
            assert self.shard.snapshot() == before
        if self.lost and self.random.random() < 0.3:
            held, seq = self.random.choice(self.lost)
            before = self.shard.snapshot()
            assert self.shard.append(held, entry(), seq=seq) == "LOST"
            assert self.shard.finish(held, entry("run.completed", key=str(self.serial)), seq=seq) == "LOST"
            assert self.shard.snapshot() == before

    def _run(self) -> str:
        return f"r{self.random.randrange(8)}"

    def _next(self) -> str:
        self.serial += 1
        return str(self.serial)

    def _do(self, call: Callable[[], Any]) -> Any:
        self.last = call
        return call()

    def submit(self) -> None:
        run_id, owner = self._run(), self.random.choice(OWNERS)
        start = FAR if self.random.random() < 0.3 else ""
        self._do(lambda: self.shard.submit(run_id, owner, start_at=start, priority=len(owner)))

    def claim(self) -> None:
        self.last = None
        for held in self.shard.claims(self.random.choice(["w1", "w2"]), limit=self.random.randint(1, 3)):
            self._take(held)

    def claim_run(self) -> None:
        self.last = None
        for held in self.shard.claim_run(self._run(), "w1"):
            self._take(held)

    def _take(self, held: Held) -> None:
        self._forget(held.run_id)
        self.claims.append((held, held.seq))

    def _forget(self, run_id: str) -> None:
        self.lost += [c for c in self.claims if c[0].run_id == run_id]
        self.claims = [c for c in self.claims if c[0].run_id != run_id]

    def write(self) -> None:
        if not self.claims:
            return
        n = self.random.randrange(len(self.claims))
        held, seq = self.claims[n]
        entries = [entry(key=self._next()) for _ in range(self.random.randint(1, 3))]
        inbox = self.shard.inbox(held.run_id)[: self.random.randint(0, 2)]
        if self._do(lambda: self.shard.append(held, *entries, seq=seq, consumed=inbox)) == "OK":
            self.claims[n] = (held, seq + len(entries))
        else:
            self._forget(held.run_id)

    def give_up(self) -> None:
        if not self.claims:
            return
        held, seq = self.random.choice(self.claims)
        self._forget(held.run_id)
        raw = entry("run.completed", key=self._next())
        fail = entry("run.failed", key=self._next())
        seen = len(self.shard.inbox(held.run_id)) - self.random.choice([0, 0, 1])
        ways: list[Callable[[], Any]] = [
            lambda: self.shard.finish(held, raw, seq=seq),
            lambda: self.shard.finish(held, fail, seq=seq, status="failed"),
            lambda: self.shard.finish(held, seq=seq, status="failed", error='{"code":"x"}'),
            lambda: self.shard.requeue(held, seq=seq, spent=True),
            lambda: self.shard.requeue(held, seq=seq),
            lambda: self.shard.park(held, fail.replace("run.failed", "timer.set"), seq=seq, wake=FAR, seen=seen),
            lambda: self.shard.park(held, raw.replace("run.completed", "x"), seq=seq, topic="signal:go", seen=seen),
            lambda: self.shard.park(held, seq=seq, status="paused", seen=seen),
            lambda: self.shard.park(held, seq=seq, status="sleeping", wake=1, seen=seen),
        ]
        self._do(self.random.choice(ways))

    def deliver(self) -> None:
        run_id, message = self._run(), self._next()
        topic, control = self.random.choice(["signal:go", "signal:no"]), self.random.random() < 0.4
        self._do(lambda: self.shard.deliver(run_id, message, topic, control=control))

    def wake(self) -> None:
        self._do(self.shard.wake)

    def sweep(self) -> None:
        held = self.random.choice(list(self.shard.scores("claims")) or [""])
        if held:
            self.shard.expire_lease(held)
        self._do(lambda: self.shard.sweep(budget=2, keep_ms=60_000))

    def disown(self) -> None:
        worker = self.random.choice(["w1", "w2"])
        known = [held.run_id for held, _ in self.claims if self.random.random() < 0.7]
        self._do(lambda: self.shard.disown(worker, *known))

    def terminate(self) -> None:
        if self.random.random() < 0.3:
            run_id = self._run()
            self._do(lambda: self.shard.terminate(run_id))

    def revive(self) -> None:
        run_id, request = self._run(), self._next()
        self._do(lambda: self.shard.revive(run_id, "{}", request))


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_called_the_shard_stays_whole(shard: Shard, seed: int) -> None:
    walk = Walk(shard, seed)
    for n in range(120):
        walk.step()
        if n % 4 == 0:
            audit(shard)
    audit(shard)
