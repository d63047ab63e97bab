"""The monitor: recovers the jobs of dead workers, watches clocks, and removes what is past its time.

Promises:
    A dead worker's job comes back within a lease and one tick; if the lease is shorter than 8 s, or another monitor
    takes over, within one tick more.
    Any number of monitors at once do no harm: one is active a queue shard, the others look rarely and take over when it
    stops.
    Where the client has an archive, it moves the jobs of queues with marks (archive/automatic.py).
    A queue that is drained opens within a tick after it is empty, if its configuration says so.
    An unexpected error is logged, and the monitor goes on. The log does not have each look at an unhealthy shard: the
    health check has logged it once.
Risks: nothing expires at its first look, at the first one after an outage of its server (live workers renew first), and
for one lease after a server's clock jumped or the server stood still. A jump also stops collection for one lease.
Jobs that failed for good are passed on once at most: not if this process dies first, or gets no answer in LOOK_S.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import struct
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final, NamedTuple

from pinlater.archive.archiver import Archiver
from pinlater.archive.automatic import AutomaticArchiver
from pinlater.client.async_client import AsyncClient
from pinlater.model.clocks import boot_s
from pinlater.model.errors import FormatUnsupported, InvalidArgument, PinLaterError, QueueNotFound, ShardUnhealthy
from pinlater.operations.opening import drains, open_if_empty
from pinlater.operations.quarantine import move_quarantined
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.operations.queues import queue_names
from pinlater.store.effects import Argument, Flow
from pinlater.store.requests import write
from pinlater.store.shards import QueueShard
from pinlater.worker.failed_jobs import OnFailed, log_failed, read_failed

log: Final = logging.getLogger("pinlater.monitor")

#: Seconds between two looks of the active monitor; redelivery may be late by as much.
TICK_S: Final = 5.0
#: The active monitor stays active for so many ticks without a look, so that a dead one is replaced soon; the others
#: look after about two.
HOLD_TICKS: Final = 1.5
STANDBY_TICKS: Final = 2.0
#: A server's TIME is unexpected if it differs by more from what our own clock allows.
JUMP_MS: Final = 5_000
#: It collects finished jobs, lanes and waiters once in so many seconds.
COLLECT_S: Final = 30.0
#: It collects for so long at once, so that the next look is not late; what is left then waits for that look.
COLLECT_AT_ONCE_S: Final = 1.0
#: Without names, it looks for new queues once in so many seconds.
REDISCOVER_S: Final = 30.0
#: One look may take so long.
LOOK_S: Final = 2.0

_REPORT: Final = struct.Struct(">BBB6sIII6s")
_COLLECTED: Final = struct.Struct(">IIIIIB")


class Seen(NamedTuple):
    """A server's TIME at a look, and when by our own clock (s) the call was sent and its answer read."""

    time_ms: int
    sent_s: float
    read_s: float

    def allows(self, from_s: float, to_s: float) -> tuple[int, int]:
        """The earliest and latest TIME between two later times of our own clock. It does not matter how long this look
        took, nor how long the next one takes.
        """
        earliest_ms = self.time_ms + int((from_s - self.read_s) * 1000) - JUMP_MS
        return max(0, earliest_ms), self.time_ms + int((to_s - self.sent_s) * 1000) + JUMP_MS


def archiver_of(client: AsyncClient) -> AutomaticArchiver | None:
    """What moves jobs of queues with marks; None: the client has no archive."""
    if client.settings.database is None:
        return None
    return AutomaticArchiver(Archiver(client.run, client.session, client.settings.database))


class ShardWatch:
    """What a monitor knows of a queue shard.

    seen: its last look.
    jumped: that look showed that the server's clock had jumped.
    rests: nothing expires for now, and the log says so.
    sweep, cursor: where `expire` and `collect` go on.
    """

    def __init__(self, next_look_s: float = 0.0) -> None:
        self.seen: Seen | None = None
        self.jumped = self.rests = self.active = False
        self.next_look_s = next_look_s
        self.next_collect_s = 0.0
        self.cursor = b"0"
        self.sweep = b"1:0"

    def expected(self, now_s: float) -> bytes:
        """The argument of `expire`; "" at the first look."""
        if self.seen is None:
            return b""
        earliest_ms, latest_ms = self.seen.allows(now_s, now_s)
        times = (ms.to_bytes(6, "big") for ms in (earliest_ms, latest_ms, self.seen.time_ms))
        return b"".join(times) + bytes([self.jumped])

    def note(self, time_ms: int, sent_s: float, read_s: float) -> int:
        """Keeps the answer of a look. Returns by how many ms the clock jumped, or 0."""
        off_ms = 0
        if self.seen is not None:
            earliest_ms, latest_ms = self.seen.allows(sent_s, read_s)
            if not earliest_ms <= time_ms <= latest_ms:
                off_ms = time_ms - (latest_ms - JUMP_MS if time_ms > latest_ms else earliest_ms + JUMP_MS)
        self.seen, self.jumped = Seen(time_ms, sent_s, read_s), off_ms != 0
        return off_ms


class Monitor:
    """One monitor.

    queues: their names, or a function that gives them at each look; None: all that exist.
    must_exist: those that nobody creates, so that the log says if they are missing; None: all.
    tick_s: seconds between two looks.
    on_failed: called with jobs that failed for good, as their leases ran out. By default they are logged.
    """

    def __init__(
        self,
        client: AsyncClient,
        queues: Iterable[str] | Callable[[], Iterable[str]] | None = None,
        *,
        must_exist: Collection[str] | None = None,
        tick_s: float = TICK_S,
        on_failed: OnFailed = log_failed,
    ) -> None:
        if isinstance(tick_s, bool) or not isinstance(tick_s, int | float) or not 0 < tick_s <= 3600:
            raise InvalidArgument(f"tick_s: expected seconds, more than 0 and at most 3600, got {tick_s!r}")
        self._client, self._on_failed = client, on_failed
        self.id = secrets.token_bytes(8)
        self._named = queues if queues is None or callable(queues) else partial(list, list(queues))
        self._must_exist = must_exist
        self._found: list[str] = []
        self._rediscover_s = 0.0
        self._tick_s = tick_s
        self.watches: dict[QueueShard, ShardWatch] = {}
        #: How many looks did not find a queue.
        self._missing: Counter[str] = Counter()
        self._stopping = asyncio.Event()
        self._archiver = archiver_of(client)
        self._task: asyncio.Task[None] | None = None
        #: Jobs whose lease ran out: enqueued again, or failed after their last attempt.
        self.redelivered = 0
        #: By queue and what: jobs whose lease ran out (timeout_retry: enqueued again, timeout_done: failed), and jobs
        #: removed past their time (succeeded_gc, failed_gc).
        self.counts: Counter[tuple[str, str]] = Counter()

    async def start(self) -> None:
        """Runs in the background until stop()."""
        if self._task is None:
            self._stopping.clear()
            self._task = asyncio.create_task(self.run(), name="pinlater-monitor")

    async def stop(self) -> None:
        """Ends the background run; unstarted or twice is fine."""
        self.request_stop()
        task, self._task = self._task, None
        if task is None:
            return
        await asyncio.wait([task], timeout=LOOK_S)
        if not task.done():
            task.cancel()  # each of its calls may be cut short
            await asyncio.wait([task])
        elif (error := task.exception()) is not None:
            raise error

    def request_stop(self) -> None:
        """Begins to stop, as SIGTERM does."""
        self._stopping.set()

    async def run(self) -> None:
        """Looks until stop(). An unexpected error is logged, and the next look is a first one."""
        while not self._stopping.is_set():
            try:
                pause_s = await self.run_once()
            except Exception:
                log.exception("the monitor met an unexpected error and looks again in %g s", self._tick_s)
                self.watches, pause_s = {}, self._tick_s
            try:
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()
            except TimeoutError:
                continue
        if self._archiver is not None:
            await self._archiver.stop()

    async def run_once(self) -> float:
        """Looks at each queue shard whose turn it is; returns the seconds until the next turn."""
        queues = await self._queues()
        self.watches = {
            queue_shard: watch for queue_shard, watch in self.watches.items() if queue_shard.queue in queues
        }
        for queue in queues:
            try:
                await self._look_at(queue)
            except PinLaterError as error:
                if not isinstance(error, QueueNotFound | FormatUnsupported):
                    _log_failure(error, "queue %s: %s", queue, error)
                else:
                    self._note_missing(queue, error)
                # the next look is a first one
                self.watches = {
                    queue_shard: watch for queue_shard, watch in self.watches.items() if queue_shard.queue != queue
                }
        turns = [watch.next_look_s - time.monotonic() for watch in self.watches.values()]
        return max(0.0, min([self._tick_s, *turns]))

    def _note_missing(self, queue: str, error: PinLaterError) -> None:
        """Logs it once, at the second look: workers that start beside a monitor create their queues."""
        if isinstance(error, QueueNotFound) and self._must_exist is not None and queue not in self._must_exist:
            return
        self._missing[queue] += 1
        if self._missing[queue] == 2:
            log.warning("%s; looking for it again from time to time", error)

    def queues(self) -> list[str]:
        """The names of the queues that it looks at: those it was given, or found at its last look for new ones."""
        return self._found if self._named is None else list(self._named())

    async def _queues(self) -> list[str]:
        if self._named is not None:
            return list(self._named())
        if time.monotonic() >= self._rediscover_s:
            try:
                self._found = await self._client.run(partial(queue_names, self._client.session))
            except PinLaterError as error:
                _log_failure(error, "queues not listed: %s; the monitor looks at those that it knows", error)
            except Exception:
                log.exception("queues not listed: an unexpected error; the monitor looks at those that it knows")
            self._rediscover_s = time.monotonic() + REDISCOVER_S
        return self._found

    async def _look_at(self, queue: str) -> None:
        queue_shards = await self._client.run(lambda end: known_queue_shards(self._client.session, queue, end))
        self.watches = {one: watch for one, watch in self.watches.items() if one.queue != queue or one in queue_shards}
        due = [queue_shard for queue_shard in queue_shards if self._watch(queue_shard).next_look_s <= time.monotonic()]
        results = await asyncio.gather(*(self.look(queue_shard) for queue_shard in due), return_exceptions=True)
        for queue_shard, result in zip(due, results, strict=True):
            if isinstance(result, Exception):
                if isinstance(result, PinLaterError):
                    _log_failure(result, "%s: %s", queue_shard, result)
                else:
                    log.error("%s: the monitor met an unexpected error", queue_shard, exc_info=result)
                self.watches[queue_shard] = ShardWatch(time.monotonic() + self._tick_s)
            elif isinstance(result, BaseException):
                raise result
        if self._archiver is not None:
            for queue_shard in due:
                if self._watch(queue_shard).active:
                    self._archiver.look_at(queue_shard)
        # one monitor is active on the first shard, so one looks whether a drained queue is empty
        if queue_shards[0] in due and self._watch(queue_shards[0]).active:
            await self._open(queue_shards[0])

    def _watch(self, queue_shard: QueueShard) -> ShardWatch:
        return self.watches.setdefault(queue_shard, ShardWatch())

    async def look(self, queue_shard: QueueShard) -> None:
        """Looks at one queue shard, whether or not it is its turn."""
        watch = self._watch(queue_shard)
        more = True
        while more:
            more = await self._client.run(lambda end: self._expire(queue_shard, watch, end))
        collects = watch.active and time.monotonic() >= watch.next_collect_s
        if collects or (watch.active and queue_shard.stored is not None and queue_shard.stored.config.quarantine_queue):
            await self._move(queue_shard)
        if collects:
            until_s, more = time.monotonic() + COLLECT_AT_ONCE_S, True
            while more and time.monotonic() < until_s:
                more = await self._client.run(lambda end: self._collect(queue_shard, watch, end))
            watch.next_collect_s = 0.0 if more else time.monotonic() + COLLECT_S

    async def _open(self, first: QueueShard) -> None:
        """Opens a drained queue if it is empty. Sends nothing for any other queue."""
        if first.stored is None or not drains(first.stored.config):
            return
        try:
            if await self._client.run(lambda end: open_if_empty(self._client.session, first.queue, end)):
                log.info("queue %s is empty, so it accepts new jobs again", first.queue)
        except PinLaterError as error:
            _log_failure(error, "queue %s is drained and not opened yet: %s", first.queue, error)

    async def _move(self, queue_shard: QueueShard) -> None:
        """Moves jobs that reached the crash limit to the quarantine queue; the next look tries failed moves again."""
        session, cursor = self._client.session, b""
        try:
            while cursor != b"0":
                cursor = await self._client.run(
                    lambda end, at=cursor or b"0": move_quarantined(session, queue_shard, at, end)  # type: ignore[misc]
                )
        except PinLaterError as error:
            _log_failure(error, "%s: quarantined jobs not moved yet: %s", queue_shard, error)

    def _expire(self, queue_shard: QueueShard, watch: ShardWatch, deadline_s: float) -> Flow[bool]:
        """One call of `expire`; True if it left something to do."""
        hold_ms = max(1, int(HOLD_TICKS * self._tick_s * 1000))
        sent_s = boot_s()
        arguments: list[Argument] = [self.id, hold_ms, watch.expected(sent_s), watch.sweep]
        soon_s = min(deadline_s, time.monotonic() + LOOK_S)
        reply = yield from write(queue_shard, "expire", arguments, soon_s, patient=False)
        active, rests, more, now, *_ = _REPORT.unpack_from(reply[2])
        read_s = boot_s()
        jumped_ms = watch.note(int.from_bytes(now, "big"), sent_s, read_s)
        watch.active = bool(active)
        ticks = 1.0 if active else STANDBY_TICKS * random.uniform(0.8, 1.2)
        watch.next_look_s = time.monotonic() + ticks * self._tick_s
        _log_rest(queue_shard, watch, rests, jumped_ms)
        watch.sweep = self._note_ended(queue_shard, reply[2])
        return bool(more) or watch.jumped

    def _note_ended(self, queue_shard: QueueShard, report: bytes) -> bytes:
        """Counts and logs leases that ran out, and passes on the jobs that failed. Returns where to sweep on."""
        *_, leases, retried, failed, _ = _REPORT.unpack_from(report)
        descriptors, sweep = read_failed(queue_shard, report, _REPORT.size)
        self.redelivered += retried + failed
        self._count(queue_shard.queue, timeout_retry=retried, timeout_done=failed)
        if leases:
            log.warning("%s: %d leases ran out: %d jobs tried again, %d failed", queue_shard, leases, retried, failed)
        if descriptors:
            self._on_failed(descriptors, None)
        return sweep

    def _collect(self, queue_shard: QueueShard, watch: ShardWatch, deadline_s: float) -> Flow[bool]:
        """One call of `collect`; True if much is left to remove."""
        reply = yield from write(queue_shard, "collect", [watch.cursor], deadline_s, patient=False)
        succeeded, failed, lanes, reservations, waiters, more = _COLLECTED.unpack_from(reply[2])
        watch.cursor = reply[2][_COLLECTED.size :]
        self._count(queue_shard.queue, succeeded_gc=succeeded, failed_gc=failed)
        if succeeded or failed:
            log.info("%s: removed %d succeeded and %d failed jobs past their time", queue_shard, succeeded, failed)
        log.debug("%s: removed %d lanes, %d reservations, %d waiters", queue_shard, lanes, reservations, waiters)
        return bool(more)

    def _count(self, queue: str, **jobs: int) -> None:
        for what, count in jobs.items():
            if count:
                self.counts[queue, what] += count


def _log_failure(error: PinLaterError, message: str, *arguments: object) -> None:
    """Logs why something was not done."""
    log.log(logging.DEBUG if isinstance(error, ShardUnhealthy) else logging.WARNING, message, *arguments)


def _log_rest(queue_shard: QueueShard, watch: ShardWatch, rests: int, jumped_ms: int) -> None:
    """Logs once that nothing expires for one lease, and why."""
    if jumped_ms:
        what = "%s: its server's clock jumped by %+.1f s: nothing expires, and nothing is collected, for one lease"
        log.warning(what, queue_shard, jumped_ms / 1000)
    elif rests and not watch.rests:
        log.warning("%s: its server stood still, or its clock jumped: nothing expires for one lease", queue_shard)
    watch.rests = rests > 0
