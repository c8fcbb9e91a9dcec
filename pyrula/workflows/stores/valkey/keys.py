"""The names of keys and channels of a Valkey store. Only names: nothing here talks to a server."""

from __future__ import annotations

from typing import Final

from pyrula.contracts.ids import check_namespace, check_workflow_name, shard_of

__all__ = ["Keys"]

_CACHE_LIMIT: Final = 100_000


class Keys:
    """Builds `<namespace>:{<workflow>:<shard>}:` prefixes; everything of a shard begins with its prefix."""

    def __init__(self, namespace: str, shard_count: int) -> None:
        self.namespace = check_namespace(namespace)
        self.shard_count = shard_count
        self.workflows = f"{namespace}:workflows".encode()
        self.events = f"{namespace}:{{$events}}:".encode()
        """The prefix of all that concerns application events; no shard can have it."""
        self._shards: dict[str, tuple[bytes, ...]] = {}

    def shards(self, workflow: str) -> tuple[bytes, ...]:
        """The prefixes of all shards of a workflow, by shard number."""
        found = self._shards.get(workflow)
        if found is None:
            check_workflow_name(workflow)
            found = tuple(f"{self.namespace}:{{{workflow}:{n}}}:".encode() for n in range(self.shard_count))
            if len(self._shards) * self.shard_count > _CACHE_LIMIT:
                self._shards.clear()
            self._shards[workflow] = found
        return found

    def prefix(self, workflow: str, run_id: str) -> bytes:
        """The prefix of the shard that a run lives in."""
        return self.shards(workflow)[shard_of(run_id, self.shard_count)]

    def count_key(self, workflow: str) -> bytes:
        """Where the shard count of a workflow name is recorded."""
        return self.shards(workflow)[0] + b"shards"

    def bell(self, prefix: bytes) -> bytes:
        """The channel on which a shard tells its workers what is new."""
        return prefix + b"bell"
