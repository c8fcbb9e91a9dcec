"""Fixtures of the engine's tests: the process's registry is left as it was found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyrula.workflows.registry import registry


@pytest.fixture(autouse=True)
def clean_registry() -> Iterator[None]:
    """Workflows that a test registers are forgotten after it."""
    before = dict(registry._workflows)
    yield
    registry._workflows.clear()
    registry._workflows.update(before)
