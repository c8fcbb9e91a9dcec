"""Renewing leases: which calls do it, and which leases their answers name. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyrula.contracts.store import Lease
from pyrula.workflows.stores.valkey.keys import Keys

__all__ = ["lost", "renewals"]


def renewals(
    keys: Keys, leases: Sequence[Lease], lease_ms: int
) -> tuple[list[tuple[Any, ...]], list[dict[str, Lease]]]:
    """The calls that renew these leases, and for each call its leases by run id.

    One call a shard, unless a run stands there twice (a worker that holds it anew while its
    old attempt is still ending): answers name runs, so the second goes into another call.
    """
    groups: dict[tuple[bytes, int], dict[str, Lease]] = {}
    for lease in leases:
        prefix = keys.prefix(lease.workflow, lease.run_id)
        layer = 0
        while lease.run_id in groups.setdefault((prefix, layer), {}):
            layer += 1
        groups[prefix, layer][lease.run_id] = lease
    calls = [
        (
            "heartbeat",
            prefix,
            lease_ms,
            *(part for lease in group.values() for part in (lease.run_id, lease.epoch, lease.token)),
        )
        for (prefix, _), group in groups.items()
    ]
    return calls, list(groups.values())


def lost(answers: Sequence[Sequence[bytes]], groups: Sequence[dict[str, Lease]]) -> list[Lease]:
    """The leases that the answers name as lost."""
    return [group[run_id.decode()] for answer, group in zip(answers, groups, strict=True) for run_id in answer]
