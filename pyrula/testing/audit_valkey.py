"""Checks the raw data of a Valkey namespace: that every index, queue and stream bears out every run.

`pyrula.testing.audit` sees what a store's methods show; this sees the keys themselves. Each shard is
read in one step on the server, so a namespace in use may be looked at. Nothing is ever written here.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import valkey

from pyrula.contracts.events import TERMINAL_TYPES, Entry, EventType, parse
from pyrula.contracts.ids import shard_of
from pyrula.contracts.mail import Mail, MailKind, parse_mail
from pyrula.contracts.runs import ENDED, PARKED, RunStatus
from pyrula.contracts.store import RunRecord
from pyrula.testing.audit import examine
from pyrula.testing.audit_events import EVENTS, event_problems
from pyrula.testing.audit_schedules import ScheduleKeys
from pyrula.workflows.stores.valkey import replies
from pyrula.workflows.stores.valkey.sync import run

__all__ = ["audit_namespace"]

_SHARD: Final = re.compile(rb"\{(.+):(\d+)\}:")
_CONSUMED: Final = frozenset({EventType.SIGNAL_RECEIVED, EventType.INTERRUPT_RESUMED, EventType.UPDATE_ACCEPTED})
# What a parked run waits for, by the kind of message that brings it.
_TOPICS: Final = {MailKind.SIGNAL: "signal", MailKind.ANSWER: "interrupt"}
_PER_RUN: Final = ("log", "inbox", "seen", "kv", "out", "kids")
_DUMP: Final = """
local found = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local kind = redis.call('TYPE', key).ok
  local value
  if kind == 'hash' then value = redis.call('HGETALL', key)
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'stream' then value = redis.call('XRANGE', key, '-', '+')
  elseif kind == 'list' then value = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'set' then value = redis.call('SMEMBERS', key)
  else value = { redis.call('GET', key) } end
  local added = 0
  if kind == 'stream' then
    local info = redis.call('XINFO', 'STREAM', key)
    for i = 1, #info, 2 do
      if info[i] == 'entries-added' then added = info[i + 1] end
    end
  end
  found[#found + 1] = { key, value, added }
end
return found
"""


def audit_namespace(client: valkey.Valkey, namespace: str) -> list[str]:
    """What is wrong with the data of a namespace on one node: one sentence for each finding.

    Empty when every run is where its status says and nowhere else (queued, claimed with an expiry, held
    by a timer, or waiting for what has not come), every journal is whole, every ended run was announced
    once, every message was taken once, and no key belongs to nothing. Holds the server for one pass over
    its keys per shard: for tests and repairs, not for a watch.
    """
    start = f"{namespace}:".encode()
    names = {bytes(key)[len(start) :] for key in client.scan_iter(match=_literal(start) + b"*", count=1000)}
    shards: set[tuple[bytes, int]] = set()
    findings: list[str] = []
    happenings = {name.removeprefix(EVENTS) for name in names if name.startswith(EVENTS)}
    findings += event_problems(client, start + EVENTS, happenings)
    for name in names - {b"workflows"} - {EVENTS + each for each in happenings}:
        found = _SHARD.match(name)
        if found is None:
            findings.append(f"key {name!r} belongs to no shard")
        else:
            shards.add((found[1], int(found[2])))
    known = {bytes(name).decode() for name in run(client, "SMEMBERS", start + b"workflows")}
    counts: dict[str, int] = {}
    for workflow in sorted({raw.decode() for raw, _ in shards}):
        recorded = run(client, "GET", f"{namespace}:{{{workflow}:0}}:shards")
        if workflow not in known or recorded is None:
            findings.append(f"{workflow} has data and is not registered with its shard count")
        counts[workflow] = int(recorded or 0)
    for raw, number in sorted(shards):
        workflow = raw.decode()
        shard = _Shard(workflow, number, counts[workflow])
        prefix = b"%b{%b:%d}:" % (start, raw, number)
        for key, value, added in run(client, "EVAL", _DUMP, 0, _literal(prefix) + b"*"):
            shard.put(bytes(key)[len(prefix) :].decode(), value, int(added))
        findings += [f"{workflow}:{number} {problem}" for problem in shard.problems()]
    return findings


def _literal(text: bytes) -> bytes:
    """A text as a pattern that matches nothing else."""
    return re.sub(rb"([*?\[\]\\])", rb"\\\1", text)


def _pairs(flat: Sequence[bytes]) -> dict[str, bytes]:
    return {flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)}


@dataclass(slots=True)
class _Shard:
    """All keys of one shard at one moment, by what they are for."""

    workflow: str
    number: int
    count: int
    runs: dict[str, Sequence[bytes]] = field(default_factory=dict)
    per_run: dict[str, dict[str, Any]] = field(default_factory=lambda: {kind: {} for kind in _PER_RUN})
    queues: dict[str, dict[str, float]] = field(default_factory=dict)
    sets: dict[str, dict[str, float]] = field(
        default_factory=lambda: {kind: {} for kind in ("tenants", "claims", "timers", "index", "ended", "closing")}
    )
    terminal: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    terminal_whole: bool = True
    links: dict[str, set[int]] = field(default_factory=dict)
    schedules: ScheduleKeys = field(default_factory=ScheduleKeys)
    strangers: list[str] = field(default_factory=list)

    def put(self, name: str, value: Any, added: int) -> None:
        """Take in one key."""
        kind, _, rest = name.partition(":")
        if kind == "run":
            self.runs[rest] = value
        elif kind in _PER_RUN:
            self.per_run[kind][rest] = value
        elif kind == "queue":
            self.queues[rest] = _scores(value)
        elif name in self.sets:
            self.sets[name] = _scores(value)
        elif name == "terminal":
            self.terminal_whole = len(value) == added
            for _, flat in value:
                entry = _pairs(flat)
                self.terminal.setdefault(entry["r"].decode(), []).append((int(entry["q"]), entry["s"].decode()))
        elif kind == "old":  # old:<link>:<id>
            link, _, run_id = rest.partition(":")
            self.links.setdefault(run_id, set()).add(int(link))
        elif not self.schedules.put(name, value) and not (name == "shards" and self.number == 0):
            self.strangers.append(name)

    def problems(self) -> Iterator[str]:
        """Everything that is wrong, one sentence each."""
        for name in self.strangers:
            yield f"has a key {name!r} that nothing reads"
        if not 0 <= self.number < max(1, self.count):
            yield f"lies outside of the {self.count} shards of its workflow"
        for run_id, flat in self.runs.items():
            for problem in self._run(run_id, flat):
                yield f"{run_id}: {problem}"
        yield from self._loose()
        yield from self.schedules.problems(self.number)

    def _loose(self) -> Iterator[str]:
        """What belongs to no run."""
        places: list[tuple[str, Mapping[str, Any]]] = [
            *self.per_run.items(),
            *((kind, self.sets[kind]) for kind in ("claims", "timers", "index", "ended", "closing")),
            *((f"queue:{owner}", queue) for owner, queue in self.queues.items()),
        ]
        for kind, holds in places:
            for run_id in holds:
                if run_id not in self.runs:
                    yield f"{run_id}: there is no such run, and it is in {kind}"
        for run_id in self.links.keys() - self.runs.keys():
            yield f"{run_id}: there is no such run, and earlier journals of it are kept"
        waiting = {owner for owner, queue in self.queues.items() if queue}
        if waiting != set(self.sets["tenants"]):
            yield f"has queues of {sorted(waiting)}, and turns for {sorted(self.sets['tenants'])}"
        for turn, times in Counter(self.sets["tenants"].values()).items():
            if times > 1:
                yield f"gives turn {turn:.0f} to {times} tenants"

    def _run(self, run_id: str, flat: Sequence[bytes]) -> Iterator[str]:
        fields = _pairs(flat)
        try:
            entries = replies.stream_entries(self.per_run["log"].get(run_id))
            record = replies.record(self.workflow, run_id, flat)
            journal = [parse(seq, raw) for seq, raw in entries]
            mail = [parse_mail(raw) for raw in self.per_run["inbox"].get(run_id, ())]
        except (KeyError, ValueError, TypeError) as error:
            yield f"its data cannot be read: {error!r}"
            return
        for problem in examine(record, entries):
            yield problem.partition(": ")[2]
        if self.count and shard_of(run_id, self.count) != self.number:
            yield f"it belongs into shard {shard_of(run_id, self.count)}"
        if self.links.get(run_id, set()) != set(range(1, record.link)):
            yield f"its journal is number {record.link}, and numbers {sorted(self.links.get(run_id, ()))} are kept"
        yield from self._places(record, fields)
        yield from self._mail(record, journal, mail)
        yield from self._announced(run_id, journal)

    def _places(self, record: RunRecord, fields: Mapping[str, bytes]) -> Iterator[str]:
        """The run is in exactly the indexes that its status asks for, at the right places."""
        run_id, status = record.run_id, record.status
        aside = status is RunStatus.FAILED and bool(record.error)
        expected: dict[str, float | None] = {
            "index": record.submitted_at,
            "claims": None,
            "timers": None if status is RunStatus.PAUSED else record.wake_at or None,
            "ended": None,
        }
        held: dict[str, float | None] = {kind: self.sets[kind].get(run_id) for kind in expected}
        for kind, wanted in (("claims", status is RunStatus.RUNNING), ("ended", status in ENDED and not aside)):
            expected[kind] = held[kind] if wanted and held[kind] is not None else (1.0 if wanted else None)
        for kind, score in expected.items():
            if held[kind] != score:
                yield f"it is {status}, and in {kind} stands {held[kind]} where {score} should"
        if held["claims"] is not None and not math.isfinite(held["claims"]):
            yield "its claim never runs out"
        if status in PARKED and status is not RunStatus.PAUSED and not (record.wake_at or record.topic):
            yield f"it is {status}, and nothing will wake it"
        in_queues = {owner: queue[run_id] for owner, queue in self.queues.items() if run_id in queue}
        runnable = status is RunStatus.QUEUED and not record.wake_at
        place = float(fields.get("sc", fields.get("sub", b"0")))
        should = {record.owner: place} if runnable else {}
        if in_queues != should:
            yield f"it is {status}, and in queues {in_queues} where {should} should be"

    def _mail(self, record: RunRecord, journal: Sequence[Entry], mail: Sequence[Mail]) -> Iterator[str]:
        """Each message is in the inbox or was taken once, and none that a parked run waits for lies there."""
        seen = {raw.decode() for raw in self.per_run["seen"].get(record.run_id, ())}
        taken = Counter(each.data["message_id"] for each in journal if each.type in _CONSUMED)
        for message_id, times in taken.items():
            if times > 1:
                yield f"message {message_id!r} was taken {times} times"
        for message_id, times in Counter(each.message_id for each in mail).items():
            if times > 1:
                yield f"message {message_id!r} lies in the inbox {times} times"
            if message_id in taken:
                yield f"message {message_id!r} was taken and still lies in the inbox"
        for message_id in {*taken, *(each.message_id for each in mail)} - seen:
            yield f"message {message_id!r} was never seen to arrive"
        if mail and record.status in ENDED and record.status is not RunStatus.FAILED:
            yield f"it is {record.status}, and has {len(mail)} messages"
        if record.status in (RunStatus.SLEEPING, RunStatus.WAITING):
            for each in mail:
                if each.kind == MailKind.CANCEL or _topic(each) == record.topic:
                    yield f"it is {record.status} for {record.topic!r}, and {each.kind} {each.message_id!r} has come"

    def _announced(self, run_id: str, journal: Sequence[Entry]) -> Iterator[str]:
        """Subscribers were told of each terminal event once."""
        ends = [(each.seq, each.type.removeprefix("run.")) for each in journal if each.type in TERMINAL_TYPES]
        told = self.terminal.get(run_id, [])
        if told != ends and (self.terminal_whole or not set(told) <= set(ends) or len(set(told)) != len(told)):
            yield f"its terminal events are {ends}, and subscribers were told {told}"


def _topic(mail: Mail) -> str:
    """What a parked run waits for when this message wakes it."""
    return "child" if mail.kind == MailKind.CHILD else f"{_TOPICS.get(mail.kind)}:{mail.name}"


def _scores(flat: Sequence[bytes]) -> dict[str, float]:
    return {name: float(score) for name, score in _pairs(flat).items()}
