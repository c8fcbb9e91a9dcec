"""Traces across submit, attempts and steps: what is joined, what is linked, and what must never be in a span."""

from __future__ import annotations

import contextvars
import json
import re
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode

from pyrula.actors import tracing
from pyrula.actors.observing import observe
from pyrula.contracts.errors import RunFailed, RunNotFound
from pyrula.contracts.store import Claim
from pyrula.testing.servers import PrivateServer
from pyrula.workflows import (
    Context,
    InlineWorkflowRunner,
    MemoryStore,
    NonRetryable,
    Retry,
    RunStatus,
    ValkeyStore,
    WorkflowClient,
    WorkflowWorker,
    workflow,
)

pytestmark = pytest.mark.anyio

SECRET = "s3cr3t-payload"
AT_ONCE = Retry(max_attempts=3, initial=0.0)
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tracing" / "traced_order.py"
TRACED_WORKER = Path(__file__).with_name("traced_worker.py")


class Clock:
    """Seconds since the epoch, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class Spans:
    """What has been exported so far."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def all(self) -> list[ReadableSpan]:
        """Every span, in the order in which they ended."""
        return list(self._exporter.get_finished_spans())

    def names(self) -> list[str]:
        """Their names, in that order."""
        return [span.name for span in self.all()]

    def named(self, name: str) -> list[ReadableSpan]:
        """All spans of that name."""
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only span of that name."""
        [span] = self.named(name)
        return span

    def forget(self) -> None:
        """Begin anew."""
        self._exporter.clear()


@contextmanager
def tracing_by(provider: trace.TracerProvider | None) -> Iterator[None]:
    """Make it the process's provider for a while; the API itself lets it be set once only."""
    patch = pytest.MonkeyPatch()
    patch.setattr(trace, "_TRACER_PROVIDER", provider)
    try:
        yield
    finally:
        patch.undo()


@pytest.fixture
def spans() -> Iterator[Spans]:
    """A tracer provider that keeps its spans in memory."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with tracing_by(provider):
        yield Spans(exporter)


@pytest.fixture
def clock() -> Clock:
    """The store's clock."""
    return Clock()


@pytest.fixture
def runner(clock: Clock) -> InlineWorkflowRunner:
    """A runner on a memory store whose clock the test moves."""
    return InlineWorkflowRunner(MemoryStore(clock=clock))


def of(span: ReadableSpan, name: str) -> Any:
    """One attribute."""
    return (span.attributes or {}).get(name)


def identity(span: ReadableSpan) -> tuple[int, int]:
    """Trace and span id."""
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def trace_id(span: ReadableSpan) -> int:
    """The trace it belongs to."""
    return identity(span)[0]


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    """Whether `parent` is its parent, in the same trace."""
    return span.parent is not None and (span.parent.trace_id, span.parent.span_id) == identity(parent)


def linked_to(span: ReadableSpan) -> list[tuple[int, int]]:
    """Trace and span ids of its links."""
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def mine(name: str) -> trace.Tracer:
    """A tracer of the application's own."""
    return trace.get_tracer(name)


async def wake(runner: InlineWorkflowRunner, clock: Clock, seconds: float, name: str) -> None:
    """Let time pass, and queue what is due."""
    clock.now += seconds
    store = runner.store
    assert isinstance(store, MemoryStore)
    await store.wake(name, limit=10)


# --- bodies ------------------------------------------------------------------------------


async def plain(value: int) -> int:
    return value


@workflow(name="traced-order")
async def order(ctx: Context, amount: int) -> int:
    await ctx.step("reserve", plain, amount)
    await ctx.wait_for_signal("paid")
    return await ctx.step("ship", plain, amount)


@workflow(name="traced-naps")
async def naps(ctx: Context, naps: list[float]) -> int:
    for number, seconds in enumerate(naps):
        await ctx.sleep(seconds)
        await ctx.step(f"after-{number}", plain, number)
    return len(naps)


def in_a_thread() -> str:
    with mine("app").start_as_current_span("inner thread"):
        return "done"


async def in_place() -> str:
    with mine("app").start_as_current_span("inner async"):
        await anyio.lowlevel.checkpoint()
        return "done"


@workflow(name="traced-inner")
async def inner(ctx: Context) -> list[str]:
    with mine("app").start_as_current_span("inner body"):
        first = await ctx.step("thread", in_a_thread)
        return [first, *await ctx.gather(ctx.step("left", in_place), ctx.step("right", in_place))]


_failures: list[Exception] = []


def failing() -> None:
    if _failures:
        raise _failures.pop(0)


@workflow(name="traced-failing")
async def failing_order(ctx: Context) -> None:
    await ctx.step("charge", failing, retry=AT_ONCE)


# --- one trace ---------------------------------------------------------------------------


async def test_a_run_joins_the_trace_of_its_submitter(spans: Spans, runner: InlineWorkflowRunner) -> None:
    with mine("app").start_as_current_span("request") as request:
        run = await runner.client.submit(order, {"amount": 3}, owner="acme")
    await runner.run(run.name, run.run_id)
    await runner.client.signal(run.name, run.run_id, "paid")
    await runner.run(run.name, run.run_id)

    submit = spans.one("submit traced-order")
    first, second = spans.named("run traced-order")
    reserve, ship = spans.one("step reserve"), spans.one("step ship")
    assert submit.parent == request.get_span_context()
    assert is_child(first, submit)
    assert is_child(second, submit)
    assert is_child(reserve, first)
    assert is_child(ship, second)
    assert [span.kind for span in (submit, first, reserve)] == [SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.INTERNAL]
    assert not any(span.links for span in spans.all())

    assert dict(first.attributes or {}) == {
        "pyrula.workflow": "traced-order",
        "pyrula.run_id": run.run_id,
        "pyrula.attempt": 1,
        "pyrula.owner": "acme",
        "pyrula.worker": "inline",
        "pyrula.status": "parked",
    }
    assert (of(second, "pyrula.attempt"), of(second, "pyrula.status")) == (2, "completed")
    assert dict(ship.attributes or {}) == {
        "pyrula.workflow": "traced-order",
        "pyrula.run_id": run.run_id,
        "pyrula.attempt": 2,
        "pyrula.step_id": "ship",
        "pyrula.key": "ship",
        "pyrula.try": 1,
        "pyrula.function": "plain",
        "pyrula.status": "completed",
    }
    assert all(span.status.status_code is StatusCode.UNSET for span in spans.all())


async def test_what_is_replayed_makes_no_span(spans: Spans, runner: InlineWorkflowRunner, clock: Clock) -> None:
    run = await runner.client.submit(naps, {"naps": [1.0, 1.0, 1.0]})
    while (await runner.client.get(run.name, run.run_id)).status is not RunStatus.COMPLETED:
        await runner.run(run.name, run.run_id)
        await wake(runner, clock, 2, run.name)
    assert [of(span, "pyrula.attempt") for span in spans.named("run traced-naps")] == [1, 2, 3, 4]
    assert [name for name in spans.names() if name.startswith("step")] == [
        "step after-0",
        "step after-1",
        "step after-2",
    ]


async def test_a_run_that_nobody_traced_begins_a_trace_of_its_own(spans: Spans, runner: InlineWorkflowRunner) -> None:
    with tracing_by(None):
        run = await runner.client.submit(order, {"amount": 1})
    with mine("app").start_as_current_span("somebody else's"):
        await runner.run(run.name, run.run_id)
    attempt = spans.one("run traced-order")
    assert attempt.parent is None
    assert not attempt.links
    assert is_child(spans.one("step reserve"), attempt)


async def test_an_attempt_does_not_inherit_what_is_current_where_the_worker_was_started(spans: Spans) -> None:
    store = MemoryStore()
    worker = WorkflowWorker(store, [order])
    run = await WorkflowClient(store).submit(order, {"amount": 1})
    with mine("app").start_as_current_span("startup"):
        async with anyio.create_task_group() as group:
            await group.start(worker.run)
            await worker.client.signal(run.name, run.run_id, "paid")
            assert await worker.client.result(run.name, run.run_id) == 1
            worker.stop()
    submit = spans.one("submit traced-order")
    assert {trace_id(span) for span in spans.all() if span.name.startswith(("run", "step"))} == {trace_id(submit)}
    assert {of(span, "pyrula.worker") for span in spans.named("run traced-order")} == {worker.worker_id}


async def test_many_runs_are_submitted_under_one_span(spans: Spans, runner: InlineWorkflowRunner) -> None:
    runs = await runner.client.submit_many(
        [{"workflow": order, "input": {"amount": n}} for n in range(3)] + [{"workflow": inner}]
    )
    submit = spans.one("submit")
    assert (of(submit, "pyrula.runs"), of(submit, "pyrula.created")) == (4, 4)
    for run in runs:
        await runner.run(run.name, run.run_id)
    assert all(is_child(span, submit) for span in spans.all() if span.name.startswith("run "))


async def test_a_repeated_submission_leaves_the_run_in_its_first_trace(
    spans: Spans, runner: InlineWorkflowRunner
) -> None:
    run = await runner.client.submit(order, {"amount": 1}, idempotency_key="k")
    await runner.client.submit(order, {"amount": 1}, idempotency_key="k")
    await runner.run(run.name, run.run_id)
    first, second = spans.named("submit traced-order")
    assert [of(span, "pyrula.created") for span in (first, second)] == [1, 0]
    assert is_child(spans.one("run traced-order"), first)


async def test_baggage_comes_along(spans: Spans, runner: InlineWorkflowRunner) -> None:
    seen: list[object] = []

    def look() -> None:
        seen.append(baggage.get_baggage("region"))

    @workflow(name="traced-baggage")
    async def luggage(ctx: Context) -> None:
        await ctx.step("look", look)

    token = otel_context.attach(baggage.set_baggage("region", "eu"))
    run = await runner.client.submit(luggage)
    otel_context.detach(token)
    await runner.run(run.name, run.run_id)
    assert seen == ["eu"]


async def test_an_unsampled_submitter_stays_unsampled(spans: Spans, runner: InlineWorkflowRunner) -> None:
    with tracing_by(TracerProvider(sampler=ParentBased(ALWAYS_OFF))):
        run = await runner.client.submit(order, {"amount": 1})
    await runner.run(run.name, run.run_id)
    assert spans.names() == []


# --- linked traces -----------------------------------------------------------------------


@pytest.mark.parametrize(("rests", "linked"), [([60.0] * 3, []), ([60.0, 301.0, 60.0], [3, 4]), ([298.0] * 13, [14])])
async def test_a_long_rest_or_a_long_life_begins_linked_traces(
    spans: Spans, runner: InlineWorkflowRunner, clock: Clock, rests: list[float], linked: list[int]
) -> None:
    run = await runner.client.submit(naps, {"naps": rests})
    for rest in rests:
        await runner.run(run.name, run.run_id)
        await wake(runner, clock, rest + 0.5, run.name)
    await runner.run(run.name, run.run_id)
    assert (await runner.client.get(run.name, run.run_id)).status is RunStatus.COMPLETED

    submit = spans.one("submit traced-naps")
    attempts = {of(span, "pyrula.attempt"): span for span in spans.named("run traced-naps")}
    assert [number for number, span in attempts.items() if not is_child(span, submit)] == linked
    for number in linked:
        span = attempts[number]
        assert span.parent is None
        assert linked_to(span) == [identity(submit)]
    traces = {trace_id(span) for span in attempts.values()}
    assert len(traces) == len(linked) + (len(linked) < len(attempts))
    assert all(not span.links for number, span in attempts.items() if number not in linked)


async def test_a_run_that_waited_long_in_its_queue_is_linked(
    spans: Spans, runner: InlineWorkflowRunner, clock: Clock
) -> None:
    run = await runner.client.submit(order, {"amount": 1})
    clock.now += tracing.LONGEST_REST + 1
    await runner.run(run.name, run.run_id)
    assert linked_to(spans.one("run traced-order")) == [identity(spans.one("submit traced-order"))]


# --- the application's own spans ---------------------------------------------------------


async def test_spans_of_bodies_steps_and_threads_have_their_place(spans: Spans, runner: InlineWorkflowRunner) -> None:
    run = await runner.client.submit(inner)
    await runner.run(run.name, run.run_id)
    body, attempt = spans.one("inner body"), spans.one("run traced-inner")
    assert is_child(body, attempt)
    assert is_child(spans.one("inner thread"), spans.one("step thread"))
    left, right = spans.one("step left"), spans.one("step right")
    assert all(is_child(span, body) for span in (spans.one("step thread"), left, right))
    under = spans.named("inner async")
    assert len(under) == 2
    assert sum(is_child(span, left) for span in under) == sum(is_child(span, right) for span in under) == 1


async def test_nothing_stays_current_after_an_attempt(spans: Spans, runner: InlineWorkflowRunner) -> None:
    run = await runner.client.submit(inner)
    with mine("app").start_as_current_span("outer") as outer:
        await runner.run(run.name, run.run_id)
        assert trace.get_current_span() is outer


# --- errors ------------------------------------------------------------------------------


async def test_each_try_has_its_span_and_its_error(spans: Spans, runner: InlineWorkflowRunner) -> None:
    _failures[:] = [ConnectionError(SECRET), KeyError(SECRET)]
    run = await runner.client.submit(failing_order)
    await runner.run(run.name, run.run_id)
    tries = spans.named("step charge")
    assert [of(span, "pyrula.try") for span in tries] == [1, 2, 3]
    assert [of(span, "error.type") for span in tries] == ["ConnectionError", "KeyError", None]
    assert [span.status.status_code for span in tries] == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    assert [of(span, "pyrula.status") for span in tries] == ["failed", "failed", "completed"]
    assert spans.one("run traced-failing").status.status_code is StatusCode.UNSET


async def test_a_failed_run_names_the_error_that_failed_it(spans: Spans, runner: InlineWorkflowRunner) -> None:
    _failures[:] = [NonRetryable(SECRET)]
    run = await runner.client.submit(failing_order)
    await runner.run(run.name, run.run_id)
    step, attempt = spans.one("step charge"), spans.one("run traced-failing")
    assert of(step, "pyrula.error_code") == "non_retryable"
    assert (of(attempt, "pyrula.status"), of(attempt, "pyrula.error_code")) == ("failed", "step_failed")
    assert of(attempt, "error.type") == "pyrula.contracts.errors.NonRetryable"
    assert attempt.status.status_code is StatusCode.ERROR
    assert attempt.status.description is None
    assert not any(span.events for span in spans.all())


async def test_a_steps_system_exit_is_its_failure(spans: Spans, runner: InlineWorkflowRunner) -> None:
    @workflow(name="traced-exit")
    async def leaving(ctx: Context) -> None:
        await ctx.step("leave", sys.exit, 3, retry=Retry(max_attempts=1))

    run = await runner.client.submit(leaving)
    await runner.run(run.name, run.run_id)
    assert (of(spans.one("step leave"), "error.type"), of(spans.one("step leave"), "pyrula.status")) == (
        "SystemExit",
        "failed",
    )


async def test_a_cancelled_step_is_interrupted_and_no_error(spans: Spans) -> None:
    started = anyio.Event()

    async def long() -> None:
        started.set()
        await anyio.sleep_forever()

    @workflow(name="traced-cancelled")
    async def endless(ctx: Context) -> None:
        await ctx.step("long", long)

    worker = WorkflowWorker(MemoryStore(), [endless])
    async with anyio.create_task_group() as group:
        await group.start(worker.run)
        run = await worker.client.submit(endless)
        await started.wait()
        await worker.client.cancel(run.name, run.run_id)
        with pytest.raises(Exception, match="cancelled"):
            await worker.client.result(run.name, run.run_id)
        worker.stop()
    step, attempt = spans.one("step long"), spans.one("run traced-cancelled")
    assert (of(step, "pyrula.status"), of(attempt, "pyrula.status")) == ("interrupted", "cancelled")
    assert {step.status.status_code, attempt.status.status_code} == {StatusCode.UNSET}
    assert is_child(step, attempt)


def test_a_step_that_is_thrown_away_is_interrupted(spans: Spans, caplog: pytest.LogCaptureFixture) -> None:
    observer = observe(Claim(workflow="traced-abandoned", run_id="r1", epoch=1, attempt=1, seq=2, now=0))
    assert observer is not None

    @types.coroutine
    def for_ever() -> Generator[None, None, None]:
        while True:
            yield

    async def abandoned() -> None:
        with observer.step("long", "long", 1, "long"):
            await for_ever()

    body = abandoned()
    contextvars.copy_context().run(body.send, None)
    body.close()  # in another context than it was in
    step = spans.one("step long")
    assert (of(step, "pyrula.status"), step.status.status_code) == ("interrupted", StatusCode.UNSET)
    assert caplog.records == []


async def test_what_a_client_does_to_a_run(spans: Spans, runner: InlineWorkflowRunner) -> None:
    run = await runner.client.submit(order, {"amount": 1})
    await runner.client.signal(run.name, run.run_id, "paid", {"card": SECRET})
    await runner.client.cancel(run.name, run.run_id, SECRET)
    await runner.client.terminate(run.name, run.run_id, SECRET)
    with pytest.raises(RunNotFound):
        await runner.client.signal(run.name, "unheard-of", "paid")
    assert spans.names()[1:] == [f"{verb} traced-order" for verb in ("signal", "cancel", "terminate", "signal")]
    first, *_, last = spans.named("signal traced-order")
    assert dict(first.attributes or {}) == {
        "pyrula.workflow": "traced-order",
        "pyrula.run_id": run.run_id,
        "pyrula.topic": "signal:paid",
    }
    assert first.kind is SpanKind.CLIENT
    assert (last.status.status_code, of(last, "pyrula.error_code")) == (StatusCode.ERROR, RunNotFound.code)


# --- what must not be there --------------------------------------------------------------


async def test_no_payload_is_in_any_span(spans: Spans, runner: InlineWorkflowRunner) -> None:
    @workflow(name="traced-secrets")
    async def secrets(ctx: Context, word: str) -> str:
        ctx.set_attributes(word=word)
        await ctx.checkpoint({"word": word})
        await ctx.commit("word", word)
        await ctx.stream(word)
        with pytest.raises(Exception, match=SECRET):
            await ctx.step("fail", refuse, word, retry=Retry(max_attempts=2, initial=0.0))
        word = await ctx.step("echo", echo, word)
        word = await ctx.wait_for_signal("word")
        await ctx.interrupt({"ask": word}, key="ask")
        raise RuntimeError(word)

    def refuse(word: str) -> None:
        raise ValueError(word)

    def echo(word: str) -> str:
        return word

    client = runner.client
    run = await client.submit(secrets, {"word": SECRET}, attributes={"word": SECRET})
    await runner.run(run.name, run.run_id)
    await client.signal(run.name, run.run_id, "word", SECRET)
    await runner.run(run.name, run.run_id)
    await client.resume(run.name, run.run_id, SECRET, key="ask")
    await runner.run(run.name, run.run_id)
    await client.cancel(run.name, (await client.submit(secrets, {"word": SECRET})).run_id, SECRET)
    with pytest.raises(RunFailed, match=SECRET):
        await client.result(run.name, run.run_id)

    assert {"step fail", "step echo", "resume traced-secrets", "cancel traced-secrets"} <= set(spans.names())
    assert len(spans.named("run traced-secrets")) == 3
    assert SECRET not in "".join(span.to_json() for span in spans.all())


async def test_without_a_provider_a_run_carries_nothing(runner: InlineWorkflowRunner) -> None:
    with tracing_by(None):
        run = await runner.client.submit(order, {"amount": 1})
        assert tracing.tracer() is None
    with tracing_by(trace.NoOpTracerProvider()):
        other = await runner.client.submit(order, {"amount": 1})
        assert tracing.tracer() is None
    for each in (run, other):
        assert (await runner.store.load(each.name, each.run_id)).headers == b"{}"


async def test_a_provider_that_is_set_late_is_honoured() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    worker = WorkflowWorker(MemoryStore(), [inner])
    with tracing_by(None):
        async with anyio.create_task_group() as group:
            await group.start(worker.run)
            run = await worker.client.submit(inner)
            await worker.client.result(run.name, run.run_id)
            assert not exporter.get_finished_spans()
            with tracing_by(provider):
                run = await worker.client.submit(inner)
                await worker.client.result(run.name, run.run_id)
            worker.stop()
    assert "step thread" in Spans(exporter).names()
    assert of(Spans(exporter).one("submit traced-inner"), "pyrula.run_id") == run.run_id


class _Broken(SpanProcessor):
    """An application's mistake."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise RuntimeError("broken at the start")

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("broken at the end")


async def test_tracing_that_fails_costs_no_run(
    runner: InlineWorkflowRunner, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing.Live, "_complained", False)
    provider = TracerProvider()
    provider.add_span_processor(_Broken())
    _failures[:] = [ConnectionError("once")]
    with tracing_by(provider):
        run = await runner.client.submit(failing_order)
        await runner.run(run.name, run.run_id)
    assert (await runner.client.get(run.name, run.run_id)).status is RunStatus.COMPLETED
    assert [record.name for record in caplog.records if record.name.startswith("pyrula")] == ["pyrula.tracing"]


@pytest.mark.parametrize("headers", [b'{"traceparent":5}', b'{"traceparent":"no"}', b"[]"])
async def test_a_run_with_odd_headers_is_run(
    spans: Spans, runner: InlineWorkflowRunner, monkeypatch: pytest.MonkeyPatch, headers: bytes
) -> None:
    claim_run = runner.store.claim_run

    async def odd(*args: Any, **kwargs: Any) -> Any:
        claim = await claim_run(*args, **kwargs)
        assert claim is not None
        object.__setattr__(claim, "headers", headers)
        return claim

    monkeypatch.setattr(runner.store, "claim_run", odd)
    run = await runner.client.submit(order, {"amount": 1})
    await runner.run(run.name, run.run_id)
    assert spans.one("run traced-order").parent is None


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_the_example_shows_one_tree(loop: str) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--loop", loop], capture_output=True, text=True, timeout=40, check=False
    )
    assert done.returncode == 0, done.stderr
    tree = [re.sub(r"^ *[0-9.]+ ms  ", "", line) for line in done.stdout.splitlines()[1:]]
    stock, price = "      step stock  (try 1, completed)", "      step price  (try 1, completed)"
    assert tree[:3] == ["POST /orders", "  submit order", "    run order  (attempt 1, parked)"]
    assert set(tree[3:5]) == {stock, price}
    assert tree[5:] == [
        "      step charge  (try 1, failed, ConnectionError)",
        "      step charge  (try 2, completed)",
        "    run order  (attempt 2, completed)",
        "      step ship  (try 1, completed)",
        "        carrier",
        "resume order",
    ]


# --- processes ---------------------------------------------------------------------------


class Traced:
    """A worker process that writes each span it ends to a file of its own."""

    def __init__(self, server: PrivateServer, namespace: str, folder: Path, name: str, loop: str) -> None:
        self.file = folder / f"{name}.jsonl"
        self.process = subprocess.Popen(
            [sys.executable, TRACED_WORKER, server.url, namespace, self.file, loop, folder / "hold"]
        )

    def spans(self) -> list[dict[str, Any]]:
        """What it has exported."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [json.loads(line) for line in lines]

    def kill(self) -> None:
        """SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


async def until(reached: Callable[[], bool]) -> None:
    """What is waited for happens in another process, which announces nothing."""
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline, "it did not happen within 30 s"
        await anyio.sleep(0.02)


def step_names(spans: Sequence[dict[str, Any]]) -> list[str]:
    return [span["name"] for span in spans if span["name"].startswith("step ")]


async def test_one_trace_over_a_killed_worker(
    spans: Spans,
    valkey_server: PrivateServer,
    namespace: str,
    tmp_path: Path,
    anyio_backend_name: str,
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    store = ValkeyStore(valkey_server.url, namespace=namespace)
    client = WorkflowClient(store)
    workers = []
    try:
        workers.append(Traced(valkey_server, namespace, tmp_path, "one", anyio_backend_name))
        with mine("app").start_as_current_span("request"):
            run = await client.submit("traced-processes")
        # The first step is done; the second one holds as long as the file is there.
        await until((tmp_path / "hold.reached").exists)
        workers[0].kill()
        hold.unlink()
        workers.append(Traced(valkey_server, namespace, tmp_path, "two", anyio_backend_name))
        assert await client.result(run.name, run.run_id, timeout=40) == "done"
        await until(lambda: any(span["name"].startswith("run ") for span in workers[1].spans()))
    finally:
        for worker in workers:
            worker.kill()
        await store.aclose()

    one, two = workers[0].spans(), workers[1].spans()
    submit = spans.one("submit traced-processes")
    assert {span["context"]["trace_id"] for span in one + two} == {f"0x{trace_id(submit):032x}"}
    assert step_names(one) == ["step first"]
    assert step_names(two) == ["step second", "step third"]
    [attempt] = [span for span in two if span["name"] == "run traced-processes"]
    assert attempt["parent_id"] == f"0x{identity(submit)[1]:016x}"
    assert attempt["attributes"]["pyrula.attempt"] == 2
    assert {span["parent_id"] for span in two if span["name"].startswith("step ")} == {attempt["context"]["span_id"]}
