"""Locks on files, held between processes; the kernel drops them however their holder ends.

Nothing here knows what is locked or why.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from pathlib import Path

__all__ = ["FileLock"]

_RETRY_SECONDS = 0.004


class FileLock:
    """An advisory lock (`flock`) on the file at `path`, which is made when it is not there, or on a directory.

    Two locks on one path exclude each other in one process as between two. A child made by a plain
    `fork` does not have its parent's locks, and neither has a program that it starts.
    """

    __slots__ = ("__weakref__", "_fd", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object has the lock."""
        return self._fd is not None

    def fileno(self) -> int:
        """Return the descriptor that carries the lock, for handing it to a child process."""
        if self._fd is None:
            raise ValueError(f"{self.path} is not locked here")
        return self._fd

    def acquire(self, *, shared: bool, timeout: float) -> bool:
        """Take the lock; `False` when others held it for all of `timeout` seconds (0: one try).

        Raises `OSError` when the file cannot be opened or its file system has no locks.
        """
        how = os.O_RDONLY if self.path.is_dir() else os.O_RDWR | os.O_CREAT
        fd = os.open(self.path, how | os.O_CLOEXEC, 0o600)
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        deadline = time.monotonic() + timeout
        try:
            while True:
                try:
                    fcntl.flock(fd, kind | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        return False
                    time.sleep(_RETRY_SECONDS)
                else:
                    self._fd = fd
                    _held.add(self)
                    return True
        finally:
            if self._fd != fd:
                os.close(fd)

    def release(self) -> None:
        """Give the lock back, also where a child process has inherited the descriptor."""
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            self.hand_over()

    def hand_over(self) -> None:
        """Close the descriptor only: the lock stays with a child process that inherited it, if there is one."""
        fd, self._fd = self._fd, None
        _held.discard(self)
        if fd is not None:
            os.close(fd)


_held: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    # A forked child shares its parent's locks until it closes them: it would keep them alive after the
    # parent, and unlocking would take them from the parent.
    for lock in list(_held):
        lock.hand_over()


os.register_at_fork(after_in_child=_forget_in_child)
