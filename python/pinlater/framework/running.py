"""Workers of an app, in this process or in several: what `pinlater run` starts.

Promises what the supervisor promises of its processes, and that the queues of the tasks are there when work begins,
if a server is. Risks: none of its own.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import uvloop

from pinlater.errors import InvalidArgument, OutcomeUnknown, ServerError
from pinlater.framework.app import PinLater
from pinlater.framework.dispatching import Dispatcher
from pinlater.handlers import Handler, load_object
from pinlater.supervisor import StopSignals, supervise
from pinlater.worker import Worker, WorkerConfig

log: Final = logging.getLogger("pinlater.worker")


def load_app(name: str) -> PinLater:
    """The app that `module:app` names, the current directory on the path. Or InvalidArgument."""
    found = load_object(name, "app")
    if not isinstance(found, PinLater):
        raise InvalidArgument(f"app {name!r}: expected a PinLater, got {found!r:.60}")
    found.imported_as(name)
    return found


@asynccontextmanager
async def worker_of(
    app: PinLater,
    queues: Iterable[str] | None = None,
    config: WorkerConfig | None = None,
    *,
    task_processes: int | None = None,
    around: Callable[[Dispatcher], Handler] | None = None,
) -> AsyncIterator[Worker]:
    """A worker of the app's tasks, not started yet. queues: by default those of its tasks. task_processes: the most
    processes for tasks that run in such; by default as many as there are cores. around: makes the worker's handler of
    the dispatcher, which it is itself otherwise.
    """
    config = config or WorkerConfig()
    names = app.queue_names(queues)
    async with app.clients.new() as client, app.living() as made:
        try:
            for name in names:
                await client.create_queue(name, app.queue_config(name))
        except (ServerError, OutcomeUnknown) as error:  # the worker waits for the server, and producers make queues
            log.warning("queues not made yet: %s", error)
        dispatcher = Dispatcher(app, client, config.concurrency, task_processes, made)
        try:
            handler = dispatcher if around is None else around(dispatcher)
            yield Worker(client, names, handler, config, dispatcher.on_stop)
        finally:
            await dispatcher.close()
            log.info("tasks: %s", dispatcher.stats)


def run_app(
    name: str,
    queues: Sequence[str] | None = None,
    *,
    config: WorkerConfig | None = None,
    processes: int = 1,
    task_processes: int | None = None,
    burst: bool = False,
    command: Sequence[str] = (),
) -> int:
    """Works on an app's queues until a signal; in a burst until nothing is due. Returns the exit code.

    command: starts one of several processes. task_processes: as of worker_of.
    """
    config = config or WorkerConfig()
    app = load_app(name)
    names = app.queue_names(queues)
    if processes > 1:
        return supervise(command, processes, config, burst=burst)
    with StopSignals(config.stop_timeout_s) as signals:
        uvloop.run(_work(app, names, config, task_processes, burst, signals.connect))
    return 0


async def _work(
    app: PinLater,
    queues: list[str],
    config: WorkerConfig,
    task_processes: int | None,
    burst: bool,
    connect: Callable[[Callable[[], None]], None],
) -> None:
    async with app, worker_of(app, queues, config, task_processes=task_processes) as worker:
        connect(worker.request_stop)
        log.info("working on %s: %d tasks", ", ".join(queues), len(app.tasks))
        await worker.run(burst=burst)
        log.info("stopped: %s", worker.stats)
