"""The workflow of the demo: does an installed distribution still match what its RECORD claims?

Only the workflow and its steps live here: a worker imports this module, and so can you
(`pyrula worker workflows`). Nothing here starts a server, a worker or a run.
"""

from __future__ import annotations

import base64
import csv
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Literal

from evidence import witness

from pyrula.workflows import Context, workflow

__all__ = ["CheckedFile", "ClaimedFile", "DistributionReport", "claimed_files", "verify_distribution"]

# A step's result is one value in the journal, at most 1 MiB: a RECORD of any length is read in pages.
PAGE_LINES = 1000
FILES_AT_ONCE = 8
NAMES_SHOWN = 20

Verdict = Literal["intact", "missing", "changed", "unreadable", "unhashed"]


@dataclass(frozen=True, slots=True)
class ClaimedFile:
    """One line of a RECORD: a path as it stands there, and `algorithm=digest`, or nothing."""

    path: str
    hash: str


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """What became of one file. `size` is in bytes, 0 for a file that is not there."""

    path: str
    verdict: Verdict
    size: int


@dataclass(frozen=True, slots=True)
class DistributionReport:
    """The result of a run. Of the files that do not match, the first 20 are named."""

    name: str
    files: int
    size: int
    unhashed: int
    missing: int
    changed: int
    unreadable: int
    mismatches: list[str]


@workflow(name="verify_distribution")
async def verify_distribution(ctx: Context, name: str) -> DistributionReport:
    """Check every file that the distribution's RECORD lists, some at a time, each in a step of its own."""
    # What RECORD says is read in steps too: a later attempt must see the list the first one saw.
    claimed: list[ClaimedFile] = []
    while page := await ctx.step(f"record:{len(claimed)}", read_record, ctx.run_id, name, len(claimed)):
        claimed += page

    checked: list[CheckedFile] = await ctx.gather(
        *[ctx.step(f"file:{c.path}", check_file, ctx.run_id, name, c.path, c.hash) for c in claimed],
        max_concurrency=FILES_AT_ONCE,
    )

    # Plain code on recorded values: no step is needed for what every attempt computes alike.
    wrong = [c for c in checked if c.verdict in ("missing", "changed", "unreadable")]
    return DistributionReport(
        name=name,
        files=len(checked),
        size=sum(c.size for c in checked),
        unhashed=sum(c.verdict == "unhashed" for c in checked),
        missing=sum(c.verdict == "missing" for c in wrong),
        changed=sum(c.verdict == "changed" for c in wrong),
        unreadable=sum(c.verdict == "unreadable" for c in wrong),
        mismatches=[f"{c.verdict}: {c.path}" for c in wrong[:NAMES_SHOWN]],
    )


def read_record(run_id: str, name: str, start: int) -> list[ClaimedFile]:
    """A step: the lines of the RECORD from `start` on, one page of them; none behind the end."""
    witness(run_id, f"record:{start}")
    return claimed_files(name)[start : start + PAGE_LINES]


def check_file(run_id: str, name: str, path: str, claimed: str) -> CheckedFile:
    """A step: hash one file and compare. A plain function, so it runs in a thread beside the others."""
    witness(run_id, f"file:{path}")
    algorithm, _, expected = claimed.partition("=")
    try:
        with Path(str(installed(name).locate_file(path))).open("rb") as file:
            size = file.seek(0, 2)
            if algorithm not in hashlib.algorithms_guaranteed:
                return CheckedFile(path, "unhashed", size)
            file.seek(0)
            digest = hashlib.file_digest(file, algorithm).digest()
    except (FileNotFoundError, NotADirectoryError):
        return CheckedFile(path, "missing", 0)
    except (PermissionError, IsADirectoryError):
        return CheckedFile(path, "unreadable", 0)
    actual = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    return CheckedFile(path, "intact" if actual == expected else "changed", size)


def claimed_files(name: str) -> list[ClaimedFile]:
    """What the distribution's RECORD lists, each path once; nothing when it was installed without one.

    Raises `PackageNotFoundError` for a distribution that is not installed.
    """
    # `Distribution.files` will not do: from Python 3.12 on it leaves out the files that are missing.
    lines = csv.reader((installed(name).read_text("RECORD") or "").splitlines())
    by_path = {line[0]: line[1] for line in lines if line}
    return [ClaimedFile(path, digest) for path, digest in by_path.items()]


@cache
def installed(name: str) -> metadata.Distribution:
    """The distribution of that name. Looked up once: finding one takes longer than hashing a small file."""
    return metadata.distribution(name)
