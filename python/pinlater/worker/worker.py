"""The worker engine: claims jobs of its queues on all their shards, runs them, and ends them.

Promises that a job is acked only by the worker that holds it, that its lease is renewed while it is held,
that no job is started whose lease may be over, and that no more is claimed than can be held. Risks:
at-least-once. A worker that dies after a handler's work and before its ack leaves a job that runs again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Self

from pinlater._core import MAX_STATUS_BYTES, Claim
from pinlater.client.async_client import AsyncClient
from pinlater.model.backoff import LAST_RETRY_S
from pinlater.model.errors import InvalidArgument, ServerUnavailable
from pinlater.model.jobs import Job
from pinlater.model.queue_config import QueueConfig, check_queue_name
from pinlater.operations.claim import PATIENCE_S
from pinlater.worker.acker import GRACE_S, Acker, Held, WorkerStats, cut_short
from pinlater.worker.cancellations import Cancellations
from pinlater.worker.config import WorkerConfig
from pinlater.worker.end_rate import PREFETCH_S, EndRate
from pinlater.worker.executor import End, Failed, Handler, ThreadPool, call_async, check_handler, describe, is_async
from pinlater.worker.fetcher import Fetcher
from pinlater.worker.lease_renewal import LeaseRenewal, confirm
from pinlater.worker.monitor import Monitor
from pinlater.worker.started_jobs import record_started
from pinlater.worker.time_limits import TimeLimits

__all__ = ["Worker", "WorkerConfig", "WorkerStats"]

log: Final = logging.getLogger("pinlater.worker")

#: Lost leases are looked for once in so long.
LOST_CHECK_S: Final = 1.0
#: Of an error, in the custom status: so that a few attempts fit.
ERROR_BYTES: Final = MAX_STATUS_BYTES // 3


class Worker:
    """Works on queues with one handler.

    client: an AsyncClient for this worker alone (its wake channel is the worker's); the worker does not close
    it. handler: `async def` or a plain function (run in threads) of one argument, the Job; if it returns, the
    job succeeded, if it raises, it failed and the error is its custom status. What else it can return: handlers.End.
    on_stop: called when a stop begins; handlers that it cancels are handed back. config_of: how a queue is made that is
    not there, and was not deleted; None: it is waited for.
    """

    def __init__(
        self,
        client: AsyncClient,
        queues: str | Iterable[str],
        handler: Handler,
        config: WorkerConfig | None = None,
        on_stop: Callable[[], object] | None = None,
        config_of: Callable[[str], QueueConfig] | None = None,
    ) -> None:
        names = [check_queue_name(name) for name in ([queues] if isinstance(queues, str) else dict.fromkeys(queues))]
        if not names:
            raise InvalidArgument("queues: expected at least one name, got none")
        self.config = config or WorkerConfig()
        self._stats = WorkerStats()
        self._client, self._queues = client, names
        self.on_stop = on_stop
        self.handler, self._is_async = check_handler(handler), is_async(handler)
        prefetch = self.config.prefetch
        self._prefetch = prefetch if prefetch is not None else max(100, 2 * self.config.concurrency)
        self.fetcher = Fetcher(
            client, names, self._room, self._take, self._on_removed, self._jobs, self.config.order, self.config.max_jobs
        )
        self.fetcher.config_of = config_of
        self._lease_renewal = LeaseRenewal(client.settings.timeouts[1])
        self._time_limits = TimeLimits(self._lease_renewal)
        self._acker = Acker(client, self._lease_renewal, self._stats, self.config.retry_delay_ms, self._progressed)
        self._cancellations = Cancellations(handler, self._is_async, self._acker)
        self.monitor = Monitor(client, names, tick_s=self.config.tick_s) if self.config.monitor else None
        self._waiting: deque[Held] = deque()
        self._running: dict[asyncio.Future[End], Held] = {}
        self._begin = record_started(
            lambda: [*self._running.values(), *self._acker.unacked()], 4 * (self.config.concurrency + self._prefetch)
        )
        self._confirming: asyncio.Task[None] | None = None
        self.rate, self._bytes = EndRate(), 0
        self._stopping, self._at_once = asyncio.Event(), False
        self._progress, self._end_by_s = asyncio.Event(), float("inf")
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
        """It hears from every server, its claims are answered, and it does not stop."""
        return self.fetcher.ready and not self.stopping

    @property
    def stopping(self) -> bool:
        """It stops: it claims no more."""
        return self._stopping.is_set()

    @property
    def exhausted(self) -> bool:
        """`max_jobs` have been claimed."""
        return self.fetcher.left <= 0

    @property
    def running(self) -> Mapping[asyncio.Future[End], Held]:
        """Jobs that run, by the future of their end."""
        return self._running

    @property
    def prefetched(self) -> Collection[Held]:
        """Jobs that were claimed and not started, the next one first."""
        return self._waiting

    @property
    def unacked(self) -> int:
        """How many jobs have ended and are not acked yet."""
        return self._acker.count

    @property
    def held(self) -> int:
        """How many jobs it holds: those that run, the prefetched and the unacked."""
        return len(self._running) + len(self._waiting) + self._acker.count

    @property
    def held_bytes(self) -> int:
        """Of the bodies of running and prefetched jobs."""
        return self._bytes

    @property
    def cancelling(self) -> int:
        """How many running jobs are to end, as they were removed or are somebody else's."""
        return len(self._cancellations.stopped)

    @property
    def limited(self) -> int:
        """How many running jobs are given up at some time; see limit()."""
        return len(self._time_limits.timers)

    async def start(self) -> None:
        """Works in the background until stop()."""
        if self._task is None:
            self._task = asyncio.create_task(self.run(), name="pinlater-worker")

    async def stop(self) -> None:
        """Stops claiming, lets running jobs end, hands back the rest; unstarted or twice is fine."""
        if (task := self._task) is None:
            return
        if not self._stopping.is_set():
            self.request_stop()
        await asyncio.wait([task])
        if self._task is task:
            self._task = None
            task.result()

    def request_stop(self) -> None:
        """Begins to stop, as SIGTERM does; the second time running jobs are given up at once."""
        self._at_once = self._stopping.is_set()
        self._stopping.set()
        self.fetcher.stop()
        self._progress.set()

    async def run(self, *, burst: bool = False) -> None:
        """Works until request_stop() or stop(); in a burst only until nothing is due and all that ran has ended. A
        burst raises ServerUnavailable if nothing runs and no claim or ack is answered in the client's timeout_s.
        """
        self._open(blocking=not burst)
        claiming = asyncio.create_task(self.fetcher.run(), name="pinlater-claims")
        stopping = asyncio.create_task(self._until_end(burst))
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
        """Claims what is due now, once a queue, runs it to the end, and returns how many jobs that were."""
        self._open(blocking=False)
        try:
            before = self._stats.claimed
            for queue in self._queues:
                await self.fetcher.claim_once(queue, self.config.concurrency)
                while self._running or self._waiting:
                    await self._wait_progress(None)
            await self._acker.drain()
            return self._stats.claimed - before
        finally:
            await self._close(None)

    async def _until_end(self, burst: bool) -> None:
        """Of what may be claimed, too: then what is held has the time of a stop, of which what waits is started."""
        await (self._until_empty() if burst else self._until_stop())
        if self.fetcher.left <= 0:
            self._end_by_s = time.monotonic() + self.config.stop_timeout_s
            while self._waiting and not self._stopping.is_set() and (left_s := self._end_by_s - time.monotonic()) > 0:
                await self._wait_progress(left_s)

    async def _until_stop(self) -> None:
        if self.config.max_jobs is None:
            await self._stopping.wait()
        while not self._stopping.is_set() and self.fetcher.left > 0:
            await self._wait_progress(None)

    async def _until_empty(self) -> None:
        """The last look comes after the last end: that may have put its job back in line."""
        looked_after, timeout_s, heard, by_s = 0, self._client.settings.timeout_s, (-1, -1), 0.0
        while not self._stopping.is_set() and self.fetcher.left > 0:
            ended = self._stats.claimed - self.held
            answers = ended, 0 if self._acker.count else self.fetcher.claims
            if self._running or answers != heard:  # while nothing runs, all that is waited for is an answer
                heard, by_s = (-1, -1) if self._running else answers, time.monotonic() + timeout_s
            if (left_s := by_s - time.monotonic()) <= 0:
                self._at_once = not self.held  # nobody is there to be told
                raise ServerUnavailable(f"no claim or ack was answered in {timeout_s:g} s{self.fetcher.told}")
            if ended < self._stats.claimed or not self.fetcher.empty:
                await self._wait_progress(None if self._running else left_s)
            elif looked_after < ended:
                looked_after = ended
                self.fetcher.look_again()
            else:
                return

    # holding

    def _open(self, *, blocking: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPool(self.config.concurrency, self._loop)
        self.rate.begin()
        self.fetcher.open(blocking=blocking)
        if self._stopping.is_set():
            self.fetcher.stop()
        self._lost_timer = self._loop.call_later(LOST_CHECK_S, self._check_lost)

    def _room(self) -> int:
        """How many more jobs may be claimed; while jobs wait for a slot, none until a large claim fits."""
        held, concurrency = len(self._running) + len(self._waiting), self.config.concurrency
        full = held > 0 and self._bytes >= self.config.prefetch_bytes
        if full or self._acker.count > concurrency + self._prefetch:
            return 0
        free = concurrency + min(self._prefetch, int(self.rate.per_s() * PREFETCH_S)) - held
        return 0 if self._waiting and 2 * free < concurrency else free

    def _take(self, queue: str, claims: list[Claim], sent_s: float) -> None:
        session, first_s = self._client.session, sent_s
        for claim in claims:
            queue_shard = session.queue_shard(queue, (jobs := claim.jobs)[0].shard)
            known = queue_shard.stored.config if queue_shard.stored is not None else session.known_config(queue)
            seen_s = queue_shard.late_claims.pop(claim.token, sent_s)
            first_s = min(first_s, seen_s)
            lease = self._lease_renewal.hold(queue_shard, jobs, known or QueueConfig(), seen_s)
            self._stats.claimed += len(jobs)
            self._bytes += sum([len(job.body) for job in jobs])
            self._waiting.extend([Held(job, lease) for job in jobs])
            if seen_s < self.fetcher.heard_since_s:
                self.fetcher.check(jobs)
        if gone := self._cancellations.among(self._waiting, first_s):
            self._drop(gone, self._acker.removed)
        if len(claims) > 1 or self.config.order.strict:  # of several shards, or after jobs of a later queue
            self._waiting = deque(sorted(self._waiting, key=lambda held: self.fetcher.rank(held.job)))
        self._start_waiting()
        self._progress.set()

    def _jobs(self) -> list[Job]:
        return [held.job for held in (*self._running.values(), *self._waiting)]

    def _check_lost(self) -> None:
        self._lost_timer = self._loop.call_later(LOST_CHECK_S, self._check_lost)
        lost = self._lease_renewal.take_lost()
        stale = [held.job for held in self._running.values() if held.lease in lost]
        for job in stale:
            log.warning("job %s: its claim went stale while it runs", job.descriptor, extra={"job": job})
        self.fetcher.check(stale, lambda there: self._cancellations.stop_stale(self._running, there))
        if lost and not self._stopping.is_set():
            self._start_waiting()

    # running

    def _start_waiting(self) -> None:
        running, concurrency = self._running, self.config.concurrency
        while self._waiting and len(running) < concurrency and self._confirming is None and not self._stopping.is_set():
            lease = self._waiting[0].lease
            if lease.lost:
                self._drop({held for held in self._waiting if held.lease.lost}, self._acker.stale)
            elif lease.in_doubt:
                self._confirming = self._loop.create_task(self._confirm())
            else:
                self._start(self._waiting.popleft())

    def _start(self, held: Held) -> None:
        if (begin := self._begin) is not None:
            begin(held.job.id)
        if self._is_async:
            self._watch(self._loop.create_task(call_async(self.handler, held.job)), held)
        else:
            self._watch(self._threads.run(self.handler, held.job), held)

    def _watch(self, future: asyncio.Future[End], held: Held) -> None:
        self._running[future] = held
        future.add_done_callback(self._finished)

    def limit(self, job: Job, timeout_s: float, judge: Callable[[], Coroutine[Any, Any, End]]) -> Callable[[], None]:
        """Of a running job: long past this it is left behind, and ends as judge() says. Returns what lifts that."""
        future: asyncio.Future[End] | None = asyncio.current_task()
        if future not in self._running:  # its handler waits for this one
            future = next((each for each, held in self._running.items() if held.job is job), None)
        if future is None:
            return lambda: None
        held = self._running[future]
        self._time_limits.begin(future, held, timeout_s, lambda: self.give_up(future, judge))
        return lambda: self._time_limits.end(future, held)

    def is_current(self) -> bool:
        """Whether the end of the calling handler counts: not if its job was removed, or it was given up."""
        future = asyncio.current_task()
        held = None if future is None else self._running.get(future)
        return held is not None and held not in self._cancellations.stopped

    def give_up(self, future: asyncio.Future[End], judge: Callable[[], Coroutine[Any, Any, End]]) -> None:
        """A running job is left behind now, and ends as judge() says. No error if it does not run any more."""
        if (held := self._running.pop(future, None)) is None:
            return
        future.remove_done_callback(self._finished)
        self._time_limits.leave_behind(future, held)
        self._watch(self._loop.create_task(judge()), held)

    def _drop(self, gone: set[Held], tell: Callable[[Held], None]) -> None:
        """Lets go of waiting jobs that are not to be started."""
        for held in gone:
            self._bytes -= len(held.job.body)
            tell(held)
        self._waiting = deque(held for held in self._waiting if held not in gone)
        self._progressed()

    def _on_removed(self, channel: bytes, ids: bytes) -> None:
        self._drop(self._cancellations.hear(channel, ids, self._running, self._waiting), self._acker.removed)

    async def _confirm(self) -> None:
        """Renews the leases of waiting jobs in doubt, so that none is started that runs elsewhere."""
        try:
            if not await confirm(self._client, {held.lease: held.job for held in self._waiting}):
                await asyncio.sleep(LAST_RETRY_S)
        finally:
            self._confirming = None
            self._loop.call_soon(self._start_confirmed)

    def _start_confirmed(self) -> None:
        """Jobs that waited for this left no room for a claim (see _room)."""
        self._start_waiting()
        self._progressed()

    def _finished(self, future: asyncio.Future[End]) -> None:
        held = self._running.pop(future)
        if self._time_limits.timers:
            self._time_limits.end(future, held)
        self._bytes -= len(held.job.body)
        self.rate.ended += 1
        if self._cancellations.stopped and self._cancellations.ended(held, future):
            pass
        elif future.cancelled() and self._stopping.is_set():
            self._waiting.append(held)  # given up at the stop: handed back with the rest
            self._bytes += len(held.job.body)
        elif future.cancelled():
            self._acker.end(held, Failed("CancelledError: the handler was cancelled\n"))
        elif (error := future.exception()) is not None:
            job = held.job
            log.warning("job %s failed in attempt %d", job.descriptor, job.attempt, exc_info=error, extra={"job": job})
            self._acker.end(held, Failed(describe(error, ERROR_BYTES) + "\n"))
        else:
            self._acker.end(held, future.result())
        if self._waiting:
            self._start_waiting()
        self._progressed()

    def _progressed(self) -> None:
        """A job ended or was acked: there may be room, and somebody may wait for it."""
        self._progress.set()
        if self._room() > 0:
            self.fetcher.wake()

    async def _wait_progress(self, timeout_s: float | None) -> None:
        self._progress.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._progress.wait()

    # stopping

    async def _close(self, claiming: asyncio.Task[None] | None) -> None:
        deadline_s = min(time.monotonic() + self.config.stop_timeout_s, self._end_by_s)
        self._stopping.set()
        self.fetcher.stop()
        if self.on_stop is not None:
            self.on_stop()
        handing_back = self._loop.create_task(self._hand_back(claiming))
        handing_back.add_done_callback(lambda _: self._progress.set())
        try:
            while (self._running or not handing_back.done()) and not self._at_once:
                if (left_s := deadline_s - time.monotonic()) <= 0:
                    break
                await self._wait_progress(left_s)
                if self._waiting and handing_back.done():  # given up by their handlers
                    handing_back = self._loop.create_task(self._hand_back(None))
                    handing_back.add_done_callback(lambda _: self._progress.set())
            await cut_short(handing_back, claiming)
            await self._give_up()
            await self._acker.close(GRACE_S if self._at_once else max(GRACE_S, deadline_s - time.monotonic()))
        finally:
            self._lost_timer.cancel()
            if self._confirming is not None:
                self._confirming.cancel()
            self._threads.close()
            self._lease_renewal.close()
            await self.fetcher.close()
            if self.monitor is not None:
                await self.monitor.stop()
            self._stopping.clear()
            self._at_once = False

    async def _give_up(self) -> None:
        """Cancels what still runs and hands it back; a thread can only be left behind."""
        if self._running:
            log.warning("stopping: %d jobs did not end in time and are handed back", len(self._running))
            for future in list(self._running):
                future.cancel()
            await asyncio.wait(list(self._running), timeout=GRACE_S)
        for future, held in self._running.items():
            future.remove_done_callback(self._finished)
            self._time_limits.end(future, held)
            self._waiting.append(held)
        self._running.clear()
        await cut_short(self._loop.create_task(self._release_waiting()))

    async def _hand_back(self, claiming: asyncio.Task[None] | None) -> None:
        """Releases what was not started: after the last claim, which would take it again, unless that takes long."""
        if claiming is not None and not (await asyncio.wait([claiming], timeout=PATIENCE_S))[0]:
            await self._release_waiting()
            await asyncio.wait([claiming])
        await self._release_waiting()

    async def _release_waiting(self) -> None:
        held, self._waiting = list(self._waiting), deque()
        self._bytes -= sum(len(one.job.body) for one in held)
        await self._acker.release(held)
