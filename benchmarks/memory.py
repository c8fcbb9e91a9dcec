"""What runs cost the server's memory: a finished run's event, and a run that waits for its first claim.

By the server's own count of used memory, before and after many runs spread over 64 shards, so that
whatever belongs to a run is in it: hashes, streams, its share of the indexes, of the sorted sets and of
the terminal stream. Where the memory is, for one run of each kind, is shown below the figures.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from benchmarks.function_calls import HEADERS, INPUT, Call, Server, append, claim, finish, submit
from pyrula.contracts.ids import new_id, shard_of

__all__ = ["EVENTS", "EVENT_LIMIT", "QUEUED_LIMIT", "bytes_per_event", "bytes_per_queued_run"]

EVENTS: Final = 100
"""Events of a run: submitted, started, the steps, completed."""

EVENT_LIMIT: Final = 250
"""Bytes of an event, at most."""

QUEUED_LIMIT: Final = 1024
"""Bytes of a queued run, at most."""

_SHARDS: Final = 64


def _prefix(run_id: str) -> str:
    return f"default:{{sync_account:{shard_of(run_id, _SHARDS)}}}:"


def _grown(server: Server, load: Callable[[], object]) -> int:
    """By how much the used memory grows under `load`, bytes. The sets of the shards are counted as well."""
    before: int = server.client.info("memory")["used_memory"]
    load()
    after: int = server.client.info("memory")["used_memory"]
    return after - before


def _finished_run(run_id: str) -> list[Call]:
    prefix = _prefix(run_id)
    last = EVENTS - 1
    steps = [append(prefix, run_id, seq) for seq in range(2, last)]
    return [submit(prefix, run_id), claim(prefix), *steps, finish(prefix, run_id, last)]


def bytes_per_event(server: Server, runs: int = 1000) -> tuple[float, str]:
    """Bytes of an event of a finished run with `EVENTS` events; and the id of one such run."""
    ids = [new_id() for _ in range(runs)]

    def load() -> None:
        for run_id in ids:
            server.pipe.run(_finished_run(run_id))

    return _grown(server, load) / (runs * EVENTS), ids[0]


def bytes_per_queued_run(server: Server, runs: int = 10_000, tenants: int = 10) -> tuple[float, str]:
    """Bytes of a queued run with 100 bytes of input, an owner and a trace context; and the id of one."""
    ids = [new_id() for _ in range(runs)]
    calls = [submit(_prefix(run_id), run_id, f"tenant-{n % tenants}") for n, run_id in enumerate(ids)]
    return _grown(server, lambda: server.pipe.timed(calls)) / runs, ids[0]


def _parts(server: Server, run_id: str) -> list[tuple[str, int, str]]:
    """The keys of a run, and its share of its shard's: name, bytes, encoding."""
    client: Any = server.client
    prefix = _prefix(run_id)
    found: list[tuple[str, int, str]] = []
    for key in sorted(client.scan_iter(f"{prefix}*", count=10_000)):
        name = key.decode().removeprefix(prefix)
        kind = client.type(key)
        shares = 1
        if kind == b"zset":
            shares = client.zcard(key)
        elif name == "terminal":
            shares = client.xlen(key)
        elif not name.endswith(f":{run_id}"):
            continue
        label = name.partition(":")[0] + (", its share" if shares > 1 else "")
        found.append((label, client.memory_usage(key, samples=0) // shares, client.object("encoding", key).decode()))
    return found


def main() -> None:
    """Print the figures and where they come from; exit with 1 when one is over its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="finished runs; ten times as many are queued")
    options = parser.parse_args()
    print(f"An event's result: 60 bytes. An input: {len(INPUT)} bytes; headers: {len(HEADERS)}.\n")
    print(f"{'what':50}{'bytes':>8}{'limit':>8}{'ratio':>8}")
    rows: list[tuple[str, float, int]] = []
    parts: list[tuple[str, list[tuple[str, int, str]]]] = []
    with Server() as server:
        per_event, run_id = bytes_per_event(server, options.runs)
        rows.append((f"an event, {EVENTS} events a run, {options.runs:,} runs", per_event, EVENT_LIMIT))
        parts.append(("a finished run", _parts(server, run_id)))
    queued = 10 * options.runs
    for tenants in (10, 1):
        with Server() as server:
            per_run, run_id = bytes_per_queued_run(server, queued, tenants)
            rows.append((f"a queued run, {queued:,} runs, tenants: {tenants}", per_run, QUEUED_LIMIT))
            if tenants == 1:
                parts.append(("a queued run", _parts(server, run_id)))
    for what, size, limit in rows:
        print(f"{what:50}{size:8.0f}{limit:8}{size / limit:8.2f}{'' if size <= limit else '  MISSED'}")
    for what, listed in parts:
        print(f"\nWhere it is: {what}")
        for name, size, encoding in listed:
            print(f"  {name:48}{size:8}  {encoding}")
    raise SystemExit(any(size > limit for _, size, limit in rows))


if __name__ == "__main__":
    main()
