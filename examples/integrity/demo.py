"""The main job: check every installed distribution, lose the worker half way, and prove what that cost.

    python demo.py [--loop asyncio|trio] [--only NAME ...] [--seconds-before-kill S] [--keep DIR] [--json]

Starts an embedded server in a temporary directory and a worker process, and submits one run for each
distribution. Half way the worker gets SIGKILL; another one takes over. Exit status: 0 when the proof
holds, 1 when it does not, 130 after Ctrl-C. The course of events lives here, each part of it beside.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import anyio
import orjson
from evidence import Evidence
from processes import WorkerDied, WorkerProcess, gone
from progress import Progress, progress
from proof import Kill, Proof, recorded_steps
from report import as_json, lines
from workflows import FILES_AT_ONCE, PAGE_LINES, DistributionReport, claimed_files, verify_distribution

from pyrula.contracts.errors import PyrulaError, RunEnded
from pyrula.workflows import Event, Run, RunStatus, ValkeyStore, WorkflowClient
from pyrula.workflows.stores.valkey.embedded import EmbeddedServer

__all__: list[str] = []

LOOK_SECONDS = 0.05
LONGEST_SECONDS = 600.0
SERVER_STOP_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    loop: str
    only: list[str]
    seconds_before_kill: float | None
    keep: Path | None
    json: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the runs gave, what it proves, and every process that took part."""

    reports: list[DistributionReport]
    proof: Proof
    pids: dict[str, int]


class Demo:
    """One demo on one server: its runs, and what is known of them so far."""

    def __init__(self, options: Options, directory: Path, server: EmbeddedServer) -> None:
        self.options = options
        self.directory = directory
        self.url = f"embedded://{server.directory}"
        self.evidence = Evidence(directory / "executions.jsonl")
        self.names = distributions(options.only)
        # One step for each file, one for each page of a RECORD, and the look behind the last page.
        files = [len(claimed_files(name)) for name in self.names]
        self.steps = sum(count + -(-count // PAGE_LINES) + 1 for count in files)
        self.reports: list[DistributionReport] = []
        self.ended = 0
        self.pids = {"server": server.pid}

    async def run(self) -> Outcome:
        """From the submission to the proof. The server is up before, and still up behind it."""
        store = ValkeyStore(self.url)
        try:
            with anyio.fail_after(LONGEST_SECONDS):
                return await self._run(WorkflowClient(store))
        finally:
            self.evidence.close()
            with anyio.CancelScope(shield=True):
                await store.aclose()

    async def _run(self, client: WorkflowClient) -> Outcome:
        submissions = [{"workflow": verify_distribution, "input": {"name": name}} for name in self.names]
        runs = await client.submit_many(submissions)
        with progress(steps=self.steps, runs=len(runs), quiet=self.options.json) as display:
            async with anyio.create_task_group() as group:
                for run in runs:
                    group.start_soon(self._follow, client, run)
                with self._worker(1, display) as worker:
                    await self._half_way(worker, display)
                    worker.kill()
                kill = await self._after_kill(client, runs)
                display.note(
                    f"worker {worker.pid} killed with SIGKILL: it held {len(kill.claimed)} runs, "
                    f"{len(kill.in_flight)} steps were in flight, {len(kill.recorded)} recorded"
                )
                with self._worker(2, display) as worker:
                    await self._until(lambda: self.ended == len(runs), worker, display)
        self.evidence.read()
        proof = Proof(
            submitted=len(runs),
            completed=len(self.reports),
            executions=self.evidence.executions,
            journals={run.run_id: await journal_of(client, run) for run in runs},
            kill=kill,
        )
        return Outcome(self.reports, proof, self.pids)

    async def _follow(self, client: WorkflowClient, run: Run) -> None:
        """Wait for one run's end: the news comes from the server, whichever worker brings the run there."""
        try:
            self.reports.append(await client.result(run.name, run.run_id))
        except RunEnded as error:
            print(f"{run.input}: {error}", file=sys.stderr)
        self.ended += 1

    @contextmanager
    def _worker(self, number: int, display: Progress) -> Iterator[WorkerProcess]:
        log = self.directory / f"worker-{number}.log"
        with WorkerProcess(self.url, loop=self.options.loop, evidence=self.evidence.path, log=log) as worker:
            self.pids[f"worker {number}"] = worker.pid
            display.note(f"worker {worker.pid} started (server {self.pids['server']})")
            yield worker

    async def _half_way(self, worker: WorkerProcess, display: Progress) -> None:
        seconds = self.options.seconds_before_kill
        if seconds is None:
            await self._until(lambda: self.evidence.read() >= self.steps / 2, worker, display)
            return
        await self._until(lambda: self.evidence.read() > 0, worker, display)
        due = time.monotonic() + seconds
        await self._until(lambda: time.monotonic() >= due or self.ended == len(self.names), worker, display)

    async def _until(self, reached: Callable[[], bool], worker: WorkerProcess, display: Progress) -> None:
        """Show progress until it is so. Polls, because the files that count executions tell nobody of news."""
        while not reached():
            worker.check()
            display.update(steps=self.evidence.read(), runs=self.ended)
            await anyio.sleep(LOOK_SECONDS)
        display.update(steps=self.evidence.read(), runs=self.ended)

    async def _after_kill(self, client: WorkflowClient, runs: Sequence[Run]) -> Kill:
        """Take stock while no worker runs: journals and evidence stand still."""
        at = datetime.now(UTC)
        self.evidence.read()
        # The runs first: when they are answered, the server has also read what the worker sent last.
        now = [await client.get(run.name, run.run_id) for run in runs]
        journals = {run.run_id: await journal_of(client, run) for run in runs}
        held = [run.run_id for run in now if run.status is RunStatus.RUNNING]
        recorded = frozenset(recorded_steps(journals))
        return Kill(
            at=at,
            claimed={run_id: len(journals[run_id]) for run_id in held},
            room=len(held) * FILES_AT_ONCE,
            unfinished=sum(not run.status.ended for run in now),
            recorded=recorded,
            in_flight=frozenset(self.evidence.executions) - recorded,
        )


async def journal_of(client: WorkflowClient, run: Run) -> list[Event]:
    """A run's journal as it is now."""
    return [event async for event in client.events(run.name, run.run_id)]


def distributions(only: Sequence[str]) -> list[str]:
    """The names of the installed distributions, or of those asked for. Raises `PackageNotFoundError`."""
    if only:
        return sorted({metadata.distribution(name).name for name in only})
    # A name can be found twice on the path; the first is the one that gets imported.
    return sorted({found.name for found in metadata.distributions() if found.name}, key=str.lower)


def play(options: Options) -> tuple[Outcome, list[str]]:
    """The whole demo; behind it the server is gone, and so is the directory, whatever happened."""
    with ExitStack() as stack:
        if options.keep is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="integrity-")))
        else:
            directory = options.keep.resolve()
        server = EmbeddedServer.join(directory / "data")
        stack.callback(gone, server.pid, SERVER_STOP_SECONDS)
        stack.callback(server.leave)
        outcome = anyio.run(Demo(options, directory, server).run, backend=options.loop)
    left = [f"{name} (process {pid}) is still there" for name, pid in outcome.pids.items() if not gone(pid, 1.0)]
    return outcome, [*outcome.proof.flaws, *left]


def main() -> int:
    """Run the demo and print its report; the exit status."""
    options = parse()
    # One way out for both signals: the loop turns SIGINT into an orderly unwinding.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    started = time.monotonic()
    status = 1
    try:
        outcome, flaws = play(options)
        seconds = time.monotonic() - started
        if options.json:
            print(
                orjson.dumps(
                    as_json(outcome.reports, outcome.proof, flaws, seconds), option=orjson.OPT_INDENT_2
                ).decode()
            )
        else:
            print("\n".join(lines(outcome.reports, outcome.proof, flaws, seconds)))
        status = 1 if flaws else 0
    except* KeyboardInterrupt:
        print("interrupted; server and worker are ended", file=sys.stderr)
        status = 130
    except* (PyrulaError, WorkerDied, TimeoutError) as errors:
        for error in errors.exceptions:
            print(f"the demo failed: {str(error) or f'it took over {LONGEST_SECONDS:.0f} s'}", file=sys.stderr)
    return status


def parse() -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Check every installed distribution, and lose a worker half way.")
    parser.add_argument(
        "--loop", choices=["asyncio", "trio"], default="asyncio", help="the event loop of all processes"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these distributions instead of all")
    parser.add_argument("--seconds-before-kill", type=float, metavar="S", help="instead of half of the steps")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="an empty or new directory for data and logs, to stay")
    parser.add_argument("--json", action="store_true", help="the report as JSON; progress goes to standard error")
    given = parser.parse_args()
    options = Options(given.loop, given.only, given.seconds_before_kill, given.keep, given.json)
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        if any(options.keep.iterdir()):
            parser.error(f"{options.keep} is not empty")
    try:
        distributions(options.only)
    except metadata.PackageNotFoundError as error:
        parser.error(str(error))
    return options


if __name__ == "__main__":
    sys.exit(main())
