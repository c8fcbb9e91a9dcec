"""The yardstick: the barest fenced append that a durable step could cost, over the store's own wire.

One function of two inner commands (a fence on the run's cursor, an entry in its stream), one round trip.
Other benchmarks run it in their own process, on their own server, and compare with it.
"""

from __future__ import annotations

import argparse
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import anyio

from pyrula.testing.servers import PrivateServer
from pyrula.workflows.stores.valkey.address import Address
from pyrula.workflows.stores.valkey.wire import Wire

__all__ = ["LIBRARY", "PAYLOAD", "append_throughput", "load", "lone_append_p50_us", "measure"]

LIBRARY = b"""#!lua name=bare_append
server.register_function('bare_append', function(KEYS, ARGV)
  local c = redis.call('HINCRBY', KEYS[1], 'cur', 1)
  if c ~= tonumber(ARGV[1]) then
    redis.call('HINCRBY', KEYS[1], 'cur', -1)
    return {'lost', c}
  end
  redis.call('XADD', KEYS[2], ARGV[2], 'e', ARGV[3])
  return 'OK'
end)
"""
"""KEYS: run hash, log stream. ARGV: the cursor after this append, the entry's id, the entry."""

PAYLOAD = (
    b'{"t":"step.completed","k":"charge-card#1","at":1764550000123,"a":1,'
    b'"d":{"r":{"charge":"ch_3Pq8Xa","amount":1299,"currency":"eur"}}}'
)
"""A journal entry of about 130 bytes with a result of about 60."""

_WARM_UP = 200


async def load(wire: Wire) -> None:
    """Put the function on the wire's server."""
    await wire.call("FUNCTION", "LOAD", "REPLACE", LIBRARY)


async def _append(wire: Wire, run: str, log: str, cursor: int) -> None:
    reply = await wire.call("FCALL", "bare_append", 2, run, log, cursor, f"{cursor}-0", PAYLOAD)
    if reply != b"OK":
        raise RuntimeError(f"the append was refused: {reply!r}")


def _keys() -> tuple[str, str]:
    tag = uuid.uuid4().hex
    return f"bare:{{{tag}}}:run", f"bare:{{{tag}}}:log"


async def lone_append_p50_us(wire: Wire, n: int = 2000) -> float:
    """The median time of one append, in microseconds, for one caller that appends `n` times in a row."""
    run, log = _keys()
    took: list[float] = []
    for cursor in range(1, _WARM_UP + n + 1):
        start = time.perf_counter()
        await _append(wire, run, log, cursor)
        took.append(time.perf_counter() - start)
    await wire.call("UNLINK", run, log)
    return median(took[_WARM_UP:]) * 1e6


async def append_throughput(wire: Wire, callers: int = 50, each: int = 400) -> float:
    """Appends per second of so many callers at once, each with a run of its own."""
    keys = [_keys() for _ in range(callers)]

    async def caller(run: str, log: str) -> None:
        for cursor in range(1, each + 1):
            await _append(wire, run, log, cursor)

    start = time.perf_counter()
    async with anyio.create_task_group() as group:
        for run, log in keys:
            group.start_soon(caller, run, log)
    took = time.perf_counter() - start
    for run, log in keys:
        await wire.call("UNLINK", run, log)
    return callers * each / took


async def measure(url: str, *, rounds: int = 3) -> tuple[float, float]:
    """The best of some rounds: microseconds of a lone append, appends per second of 50 callers."""
    wire = Wire(Address.parse(url))
    try:
        await load(wire)
        lone = [await lone_append_p50_us(wire) for _ in range(rounds)]
        many = [await append_throughput(wire) for _ in range(rounds)]
    finally:
        await wire.aclose()
    return min(lone), max(many)


_LOOPS: dict[str, dict[str, Any]] = {
    "asyncio": {"backend": "asyncio"},
    "uvloop": {"backend": "asyncio", "backend_options": {"use_uvloop": True}},
    "trio": {"backend": "trio"},
}


@contextmanager
def _server(fsync: str, *, tcp: bool) -> Iterator[str]:
    with PrivateServer({"appendfsync": fsync}, tcp=tcp) as server:
        yield server.url


def main() -> None:
    parser = argparse.ArgumentParser(description="The bare fenced append: a lone caller, and fifty.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--unix", action="store_true", help="a unix socket instead of TCP on 127.0.0.1")
    options = parser.parse_args()
    print(f"{'loop':10}{'appendfsync':14}{'lone p50 (us)':>15}{'50 callers (/s)':>18}")
    for fsync in ("everysec", "always"):
        with _server(fsync, tcp=not options.unix) as url:
            for name, loop in _LOOPS.items():

                async def once(url: str = url) -> tuple[float, float]:
                    return await measure(url, rounds=options.rounds)

                lone, many = anyio.run(once, **loop)
                print(f"{name:10}{fsync:14}{lone:15.1f}{many:18,.0f}")


if __name__ == "__main__":
    main()
