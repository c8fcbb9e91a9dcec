"""The store at which a worker dies, under the name that the engine's tests know it by."""

from __future__ import annotations

from pyrula.testing.crashing import CrashAt, Crashed, all_crashes

__all__ = ["CrashAt", "Crashed", "all_crashes"]
