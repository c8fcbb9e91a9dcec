"""Runs that go on in a new journal, in Valkey. The decision is the function library's; here are the calls."""

from __future__ import annotations

from collections.abc import Sequence

from pyrula.contracts.store import Claim, Continuation, TailChunk
from pyrula.workflows.stores.valkey import replies
from pyrula.workflows.stores.valkey.server import Server

__all__ = ["ContinuingCalls"]


class ContinuingCalls:
    """The part of the Valkey store that begins new journals; see `pyrula.contracts.store.Continues`."""

    _server: Server

    async def _append(
        self,
        mode: bytes,
        claim: Claim,
        seq: int,
        entries: Sequence[bytes],
        consumed: Sequence[bytes],
        more: tuple[str | int | bytes, ...],
    ) -> bytes:
        raise NotImplementedError

    async def continue_as_new(
        self,
        claim: Claim,
        seq: int,
        entries: Sequence[bytes],
        continuation: Continuation,
        *,
        consumed: Sequence[bytes] = (),
    ) -> None:
        """Append, keep the journal, and queue the run with a new one."""
        more = (continuation.input, continuation.about)
        await self._append(b"continue", claim, seq, entries, consumed, more)

    async def read_link(self, workflow: str, run_id: str, link: int, *, after: int = 0, limit: int = 1000) -> TailChunk:
        """Entries of an earlier journal."""
        await self._server.check([workflow])
        key = self._server.keys.prefix(workflow, run_id) + f"old:{link}:{run_id}".encode()
        return replies.stream_entries(await self._server.command("XRANGE", key, f"({after}-0", "+", "COUNT", limit))
