"""The client: submitting, looking, following, messages; what is refused and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import anyio
import pytest

from pyrula.contracts.errors import (
    ConfigurationError,
    IdempotencyConflict,
    InvalidInput,
    NotEncodable,
    PayloadTooLarge,
    PyrulaError,
    RunCancelled,
    RunFailed,
    RunNotFound,
    RunTerminated,
    RunTimedOut,
    WrongRunState,
)
from pyrula.contracts.options import WorkerOptions
from pyrula.contracts.runs import Run, RunStatus
from pyrula.workflows import Context, MemoryStore, Workflow, WorkflowWorker, workflow
from pyrula.workflows.client import WorkflowClient
from pyrula.workflows.registry import registry
from tests.unit.engine.harness import START, Bench, Clock, until

pytestmark = pytest.mark.anyio

HOSTILE_IDS = ["", " ", "a b", "{x}", "a}b", "a\nb", "\x00", "\x7f", "x" * 256, "\ud800", 5, b"a", ["a"]]


@pytest.fixture(autouse=True)
def known() -> Any:
    """Workflows registered by a test are forgotten after it."""
    before = dict(registry._workflows)
    yield
    registry._workflows.clear()
    registry._workflows.update(before)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def client(store: MemoryStore) -> WorkflowClient:
    return WorkflowClient(store)


@dataclass(frozen=True)
class Order:
    number: int
    due: date


def made(fn: Callable[..., Any], name: str = "work") -> Workflow:
    return Workflow(fn, name=name, version=None, timeout=None, retry=None)


# --- submit -----------------------------------------------------------------------------------


async def test_what_a_submitted_run_looks_like(client: WorkflowClient) -> None:
    run = await client.submit("work", {"n": 1}, owner="acme", priority=3, attributes={"region": "eu"})
    assert isinstance(run, Run)
    assert (run.name, run.status, run.owner, run.attempt, run.priority) == ("work", RunStatus.QUEUED, "acme", 0, 3)
    assert run.submitted_at == datetime.fromtimestamp(START, UTC)
    assert (run.input, run.attributes) == ({"n": 1}, {"region": "eu"})
    assert run == await client.get("work", run.run_id)


async def test_ids_are_new_and_in_order(client: WorkflowClient) -> None:
    runs = [await client.submit("work") for _ in range(50)]
    assert len({run.run_id for run in runs}) == 50


async def test_a_known_workflow_checks_its_input(client: WorkflowClient) -> None:
    @workflow(name="ship")
    async def ship(ctx: Context, order: Order, express: bool = False) -> None: ...

    run = await client.submit("ship", {"order": Order(5, date(2024, 5, 1))})
    assert run.input == {"order": {"number": 5, "due": "2024-05-01"}}
    await client.submit(ship, {"order": {"number": 5, "due": "2024-05-01"}, "express": True})
    for wrong in (
        None,
        {},
        {"order": 5},
        {"order": {"number": "many", "due": "2024-05-01"}},
        {"order": {"number": 5, "due": "2024-05-01"}, "unknown": 1},
        [1],
        5,
    ):
        with pytest.raises(InvalidInput):
            await client.submit("ship", wrong)  # type: ignore[arg-type]  # the point of it
    with pytest.raises(InvalidInput) as caught:
        await client.submit("ship", {"order": {"number": 5, "due": "soon"}})
    assert "order.due" in str(caught.value)
    assert await client.count("ship") == 2


async def test_an_unknown_workflow_takes_any_object(client: WorkflowClient) -> None:
    run = await client.submit("elsewhere", {"at": datetime(2024, 5, 1, tzinfo=UTC), "n": (1, 2)})
    assert run.input == {"at": "2024-05-01T00:00:00.000000Z", "n": [1, 2]}
    for wrong in ([1], 5, "x"):
        with pytest.raises(InvalidInput):
            await client.submit("elsewhere", wrong)  # type: ignore[arg-type]  # the point of it


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"a": object()}, NotEncodable),
        ({"a": float("nan")}, NotEncodable),
        ({"a": datetime(2024, 5, 1)}, NotEncodable),  # noqa: DTZ001 - the point of it
        ({"a": "\ud800"}, NotEncodable),
        ({"a": "x" * 2_000_000}, PayloadTooLarge),
    ],
)
async def test_what_cannot_be_written_is_refused_before_anything_is_sent(
    client: WorkflowClient, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        await client.submit("work", value)
    assert "input" in str(caught.value)
    assert await client.count() == 0


@pytest.mark.parametrize("name", HOSTILE_IDS)
async def test_hostile_workflow_names(client: WorkflowClient, name: Any) -> None:
    with pytest.raises((ConfigurationError, InvalidInput)):
        await client.submit(name)
    with pytest.raises(PyrulaError):
        await client.get(name, "r")
    with pytest.raises(PyrulaError):
        await client.list(name)


@pytest.mark.parametrize("value", HOSTILE_IDS)
@pytest.mark.parametrize("where", ["run_id", "owner"])
async def test_hostile_ids_and_owners(client: WorkflowClient, where: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        await client.submit("work", **{where: value})
    assert where in str(caught.value)


@pytest.mark.parametrize("value", ["", 5, b"a", "\ud800", ["x"]])
async def test_hostile_idempotency_keys(client: WorkflowClient, value: Any) -> None:
    with pytest.raises(InvalidInput):
        await client.submit("work", idempotency_key=value)
    run = await client.submit("work")
    with pytest.raises(PyrulaError):
        await client.signal("work", run.run_id, "go", idempotency_key=value)


@pytest.mark.parametrize("value", ["a b", "{x}", "日本", "x" * 5000, "a\nb"])
async def test_an_idempotency_key_is_any_text(client: WorkflowClient, value: str) -> None:
    run = await client.submit("work", idempotency_key=value)
    assert (await client.submit("work", idempotency_key=value)).run_id == run.run_id
    await client.signal("work", run.run_id, "go", idempotency_key=value)


@pytest.mark.parametrize("run_id", [each for each in HOSTILE_IDS if isinstance(each, str)] + ["nobody"])
async def test_a_run_that_cannot_be_there_is_not_found(client: WorkflowClient, run_id: str) -> None:
    await client.submit("work")
    calls: list[Callable[[], Any]] = [
        lambda: client.get("work", run_id),
        lambda: client.result("work", run_id, timeout=1.0),
        lambda: client.signal("work", run_id, "go"),
        lambda: client.resume("work", run_id, 1),
        lambda: client.cancel("work", run_id),
        lambda: client.terminate("work", run_id),
        lambda: client.retry("work", run_id),
        lambda: anext(client.events("work", run_id)),
        lambda: anext(client.events("work", run_id, follow=True)),
        lambda: anext(client.stream("work", run_id)),
    ]
    for call in calls:
        with pytest.raises((RunNotFound, InvalidInput)):
            await call()


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1.0},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": "5"},
        {"delay": True},
        {"delay": 1e15},
        {"start_at": datetime(2030, 1, 1)},  # noqa: DTZ001 - the point of it
        {"start_at": "2030-01-01"},
        {"start_at": date(2030, 1, 1)},
        {"delay": 1.0, "start_at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"run_id": "a", "idempotency_key": "b"},
        {"priority": 1.5},
        {"priority": True},
        {"priority": 10**9},
        {"attributes": [1]},
        {"attributes": "x"},
    ],
)
async def test_options_that_make_no_sense(client: WorkflowClient, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        await client.submit("work", **options)
    assert await client.count() == 0


@pytest.mark.parametrize("attributes", [{"a": object()}, {"a": float("inf")}, {1: 2}])
async def test_attributes_that_cannot_be_written(client: WorkflowClient, attributes: Any) -> None:
    with pytest.raises(NotEncodable):
        await client.submit("work", attributes=attributes)


async def test_a_repeat_under_one_key_starts_nothing(client: WorkflowClient) -> None:
    first = await client.submit("work", {"a": 1, "b": 2}, idempotency_key="k")
    again = await client.submit("work", {"b": 2, "a": 1}, idempotency_key="k")
    assert again.run_id == first.run_id
    assert await client.count("work") == 1
    with pytest.raises(IdempotencyConflict):
        await client.submit("work", {"a": 2, "b": 2}, idempotency_key="k")
    assert (await client.submit("other", {"a": 9}, idempotency_key="k")).run_id != first.run_id


async def test_a_repeat_under_one_run_id_gives_the_run_as_it_is_now(client: WorkflowClient) -> None:
    await client.submit("work", {"a": 1}, run_id="mine")
    await client.terminate("work", "mine")
    assert (await client.submit("work", {"a": 1}, run_id="mine")).status is RunStatus.TERMINATED
    with pytest.raises(IdempotencyConflict):
        await client.submit("work", {"a": 2}, run_id="mine")


async def test_many_are_all_checked_before_the_first_is_sent(client: WorkflowClient) -> None:
    with pytest.raises(InvalidInput):
        await client.submit_many([{"workflow": "work"}, {"workflow": "work", "owner": "a b"}])
    with pytest.raises((InvalidInput, TypeError)):
        await client.submit_many([{"workflow": "work"}, {"workflow": "work", "colour": "red"}])
    with pytest.raises((InvalidInput, TypeError)):
        await client.submit_many([{"workflow": "work"}, {"input": {}}])
    assert await client.count() == 0
    runs = await client.submit_many([{"workflow": "work", "input": {"n": n}} for n in range(100)])
    assert [run.input["n"] for run in runs] == list(range(100))
    assert await client.submit_many([]) == []


async def test_one_key_twice_in_one_call(client: WorkflowClient) -> None:
    one, two = await client.submit_many([{"workflow": "work", "idempotency_key": "k"}] * 2)
    assert one.run_id == two.run_id
    assert await client.count() == 1


async def test_a_delay_and_a_start_hold_the_run_back(client: WorkflowClient, store: MemoryStore, clock: Clock) -> None:
    late = await client.submit("work", delay=10.0)
    later = await client.submit("work", start_at=datetime.fromtimestamp(START + 20, UTC))
    past = await client.submit("work", start_at=datetime(2000, 1, 1, tzinfo=UTC))
    found = await client.get("work", late.run_id)
    assert found.wake_at == datetime.fromtimestamp(START + 10, UTC)

    async def runnable() -> set[str]:
        await store.wake("work", limit=10)
        return {c.run_id for c in (await store.claim("work", worker="w", limit=10, lease_ms=10**9)).claims}

    assert await runnable() == {past.run_id}
    clock.advance(11)
    assert await runnable() == {late.run_id}
    clock.advance(10)
    assert await runnable() == {later.run_id}


# --- result -------------------------------------------------------------------------------------


async def test_a_result_is_decoded_as_the_workflow_says(store: MemoryStore) -> None:
    @workflow(name="order")
    async def order(ctx: Context) -> Order:
        return Order(5, date(2024, 5, 1))

    async with anyio.create_task_group() as group:
        worker = WorkflowWorker(store, [order], WorkerOptions(shutdown_grace=1.0))
        await group.start(worker.run)
        run = await worker.client.submit("order")
        assert await worker.client.result("order", run.run_id, timeout=3.0) == Order(5, date(2024, 5, 1))
        assert (await worker.client.get("order", run.run_id)).result == {"number": 5, "due": "2024-05-01"}
        worker.stop()


@pytest.mark.parametrize("timeout", [0, -1.0, 0.03])
async def test_a_result_that_does_not_come_in_time(client: WorkflowClient, timeout: float) -> None:
    for look_first in (False, True):
        run = await client.submit("work")
        if look_first:
            await client.get("work", run.run_id)
        began = anyio.current_time()
        with pytest.raises(RunTimedOut) as caught:
            await client.result("work", run.run_id, timeout=timeout)
        assert anyio.current_time() - began < 1
        assert caught.value.code == "result_timeout"
        assert "queued" in str(caught.value)


async def test_many_wait_for_one_result() -> None:
    async def body(ctx: Context) -> int:
        return int(await ctx.wait_for_signal("go"))

    bench = Bench(body)
    run = await bench.submit()
    await bench.once(run.run_id)
    found: list[int] = []

    async def wait() -> None:
        found.append(await WorkflowClient(bench.memory).result(bench.name, run.run_id, timeout=3.0))

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(wait)
        await anyio.sleep(0.01)
        await bench.client.signal(bench.name, run.run_id, "go", 7)
        await bench.drive(run.run_id)
    assert found == [7] * 20


async def test_each_end_is_an_error_of_its_own() -> None:
    async def body(ctx: Context, how: str) -> None:
        if how == "fail":
            raise ValueError("boom")
        await ctx.wait_for_signal("go")

    bench = Bench(body)
    runs = [await bench.submit({"how": how}) for how in ("fail", "cancel", "terminate")]
    waited: list[BaseException] = []

    async def wait(run: Run) -> None:
        try:
            await bench.client.result(bench.name, run.run_id, timeout=3.0)
        except Exception as error:
            waited.append(error)

    async with anyio.create_task_group() as group:
        for run in runs:
            group.start_soon(wait, run)
        await anyio.sleep(0.01)
        await bench.drive(runs[0].run_id)
        await bench.client.cancel(bench.name, runs[1].run_id, "no need")
        await bench.drive(runs[1].run_id)
        await bench.client.terminate(bench.name, runs[2].run_id, "enough")
    for error, kind in zip(
        sorted(waited, key=lambda e: type(e).__name__), (RunCancelled, RunFailed, RunTerminated), strict=True
    ):
        assert isinstance(error, kind)
        assert error.name == bench.name
    failed = next(error for error in waited if isinstance(error, RunFailed))
    assert failed.detail["type"] == "ValueError"
    assert "boom" in str(failed)
    assert "traceback" not in failed.detail


async def test_a_run_that_is_set_aside_ends_the_wait() -> None:
    async def before(ctx: Context) -> None:
        await ctx.now()
        await ctx.wait_for_signal("go")

    async def after(ctx: Context) -> None:
        await ctx.uuid()

    bench = Bench(before)
    run = await bench.submit()
    await bench.once(run.run_id)
    bench.replace_body(after)
    async with anyio.create_task_group() as group:
        caught: list[RunFailed] = []

        async def wait() -> None:
            with pytest.raises(RunFailed) as error:
                await bench.client.result(bench.name, run.run_id, timeout=3.0)
            caught.append(error.value)

        group.start_soon(wait)
        await anyio.sleep(0.01)
        await bench.client.signal(bench.name, run.run_id, "go")
        await bench.drive(run.run_id)
    assert caught[0].code == "version_skew"


# --- following ----------------------------------------------------------------------------------


async def test_events_from_before_the_start_until_the_end() -> None:
    async def body(ctx: Context) -> int:
        await ctx.step("s", lambda: 1)
        await ctx.wait_for_signal("go")
        return 2

    bench = Bench(body)
    run = await bench.submit()
    seen: list[Any] = []

    async def follow() -> None:
        seen.extend([event async for event in bench.client.events(bench.name, run.run_id, follow=True)])

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await anyio.sleep(0.01)
            await bench.once(run.run_id)
            await anyio.sleep(0.01)
            await bench.client.signal(bench.name, run.run_id, "go")
            await bench.drive(run.run_id)
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    assert seen == await bench.events(run.run_id)
    assert seen[-1].type == "run.completed"
    assert all(event.at.tzinfo is UTC for event in seen)


async def test_following_a_run_that_has_ended_ends() -> None:
    async def body(ctx: Context) -> None: ...

    bench = Bench(body)
    run = await bench.go()
    with anyio.fail_after(1):
        seen = [event async for event in bench.client.events(bench.name, run.run_id, follow=True)]
    assert seen[-1].type == "run.completed"


async def test_events_of_a_run_that_nobody_has_claimed(client: WorkflowClient) -> None:
    run = await client.submit("work")
    assert [event async for event in client.events("work", run.run_id)] == []


async def test_a_follower_that_stops_early_leaves_nothing_behind() -> None:
    async def body(ctx: Context) -> None:
        await ctx.wait_for_signal("go")

    bench = Bench(body)
    run = await bench.submit()
    await bench.once(run.run_id)
    events = bench.client.events(bench.name, run.run_id, follow=True)
    async for _ in events:
        break
    await events.aclose()
    assert bench.memory._exchange._followers == {}


async def test_output_is_followed_live_until_the_end() -> None:
    async def body(ctx: Context) -> None:
        await ctx.stream({"n": 1})
        await ctx.wait_for_signal("go")
        await ctx.stream({"n": 2})

    bench = Bench(body)
    run = await bench.submit()
    seen: list[Any] = []

    async def follow() -> None:
        async for chunk in bench.client.stream(bench.name, run.run_id):
            seen.append(chunk)  # noqa: PERF401 - one by one, to see how far it has come

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await bench.once(run.run_id)
            await until(lambda: seen == [{"n": 1}])
            await bench.client.signal(bench.name, run.run_id, "go")
            await bench.drive(run.run_id)
    assert seen == [{"n": 1}, {"n": 2}]


async def test_a_follower_is_told_of_a_deleted_run() -> None:
    async def body(ctx: Context) -> None:
        await ctx.wait_for_signal("go")

    bench = Bench(body)
    run = await bench.submit()
    await bench.once(run.run_id)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            caught: list[str] = []

            async def follow() -> None:
                try:
                    async for _ in bench.client.events(bench.name, run.run_id, follow=True):
                        pass
                    caught.append("ended")
                except RunNotFound:
                    caught.append("gone")

            group.start_soon(follow)
            await anyio.sleep(0.01)
            bench.memory._shards[bench.name].runs.pop(run.run_id)
    assert caught == ["gone"]


# --- listing --------------------------------------------------------------------------------------


async def test_runs_are_listed_newest_first_in_pages(client: WorkflowClient, clock: Clock) -> None:
    runs = []
    for n in range(25):
        runs.append(await client.submit("work" if n % 2 else "play", {"n": n}))
        clock.advance(1)
    newest_first = [run.run_id for run in reversed(runs)]
    assert [run.run_id for run in await client.list()] == newest_first
    found: list[str] = []
    cursor: str | None = None
    pages = 0
    while True:
        page = await client.list(limit=10, cursor=cursor)
        found += [run.run_id for run in page]
        pages += 1
        cursor = page.cursor
        if cursor is None:
            break
    assert found == newest_first
    assert pages in (3, 4)
    assert [run.run_id for run in await client.list("play", limit=2)] == [runs[24].run_id, runs[22].run_id]
    assert await client.count() == 25
    assert await client.count("work") == 12
    assert await client.count("nobody") == 0
    assert list(await client.list("nobody")) == []


async def test_filters(client: WorkflowClient, clock: Clock) -> None:
    for n in range(6):
        await client.submit("work", owner=f"o{n % 2}", attributes={"n": n % 3, "even": n % 2 == 0}, run_id=f"r{n}")
        clock.advance(10)
    await client.terminate("work", "r0")

    async def ids(**filters: Any) -> list[str]:
        found = sorted(run.run_id for run in await client.list("work", **filters))
        assert await client.count("work", **filters) == len(found)
        return found

    assert await ids(status="terminated") == ["r0"]
    assert await ids(status=RunStatus.QUEUED) == ["r1", "r2", "r3", "r4", "r5"]
    assert await ids(owner="o1") == ["r1", "r3", "r5"]
    assert await ids(attributes={"n": 1}) == ["r1", "r4"]
    assert await ids(attributes={"n": 1, "even": True}) == ["r4"]
    assert await ids(attributes={"n": "1"}) == []
    assert await ids(submitted_after=datetime.fromtimestamp(START + 35, UTC)) == ["r4", "r5"]
    assert await ids(submitted_before=datetime.fromtimestamp(START + 15, UTC)) == ["r0", "r1"]
    elsewhere = datetime.fromtimestamp(START + 15, UTC).astimezone(__import__("zoneinfo").ZoneInfo("Asia/Tokyo"))
    assert await ids(submitted_before=elsewhere) == ["r0", "r1"]
    assert await ids(owner="nobody") == []


@pytest.mark.parametrize(
    "filters",
    [
        {"status": "sleepy"},
        {"status": 5},
        {"submitted_after": datetime(2030, 1, 1)},  # noqa: DTZ001 - the point of it
        {"submitted_before": "2030-01-01"},
        {"limit": 0},
        {"limit": -1},
        {"cursor": "nonsense"},
        {"attributes": [1]},
    ],
)
async def test_filters_that_make_no_sense(client: WorkflowClient, filters: dict[str, Any]) -> None:
    await client.submit("work")
    with pytest.raises(InvalidInput):
        await client.list("work", **filters)


# --- states -----------------------------------------------------------------------------------------


async def test_what_a_run_says_of_itself_through_its_life() -> None:
    async def body(ctx: Context) -> str:
        await ctx.sleep(100)
        await ctx.interrupt("sure?", key="approval")
        return "done"

    bench = Bench(body)
    run = await bench.submit()
    await bench.once(run.run_id)
    asleep = await bench.client.get(bench.name, run.run_id)
    assert (asleep.status, asleep.waiting_on, asleep.attempt) == (RunStatus.SLEEPING, "timer", 1)
    assert asleep.started_at is not None
    assert asleep.wake_at is not None
    assert timedelta(seconds=99) < asleep.wake_at - asleep.started_at < timedelta(seconds=101)
    await bench.wake(run.run_id)
    await bench.once(run.run_id)
    waiting = await bench.client.get(bench.name, run.run_id)
    assert (waiting.status, waiting.waiting_on, waiting.wake_at) == (RunStatus.WAITING, "interrupt:approval", None)
    await bench.client.resume(bench.name, run.run_id, True)
    done = await bench.drive(run.run_id)
    assert (done.status, done.result, done.waiting_on, done.wake_at) == (RunStatus.COMPLETED, "done", None, None)
    assert done.finished_at is not None
    assert done.to_json()["finished_at"].endswith("Z")
    for act in (
        lambda: bench.client.cancel(bench.name, run.run_id),
        lambda: bench.client.terminate(bench.name, run.run_id),
        lambda: bench.client.retry(bench.name, run.run_id),
        lambda: bench.client.signal(bench.name, run.run_id, "go"),
    ):
        with pytest.raises(WrongRunState) as caught:
            await act()
        assert caught.value.status == "completed"
