"""Updates and queries: the part of a client that asks live runs something and waits for the answer."""

from __future__ import annotations

import time
from typing import Any, Final

import anyio
import orjson

from pyrula.actors.tracing import acting
from pyrula.actors.updating import REPLY
from pyrula.contracts.errors import InvalidInput, UpdateFailed, UpdateTimedOut, WrongRunState
from pyrula.contracts.ids import check_id, new_id
from pyrula.contracts.mail import MailKind, pack
from pyrula.contracts.store import Message, Store
from pyrula.workflows.submission import checked_key, found

__all__ = ["UpdateClient"]

_FIRST_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.25
_MISSING: Any = object()


class UpdateClient:
    """The part of a `WorkflowClient` that asks live runs."""

    store: Store
    _limit: int

    async def update(
        self,
        name: str,
        run_id: str,
        update: str,
        payload: Any = None,
        *,
        timeout: float | None = None,
        idempotency_key: str | None = None,
    ) -> Any:
        """Have a run apply an update where it next waits, and give its answer. A parked run is woken for it.

        idempotency_key: a repeat gets the answer of the first.

        Raises `UpdateFailed` when the run rejects it or its handler fails, `UpdateTimedOut` after `timeout` seconds
        (it may be applied all the same), `RunNotFound`, and `WrongRunState` when the run has ended.
        """
        found(name, run_id)
        check_id(update, "update")
        message_id = f"update:{new_id()}" if idempotency_key is None else f"update:{checked_key(idempotency_key)}"
        raw = pack(MailKind.UPDATE, message_id, update, payload, limit=self._limit)
        deadline = None if timeout is None else time.monotonic() + timeout
        with acting("update", name, run_id, update):
            delivery = await self.store.deliver(name, run_id, Message(message_id, "", raw, wakes=True))
            if not delivery.accepted:
                raise WrongRunState(name, run_id, delivery.status, "it takes no more updates")
            return _answered(update, await self._answer(name, run_id, update, message_id, deadline))

    async def _answer(
        self, name: str, run_id: str, update: str, message_id: str, deadline: float | None
    ) -> dict[str, Any]:
        pause = _FIRST_PAUSE
        while True:
            record = await self.store.load(name, run_id, ends=False)
            raw = (await self.store.committed(name, run_id)).get(REPLY + message_id)
            if raw is not None:
                answer: dict[str, Any] = orjson.loads(raw)
                return answer
            if record.status.ended:
                raise WrongRunState(name, run_id, record.status, f"it ended before it took the update {update!r}")
            if deadline is not None and time.monotonic() >= deadline:
                raise UpdateTimedOut(
                    f"run {run_id!r} has not answered the update {update!r} in time; it is {record.status}"
                )
            await anyio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def query(self, name: str, run_id: str, key: str, default: Any = _MISSING) -> Any:
        """A value that a run has published with `ctx.commit`, without asking a worker.

        Raises `RunNotFound`, and `InvalidInput` for a key that it has not published and no default.
        """
        values = await self.store.committed(*found(name, run_id))
        if key in values and not key.startswith(REPLY):
            return orjson.loads(values[key])
        await self.store.load(name, run_id, ends=False)
        if default is _MISSING:
            known = ", ".join(sorted(each for each in values if not each.startswith(REPLY))) or "none"
            raise InvalidInput(f"run {run_id!r} has published no {key!r}; there are: {known}", "key")
        return default


def _answered(update: str, answer: dict[str, Any]) -> Any:
    if answer["status"] == "applied":
        return answer["result"]
    raise UpdateFailed(update, rejected=answer["status"] == "rejected", detail=answer["error"])
