"""What operators do to runs besides ending them: the part of a client that holds runs back and copies them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import orjson

from pyrula.actors.tracing import acting
from pyrula.contracts.errors import ConfigurationError, InvalidInput, WrongRunState
from pyrula.contracts.events import TERMINAL_TYPES, Entry, EventType, entry, parse
from pyrula.contracts.ids import check_id, digest, new_id
from pyrula.contracts.mail import MailKind, pack
from pyrula.contracts.runs import Run
from pyrula.contracts.store import Delivery, Interventions, Message, NewRun, RunRecord, Store
from pyrula.contracts.values import encode
from pyrula.workflows.records import run_of
from pyrula.workflows.registry import registry
from pyrula.workflows.submission import found

__all__ = ["InterventionClient"]

_LEFT_OUT = TERMINAL_TYPES | {EventType.RUN_CANCEL_REQUESTED, EventType.RUN_PAUSED, EventType.RUN_CONTINUED}


class InterventionClient:
    """The part of a `WorkflowClient` that holds runs back and copies them."""

    store: Store
    _limit: int

    async def pause(self, name: str, run_id: str, reason: str | None = None) -> Run:
        """Hold a run back until `unpause`: at once, or at its next call when a worker has it.

        Calls that are under way end and are recorded. Signals, times and children that end meanwhile are kept. A
        cancel request goes through. Raises `RunNotFound`, or `WrongRunState` when it has ended.
        """
        return await self._held_back(name, run_id, MailKind.PAUSE, reason)

    async def unpause(self, name: str, run_id: str) -> Run:
        """Let a paused run go on. Raises as `pause` does; a run that is not paused is left alone."""
        return await self._held_back(name, run_id, MailKind.UNPAUSE, None)

    async def _held_back(self, name: str, run_id: str, kind: str, reason: str | None) -> Run:
        store = self._interventions()
        found(name, run_id)
        message_id = new_id()
        message = Message(message_id, "", pack(kind, message_id, "", reason, limit=self._limit))
        with acting(kind, name, run_id):
            act = store.pause if kind == MailKind.PAUSE else store.unpause
            delivery: Delivery = await act(name, run_id, message)
        if not delivery.accepted:
            raise WrongRunState(name, run_id, delivery.status, f"there is nothing left to {kind}")
        return run_of(await self.store.load(name, run_id))

    async def fork(
        self,
        name: str,
        run_id: str,
        at: int | None = None,
        input: Mapping[str, Any] | None = None,
        *,
        new_run_id: str | None = None,
        signals: Sequence[tuple[str, Any]] = (),
        children: Literal["new", "relink"] = "new",
    ) -> Run:
        """Start another run with this run's journal up to event number `at` (all of it, for None).

        The new run goes on from there, beside the old one, which is left alone. Events that only concern how the
        old one ended are left out.

        input: another input for the new run. new_run_id: its id; a repeat with the same starts nothing.
        signals: (name, payload) pairs that lie in its inbox when it begins.
        children: what becomes of child runs that were open at that event: `new` starts others, `relink` waits for
            the same ones.

        Raises `RunNotFound`, and `InvalidInput` for an event that the journal does not have.
        """
        store = self._interventions()
        found(name, run_id)
        if children not in ("new", "relink"):
            raise InvalidInput(f"children={children!r}: new or relink", "children")
        source = await self.store.load(name, run_id)
        kept = await self._prefix(source, at)
        if children == "new":
            kept = _without_open_children(kept)
        first = kept[0].data["input"]
        if input is not None:
            known = registry.get(name)
            first = orjson.loads(encode(dict(input), path="input", limit=self._limit, canonical=True))
            if known is not None:
                known.spec.check(input, limit=self._limit)
        raw_input = encode(first, path="input", canonical=True)
        kept[0] = Entry(1, kept[0].type, kept[0].at, 0, "", {"input": first})
        headers = orjson.loads(source.headers)
        headers.pop("parent", None)
        headers["forked_from"] = {"run_id": run_id, "at": kept[-1].seq}
        new = NewRun(
            workflow=name,
            run_id=new_id() if new_run_id is None else check_id(new_run_id, "new_run_id"),
            input=raw_input,
            input_digest=digest(raw_input),
            owner=source.owner,
            priority=source.priority,
            attributes=source.attributes,
            headers=orjson.dumps(headers),
        )
        entries = [entry(each.type, each.at, each.attempt, each.key, each.data) for each in kept]
        with acting("fork", name, run_id):
            await store.fork(new, entries, claims=max(each.attempt for each in kept))
        for number, (signal, payload) in enumerate(signals):
            message_id = f"fork:{number}"
            raw = pack(MailKind.SIGNAL, message_id, check_id(signal, "signal"), payload, limit=self._limit)
            await self.store.deliver(name, new.run_id, Message(message_id, f"signal:{signal}", raw))
        return run_of(await self.store.load(name, new.run_id))

    async def _prefix(self, source: RunRecord, at: int | None) -> list[Entry]:
        if not source.seq:
            raise InvalidInput(f"run {source.run_id!r} has no journal yet; submit another one instead", "at")
        last = source.seq if at is None else at
        if isinstance(last, bool) or not isinstance(last, int) or not 1 <= last <= source.seq:
            raise InvalidInput(f"at={at!r}: the journal of run {source.run_id!r} has events 1 to {source.seq}", "at")
        kept: list[Entry] = []
        after = 0
        while after < last:
            chunk = await self.store.read_journal(source.workflow, source.run_id, after=after)
            kept += [parse(seq, raw) for seq, raw in chunk if seq <= last]
            after = chunk[-1][0]
        return [each for each in kept if each.type not in _LEFT_OUT]

    def _interventions(self) -> Interventions:
        if not isinstance(self.store, Interventions):
            raise ConfigurationError(f"{type(self.store).__name__} cannot hold runs back or copy them")
        return self.store


def _without_open_children(kept: list[Entry]) -> list[Entry]:
    ended = {each.key for each in kept if each.type in (EventType.CHILD_COMPLETED, EventType.CHILD_FAILED)}
    return [
        each
        for each in kept
        if not (each.type in (EventType.CHILD_STARTED, EventType.CHILD_TIMED_OUT) and each.key not in ended)
    ]
