"""`pinlater run`: workers of an app's tasks.

Promises what `composition` promises. A supervisor does not import the app. If a lifespan raises, the command ends with
an error that names the lifespan.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from pinlater.model.errors import AppFailed
from pinlater.model.text import describe
from pinlater.running.app_facts import AppFacts, facts_of, facts_without_import
from pinlater.running.app_worker import worker_of
from pinlater.running.composition import is_supervised, run_alone, run_supervised, supervise
from pinlater.running.options import RunOptions
from pinlater.running.worker_process import ProcessSet, kill_after_s
from pinlater.running.worker_run import Work
from pinlater.tasks.app import parts_of
from pinlater.tasks.loading import load_app
from pinlater.tasks.meters import Meter
from pinlater.tasks.runner import TaskRunner
from pinlater.worker.load_object import ERROR_BYTES
from pinlater.worker.worker import Worker, WorkerConfig

log: Final = logging.getLogger("pinlater.worker")

#: Options that a reload does not change, because the supervisor itself uses them.
AT_START: Final = ("app", "url", "shards", "http", "log_format")


def find_app(options: RunOptions) -> AppFacts:
    """What must be known of an app before it runs. Imports it only if this process, as far as is known, runs its tasks.

    Raises as load_app does.
    """
    if is_supervised() or (_can_run_alone(options) and not options.may_be_apart):
        return facts_of(load_app(options.app, options.include), options.app)
    return facts_without_import(options.app, options.include)


def run_app(
    options: RunOptions,
    *,
    facts: AppFacts | None = None,
    verbosity: int = 0,
    read: Callable[[], RunOptions] | None = None,
) -> int:
    """Works on an app's queues until a signal; in a burst until nothing is due. Returns the exit code.

    facts: those of find_app(). By default it is called here.
    verbosity: the verbosity of the log of worker processes.
    read: returns the options after a reload. By default they do not change.
    """
    read = read or (lambda: options)
    facts = facts or find_app(options)
    queues = facts.queue_names(list(options.queues) or None)
    work = _work(facts, queues, options, read)
    code = run_supervised(work)
    if code is not None:
        return code
    groups = options.groups(queues)
    if len(groups) == 1 and _can_run_alone(groups[0]):
        load_app(options.app, options.include)  # modules may not be imported where a loop runs
        return run_alone(_work(facts, queues, groups[0], read))
    command = [sys.executable, "-m", "pinlater", *["-v"] * verbosity, "run"]

    def reloaded() -> list[ProcessSet]:
        return _process_sets(facts, _at_reload(options, read()), command)

    watched = Path(facts.folder) if options.watch else None
    return supervise(work, _process_sets(facts, options, command), reloaded, watched)


def _can_run_alone(options: RunOptions) -> bool:
    """Whether one process is enough, and no option asks for its replacement."""
    limits = (options.max_jobs, options.memory_mb, options.loop_timeout)
    return (options.processes, options.watch, *limits) == (1, False, None, None, None)


def _work(facts: AppFacts, queues: list[str], options: RunOptions, read: Callable[[], RunOptions]) -> Work:
    left_out = sorted(facts.tasks.keys() - set(queues))
    count = sum(facts.tasks.get(queue, 0) for queue in queues)
    return Work(
        queues=queues,
        must_exist=[] if options.create else [queue for queue in queues if queue not in facts.tasks],
        other_queues=left_out,
        summary=f"{', '.join(queues)}: {count} task{'' if count == 1 else 's'}",
        servers=str(facts.clients.servers()),
        config=options.config(queues),
        new_client=facts.clients.new,
        open=lambda config: _open(queues, options, config),
        burst=options.burst,
        http=options.http,
        memory_mb=options.memory_mb,
        check=read,
    )


@asynccontextmanager
async def _open(queues: list[str], options: RunOptions, config: WorkerConfig) -> AsyncIterator[Worker]:
    app = load_app(options.app, options.include)  # find_app() or run_app() has imported it
    try:
        async with (
            app,
            worker_of(app, queues, config, task_processes=options.task_processes, create=options.create) as worker,
        ):
            assert isinstance(worker.handler, TaskRunner)
            if options.log_success:
                worker.handler.success_level = logging.INFO
            if options.http is not None:
                worker.handler.meters = {name: Meter() for name in app.tasks}
            yield worker
    except Exception as error:
        if not parts_of(app).raised_by_lifespan(error):
            raise
        raised = describe(error, ERROR_BYTES)
        raise AppFailed(f"app {options.app!r}: its lifespan raised {raised}") from error


def _process_sets(facts: AppFacts, options: RunOptions, command: Sequence[str]) -> list[ProcessSet]:
    groups = options.groups(facts.queue_names(list(options.queues) or None))
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
