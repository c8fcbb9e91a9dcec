"""The auditor finds what it is there to find, and nothing in a store that is sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pyrula.contracts.events import entry
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Ending, Listing, NewRun, Parking, RunRecord, TailChunk
from pyrula.testing.audit import audit, examine
from pyrula.workflows.stores.memory import MemoryStore

pytestmark = pytest.mark.anyio

Journal = list[tuple[int, bytes]]


def journal(*events: tuple[str, int] | tuple[str, int, str]) -> Journal:
    """A journal of (type, attempt) or (type, attempt, key)."""
    return [(seq, entry(e[0], 10, e[1], e[2] if len(e) > 2 else "", {})) for seq, e in enumerate(events, 1)]


SUBMITTED, STARTED, RESUMED = ("run.submitted", 0), ("run.started", 1), ("run.resumed", 2)
RUNNING = RunRecord("w", "r", RunStatus.RUNNING, epoch=1, attempt=1, seq=3, submitted_at=10, started_at=10, worker="w1")
DONE = replace(RUNNING, status=RunStatus.COMPLETED, epoch=2, finished_at=11)
ASIDE = replace(DONE, status=RunStatus.FAILED, error=b"{}")
WAITING = replace(RUNNING, status=RunStatus.WAITING, epoch=2, topic="signal:go")
STEP = ("step.completed", 1, "a")
END = ("run.completed", 1)


@pytest.mark.parametrize(
    ("record", "entries"),
    [
        (RUNNING, journal(SUBMITTED, STARTED, STEP)),
        (DONE, journal(SUBMITTED, STARTED, END)),
        (ASIDE, journal(SUBMITTED, STARTED, ("step.failed", 1, "a"))),
        (WAITING, journal(SUBMITTED, STARTED, ("signal.awaited", 1, "a"))),
        (replace(WAITING, status=RunStatus.PAUSED, topic=""), journal(SUBMITTED, STARTED, STEP)),
        (RunRecord("w", "r", RunStatus.QUEUED, submitted_at=10, input=b"{}", wake_at=99), []),
        (
            RunRecord("w", "r", RunStatus.TERMINATED, seq=2, submitted_at=10, finished_at=11),
            journal(SUBMITTED, ("run.terminated", 0)),
        ),
        (
            replace(DONE, attempt=2, epoch=4, seq=7),
            journal(
                SUBMITTED, STARTED, ("step.failed", 1, "a"), ("run.failed", 1), ("run.retried", 1), RESUMED,
                ("run.completed", 2),
            ),
        ),
        (
            replace(RUNNING, attempt=2, epoch=3, seq=6),
            journal(
                SUBMITTED, STARTED, ("step.failed", 1, "a"), ("run.retried", 1), RESUMED, ("step.completed", 2, "a")
            ),
        ),
    ],
)  # fmt: skip
def test_a_sound_run_passes(record: RunRecord, entries: Journal) -> None:
    assert examine(record, entries) == []


@pytest.mark.parametrize(
    ("record", "entries", "finding"),
    [
        (RUNNING, [*journal(SUBMITTED, STARTED), (4, journal(STEP)[0][1])], "seq 4 stands where 3 should"),
        (RUNNING, journal(SUBMITTED, STARTED), "the last seq is 3, the journal has 2 entries"),
        (RUNNING, [(1, b"{"), (2, b""), (3, b"")], "cannot be read"),
        (replace(RUNNING, seq=0), [], "it was claimed and has no journal"),
        (RUNNING, journal(STARTED, STEP, ("step.completed", 1, "b")), "begins with run.started"),
        (replace(RUNNING, submitted_at=9), journal(SUBMITTED, STARTED, STEP), "submitted at 9"),
        (replace(RUNNING, input=b"{}"), journal(SUBMITTED, STARTED, STEP), "its input is kept beside"),
        (
            replace(RUNNING, attempt=2, epoch=3),
            journal(SUBMITTED, STARTED, ("run.started", 2)),
            "run.started stands at [2, 3]",
        ),
        (replace(RUNNING, seq=2), journal(SUBMITTED, ("run.resumed", 1)), "its first claim wrote run.resumed"),
        (
            replace(RUNNING, attempt=2, epoch=3, seq=4),
            journal(SUBMITTED, STARTED, RESUMED, STEP),
            "written under attempt 1 during 2",
        ),
        (replace(RUNNING, attempt=3, epoch=5), journal(SUBMITTED, STARTED, ("run.resumed", 3)), "attempt 3 after 1"),
        (replace(RUNNING, attempt=2, epoch=3), journal(SUBMITTED, STARTED, STEP), "its attempt is 2"),
        (replace(DONE, seq=4), journal(SUBMITTED, STARTED, END, STEP), "run.completed, is followed by step.completed"),
        (replace(DONE, seq=4), journal(SUBMITTED, STARTED, ("run.failed", 1), END), "is followed by run.completed"),
        (
            replace(RUNNING, status=RunStatus.QUEUED, epoch=2, seq=4),
            journal(SUBMITTED, STARTED, END, ("run.retried", 1)),
            "run.completed, is followed by run.retried",
        ),
        (DONE, journal(SUBMITTED, STARTED, STEP), "it is completed, its journal ends with step.completed"),
        (RUNNING, journal(SUBMITTED, STARTED, END), "it is running, its journal ends with run.completed"),
        (DONE, journal(SUBMITTED, STARTED, ("run.cancelled", 1)), "it is completed, its journal ends with run.canc"),
        (ASIDE, journal(SUBMITTED, STARTED, ("run.failed", 1)), "it is set aside, its journal ends with run.failed"),
        (replace(ASIDE, error=b""), journal(SUBMITTED, STARTED, STEP), "no reason is kept"),
        (replace(RUNNING, epoch=2), journal(SUBMITTED, STARTED, STEP), "it is running in epoch 2"),
        (replace(WAITING, epoch=3), journal(SUBMITTED, STARTED, STEP), "it is waiting in epoch 3"),
        (replace(DONE, finished_at=0), journal(SUBMITTED, STARTED, END), "finished at 0"),
        (replace(RUNNING, started_at=0), journal(SUBMITTED, STARTED, STEP), "started at 0"),
        (replace(RUNNING, worker=""), journal(SUBMITTED, STARTED, STEP), "nobody's"),
        (replace(WAITING, topic=""), journal(SUBMITTED, STARTED, STEP), "will wake it"),
        (replace(RUNNING, topic="x"), journal(SUBMITTED, STARTED, STEP), "waits for 'x'"),
        (replace(RUNNING, wake_at=5), journal(SUBMITTED, STARTED, STEP), "has a timer"),
        (RunRecord("w", "r", RunStatus.QUEUED, submitted_at=10), [], "its input is gone"),
        (
            replace(RUNNING, seq=4),
            journal(SUBMITTED, STARTED, STEP, ("step.failed", 1, "a")),
            "'a' has step.completed at seq 3 and step.failed at seq 4",
        ),
        (
            replace(RUNNING, attempt=2, epoch=3, seq=6),
            journal(SUBMITTED, STARTED, STEP, ("run.retried", 1), RESUMED, ("step.completed", 2, "a")),
            "'a' has step.completed at seq 3 and step.completed at seq 6",
        ),
    ],
)
def test_a_damaged_run_is_found(record: RunRecord, entries: Journal, finding: str) -> None:
    found = examine(record, entries)
    assert any(finding in each for each in found), found
    assert all(each.startswith("w/r: ") for each in found)


async def _store(store: MemoryStore) -> MemoryStore:
    await store.submit([NewRun("w", f"r{n}", b"{}", "d") for n in range(4)])
    batch = await store.claim("w", worker="w1", limit=3, lease_ms=1000)
    done, asleep, _ = batch.claims
    await store.finish(done, 2, [entry("run.completed", 1, 1, "", {})], Ending(RunStatus.COMPLETED, 1000))
    assert await store.park(asleep, 2, [], Parking(RunStatus.SLEEPING, "", asleep.now + 10**9))
    return store


class _NoTimers(MemoryStore):
    async def next_due(self, workflow: str) -> int | None:
        return None


class _ListsTwice(MemoryStore):
    async def listing(self, *args: object, **kwargs: object) -> Listing:
        page = await super().listing(*args, **kwargs)  # type: ignore[arg-type]
        return Listing([*page.runs, page.runs[0]], page.cursor)


class _LosesTheLast(MemoryStore):
    async def read_journal(self, workflow: str, run_id: str, *, after: int = 0, limit: int = 1000) -> TailChunk:
        return [each for each in await super().read_journal(workflow, run_id, after=after) if each[0] != 3]


async def test_a_sound_store_passes() -> None:
    assert await audit(await _store(MemoryStore())) == []
    assert await audit(MemoryStore()) == []


@pytest.mark.parametrize(
    ("kind", "finding"),
    [
        (_NoTimers, "w/r1 waits until"),
        (_ListsTwice, "w/r3 is listed 2 times"),
        (_LosesTheLast, "w/r0: the last seq is 3, the journal has 2 entries"),
    ],
)
async def test_a_damaged_store_is_found(kind: Callable[[], MemoryStore], finding: str) -> None:
    found = await audit(await _store(kind()))
    assert any(each.startswith(finding) for each in found), found


async def test_only_the_workflows_asked_for_are_looked_at() -> None:
    store = await _store(_LosesTheLast())
    assert await audit(store, ["other"]) == []
    assert await audit(store, ["w"]) != []
