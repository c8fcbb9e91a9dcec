"""One run as the memory store keeps it, and the bytes of the entries a store writes by itself. No decisions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import orjson

from pyrula.contracts.children import Child
from pyrula.contracts.events import SCHEMA
from pyrula.contracts.runs import ENDED, RunStatus
from pyrula.contracts.store import RunRecord

__all__ = ["StoredRun", "store_entry"]


@dataclass(slots=True)
class StoredRun:
    """A run's state. Times are in microseconds, 0 for none; `score` and `serial` are its place in the queue.

    The epoch is odd while a worker holds the run and even while none does; the journal's last
    seq is its length. `lost_at` is the seq and the attempt at which its worker was last lost.
    """

    workflow: str
    run_id: str
    owner: str
    priority: int
    submitted_at: int
    score: int
    serial: int
    input: bytes
    input_digest: str
    attributes: bytes
    headers: bytes
    status: RunStatus = RunStatus.QUEUED
    epoch: int = 0
    started_at: int = 0
    finished_at: int = 0
    wake_at: int = 0
    topic: str = ""
    worker: str = ""
    error: bytes = b""
    requeues: int = 0
    lost_at: tuple[int, int] = (1, 0)
    journal: list[bytes] = field(default_factory=list)
    inbox: list[bytes] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    values: dict[str, bytes] = field(default_factory=dict)
    output: list[tuple[int, bytes]] = field(default_factory=list)
    paused_from: RunStatus | None = None
    old: list[list[bytes]] = field(default_factory=list)  # its earlier journals
    about: bytes = b""  # what its next journal says of itself
    children: dict[str, Child] = field(default_factory=dict)  # the open ones
    _attributes: tuple[bytes, dict[str, object]] | None = None

    @property
    def seq(self) -> int:
        """The journal's last seq."""
        return len(self.journal)

    @property
    def attempt(self) -> int:
        """How often it was claimed."""
        return (self.epoch + 1) // 2

    @property
    def ended(self) -> bool:
        """True when it is over for good; a run that was set aside has a reason and may go on."""
        return self.status in ENDED and not (self.status is RunStatus.FAILED and self.error)

    def decoded_attributes(self) -> dict[str, object]:
        """The search attributes, decoded once for each time they are set."""
        if self._attributes is None or self._attributes[0] is not self.attributes:
            self._attributes = (self.attributes, orjson.loads(self.attributes))
        return self._attributes[1]

    def lose(self) -> int:
        """How often in a row its worker was lost, this time included, without anything new in the journal.

        Each claim's own event is nothing new.
        """
        seq, attempt = self.lost_at
        new = self.seq - seq - (self.attempt - attempt)
        return 1 if new > 0 else self.requeues + 1

    def record(self, *, ends: bool) -> RunRecord:
        """What the outside sees."""
        journal = self.journal if ends else ()
        return RunRecord(
            workflow=self.workflow,
            run_id=self.run_id,
            status=self.status,
            owner=self.owner,
            epoch=self.epoch,
            attempt=self.attempt,
            seq=self.seq,
            priority=self.priority,
            requeues=self.requeues,
            submitted_at=self.submitted_at,
            started_at=self.started_at,
            finished_at=self.finished_at,
            wake_at=self.wake_at,
            topic=self.topic,
            worker=self.worker,
            input=self.input,
            input_digest=self.input_digest,
            attributes=self.attributes,
            headers=self.headers,
            error=self.error,
            first=(1, journal[0]) if journal else None,
            last=(len(journal), journal[-1]) if journal else None,
            link=len(self.old) + 1,
        )

    def listed(self) -> RunRecord:
        """What a listing shows: all but what may be large."""
        return replace(self.record(ends=False), input=b"", headers=b"{}")


def store_entry(kind: str, at: int, attempt: int, data: bytes) -> bytes:
    """A journal entry of the run itself; `data` is JSON already and goes in as it is."""
    return b'[%d,"%b",%d,%d,"",%b]' % (SCHEMA, kind.encode(), at, attempt, data)
