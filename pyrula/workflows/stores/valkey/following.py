"""Following what happens in a Valkey store: bells for workers, the end of a run, a growing journal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from pyrula.contracts.store import Bell, BellKind, Listener, TailChunk
from pyrula.workflows.stores.valkey import replies
from pyrula.workflows.stores.valkey.pubsub import RESUBSCRIBED
from pyrula.workflows.stores.valkey.pubsub import Listener as Channel
from pyrula.workflows.stores.valkey.server import Server
from pyrula.workflows.stores.valkey.shards import DueTimes, HotShards

__all__ = ["bells", "tail", "wait_end"]

_BLOCK_MS: Final = 2000
# Nothing marks the end of an output, so its readers look more often whether the run has ended.
_OUTPUT_BLOCK_MS: Final = 250
_CHUNK: Final = 500


class _Bells:
    """A worker's listener: turns messages into bells and tells the store's own bookkeeping."""

    def __init__(
        self,
        channel: Channel,
        shards: Mapping[bytes, tuple[str, int]],
        hot: dict[str, HotShards],
        due: dict[str, DueTimes],
    ) -> None:
        self._channel = channel
        self._shards = shards
        self._hot = hot
        self._due = due

    async def next(self) -> Bell:
        message = await self._channel.next()
        if message is RESUBSCRIBED or message is None:
            for due in self._due.values():
                due.forget()
            return Bell(BellKind.LOOK)
        channel, payload = message
        workflow, shard = self._shards[channel]
        bell = replies.bell(workflow, shard, payload)
        if bell.kind == BellKind.QUEUED:
            self._hot[workflow].add(shard)
        elif bell.kind == BellKind.TIMER:
            self._due[workflow].nearer(shard, bell.due)
        return bell


@asynccontextmanager
async def bells(
    server: Server, workflows: Sequence[str], hot: dict[str, HotShards], due: dict[str, DueTimes]
) -> AsyncIterator[Listener]:
    """Listen to all shards of these workflows."""
    shards = {
        server.keys.bell(prefix): (workflow, n)
        for workflow in workflows
        for n, prefix in enumerate(server.keys.shards(workflow))
    }
    async with (await server.subscriptions()).listen(list(shards)) as channel:
        for name in workflows:
            due[name].forget()
            due[name].listeners += 1
        try:
            yield _Bells(channel, shards, hot, due)
        finally:
            for name in workflows:
                due[name].listeners -= 1


class _End:
    """Waits for one run's end."""

    def __init__(self, channel: Channel, workflow: str, shard: int, run_id: str) -> None:
        self._channel = channel
        self._run = (workflow, shard, run_id)

    async def next(self) -> Bell:
        message = await self._channel.next()
        if message is RESUBSCRIBED or message is None:
            return Bell(BellKind.LOOK)
        workflow, shard, run_id = self._run
        seq, _, entry = message[1].partition(b" ")
        return Bell(BellKind.ENDED, workflow, shard, run_id, seq=int(seq), entry=entry)


@asynccontextmanager
async def wait_end(server: Server, channel: bytes, workflow: str, shard: int, run_id: str) -> AsyncIterator[Listener]:
    """Listen for the end of one run."""
    async with (await server.subscriptions()).listen([channel]) as heard:
        yield _End(heard, workflow, shard, run_id)


@asynccontextmanager
async def tail(server: Server, key: bytes, after: int, *, output: bool) -> AsyncIterator[AsyncIterator[TailChunk]]:
    """Follow one stream with blocking reads, on a connection of its own."""
    block = _OUTPUT_BLOCK_MS if output else _BLOCK_MS
    wire = await server.private_wire(command_timeout=_BLOCK_MS / 1000 + 10)

    async def chunks() -> AsyncIterator[TailChunk]:
        last = after
        while True:
            reply = await wire.call("XREAD", "BLOCK", block, "COUNT", _CHUNK, "STREAMS", key, f"{last}-0")
            if not reply:
                yield ()
                continue
            _, entries = next(iter(reply.items())) if isinstance(reply, dict) else reply[0]
            chunk = replies.stream_entries(entries)
            last = chunk[-1][0]
            yield chunk

    stream = chunks()
    try:
        yield stream
    finally:
        await stream.aclose()  # type: ignore[attr-defined]  # an async generator
        await wire.aclose()
