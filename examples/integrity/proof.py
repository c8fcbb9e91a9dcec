"""The proof: what the journals recorded, held against what the workers really executed.

Pure: it is given journals and counts, and finds what is wrong with them. No server is asked here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import unquote

from evidence import StepName

from pyrula.workflows import Event

__all__ = ["Kill", "Proof", "recorded_steps"]

Journals = Mapping[str, Sequence[Event]]
"""Run ids, and the journal of each."""


def recorded_steps(journals: Journals) -> Counter[StepName]:
    """How often each step's outcome stands in its run's journal."""
    return Counter(
        (run_id, _step_id(event.key))
        for run_id, journal in journals.items()
        for event in journal
        if event.type == "step.completed"
    )


def _step_id(key: str) -> str:
    """The step id of an event's key, which is the path of its scope, a slash, and the id with its own escaped."""
    return unquote(key.rpartition("/")[2])


@dataclass(frozen=True, slots=True)
class Kill:
    """How things stood right after the kill, when nothing moved any more.

    at: when, aware UTC.
    claimed: the runs that the killed worker held, and the last seq of each.
    room: how many steps those runs can have under way at once.
    unfinished: how many runs had not ended.
    recorded: the steps whose outcome was in a journal.
    in_flight: the steps that had been executed, wholly or in part, and were not recorded.
    """

    at: datetime
    claimed: Mapping[str, int]
    room: int
    unfinished: int
    recorded: frozenset[StepName]
    in_flight: frozenset[StepName]


@dataclass(frozen=True, slots=True)
class Proof:
    """What can be said at the end.

    submitted, completed: runs.
    executions: how often each step was executed.
    journals: of all runs, complete.
    """

    submitted: int
    completed: int
    executions: Mapping[StepName, int]
    journals: Journals
    kill: Kill

    @property
    def executed(self) -> int:
        """Executions of steps, repeated ones included."""
        return sum(self.executions.values())

    @property
    def repeated(self) -> frozenset[StepName]:
        """The steps that were executed more than once."""
        return frozenset(step for step, times in self.executions.items() if times > 1)

    @property
    def repetitions(self) -> int:
        """Executions beyond the first of each step."""
        return self.executed - len(self.executions)

    @property
    def seconds_to_take_over(self) -> float:
        """From the kill until the last of the runs that the killed worker held went on."""
        resumed = [
            next((event.at for event in self.journals[run_id][last:]), self.kill.at)
            for run_id, last in self.kill.claimed.items()
        ]
        return max(((at - self.kill.at).total_seconds() for at in resumed), default=0.0)

    @property
    def flaws(self) -> list[str]:
        """What is not as it must be; empty when the proof holds."""
        return [*self._flaws_of_runs(), *self._flaws_of_repeats()]

    def _flaws_of_runs(self) -> Iterator[str]:
        if self.completed != self.submitted:
            yield f"{self.submitted - self.completed} runs did not complete"
        if not self.kill.unfinished:
            yield "the kill came when no run was left to do: it proves nothing"
        if broken := [run_id for run_id, journal in self.journals.items() if not whole(journal)]:
            yield f"{len(broken)} journals have gaps or do not end: {', '.join(broken[:3])}"
        recorded = recorded_steps(self.journals)
        if twice := {step for step, times in recorded.items() if times > 1}:
            yield f"{len(twice)} steps are recorded more than once: {_some(twice)}"
        if apart := recorded.keys() ^ self.executions.keys():
            yield f"{len(apart)} steps were executed and not recorded, or recorded and not executed: {_some(apart)}"

    def _flaws_of_repeats(self) -> Iterator[str]:
        kill = self.kill
        if self.repetitions > len(kill.in_flight):
            yield f"{self.repetitions} executions were repeated, {len(kill.in_flight)} steps were in flight"
        if again := kill.recorded & self.repeated:
            yield f"{len(again)} steps ran again although they had been recorded: {_some(again)}"
        if stray := self.repeated - kill.in_flight - kill.recorded:
            yield f"{len(stray)} steps ran twice without being in flight at the kill: {_some(stray)}"
        # What counts as in flight is bounded from the other side, too: by what the worker can have had under way.
        if len(kill.in_flight) > kill.room:
            yield f"{len(kill.in_flight)} steps were in flight, in {len(kill.claimed)} runs with room for {kill.room}"
        if unheld := {step for step in kill.in_flight if step[0] not in kill.claimed}:
            yield f"{len(unheld)} steps were in flight in runs that the worker did not hold: {_some(unheld)}"


def whole(journal: Sequence[Event]) -> bool:
    """Whether the seqs are 1, 2, 3 ... and the last event, and only that, completes the run."""
    return (
        bool(journal)
        and [event.seq for event in journal] == list(range(1, len(journal) + 1))
        and [event.seq for event in journal if event.type == "run.completed"] == [len(journal)]
    )


def _some(steps: Set[StepName]) -> str:
    return ", ".join(" ".join(step) for step in sorted(steps)[:3])
