"""The runnable runs of a workflow, shared out fairly between owners. Knows ids and scores, not runs."""

from __future__ import annotations

from pyrula.workflows.stores.memory.ranking import Ranking

__all__ = ["FairQueue"]


class FairQueue:
    """One queue for each owner; the owner served least goes next.

    Each service counts two, unless the owner is alone. An owner that comes back starts at the least
    service anyone has had, plus one: behind whoever has waited for the next turn, before anyone gets
    two. So it neither banks what it did not use nor jumps the queue, and one that always comes back
    with a single run takes turns with the others.
    """

    __slots__ = ("_owners", "_queues")

    def __init__(self) -> None:
        self._queues: dict[str, Ranking[tuple[int, int]]] = {}
        self._owners: Ranking[int] = Ranking()

    def __bool__(self) -> bool:
        return bool(len(self._owners))

    def put(self, owner: str, run_id: str, place: tuple[int, int]) -> None:
        """Queue a run at its place."""
        self._queues.setdefault(owner, Ranking()).put(run_id, place)
        if owner not in self._owners:
            least = self._owners.first()
            self._owners.put(owner, 0 if least is None else self._owners.score(least) + 1)

    def discard(self, owner: str, run_id: str) -> None:
        """Take a run out, wherever it stands."""
        queue = self._queues.get(owner)
        if queue is not None:
            queue.discard(run_id)
            if not len(queue):
                self._drop(owner)

    def pop(self) -> str | None:
        """The next run, counted as a service to its owner; None when there is none."""
        owner = self._owners.first()
        if owner is None:
            return None
        queue = self._queues[owner]
        run_id = queue.pop()
        if not len(queue):
            self._drop(owner)
        elif len(self._owners) > 1:
            self._owners.put(owner, self._owners.score(owner) + 2)
        return run_id

    def _drop(self, owner: str) -> None:
        del self._queues[owner]
        self._owners.discard(owner)
