"""`pyrula events` and `pyrula triggers`: emitting, and looking after what listens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from pyrula.workflows import ValkeyStore

if TYPE_CHECKING:
    from tests.acceptance.conftest import Desk

TRIGGER = "told/on/thing.*"


async def known(desk: Desk) -> None:
    store = ValkeyStore(desk.url, namespace=desk.namespace)
    await store.events_read(TRIGGER, limit=1, lease_ms=1000)
    await store.aclose()


def test_events_are_emitted_and_triggers_looked_after(desk: Desk) -> None:
    assert desk("triggers", "list").err == "no triggers\n"
    anyio.run(known, desk)
    done = desk("events", "emit", "thing.made", '{"n": 1}', "--idempotency-key", "k1")
    assert (done.code, done.out) == (0, "event k1: thing.made emitted\n")
    assert desk("events", "emit", "thing.made", "--json").json["name"] == "thing.made"
    [state] = desk("triggers", "list", "--json").records
    assert (state["name"], state["lag"], state["lent"], state["refused"]) == (TRIGGER, 2, 0, [])
    assert TRIGGER in desk("triggers", "list").out
    assert desk("triggers", "show", TRIGGER).out == f"{TRIGGER}: 2 to come, 0 in hand, 0 batches gathering\n"
    assert desk("triggers", "replay", TRIGGER, "--since", "2h").out.endswith("goes over what is kept\n")
    assert desk("triggers", "drop", TRIGGER).out == f"trigger {TRIGGER}: forgotten\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["events", "emit", ""], "non-empty string"),
        (["events", "emit", "x", "{"], "is not JSON"),
        (["triggers", "show", "nobody"], "no trigger 'nobody'"),
        (["triggers", "replay", "nobody"], "no trigger 'nobody'"),
        (["triggers", "drop", "nobody"], "no trigger 'nobody'"),
    ],
)
def test_mistakes_are_said_in_a_line(desk: Desk, words: list[str], said: str) -> None:
    done = desk(*words)
    assert done.code != 0
    assert said in done.err
    assert "Traceback" not in done.err
