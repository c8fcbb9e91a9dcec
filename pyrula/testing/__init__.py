"""For tests of workflows and of stores: what a test suite outside this package imports. Never imported by the engine.

`store_contract` is the suite that every store is held to. Modules are imported when they are asked for,
so that a program which only wants a private server needs no pytest.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyrula.testing import store_contract as store_contract

__all__ = ["store_contract"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
