"""The client: submitting runs, following them, and what is done to them from outside."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from typing import Any

import anyio
import orjson
from anyio.lowlevel import checkpoint

from pyrula.actors.children import close_children, tell_parent
from pyrula.actors.tracing import acting, submitted
from pyrula.contracts.children import Parents
from pyrula.contracts.errors import (
    IdempotencyConflict,
    RunCancelled,
    RunEnded,
    RunFailed,
    RunTerminated,
    RunTimedOut,
    WrongRunState,
)
from pyrula.contracts.events import Event, parse
from pyrula.contracts.ids import check_id, check_workflow_name, new_id
from pyrula.contracts.mail import MailKind, pack
from pyrula.contracts.runs import Page, Run, RunStatus
from pyrula.contracts.store import Message, RunRecord, Store
from pyrula.contracts.values import DEFAULT_LIMIT, InputSpec, decode_json, encode
from pyrula.workflows.interventions import InterventionClient
from pyrula.workflows.journals import JournalReader
from pyrula.workflows.records import TERMINAL_STATUS, run_of
from pyrula.workflows.registry import Workflow, registry
from pyrula.workflows.schedules import ScheduleClient
from pyrula.workflows.submission import checked_key, filters, found, new_run
from pyrula.workflows.triggers import EventClient
from pyrula.workflows.updates import UpdateClient

__all__ = ["WorkflowClient"]

_ENDINGS: dict[RunStatus, type[RunEnded]] = {
    RunStatus.FAILED: RunFailed,
    RunStatus.CANCELLED: RunCancelled,
    RunStatus.TERMINATED: RunTerminated,
}
# A lost notification must not leave a caller waiting: this often the run is looked at anyway.
_LOOK_AGAIN = 5.0
# A run that was submitted here just now has hardly ended before its end is listened for: its
# news gets this long to arrive before the run is looked at. So many submissions count as recent.
_HEAD_START = 0.003
# So many turns of the loop: a bell is heard in the first, rung on in the second, answered with a claim in the third.
_GIVEN_WAY = 3
_FRESH = 1000
_NOT_FRESH = object()


class WorkflowClient(UpdateClient, InterventionClient, ScheduleClient, EventClient):
    """Submits runs to a store and looks after them. Made for one store; has nothing to close.

    `payload_limit`: bytes that an encoded input, payload or answer may have.
    """

    def __init__(self, store: Store, *, payload_limit: int = DEFAULT_LIMIT) -> None:
        self.store = store
        self._limit = payload_limit
        self._fresh: dict[str, object] = {}  # the runs submitted here last, oldest first

    # --- submitting ---------------------------------------------------------------------

    async def submit(
        self,
        workflow: str | Workflow,
        input: Mapping[str, Any] | None = None,
        *,
        owner: str | None = None,
        run_id: str | None = None,
        idempotency_key: str | None = None,
        delay: float | None = None,
        start_at: datetime | None = None,
        priority: int = 0,
        attributes: Mapping[str, Any] | None = None,
    ) -> Run:
        """Queue a run. `input` holds the body's keyword parameters.

        owner: the tenant, for fairness between tenants.
        run_id, idempotency_key: make a repeat harmless; the existing run is returned then.
        delay, start_at: seconds from now, or an aware datetime, before which it does not start.
        priority: a head start of so many minutes in the owner's own queue.
        attributes: search attributes, a JSON object.

        Raises `InvalidInput` when the workflow is known to this process and the input does not
        fit it, `IdempotencyConflict` when a run exists under that id or key with another input.
        """
        submission = {
            "workflow": workflow,
            "input": input,
            "owner": owner,
            "run_id": run_id,
            "idempotency_key": idempotency_key,
            "delay": delay,
            "start_at": start_at,
            "priority": priority,
            "attributes": attributes,
        }
        return (await self.submit_many([submission]))[0]

    async def submit_many(self, submissions: Sequence[Mapping[str, Any]]) -> list[Run]:
        """Queue many runs in one round trip; each submission is a dict of `submit`'s arguments.

        Every submission is checked before the first is sent.
        """
        new = [new_run(self._limit, **submission) for submission in submissions]
        answers = await submitted(self.store, new)
        runs = []
        for run, answer in zip(new, answers, strict=True):
            if answer.created:
                self._remember(run.run_id)
                runs.append(
                    run_of(
                        RunRecord(
                            workflow=run.workflow,
                            run_id=run.run_id,
                            status=RunStatus.QUEUED,
                            owner=run.owner,
                            priority=run.priority,
                            submitted_at=answer.submitted_at,
                            input=run.input,
                            attributes=run.attributes,
                        )
                    )
                )
                continue
            if answer.input_digest != run.input_digest:
                raise IdempotencyConflict(
                    f"run {run.run_id!r} of workflow {run.workflow!r} exists with another input; "
                    "use another run id or idempotency key for this one"
                )
            runs.append(await self.get(run.workflow, run.run_id))
        return runs

    def _remember(self, run_id: str) -> None:
        self._fresh[run_id] = None
        if len(self._fresh) > _FRESH:
            del self._fresh[next(iter(self._fresh))]

    # --- looking ------------------------------------------------------------------------

    async def get(self, name: str, run_id: str) -> Run:
        """One run, with its input, result and error. Raises `RunNotFound`."""
        return run_of(await self.store.load(*found(name, run_id)))

    async def result(self, name: str, run_id: str, timeout: float | None = None) -> Any:
        """Wait for a run's end and give its result, decoded by the workflow's annotation where it is known here.

        Raises `RunFailed`, `RunCancelled` or `RunTerminated`, each with the run's `code` and
        `detail`; `RunTimedOut` when the run did, or when `timeout` seconds have passed.
        """
        found(name, run_id)
        deadline = None if timeout is None else time.monotonic() + timeout
        fresh = self._fresh.pop(run_id, _NOT_FRESH) is None
        if not fresh:
            run = await self.get(name, run_id)
            if run.status.ended:
                return _result_of(run)
        else:
            # A worker of this very loop claims first: what is done here meanwhile costs the run no time.
            for _ in range(_GIVEN_WAY):
                await checkpoint()
        async with self.store.wait_end(name, run_id) as ending:
            while True:
                record = RunRecord(name, run_id, RunStatus.QUEUED)
                pause = _HEAD_START
                if not fresh:
                    record = await self.store.load(name, run_id, ends=False)
                    pause = _LOOK_AGAIN
                    if record.status.ended:
                        run = await self.get(name, run_id)
                        if run.status.ended:  # unless it was retried in between
                            return _result_of(run)
                        continue
                left = pause if deadline is None else min(pause, deadline - time.monotonic())
                if left <= 0:
                    raise RunTimedOut(
                        name, run_id, f"has not ended within {timeout} s; it is {record.status}", "result_timeout"
                    )
                fresh = False
                with anyio.move_on_after(left):
                    bell = await ending.next()
                    if bell.entry:  # the news brings the terminal entry along: no need to ask for it
                        status = TERMINAL_STATUS[parse(bell.seq, bell.entry).type]
                        return _result_of(run_of(replace(record, status=status, last=(bell.seq, bell.entry))))

    async def events(
        self, name: str, run_id: str, follow: bool = False, *, link: int | None = None
    ) -> AsyncGenerator[Event, None]:
        """The run's journal, oldest first; with `follow`, what comes until the run ends, too. Raises `RunNotFound`.

        link: begin with an earlier journal of a run that went on in a new one (they count from 1), and go on to
        the last; by default only the last one there is, and with `follow` those that come after it.
        """
        reader = JournalReader(self.store, *found(name, run_id))
        await reader.open(link)
        async with aclosing(reader.there()) as there:
            async for event in there:
                yield event
        if follow:
            async with aclosing(reader.coming()) as coming:
                async for event in coming:
                    yield event

    async def stream(self, name: str, run_id: str) -> AsyncGenerator[Any, None]:
        """The run's output chunks (`ctx.stream`), from the first one, live until the run ends. Raises `RunNotFound`."""
        await self.store.load(*found(name, run_id), ends=False)
        async with self.store.tail(name, run_id, output=True) as chunks:
            while True:
                ended = (await self.store.load(name, run_id, ends=False)).status.ended
                chunk = await anext(chunks)
                for _, raw in chunk:
                    yield orjson.loads(raw)
                if ended and not chunk:
                    return

    async def list(
        self,
        name: str | None = None,
        *,
        status: str | RunStatus | None = None,
        owner: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        submitted_after: datetime | None = None,
        submitted_before: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """Runs that match, newest first, without their inputs and results."""
        listing = await self.store.listing(
            await self._names(name),
            **filters(status, owner, attributes, submitted_after, submitted_before),
            limit=limit,
            cursor=cursor,
        )
        return Page(tuple(run_of(record) for record in listing.runs), listing.cursor)

    async def count(
        self,
        name: str | None = None,
        *,
        status: str | RunStatus | None = None,
        owner: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        submitted_after: datetime | None = None,
        submitted_before: datetime | None = None,
    ) -> int:
        """How many runs match."""
        return await self.store.count(
            await self._names(name), **filters(status, owner, attributes, submitted_after, submitted_before)
        )

    async def _names(self, name: str | None) -> Sequence[str]:
        return await self.store.workflows() if name is None else [check_workflow_name(name)]

    async def committed(self, name: str, run_id: str) -> dict[str, Any]:
        """The values a run has published with `ctx.commit`."""
        values = await self.store.committed(*found(name, run_id))
        return {key: orjson.loads(raw) for key, raw in values.items() if not key.startswith("@")}

    # --- doing --------------------------------------------------------------------------

    async def signal(
        self, name: str, run_id: str, signal: str, payload: Any = None, idempotency_key: str | None = None
    ) -> None:
        """Send a signal, kept until the run waits for it. Raises `RunNotFound`, or `WrongRunState` after the end."""
        check_id(signal, "signal")
        message_id = new_id() if idempotency_key is None else f"k:{checked_key(idempotency_key)}"
        await self._deliver(name, run_id, (MailKind.SIGNAL, message_id, signal, payload), f"signal:{signal}")

    async def resume(self, name: str, run_id: str, answer: Any, key: str | None = None) -> None:
        """Answer a run's open question. `key` names it; without one, the question that is open now.

        The first answer counts. Raises `RunNotFound`, or `WrongRunState` when the run has no
        such question open: none was asked, it is answered, or the run has ended.
        """
        question = await self._open_question(name, run_id, key)
        if question is None:
            status = (await self.store.load(name, run_id, ends=False)).status
            which = "no open question" if key is None else f"no open question {key!r}"
            raise WrongRunState(name, run_id, status, f"it has {which} to answer")
        asked, message_id = question  # the message's id is the question's own: a repeat is seen as one
        await self._deliver(name, run_id, (MailKind.ANSWER, message_id, asked, answer), f"interrupt:{asked}")

    async def _open_question(self, name: str, run_id: str, key: str | None) -> tuple[str, str] | None:
        """The name of the open question (the one under `key`, if given) and the id its answer carries."""
        found(name, run_id)
        opened: dict[str, str] = {}
        last = 0
        while chunk := await self.store.read_journal(name, run_id, after=last):
            for seq, raw in chunk:
                entry = parse(seq, raw)
                if entry.type == "interrupt.raised":
                    opened[entry.key] = entry.data["name"]
                elif entry.type in ("interrupt.resumed", "interrupt.timed_out"):
                    opened.pop(entry.key, None)
                last = seq
        return next(((asked, f"answer:{at}") for at, asked in opened.items() if key in (None, asked)), None)

    async def cancel(self, name: str, run_id: str, reason: str | None = None) -> None:
        """Ask a run to end after its clean-up. Raises `RunNotFound`, or `WrongRunState` when it has ended."""
        await self._deliver(name, run_id, (MailKind.CANCEL, new_id(), "", reason), "", control=True)

    async def terminate(self, name: str, run_id: str, reason: str | None = None) -> Run:
        """End a run at once, without its worker and without clean-up. Raises as `cancel` does."""
        ttl = getattr(self.store, "completed_ttl", 86400.0)
        found(name, run_id)
        data = encode({"reason": reason}, path="reason")
        with acting("terminate", name, run_id):
            before = await self.store.terminate(name, run_id, data, keep_ms=int(ttl * 1000))
            if isinstance(self.store, Parents) and not before.ended:
                children = await self.store.open_children(name, run_id)
                await close_children(self.store, name, run_id, children, "terminated", ttl)
        record = await self.store.load(name, run_id)
        run = run_of(record)
        if run.status is RunStatus.TERMINATED and not before.ended:
            await tell_parent(self.store, run_id, record.headers)
        if run.status is not RunStatus.TERMINATED:
            raise WrongRunState(name, run_id, before, "there is nothing left to terminate")
        return run

    async def retry(self, name: str, run_id: str) -> Run:
        """Queue a failed run again: it goes on from what is recorded, and the failure it ended with is made anew.

        Raises `RunNotFound`, or `WrongRunState` when it has not failed.
        """
        found(name, run_id)
        with acting("retry", name, run_id):
            await self.store.revive(name, run_id, encode({"by": "operator"}, path="data"))
        return await self.get(name, run_id)

    async def _deliver(
        self, name: str, run_id: str, mail: tuple[str, str, str, Any], topic: str, *, control: bool = False
    ) -> None:
        found(name, run_id)
        raw = pack(*mail, limit=self._limit)
        with acting(mail[0], name, run_id, topic):
            delivery = await self.store.deliver(name, run_id, Message(mail[1], topic, raw, control))
        if not delivery.accepted:
            raise WrongRunState(name, run_id, delivery.status, "it takes no more messages")


def _result_of(run: Run) -> Any:
    if run.status is RunStatus.COMPLETED:
        known = registry.get(run.name)
        spec: InputSpec | None = known.spec if known is not None else None
        return run.result if spec is None else decode_json(run.result, spec.result_annotation, path="result")
    error = run.error or {}
    code = error.get("code")
    kind = RunTimedOut if code == "attempt_timed_out" else _ENDINGS[run.status]
    message = error.get("message") or error.get("reason")
    text = f"{run.status}: {message}" if message else str(run.status)
    detail = {k: v for k, v in error.items() if k not in ("bases", "traceback")}
    raise kind(run.name, run.run_id, text, code, detail)
