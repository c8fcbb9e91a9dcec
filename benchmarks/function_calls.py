"""What a call of the function library costs the server: microseconds, many calls in one pipeline.

Calls are packed beforehand and sent in blocks over one plain socket, so that the client's part is
small. The processor time of the server stands beside the clock's, which other work on the machine
lengthens, and the bare fenced append beside all. The second table shows a claim at several depths of
one shard's queue, the depths taken in turns. Also the calls by name, for the other benchmarks of the
library.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
import uuid
from collections.abc import Sequence
from typing import Any, Self

import libvalkey

from benchmarks import bare_append
from pyrula.lua import library
from pyrula.testing.servers import PrivateServer

__all__ = [
    "HEADERS",
    "INPUT",
    "RESULT_ENTRY",
    "SPAN",
    "Call",
    "Pipe",
    "Server",
    "append",
    "claim",
    "fcall",
    "finish",
    "submit",
]

SPAN = 1 << 28
INPUT = json.dumps({"account": "a-123456", "note": "x" * 68}, separators=(",", ":"))
"""An input of 100 bytes."""

HEADERS = '{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}'

RESULT_ENTRY = '[1,"step.completed",%d,1,"work#%d",{"result":"' + "x" * 60 + '"}]'
"""A journal entry with a result of 60 bytes; takes its time and its number."""

_AT = 1764556800000000
_BLOCK = 500

Call = tuple[str | int | bytes, ...]


def fcall(name: str, prefix: str, *args: str | int) -> Call:
    """A call of any function of the library on a shard."""
    return ("FCALL", library().function(name), 1, prefix, *args)


def submit(prefix: str, run_id: str, owner: str = "tenant-42") -> Call:
    """One submission with 100 bytes of input, an owner and a trace context."""
    return fcall("submit", prefix, run_id, owner, 0, "", "", INPUT, "0123456789abcdef", "{}", HEADERS)


def claim(prefix: str, limit: int = 1) -> Call:
    """A claim of up to `limit` runs."""
    return fcall("claim", prefix, "worker-1", '"worker-1"', 30_000, limit)


def append(prefix: str, run_id: str, seq: int, *, epoch: int = 1) -> Call:
    """One result of 60 bytes after `seq`."""
    entry = RESULT_ENTRY % (_AT + seq, seq)
    return fcall("append", prefix, "append", run_id, epoch * SPAN + seq, "", 1, entry, 0)


def finish(prefix: str, run_id: str, seq: int, *, epoch: int = 1) -> Call:
    """The terminal event after `seq`."""
    entry = f'[1,"run.completed",{_AT},1,"",{{"result":"{"x" * 60}"}}]'
    cursor = epoch * SPAN + seq
    return fcall("append", prefix, "finish", run_id, cursor, "", 1, entry, 0, "completed", 86_400_000, 1, "")


class Pipe:
    """A plain socket that sends packed commands in blocks and counts their replies."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._reader = libvalkey.Reader()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Send calls and give their replies. Raises the first error among them."""
        return self._exchange([self._pack(calls[i : i + _BLOCK]) for i in range(0, len(calls), _BLOCK)], len(calls))

    def timed(self, calls: Sequence[Call]) -> float:
        """Microseconds of a call, on average; packing is not counted."""
        blocks = [self._pack(calls[i : i + _BLOCK]) for i in range(0, len(calls), _BLOCK)]
        start = time.perf_counter()
        self._exchange(blocks, len(calls))
        return (time.perf_counter() - start) * 1e6 / len(calls)

    @staticmethod
    def _pack(calls: Sequence[Call]) -> tuple[bytes, int]:
        return b"".join(libvalkey.pack_command(call) for call in calls), len(calls)

    def _exchange(self, blocks: Sequence[tuple[bytes, int]], total: int) -> list[Any]:
        replies: list[Any] = []
        asked = 0
        for packed, count in blocks:
            self._socket.sendall(packed)
            asked += count
            while len(replies) < asked:
                reply = self._reader.gets()
                if reply is False:
                    self._reader.feed(self._socket.recv(1 << 18))
                elif isinstance(reply, Exception):
                    raise reply
                else:
                    replies.append(reply)
        if len(replies) != total:
            raise RuntimeError(f"{total} calls got {len(replies)} replies")
        return replies


class Server:
    """A private server without persistence, the library loaded, and a pipe to it."""

    def __enter__(self) -> Self:
        self.server = PrivateServer({"appendonly": "no"}).start()
        self.client: Any = self.server.client()
        self.client.function_load(library().source)
        self.client.function_load(bare_append.LIBRARY.decode())
        self.pipe = Pipe(str(self.server.socket_path))
        return self

    def __exit__(self, *exc: object) -> None:
        self.pipe.close()
        self.client.close()
        self.server.close()

    def measured(self, calls: Sequence[Call]) -> tuple[float, float]:
        """Microseconds of a call: by the clock, and of the server's processor time."""
        before = self._processor()
        clock = self.pipe.timed(calls)
        return clock, (self._processor() - before) * 1e6 / len(calls)

    def _processor(self) -> float:
        """Seconds of processor time that the server's main thread has used."""
        used = self.client.info("cpu")
        return float(used["used_cpu_user_main_thread"]) + float(used["used_cpu_sys_main_thread"])

    def shard(self) -> str:
        """The prefix of a new shard."""
        return f"bench:{{work:{uuid.uuid4().hex[:8]}}}:"


def _bare(server: Server, n: int) -> tuple[float, float]:
    """The yardstick, `n` times: ten appends to each run, as the library's own below."""
    shard = server.shard()
    keys = [(f"{shard}run:{i}", f"{shard}log:{i}") for i in range(n // 10)]
    return server.measured(
        [
            ("FCALL", "bare_append", 2, run, log, cursor, f"{cursor}-0", bare_append.PAYLOAD)
            for cursor in range(1, 11)
            for run, log in keys
        ]
    )


def _round(server: Server, n: int) -> dict[str, tuple[float, float]]:
    """Each call `n` times."""
    one, many = server.shard(), server.shard()
    ids = [f"{i:026}" for i in range(n)]
    wide = [f"{i:026}" for i in range(16 * (n // 16))]
    figures = {"bare append": _bare(server, n), "submit": server.measured([submit(one, i) for i in ids])}
    server.pipe.run([submit(many, i) for i in wide])
    figures["claim, limit 1"] = server.measured([claim(one) for _ in ids])
    figures["claim, limit 16"] = server.measured([claim(many, 16) for _ in range(len(wide) // 16)])
    figures["append, 1 event"] = server.measured([append(one, i, seq) for seq in range(2, 12) for i in ids[: n // 10]])
    figures["finish"] = server.measured([finish(many, i, 2) for i in wide])
    return figures


def _better(one: tuple[float, float], other: tuple[float, float] | None) -> tuple[float, float]:
    return one if other is None else (min(one[0], other[0]), min(one[1], other[1]))


def calls(rounds: int, n: int) -> dict[str, tuple[float, float]]:
    """The best of some rounds for each call: microseconds by the clock and of the processor."""
    best: dict[str, tuple[float, float]] = {}
    with Server() as server:
        for _ in range(rounds):
            for name, pair in _round(server, n).items():
                best[name] = _better(pair, best.get(name))
            server.client.flushall()
    return best


def claim_by_depth(depths: Sequence[int], rounds: int, n: int) -> dict[int, tuple[float, float]]:
    """Microseconds of a claim of one run, at so many queued runs in the shard; at 0 there is nothing to claim."""
    best: dict[int, tuple[float, float]] = {}
    with Server() as server:
        shards = {depth: server.shard() for depth in depths}
        for turn in range(rounds):
            for depth, prefix in shards.items():
                count = (depth + n if turn == 0 else n) if depth else 0
                server.pipe.run([submit(prefix, f"{turn:02}{i:024}") for i in range(count)])
                pair = server.measured([claim(prefix) for _ in range(n)])
                best[depth] = _better(pair, best.get(depth))
    return best


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--calls", type=int, default=1000)
    options = parser.parse_args()
    print(f"{'call':20}{'us, clock':>12}{'us, processor':>15}{'to bare append':>16}")
    figures = calls(options.rounds, options.calls)
    for name, (clock, own) in figures.items():
        print(f"{name:20}{clock:12.1f}{own:15.1f}{own / figures['bare append'][1]:15.1f}x", flush=True)
    print(f"\n{'queued in shard':20}{'us, clock':>12}{'us, processor':>15}{'to the least':>16}")
    depths = claim_by_depth([0, 100, 1_000, 20_000, 200_000], 3 * options.rounds, 200)
    for depth, (clock, own) in depths.items():
        ratio = f"{own / depths[100][1]:15.2f}x" if depth else f"{'(none to claim)':>16}"
        print(f"{depth:<20,}{clock:12.1f}{own:15.1f}{ratio}")


if __name__ == "__main__":
    main()
