"""What must hold of the application events and triggers that a Valkey store keeps; a part of `audit_valkey`."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import TYPE_CHECKING, Final

from pyrula.workflows.stores.valkey.sync import run

if TYPE_CHECKING:
    import valkey

__all__ = ["EVENTS", "event_problems"]

EVENTS: Final = b"{$events}:"
_KINDS: Final = frozenset({b"batch", b"waiting", b"ended", b"ready", b"refused"})


def event_problems(client: valkey.Valkey, prefix: bytes, names: Set[bytes]) -> list[str]:
    """One sentence for each thing that is wrong with the keys (named without their prefix) of a namespace's events."""
    return [f"events: {problem}" for problem in _problems(client, prefix, names)]


def _problems(client: valkey.Valkey, prefix: bytes, names: Set[bytes]) -> Iterator[str]:
    if b"log" in names:
        known = {bytes(each) for each in run(client, "ZRANGE", prefix + b"ids", 0, -1)}
        entries = [bytes(fields[1]) for _, fields in _entries(client, prefix + b"log")]
        for event_id in sorted({each for each in entries if entries.count(each) > 1}):
            yield f"{event_id!r} is kept more than once"
        for event_id in sorted(set(entries) - known):
            yield f"{event_id!r} is kept and not known"
    for name in sorted(names - {b"log", b"ids", b"numbers"}):
        kind, _, rest = name.partition(b":")
        if kind not in _KINDS:
            yield f"has a key {name!r} that nothing reads"
        elif kind in (b"batch", b"ended"):
            trigger, _, what = rest.rpartition(b":") if kind == b"ended" else _split(client, prefix, rest)
            place = b"ready:" if kind == b"ended" else b"waiting:"
            if run(client, "ZSCORE", prefix + place + trigger, what) is None:
                yield f"{name!r}: nobody will look at this batch"
        elif kind in (b"waiting", b"ready"):
            holds = b"batch:" if kind == b"waiting" else b"ended:"
            for each in run(client, "ZRANGE", prefix + name, 0, -1):
                if holds + rest + b":" + bytes(each) not in names:
                    yield f"{name!r} holds {bytes(each)!r}, which is no batch"


def _entries(client: valkey.Valkey, key: bytes) -> list[tuple[bytes, list[bytes]]]:
    found: list[tuple[bytes, list[bytes]]] = [(each[0], each[1]) for each in run(client, "EVAL", _READ, 1, key)]
    return found


_READ: Final = "return redis.call('XRANGE', KEYS[1], '-', '+')"


def _split(client: valkey.Valkey, prefix: bytes, rest: bytes) -> tuple[bytes, bytes, bytes]:
    """`<trigger>:<key>`; both may hold colons, so the trigger is the one whose waiting keys hold the rest."""
    at = rest.find(b":")
    while at >= 0:
        trigger, key = rest[:at], rest[at + 1 :]
        if run(client, "ZSCORE", prefix + b"waiting:" + trigger, key) is not None:
            return trigger, b":", key
        at = rest.find(b":", at + 1)
    return rest, b"", b""
