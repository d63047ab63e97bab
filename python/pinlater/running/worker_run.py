"""A worker in this process, from its start to its exit code.

Promises that a stop signal ends the worker as its configuration says. A supervisor gets a report each second, and a
last report at the end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import uvloop

from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import InvalidArgument, ServerUnavailable
from pinlater.running import metrics
from pinlater.running.background import in_background
from pinlater.running.heartbeat import beating
from pinlater.running.job_dump import dump
from pinlater.running.probes import METRICS_TYPE, Answer, Answers, probe, serving
from pinlater.running.queue_reader import reading_queues
from pinlater.running.reports import Report, reporting
from pinlater.running.worker_process import MIB, NO_SERVER, RECYCLE
from pinlater.tasks.logs import Lines
from pinlater.tasks.runner import TaskRunner
from pinlater.worker.os_process import memory_bytes
from pinlater.worker.stats import counts_of, in_words
from pinlater.worker.stop_signals import StopSignals, log_stop
from pinlater.worker.worker import Worker, WorkerConfig

log: Final = logging.getLogger("pinlater.worker")

#: Interval at which meters are folded and memory is checked.
CHECK_S: Final = 1.0


def _always_valid() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of a worker.

    queues: the names of its queues.
    must_exist: those of them that no worker creates.
    other_queues: those of the app's tasks that are not worked on here, for the log.
    summary: what the log says the worker works on.
    servers: the servers and where their choice came from, for the log.
    config: the worker's configuration. Under a supervisor the worker runs no monitor.
    new_client: makes a client of the same servers.
    open: makes the worker with this configuration, not started yet. A supervisor does not call it.
    burst: end the worker when no job is due.
    http: HOST:PORT of probes and metrics.
    memory_mb: replace the process when it uses more memory than this, in MiB.
    check: raises InvalidArgument if a process that starts now would fail.
    """

    queues: Sequence[str]
    must_exist: Sequence[str] = ()
    other_queues: Sequence[str] = ()
    summary: str
    servers: str
    config: WorkerConfig
    new_client: Callable[[], AsyncClient]
    open: Callable[[WorkerConfig], AbstractAsyncContextManager[Worker]]
    burst: bool = False
    http: str | None = None
    memory_mb: int | None = None
    check: Callable[[], object] = _always_valid

    def announce(self, log: logging.Logger) -> None:
        """Logs what a command says first."""
        log.info("servers: %s", self.servers)
        if self.other_queues:
            log.info("queues of the app that are not worked on here: %s", ", ".join(self.other_queues))


class WorkerRun:
    """One run of a worker.

    report_fd: file descriptor for reports to a supervisor. Then the supervisor, not this process, serves HTTP.
    """

    def __init__(self, work: Work, report_fd: int | None = None) -> None:
        self._work, self._report_fd = work, report_fd
        self._stops = self._code = 0
        self._over = False
        self._queue_samples: Callable[[], metrics.Samples] = dict

    def run(self) -> int:
        """Runs the worker to its end. Returns the exit code; RECYCLE asks for another process."""
        self._work.announce(log)
        with StopSignals(self._work.config.stop_timeout_s) as signals:
            uvloop.run(self._run(signals))
        return self._code

    async def _run(self, signals: StopSignals) -> None:
        async with self._work.open(self._work.config) as worker, AsyncExitStack() as stack:
            self._worker = worker
            self._runner = worker.handler if isinstance(worker.handler, TaskRunner) else None
            signals.connect(self._on_stop)
            stack.enter_context(self._other_signals())
            for service in self._services():
                await stack.enter_async_context(service)
            await self._work_until_the_end()

    def _services(self) -> Iterator[AbstractAsyncContextManager[None]]:
        """The services that run beside the worker."""
        work = self._work
        yield beating(work.new_client, work.queues, self._worker)
        yield in_background(self._log_that_it_works())
        if self._runner is not None and self._runner.meters:
            yield in_background(self._fold_meters(self._runner))
        if self._report_fd is not None:
            yield reporting(self._report_fd, self._report, self._on_message)
        elif work.http is not None:
            yield self._reading_queues()
            yield serving(work.http, self._answers())
        if work.memory_mb is not None:
            yield in_background(self._watch_memory(work.memory_mb))

    @asynccontextmanager
    async def _reading_queues(self) -> AsyncIterator[None]:
        async with reading_queues(self._work.new_client, lambda: self._work.queues) as self._queue_samples:
            yield

    async def _log_that_it_works(self) -> None:
        """Logs the queues when the first claim is answered."""
        await self._worker.fetcher.answered.wait()
        log.info("working on %s", self._work.summary)

    async def _work_until_the_end(self) -> None:
        try:
            await self._worker.run(burst=self._work.burst)
        except ServerUnavailable:
            self._code, self._over = NO_SERVER, True
            raise
        stats = [self._worker.stats] if self._runner is None else [self._worker.stats, self._runner.stats]
        counts = counts_of(*stats)
        process = "" if self._report_fd is None else f"process {os.getpid()} "
        log.info("%sstopped: %s", process, in_words(counts), extra=counts)
        self._code = 0 if self._stops else RECYCLE if self._recycling else self._code
        self._over = True

    def _on_stop(self) -> None:
        """Takes a stop signal. While the process recycles itself the first signal changes nothing."""
        self._stops += 1
        if self._report_fd is None:  # else the supervisor says it
            log_stop(self._stops)
        if not (self._code or self._recycling) or self._stops > 1:
            self._worker.request_stop()

    def _end(self, code: int) -> None:
        """Stops the worker, and ends the process with this exit code."""
        if not self._code and not self._stops:
            self._code = code
            self._worker.request_stop()

    def _reload(self) -> None:
        try:
            self._work.check()
        except InvalidArgument as error:
            log.error("reload: %s; nothing changes", error)
        else:
            self._end(RECYCLE)

    @contextmanager
    def _other_signals(self) -> Iterator[None]:
        """Handles SIGHUP (another process replaces this one) and SIGUSR1 (a dump).

        The signal handler itself makes the dump, because a task may block the loop.
        """
        loop = asyncio.get_running_loop()

        def reload(*_: object) -> None:
            loop.call_soon_threadsafe(self._reload)

        def log_dump(*_: object) -> None:
            log.warning(Lines(f"what runs now:\n{dump(self._worker)}"))

        previous = {signal.SIGHUP: signal.signal(signal.SIGHUP, reload)}
        previous[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, log_dump)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    # reports

    @property
    def _ready(self) -> bool:
        return self._worker.ready and not self._recycling

    def _unready(self) -> str:
        """Why it is not ready; "" if it is."""
        if self._ready:
            return ""
        if self._stops or self._recycling or self._over:
            return "it stops"
        return f"it does not hear from every server yet: {self._work.servers}"

    @property
    def _recycling(self) -> bool:
        return self._code == RECYCLE or self._worker.exhausted

    def _samples(self) -> metrics.Samples:
        return metrics.samples(self._worker, self._runner)

    async def _fold_meters(self, runner: TaskRunner) -> None:
        """Adds up the counts of each task regularly, even if nobody reads metrics."""
        while True:
            await asyncio.sleep(CHECK_S)
            for meter in runner.meters.values():
                meter.fold()

    def _answers(self) -> Answers:
        return {
            "/healthz": lambda: probe(""),
            "/readyz": lambda: probe(self._unready()),
            "/metrics": lambda: Answer(200, metrics.text(self._samples() | self._queue_samples()), METRICS_TYPE),
        }

    def _report(self) -> Report:
        return Report(
            ready=self._ready,
            unready=self._unready(),
            recycling=self._recycling,
            queues=list(self._work.queues),
            code=self._code if self._over else None,
            samples={} if self._work.http is None else self._samples(),
        )

    def _on_message(self, message: dict[str, Any]) -> None:
        """Takes the descriptors of jobs that failed by a crash."""
        self._worker.on_failed(message["failed"], None)

    async def _watch_memory(self, cap_mb: int) -> None:
        """Asks for another process when this one and its children use more than the cap."""
        while (used := memory_bytes(os.getpid()) // MIB) <= cap_mb:  # noqa: ASYNC110  (no event announces it)
            await asyncio.sleep(CHECK_S)
        if self._worker.stats.claimed:
            log.info("this process uses %d MiB, its cap is %d: another takes its place", used, cap_mb)
            self._end(RECYCLE)
        else:
            log.error("this process uses %d MiB before its first job, its cap is %d: raise the cap", used, cap_mb)
            self._end(1)
