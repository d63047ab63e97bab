"""The worker engine: claims jobs of its queues on all their shards, runs them, and ends them.

Promises that a job is acked only by the worker that holds it, that its lease is renewed while it runs, and that no more is claimed than can be
held. Risks: at-least-once. A worker that dies after a handler's work and before its ack leaves a job that runs again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Self

from pinlater import operations
from pinlater._core import MAX_STATUS_BYTES
from pinlater.async_client import AsyncClient
from pinlater.config import check_integer, check_queue_name
from pinlater.dequeuing import SAFETY_S, claim_round
from pinlater.errors import InvalidArgument, OutcomeUnknown, PinLaterError, QueueNotFound
from pinlater.exchange import write
from pinlater.handlers import Handler, ThreadPool, check_handler, is_async
from pinlater.jobs import Ack, Job
from pinlater.monitor import TICK_S, Monitor
from pinlater.queues import known_places
from pinlater.renewal import Lease, Renewal
from pinlater.shards import QueueShard

log: Final = logging.getLogger("pinlater.worker")

#: Jobs are prefetched for so long a time at the present rate: enough to cover a claim, too little to keep jobs from an idle worker.
PREFETCH_S: Final = 0.1
#: While a server does not answer, a claim is tried again after this, doubled, up to that.
FIRST_RETRY_S: Final = 0.1
LAST_RETRY_S: Final = 2.0
#: Lost leases are looked for once in so long.
LOST_CHECK_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """How a worker works.

    concurrency: jobs that run at once. prefetch: at most so many more are held unstarted, and only at a rate that starts them within a
    tenth of a second. prefetch_bytes: no claim while the bodies held are more than this. retry_delay_ms: how long a failed job waits
    for its next attempt. stop_timeout_s: how long running jobs may take to end at a stop; the rest are handed back. monitor: also run
    a monitor for these queues. tick_s: seconds between its looks.
    """

    concurrency: int = 10
    prefetch: int | None = None
    prefetch_bytes: int = 64 * 1024 * 1024
    retry_delay_ms: int = 1_000
    stop_timeout_s: float = 30.0
    monitor: bool = True
    tick_s: float = TICK_S

    def __post_init__(self) -> None:
        check_integer("concurrency", self.concurrency, 1, 100_000)
        if self.prefetch is not None:
            check_integer("prefetch", self.prefetch, 0, 100_000)
        check_integer("prefetch_bytes", self.prefetch_bytes, 1, 2**40)
        check_integer("retry_delay_ms", self.retry_delay_ms, 0, 2**44 - 1)
        if isinstance(self.stop_timeout_s, bool) or not isinstance(self.stop_timeout_s, int | float) or not self.stop_timeout_s >= 0:
            raise InvalidArgument(f"stop_timeout_s: expected seconds, 0 or more, got {self.stop_timeout_s!r}")


@dataclass(slots=True)
class WorkerStats:
    """Counts since the start. stale: jobs whose claim was lost before they ended; released: jobs handed back at the stop."""

    claims: int = 0
    claimed: int = 0
    succeeded: int = 0
    failed: int = 0
    stale: int = 0
    released: int = 0


class _Held:
    """A job this worker holds."""

    __slots__ = ("job", "lease")

    def __init__(self, job: Job, lease: Lease) -> None:
        self.job = job
        self.lease = lease


@dataclass(slots=True)
class _Source:
    """A queue to claim from. hungry: it may have due jobs. rings: how often it rang."""

    queue: str
    hungry: bool = True
    rings: int = 0
    next_claim_s: float = 0.0
    retry_s: float = FIRST_RETRY_S
    troubled: bool = field(default=False)


class Worker:
    """Works on queues with one handler.

    client: an AsyncClient; the worker does not close it. handler: `async def` or a plain function (run in threads) of one argument, the
    Job; if it returns, the job succeeded, if it raises, it failed and the error is its custom status.
    """

    def __init__(
        self, client: AsyncClient, queues: str | Iterable[str], handler: Handler, config: WorkerConfig | None = None
    ) -> None:
        names = [queues] if isinstance(queues, str) else list(queues)
        if not names:
            raise InvalidArgument("queues: expected at least one name, got none")
        self.config = config or WorkerConfig()
        self.stats = WorkerStats()
        self._client = client
        self._handler = check_handler(handler)
        self._is_async = is_async(handler)
        self._sources = {check_queue_name(name): _Source(name) for name in names}
        prefetch = self.config.prefetch
        self._prefetch = prefetch if prefetch is not None else max(100, 2 * self.config.concurrency)
        self._renewal = Renewal(client._settings.timeouts[1])
        self._monitor = Monitor(client, names, tick_s=self.config.tick_s) if self.config.monitor else None
        self._waiting: deque[_Held] = deque()
        self._running: dict[asyncio.Future[Any], _Held] = {}
        self._bytes = 0
        self._succeeded: list[_Held] = []
        self._failed: list[tuple[_Held, str]] = []
        self._flushing: asyncio.Task[None] | None = None
        self._rate_window_s, self._ended_in_window, self._rate = time.monotonic(), 0, 0.0
        self._stopping = self._at_once = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Works in the background until stop()."""
        if self._task is None:
            self._task = asyncio.create_task(self.run(), name="pinlater-worker")

    async def stop(self) -> None:
        """Stops claiming, lets running jobs end, hands back the rest, and returns; unstarted or twice is fine."""
        self.request_stop()
        if self._task is not None:
            task, self._task = self._task, None
            await task

    def request_stop(self) -> None:
        """Begins to stop, as SIGTERM does; the second time running jobs are given up at once."""
        self._at_once = self._stopping
        self._stopping = True
        if hasattr(self, "_changed"):
            self._changed.set()
            self._settled.set()

    async def run(self) -> None:
        """Works until request_stop() or stop()."""
        await self._open()
        try:
            if self._monitor is not None:
                await self._monitor.start()
            await self._claim_forever()
        finally:
            await self._close()

    async def run_once(self) -> int:
        """Claims what is due now, once, runs it to the end, and returns how many jobs that were."""
        await self._open()
        try:
            before = self.stats.claimed
            for source in self._sources.values():
                await self._claim(source, self.config.concurrency, b"")
            while self._running or self._waiting:
                await self._settle()
            return self.stats.claimed - before
        finally:
            await self._close()

    # claiming

    async def _open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed, self._settled = asyncio.Event(), asyncio.Event()
        self._threads = ThreadPool(self.config.concurrency, self._loop)
        waker = self._client._transport.waker
        waker.on_ring, waker.on_lost = self._on_ring, lambda _: self._on_reconnect()
        self._lost_timer = self._loop.call_later(LOST_CHECK_S, self._check_lost)

    def _on_ring(self, message: bytes) -> None:
        """message: the key `m` of the queue and shard that rang."""
        queue, _, shard = message.partition(b"{")[2].partition(b"}")[0].decode().partition("/")
        source = self._sources.get(queue)
        if source is None:
            return
        source.rings += 1
        source.hungry = True
        if self._free() > 0 and not self._stopping:
            self._changed.set()
        else:
            # someone else may have room
            place = self._client._session.place(queue, shard)
            self._background(self._client._run(lambda end: write(place, "wake", [], end)))

    def _on_reconnect(self) -> None:
        for source in self._sources.values():
            source.hungry = True
            source.rings += 1
        self._changed.set()

    def _background(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _free(self) -> int:
        """How many more jobs may be claimed."""
        held = len(self._running) + len(self._waiting)
        if held and self._bytes >= self.config.prefetch_bytes:
            return 0
        return self.config.concurrency + min(self._prefetch, int(self._rate * PREFETCH_S)) - held

    def _room(self) -> int:
        """As _free, but while every slot is busy and more are waiting, only once a large claim fits: few calls, full ones."""
        free = self._free()
        if self._waiting and 2 * free < self.config.concurrency:
            return 0
        return free

    async def _claim_forever(self) -> None:
        while not self._stopping:
            room = self._room()
            now_s = time.monotonic()
            wanting = [source for source in self._sources.values() if source.hungry or source.next_claim_s <= now_s]
            wanting = [source for source in wanting if not source.troubled or source.next_claim_s <= now_s]
            if not wanting or room <= 0:
                next_s = min(source.next_claim_s for source in self._sources.values())
                await self._pause(max(0.0, next_s - now_s) if room > 0 else SAFETY_S[0])
                continue
            for index, source in enumerate(random.sample(wanting, len(wanting))):
                room = self._room()
                if room <= 0 or self._stopping:
                    break
                await self._claim(source, max(1, room // (len(wanting) - index)), self._client._session.channel)

    async def _pause(self, seconds: float) -> None:
        """Until something changed, or so many seconds."""
        self._changed.clear()
        timer = self._loop.call_later(seconds, self._changed.set)
        await self._changed.wait()
        timer.cancel()

    async def _claim(self, source: _Source, limit: int, channel: bytes) -> None:
        session, rings = self._client._session, source.rings
        try:
            places = await self._client._run(lambda end: known_places(session, source.queue, end))
            if channel:
                await self._client._transport.waker.listen([place.shard.server for place in places])
            claims = await self._client._run(
                lambda end: claim_round(session, places, limit, channel, self._client._settings.source, end)
            )
        except PinLaterError as error:
            self._put_off(source, error)
            return
        if source.troubled:
            log.info("queue %s: claims work again", source.queue)
        source.troubled, source.retry_s = False, FIRST_RETRY_S
        self.stats.claims += len(claims)
        jobs = 0
        for claim in claims:
            if claim.jobs:
                jobs += len(claim.jobs)
                self._take(source.queue, claim.token, claim.jobs)
        if not jobs:
            due_s = [claim.due_in_ms / 1000 for claim in claims if claim.due_in_ms]
            source.next_claim_s = time.monotonic() + min([random.uniform(*SAFETY_S), *due_s])
            source.hungry = source.rings != rings or any(any(claim.left) for claim in claims)

    def _put_off(self, source: _Source, error: PinLaterError) -> None:
        """A claim failed: try again later, and say so once."""
        if not source.troubled:
            log.warning("queue %s: claim failed, trying again: %s", source.queue, error)
        source.troubled = True
        source.next_claim_s = time.monotonic() + source.retry_s
        source.retry_s = min(2 * source.retry_s, LAST_RETRY_S)
        if isinstance(error, QueueNotFound):
            source.hungry = False

    def _take(self, queue: str, token: bytes, jobs: list[Job]) -> None:
        place: QueueShard = self._client._session.place(queue, jobs[0].shard)
        lease = self._renewal.hold(place, token, len(jobs))
        self.stats.claimed += len(jobs)
        self._bytes += sum([len(job.body) for job in jobs])
        self._waiting.extend([_Held(job, lease) for job in jobs])
        self._start_waiting()

    # running

    def _start_waiting(self) -> None:
        running, waiting, concurrency = self._running, self._waiting, self.config.concurrency
        while waiting and len(running) < concurrency and not self._stopping:
            held = waiting.popleft()
            if held.lease.lost:
                self._report_stale(held)
                continue
            future: asyncio.Future[Any]
            if self._is_async:
                future = self._loop.create_task(self._handler(held.job))
            else:
                future = self._threads.run(self._handler, held.job)
            running[future] = held
            future.add_done_callback(self._finished)

    def _finished(self, future: asyncio.Future[Any]) -> None:
        held = self._running.pop(future)
        self._bytes -= len(held.job.body)
        self._ended_in_window += 1
        if future.cancelled():
            if self._stopping:
                self._waiting.append(held)  # given up at the stop: handed back with the rest
                return
            self._failed.append((held, "CancelledError: the handler was cancelled"))
        elif (error := future.exception()) is not None:
            log.warning("job %s failed in attempt %d", held.job.descriptor, held.job.attempt, exc_info=error)
            self._failed.append((held, _describe(error)))
        else:
            self._succeeded.append(held)
        if self._flushing is None:
            self._flushing = self._loop.create_task(self._flush())
        if self._waiting:
            self._start_waiting()
        if not self._waiting or self._room() > 0:
            self._changed.set()

    # ending

    async def _flush(self) -> None:
        """Acks what has ended, batch by batch, until nothing is left."""
        try:
            await asyncio.sleep(0)  # what ends in this turn of the loop leaves together
            while self._succeeded or self._failed:
                succeeded, self._succeeded = self._succeeded, []
                failed, self._failed = self._failed, []
                await self._ack(succeeded, failed)
        finally:
            self._flushing = None
            self._measure_rate()
            self._settled.set()

    async def _ack(self, succeeded: list[_Held], failed: list[tuple[_Held, str]]) -> None:
        for held in [*succeeded, *(held for held, _ in failed)]:
            if held.lease.lost:
                self._report_stale(held)
        good = [held for held in succeeded if not held.lease.lost]
        bad = [(held, status) for held, status in failed if not held.lease.lost]
        if not good and not bad:
            return
        delay_ms = self.config.retry_delay_ms
        jobs = [held.job for held in good]
        acks = [Ack(held.job, status, delay_ms) for held, status in bad]
        refused = await self._persist(
            lambda end: operations.ack(self._client._session, jobs, acks, "", False, end), good + [held for held, _ in bad]
        )
        gone = {id(item.job if isinstance(item, Ack) else item) for item in refused}
        for held in good:
            self._settle_one(held, id(held.job) in gone)
        for held, _ in bad:
            self._settle_one(held, id(held.job) in gone, succeeded=False)

    def _settle_one(self, held: _Held, refused: bool, *, succeeded: bool = True) -> None:
        self._renewal.done(held.lease)
        if refused:
            held.lease.lost = True
            self._report_stale(held)
        elif succeeded:
            self.stats.succeeded += 1
        else:
            self.stats.failed += 1

    async def _persist(self, make: Any, held: list[_Held]) -> list[Any]:
        """Carries out an ack or release however long the server is away, while the leases may still be ours."""
        pause_s = FIRST_RETRY_S
        resolve = None
        while True:
            try:
                refused: list[Any] = await (resolve() if resolve else self._client._run(make))
            except OutcomeUnknown as error:
                resolve = error.resolve
            except QueueNotFound:
                return [one.job for one in held]  # the queue was deleted, and its jobs with it
            except PinLaterError as error:
                log.warning("%d jobs not acked yet, trying again: %s", len(held), error)
            else:
                return refused
            if self._at_once:
                log.error("%d jobs not acked at the stop; they run again when their leases run out", len(held))
                return []
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_RETRY_S)

    def _report_stale(self, held: _Held) -> None:
        self.stats.stale += 1
        log.warning("job %s: its claim went stale, so it is not acked here; it runs again elsewhere", held.job.descriptor)

    def _check_lost(self) -> None:
        for lease in self._renewal.take_lost():
            log.warning("%s: a claim of %d unfinished jobs went stale", lease.place, lease.unfinished)
        self._lost_timer = self._loop.call_later(LOST_CHECK_S, self._check_lost)

    def _measure_rate(self) -> None:
        elapsed_s = time.monotonic() - self._rate_window_s
        if elapsed_s >= PREFETCH_S:
            self._rate = self._ended_in_window / elapsed_s
            self._rate_window_s, self._ended_in_window = time.monotonic(), 0

    async def _settle(self) -> None:
        """Until a batch of jobs was acked, or the stop was asked for again."""
        self._settled.clear()
        await self._settled.wait()

    async def _close(self) -> None:
        self._stopping = True
        deadline_s = time.monotonic() + self.config.stop_timeout_s
        await self._release_waiting()
        while self._running and not self._at_once and (left_s := deadline_s - time.monotonic()) > 0:
            timer = self._loop.call_later(left_s, self._settled.set)
            await self._settle()
            timer.cancel()
        await self._give_up()
        if self._monitor is not None:
            await self._monitor.stop()
        self._lost_timer.cancel()
        self._threads.close()
        self._renewal.close()
        waker = self._client._transport.waker
        waker.on_ring = waker.on_lost = None

    async def _give_up(self) -> None:
        """Cancels what still runs and hands it back; a thread can only be left behind."""
        if self._running:
            log.warning("stopping: %d jobs did not end in time and are handed back", len(self._running))
        for future in list(self._running):
            future.cancel()
        if self._running:
            await asyncio.wait(list(self._running), timeout=1.0)
        for future, held in list(self._running.items()):
            future.remove_done_callback(self._finished)
            self._waiting.append(held)
        self._running.clear()
        await self._release_waiting()
        while self._flushing is not None:
            await self._settle()

    async def _release_waiting(self) -> None:
        held = [one for one in self._waiting if not one.lease.lost]
        self._waiting.clear()
        if not held:
            return
        jobs = [one.job for one in held]
        await self._persist(lambda end: operations.release(self._client._session, jobs, "", end), held)
        for one in held:
            self._renewal.done(one.lease)
        self.stats.released += len(held)


def _describe(error: BaseException) -> str:
    """An error as a custom status: its type and text, cut to the limit at a character's edge, its end marked by a newline."""
    text = f"{type(error).__name__}: {error}".replace("\0", "")
    return text.encode("utf-8", "replace")[: MAX_STATUS_BYTES // 3].decode("utf-8", "ignore") + "\n"
