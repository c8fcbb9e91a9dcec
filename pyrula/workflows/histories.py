"""Recorded histories of runs, and their replay against today's code. Reads files; talks to no store.

A history is what `pyrula runs events --json` prints: one event a line.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import anyio
import orjson

from pyrula.actors.rehearsing import Difference, Rehearsed, rehearse
from pyrula.contracts.errors import ConfigurationError, InvalidInput
from pyrula.contracts.events import Event, EventType, entry, to_micros
from pyrula.workflows.bodies import body_of
from pyrula.workflows.registry import Workflow, registry

__all__ = ["Difference", "History", "ReplayReport", "history_files", "load_history", "replay_history", "workflow_of"]

_SUFFIXES: Final = (".jsonl", ".json")


@dataclass(frozen=True, slots=True)
class History:
    """The journal of one run, or several one after the other.

    `workflow` and `run_id` are empty, and `path` None, where they are not known.
    """

    events: tuple[Event, ...]
    workflow: str = ""
    run_id: str = ""
    path: Path | None = None

    def __post_init__(self) -> None:
        if not self.events or self.events[0].seq != 1:
            raise InvalidInput(f"{self.name} is no history: it must begin with seq 1, run.submitted", "history")
        for journal in self.journals:
            if journal[0].type != EventType.RUN_SUBMITTED:
                raise InvalidInput(f"{self.name} is no history: seq 1 must be run.submitted", "history")
            for number, event in enumerate(journal, 1):
                if event.seq != number:
                    raise InvalidInput(
                        f"{self.name} is no whole history: where seq {number} belongs it has {event.seq}", "history"
                    )

    @property
    def journals(self) -> list[tuple[Event, ...]]:
        """The events of each journal: a run that continues as new begins another one, at seq 1."""
        starts = [index for index, event in enumerate(self.events) if event.seq == 1]
        return [self.events[a:b] for a, b in zip(starts, [*starts[1:], len(self.events)], strict=True)]

    @property
    def name(self) -> str:
        """What a person calls it by."""
        return str(self.path) if self.path is not None else f"the history of run {self.run_id or '?'}"


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What came of replaying a history: `ok`, or the first `difference`.

    workflow, history: what was replayed. events: how many the history has. reached: in words, how far
    the code came.
    """

    workflow: str
    history: str
    events: int
    reached: str
    difference: Difference | None = None

    @property
    def ok(self) -> bool:
        """True when today's code would go on with this run as it was recorded."""
        return self.difference is None

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready form; `difference` is null where there is none."""
        return {"ok": self.ok, **asdict(self)}

    def __str__(self) -> str:
        head = f"{self.history} ({self.workflow}, {self.events} events)"
        found = self.difference
        if found is None:
            return f"{head}: replays; reached {self.reached}"
        lines = [
            f"{head}: {found.message}",
            f"  recorded: {found.recorded}" + (f"  (seq {found.seq})" if found.seq is not None else ""),
            f"  now:      {found.asked}" + (f"  at {found.where}" if found.where else ""),
        ]
        return "\n".join(lines)


def load_history(path: str | Path) -> History:
    """Read a file of events, one JSON object a line. Raises `InvalidInput` that names file and line."""
    path = Path(path)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror or error}", "history") from error
    events: list[Event] = []
    named: dict[str, Any] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                record = orjson.loads(line)
                events.append(_event(record))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InvalidInput(
                    f"{path}:{number} is no event ({type(error).__name__}: {error}); "
                    "record histories with `pyrula runs events --json`",
                    "history",
                ) from error
            named = record
    return History(tuple(events), named.get("workflow", ""), named.get("run_id", ""), path)


def _event(record: dict[str, Any]) -> Event:
    at = datetime.fromisoformat(record["at"])
    return Event(int(record["seq"]), record["type"], at, int(record["attempt"]), record["key"], dict(record["data"]))


def workflow_of(history: History, among: Iterable[Workflow] | None = None) -> Workflow:
    """The workflow that a history belongs to: the one it names, else its file or folder, else the only one there is.

    Raises `ConfigurationError` when that is not clear.
    """
    known = {item.name: item for item in (registry.all() if among is None else among)}
    names = [history.workflow] if history.workflow else _names_of(history.path)
    for name in names:
        if name in known:
            return known[name]
    if not history.workflow and len(known) == 1:
        return next(iter(known.values()))
    told = f"workflow {history.workflow!r}" if history.workflow else "its workflow"
    raise ConfigurationError(
        f"{history.name}: {told} is not among those known here ({', '.join(sorted(known)) or 'none'}); "
        "import its module, or put the file into a folder of the workflow's name"
    )


def _names_of(path: Path | None) -> list[str]:
    """Names that a file may be called by: `order.jsonl`, `order.2026-03.jsonl`, `order/anything.jsonl`."""
    if path is None:
        return []
    return [path.name.removesuffix(path.suffix), path.name.partition(".")[0], path.absolute().parent.name]


def replay_history(
    workflow: Workflow,
    history: History | str | Path | Iterable[Event],
    *,
    patience: float = 0.5,
    loop: str = "asyncio",
) -> ReplayReport:
    """Replay a history against a workflow's code as it is now. Blocks; may be called inside a running loop.

    No step runs and nothing is written anywhere: a call without a record ends the replay. It runs in a
    thread of its own with an event loop of its own, of the kind that `loop` names.

    patience: seconds that calls beside each other wait for each other, before they differ.
    """
    if isinstance(history, str | Path):
        history = load_history(history)
    elif not isinstance(history, History):
        history = History(tuple(history))
    done = Rehearsed(None, "")
    for journal in history.journals:
        done = _in_a_loop(loop, workflow, history.run_id or "replayed", journal, patience)
        if done.difference is not None:
            break
    return ReplayReport(workflow.name, history.name, len(history.events), done.reached, done.difference)


def _in_a_loop(loop: str, workflow: Workflow, run_id: str, journal: tuple[Event, ...], patience: float) -> Rehearsed:
    """Replay one journal in a thread with a loop of its own."""
    entries = [(each.seq, entry(each.type, to_micros(each.at), each.attempt, each.key, each.data)) for each in journal]
    done: list[Rehearsed] = []
    errors: list[BaseException] = []

    async def work() -> None:
        done.append(await rehearse(body_of(workflow), workflow.name, run_id, entries, patience=patience))

    def run() -> None:
        try:
            anyio.run(work, backend=loop)
        except BaseException as error:  # noqa: BLE001 - raised where the replay was asked for
            errors.append(error)

    thread = threading.Thread(target=run, name="pyrula-replay", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return done[0]


def history_files(folder: str | Path) -> list[Path]:
    """The files of histories in a folder and those below it, sorted."""
    return sorted(path for path in Path(folder).rglob("*") if path.suffix in _SUFFIXES and path.is_file())
