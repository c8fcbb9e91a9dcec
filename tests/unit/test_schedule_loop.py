"""What a worker does with schedules: each occurrence once, overlap, missed ones, accidents in between."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import anyio
import pytest

from pyrula.actors.doorbell import Doorbell
from pyrula.contracts.errors import ScheduleNotFound, StoreUnavailable
from pyrula.contracts.events import parse
from pyrula.contracts.runs import RunStatus
from pyrula.contracts.schedules import occurrence_run_id
from pyrula.contracts.store import Submitted
from pyrula.workflows import Context, InlineWorkflowRunner, MemoryStore, WorkflowClient, WorkflowWorker, workflow
from pyrula.workflows.schedules import Schedule
from pyrula.workflows.scheduling import Scheduler

pytestmark = pytest.mark.anyio

START = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC).timestamp()


@workflow(name="report")
async def report(ctx: Context, window: str = "1h") -> str:
    return window


class Clock:
    """A store's clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> float:
        return self.time


class FragileStore(MemoryStore):
    """Loses its worker at a named call, after the call took effect or before."""

    dies_before: str = ""
    dies_after: str = ""

    async def submit(self, runs: Any) -> list[Submitted]:
        self._dies(self.dies_before, "submit")
        answer = await super().submit(runs)
        self._dies(self.dies_after, "submit")
        return answer

    async def schedules_fired(self, workflow: str, moves: Any) -> list[bool]:
        self._dies(self.dies_before, "fired")
        answer = await super().schedules_fired(workflow, moves)
        self._dies(self.dies_after, "fired")
        return answer

    def _dies(self, at: str, call: str) -> None:
        if at == call:
            self.dies_before = self.dies_after = ""
            raise StoreUnavailable("gone")


class Desk:
    """A store with its clock, and a schedule loop that is turned by hand."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = FragileStore(clock=self.clock)
        self.client = WorkflowClient(self.store)
        self.scheduler = Scheduler(self.store, self.client, ["report"], Doorbell(), limit=1 << 20)

    async def turn(self, seconds: float = 0.0) -> None:
        self.clock.time += seconds
        await self.scheduler.fire_due("report")

    async def runs(self) -> list[str]:
        """The minutes and seconds that runs are for, oldest first."""
        page = await self.client.list("report", limit=1000)
        return sorted(datetime.fromisoformat(str(run.attributes["scheduled_for"])).strftime("%M:%S") for run in page)

    async def outcomes(self, schedule_id: str) -> list[tuple[str, str]]:
        kept = await self.client.schedule_get(schedule_id)
        return [(each.occurrence.strftime("%M:%S"), each.outcome) for each in reversed(kept.outcomes)]

    async def end(self, run_id: str) -> None:
        await InlineWorkflowRunner(self.store).run("report", run_id)


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_an_occurrence_starts_one_run(desk: Desk) -> None:
    made = await desk.client.schedule_create(report, "* * * * *", {"window": "2h"}, owner="acme", priority=2)
    await desk.turn(59)
    assert await desk.runs() == []
    await desk.turn(1)
    await desk.turn()
    await desk.turn(30)
    assert await desk.runs() == ["01:00"]
    [run] = await desk.client.list("report")
    assert (run.owner, run.attributes["schedule_id"]) == ("acme", made.schedule_id)
    whole = await desk.client.get("report", run.run_id)
    assert whole.input == {"window": "2h"}
    [said] = (await desk.client.schedule_get(made.schedule_id)).outcomes
    assert (said.run_id, said.outcome) == (run.run_id, "started")
    await desk.turn(30)
    assert await desk.runs() == ["01:00", "02:00"]


async def test_after_a_downtime_one_run_stands_for_all(desk: Desk) -> None:
    made = await desk.client.schedule_create(report, "* * * * *")
    await desk.turn(10 * 60 + 5)
    assert await desk.runs() == ["01:00"]
    kept = await desk.client.schedule_get(made.schedule_id)
    assert kept.next_at == datetime(2026, 5, 1, 12, 11, tzinfo=UTC)
    await desk.turn(55)
    assert await desk.runs() == ["01:00", "11:00"]


async def test_a_catch_up_window_brings_back_what_was_missed_in_it(desk: Desk) -> None:
    await desk.client.schedule_create(report, "* * * * *", catch_up=180)
    await desk.turn(10 * 60 + 5)
    assert await desk.runs() == ["08:00", "09:00", "10:00"]
    await desk.turn(55)
    assert await desk.runs() == ["08:00", "09:00", "10:00", "11:00"]


async def test_with_a_window_that_holds_none_the_last_one_missed_is_made_up_for(desk: Desk) -> None:
    await desk.client.schedule_create(report, "0 * * * *", catch_up=60)
    await desk.turn(3600 + 600)
    assert await desk.runs() == ["00:00"]


@pytest.mark.parametrize("when", ["dies_before", "dies_after"])
@pytest.mark.parametrize("call", ["submit", "fired"])
async def test_a_worker_that_dies_in_between_starts_no_second_run(desk: Desk, when: str, call: str) -> None:
    made = await desk.client.schedule_create(report, "* * * * *")
    setattr(desk.store, when, call)
    with pytest.raises(StoreUnavailable):
        await desk.turn(61)
    await desk.turn(3)  # still lent to the one that died
    await desk.turn(20)
    await desk.turn()
    assert await desk.runs() == ["01:00"]
    assert await desk.outcomes(made.schedule_id) == [("01:00", "started")]
    occurrence = int((START + 60) * 1_000_000)
    assert (await desk.client.get("report", occurrence_run_id(made.schedule_id, occurrence))).status == "queued"


async def test_skip_leaves_out_what_overlaps(desk: Desk) -> None:
    made = await desk.client.schedule_create(report, "* * * * *", overlap="skip")
    for _ in range(3):
        await desk.turn(60)
    assert await desk.outcomes(made.schedule_id) == [("01:00", "started"), ("02:00", "skipped"), ("03:00", "skipped")]
    assert await desk.runs() == ["01:00"]
    [run] = await desk.client.list("report")
    await desk.end(run.run_id)
    await desk.turn(60)
    assert await desk.runs() == ["01:00", "04:00"]


async def test_queue_waits_for_the_run_before(desk: Desk) -> None:
    made = await desk.client.schedule_create(report, "* * * * *", overlap="queue")
    await desk.turn(60)
    [run] = await desk.client.list("report")
    await desk.turn(60)
    await desk.turn(30)
    assert await desk.runs() == ["01:00"]
    await desk.end(run.run_id)
    await desk.turn(1)
    assert await desk.runs() == ["01:00", "02:00"]
    assert await desk.outcomes(made.schedule_id) == [("01:00", "started"), ("02:00", "started")]


async def test_cancel_asks_the_run_before_to_end(desk: Desk) -> None:
    await desk.client.schedule_create(report, "* * * * *", overlap="cancel")
    await desk.turn(60)
    [run] = await desk.client.list("report")
    await desk.turn(60)
    await desk.turn(1)
    await desk.turn(1)
    assert await desk.runs() == ["01:00"]
    await desk.end(run.run_id)
    assert (await desk.client.get("report", run.run_id)).status == "cancelled"
    journal = await desk.store.read_journal("report", run.run_id)
    assert [parse(seq, raw).type for seq, raw in journal].count("cancel.requested") <= 1
    await desk.turn(1)
    assert await desk.runs() == ["01:00", "02:00"]


async def test_an_input_that_is_refused_is_said_and_stops_nothing(desk: Desk) -> None:
    wrong = await desk.client.schedule_create("report", "* * * * *", {"colour": "red"})
    right = await desk.client.schedule_create("report", "* * * * *", {"window": "x"})
    await desk.turn(60)
    await desk.turn(60)
    assert await desk.runs() == ["01:00", "02:00"]
    assert await desk.outcomes(wrong.schedule_id) == [("01:00", "refused"), ("02:00", "refused")]
    assert "colour" in (await desk.client.schedule_get(wrong.schedule_id)).outcomes[0].reason
    assert await desk.outcomes(right.schedule_id) == [("01:00", "started"), ("02:00", "started")]


async def test_a_paused_one_rests_and_goes_on_without_making_up(desk: Desk) -> None:
    made = await desk.client.schedule_create(report, "* * * * *")
    await desk.client.schedule_update(made.schedule_id, enabled=False)
    await desk.turn(300)
    assert await desk.runs() == []
    await desk.client.schedule_update(made.schedule_id, enabled=True)
    await desk.turn(60)
    assert await desk.runs() == ["06:00"]


async def test_the_last_occurrence_is_the_last(desk: Desk) -> None:
    end = datetime.fromtimestamp(START + 130, UTC)
    made = await desk.client.schedule_create(report, "* * * * *", ends_at=end)
    for _ in range(5):
        await desk.turn(60)
    assert await desk.runs() == ["01:00", "02:00"]
    assert (await desk.client.schedule_get(made.schedule_id)).next_at is None


async def test_jitter_puts_off_and_changes_no_identity(desk: Desk) -> None:
    await desk.client.schedule_create(report, "* * * * *", jitter=50, schedule_id="j")
    await desk.turn(60)
    assert await desk.runs() == []
    await desk.turn(50)
    assert await desk.runs() == ["01:00"]


async def test_trigger_starts_a_run_now_and_leaves_the_times_alone(desk: Desk) -> None:
    made = await desk.client.schedule_create(report, "0 0 * * *", {"window": "9h"})
    run = await desk.client.schedule_trigger(made.schedule_id)
    assert (run.status, run.input) == (RunStatus.QUEUED, {"window": "9h"})
    kept = await desk.client.schedule_get(made.schedule_id)
    assert (kept.next_at, kept.last_at) == (made.next_at, None)
    assert [(each.outcome, each.run_id) for each in kept.outcomes] == [("triggered", run.run_id)]
    with pytest.raises(ScheduleNotFound):
        await desk.client.schedule_trigger("nobody")


async def test_many_are_fired_in_one_go(desk: Desk) -> None:
    for n in range(600):
        await desk.store.aschedule_create(Schedule.create("report", "* * * * *", schedule_id=f"s{n}"))
    await desk.turn(60)
    assert await desk.runs() == ["01:00"] * 600


async def test_a_worker_fires_on_time_and_hears_of_new_ones() -> None:
    store = MemoryStore()
    worker = WorkflowWorker(store, [report])
    async with anyio.create_task_group() as group:
        await group.start(worker.run)
        made = await worker.client.schedule_create(report, interval=0.3)
        with anyio.fail_after(10):
            while len((await worker.client.schedule_get(made.schedule_id)).outcomes) < 3:  # noqa: ASYNC110
                await anyio.sleep(0.02)
        kept = await worker.client.schedule_get(made.schedule_id)
        for said in kept.outcomes:
            assert (said.at - said.occurrence).total_seconds() >= 0
            assert await worker.client.result("report", said.run_id, timeout=10) == "1h"
        times = [said.occurrence for said in reversed(kept.outcomes)]
        beats = [(later - sooner).total_seconds() / 0.3 for sooner, later in pairwise(times)]
        assert beats == pytest.approx([round(beat) for beat in beats])
        assert min(beats) > 0.5
        worker.stop()
