"""Events as a person reads them: one line each, and a summary of a whole journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pyrula.cli.output import Part
from pyrula.cli.wording import clean, clock, compact, count_of, exact, one_line
from pyrula.contracts.events import Event, EventType, from_micros

__all__ = ["event_line", "summary", "telling"]

Data = Mapping[str, Any]

_STYLE: Final = {
    EventType.RUN_COMPLETED: "green",
    EventType.RUN_FAILED: "bold red",
    EventType.RUN_CANCELLED: "red",
    EventType.RUN_TERMINATED: "red",
    EventType.STEP_FAILED: "red",
    EventType.STEP_RETRYING: "yellow",
    EventType.INTERRUPT_RAISED: "yellow",
    EventType.SIGNAL_AWAITED: "yellow",
    EventType.TIMER_SET: "magenta",
}
_TYPE_WIDTH: Final = max(len(value) for name, value in vars(EventType).items() if name.isupper())

# What is worth a number in a summary, in this order.
_COUNTED: Final = (
    (EventType.STEP_COMPLETED, "step completed", "steps completed"),
    (EventType.STEP_FAILED, "step failed", "steps failed"),
    (EventType.STEP_RETRYING, "step try put off", "step tries put off"),
    (EventType.TIMER_SET, "sleep", "sleeps"),
    (EventType.SIGNAL_RECEIVED, "signal", "signals"),
    (EventType.INTERRUPT_RAISED, "question", "questions"),
    (EventType.CHECKPOINT_SAVED, "checkpoint", "checkpoints"),
    (EventType.VALUE_RECORDED, "recorded value", "recorded values"),
    (EventType.RUN_RETRIED, "retry of the run", "retries of the run"),
)


def event_line(event: Event) -> list[Part]:
    """One event as the parts of a line: seq, time of the day, type, the call it belongs to, what it tells."""
    parts: list[Part] = [
        (f"{event.seq:>5}  ", "dim"),
        (f"{clock(event.at)}  ", "dim"),
        (event.type.ljust(_TYPE_WIDTH), _STYLE.get(event.type, "")),
    ]
    if event.key:
        parts.append(f"  {clean(event.key)}")
    if text := telling(event):
        parts.append((f"  {text}", "dim"))
    return parts


def telling(event: Event) -> str:
    """What an event's data says, in a few words; all of it for a type that is not known here."""
    if (words := _WORDS.get(event.type)) is not None:
        return words(event.data)
    if event.type in (EventType.RUN_STARTED, EventType.RUN_RESUMED):
        return f"attempt {event.attempt}"
    return compact(event.data) if event.data else ""


def _value(field: str) -> Callable[[Data], str]:
    return lambda data: compact(data.get(field))


def _text(field: str) -> Callable[[Data], str]:
    return lambda data: clean(str(data.get(field) or ""))


def _step_completed(data: Data) -> str:
    tries = data.get("attempts", 1)
    return compact(data.get("result")) + (f"  after {tries} tries" if tries > 1 else "")


def _step_failed(data: Data) -> str:
    tries = data.get("attempts", 1)
    return f"{_error(data)}  after {tries} {'try' if tries == 1 else 'tries'}"


def _awaited(data: Data) -> str:
    asked = compact(data["question"]) if "question" in data else ""
    until = f"until {_time(data['deadline'])}" if data.get("deadline") else ""
    return "  ".join(filter(None, (_name(data), asked, until)))


def _received(data: Data) -> str:
    return "  ".join(filter(None, (_name(data), compact(data.get("payload")))))


def _name(data: Data) -> str:
    """The name an author gave; a wait without one is called by its place in the journal, which is shown already."""
    name = str(data.get("name") or "")
    return "" if name.startswith("@") else clean(name)


def _error(data: Data) -> str:
    error = data.get("error") or {}
    kind = str(error.get("type") or error.get("code") or "error").rpartition(".")[2]
    message = error.get("message")
    return one_line(f"{kind}: {message}" if message else kind)


def _time(micros: int | None) -> str:
    return exact(from_micros(micros)) if micros else "an unknown time"


_WORDS: Final[Mapping[str, Callable[[Data], str]]] = {
    EventType.RUN_SUBMITTED: _value("input"),
    EventType.RUN_COMPLETED: _value("result"),
    EventType.RUN_FAILED: _error,
    EventType.RUN_CANCEL_REQUESTED: _text("reason"),
    EventType.RUN_CANCELLED: _text("reason"),
    EventType.RUN_TERMINATED: _text("reason"),
    EventType.STEP_COMPLETED: _step_completed,
    EventType.STEP_FAILED: _step_failed,
    EventType.STEP_RETRYING: lambda data: f"{_error(data)}  again at {_time(data.get('wake'))}",
    EventType.TIMER_SET: lambda data: f"until {_time(data.get('wake'))}",
    EventType.SIGNAL_AWAITED: _awaited,
    EventType.SIGNAL_RECEIVED: _received,
    EventType.INTERRUPT_RAISED: _awaited,
    EventType.INTERRUPT_RESUMED: _received,
    EventType.VALUE_RECORDED: lambda data: f"{clean(str(data.get('kind')))}  {compact(data.get('value'))}",
    EventType.VALUE_COMMITTED: _text("name"),
    EventType.EVENT_EMITTED: _text("name"),
    EventType.CHILD_STARTED: _text("workflow"),
    EventType.UPDATE_ACCEPTED: _text("name"),
    EventType.UPDATE_APPLIED: _text("name"),
    EventType.RUN_SPAWNED: _text("workflow"),
    EventType.SIGNAL_SENT: _text("name"),
    EventType.OUTPUT_WRITTEN: lambda data: f"{data.get('index')}  {compact(data.get('chunk'))}",
    EventType.CHECKPOINT_SAVED: _value("state"),
}


def summary(events: Iterable[Event]) -> str:
    """What a journal holds, counted: `42 events: 30 steps completed, 1 step failed`."""
    counts = Counter(event.type for event in events)
    parts = [f"{counts[kind]:,} {one if counts[kind] == 1 else many}" for kind, one, many in _COUNTED if counts[kind]]
    total = count_of(counts.total(), "event")
    return f"{total}: {', '.join(parts)}" if parts else total
