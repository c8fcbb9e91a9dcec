"""How many commands each function of the library runs inside the server, by the server's own statistics.

A whole run of 100 one-event steps (submit, claim, 100 appends, finish) writes 103 events and may take
2.5 commands for each; every function is shown by itself, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.function_calls import Call, Server, append, claim, fcall, finish, submit

__all__ = ["LIMIT", "STEPS", "functions", "whole_run"]

LIMIT: Final = 2.5
"""Inner commands for each event of a whole run, at most."""

STEPS: Final = 100
_OUTER: Final = {"cmdstat_fcall", "cmdstat_fcall_ro", "cmdstat_info", "cmdstat_config|resetstat"}
_FAR: Final = 2 * 10**15


def _inner(server: Server, calls: Sequence[Call]) -> dict[str, int]:
    """What ran inside of some calls: command and count."""
    server.client.config_resetstat()
    server.pipe.run(calls)
    stats: Mapping[str, Mapping[str, int]] = server.client.info("commandstats")
    return {name.removeprefix("cmdstat_"): s["calls"] for name, s in stats.items() if name not in _OUTER}


def whole_run(server: Server) -> dict[str, int]:
    """The inner commands of one run of `STEPS` steps, from its submission to its end."""
    prefix = server.shard()
    steps = [append(prefix, "r1", 2 + n) for n in range(STEPS)]
    return _inner(server, [submit(prefix, "r1"), claim(prefix), *steps, finish(prefix, "r1", 2 + STEPS)])


def _held(prefix: str) -> list[Call]:
    return [submit(prefix, "r1"), claim(prefix)]


def _append(prefix: str, mode: str, *more: str | int, entries: int = 1, consumed: int = 0) -> Call:
    written = ['[1,"signal.awaited",1764556800000000,1,"",{}]'] * entries
    read = ["m"] * consumed
    return fcall("append", prefix, mode, "r1", (1 << 28) + 2, "", entries, *written, consumed, *read, *more)


def _cases(p: str) -> dict[str, tuple[list[Call], Call]]:
    """For each row of the table: what comes before, and the call itself."""
    deliver = fcall("deliver", p, "r1", "m1", "signal:go", 0, "m")
    wait = _append(p, "park", "waiting", "signal:go", "", 0)
    sleep = _append(p, "park", "sleeping", "", 1, 0)
    two = [submit(p, "r0", "a"), submit(p, "r1", "b"), submit(p, "r2", "a")]
    return {
        "submit, first of its tenant": ([], submit(p, "r1")),
        "submit, tenant has others": ([submit(p, "r0")], submit(p, "r1")),
        "submit, delayed": ([], fcall("submit", p, "r1", "", 0, "", _FAR, "{}", "d", "{}", "{}")),
        "submit, repeated": ([submit(p, "r1")], submit(p, "r1")),
        "claim, nothing queued": ([], claim(p)),
        "claim, the only run": ([submit(p, "r1")], claim(p)),
        "claim, the only run, limit 16": ([submit(p, "r1")], claim(p, 16)),
        "claim, one of several": ([submit(p, f"r{n}") for n in range(3)], claim(p)),
        "claim, one of two tenants'": (two, claim(p)),
        "claim, 16 runs of one tenant": ([submit(p, f"r{n}") for n in range(17)], claim(p, 16)),
        "claim, 16 runs of 4 tenants": ([submit(p, f"r{n}", f"t{n % 4}") for n in range(20)], claim(p, 16)),
        "claim, a later one": ([*_held(p), _append(p, "requeue", 0, entries=0)], claim(p)),
        "append, one event": (_held(p), _append(p, "append")),
        "append, five events": (_held(p), _append(p, "append", entries=5)),
        "append, one event, one message": ([*_held(p), deliver], _append(p, "append", consumed=1)),
        "append, repeated": ([*_held(p), _append(p, "append")], _append(p, "append")),
        "append, refused": ([submit(p, "r1")], _append(p, "append")),
        "park, waiting": (_held(p), wait),
        "park, sleeping": (_held(p), sleep),
        "finish": (_held(p), finish(p, "r1", 2)),
        "requeue": (_held(p), _append(p, "requeue", 0, entries=0)),
        "deliver, held": (_held(p), deliver),
        "deliver, waking": ([*_held(p), wait], deliver),
        "wake, nothing due": ([], fcall("wake", p, 100)),
        "wake, one run": ([*_held(p), sleep], fcall("wake", p, 100)),
        "heartbeat, one run": (_held(p), fcall("heartbeat", p, 30_000, "r1", 1, "")),
        "sweep, nothing to do": ([], fcall("sweep", p, 100, 3, 1000)),
        "terminate, held": (_held(p), fcall("terminate", p, "r1", "{}", 1000)),
        "load": (_held(p), fcall("load", p, "r1", 1)),
    }


def functions(server: Server) -> dict[str, dict[str, int]]:
    """The inner commands of each kind of call, each on a shard of its own."""
    found: dict[str, dict[str, int]] = {}
    for name in _cases(""):
        before, call = _cases(server.shard())[name]
        server.pipe.run(before)
        found[name] = _inner(server, [call])
    return found


def main() -> None:
    """Print both tables; exit with 1 when the whole run takes too many."""
    with Server() as server:
        print(f"{'call':34}{'inner':>6}  which")
        for name, inner in functions(server).items():
            print(f"{name:34}{sum(inner.values()):>6}  {_which(inner)}")
        inner = whole_run(server)
    events = STEPS + 3
    ratio = sum(inner.values()) / events
    print(f"\nA run of {STEPS} steps, {events} events: {sum(inner.values())} inner commands")
    print(f"{_which(inner)}\n{ratio:.2f} an event, at most {LIMIT}: {'met' if ratio <= LIMIT else 'MISSED'}")
    raise SystemExit(ratio > LIMIT)


def _which(inner: Mapping[str, int]) -> str:
    return ", ".join(name if n == 1 else f"{name} x {n}" for name, n in sorted(inner.items()))


if __name__ == "__main__":
    main()
