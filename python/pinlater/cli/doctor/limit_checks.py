"""Checks of limits: home shard, max_running, rate, pause, drain."""

from __future__ import annotations

from collections.abc import Iterator

from pinlater.cli.doctor.check_result import ERROR, NOTE, OK, WARNING, CheckResult
from pinlater.cli.doctor.queue_states import QueueShardState, queue_counts, queue_limits
from pinlater.cli.doctor.reached_server import ReachedServer
from pinlater.cli.output import duration, jobs, printable
from pinlater.model.queue_config import QueueConfig
from pinlater.operations.opening import drains, unfinished
from pinlater.store.servers import Server
from pinlater.store.shards import Session, Shard


class LimitChecks:
    """The checks of one queue that exists.

    states: of the shards that have the queue.
    """

    def __init__(
        self, session: Session, reached: dict[Server, ReachedServer], queue: str, states: list[QueueShardState]
    ) -> None:
        self._queue, self._subject = queue, f"queue {queue}"
        self._reached, self._shards = reached, session.shards
        self._states = states

    def run(self, config: QueueConfig) -> Iterator[CheckResult]:
        """Checks the queue. config: the one of its first shard."""
        if config.is_limited:
            yield self._check_home(config)
        if config.max_running is not None:
            yield from self._check_max_running(config)
        if config.exact_rate is not None and not config.exact_rate.count:
            yield self._result(NOTE, "rate", "0, so it gives no jobs", f"pinlater queue set {self._queue} --rate RATE")
        yield from self._check_pause(config)
        if drains(config):
            yield self._check_drain(config)

    def _result(self, level: str, check: str, found: str, advice: str = "") -> CheckResult:
        return CheckResult(level, self._subject, check, found, advice)

    def _check_home(self, config: QueueConfig) -> CheckResult:
        home = self._shards.get(config.home)
        if home is not None and home.dequeue_only and config.max_running is not None:
            found = f"{config.home} is dequeue-only, and all jobs of the queue live there: enqueues are refused"
            return self._result(
                WARNING, "home shard", found, f"pinlater queue set {self._queue} --home SHARD, once empty"
            )
        if home is not None:
            return self._result(OK, "home shard", config.home)
        found = f"{config.home!r} is not among the shards {', '.join(self._shards)}: claims fail"
        advice = f"name it with --shard, or pinlater queue set {self._queue} --home SHARD"
        return self._result(ERROR, "home shard", found, advice)

    def _check_max_running(self, config: QueueConfig) -> Iterator[CheckResult]:
        """Only the home shard gives jobs of such a queue."""
        for shard, server in self._here():
            waiting = 0
            if shard.name != config.home:
                counts = queue_counts(server, shard, self._queue, config)
                waiting = counts.pending + counts.scheduled
            if waiting:
                found = f"{jobs(waiting)} on shard {shard.name} never run: only shard {config.home} gives jobs"
                advice = f"pinlater queue set {self._queue} --max-running none lets them run"
                yield self._result(ERROR, "max_running", found, advice)

    def _check_pause(self, config: QueueConfig) -> Iterator[CheckResult]:
        found = [queue_limits(server, shard, self._queue, config) for shard, server in self._here()]
        longest = max(found, key=lambda limits: limits.paused_ms)
        if longest.paused_ms:
            found_pause = f"{duration(longest.paused_ms)} more, by {printable(longest.paused_by)}"
            yield self._result(NOTE, "pause", found_pause, f"pinlater queue resume {self._queue} ends it")

    def _check_drain(self, config: QueueConfig) -> CheckResult:
        left = sum(unfinished(queue_counts(server, shard, self._queue, config)) for shard, server in self._here())
        by_hand = f"by hand: pinlater queue set {self._queue} --no-refuse-enqueue"
        if not left and not self._states[0].monitor_active:
            found = "it is empty and refuses new jobs: no monitor is active that opens it"
            return self._result(WARNING, "drain", found, f"pinlater queue drain {self._queue} opens it")
        return self._result(
            NOTE,
            "drain",
            f"it refuses new jobs until it is empty: {jobs(left)} left",
            f"its monitor opens it; {by_hand}",
        )

    def _here(self) -> Iterator[tuple[Shard, ReachedServer]]:
        """The shards that have the queue, and their servers."""
        for state in self._states:
            shard = self._shards[state.shard]
            yield shard, self._reached[shard.server]
