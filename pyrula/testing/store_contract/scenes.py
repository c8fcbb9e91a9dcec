"""Runs brought into the states that the contract's tests begin with, through the store's public methods alone.

Nothing here judges a store beyond what it takes to set a scene.
"""

from __future__ import annotations

from typing import Any, Final

from pyrula.contracts.events import Entry, entry, parse
from pyrula.contracts.ids import digest
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Claim, Ending, Message, NewRun, Parking, Store, Submitted

__all__ = [
    "INPUT",
    "KEEP",
    "LEASE",
    "WORKFLOW",
    "claimed",
    "claims",
    "finished",
    "journal",
    "message",
    "new_run",
    "none_left",
    "note",
    "parked",
    "set_aside",
    "submit",
    "types",
]

WORKFLOW: Final = "orders"
INPUT: Final = b'{"n":1}'
LEASE: Final = 600_000  # ms, longer than any test
KEEP: Final = 600_000  # ms, longer than any test


def new_run(run_id: str, **changes: Any) -> NewRun:
    """A submission of the contract's workflow, changed where the test says so."""
    fields: dict[str, Any] = {"workflow": WORKFLOW, "run_id": run_id, "input": INPUT}
    fields.update(changes)
    fields.setdefault("input_digest", digest(fields["input"]))
    return NewRun(**fields)


def note(claim: Claim, key: str, kind: str = "step.completed", **data: Any) -> bytes:
    """A journal entry as the claim's worker would write it."""
    return entry(kind, claim.now, claim.attempt, key, data)


def message(message_id: str, topic: str = "signal:go", *, control: bool = False) -> Message:
    """A message that can be told from all others."""
    return Message(message_id, topic, b'{"id":"%b"}' % message_id.encode(), control=control)


async def submit(store: Store, *run_ids: str, **changes: Any) -> list[Submitted]:
    """Submit runs, in order, each in a call of its own so that each has a time of its own."""
    return [(await store.submit([new_run(run_id, **changes)]))[0] for run_id in run_ids]


async def claims(
    store: Store, count: int, *, workflow: str = WORKFLOW, worker: str = "w1", lease_ms: int = LEASE
) -> list[Claim]:
    """Claim that many runs, in as many calls as it takes a store whose queue may be split."""
    found: list[Claim] = []
    for _ in range(200):
        if len(found) == count:
            return found
        batch = await store.claim(workflow, worker=worker, limit=count - len(found), lease_ms=lease_ms)
        found.extend(batch.claims)
    raise AssertionError(f"{count} runs were expected to be runnable, {len(found)} were: {[c.run_id for c in found]}")


async def none_left(store: Store, workflow: str = WORKFLOW) -> bool:
    """True when nothing is runnable."""
    for _ in range(5):
        batch = await store.claim(workflow, worker="idle", limit=100, lease_ms=LEASE)
        if batch.claims:
            return False
    return True


async def claimed(store: Store, run_id: str = "r1", *, worker: str = "w1", lease_ms: int = LEASE, **run: Any) -> Claim:
    """A run that is submitted and claimed; nothing else may be runnable."""
    await submit(store, run_id, **run)
    [claim] = await claims(store, 1, workflow=run.get("workflow", WORKFLOW), worker=worker, lease_ms=lease_ms)
    assert claim.run_id == run_id
    return claim


async def parked(
    store: Store,
    run_id: str = "r1",
    *,
    status: RunStatus = RunStatus.WAITING,
    topic: str = "signal:go",
    wake_at: int | None = None,
) -> Claim:
    """A run that was claimed and is parked; gives the claim it was parked under."""
    claim = await claimed(store, run_id)
    assert await store.park(claim, claim.seq, [note(claim, "wait", "signal.awaited")], Parking(status, topic, wake_at))
    return claim


async def finished(
    store: Store, run_id: str = "r1", *, status: RunStatus = RunStatus.COMPLETED, keep_ms: int = KEEP, **run: Any
) -> Claim:
    """A run that has ended with a terminal event; gives the claim it ended under."""
    claim = await claimed(store, run_id, **run)
    await store.finish(claim, claim.seq, [note(claim, "", f"run.{status}")], Ending(status, keep_ms))
    return claim


async def set_aside(store: Store, run_id: str = "r1", *, error: bytes = b'{"code":"version_skew"}') -> Claim:
    """A run that is failed for now, without a terminal event; gives the claim it was set aside under."""
    claim = await claimed(store, run_id)
    await store.finish(claim, claim.seq, [], Ending(RunStatus.FAILED, 0, terminal=False, error=error))
    return claim


async def journal(store: Store, run_id: str = "r1", workflow: str = WORKFLOW) -> list[Entry]:
    """The whole journal of a run, parsed."""
    found: list[Entry] = []
    while chunk := await store.read_journal(workflow, run_id, after=found[-1].seq if found else 0):
        found.extend(parse(seq, raw) for seq, raw in chunk)
    return found


async def types(store: Store, run_id: str = "r1") -> list[str]:
    """The types of a run's events, in order."""
    return [each.type for each in await journal(store, run_id)]
