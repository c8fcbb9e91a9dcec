"""The faults of the soak: what can happen to workers, to their server and to the lines between them.

Each is one coroutine that does its harm and takes it back. None of them looks at what comes of it.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import anyio
import anyio.to_thread
from valkey.exceptions import ValkeyError

from tests.integration.fault_bench import Bench
from tests.integration.fault_power import Mark, cut_power, mark
from tests.integration.fault_proxy import Proxy
from tests.integration.fault_worker import Trap, WorkerProcess

__all__ = ["Faults"]

_PLACES: Final = (
    *("claim.after", "append.before", "append.after", "park.before", "park.after", "finish.before", "finish.after"),
    *("step.inside", "step.done", "body.between"),
)
_CALLS: Final = ("append", "claim", "submit", "deliver", "wake", "sweep", "heartbeat", "load")


class Faults:
    """Three workers, a server and a proxy, and all that can happen to them. `lost` are the spans (ns) a cut took."""

    def __init__(self, bench: Bench, proxy: Proxy, chance: random.Random, *, cuts: bool) -> None:
        self.bench = bench
        self.proxy = proxy
        self.chance = chance
        self.done: Counter[str] = Counter()
        self.lost: list[tuple[int, int]] = []
        self.workers: list[WorkerProcess] = []
        self._slots: list[anyio.Lock] = []
        self._server = anyio.Lock()
        self._started = 0
        self._kinds: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (6, self.worker_killed),
            (4, self.worker_stopped),
            (2, self.worker_told_to_stop),
            (2, self.server_frozen),
            (2, self.server_full),
            (1, self.server_read_only),
            (1, self.functions_flushed),
            (2, self.connections_killed),
            (4, self.connections_cut),
            (2, self.line_frozen),
            (2, self.line_slow),
            (6, self.reply_lost),
            (14, self.power_cut) if cuts else (3, self.server_killed),
        ]

    async def one(self) -> None:
        """Some fault."""
        (_, fault), *_ = self.chance.choices(self._kinds, [weight for weight, _ in self._kinds])
        await fault()
        self.done[fault.__name__.replace("_", " ")] += 1

    # --- workers ------------------------------------------------------------------------

    async def begin(self, workers: int) -> None:
        """Start the workers."""
        for _ in range(workers):
            self.workers.append(self._start())
            self._slots.append(anyio.Lock())

    def _start(self) -> WorkerProcess:
        """A worker of either loop; half of them carry a trap."""
        traps = []
        if self.chance.random() < 0.5:
            how = self.chance.choice(("kill", "kill", "stop", "jump"))
            place = self.chance.choice(_PLACES)
            traps.append(Trap(place, self.chance.randint(1, 12), how, self.chance.choice((-9000.0, 9000.0))))
        self._started += 1
        return self.bench.start(
            *traps,
            url=self.proxy.url,
            backend=self.chance.choice(("asyncio", "trio")),
            name=f"worker{self._started}",
            options={"requeue_budget": 1000, "shutdown_grace": 1.0, "cancel_timeout": 1.0, "loop_stall_warning": 0.2},
        )

    async def keep(self) -> None:
        """Replace workers that a trap has killed, and continue those that one has stopped."""
        while True:
            await anyio.sleep(0.05)
            for n, worker in enumerate(self.workers):
                if self._slots[n].locked():
                    continue
                if not worker.running:
                    self.done["trap: killed"] += 1
                    self._replace(n)
                elif worker.stopped:
                    async with self._slots[n]:
                        self.done["trap: stopped"] += 1
                        await anyio.sleep(self.chance.random() * 2.5)
                        worker.send(signal.SIGCONT)

    def _replace(self, n: int) -> None:
        self.bench.workers.remove(self.workers[n])
        self.workers[n].close()
        self.workers[n] = self._start()

    async def worker_killed(self) -> None:
        n = self.chance.randrange(len(self.workers))
        async with self._slots[n]:
            self._replace(n)

    async def worker_stopped(self) -> None:
        """For less or for more than its lease."""
        n = self.chance.randrange(len(self.workers))
        async with self._slots[n]:
            worker = self.workers[n]
            if worker.running:
                worker.send(signal.SIGSTOP)
                await anyio.sleep(self.chance.random() * 2.5)
                worker.send(signal.SIGCONT)

    async def worker_told_to_stop(self) -> None:
        """In order; it gives its runs back."""
        n = self.chance.randrange(len(self.workers))
        async with self._slots[n]:
            worker = self.workers[n]
            if worker.running and not worker.stopped:
                worker.send(signal.SIGTERM)
                with suppress(RuntimeError):  # a trap may stop it on its way
                    await worker.ended(within=8.0)
            self._replace(n)

    # --- the server ---------------------------------------------------------------------

    async def _in_thread(self, call: Callable[[], object]) -> None:
        await anyio.to_thread.run_sync(call)

    async def server_killed(self) -> None:
        async with self._server:
            await self._in_thread(self.bench.server.kill)
            await anyio.sleep(self.chance.random() * 0.5)
            await self._in_thread(self.bench.server.start)

    async def power_cut(self) -> None:
        """It loses up to a second of what it has acknowledged."""
        async with self._server:
            since = time.monotonic_ns()
            before: Mark = mark(self.bench.server)
            await anyio.sleep(self.chance.random())
            await self._in_thread(lambda: cut_power(self.bench.server, before))
            await self._in_thread(self.bench.server.start)
            self.lost.append((since, time.monotonic_ns()))

    async def server_frozen(self) -> None:
        async with self._server:
            self.bench.server.pause()
            await anyio.sleep(self.chance.random() * 1.5)
            self.bench.server.resume()

    async def _for_a_while(self, do: tuple[Any, ...], undo: tuple[Any, ...], seconds: float) -> None:
        async with self._server:
            client: Any = self.bench.server.client()
            try:
                await self._in_thread(lambda: client.execute_command(*do))
                await anyio.sleep(self.chance.random() * seconds)
                await self._in_thread(lambda: client.execute_command(*undo))
            finally:
                client.close()

    async def server_full(self) -> None:
        await self._for_a_while(("CONFIG", "SET", "maxmemory", 1), ("CONFIG", "SET", "maxmemory", 0), 1.5)

    async def server_read_only(self) -> None:
        await self._for_a_while(("REPLICAOF", "127.0.0.1", 1), ("REPLICAOF", "NO", "ONE"), 0.8)

    async def functions_flushed(self) -> None:
        await self._for_a_while(("FUNCTION", "FLUSH", "SYNC"), ("PING",), 0.0)

    async def connections_killed(self) -> None:
        kind = self.chance.choice(("normal", "pubsub"))
        with suppress(ValkeyError):  # its own may be among them
            await self._for_a_while(("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"), ("PING",), 0.0)

    # --- the lines ----------------------------------------------------------------------

    async def connections_cut(self) -> None:
        self.proxy.cut()

    async def line_frozen(self) -> None:
        self.proxy.freeze()
        await anyio.sleep(self.chance.random() * 1.5)
        self.proxy.thaw()

    async def line_slow(self) -> None:
        self.proxy.delay = self.chance.random() * 0.1
        await anyio.sleep(self.chance.random())
        self.proxy.delay = 0.0

    async def reply_lost(self) -> None:
        """The reply to the next call of some function; it is waited for a little."""
        call = self.chance.choice(_CALLS)
        loss = self.proxy.lose(rb"_%b\r\n" % call.encode(), kept=self.chance.choice((0, 0, 1, 5)))
        with anyio.move_on_after(2.0):
            await loss.done.wait()
        if loss in self.proxy.losses:
            self.proxy.losses.remove(loss)
