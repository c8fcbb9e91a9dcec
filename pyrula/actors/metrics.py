"""Metrics, by opentelemetry-api alone: the instruments, and the depth of queues as a collection asks for it.

Names and attributes are few and bounded: no run id, step id or owner is ever one. Times are in seconds.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import anyio
from opentelemetry import metrics
from opentelemetry.environment_variables import OTEL_PYTHON_METER_PROVIDER
from opentelemetry.metrics import CallbackOptions, Histogram, Meter, NoOpMeter, NoOpMeterProvider, Observation

from pyrula import __version__
from pyrula.actors.providers import Provided
from pyrula.contracts.errors import StoreUnavailable

__all__ = ["Countable", "Instruments", "QueueDepths", "instruments"]

# Seconds: from a step in memory to a run that waits for a person.
_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_LONG_BOUNDS: Final = (*_BOUNDS, 1800.0, 3600.0, 14400.0, 86400.0, 604800.0)
# So long before a collection is expected the depths are read for it; this often it is looked whether it is time.
_AHEAD: Final = 2.0
_LOOK: Final = 1.0
_LONGEST_PERIOD: Final = 600.0


class Instruments:
    """All instruments, made of one meter."""

    __slots__ = (
        "attempt_duration",
        "claim_losses",
        "claim_wait",
        "run_duration",
        "run_parks",
        "run_retries",
        "step_duration",
        "step_retries",
        "store_outages",
    )

    def __init__(self, meter: Meter) -> None:
        self.claim_wait = _histogram(
            meter,
            "pyrula.claim.wait",
            "From a run's submission, or the time it was due, to its first claim",
            _LONG_BOUNDS,
        )
        self.attempt_duration = _histogram(
            meter, "pyrula.attempt.duration", "One attempt at a run, from its claim to its park or end", _BOUNDS
        )
        self.run_duration = _histogram(
            meter, "pyrula.run.duration", "A run from its first claim to its end, parks included", _LONG_BOUNDS
        )
        self.step_duration = _histogram(meter, "pyrula.step.duration", "One try of a step's function", _BOUNDS)
        self.step_retries = meter.create_counter(
            "pyrula.step.retries", "{retry}", "Tries of a step that came after a failed one"
        )
        self.run_retries = meter.create_counter(
            "pyrula.run.retries", "{retry}", "Failed runs that are tried again by their policy"
        )
        self.run_parks = meter.create_counter("pyrula.run.parks", "{park}", "Attempts that ended with the run parked")
        self.claim_losses = meter.create_counter(
            "pyrula.claim.losses", "{claim}", "Claims lost under an attempt: the lease ran out, or the run was ended"
        )
        self.store_outages = meter.create_counter(
            "pyrula.store.outages", "{outage}", "Times that the store went away, each counted once"
        )
        meter.create_observable_gauge(
            "pyrula.queue.depth", [_depths], "{run}", "Runs that wait for a worker, at the last reading"
        )


def _histogram(meter: Meter, name: str, description: str, bounds: Sequence[float]) -> Histogram:
    return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=bounds)


def _instruments_of(provider: Any) -> Instruments | None:
    # The API's stand-in for a provider that is not set has no public name.
    if isinstance(provider, NoOpMeterProvider) or type(provider).__module__.startswith("opentelemetry.metrics"):
        return None
    meter: Meter = provider.get_meter("pyrula", __version__)
    return None if isinstance(meter, NoOpMeter) else Instruments(meter)


_INSTRUMENTS: Final = Provided(
    metrics.get_meter_provider,
    variable="_METER_PROVIDER",
    selector=OTEL_PYTHON_METER_PROVIDER,
    make=_instruments_of,
)
instruments: Final = _INSTRUMENTS.now


@runtime_checkable
class Countable(Protocol):
    """A store that can tell how long a queue is, without looking at each run."""

    async def queue_depth(self, workflow: str) -> int:
        """The number of runs that are runnable now and that no worker holds."""
        ...


class QueueDepths:
    """The depths of a worker's queues, read for those who collect metrics, and only then.

    A collection runs in a thread of its reader's and cannot wait for the store. So it gets what was
    read last, and has the depths read anew in time for the next one: one reading for a collection, and
    none where nobody collects.
    """

    def __init__(self, store: Countable, workflows: Iterable[str]) -> None:
        self._store = store
        self._workflows = tuple(workflows)
        self._lock = threading.Lock()
        self._read: dict[str, int] = {}
        self._asked: float | None = None
        self._due: float | None = None

    def collected(self) -> dict[str, int]:
        """What was read last; asks for a reading shortly before the next collection. From any thread."""
        now = time.monotonic()
        with self._lock:
            period = 0.0 if self._asked is None else now - self._asked
            self._asked = now
            self._due = now + max(0.0, min(period, _LONGEST_PERIOD) - _AHEAD)
            return self._read

    def wanted(self) -> bool:
        """True once for each reading that is due."""
        with self._lock:
            if self._due is None or time.monotonic() < self._due:
                return False
            self._due = None
            return True

    async def read(self) -> None:
        """Read all depths; when the store is away there are none, rather than old ones."""
        try:
            self._read = {name: await self._store.queue_depth(name) for name in self._workflows}
        except StoreUnavailable:
            self._read = {}
            raise

    async def run(self) -> None:
        """Read whenever it is wanted, for ever."""
        _offered.add(self)
        try:
            while True:
                if instruments() is not None and self.wanted():
                    await self.read()
                await anyio.sleep(_LOOK)
        finally:
            _offered.discard(self)


_offered: Final[weakref.WeakSet[QueueDepths]] = weakref.WeakSet()


def _depths(_: CallbackOptions) -> Iterator[Observation]:
    for depths in list(_offered):
        for name, depth in depths.collected().items():
            yield Observation(depth, {"pyrula.workflow": name})
