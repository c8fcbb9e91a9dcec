"""Child runs: what their parent's store keeps of them, and what happens to them when their parent ends."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import orjson

from pyrula.contracts.store import Claim

__all__ = ["Child", "ParentClose", "Parents", "cause_of", "derived_run_id", "parent_of"]


class ParentClose(StrEnum):
    """What becomes of a child that is open when its parent ends.

    cancel: it is asked to cancel, so that its clean-up runs.
    terminate: it is ended at once, without its worker and without clean-up.
    abandon: it is left alone.
    """

    CANCEL = "cancel"
    TERMINATE = "terminate"
    ABANDON = "abandon"


@dataclass(frozen=True, slots=True)
class Child:
    """An open child of a run."""

    workflow: str
    run_id: str
    parent_close: ParentClose

    def packed(self) -> bytes:
        """As a store keeps it."""
        return orjson.dumps([self.workflow, self.run_id, self.parent_close])

    @classmethod
    def unpacked(cls, raw: bytes) -> Child:
        """From what a store has kept."""
        workflow, run_id, parent_close = orjson.loads(raw)
        return cls(workflow, run_id, ParentClose(parent_close))


@runtime_checkable
class Parents(Protocol):
    """A store that knows the open children of a run without its journal, so that a terminate can close them."""

    async def adopt(self, claim: Claim, child: Child) -> None:
        """Note a child of a claimed run. Raises `ClaimLost`."""
        ...

    async def collected(self, claim: Claim, child_id: str) -> None:
        """The child of a claimed run is not open any more. Raises `ClaimLost`."""
        ...

    async def terminated_parents(self, workflow: str, *, older_than_ms: int) -> list[tuple[str, Sequence[Child]]]:
        """Runs that were terminated so long ago with open children, and those children, until they are `closed`."""
        ...

    async def closed(self, workflow: str, run_id: str) -> None:
        """The children of a terminated run have been closed for good."""
        ...

    async def open_children(self, workflow: str, run_id: str) -> Sequence[Child]:
        """The open children of a run, its abandoned ones not among them."""
        ...


def derived_run_id(parent: str, key: str) -> str:
    """The id of the run that a call of a run starts: the same for ever, everywhere. `parent`: workflow and run."""
    return "c" + hashlib.blake2b(f"{parent}\x00{key}".encode(), digest_size=16).hexdigest()


def parent_of(headers: bytes) -> tuple[str, str] | None:
    """The workflow and id of the parent that a run's headers name."""
    if b'"parent"' not in headers:
        return None
    parent = orjson.loads(headers).get("parent")
    return None if parent is None else (parent["workflow"], parent["run_id"])


def cause_of(workflow: str, run_id: str, ended: str) -> dict[str, Any]:
    """What the terminal event of a child says when its parent closed it. `ended`: how the parent did."""
    return {
        "reason": f"its parent {ended}",
        "requested_by": "parent",
        "detail": {"cause": {"run_id": run_id, "workflow": workflow, "ended": ended}},
    }
