"""Open children of runs in Valkey. The decisions are in the function library; here are the calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyrula.contracts.children import Child
from pyrula.contracts.errors import ClaimLost
from pyrula.contracts.store import Claim
from pyrula.workflows.stores.valkey.server import Server

__all__ = ["FamilyCalls"]

_LIMIT: Final = 100


class FamilyCalls:
    """The part of the Valkey store that knows children; see `pyrula.contracts.children.Parents`."""

    _server: Server

    async def adopt(self, claim: Claim, child: Child) -> None:
        """Note a child of a claimed run."""
        await self._family("adopt", claim, child.run_id, child.packed())

    async def collected(self, claim: Claim, child_id: str) -> None:
        """The child of a claimed run is not open any more."""
        await self._family("collected", claim, child_id)

    async def _family(self, name: str, claim: Claim, *args: str | bytes) -> None:
        prefix = self._server.keys.prefix(claim.workflow, claim.run_id)
        answer = await self._server.function(name, prefix, claim.run_id, claim.epoch, claim.token, *args)
        if answer == b"LOST":
            raise ClaimLost(f"run {claim.run_id!r} is no longer held under epoch {claim.epoch}")

    async def terminated_parents(self, workflow: str, *, older_than_ms: int) -> list[tuple[str, Sequence[Child]]]:
        """Terminated runs whose children are to be closed."""
        shards = self._server.keys.shards(workflow)
        found = await self._server.existing([p + b"closing" for p in shards])
        calls = [("closing", shards[n], older_than_ms, _LIMIT) for n in found]
        answers = await self._server.functions(calls) if calls else []
        return [
            (run_id.decode(), [Child.unpacked(raw) for raw in children])
            for runs in answers
            for run_id, children in runs
        ]

    async def closed(self, workflow: str, run_id: str) -> None:
        """The children of a terminated run have been closed for good."""
        await self._server.function("closed", self._server.keys.prefix(workflow, run_id), run_id)

    async def open_children(self, workflow: str, run_id: str) -> Sequence[Child]:
        """The open children of a run."""
        found = await self._server.function("kids", self._server.keys.prefix(workflow, run_id), run_id)
        return [Child.unpacked(raw) for raw in found]
