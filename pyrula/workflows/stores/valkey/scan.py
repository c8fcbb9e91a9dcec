"""Listing and counting runs: every shard looks through its own index, the slices are merged here."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from pyrula.contracts.errors import InvalidInput
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.store import Listing, RunRecord
from pyrula.workflows.stores.valkey import replies
from pyrula.workflows.stores.valkey.server import Server

__all__ = ["Filter", "count", "listing"]

# Runs that one call looks at: some milliseconds of the server's time at the most.
_BUDGET: Final = 1000
_ALL: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class Filter:
    """Which runs match; None for any. Times in microseconds: after is exclusive, before too."""

    status: RunStatus | None = None
    owner: str | None = None
    attributes: dict[str, object] | None = None
    submitted_after: int | None = None
    submitted_before: int | None = None

    def args(self, below: tuple[str, str], limit: int, count_only: bool) -> tuple[str | int | bytes, ...]:
        """The arguments of the listing function, from behind `below` (submitted at, id)."""
        return (
            below[0],
            below[1],
            "-inf" if self.submitted_after is None else f"({self.submitted_after}",
            "" if self.status is None else str(self.status),
            "" if self.owner is None else f"={self.owner}",
            orjson.dumps(self.attributes) if self.attributes else "",
            limit,
            _BUDGET,
            "1" if count_only else "0",
        )


def _start(wanted: Filter, cursor: str | None) -> tuple[str, str]:
    if cursor is None:
        # An id below all others at that very time: exclusive.
        return ("+inf", "") if wanted.submitted_before is None else (f"({wanted.submitted_before}", "")
    at, dot, run_id = cursor.partition(".")
    if not dot or not at.isdigit():
        raise InvalidInput(f"cursor {cursor!r} is not one that a listing gave", "cursor")
    return at, run_id


class _Slices:
    """The runs of one shard that match, newest first, fetched as they are needed."""

    def __init__(self, workflow: str, prefix: bytes, below: tuple[str, str]) -> None:
        self.workflow = workflow
        self.prefix = prefix
        self.below: tuple[str, str] | None = below
        self.ready: list[RunRecord] = []

    def take(self, reply: Sequence[Any]) -> None:
        _, at, run_id, *rows = reply
        self.below = (at.decode(), run_id.decode()) if at else None
        self.ready.extend(replies.record(self.workflow, found.decode(), flat) for found, flat in rows)


def _slices(server: Server, workflows: Sequence[str], below: tuple[str, str]) -> list[_Slices]:
    return [_Slices(name, prefix, below) for name in workflows for prefix in server.keys.shards(name)]


async def listing(server: Server, workflows: Sequence[str], wanted: Filter, limit: int, cursor: str | None) -> Listing:
    """The next `limit` runs that match, newest first, over all shards."""
    if limit < 1:
        raise InvalidInput(f"limit={limit}: at least 1", "limit")
    parts = _slices(server, workflows, _start(wanted, cursor))
    while True:
        # A shard that ran out of budget before it found enough goes on; the rest wait for it,
        # since it may still hold newer runs than theirs.
        open_ = [p for p in parts if p.below is not None and len(p.ready) < limit]
        if not open_:
            break
        calls = [("listing", p.prefix, *wanted.args(p.below or ("", ""), limit - len(p.ready), False)) for p in open_]
        for part, reply in zip(open_, await server.functions(calls), strict=True):
            part.take(reply)
    merged = heapq.merge(*(p.ready for p in parts), key=lambda r: (r.submitted_at, r.run_id), reverse=True)
    runs = [record for record, _ in zip(merged, range(limit), strict=False)]
    more = len(runs) == limit and (sum(len(p.ready) for p in parts) > limit or any(p.below for p in parts))
    return Listing(runs, f"{runs[-1].submitted_at}.{runs[-1].run_id}" if more else None)


async def count(server: Server, workflows: Sequence[str], wanted: Filter) -> int:
    """How many runs match. Without a filter, or for running ones, the shards' own counts are added up."""
    prefixes = [prefix for name in workflows for prefix in server.keys.shards(name)]
    if wanted == Filter() or wanted == Filter(status=RunStatus.RUNNING):
        kind = b"index" if wanted.status is None else b"claims"
        return sum(await server.commands([("ZCARD", prefix + kind) for prefix in prefixes]))
    parts = _slices(server, workflows, _start(wanted, None))
    total = 0
    while open_ := [p for p in parts if p.below is not None]:
        calls = [("listing", p.prefix, *wanted.args(p.below or ("", ""), _ALL, True)) for p in open_]
        for part, reply in zip(open_, await server.functions(calls), strict=True):
            total += reply[0]
            part.take([0, reply[1], reply[2]])
    return total
