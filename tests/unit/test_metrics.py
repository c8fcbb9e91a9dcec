"""Metrics: what is counted and measured, in seconds, with few attributes; and queue depths only for those who ask."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from pyrula.actors import metrics as engine_metrics
from pyrula.actors.metrics import Countable, QueueDepths
from pyrula.actors.observing import CountedOutages
from pyrula.contracts.errors import ClaimLost, StoreUnavailable
from pyrula.workflows import (
    Context,
    InlineWorkflowRunner,
    MemoryStore,
    Retry,
    WorkflowWorker,
    workflow,
)

pytestmark = pytest.mark.anyio

ALLOWED = {"pyrula.workflow", "pyrula.status", "pyrula.function", "error.type"}


class Clock:
    """Seconds since the epoch, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class Figures:
    """What a collection gives."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)

    def points(self, name: str) -> list[Any]:
        """The data points of a metric."""
        return [point for metric in self.metrics() if metric.name == name for point in metric.data.data_points]

    def metrics(self) -> list[Any]:
        """All metrics of the engine's."""
        data = self.reader.get_metrics_data()
        return [
            metric
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            if scope.scope.name == "pyrula"
            for metric in scope.metrics
        ]

    def total(self, name: str, **attributes: str) -> float:
        """The sum of a counter, or the number of a histogram's recordings, over the points with these attributes."""
        wanted = {f"pyrula.{key}": value for key, value in attributes.items()}
        found = [point for point in self.points(name) if wanted.items() <= dict(point.attributes).items()]
        return float(sum(point.count if hasattr(point, "count") else point.value for point in found))


def provide(monkeypatch: pytest.MonkeyPatch, provider: metrics.MeterProvider | None) -> None:
    """Make it the process's provider for a test; the API itself lets it be set once only."""
    monkeypatch.setitem(metrics.get_meter_provider.__globals__, "_METER_PROVIDER", provider)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[Figures]:
    """A meter provider that is read in this process."""
    found = Figures()
    provide(monkeypatch, found.provider)
    yield found
    found.provider.shutdown()


@pytest.fixture
def clock() -> Clock:
    """The store's clock."""
    return Clock()


@pytest.fixture
def runner(clock: Clock) -> InlineWorkflowRunner:
    """A runner on a memory store whose clock the test moves."""
    return InlineWorkflowRunner(MemoryStore(clock=clock))


_failures: list[Exception] = []


def work() -> None:
    if _failures:
        raise _failures.pop(0)


@workflow(name="measured")
async def measured(ctx: Context, rest: float = 0.0) -> str:
    await ctx.step("work", work, retry=Retry(max_attempts=3, initial=0.0))
    if rest:
        await ctx.sleep(rest)
    return "done"


@workflow(name="measured-again", retry=Retry(max_attempts=2, initial=10.0, jitter=0.0))
async def again(ctx: Context) -> None:
    await ctx.step("work", work, retry=Retry(max_attempts=1))


async def test_a_run_is_measured(figures: Figures, runner: InlineWorkflowRunner, clock: Clock) -> None:
    run = await runner.client.submit(measured, {"rest": 40.0})
    clock.now += 7
    await runner.run(run.name, run.run_id)
    clock.now += 41
    assert isinstance(runner.store, MemoryStore)
    await runner.store.wake(run.name, limit=10)
    await runner.run(run.name, run.run_id)

    [wait] = figures.points("pyrula.claim.wait")
    assert (wait.count, wait.sum) == (1, pytest.approx(7.0))
    [whole] = figures.points("pyrula.run.duration")
    assert (whole.count, whole.sum) == (1, pytest.approx(41.0, abs=0.9))
    assert dict(whole.attributes) == {"pyrula.workflow": "measured", "pyrula.status": "completed"}
    assert figures.total("pyrula.attempt.duration", status="parked") == 1
    assert figures.total("pyrula.attempt.duration", status="completed") == 1
    assert figures.total("pyrula.run.parks", workflow="measured") == 1
    [step] = figures.points("pyrula.step.duration")
    assert dict(step.attributes) == {"pyrula.workflow": "measured", "pyrula.function": "work"}
    assert (step.count, 0 <= step.sum < 5) == (1, True)


@pytest.mark.parametrize("delay", [{"delay": 60.0}, {"start_at": None}])
async def test_the_wait_of_a_delayed_run_counts_from_when_it_is_due(
    figures: Figures, runner: InlineWorkflowRunner, clock: Clock, delay: dict[str, Any]
) -> None:
    if "start_at" in delay:
        delay = {"start_at": datetime.fromtimestamp(clock.now + 60, UTC)}
    run = await runner.client.submit(measured, **delay)
    clock.now += 65
    assert isinstance(runner.store, MemoryStore)
    await runner.store.wake(run.name, limit=10)
    await runner.run(run.name, run.run_id)
    [wait] = figures.points("pyrula.claim.wait")
    assert wait.sum == pytest.approx(5.0)


async def test_retries_are_counted(figures: Figures, runner: InlineWorkflowRunner) -> None:
    _failures[:] = [KeyError("a"), KeyError("b")]
    run = await runner.client.submit(measured)
    await runner.run(run.name, run.run_id)
    assert figures.total("pyrula.step.retries", workflow="measured", function="work") == 2
    by_error = {dict(p.attributes).get("error.type"): p.count for p in figures.points("pyrula.step.duration")}
    assert by_error == {"KeyError": 2, None: 1}


async def test_a_run_that_is_tried_again_and_fails(
    figures: Figures, runner: InlineWorkflowRunner, clock: Clock
) -> None:
    _failures[:] = [KeyError("a"), OSError("b")]
    run = await runner.client.submit(again)
    await runner.run(run.name, run.run_id)
    assert (figures.total("pyrula.run.retries"), figures.total("pyrula.run.parks")) == (1, 1)
    assert figures.total("pyrula.run.duration") == 0
    clock.now += 11
    assert isinstance(runner.store, MemoryStore)
    await runner.store.wake(run.name, limit=10)
    await runner.run(run.name, run.run_id)
    [whole] = figures.points("pyrula.run.duration")
    assert dict(whole.attributes) == {
        "pyrula.workflow": "measured-again",
        "pyrula.status": "failed",
        "error.type": "OSError",
    }


async def test_a_lost_claim_is_counted(
    figures: Figures, runner: InlineWorkflowRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: Any, **__: Any) -> None:
        raise ClaimLost("gone")

    monkeypatch.setattr(runner.store, "append", lost)
    run = await runner.client.submit(measured)
    await runner.run(run.name, run.run_id)
    assert figures.total("pyrula.claim.losses", workflow="measured") == 1
    assert figures.total("pyrula.attempt.duration", status="lost") == 1
    assert figures.total("pyrula.run.duration") == 0


def test_an_outage_is_counted_once(figures: Figures) -> None:
    outage = CountedOutages()
    for _ in range(2):
        for _ in range(3):
            outage.failed(StoreUnavailable("away"))
        outage.succeeded()
    assert figures.total("pyrula.store.outages") == 2


async def test_names_units_and_attributes(figures: Figures, runner: InlineWorkflowRunner) -> None:
    _failures[:] = [KeyError("a")]
    run = await runner.client.submit(measured, owner="acme")
    await runner.run(run.name, run.run_id)
    found = figures.metrics()
    assert {metric.name for metric in found} == {
        "pyrula.claim.wait",
        "pyrula.attempt.duration",
        "pyrula.run.duration",
        "pyrula.step.duration",
        "pyrula.step.retries",
    }
    units = {metric.name: metric.unit for metric in found}
    assert {unit for name, unit in units.items() if name.endswith((".duration", ".wait"))} == {"s"}
    assert units["pyrula.step.retries"] == "{retry}"
    keys = {key for metric in found for point in metric.data.data_points for key in point.attributes}
    assert keys <= ALLOWED
    [step] = [point for point in figures.points("pyrula.step.duration") if "error.type" not in point.attributes]
    assert 0.001 in step.explicit_bounds  # seconds, not the milliseconds that the SDK's own bounds are made for


# --- queue depths ------------------------------------------------------------------------


class Counting(MemoryStore):
    """A store that can tell how long a queue is; tells when it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = 0
        self.asked = 0
        self.away = False
        self.read = anyio.Event()

    async def queue_depth(self, workflow: str) -> int:
        self.asked += 1
        self.read.set()
        if self.away:
            raise StoreUnavailable("away")
        return self.depth


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings are made without a pause for the next collection to come near."""
    monkeypatch.setattr(engine_metrics, "_LOOK", 0.01)


async def test_a_queue_is_read_only_for_those_who_collect(figures: Figures, at_once: None) -> None:
    store = Counting()
    store.depth = 3
    assert isinstance(store, Countable)
    async with anyio.create_task_group() as group:
        group.start_soon(QueueDepths(store, ["measured"]).run)
        await anyio.wait_all_tasks_blocked()
        await turns(20)
        assert store.asked == 0
        assert figures.points("pyrula.queue.depth") == []  # asks for the first reading
        await store.read.wait()
        await anyio.wait_all_tasks_blocked()
        await turns(20)
        assert store.asked == 1
        [point] = figures.points("pyrula.queue.depth")
        assert (point.value, dict(point.attributes)) == (3, {"pyrula.workflow": "measured"})
        group.cancel_scope.cancel()
    assert figures.points("pyrula.queue.depth") == []


async def turns(number: int) -> None:
    """Let the loop look for a reading that is due, so many times."""
    for _ in range(number):
        await anyio.sleep(engine_metrics._LOOK)


def test_a_reading_is_made_shortly_before_the_next_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    at = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: at[0])
    depths = QueueDepths(Counting(), ["measured"])
    wanted = []
    for second in range(1, 241):
        at[0] += 1
        if second % 60 == 0:
            depths.collected()
        if depths.wanted():
            wanted.append(second)
    assert wanted == [60, 178, 238]  # the first at once: nothing is known of the period yet


async def test_old_depths_are_not_shown_while_the_store_is_away() -> None:
    store = Counting()
    store.depth = 2
    depths = QueueDepths(store, ["measured"])
    await depths.read()
    assert depths.collected() == {"measured": 2}
    store.away = True
    with pytest.raises(StoreUnavailable):
        await depths.read()
    assert depths.collected() == {}


async def test_a_worker_offers_its_queues(figures: Figures, at_once: None) -> None:
    store = Counting()
    store.depth = 5
    worker = WorkflowWorker(store, [measured])
    async with anyio.create_task_group() as group:
        await group.start(worker.run)
        await turns(2)
        figures.points("pyrula.queue.depth")
        await store.read.wait()
        while not (points := figures.points("pyrula.queue.depth")):
            await turns(1)
        worker.stop()
    assert [(point.value, dict(point.attributes)) for point in points] == [(5, {"pyrula.workflow": "measured"})]


async def test_without_a_provider_nothing_is_asked_or_made(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in (None, metrics.NoOpMeterProvider()):
        provide(monkeypatch, provider)
        assert engine_metrics.instruments() is None
    store = Counting()
    worker = WorkflowWorker(store, [measured])
    async with anyio.create_task_group() as group:
        await group.start(worker.run)
        await turns(10)
        worker.stop()
    assert store.asked == 0


def test_the_instruments_are_made_once_for_a_provider(figures: Figures, monkeypatch: pytest.MonkeyPatch) -> None:
    first = engine_metrics.instruments()
    assert first is not None
    assert engine_metrics.instruments() is first
    other = Figures()
    provide(monkeypatch, other.provider)
    assert engine_metrics.instruments() is not first
    other.provider.shutdown()
