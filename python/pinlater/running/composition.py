"""How a command runs its worker: in this process, or in several under a supervisor.

Promises one way for `pinlater run` and `pinlater worker`: signals, restarts, reloads and reports are the same for both.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from pinlater.running.background import in_background
from pinlater.running.failed_jobs import FailedJobs
from pinlater.running.file_watcher import watch
from pinlater.running.loop_watch import END_WITH_STACKS
from pinlater.running.missing_queues import check_exist, unless_away
from pinlater.running.probes import serving
from pinlater.running.queue_reader import reading_queues
from pinlater.running.recoverer import Recoverer
from pinlater.running.status import SupervisorStatus
from pinlater.running.supervisor import Supervisor
from pinlater.running.supervisor_monitor import monitoring
from pinlater.running.worker_process import RECYCLE, REPORT_VARIABLE, Process, ProcessSet
from pinlater.running.worker_run import Work, WorkerRun
from pinlater.worker.stop_signals import OTHER_SIGNALS

log: Final = logging.getLogger("pinlater.supervisor")


class _Listener:
    """The listener of a supervisor: its status, and what tells ready processes of failed jobs."""

    def __init__(self, status: SupervisorStatus, failed_jobs: FailedJobs) -> None:
        self._failed_jobs = failed_jobs
        self._status, self.ended = status, status.ended

    def reported(self, process: Process) -> None:
        self._status.reported(process)
        self._failed_jobs.reported(process)


def is_supervised() -> bool:
    """Whether a supervisor started this process, and run_supervised() has not been called."""
    return REPORT_VARIABLE in os.environ


def run_supervised(work: Work) -> int | None:
    """If a supervisor started this process, runs the work and returns the exit code. Otherwise returns None."""
    report_fd = os.environ.pop(REPORT_VARIABLE, None)
    if report_fd is None:
        return None
    os.set_inheritable(int(report_fd), False)
    faulthandler.register(END_WITH_STACKS, chain=True)
    try:
        # the supervisor runs a monitor, where no handler can hold it, and has announced what is not worked on
        work = replace(work, config=replace(work.config, monitor=False), other_queues=())
        return WorkerRun(work, int(report_fd)).run()
    finally:
        _ignore_other_signals()


def run_alone(work: Work) -> int:
    """Runs the work in this process, without a supervisor. Returns the exit code."""
    code = WorkerRun(work).run()
    if code == RECYCLE:
        _start_again()
    return code


def supervise(
    work: Work,
    process_sets: Sequence[ProcessSet],
    reloaded: Callable[[], Sequence[ProcessSet]] | None = None,
    watched: Path | None = None,
) -> int:
    """Runs the work in processes under a supervisor. Returns the exit code.

    reloaded: returns the process sets after a reload. By default they do not change.
    watched: a folder. A change of its Python files causes a reload.
    """
    work.announce(log)
    if work.must_exist:
        asyncio.run(_check_queues(work))
    failed_jobs = FailedJobs()
    recoverer = Recoverer(work.new_client, work.queues, failed_jobs.add)
    status = SupervisorStatus(process_sets, work.queues, recoverer)

    def reload() -> Sequence[ProcessSet]:
        status.process_sets = process_sets if reloaded is None else reloaded()
        return status.process_sets

    supervisor = Supervisor(
        process_sets,
        burst=work.burst,
        reloaded=reload,
        listener=_Listener(status, failed_jobs),
        recover=recoverer.recover,
    )

    @asynccontextmanager
    async def beside() -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.enter_context(failed_jobs.open())
            await stack.enter_async_context(recoverer.open())
            if work.config.monitor:
                monitor = monitoring(
                    work.new_client, status.queues, work.must_exist, work.config.tick_s, failed_jobs.add
                )
                status.monitor = await stack.enter_async_context(monitor)
            if work.http is not None:
                reading = reading_queues(work.new_client, status.queues)
                status.queue_samples = await stack.enter_async_context(reading)
                await stack.enter_async_context(serving(work.http, status.answers()))
            if watched is not None:
                await stack.enter_async_context(in_background(watch(watched, supervisor.reload)))
            yield

    return supervisor.run(beside)


async def _check_queues(work: Work) -> None:
    async with work.new_client() as client:
        with unless_away():
            others = {*work.queues, *work.other_queues}.difference(work.must_exist)
            await check_exist(client, work.must_exist, others)


def _start_again() -> None:
    """Runs the same command in place of this program, under the same process id."""
    _ignore_other_signals()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606


def _ignore_other_signals() -> None:
    """Makes this process ignore SIGHUP and SIGUSR1 while it starts again, and while the interpreter shuts down.

    The shutdown removes all handlers. Without this, a supervisor that asks for a dump sees a crash
    (test_worker_command.py).
    """
    for number in OTHER_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
