"""The store for one process: nothing to start, nothing left behind. What it is made of stays inside."""

from pyrula.workflows.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
