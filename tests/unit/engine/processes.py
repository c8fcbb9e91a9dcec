"""Functions that tests send to worker processes: importable by their names, and nothing else."""

from __future__ import annotations

import os
import time

__all__ = ["die", "fail_odd", "of_process", "sleep_for_ever", "square"]


def square(x: int) -> int:
    return x * x


def of_process(_: int) -> int:
    return os.getpid()


def fail_odd(x: int) -> int:
    if x % 2:
        raise ValueError(f"{x} is odd")
    return x


def die(_: int) -> None:
    os._exit(3)


def sleep_for_ever(path: str) -> None:
    with open(path, "w") as file:  # noqa: PTH123 - what a process starts with must be little
        file.write(str(os.getpid()))
    time.sleep(600)
