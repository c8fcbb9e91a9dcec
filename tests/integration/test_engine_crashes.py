"""Workers that die at every write they make to a real server: the run goes on and ends the same.

A few bodies, every write, before and after it; the generated ones are tried on the memory store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from pyrula.actors.attempt import Attempt, Settings
from pyrula.actors.running import run_attempt
from pyrula.actors.supervision import OutageLog
from pyrula.contracts.runs import RunStatus
from pyrula.testing.audit import audit
from pyrula.testing.servers import PrivateServer
from pyrula.workflows import ValkeyStore, Workflow
from pyrula.workflows.bodies import body_of
from pyrula.workflows.client import WorkflowClient
from tests.unit.engine.crashing import CrashAt, all_crashes
from tests.unit.engine.programs import (
    FOR_EVER,
    Gather,
    Loop,
    Node,
    Program,
    Signal,
    Step,
    Tasks,
    Value,
    Wait,
    World,
    body_of_program,
)

pytestmark = pytest.mark.anyio

LEASE_MS = 60_000
PROGRAMS: dict[str, tuple[Node, ...]] = {
    "sequence": (Step("a"), Step("b", kind="thread"), Value("uuid"), Step("a", kind="inline"), Step("c", fails=1)),
    "waits": (Step("a"), Wait(0.005), Signal("buffered"), Signal("later"), Signal("question"), Step("b")),
    "gather": (
        Gather(((Step("a"), Step("a", kind="thread")), (Step("a", turns=3),), (Gather(((Step("a"),), ())),)), 2),
        Step("a"),
    ),
    "tasks": (Tasks(((Step("a"), Step("b")), (Step("a", turns=2),))), Step("a")),
    "published": (Value("stream"), Loop(2, (Value("commit"), Value("checkpoint"), Value("stream"))), Value("read")),
    "failure": (Step("a"), Step("b", fails=FOR_EVER), Step("c", fails=FOR_EVER, caught=False)),
}


@pytest.fixture
async def store(valkey_server: PrivateServer, namespace: str) -> AsyncIterator[ValkeyStore]:
    store = ValkeyStore(valkey_server.url, namespace=namespace, shard_count=1)
    yield store
    assert await audit(store) == []
    await store.aclose()


class Life:
    """One run of a program on the server."""

    def __init__(self, store: ValkeyStore, program: Program, run_id: str) -> None:
        self.store = store
        self.client = WorkflowClient(store)
        self.program = program
        self.run_id = run_id
        self.world = World()
        body = body_of_program(program, self.world)
        self.workflow = Workflow(body, name="work", version=None, timeout=None, retry=None)
        self.crashes = 0

    async def live(self, at: int | None, *, after: bool) -> tuple[int, dict[str, Any]]:
        """Its whole life, with a worker that dies at a write; the number of writes, and what is left."""
        await self.client.submit("work", run_id=self.run_id)
        for name in self.program.buffered:
            await self.client.signal("work", self.run_id, name, name)
        worker = CrashAt(self.store, at, after=after)
        for _ in range(100):
            run = await self.client.get("work", self.run_id)
            if run.status.ended:
                return worker.writes, await self.left()
            if run.status is RunStatus.QUEUED:
                await self._try(worker)
            elif run.wake_at is not None:
                await anyio.sleep(0.006)
                await self.store.wake("work", limit=10)
            elif (run.waiting_on or "").startswith("signal:"):
                name = str(run.waiting_on).removeprefix("signal:")
                await self.client.signal("work", self.run_id, name, name)
            else:
                await self.client.resume("work", self.run_id, "answer")
        raise AssertionError("it goes in circles")

    async def _try(self, worker: CrashAt) -> None:
        store: Any = self.store if worker.dead else worker
        lease = LEASE_MS if worker.dead else 1
        claim = await store.claim_run("work", self.run_id, worker="w", lease_ms=lease)
        assert claim is not None
        settings = Settings(cancel_timeout=1.0)
        dead_before = worker.dead
        try:
            await run_attempt(Attempt(store, claim, body_of(self.workflow), settings=settings, outage=OutageLog()))
        except BaseException as error:
            if not worker.dead or not all_crashes(error):
                raise
        if worker.dead and not dead_before:
            self.crashes += 1
            await anyio.sleep(0.002)
            await self.store.sweep("work", limit=10, requeue_budget=100, keep_ms=10**9)

    async def left(self) -> dict[str, Any]:
        events = [event async for event in self.client.events("work", self.run_id)]
        run = await self.client.get("work", self.run_id)
        keys = Counter((e.type, e.key) for e in events if e.key and e.type in ("step.completed", "step.failed"))
        assert all(times == 1 for times in keys.values()), keys
        return {
            "steps": sorted(keys),
            "seen": [place for place, _ in run.result] if run.result else (run.error or {}).get("message"),
            "values": await self.client.committed("work", self.run_id),
            "output": sorted([str(chunk) async for chunk in self.client.stream("work", self.run_id)])
            if Value("stream") in self.program.nodes
            else [],
        }


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_worker_may_die_at_any_write(store: ValkeyStore, name: str) -> None:
    program = Program(PROGRAMS[name])
    plain = Life(store, program, "plain")
    writes, expected = await plain.live(None, after=False)
    assert writes > 2
    for at in range(writes):
        for after in (False, True):
            life = Life(store, program, f"{at}-{after}")
            _, left = await life.live(at, after=after)
            assert left == expected
            assert life.crashes <= 1
            for place, tries in life.world.tries.items():
                # In-place tries of a step that always fails are made anew; all others, once more.
                fails = plain.world.tries[place] > 2
                assert tries <= plain.world.tries[place] * 2 if fails else plain.world.tries[place] + life.crashes
