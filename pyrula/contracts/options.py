"""Options that users set: worker options, retry policy. Frozen data, checked when made."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pyrula.contracts.errors import ConfigurationError

__all__ = ["Retry", "WorkerOptions"]


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how fast a failing step (or a whole run) is tried again.

    The delay before try n + 1 is `initial * factor ** (n - 1)` seconds, at most `maximum`,
    give or take the share `jitter`. `retry_on` and `give_up_on` are exception classes;
    `NonRetryable` is never retried.
    """

    max_attempts: int = 3
    initial: float = 0.5
    factor: float = 2.0
    maximum: float = 60.0
    jitter: float = 0.1
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    give_up_on: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigurationError(f"Retry(max_attempts={self.max_attempts}): at least 1")
        if self.initial < 0 or self.maximum < 0 or self.factor < 1:
            raise ConfigurationError("Retry: initial and maximum must be at least 0, factor at least 1")
        if not 0 <= self.jitter <= 1:
            raise ConfigurationError(f"Retry(jitter={self.jitter}): a share between 0 and 1")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Settings of a worker. Times are in seconds.

    max_concurrent_runs: runs executed at once, over all workflows.
    claim_poll_interval: the shortest pause between two looks at the queue; the safety net
        behind notifications, growing while nothing comes.
    timer_poll_interval_s: the safety net of the timer loop, which otherwise sleeps until
        the next due time.
    timer_max_batch: timers woken in one call.
    orphan_scan_interval: how often claims whose lease ran out are looked for.
    shutdown_grace: how long `stop()` lets runs in flight finish.
    cancel_timeout: how long each clean-up call of a cancelled run, and each run cut off at
        shutdown, may take.
    shard_lease_interval: how often shard leases are renewed.
    requeue_budget: how often a run may lose its worker in a row without recording anything
        new; then it fails with code `requeue_budget_exhausted`.
    loop_stall_warning: a loop blocked for longer is named in the log, with the run.
    loop_stall_limit: a loop blocked for longer no longer has its runs' leases renewed, so
        that other workers take them over.
    history_warning, history_limit: a run that has recorded so many events in one journal is named in the
        log, or fails its next call with `HistoryTooLong`; `ctx.continue_as_new` begins a new journal.
    child_stay: how long a parent that only waits for its child runs stays in the worker (it takes up none
        of its places meanwhile) before it parks; at most 20.
    payload_limit: bytes that one encoded value (a result, an input, a payload) may have.
    """

    max_concurrent_runs: int = 50
    claim_poll_interval: float = 0.1
    timer_poll_interval_s: float = 5.0
    timer_max_batch: int = 100
    orphan_scan_interval: float = 60.0
    shutdown_grace: float = 30.0
    cancel_timeout: float = 5.0
    shard_lease_interval: float = 10.0
    requeue_budget: int = 10
    loop_stall_warning: float = 1.0
    loop_stall_limit: float = 300.0
    history_warning: int = 10_000
    history_limit: int = 50_000
    child_stay: float = 20.0
    payload_limit: int = 1_048_576

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            whole = option.name in ("max_concurrent_runs", "timer_max_batch", "requeue_budget", "payload_limit")
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                raise ConfigurationError(f"WorkerOptions({option.name}={value!r}): a number is needed")
            if value < 0 or (value == 0 and option.name not in ("shutdown_grace", "cancel_timeout", "child_stay")):
                raise ConfigurationError(f"WorkerOptions({option.name}={value!r}): must be greater than 0")
