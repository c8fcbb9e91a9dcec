"""What a worker does with application events: a run for each, one for many, each event once."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import anyio
import pytest

from pyrula.contracts.errors import (
    ConfigurationError,
    InvalidInput,
    NotEncodable,
    PayloadTooLarge,
    StoreUnavailable,
    TriggerNotFound,
)
from pyrula.contracts.store import Submitted
from pyrula.contracts.triggers import Trigger
from pyrula.workflows import Batch, Context, MemoryStore, On, Workflow, WorkflowClient, WorkflowWorker, workflow
from pyrula.workflows.triggering import Triggering
from pyrula.workflows.triggers import AppEvent

pytestmark = pytest.mark.anyio

START = 1_800_000_000.0


@workflow(name="paid", triggers=[On("order.paid")])
async def paid(ctx: Context, event: AppEvent) -> list[Any]:
    assert isinstance(event, AppEvent)
    assert isinstance(event.time, datetime)
    return [event.name, event.payload, event.id]


@workflow(name="large", triggers=[On("order.*", where={"customer.tier": "gold", "paid": True})])
async def large(ctx: Context, event: dict[str, Any]) -> Any:
    return event["payload"]


@workflow(name="picky", triggers=[On("order.?aid", where=lambda event: event.payload["n"] > 1)])
async def picky(ctx: Context, event: AppEvent) -> int:
    return int(event.payload["n"])


@workflow(name="digest", triggers=[Batch(on="order.*", max_size=3, max_wait=5, key="shop")])
async def digest(ctx: Context, events: list[AppEvent]) -> list[Any]:
    return [event.payload["n"] for event in events]


@workflow(name="wrong", triggers=[On("order.paid"), Batch(on="order.paid", max_size=1)])
async def wrong(ctx: Context, something: int) -> None: ...


class FragileStore(MemoryStore):
    """Loses its worker at a named call, after the call took effect or before."""

    dies_before: str = ""
    dies_after: str = ""

    async def submit(self, runs: Any) -> list[Submitted]:
        self._dies(self.dies_before, "submit")
        answer = await super().submit(runs)
        self._dies(self.dies_after, "submit")
        return answer

    async def events_done(self, trigger: str, positions: Any, refusals: Any = ()) -> None:
        self._dies(self.dies_before, "done")
        await super().events_done(trigger, positions, refusals)
        self._dies(self.dies_after, "done")

    async def batch_add(self, trigger: str, events: Any, *, max_size: int, max_wait_ms: int) -> int:
        self._dies(self.dies_before, "add")
        added = await super().batch_add(trigger, events, max_size=max_size, max_wait_ms=max_wait_ms)
        self._dies(self.dies_after, "add")
        return added

    async def batch_done(self, trigger: str, numbers: Any, refusals: Any = ()) -> None:
        self._dies(self.dies_before, "batch done")
        await super().batch_done(trigger, numbers, refusals)
        self._dies(self.dies_after, "batch done")

    def _dies(self, at: str, call: str) -> None:
        if at == call:
            self.dies_before = self.dies_after = ""
            raise StoreUnavailable("gone")


class Desk:
    """A store with a clock, and a trigger loop that is turned by hand."""

    def __init__(self, *served: Workflow, event_ttl: float = 3600.0) -> None:
        self.time = START
        self.store = FragileStore(clock=lambda: self.time, event_ttl=event_ttl)
        self.client = WorkflowClient(self.store)
        self.triggers = [each for item in served for each in item.triggers]
        self.loop = Triggering(self.store, self.triggers, limit=1 << 20)

    async def begun(self) -> Desk:
        await self.loop.act()
        return self

    async def turn(self, seconds: float = 0.0) -> None:
        self.time += seconds
        await self.loop.act()

    async def inputs(self, name: str) -> list[Any]:
        page = await self.client.list(name, limit=1000)
        runs = [await self.client.get(name, run.run_id) for run in page]
        return [run.input for run in sorted(runs, key=lambda run: run.submitted_at)]

    async def numbers(self, name: str) -> list[Any]:
        """The `n` of each run's event, or of each event of a run's batch."""
        given = await self.inputs(name)
        return sorted(
            [event["payload"]["n"] for event in each["events"]] if "events" in each else each["event"]["payload"]["n"]
            for each in given
        )


async def test_an_event_starts_a_run_of_each_workflow_that_wants_it() -> None:
    desk = await Desk(paid, picky, large).begun()
    event_id = await desk.client.emit("order.paid", {"n": 1})
    await desk.client.emit("order.paid", {"n": 2, "paid": True, "customer": {"tier": "gold"}})
    await desk.client.emit("order.placed", {"n": 3, "paid": True, "customer": {"tier": "gold"}})
    await desk.client.emit("shop.opened", {"n": 4, "paid": True, "customer": {"tier": "gold"}})
    await desk.turn()
    await desk.turn(60)
    assert await desk.numbers("paid") == [1, 2]
    assert await desk.numbers("picky") == [2]
    assert await desk.numbers("large") == [2, 3]
    [run] = [each for each in await desk.client.list("paid") if each.attributes["event_id"] == event_id]
    assert run.attributes == {"trigger": "paid/on/order.paid", "event": "order.paid", "event_id": event_id}


@pytest.mark.parametrize("when", ["dies_before", "dies_after"])
@pytest.mark.parametrize("call", ["submit", "done"])
async def test_a_worker_that_dies_in_between_starts_no_second_run(when: str, call: str) -> None:
    desk = await Desk(paid).begun()
    await desk.client.emit("order.paid", {"n": 1})
    setattr(desk.store, when, call)
    with pytest.raises(StoreUnavailable):
        await desk.turn()
    await desk.turn(60)
    await desk.turn(60)
    assert await desk.numbers("paid") == [1]
    [state] = await desk.client.trigger_list()
    assert (state.lag, state.lent) == (0, 0)


async def test_one_key_is_one_event() -> None:
    desk = await Desk(paid).begun()
    for _ in range(3):
        assert await desk.client.emit("order.paid", {"n": 1}, idempotency_key="order-7") == "order-7"
    await desk.turn()
    assert await desk.numbers("paid") == [1]


async def test_a_batch_fills_up_or_its_time_runs_out() -> None:
    desk = await Desk(digest).begun()
    for n, shop in ((1, "a"), (2, "b"), (3, "a"), (4, "a"), (5, "a")):
        await desk.client.emit("order.paid", {"n": n, "shop": shop})
    await desk.turn()
    assert await desk.numbers("digest") == [[1, 3, 4]]
    await desk.turn(4)
    assert len(await desk.numbers("digest")) == 1
    await desk.turn(1)
    assert await desk.numbers("digest") == [[1, 3, 4], [2], [5]]
    await desk.turn(60)
    assert len(await desk.numbers("digest")) == 3


@pytest.mark.parametrize("when", ["dies_before", "dies_after"])
@pytest.mark.parametrize("call", ["add", "submit", "batch done"])
async def test_a_worker_that_dies_with_a_batch_starts_no_second_run(when: str, call: str) -> None:
    desk = await Desk(digest).begun()
    for n in range(4):
        await desk.client.emit("order.paid", {"n": n})
    setattr(desk.store, when, call)
    with pytest.raises(StoreUnavailable):
        await desk.turn()
    for _ in range(4):
        await desk.turn(60)
    assert await desk.numbers("digest") == [[0, 1, 2], [3]]


async def test_what_cannot_be_acted_on_is_said_and_stops_nothing() -> None:
    desk = await Desk(picky, wrong).begun()
    bad = await desk.client.emit("order.paid", {"colour": "red"})
    await desk.client.emit("order.paid", {"n": 7})
    await desk.turn()
    assert await desk.numbers("picky") == [7]
    states = {state.name: state for state in await desk.client.trigger_list()}
    [said] = states["picky/on/order.?aid"].refused
    assert (said["event"], said["reason"]) == (bad, "KeyError: 'n'")
    for name in ("wrong/on/order.paid", "wrong/batch/order.paid"):
        assert len(states[name].refused) == 2
        assert "something" in states[name].refused[0]["reason"]
        assert (states[name].lent, states[name].ready) == (0, 0)


async def test_a_new_trigger_may_go_over_what_is_kept() -> None:
    desk = Desk(paid)
    await desk.client.emit("order.paid", {"n": 1})
    desk.time += 10
    await desk.client.emit("order.paid", {"n": 2})
    await desk.turn()
    assert await desk.numbers("paid") == []
    since = datetime.fromtimestamp(desk.time - 5).astimezone()
    await desk.client.trigger_replay("paid/on/order.paid", since)
    await desk.turn()
    assert await desk.numbers("paid") == [2]
    await desk.client.trigger_replay("paid/on/order.paid")
    await desk.turn()
    assert await desk.numbers("paid") == [1, 2]
    with pytest.raises(TriggerNotFound):
        await desk.client.trigger_replay("nobody")


async def test_events_are_kept_for_their_time() -> None:
    desk = Desk(paid, event_ttl=100)
    await desk.client.emit("order.paid", {"n": 1}, idempotency_key="k")
    desk.time += 101
    await desk.client.emit("order.paid", {"n": 2})
    await desk.turn()
    await desk.client.trigger_replay("paid/on/order.paid")
    await desk.turn()
    assert await desk.numbers("paid") == [2]


async def test_a_worker_hears_of_events() -> None:
    store = MemoryStore()
    worker = WorkflowWorker(store, [paid, digest])
    async with anyio.create_task_group() as group:
        await group.start(worker.run)
        with anyio.fail_after(10):
            while len(await worker.client.trigger_list()) < 2:  # noqa: ASYNC110 - the loops begin in their own time
                await anyio.sleep(0.01)
            event_id = await worker.client.emit("order.paid", {"n": 1})
            while not (page := await worker.client.list("paid")).runs:  # noqa: ASYNC110 - the same
                await anyio.sleep(0.01)
            expected = ["order.paid", {"n": 1}, event_id]
            assert await worker.client.result("paid", page.runs[0].run_id) == expected
        worker.stop()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: On(""), "pattern must be a non-empty string"),
        (lambda: On("a b"), "pattern 'a b'"),
        (lambda: On("a", where=5), "where=5"),  # type: ignore[arg-type]
        (lambda: Batch(on="a", max_size=0), "max_size=0"),
        (lambda: Batch(on="a", max_wait=0), "max_wait=0"),
        (lambda: Batch(on="a", key=""), "key=''"),
        (lambda: Trigger.all_of("w", ["order.*"]), "'order.*' is neither On(...) nor Batch(...)"),  # type: ignore[list-item]
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert said in str(refused.value)


async def test_what_cannot_be_emitted() -> None:
    client = WorkflowClient(MemoryStore(), payload_limit=100)
    with pytest.raises(InvalidInput, match="event"):
        await client.emit("")
    with pytest.raises(NotEncodable, match=r"payload\.a"):
        await client.emit("x", {"a": object()})
    with pytest.raises(PayloadTooLarge):
        await client.emit("x", "y" * 200)


def test_triggers_alike_have_names_of_their_own() -> None:
    names = [each.name for each in Trigger.all_of("w", [On("a", where={"x": 1}), On("a", where={"x": 2}), Batch("a")])]
    assert names == ["w/on/a", "w/on/a/2", "w/batch/a"]
