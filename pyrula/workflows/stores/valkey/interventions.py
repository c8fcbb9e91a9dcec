"""What operators do to runs in Valkey besides ending them. The decisions are in the function library."""

from __future__ import annotations

from collections.abc import Sequence

from pyrula.contracts.errors import RunNotFound
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Delivery, Message, NewRun, Submitted
from pyrula.workflows.stores.valkey.server import Server

__all__ = ["InterventionCalls"]


class InterventionCalls:
    """The part of the Valkey store that holds runs back and copies them; see `pyrula.contracts.store.Interventions`."""

    _server: Server

    async def pause(self, workflow: str, run_id: str, message: Message) -> Delivery:
        """Hold a run back until it is unpaused."""
        return await self._held_back("pause", workflow, run_id, message)

    async def unpause(self, workflow: str, run_id: str, message: Message) -> Delivery:
        """Let a run go on."""
        return await self._held_back("unpause", workflow, run_id, message)

    async def _held_back(self, name: str, workflow: str, run_id: str, message: Message) -> Delivery:
        await self._server.check([workflow])
        prefix = self._server.keys.prefix(workflow, run_id)
        answer, status = await self._server.function(name, prefix, run_id, message.message_id, message.raw)
        if answer == b"NONE":
            raise RunNotFound(workflow, run_id)
        return Delivery(answer != b"ENDED", RunStatus(status.decode()))

    async def fork(self, new: NewRun, entries: Sequence[bytes], *, claims: int) -> Submitted:
        """Queue a run that begins with this journal."""
        await self._server.register(new.workflow)
        created, status, digest, at = await self._server.function(
            "fork",
            self._server.keys.prefix(new.workflow, new.run_id),
            new.run_id,
            new.owner,
            new.priority,
            new.attributes,
            new.headers,
            new.input_digest,
            claims,
            len(entries),
            *entries,
        )
        return Submitted(new.run_id, created == 1, RunStatus(status.decode()), digest.decode(), int(at))
