"""The pytest plugin: recorded histories as tests, one for each file, replayed against the code as it is now.

    pytest --pyrula-histories tests/histories --pyrula-workflows shop.workflows

Without the option it does nothing.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyrula.contracts.errors import PyrulaError

__all__ = [
    "HistoriesCollector",
    "HistoryDiffers",
    "HistoryItem",
    "pytest_addoption",
    "pytest_configure",
]


class HistoryDiffers(Exception):
    """Today's code asks something else than a history holds."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Put the options into pytest."""
    group = parser.getgroup("pyrula", "recorded histories of workflow runs")
    group.addoption(
        "--pyrula-histories",
        metavar="DIR",
        help="replay each history below DIR (`pyrula runs events RUN --json` files) against today's code",
    )
    group.addoption(
        "--pyrula-workflows",
        metavar="MODULE",
        action="append",
        default=[],
        help="import this module first; may be repeated (or import your workflows in a conftest.py)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Take the folder in, where one is given."""
    folder = config.getoption("--pyrula-histories")
    if folder is None:
        return
    path = config.invocation_params.dir / folder
    if not path.is_dir():
        raise pytest.UsageError(f"--pyrula-histories {folder}: there is no such folder")
    config.pluginmanager.register(_Histories(path), "pyrula-histories")


class _Histories:
    """Adds the histories of a folder to the tests that were collected."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        config = session.config
        for module in config.getoption("--pyrula-workflows"):
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise pytest.UsageError(f"--pyrula-workflows {module}: {error}") from error
        collector = HistoriesCollector.from_parent(session, name="pyrula-histories", path=self.folder)
        found = list(collector.collect())
        if not found:
            raise pytest.UsageError(f"--pyrula-histories {self.folder}: there are no .jsonl files in it")
        items.extend(found)


class HistoriesCollector(pytest.Collector):
    """The histories of one folder."""

    def __init__(self, *, path: Path, **given: Any) -> None:
        super().__init__(path=path, **given)

    def collect(self) -> Iterator[HistoryItem]:
        """One test for each file, under its name below the folder."""
        from pyrula.workflows.histories import history_files

        for file in history_files(self.path):
            yield HistoryItem.from_parent(self, name=str(file.relative_to(self.path)), path=file)


class HistoryItem(pytest.Item):
    """The replay of one history."""

    def __init__(self, *, path: Path, **given: Any) -> None:
        super().__init__(path=path, **given)

    def runtest(self) -> None:
        """Replay it. Raises `HistoryDiffers`."""
        from pyrula.workflows.histories import load_history, replay_history, workflow_of

        history = load_history(self.path)
        report = replay_history(workflow_of(history), history)
        if not report.ok:
            raise HistoryDiffers(str(report))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Say what differs, and nothing of how that was found."""
        if isinstance(excinfo.value, (HistoryDiffers, PyrulaError)):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """How the test is called."""
        return self.path, None, f"history {self.name}"
