"""Imports run down the house; the checker that says so finds what it is meant to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_floors import ROOMS, check

PACKAGE = Path(__file__).resolve().parents[2] / "pyrula"


def findings_for(tmp_path: Path, where: str, code: str) -> list[str]:
    """What the checker says about a package that holds this one file."""
    path = tmp_path / "pyrula" / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code, encoding="utf-8")
    return [f"{finding.line} {finding.imported}: {finding.reason}" for finding in check(tmp_path / "pyrula")]


def test_the_package_keeps_the_rule() -> None:
    findings = check(PACKAGE)
    assert not findings, "\n" + "\n".join(map(str, findings))


def test_every_folder_of_the_package_is_a_room() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and not path.name.startswith("__")}
    assert folders <= {room.partition(".")[0] for room in ROOMS}


def test_no_room_may_import_one_on_its_own_floor_or_above() -> None:
    for name, room in ROOMS.items():
        for below in room.rooms:
            assert ROOMS[below].floor < room.floor, f"{name} may import {below}"


@pytest.mark.parametrize(
    ("where", "code", "reason"),
    [
        pytest.param(
            "actors/core/journal.py", "from pyrula.actors.run import Run", "upstairs, from floor 1 to floor 2", id="up"
        ),
        pytest.param(
            "contracts/store.py", "import pyrula.workflows.client", "upstairs, from floor 0 to floor 3", id="plain"
        ),
        pytest.param("actors/run.py", "from ..workflows import Context", "upstairs", id="relative"),
        pytest.param("actors/__init__.py", "from . import core\nfrom .. import workflows", "upstairs", id="parent"),
        pytest.param("projections/archive.py", "from pyrula import workflows", "upstairs", id="from the package"),
        pytest.param(
            "projections/archive.py",
            "from pyrula.workflows.stores.valkey import store",
            "sideways, from projections to workflows.stores",
            id="sideways",
        ),
        pytest.param("actors/run.py", "from pyrula.workflows.stores import memory", "sideways", id="nested room"),
        pytest.param("cli/app.py", "import pyrula.http", "sideways, from cli to http", id="edge to edge"),
        pytest.param(
            "http/app.py", "from pyrula.actors.run import Run", "not among what http may import", id="too far down"
        ),
        pytest.param("workflows/worker.py", "from pyrula.testing import servers", "upstairs", id="testing"),
        pytest.param(
            "actors/run.py", "def run():\n    from pyrula.workflows import client", "upstairs", id="inside a function"
        ),
        pytest.param(
            "actors/run.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pyrula.workflows import client",
            "upstairs",
            id="only for types",
        ),
        pytest.param(
            "actors/run.py",
            "import importlib\nimportlib.import_module('pyrula.workflows.client')",
            "upstairs",
            id="by name",
        ),
        pytest.param("http/app.py", "import asyncio", "asyncio is for the named bridges", id="asyncio"),
        pytest.param(
            "workflows/worker.py", "def f():\n    from asyncio import sleep", "asyncio is for", id="asyncio inside"
        ),
        pytest.param("actors/core/retry.py", "import time", "actors.core decides, and does without time", id="clock"),
        pytest.param("actors/core/retry.py", "from random import random", "does without random", id="randomness"),
        pytest.param("actors/core/retry.py", "import anyio", "actors.core may not use anyio", id="loop"),
        pytest.param("contracts/codec.py", "import anyio", "contracts may not use anyio", id="third party"),
        pytest.param("actors/run.py", "import valkey", "actors may not use valkey", id="driver"),
        pytest.param("shed/rake.py", "import json", "in no room", id="no room"),
        pytest.param("contracts/store.py", "import pyrula.shed", "in no room", id="import of no room"),
        pytest.param("__init__.py", "from pyrula.workflows import workflow", "imports no room", id="package file"),
        pytest.param("__init__.py", "import anyio", "standard library only", id="package file, third party"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, where: str, code: str, reason: str) -> None:
    findings = findings_for(tmp_path, where, code)
    assert len(findings) == 1
    assert reason in findings[0]
    assert findings[0].startswith(f"{len(code.splitlines())} ")


@pytest.mark.parametrize(
    ("where", "code"),
    [
        ("actors/core/journal.py", "import enum\nfrom pyrula.contracts.events import Event"),
        ("actors/run.py", "import anyio\nfrom pyrula.actors.core import journal\nfrom . import scope"),
        ("workflows/worker.py", "from pyrula.workflows.stores.memory import MemoryStore\nfrom pyrula import actors"),
        ("workflows/stores/valkey/wire.py", "import anyio, libvalkey\nfrom pyrula.lua import library"),
        ("cli/app.py", "import typer\nfrom pyrula import __version__\nfrom pyrula.workflows import worker"),
        ("__main__.py", "from pyrula.cli import main"),
    ],
)
def test_what_runs_down_is_allowed(tmp_path: Path, where: str, code: str) -> None:
    assert findings_for(tmp_path, where, code) == []
