"""Workers of an app, in this process or in several under a supervisor: what `pinlater run` starts.

Promises what the supervisor promises of its processes, and that the queues of the tasks are there when work begins,
if a server is. Risks: none of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import replace
from typing import Any, Final

import orjson
import uvloop

from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import AppFailed, InvalidArgument, OutcomeUnknown, QueueError, ServerError, ServerUnavailable
from pinlater.model.text import describe
from pinlater.running import metrics
from pinlater.running.job_dump import dump
from pinlater.running.options import RunOptions
from pinlater.running.probes import METRICS_TYPE, Answer, Answers, probe, serving
from pinlater.running.recoverer import Recoverer
from pinlater.running.reloader import folder_of, watch
from pinlater.running.status import SupervisorStatus
from pinlater.running.supervisor import Supervisor, kill_after_s
from pinlater.running.worker_process import MIB, NO_SERVER, RECYCLE, REPORT_VARIABLE, ProcessSet
from pinlater.tasks.app import PinLater
from pinlater.tasks.dependencies import Resolved
from pinlater.tasks.loading import load_app
from pinlater.tasks.logs import Lines
from pinlater.tasks.meters import Meter
from pinlater.tasks.runner import TaskRunner
from pinlater.worker.executor import Handler
from pinlater.worker.load_object import TOLD_BYTES
from pinlater.worker.os_process import memory_bytes
from pinlater.worker.stats import counts_of, in_words
from pinlater.worker.stop_signals import StopSignals
from pinlater.worker.worker import Worker, WorkerConfig

log: Final = logging.getLogger("pinlater.worker")

#: How often a process reports to its supervisor, and looks at its memory; until it is ready it reports more often.
REPORT_S: Final = 1.0
FIRST_REPORTS_S: Final = 0.1
#: Options that a supervisor lives by: a reload leaves them.
AT_START: Final = ("app", "url", "shards", "http", "log_format")


@asynccontextmanager
async def worker_of(
    app: PinLater,
    queues: Iterable[str] | None = None,
    config: WorkerConfig | None = None,
    *,
    client: AsyncClient | None = None,
    task_processes: int | None = None,
    around: Callable[[TaskRunner], Handler] | None = None,
    made: Resolved | None = None,
) -> AsyncIterator[Worker]:
    """A worker of the app's tasks, not started yet.

    queues: by default those of its tasks. client: for the worker alone, and not closed with it; the queues are there
    then, else they are made. task_processes: the most processes for tasks that run in such; by default as many as there
    are cores. around: makes the worker's handler of the dispatcher, which it is itself otherwise.
    made: what the lifespan shares; by default that is entered for this worker.
    """
    config = config or WorkerConfig()
    names = app.queue_names(queues)
    missing = names if client is None else []
    entered_lifespan = app.entered_lifespan() if made is None else nullcontext(made)
    async with app.clients.new() if client is None else nullcontext(client) as client, entered_lifespan as made:
        try:
            known = {task.queue for task in app.tasks.values()}
            for name in missing:
                if not await client.create_queue(name, app.queue_config(name)):
                    await _compare(app, client, name)
                elif name not in known:
                    log.warning("queue %s: it was not there, and no task of the app is in it: made now", name)
        except (ServerError, OutcomeUnknown, QueueError) as error:  # it waits for the server; producers make queues
            log.warning("queues not made yet: %s", error)
        runner = TaskRunner(app, client, config.concurrency, task_processes, made)
        try:
            handler = runner if around is None else around(runner)
            config_of = app.queue_config if missing else None
            worker = Worker(client, names, handler, config, runner.on_stop, config_of)
            runner.worker = worker
            yield worker
        finally:
            await runner.close()


async def _compare(app: PinLater, client: AsyncClient, queue: str) -> None:
    """A queue that is there gets the levels that its tasks ask for. That its lease is shorter is told: it may be meant
    so.
    """
    found = await client.queue_config(queue)
    lease_ms, priorities = app.asked_of(queue)
    if priorities > found.priorities:
        await client.configure_queue(queue, priorities=priorities)
        log.info("queue %s: it has %d levels now, as its tasks ask for; it had %d", queue, priorities, found.priorities)
    if lease_ms > found.lease_ms:
        log.warning(
            "queue %s: its lease is %g s, its tasks ask for %g s: pinlater queue set %s --lease-ms %d",
            queue,
            found.lease_ms / 1000,
            lease_ms / 1000,
            queue,
            lease_ms,
        )


def run_app(options: RunOptions, *, verbosity: int = 0, read: Callable[[], RunOptions] | None = None) -> int:
    """Works on an app's queues until a signal; in a burst until nothing is due. Returns the exit code.

    verbosity: of the log of further processes. read: gives the options at a reload; None: they stay.
    """
    read = read or (lambda: options)
    app = load_app(options.app)
    names = app.queue_names(list(options.queues) or None)
    report_fd = os.environ.pop(REPORT_VARIABLE, None)
    if report_fd is not None:
        os.set_inheritable(int(report_fd), False)
        return _Run(app, names, options, int(report_fd), read).run()
    if left_out := sorted({task.queue for task in app.tasks.values()} - set(names)):
        log.info("queues of the app that are not worked on here: %s", ", ".join(left_out))
    groups = options.groups(names)
    alone = len(groups) == 1 and groups[0].processes == 1
    if alone and not options.watch and groups[0].max_jobs is None and groups[0].memory_mb is None:
        code = _Run(app, names, groups[0], None, read).run()
        if code == RECYCLE:
            _start_anew()
        return code
    return _supervise(app, options, verbosity, read)


def _start_anew() -> None:
    """The same command, in this process."""
    for number in (signal.SIGHUP, signal.SIGUSR1):  # which must not end it before it listens
        signal.signal(number, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606


def _supervise(app: PinLater, options: RunOptions, verbosity: int, read: Callable[[], RunOptions]) -> int:
    command = [sys.executable, "-m", "pinlater", *["-v"] * verbosity, "run"]
    names, sets = _sets(app, options, command)
    recoverer = Recoverer(app.clients.new, names)
    status = SupervisorStatus(sets, recoverer)

    def reloaded() -> list[ProcessSet]:
        _, sets = _sets(app, _at_reload(options, read()), command)
        status.sets = sets
        return sets

    supervisor = Supervisor(sets, burst=options.burst, reloaded=reloaded, listener=status, recoverer=recoverer)

    @asynccontextmanager
    async def beside() -> AsyncIterator[None]:
        watching = [watch(folder_of(options.app), supervisor.reload)] if options.watch else []
        async with recoverer.open(), _serving(options.http, status.answers()), _meanwhile(*watching):
            yield

    return supervisor.run(beside)


def _sets(app: PinLater, options: RunOptions, command: Sequence[str]) -> tuple[list[str], list[ProcessSet]]:
    """The queues, and the processes that work on them."""
    names = app.queue_names(list(options.queues) or None)
    groups = options.groups(names)
    return names, [
        ProcessSet(
            command=[*command, *group.arguments()],
            processes=group.processes,
            name="worker process" if len(groups) == 1 else f"worker process of {', '.join(group.queues)}",
            memory_mb=group.memory_mb,
            kill_after_s=kill_after_s(group.config(())),
        )
        for group in groups
    ]


def _at_reload(old: RunOptions, new: RunOptions) -> RunOptions:
    """The new ones, but for those that a supervisor itself lives by."""
    stays = {name: getattr(old, name) for name in AT_START}
    if changed := [name for name, value in stays.items() if getattr(new, name) != value]:
        log.warning("reload: %s: changed, which a start sees, and not a reload", ", ".join(changed))
    return replace(new, **stays)


class _Run:
    """A worker in this process. report_fd: where it tells its supervisor, if it has one, which serves HTTP then. read:
    raises InvalidArgument if a process that is started now would not come up.
    """

    def __init__(
        self,
        app: PinLater,
        queues: list[str],
        options: RunOptions,
        report_fd: int | None,
        read: Callable[[], RunOptions],
    ) -> None:
        self._app, self._queues, self._options, self._read = app, queues, options, read
        self._config = options.config(queues)
        self._report_fd = report_fd
        self._stops = self._code = 0
        self._over = False

    def run(self) -> int:
        """Returns the exit code: RECYCLE when another process is to go on."""
        with StopSignals(self._config.stop_timeout_s) as signals:
            try:
                uvloop.run(self._work(signals))
            except Exception as error:
                if not self._app.raised_by_lifespan(error):
                    raise
                told = describe(error, TOLD_BYTES)
                raise AppFailed(f"app {self._options.app!r}: its lifespan raised {told}") from error
        return self._code

    async def _work(self, signals: StopSignals) -> None:
        options = self._options
        async with (
            self._app,
            worker_of(self._app, self._queues, self._config, task_processes=options.task_processes) as worker,
            AsyncExitStack() as stack,
        ):
            assert isinstance(worker.handler, TaskRunner)
            self._worker, self._runner = worker, worker.handler
            signals.connect(self._on_stop)
            stack.enter_context(self._other_signals())
            if options.http is not None:
                self._runner.meters = {name: Meter() for name in self._app.tasks}
                await stack.enter_async_context(_meanwhile(self._fold()))
            if self._report_fd is None:
                await stack.enter_async_context(_serving(options.http, self._answers()))
            else:
                await stack.enter_async_context(self._reporting(self._report_fd))
            if options.memory_mb is not None:
                await stack.enter_async_context(_meanwhile(self._watch_memory(options.memory_mb)))
            count = sum(task.queue in self._queues for task in self._app.tasks.values())
            log.info("working on %s: %d task%s", ", ".join(self._queues), count, "" if count == 1 else "s")
            try:
                await worker.run(burst=options.burst)
            except ServerUnavailable:
                self._code, self._over = NO_SERVER, True
                raise
            counts = counts_of(worker.stats, self._runner.stats)
            log.info("stopped: %s", in_words(counts), extra=counts)
            self._code = 0 if self._stops else RECYCLE if self._recycling else self._code
            self._over = True

    def _on_stop(self) -> None:
        """A stop signal; the first one after a recycling began asks for nothing more."""
        self._stops += 1
        if not (self._code or self._recycling) or self._stops > 1:
            self._worker.request_stop()

    def _end(self, code: int) -> None:
        """Ends the work as a stop does, with this exit code."""
        if not self._code and not self._stops:
            self._code = code
            self._worker.request_stop()

    def _reload(self) -> None:
        try:
            self._read()
        except InvalidArgument as error:
            log.error("reload: %s; all goes on as it is", error)
        else:
            self._end(RECYCLE)

    @contextmanager
    def _other_signals(self) -> Iterator[None]:
        """SIGHUP: another process is to go on. SIGUSR1: a dump, made at once, as the loop may be kept busy."""
        loop = asyncio.get_running_loop()

        def hang_up(*_: object) -> None:
            loop.call_soon_threadsafe(self._reload)

        def tell(*_: object) -> None:
            log.warning(Lines(f"what runs now:\n{dump(self._worker)}"))

        previous = {signal.SIGHUP: signal.signal(signal.SIGHUP, hang_up)}
        previous[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, tell)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    # telling

    @property
    def _ready(self) -> bool:
        return self._worker.ready and not self._recycling

    @property
    def _recycling(self) -> bool:
        return self._code == RECYCLE or self._worker.exhausted

    def _samples(self) -> metrics.Samples:
        return metrics.samples(self._worker, self._runner)

    async def _fold(self) -> None:
        """What was counted is added up, however seldom somebody asks for it."""
        while True:
            await asyncio.sleep(REPORT_S)
            for meter in self._runner.meters.values():
                meter.fold()

    def _answers(self) -> Answers:
        return {
            "/healthz": lambda: probe(""),
            "/readyz": lambda: probe("" if self._ready else "not subscribed, or stopping"),
            "/metrics": lambda: Answer(200, metrics.text(self._samples()), METRICS_TYPE),
        }

    @asynccontextmanager
    async def _reporting(self, descriptor: int) -> AsyncIterator[None]:
        """Tells the supervisor what was counted, over and over, and at the end."""
        _, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=descriptor))

        def report() -> None:
            full = writer.transport.get_write_buffer_size() and not self._over
            if not full and not writer.transport.is_closing():
                told = {"ready": self._ready, "recycling": self._recycling, "queues": self._queues}
                told["code"] = self._code if self._over else None
                told["samples"] = {} if self._options.http is None else self._samples()
                writer.write(orjson.dumps(told) + b"\n")

        async def report_on() -> None:
            while True:
                report()
                await asyncio.sleep(REPORT_S if self._ready else FIRST_REPORTS_S)

        try:
            async with _meanwhile(report_on()):
                yield
        finally:
            report()
            with suppress(OSError):  # it is gone
                writer.close()
                await writer.wait_closed()

    async def _watch_memory(self, cap_mb: int) -> None:
        """Another process is to go on when this one and those below it use more than the cap."""
        while (used := memory_bytes(os.getpid()) // MIB) <= cap_mb:  # noqa: ASYNC110  (nothing tells it)
            await asyncio.sleep(REPORT_S)
        if self._worker.stats.claimed:
            log.info("this process uses %d MiB, its cap is %d: another takes its place", used, cap_mb)
            self._end(RECYCLE)
        else:
            log.error("this process uses %d MiB before its first job, its cap is %d: raise the cap", used, cap_mb)
            self._end(1)


def _serving(address: str | None, answers: Answers) -> AbstractAsyncContextManager[None]:
    return nullcontext() if address is None else serving(address, answers)


@asynccontextmanager
async def _meanwhile(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs them beside the block, and ends them with it."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
