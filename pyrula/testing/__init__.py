"""For tests of workflows and of stores: what a test suite outside this package imports. Never imported by the engine.

`store_contract` is the suite that every store is held to. What is offered here is imported when it is
asked for, so that a program which only wants a private server needs no pytest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyrula.testing import store_contract as store_contract
    from pyrula.testing.crash_reports import CrashReport as CrashReport
    from pyrula.testing.crash_reports import crash_everywhere as crash_everywhere
    from pyrula.testing.virtual_time import VirtualTime as VirtualTime
    from pyrula.workflows.histories import ReplayReport as ReplayReport
    from pyrula.workflows.histories import replay_history as replay

__all__ = ["CrashReport", "ReplayReport", "VirtualTime", "crash_everywhere", "replay", "store_contract"]

_HOMES = {
    "CrashReport": ("pyrula.testing.crash_reports", "CrashReport"),
    "ReplayReport": ("pyrula.workflows.histories", "ReplayReport"),
    "VirtualTime": ("pyrula.testing.virtual_time", "VirtualTime"),
    "crash_everywhere": ("pyrula.testing.crash_reports", "crash_everywhere"),
    "replay": ("pyrula.workflows.histories", "replay_history"),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module, attribute = _HOMES[name]
        return getattr(import_module(module), attribute)
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
