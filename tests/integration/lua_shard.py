"""One shard of a real server, driven through the function library by a plain blocking client.

`Shard` names each function's arguments and decodes its reply, no more; `snapshot` shows all that the
server keeps in its database, for tests that say "nothing changed". No engine code is used here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from valkey.exceptions import ResponseError

from pyrula.lua import library

__all__ = ["SPAN", "Held", "Shard", "both_protocols", "entry", "load_library"]

SPAN = 1 << 28
both_protocols = pytest.mark.parametrize("shard", [2, 3], indirect=True, ids=["resp2", "resp3"])
"""Run with the fixture `shard` in RESP2 and in RESP3: a reply must not depend on it."""

AT = 1764556800000000


def entry(kind: str = "step.completed", key: str = "work", result: object = 1, *, attempt: int = 1) -> str:
    """A journal entry, as a worker would write it."""
    return json.dumps([1, kind, AT, attempt, key, {"result": result}], separators=(",", ":"))


def load_library(client: Any) -> None:
    """Load the function library; one that is there stays."""
    try:
        client.function_load(library().source)
    except ResponseError as error:
        if "already exists" not in str(error):
            raise


def text(reply: Any) -> Any:
    """A reply with its bytes decoded, all the way down."""
    if isinstance(reply, bytes):
        return reply.decode()
    if isinstance(reply, list):
        return [text(item) for item in reply]
    return reply


@dataclass(frozen=True, slots=True)
class Held:
    """A claim as its worker sees it."""

    run_id: str
    epoch: int
    seq: int
    owner: str
    submitted_at: int
    attributes: str
    headers: str
    entries: list[tuple[int, list[Any]]]
    inbox: list[str]
    life: str = ""

    def cursor(self, seq: int | None = None) -> int:
        """What an append after `seq` (the claim's own, if not given) sends."""
        return self.epoch * SPAN + (self.seq if seq is None else seq)


class Shard:
    """The calls of the library on one shard. Replies are as the functions give them, decoded."""

    def __init__(self, client: Any, namespace: str, shard: int = 0) -> None:
        self.client = client
        self.namespace = namespace
        self.prefix = f"{namespace}:{{wf:{shard}}}:"

    def call(self, name: str, *args: str | int | bytes, read_only: bool = False) -> Any:
        """Any function of the library on this shard."""
        function = library().function(name)
        fcall = self.client.fcall_ro if read_only else self.client.fcall
        return text(fcall(function, 1, self.prefix, *args))

    # --- calls ---

    def submit(
        self,
        run_id: str,
        owner: str = "",
        *,
        priority: int = 0,
        delay_ms: int | str = "",
        start_at: int | str = "",
        input: str = '{"x":1}',
        digest: str = "d1",
        attributes: str = "{}",
        headers: str = "{}",
    ) -> Any:
        return self.call("submit", run_id, owner, priority, delay_ms, start_at, input, digest, attributes, headers)

    def claim_reply(self, worker: str = "w1", *, limit: int = 1, lease_ms: int = 30_000) -> Any:
        return self.call("claim", worker, json.dumps(worker), lease_ms, limit)

    def claims(self, worker: str = "w1", *, limit: int = 1, lease_ms: int = 30_000) -> list[Held]:
        """The claims that a call gave."""
        return self._held(self.claim_reply(worker, limit=limit, lease_ms=lease_ms))

    def claim_run(self, run_id: str, worker: str = "w1", *, lease_ms: int = 30_000) -> list[Held]:
        """The claim of one given run, or none."""
        return self._held(self.call("claim_run", worker, json.dumps(worker), lease_ms, run_id))

    @staticmethod
    def _held(reply: Any) -> list[Held]:
        return [
            Held(
                run_id=c[0],
                epoch=int(c[1]),
                seq=int(c[2]),
                owner=c[3],
                submitted_at=int(c[4]),
                attributes=c[5],
                headers=c[6],
                entries=[(int(i.partition("-")[0]), json.loads(raw)) for i, raw in c[7]],
                inbox=c[8],
                life=c[9],
            )
            for c in reply[2:]
        ]

    def claim(self, worker: str = "w1", *, lease_ms: int = 30_000) -> Held:
        """The one claim that a call must give."""
        (held,) = self.claims(worker, lease_ms=lease_ms)
        return held

    def append_args(
        self, mode: str, held: Held, cursor: int, entries: Sequence[str], consumed: Sequence[str], *more: str | int
    ) -> tuple[str | int, ...]:
        """The arguments of `append`, in their order."""
        return (mode, held.run_id, cursor, held.life, len(entries), *entries, len(consumed), *consumed, *more)

    def append(
        self, held: Held, *entries: str, seq: int | None = None, epoch: int | None = None, consumed: Sequence[str] = ()
    ) -> Any:
        cursor = self._cursor(held, seq, epoch)
        return self.call("append", *self.append_args("append", held, cursor, entries, consumed))

    def park(
        self,
        held: Held,
        *entries: str,
        status: str = "waiting",
        topic: str = "",
        wake: int | str = "",
        seen: int = 0,
        seq: int | None = None,
        epoch: int | None = None,
        consumed: Sequence[str] = (),
    ) -> Any:
        cursor = self._cursor(held, seq, epoch)
        return self.call(
            "append", *self.append_args("park", held, cursor, entries, consumed, status, topic, wake, seen)
        )

    def go_on(self, held: Held, *entries: str, input: str = "{}", about: str = "", epoch: int | None = None) -> Any:
        cursor = self._cursor(held, None, epoch)
        return self.call("append", *self.append_args("continue", held, cursor, entries, (), input, about))

    def finish(
        self,
        held: Held,
        *entries: str,
        status: str = "completed",
        keep_ms: int = 60_000,
        error: str = "",
        seq: int | None = None,
        epoch: int | None = None,
        consumed: Sequence[str] = (),
    ) -> Any:
        """End the run; with an `error`, set it aside."""
        cursor = self._cursor(held, seq, epoch)
        terminal = 0 if error else 1
        return self.call(
            "append",
            *self.append_args("finish", held, cursor, entries, consumed, status, keep_ms, terminal, error),
        )

    def requeue(self, held: Held, *, spent: bool = False, seq: int | None = None, epoch: int | None = None) -> Any:
        cursor = self._cursor(held, seq, epoch)
        return self.call("append", *self.append_args("requeue", held, cursor, (), (), int(spent)))

    @staticmethod
    def _cursor(held: Held, seq: int | None, epoch: int | None) -> int:
        return (held.epoch if epoch is None else epoch) * SPAN + (held.seq if seq is None else seq)

    def deliver(self, run_id: str, message_id: str, topic: str = "", *, control: bool = False, raw: str = "") -> Any:
        return self.call("deliver", run_id, message_id, topic, int(control), raw or f'["{message_id}"]')

    def inbox(self, run_id: str) -> Any:
        return self.call("inbox", run_id, read_only=True)

    def wake(self, limit: int = 100) -> Any:
        return self.call("wake", limit)

    def heartbeat(self, *leases: tuple[str, int], lease_ms: int = 30_000, life: str = "") -> Any:
        return self.call("heartbeat", lease_ms, *(part for lease in leases for part in (*lease, life)))

    def disown(self, worker: str, *known: str) -> Any:
        return self.call("disown", worker, *known)

    def sweep(self, *, limit: int = 100, budget: int = 3, keep_ms: int = 60_000) -> Any:
        return self.call("sweep", limit, budget, keep_ms)

    def terminate(self, run_id: str, data: str = '{"reason":"test"}', keep_ms: int = 60_000) -> Any:
        return self.call("terminate", run_id, data, keep_ms)

    def revive(self, run_id: str, data: str = "{}", request: str = "req1") -> Any:
        return self.call("revive", run_id, data, request)

    def listing(
        self,
        *,
        below: int | str = "+inf",
        below_id: str = "",
        lowest: int | str = "-inf",
        status: str = "",
        owner: str | None = None,
        attributes: str = "",
        limit: int = 100,
        budget: int = 1000,
        count_only: bool = False,
    ) -> Any:
        who = "" if owner is None else f"={owner}"
        args = (below, below_id, lowest, status, who, attributes, limit, budget, int(count_only))
        return self.call("listing", *args, read_only=True)

    # --- what is there ---

    def fields(self, run_id: str) -> dict[str, str]:
        """A run's hash."""
        return {k.decode(): v.decode() for k, v in self.client.hgetall(f"{self.prefix}run:{run_id}").items()}

    def journal(self, run_id: str) -> list[list[Any]]:
        """A run's entries, parsed; fails when their ids are not 1, 2, 3 ..."""
        found = self.client.xrange(f"{self.prefix}log:{run_id}")
        assert [i for i, _ in found] == [f"{n}-0".encode() for n in range(1, len(found) + 1)]
        return [json.loads(fields[b"e"]) for _, fields in found]

    def types(self, run_id: str) -> list[str]:
        """The types of a run's entries."""
        return [e[1] for e in self.journal(run_id)]

    def scores(self, kind: str) -> dict[str, float]:
        """One of the shard's sorted sets."""
        return {m.decode(): s for m, s in self.client.zrange(self.prefix + kind, 0, -1, withscores=True)}

    def expire_lease(self, run_id: str) -> None:
        """Let a claim's lease run out, as time would."""
        assert self.client.zadd(f"{self.prefix}claims", {run_id: 1}, xx=True, ch=True) == 1

    def snapshot(self) -> dict[str, Any]:
        """Every key of the database with its type, expiry and value."""
        kept: dict[str, Any] = {}
        for key in self.client.scan_iter(count=1000):
            kind = self.client.type(key).decode()
            kept[key.decode()] = (kind, self.client.pttl(key), _value(self.client, key, kind))
        return kept


def _value(client: Any, key: bytes, kind: str) -> Any:
    match kind:
        case "hash":
            return dict(sorted(client.hgetall(key).items()))
        case "zset":
            return client.zrange(key, 0, -1, withscores=True)
        case "list":
            return client.lrange(key, 0, -1)
        case "set":
            return sorted(client.smembers(key))
        case "stream":
            info = client.xinfo_stream(key)
            return client.xrange(key), info["last-generated-id"], info["entries-added"]
    return client.get(key)
