"""From the function library's replies to the store's records. Pure; no connection here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Bell, BellKind, Claim, RunRecord

__all__ = ["SPAN", "bell", "claim", "record", "stream_entries"]

SPAN = 1 << 28  # the cursor is epoch * SPAN + seq, as in lua/prelude.lua


def claim(workflow: str, now: int, reply: Sequence[Any]) -> Claim:
    """One claim out of the reply of `claim`."""
    run_id, epoch, seq, owner, submitted, attributes, headers, entries, inbox, life = reply
    number = int(epoch)
    return Claim(
        workflow=workflow,
        run_id=run_id.decode(),
        epoch=number,
        attempt=(number + 1) // 2,
        seq=int(seq),
        now=now,
        owner=owner.decode(),
        submitted_at=int(submitted),
        attributes=attributes,
        headers=headers,
        entries=[(_seq(entry_id), raw) for entry_id, raw in entries],
        inbox=inbox,
        token=life,
    )


def _seq(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[0])


def stream_entries(reply: Any) -> list[tuple[int, bytes]]:
    """(seq, raw) of each entry in the reply of XRANGE."""
    return [(_seq(entry_id), fields[1]) for entry_id, fields in reply or ()]


def record(
    workflow: str, run_id: str, flat: Sequence[bytes], first: Sequence[bytes] = (), last: Sequence[bytes] = ()
) -> RunRecord:
    """A run out of its hash, as a flat list of fields and values."""
    f = {flat[i]: flat[i + 1] for i in range(0, len(flat), 2)}
    cursor = int(f.get(b"cur", b"0"))
    epoch = cursor // SPAN
    return RunRecord(
        workflow=workflow,
        run_id=run_id,
        status=RunStatus(f[b"st"].decode()),
        owner=f.get(b"own", b"").decode(),
        epoch=epoch,
        attempt=(epoch + 1) // 2,
        seq=cursor % SPAN,
        priority=int(f.get(b"pri") or 0),
        requeues=int(f.get(b"rq") or 0),
        submitted_at=int(f.get(b"sub") or 0),
        started_at=int(f.get(b"fst") or 0),
        finished_at=int(f.get(b"fin") or 0),
        wake_at=int(f.get(b"wake") or 0),
        topic=f.get(b"top", b"").decode(),
        worker=f.get(b"w", b"").decode(),
        input=f.get(b"in", b""),
        input_digest=f.get(b"ih", b"").decode(),
        attributes=f.get(b"attr", b"{}"),
        headers=f.get(b"hdr", b"{}"),
        error=f.get(b"err", b""),
        first=(_seq(first[0]), first[1]) if first else None,
        last=(_seq(last[0]), last[1]) if last else None,
        link=int(f.get(b"ln") or 1),
    )


def bell(workflow: str, shard: int, payload: bytes) -> Bell:
    """A bell out of a message on a shard's channel."""
    kind, _, rest = payload.decode().partition(":")
    if kind == BellKind.TIMER:
        return Bell(kind, workflow, shard, due=int(rest))
    if kind in (BellKind.INBOX, BellKind.ENDED):
        return Bell(kind, workflow, shard, run_id=rest)
    if kind == BellKind.SCHEDULE:
        return Bell(kind, workflow, shard)
    return Bell(BellKind.QUEUED, workflow, shard)
