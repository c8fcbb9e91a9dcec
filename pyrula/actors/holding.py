"""The attempts that a worker holds, and what becomes of their leases. Whoever renews them is elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pyrula.actors.attempt import Attempt
from pyrula.contracts.errors import ClaimLost
from pyrula.contracts.store import Lease

__all__ = ["HeldAttempts"]


class HeldAttempts(dict[tuple[str, str], Attempt]):
    """By workflow and run id. `leases` and `extend` may be called from the lease thread."""

    def leases(self) -> list[Lease]:
        """What is held now; the copy is made in one step."""
        return [
            Lease(each.claim.workflow, each.claim.run_id, each.claim.epoch, each.claim.token)
            for each in tuple(self.values())
        ]

    def extend(self, leases: Iterable[Lease], lost: Collection[Lease], until: float) -> None:
        """Let attempts know how long their leases last now (monotonic)."""
        for lease in leases:
            attempt = self._of(lease)
            if attempt is not None and lease not in lost:
                attempt.lease_until = until

    def end(self, lost: Iterable[Lease]) -> None:
        """End the attempts whose leases are lost."""
        for lease in lost:
            attempt = self._of(lease)
            if attempt is not None:
                attempt.stop(ClaimLost(f"the lease of run {lease.run_id!r} is lost"))

    def _of(self, lease: Lease) -> Attempt | None:
        """The attempt that holds its run under this very lease; a run may have been claimed anew since."""
        attempt = self.get((lease.workflow, lease.run_id))
        if attempt is None or (attempt.claim.epoch, attempt.claim.token) != (lease.epoch, lease.token):
            return None
        return attempt
