"""The function library: what it may cost the server, in inner commands and in bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks import inner_commands, memory
from benchmarks.function_calls import Server


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def test_a_run_of_a_hundred_steps_keeps_its_budget_of_commands(server: Server) -> None:
    inner = inner_commands.whole_run(server)
    assert inner["xadd"] == inner_commands.STEPS + 4  # each event, and the one for subscribers
    assert sum(inner.values()) <= inner_commands.LIMIT * (inner_commands.STEPS + 3)


def test_no_call_grows_by_accident(server: Server) -> None:
    found = {name: sum(inner.values()) for name, inner in inner_commands.functions(server).items()}
    assert found["append, one event"] == 2
    assert found["append, five events"] == 6
    assert found["claim, nothing queued"] == 2
    assert found["claim, 16 runs of one tenant"] <= 16 * 8
    assert max(n for name, n in found.items() if "16" not in name) <= 12


def test_an_event_of_a_finished_run_keeps_its_budget_of_memory(server: Server) -> None:
    size, _ = memory.bytes_per_event(server, runs=100)
    assert 100 < size <= memory.EVENT_LIMIT


@pytest.mark.parametrize("tenants", [1, 10])
def test_a_queued_run_keeps_its_budget_of_memory(server: Server, tenants: int) -> None:
    size, _ = memory.bytes_per_queued_run(server, runs=10_000, tenants=tenants)
    assert 300 < size <= memory.QUEUED_LIMIT
