"""A server that loses power: what it had not put on disk is gone when it comes back.

A killed process loses nothing that it has written to its file, so the file is cut back to where a mark was
taken. Commands of one call stand in one transaction there; a cut inside one removes all of it.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from pyrula.testing.servers import PrivateServer

__all__ = ["Mark", "cut_power", "mark"]


@dataclass(frozen=True, slots=True)
class Mark:
    """Where the append-only file ended at a moment."""

    file: Path
    size: int


def mark(server: PrivateServer) -> Mark:
    """Where the file ends now; everything that the server has answered so far stands before it.

    Under `everysec` a server whose disk is busy answers first and writes within two seconds: this waits for the
    moment when nothing is held back.
    """
    with server.client() as client:
        while client.info("persistence")["aof_buffer_length"]:
            time.sleep(0.005)
    (file,) = (server.directory / "appendonlydir").glob("*.incr.aof")
    return Mark(file, file.stat().st_size)


def cut_power(server: PrivateServer, at: Mark) -> None:
    """Kill the server, and make its file what it was at the mark. It stays down until it is started."""
    server.kill()
    assert at.file.stat().st_size >= at.size
    os.truncate(at.file, at.size)
