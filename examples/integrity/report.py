"""What the demo says at its end, as text or as JSON. Nothing is found out here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from proof import Proof
from workflows import DistributionReport

__all__ = ["as_json", "lines"]

ROWS = 15


def lines(reports: Sequence[DistributionReport], proof: Proof, flaws: Sequence[str], seconds: float) -> Iterator[str]:
    """A table of the largest distributions and of all together, what does not match, and the proof."""
    by_size = sorted(reports, key=lambda report: report.size, reverse=True)
    shown = by_size[:ROWS]
    yield ""
    yield f"{'distribution':36} {'files':>7} {'size':>10} {'unhashed':>9} {'missing':>8} {'changed':>8}"
    for report in shown:
        yield _row(report)
    if rest := by_size[ROWS:]:
        yield _row(_total(rest, f"{len(rest)} smaller ones"))
    yield _row(_total(by_size, f"total of {len(by_size)}"))
    for report in by_size:
        for mismatch in report.mismatches:
            yield f"{report.name}: {mismatch}"
    kill = proof.kill
    yield ""
    yield f"runs finished    {proof.completed} of {proof.submitted}"
    yield f"steps executed   {proof.executed}"
    yield f"steps repeated   {proof.repetitions} (in flight at the kill: {len(kill.in_flight)})"
    yield f"steps recorded   {len(kill.recorded)} at the kill, {len(proof.executions)} at the end"
    yield f"held at the kill {len(kill.claimed)} runs, gone on with within {proof.seconds_to_take_over:.1f} s"
    yield f"wall time        {seconds:.1f} s"
    yield ""
    if not flaws:
        yield "Proved: every journal is whole, and nothing that was recorded ran again. Server and workers are gone."
    for flaw in flaws:
        yield f"NOT PROVED: {flaw}"


def as_json(
    reports: Sequence[DistributionReport], proof: Proof, flaws: Sequence[str], seconds: float
) -> dict[str, Any]:
    """The same for programs. Times in seconds, sizes in bytes."""
    return {
        "proved": not flaws,
        "flaws": list(flaws),
        "runs_submitted": proof.submitted,
        "runs_finished": proof.completed,
        "runs_held_at_kill": len(proof.kill.claimed),
        "steps_executed": proof.executed,
        "steps_repeated": proof.repetitions,
        "steps_recorded": len(proof.executions),
        "steps_recorded_at_kill": len(proof.kill.recorded),
        "steps_in_flight_at_kill": len(proof.kill.in_flight),
        "takeover_seconds": round(proof.seconds_to_take_over, 3),
        "wall_seconds": round(seconds, 3),
        "distributions": list(reports),
    }


def _total(reports: Sequence[DistributionReport], name: str) -> DistributionReport:
    def total(field: str) -> int:
        return sum(getattr(report, field) for report in reports)

    counts = {field: total(field) for field in ("files", "size", "unhashed", "missing", "changed", "unreadable")}
    return DistributionReport(name=name, mismatches=[], **counts)


def _row(report: DistributionReport) -> str:
    size = f"{report.size / 1e6:.1f} MB" if report.size >= 100_000 else f"{report.size / 1e3:.1f} kB"
    return (
        f"{report.name[:36]:36} {report.files:>7} {size:>10} {report.unhashed:>9} {report.missing:>8} "
        f"{report.changed + report.unreadable:>8}"
    )
