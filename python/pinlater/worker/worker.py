"""The worker engine: claims jobs of its queues on all their shards, runs them, and acks them.

Promises that a worker acks only jobs that it holds, and that their leases are renewed while it holds them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Self

from pinlater._core import Claim
from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import InvalidArgument, ServerUnavailable
from pinlater.model.queue_config import QueueConfig, check_queue_name
from pinlater.worker.acker import Acker
from pinlater.worker.config import WorkerConfig
from pinlater.worker.executor import End, Handler, check_handler
from pinlater.worker.failed_jobs import OnFailed, log_failed
from pinlater.worker.fetcher import Fetcher
from pinlater.worker.held_jobs import Held, HeldJobs
from pinlater.worker.lease_renewal import LeaseRenewal
from pinlater.worker.monitor_thread import MonitorThread
from pinlater.worker.progress import Progress
from pinlater.worker.queue_pauses import QueuePauses
from pinlater.worker.queue_shard_source import QueueShardSource
from pinlater.worker.stats import WorkerStats
from pinlater.worker.stop import Stop
from pinlater.worker.worker_slots import WorkerSlots

__all__ = ["Worker", "WorkerConfig", "WorkerStats"]

log: Final = logging.getLogger("pinlater.worker")

#: The worker looks for lost leases at this interval.
LOST_CHECK_S: Final = 1.0


class Worker:
    """Works on queues with one handler.

    client: an AsyncClient for this worker alone (its channels are the worker's); the worker does not close it.
    handler: `async def` or a plain function (run in threads) of one argument, the Job. If it returns, the job
    succeeded; if it raises, the job failed, with the error as its custom status. It may return an executor.End instead.
    on_stop: called when a stop begins; jobs whose handlers it cancels are released.
    config_of: configuration of a queue that does not exist and was not deleted; the worker creates it. None: the worker
    waits for it.
    on_failed: called on the worker's loop with jobs that failed for good outside of their handler: their leases ran out
    and the worker's monitor saw it, or no server took the end of a job of this worker. By default they are logged.
    """

    def __init__(
        self,
        client: AsyncClient,
        queues: str | Iterable[str],
        handler: Handler,
        config: WorkerConfig | None = None,
        on_stop: Callable[[], object] | None = None,
        config_of: Callable[[str], QueueConfig | None] | None = None,
        on_failed: OnFailed = log_failed,
    ) -> None:
        names = [check_queue_name(name) for name in ([queues] if isinstance(queues, str) else dict.fromkeys(queues))]
        if not names:
            raise InvalidArgument("queues: expected at least one name, got none")
        self.config = config = config or WorkerConfig()
        self.handler, self.on_stop, self.on_failed = check_handler(handler), on_stop, on_failed
        self._client, self._queues, self._stats = client, names, WorkerStats()
        self._stopping, self._at_once = asyncio.Event(), False
        self._progress, self._end_by_s = Progress(), float("inf")
        self._jobs = HeldJobs(config)
        source = QueueShardSource(client, names, config_of)
        self._lease_renewal = LeaseRenewal(client.settings.timeouts[1])
        self._acker = Acker(source, self._lease_renewal, self._stats, config.retry_delay_ms, self._changed, on_failed)
        self._pauses = QueuePauses(
            source,
            self._jobs,
            self._acker,
            lambda queue: self.fetcher.hold_back(queue),
            lambda queue: self.fetcher.go_on(queue),
            self._changed,
        )
        self._slots = WorkerSlots(
            source, handler, self._jobs, self._lease_renewal, self._acker, self._pauses, self._stopping, self._changed
        )
        self.fetcher = Fetcher(
            source,
            names,
            self._room,
            self._take,
            lambda channel, ids: self._look_up(self._slots.hear(channel, ids)),
            self._slots.on_removed,
            lambda: [held.job for held in (*self._jobs.running.values(), *self._jobs.prefetched)],
            self._pauses.on_pause,
            config.order,
            config.max_jobs,
        )
        self.monitor = MonitorThread(client, names, on_failed, tick_s=config.tick_s) if config.monitor else None
        #: For handlers; see WorkerSlots.
        self.limit_function, self.limit_hooks = self._slots.limit_function, self._slots.limit_hooks
        self.is_current = self._slots.is_current
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def stats(self) -> WorkerStats:
        """Counts since the worker was made."""
        self._stats.claims = self.fetcher.claims
        return self._stats

    @property
    def ready(self) -> bool:
        """The worker hears from every server, its claims are answered, and it does not stop."""
        return self.fetcher.ready and not self.stopping

    @property
    def stopping(self) -> bool:
        """A stop was requested: the worker claims no more."""
        return self._stopping.is_set()

    @property
    def exhausted(self) -> bool:
        """`max_jobs` have been claimed."""
        return self.fetcher.left <= 0

    @property
    def jobs(self) -> HeldJobs:
        """Running and prefetched jobs."""
        return self._jobs

    @property
    def running(self) -> Mapping[asyncio.Future[End], Held]:
        """Jobs that run, by the future of their end."""
        return self._jobs.running

    @property
    def prefetched(self) -> Collection[Held]:
        """Jobs that were claimed and not started, the next one first."""
        return self._jobs.prefetched

    @property
    def unacked(self) -> int:
        """How many jobs have ended and are not acked yet."""
        return self._acker.count

    @property
    def held(self) -> int:
        """How many jobs the worker holds: running, prefetched and unacked ones."""
        return len(self.running) + len(self.prefetched) + self.unacked

    @property
    def held_bytes(self) -> int:
        """Bytes of the bodies of running and prefetched jobs."""
        return self._jobs.bytes

    @property
    def cancelling(self) -> int:
        """How many running jobs must end, because they were removed or are stale."""
        return len(self._slots.cancellations.stopped)

    @property
    def limited(self) -> int:
        """How many running jobs have a time limit at present; see time_limits.py."""
        return len(self._slots.time_limits.current)

    async def start(self) -> None:
        """Works in the background until stop()."""
        if self._task is None:
            self._task = asyncio.create_task(self.run(), name="pinlater-worker")

    async def stop(self) -> None:
        """Stops claiming, lets running jobs end, releases the rest; unstarted or twice is fine."""
        if (task := self._task) is None:
            return
        if not self._stopping.is_set():
            self.request_stop()
        await asyncio.wait([task])
        if self._task is task:
            self._task = None
            task.result()

    def request_stop(self) -> None:
        """Begins to stop, as SIGTERM does; the second time it cancels running jobs at once."""
        self._at_once = self._stopping.is_set()
        self._stopping.set()
        self.fetcher.stop()
        self._progress.made()

    async def run(self, *, burst: bool = False, through_limits: bool = True) -> None:
        """Works until request_stop() or stop().

        burst: only until nothing is due and all that ran has ended.
        through_limits: a burst waits for jobs that a limit of their queue allows only later.

        Raises ServerUnavailable if nothing runs and no claim or ack is answered in the client's timeout_s.
        """
        self._open(blocking=not burst)
        claiming = asyncio.create_task(self.fetcher.run(), name="pinlater-claims")
        stopping = asyncio.create_task(self._until_end(burst, through_limits))
        try:
            if self.monitor is not None:
                await self.monitor.start()
            await asyncio.wait([claiming, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            await self._close(claiming)
        for task in (claiming, stopping):
            if task.done() and not task.cancelled():
                task.result()

    async def run_once(self) -> int:
        """Claims due jobs, once a queue, runs them to the end, and returns how many they were."""
        self._open(blocking=False)
        try:
            before = self._stats.claimed
            for queue in self._queues:
                await self.fetcher.claim_once(queue, self.config.concurrency)
                while self.running or self.prefetched or self._jobs.has_suspects:
                    await self._progress.wait()
            await self._acker.drain()
            return self._stats.claimed - before
        finally:
            await self._close(None)

    async def _until_end(self, burst: bool, through_limits: bool) -> None:
        """Also returns when max_jobs are claimed. Held jobs then get stop_timeout_s, and prefetched ones may start."""
        await (self._until_empty(through_limits) if burst else self._until_stop())
        if self.fetcher.left <= 0:
            self._end_by_s = time.monotonic() + self.config.stop_timeout_s
            while self.prefetched and not self._stopping.is_set() and (left_s := self._end_by_s - time.monotonic()) > 0:
                await self._progress.wait(left_s)

    async def _until_stop(self) -> None:
        if self.config.max_jobs is None:
            await self._stopping.wait()
        while not self._stopping.is_set() and self.fetcher.left > 0:
            await self._progress.wait()

    async def _until_empty(self, through_limits: bool) -> None:
        """Looks a last time after the last end, which may have enqueued its job again."""
        looked_after, timeout_s, answers_before, by_s = 0, self._client.settings.timeout_s, (-1, -1), 0.0
        while not self._stopping.is_set() and self.fetcher.left > 0:
            ended = self._stats.claimed - self.held
            answers = ended, 0 if self._acker.count else self.fetcher.claims
            # while nothing runs, only answers are waited for, and the end of a rest
            if self.running or answers != answers_before or self.fetcher.resting:
                answers_before, by_s = (-1, -1) if self.running else answers, time.monotonic() + timeout_s
            if (left_s := by_s - time.monotonic()) <= 0:
                self._at_once = not self.held  # no server answers a stop either
                raise ServerUnavailable(f"no claim or ack was answered in {timeout_s:g} s{self.fetcher.last_error}")
            done = self.fetcher.empty or (self.fetcher.resting and not through_limits)
            if ended < self._stats.claimed or not done:
                await self._progress.wait(None if self.running else left_s)
            elif looked_after < ended:
                looked_after = ended
                self.fetcher.look_again()
            else:
                return

    # holding

    def _open(self, *, blocking: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._slots.open()
        self._jobs.rate.begin()
        self.fetcher.open(blocking=blocking)
        if self._stopping.is_set():
            self.fetcher.stop()
        self._lost_timer = self._loop.call_later(LOST_CHECK_S, self._check_lost)

    async def _close(self, claiming: asyncio.Task[None] | None) -> None:
        deadline_s = min(time.monotonic() + self.config.stop_timeout_s, self._end_by_s)
        self._stopping.set()
        self.fetcher.stop()
        if self.on_stop is not None:
            self.on_stop()
        stop = Stop(self._jobs, self._slots, self._acker, self._progress, lambda: self._at_once, claiming)
        try:
            await stop.run(deadline_s)
        finally:
            self._lost_timer.cancel()
            self._slots.close()
            self._lease_renewal.close()
            await self.fetcher.close()
            if self.monitor is not None:
                await self.monitor.stop()
            self._stopping.clear()
            self._at_once = False

    def _room(self) -> int:
        return self._jobs.room(self._acker.count)

    def _changed(self) -> None:
        """A job ended or was acked: there may be room."""
        self._progress.made()
        if self._jobs.has_suspects:
            self._slots.fill()
        if self._jobs.room(self._acker.count) > 0:
            self.fetcher.wake()

    def _take(self, queue: str, claims: list[Claim], sent_s: float, after_s: float | None) -> None:
        """Holds the jobs of claims. sent_s, after_s: see Fetcher."""
        first_s = min([sent_s, *[self._hold(queue, claim, sent_s, after_s) for claim in claims]])
        self._pauses.took(queue, first_s)
        self._look_up(self._slots.heard_since(first_s))
        if len(claims) > 1 or self.config.order.strict:  # of several shards, or after jobs of a later queue
            self._jobs.sort(self.fetcher.rank)
        self._slots.fill()
        self._progress.made()

    def _look_up(self, doubted: set[Held]) -> None:
        """Looks up jobs that are said to be removed."""
        self.fetcher.check([held.job for held in doubted], done=lambda: self._slots.trust(doubted))

    def _hold(self, queue: str, claim: Claim, sent_s: float, after_s: float | None) -> float:
        """Returns when the claim was sent: before sent_s, if its answer came late."""
        session, jobs = self._client.session, claim.jobs
        queue_shard = session.queue_shard(queue, jobs[0].shard)
        known = queue_shard.stored.config if queue_shard.stored is not None else session.known_config(queue)
        sent_s = queue_shard.lost_claims.take_sent_s(claim.token, sent_s)
        lease = self._lease_renewal.hold(queue_shard, jobs, known or QueueConfig(), sent_s, after_s)
        self._stats.claimed += len(jobs)
        self._jobs.prefetch(jobs, lease, crashed=claim.crashed)
        if sent_s < self.fetcher.heard_since_s:
            self.fetcher.check(jobs)
        return sent_s

    def _check_lost(self) -> None:
        self._lost_timer = self._loop.call_later(LOST_CHECK_S, self._check_lost)
        lost = self._lease_renewal.take_lost()
        stale = [held.job for held in self.running.values() if held.lease in lost]
        for job in stale:
            log.warning("job %s: its claim went stale while it runs", job.descriptor, extra={"job": job})
        self.fetcher.check(stale, self._slots.stop_stale)
        if lost:
            self._slots.fill()
