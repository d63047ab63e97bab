"""`pinlater run`: workers of an app's tasks.

Promises what `composition` promises. If a lifespan raises, the command ends with an error that names the lifespan.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from pinlater.model.errors import AppFailed
from pinlater.model.text import describe
from pinlater.running.app_worker import create_queues, worker_of
from pinlater.running.composition import run_alone, run_supervised, supervise
from pinlater.running.file_watcher import folder_of
from pinlater.running.options import RunOptions
from pinlater.running.worker_process import ProcessSet, kill_after_s
from pinlater.running.worker_run import Work
from pinlater.tasks.app import PinLater
from pinlater.tasks.loading import load_app
from pinlater.tasks.meters import Meter
from pinlater.tasks.runner import TaskRunner
from pinlater.worker.load_object import ERROR_BYTES
from pinlater.worker.worker import Worker, WorkerConfig

log: Final = logging.getLogger("pinlater.worker")

#: Options that a reload does not change, because the supervisor itself uses them.
AT_START: Final = ("app", "url", "shards", "http", "log_format")


def run_app(options: RunOptions, *, verbosity: int = 0, read: Callable[[], RunOptions] | None = None) -> int:
    """Works on an app's queues until a signal; in a burst until nothing is due. Returns the exit code.

    verbosity: the verbosity of the log of worker processes.
    read: returns the options after a reload. By default they do not change.
    """
    read = read or (lambda: options)
    app = load_app(options.app)
    queues = app.queue_names(list(options.queues) or None)
    code = run_supervised(_work(app, queues, options, read))
    if code is not None:
        return code
    groups = options.groups(queues)
    if len(groups) == 1 and _can_run_alone(groups[0]):
        return run_alone(_work(app, queues, groups[0], read))
    command = [sys.executable, "-m", "pinlater", *["-v"] * verbosity, "run"]

    def reloaded() -> list[ProcessSet]:
        return _process_sets(app, _at_reload(options, read()), command)

    watched = folder_of(options.app) if options.watch else None
    return supervise(_work(app, queues, options, read), _process_sets(app, options, command), reloaded, watched)


def _can_run_alone(options: RunOptions) -> bool:
    """Whether one process is enough, and no option asks for its replacement."""
    limits = (options.max_jobs, options.memory_mb, options.loop_timeout)
    return (options.processes, options.watch, *limits) == (1, False, None, None, None)


def _work(app: PinLater, queues: list[str], options: RunOptions, read: Callable[[], RunOptions]) -> Work:
    config = options.config(queues)
    left_out = sorted({task.queue for task in app.tasks.values()} - set(queues))
    count = sum(task.queue in queues for task in app.tasks.values())
    return Work(
        queues=queues,
        summary=f"{', '.join(queues)}: {count} task{'' if count == 1 else 's'}",
        servers=app.clients.servers,
        config=config,
        new_client=app.clients.new,
        open=lambda config: _open(app, queues, options, config),
        burst=options.burst,
        http=options.http,
        memory_mb=options.memory_mb,
        check=read,
        note=f"queues of the app that are not worked on here: {', '.join(left_out)}" if left_out else "",
        prepare=lambda client: create_queues(app, client, queues, options.create),
    )


@asynccontextmanager
async def _open(app: PinLater, queues: list[str], options: RunOptions, config: WorkerConfig) -> AsyncIterator[Worker]:
    try:
        async with (
            app,
            worker_of(app, queues, config, task_processes=options.task_processes, create=options.create) as worker,
        ):
            if options.http is not None:
                assert isinstance(worker.handler, TaskRunner)
                worker.handler.meters = {name: Meter() for name in app.tasks}
            yield worker
    except Exception as error:
        if not app.raised_by_lifespan(error):
            raise
        raised = describe(error, ERROR_BYTES)
        raise AppFailed(f"app {options.app!r}: its lifespan raised {raised}") from error


def _process_sets(app: PinLater, options: RunOptions, command: Sequence[str]) -> list[ProcessSet]:
    groups = options.groups(app.queue_names(list(options.queues) or None))
    return [
        ProcessSet(
            command=[*command, *group.arguments()],
            processes=group.processes,
            name="worker process" if len(groups) == 1 else f"worker process of {', '.join(group.queues)}",
            memory_mb=group.memory_mb,
            loop_timeout_s=group.loop_timeout,
            kill_after_s=kill_after_s(group.stop_timeout),
        )
        for group in groups
    ]


def _at_reload(old: RunOptions, new: RunOptions) -> RunOptions:
    """The new options, except those of AT_START."""
    kept = {name: getattr(old, name) for name in AT_START}
    if changed := [name for name, value in kept.items() if getattr(new, name) != value]:
        log.warning("reload: a change of %s takes effect at the next start", ", ".join(changed))
    return replace(new, **kept)
