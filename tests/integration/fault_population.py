"""A mixed population of runs for the fault tests and the soak: each with what its client does and what must come out.

Every call is made again until it is acknowledged, as a careful client would. A story can be told again from
its beginning at any time: what has been done already changes nothing. Nothing here causes a fault.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import anyio

from pyrula.contracts.errors import RunCancelled, RunFailed, RunNotFound, StoreUnavailable, WrongRunState
from pyrula.workflows import WorkflowClient
from tests.integration.fault_bench import until

__all__ = ["KINDS", "Population", "Story"]

T = TypeVar("T")
KINDS: Final = ("chain", "fan", "nap", "letters", "question", "clean", "shaky")
_AGAIN: Final = 0.02
_LOOK: Final = 0.1


@dataclass(frozen=True, slots=True)
class Story:
    """A run to be, and how it must end: with this result, or cancelled (None)."""

    run_id: str
    workflow: str
    input: Mapping[str, Any]
    expected: Any


@dataclass(slots=True)
class Population:
    """Stories, told by a client. Where the server may forget what it has acknowledged (`lossy`), it starts over."""

    client: WorkflowClient
    chance: random.Random
    lossy: bool = False
    slow: float = 0.05
    stories: list[Story] = field(default_factory=list)
    submitted: list[tuple[int, Story]] = field(default_factory=list)
    """When each submission was acknowledged (ns, the clock of all processes)."""
    told: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def story(self, kind: str | None = None) -> Story:
        """Invent one more."""
        kind = kind or self.chance.choice(KINDS)
        n = self.chance.randint(1, 4)
        pause = self.chance.choice((0.0, 0.0, self.slow))
        given, expected = {
            "chain": ({"steps": n, "pause": pause}, sum(range(n))),
            "fan": ({"width": n, "pause": pause}, [*range(n), sum(range(n))]),
            "nap": ({"seconds": self.slow, "times": n}, sum(range(n)) + 1),
            "letters": ({"count": n}, [f"letter {k}" for k in range(n)]),
            "question": ({}, "answered yes"),
            "clean": ({"seconds": 600.0}, None),
            "shaky": ({"good_from": n + 2}, n + 2),
            "block": ({"seconds": n * 0.4}, 2),
        }[kind]
        # The number first: ids are read in the order of telling.
        story = Story(f"{len(self.stories):05}-{kind}-{self.chance.getrandbits(32):08x}", kind, given, expected)
        self.stories.append(story)
        return story

    async def reaches(self, number: int) -> None:
        """Wait until so many stories have been told to their ends."""
        await until(lambda: len(self.told) >= number, what=f"{number} stories told")

    async def tell(self, story: Story) -> None:
        """Do all that the story's client does, from the beginning, and see how it ends."""
        while True:
            try:
                await self._tell(story)
            except RunNotFound:
                if not self.lossy:
                    self.problems.append(f"{story.run_id} was acknowledged and is gone")
                    return
                await anyio.sleep(_AGAIN)
            else:
                self.told.add(story.run_id)
                return

    async def _tell(self, story: Story) -> None:
        name, run_id, client = story.workflow, story.run_id, self.client
        await self._acknowledged(lambda: client.submit(name, story.input, run_id=run_id))
        self.submitted.append((time.monotonic_ns(), story))
        if name == "letters":
            for n, payload in enumerate(story.expected):
                key = f"{run_id}:{n}"
                await self._acknowledged(lambda p=payload, k=key: client.signal(name, run_id, "letter", p, k))
                await anyio.sleep(self.chance.random() * self.slow)
        elif name == "clean":
            await anyio.sleep(self.chance.random() * 4 * self.slow)
            await self._acknowledged(lambda: self._unless_ended(client.cancel(name, run_id, "enough")))
        elif name == "question":
            await self._answer(run_id)
        await self._end(story)

    async def _answer(self, run_id: str) -> None:
        while True:
            run = await self._acknowledged(lambda: self.client.get("question", run_id))
            if run.status.ended:
                return
            if run.waiting_on and await self._acknowledged(
                lambda: self._unless_ended(self.client.resume("question", run_id, "yes"))
            ):
                return
            await anyio.sleep(_LOOK)

    @staticmethod
    async def _unless_ended(call: Awaitable[None]) -> bool:
        """False when the run is no longer, or not yet, in a state for this."""
        try:
            await call
        except WrongRunState:
            return False
        return True

    async def _end(self, story: Story) -> None:
        while True:
            try:
                result = await self._acknowledged(lambda: self.client.result(story.workflow, story.run_id))
            except RunCancelled as error:
                result = None
                if story.workflow != "clean":
                    self.problems.append(f"{story.run_id} was cancelled: {error}")
                    return
            except RunFailed as error:
                if story.workflow != "shaky" or error.code != "step_failed":
                    self.problems.append(f"{story.run_id} failed: {error.code}: {error}")
                    return
                await self._acknowledged(lambda: self._unless_ended(self.client.retry(story.workflow, story.run_id)))
                continue
            if result != story.expected and not self._told_again_in_another_order(story, result):
                self.problems.append(f"{story.run_id} gave {result!r}, not {story.expected!r}")
            return

    def _told_again_in_another_order(self, story: Story, result: object) -> bool:
        """A letter that a power cut took back is sent again, and then comes behind those sent since."""
        return (
            self.lossy and story.workflow == "letters" and sorted(map(str, story.expected)) == sorted(map(str, result))  # type: ignore[call-overload]  # a list of letters
        )

    async def _acknowledged(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except StoreUnavailable:
                await anyio.sleep(_AGAIN)
