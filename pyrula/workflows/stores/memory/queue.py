"""The runnable runs of a workflow, shared out fairly between owners. Knows ids and scores, not runs."""

from __future__ import annotations

from collections import OrderedDict

from pyrula.workflows.stores.memory.ranking import Ranking

__all__ = ["FairQueue"]


class FairQueue:
    """One queue for each owner; owners take turns.

    An owner whose queue was empty goes behind all others, as does one that was served: it neither
    banks what it did not use nor jumps the queue, and has waited for no more than one run of each of
    the others when it is served.
    """

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: OrderedDict[str, Ranking[tuple[int, int]]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def put(self, owner: str, run_id: str, place: tuple[int, int]) -> None:
        """Queue a run at its place."""
        self._queues.setdefault(owner, Ranking()).put(run_id, place)

    def discard(self, owner: str, run_id: str) -> None:
        """Take a run out, wherever it stands."""
        queue = self._queues.get(owner)
        if queue is not None:
            queue.discard(run_id)
            if not len(queue):
                del self._queues[owner]

    def pop(self) -> str | None:
        """The next run, a turn of its owner's; None when there is none."""
        if not self._queues:
            return None
        owner, queue = next(iter(self._queues.items()))
        run_id = queue.pop()
        if len(queue):
            self._queues.move_to_end(owner)
        else:
            del self._queues[owner]
        return run_id
