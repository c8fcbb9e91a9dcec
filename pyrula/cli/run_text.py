"""Runs as a person reads them: rows of a table, and one run in full."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import orjson

from pyrula.cli.event_text import event_line, summary
from pyrula.cli.output import Output, Part, Table
from pyrula.cli.wording import STATUS_STYLE, ago, clean, compact, duration, exact, one_line
from pyrula.contracts.events import Event
from pyrula.contracts.runs import PARKED, Run, RunStatus

__all__ = ["awaited", "headline", "note_on", "own_frames", "print_run", "runs_table", "status_part"]

_LABEL: Final = 14
_LAST: Final = 10
_ENGINE: Final = re.compile(r'[/\\]pyrula[/\\](actors|workflows)[/\\][^"]*", line ')


def status_part(status: RunStatus) -> Part:
    """A status in its colour."""
    return str(status), STATUS_STYLE.get(status, "")


def note_on(run: Run, now: datetime) -> str:
    """What a run waits for or failed with."""
    if run.error is not None:
        return one_line(str(run.error.get("message") or run.error.get("reason") or run.error.get("code") or ""))
    if run.status.ended:
        return ""
    if run.status is RunStatus.WAITING and run.waiting_on:
        until = f", gives up {ago(run.wake_at, now)}" if run.wake_at is not None else ""
        return f"for {awaited(run.waiting_on)}{until}"
    return f"{_due_word(run)} {ago(run.wake_at, now)}" if run.wake_at is not None else ""


def _due_word(run: Run) -> str:
    return {RunStatus.QUEUED: "starts", RunStatus.WAITING: "gives up"}.get(run.status, "wakes")


def awaited(topic: str) -> str:
    """What a run waits on, in words: `signal paid`, `an answer to approval`."""
    kind, _, name = topic.partition(":")
    if kind == "interrupt":
        return "an answer" if name.startswith("@") else f"an answer to {clean(name)}"
    return clean(f"{kind} {name}".rstrip())


def _took(run: Run, now: datetime) -> str:
    if run.started_at is None or run.status in PARKED:
        return ""
    return duration((run.finished_at or now) - run.started_at)


def runs_table(runs: Sequence[Run], now: datetime) -> Table:
    """Runs under titles; a column that would be empty is left out."""
    columns: list[tuple[str, list[Part]]] = [
        ("RUN", [clean(run.run_id) for run in runs]),
        ("WORKFLOW", [clean(run.name) for run in runs]),
        ("STATUS", [status_part(run.status) for run in runs]),
        ("OWNER", [clean(run.owner or "") for run in runs]),
        ("SUBMITTED", [ago(run.submitted_at, now) for run in runs]),
        ("TOOK", [_took(run, now) for run in runs]),
        ("ATTRIBUTES", [_pairs(run.attributes) for run in runs]),
        ("NOTE", [(note_on(run, now), "dim") for run in runs]),
    ]
    kept = [(title, cells) for title, cells in columns if any(c if isinstance(c, str) else c[0] for c in cells)]
    rows = list(zip(*(cells for _, cells in kept), strict=True))
    return Table([title for title, _ in kept], rows, frozenset({"OWNER", "ATTRIBUTES", "NOTE"}), frozenset({"TOOK"}))


def _pairs(values: Mapping[str, Any]) -> str:
    return " ".join(f"{clean(k)}={clean(v) if isinstance(v, str) else compact(v)}" for k, v in values.items())


def headline(run: Run) -> list[Part]:
    """Workflow, id and status on one line."""
    return [(clean(run.name), "bold"), "  ", clean(run.run_id), "  ", status_part(run.status)]


def print_run(
    out: Output, run: Run, *, now: datetime, events: Sequence[Event], left_out: int, committed: Mapping[str, Any]
) -> None:
    """One run in full. `events` are the last of its journal, `left_out` the number of those before them."""
    out.line(*headline(run))
    for label, value in _facts(run, now):
        out.line((f"  {label:<{_LABEL}}", "dim"), value)
    _block(out, "Input", run.input)
    if run.status is RunStatus.COMPLETED:
        _block(out, "Result", run.result)
    if run.error is not None:
        _print_error(out, run.error)
    _print_question(out, run, events)
    for key, value in committed.items():
        _block(out, f"Published as {clean(key)}", value)
    if events or left_out:
        before = f" (counted without the {left_out:,} before them)" if left_out else ""
        out.line()
        out.line(("Journal", "bold"), f"  {summary(events)}{before}")
        for event in events[-_LAST:]:
            out.fitted(*event_line(event))


def _facts(run: Run, now: datetime) -> Iterable[tuple[str, Part]]:
    def when(time: datetime) -> str:
        return f"{exact(time)}  ({ago(time, now)})"

    if run.owner is not None:
        yield "owner", clean(run.owner)
    if run.priority:
        yield "priority", str(run.priority)
    if run.attempt:
        yield "attempt", str(run.attempt)
    if run.submitted_at is not None:
        yield "submitted", when(run.submitted_at)
    if run.started_at is not None:
        yield "started", when(run.started_at)
    if run.finished_at is not None:
        took = f", took {duration(run.finished_at - run.started_at)}" if run.started_at is not None else ""
        yield "finished", f"{when(run.finished_at)}{took}"
    if run.waiting_on is not None and run.status is RunStatus.WAITING:
        yield "waiting for", awaited(run.waiting_on)
    if run.wake_at is not None and not run.status.ended:
        yield _due_word(run), when(run.wake_at)
    if run.worker is not None:
        yield "worker", clean(run.worker)
    if run.attributes:
        yield "attributes", _pairs(run.attributes)


def _block(out: Output, title: str, value: Any) -> None:
    """A value under its title: beside it when short, else spread out below."""
    short = compact(value)
    out.line()
    if len(short) <= 60:
        out.line((title, "bold"), f"  {short}")
        return
    out.line((title, "bold"))
    for line in clean(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()).splitlines():
        out.line(f"  {line}")


def _print_error(out: Output, error: Mapping[str, Any]) -> None:
    kind = str(error.get("type") or error.get("code") or "error").rpartition(".")[2]
    message = str(error.get("message") or error.get("reason") or "")
    code = error.get("code")
    out.line()
    if error.get("type") is None and error.get("reason"):  # ended by a person, who said why
        out.line(("Reason", "bold"), f"  {one_line(message)}")
        return
    out.line(("Error", "bold red"), f"  {one_line(f'{kind}: {message}' if message else kind)}")
    if code and code != kind:
        out.line(("  code          ", "dim"), clean(str(code)))
    if error.get("detail") and code != "step_failed":  # that one's message has it all
        out.line(("  detail        ", "dim"), compact(error["detail"]))
    for line in own_frames(str(error.get("traceback") or "")):
        out.line((f"  {clean(line)}", "dim"))


def own_frames(traceback: str) -> list[str]:
    """A traceback's lines without the engine's frames; all of them when there are no others."""
    lines, kept, engine, found = traceback.splitlines(), [], False, False
    for line in lines:
        if line.startswith('  File "'):
            engine = bool(_ENGINE.search(line))
            found = found or not engine
        elif not line.startswith("    "):
            engine = False
        if not engine:
            kept.append(line)
    return kept if found else lines


def _print_question(out: Output, run: Run, events: Sequence[Event]) -> None:
    if run.status is not RunStatus.WAITING or not (run.waiting_on or "").startswith("interrupt:"):
        return
    key = (run.waiting_on or "").removeprefix("interrupt:")
    asked = [event for event in events if event.type == "interrupt.raised" and event.data.get("name") == key]
    if asked:
        _block(out, "Question", asked[-1].data.get("question"))
    out.line((f"  answer it: pyrula runs resume {clean(run.run_id)} JSON", "dim"))
