"""Runs the jobs that a worker holds in its slots, and says how each ended.

Promises that no job starts whose lease may have run out, that the end of a job that was removed or is stale counts for
nothing, and that a job past its time limit frees its slot.
Risk: at-least-once. A worker that dies after a handler's work and before its ack leaves a job that runs again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias
from weakref import WeakSet

from pinlater._core import MAX_STATUS_BYTES
from pinlater.model.jobs import Job
from pinlater.model.pauses import LAST_RETRY_S
from pinlater.model.text import describe
from pinlater.model.tracebacks import exc_info_of
from pinlater.store.shards import QueueShard
from pinlater.worker import time_limits
from pinlater.worker.acker import Acker
from pinlater.worker.cancellations import Cancellations
from pinlater.worker.executor import End, Failed, Handler, Postponed, ThreadPool, call_async, is_async
from pinlater.worker.held_jobs import Held, HeldJobs
from pinlater.worker.job_source import JobSource
from pinlater.worker.lease_renewal import LeaseRenewal, confirm
from pinlater.worker.queue_pauses import QueuePauses
from pinlater.worker.started_jobs import record_started
from pinlater.worker.suspects import Suspects
from pinlater.worker.time_limits import Limit, TimeLimits

log: Final = logging.getLogger("pinlater.worker")

#: Of an error, in the custom status: so that a few attempts fit.
ERROR_BYTES: Final = MAX_STATUS_BYTES // 3

#: Says how a given-up job ends.
Judge: TypeAlias = Callable[[], Coroutine[Any, Any, End]]


class WorkerSlots:
    """The slots of one worker.

    handler: as for Worker.
    jobs: what the worker holds.
    stopping: set while the worker stops; then no job starts.
    changed: called when there may be room for a claim, or a job ended.
    """

    def __init__(
        self,
        source: JobSource,
        handler: Handler,
        jobs: HeldJobs,
        renewal: LeaseRenewal,
        acker: Acker,
        pauses: QueuePauses,
        stopping: asyncio.Event,
        changed: Callable[[], None],
    ) -> None:
        self._source, self._handler, self._jobs, self._acker = source, handler, jobs, acker
        self.pauses = pauses
        self._is_async = is_async(handler)
        self._stopping, self._changed = stopping, changed
        self.time_limits = TimeLimits(renewal)
        self.cancellations = Cancellations(handler, self._is_async, acker)
        self.suspects = Suspects(jobs, acker, changed)
        self._record_started = record_started(
            lambda: [*jobs.running.values(), *acker.unacked()], 4 * (jobs.concurrency + jobs.most_prefetched)
        )
        #: They say how given-up jobs end.
        self._judges = WeakSet[asyncio.Future[End]]()
        self._confirming: dict[QueueShard, asyncio.Task[None]] = {}

    def open(self) -> None:
        """Jobs may start from now on."""
        self.time_limits.open()
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPool(self._jobs.concurrency, self._loop)

    def close(self) -> None:
        """Leaves threads that still run behind."""
        for confirming in self._confirming.values():
            confirming.cancel()
        self.suspects.close()
        self.pauses.close()
        self._threads.close()
        self.time_limits.close()

    def fill(self) -> None:
        """Starts prefetched jobs in free slots."""
        jobs = self._jobs
        if not self._stopping.is_set():
            if jobs.has_suspects:
                self._fill_but(self.suspects.sort_out())
                return
            while jobs.prefetched and len(jobs.running) < jobs.concurrency and self._start_next():
                pass

    def _fill_but(self, kept: int) -> None:
        """As fill(), without the last prefetched jobs. Without suspects, this count would cost 0.5 % of a job."""
        jobs = self._jobs
        while len(jobs.prefetched) > kept and len(jobs.running) < jobs.concurrency and self._start_next():
            pass

    def drop(self, dropped: set[Held], report: Callable[[Held], None]) -> None:
        """Does not start these prefetched jobs."""
        self._jobs.drop(dropped)
        for held in dropped:
            report(held)
        self._changed()

    # starting

    async def _confirm(self, queue_shard: QueueShard) -> None:
        """Renews the leases in doubt of prefetched jobs of a queue shard, so that none starts that runs elsewhere."""
        leases = {held.lease: held.job for held in self._jobs.prefetched if held.lease.queue_shard is queue_shard}
        try:
            if not await confirm(self._source, {lease: job for lease, job in leases.items() if lease.in_doubt}):
                await asyncio.sleep(LAST_RETRY_S)
        finally:
            del self._confirming[queue_shard]
            self._loop.call_soon(self._fill_confirmed)

    def _fill_confirmed(self) -> None:
        """Jobs that waited for this left no room for a claim (see HeldJobs.room)."""
        self.fill()
        self._changed()

    def _start_next(self) -> bool:
        """False: of every prefetched job it has to be found out first whether the worker still holds it."""
        prefetched = self._jobs.prefetched
        held = prefetched[0]
        if held.lease.lost:
            self.drop({one for one in prefetched if one.lease.lost}, self._acker.stale)
            return True
        if held.lease.in_doubt or held in self.cancellations.doubted:
            certain = self._first_certain()
            if certain is None:
                return False
            held = certain
            prefetched.remove(held)
        else:
            prefetched.popleft()
        if (record := self._record_started) is not None:
            record(held)
        if self._is_async:
            self._run_task(call_async(self._handler, held.job), held)
        else:
            self._run(self._threads.start(self._handler, held.job), held)
        return True

    def _run_task(self, end: Coroutine[Any, Any, End], held: Held) -> asyncio.Task[End]:
        """Not by the loop's task factory: an eager task would run before its job counts as running."""
        task = asyncio.Task(end, loop=self._loop)
        self._run(task, held)
        return task

    def _first_certain(self) -> Held | None:
        """The first prefetched job that may start. Confirms the leases in doubt of those before it: another server may
        be away for long.
        """
        for held in self._jobs.prefetched:
            queue_shard = held.lease.queue_shard
            if held.lease.in_doubt and queue_shard not in self._confirming:
                self._confirming[queue_shard] = self._loop.create_task(self._confirm(queue_shard))
            elif held.job.crashed and held is not self._jobs.alone:
                continue  # a suspect waits for its turn
            elif not (held.lease.in_doubt or held.lease.lost or held in self.cancellations.doubted):
                return held
        return None

    def _run(self, future: asyncio.Future[End], held: Held) -> None:
        self._jobs.running[future] = held
        future.add_done_callback(self._finished)

    # ending

    def _finished(self, future: asyncio.Future[End]) -> None:
        jobs = self._jobs
        held = jobs.running.pop(future)
        if self.time_limits.current:
            self.time_limits.end(future)
        jobs.bytes -= len(held.job.body)
        jobs.rate.ended += 1
        if self.cancellations.stopped and self.cancellations.ended(held, future):
            pass
        elif future.cancelled() and self._stopping.is_set():
            jobs.prefetched.append(held)  # cancelled at the stop: it is released with the rest
            jobs.bytes += len(held.job.body)
        elif future.cancelled():
            self._acker.end(held, Failed("CancelledError: the handler was cancelled\n"))
        elif (error := future.exception()) is not None:
            self._failed(held, error)
        elif (end := future.result()) is not None and isinstance(end, Postponed) and end.pause_reason:
            jobs.bytes += len(held.job.body)
            self._run_task(self.pauses.ended(held, end), held)  # it holds its slot until its queue is paused
        else:
            self._acker.end(held, end)
        if jobs.prefetched:
            self.fill()
        self._changed()

    def _failed(self, held: Held, error: BaseException) -> None:
        job = held.job
        last = job.attempts_remaining <= 1
        log.log(
            logging.ERROR if last else logging.WARNING,
            "job %s failed%s in attempt %d of %d",
            job.descriptor,
            " for good" if last else "",
            job.attempt,
            job.attempts_allowed,
            exc_info=exc_info_of(error),
            extra={"job": job},
        )
        self._acker.end(held, Failed(describe(error, ERROR_BYTES) + "\n"))

    def limit_function(self, job: Job, timeout_s: float, judge: Judge) -> Limit:
        """The limit of a running job whose function has this timeout: it is given up GRACE_S later.

        judge: says how the job ends if it is given up.
        """
        return self._limit(job, timeout_s + time_limits.GRACE_S, judge, of_hooks=False)

    def limit_hooks(self, job: Job, most_s: float, judge: Judge) -> Limit:
        """The limit of a running job whose hooks run: it is given up and cancelled. judge: as for limit_function."""
        return self._limit(job, most_s, judge, of_hooks=True)

    def _limit(self, job: Job, after_s: float, judge: Judge, *, of_hooks: bool) -> Limit:
        future = self._future_of(job)
        lease = None if future is None or of_hooks else self._jobs.running[future].lease

        def give_up(future: asyncio.Future[End]) -> None:
            self._give_up(future, judge)
            if of_hooks:
                future.cancel()

        return Limit(self.time_limits, future, job, lease, after_s, give_up)

    def _future_of(self, job: Job) -> asyncio.Future[End] | None:
        """The future of a running job: the current asyncio task, or another one of its handler that waits for this."""
        running = self._jobs.running
        current: asyncio.Future[End] | None = asyncio.current_task()
        if current in running:
            return current
        return next((each for each, held in running.items() if held.job is job and each not in self._judges), None)

    def _give_up(self, future: asyncio.Future[End], judge: Judge) -> None:
        """A running job ends as judge() says, without its handler. No error if the job does not run."""
        self.time_limits.leave_behind(future)
        if (held := self._jobs.running.pop(future, None)) is None:
            return
        future.remove_done_callback(self._finished)
        self._judges.add(self._run_task(judge(), held))

    def is_current(self) -> bool:
        """Whether the end of the calling handler counts: not if its job was removed, or it was left behind."""
        future = asyncio.current_task()
        held = None if future is None else self._jobs.running.get(future)
        return held is not None and held not in self.cancellations.stopped

    # removed and stale jobs

    def on_removed(self, channel: bytes, ids: bytes) -> None:
        """Stops running jobs that were removed, and does not start prefetched ones."""
        jobs = self._jobs
        self.drop(self.cancellations.stop_removed(channel, ids, jobs.running, jobs.prefetched), self._acker.removed)

    def hear(self, channel: bytes, ids: bytes) -> set[Held]:
        """Jobs are said to be removed. Returns those to look up; none of them starts before trust()."""
        jobs = self._jobs
        return self.cancellations.hear(channel, ids, [*jobs.running.values(), *jobs.prefetched])

    def heard_since(self, sent_s: float) -> set[Held]:
        """As hear(), for prefetched jobs of a claim that was sent then (boot_s)."""
        return self.cancellations.among(self._jobs.prefetched, sent_s)

    def trust(self, doubted: set[Held]) -> None:
        """These jobs have been looked up: those that are still held were not removed."""
        self.cancellations.doubted -= doubted
        self._fill_confirmed()

    def stop_stale(self, descriptors: set[str]) -> None:
        """Stops running jobs with these descriptors whose lease is lost."""
        self.cancellations.stop_stale(self._jobs.running, descriptors)

    # a stop

    async def cancel_running(self, timeout_s: float) -> None:
        """Cancels running jobs, waits so long for their handlers to end, and keeps the jobs to be released."""
        self.time_limits.close()
        running = self._jobs.running
        for future in list(running):
            future.cancel()
        if running:
            await asyncio.wait(list(running), timeout=timeout_s)
        for future in list(running):  # threads, and handlers that go on
            future.remove_done_callback(self._finished)
            held = running.pop(future)
            self.time_limits.end(future)
            self._jobs.prefetched.append(held)
