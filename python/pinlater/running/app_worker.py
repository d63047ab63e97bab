"""A worker of an app's tasks.

Promises that the queues of the tasks exist when work begins, if a server answers.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Final

from pinlater.client.async_client import AsyncClient
from pinlater.model.queue_config import QueueConfig
from pinlater.model.queue_options import show_options, show_settings
from pinlater.running.missing_queues import check_exist, unless_away
from pinlater.tasks.app import PinLater, parts_of
from pinlater.tasks.dependencies import Resolved
from pinlater.tasks.loading import import_included
from pinlater.tasks.runner import TaskRunner
from pinlater.worker.executor import Handler
from pinlater.worker.worker import Worker, WorkerConfig

log: Final = logging.getLogger("pinlater.worker")


@asynccontextmanager
async def worker_of(
    app: PinLater,
    queues: Iterable[str] | None = None,
    config: WorkerConfig | None = None,
    *,
    client: AsyncClient | None = None,
    task_processes: int | None = None,
    around: Callable[[TaskRunner], Handler] | None = None,
    resolved: Resolved | None = None,
    create: bool = False,
) -> AsyncIterator[Worker]:
    """A worker of the app's tasks, not started yet.

    queues: the worker's queues. By default those of the app's tasks.
    client: a client for this worker alone. It stays open at the end, and the queues must exist. By default the worker
        gets a new client, and missing queues of the app's tasks are created.
    task_processes: the highest number of processes for tasks that run in processes. By default the number of cores.
    around: makes the worker's handler from the runner. By default the runner is the handler.
    resolved: the values that the lifespan shares. By default the lifespan is entered for this worker.
    create: also create missing queues that no task of the app names. By default they raise InvalidArgument.
    """
    config = config or WorkerConfig()
    import_included(app)
    parts = parts_of(app)
    names = parts.queue_names(queues)
    creates = client is None
    entered_lifespan = parts.entered_lifespan() if resolved is None else nullcontext(resolved)
    async with parts.clients.new() if client is None else nullcontext(client) as client, entered_lifespan as resolved:
        if creates:
            await _create_queues(app, client, names, create)
        runner = TaskRunner(app, client, config.concurrency, task_processes, resolved)
        try:
            handler = runner if around is None else around(runner)
            config_of = _config_of(app, create) if creates else None
            worker = Worker(client, names, handler, config, runner.on_stop, config_of, runner.on_failed)
            runner.worker = worker
            yield worker
        finally:
            await runner.close()


def _config_of(app: PinLater, create: bool) -> Callable[[str], QueueConfig | None]:
    """The configuration of a queue that is created; None for one that no task names, unless `create`."""
    own = {task.queue for task in app.tasks.values()}
    return lambda queue: parts_of(app).queue_config(queue) if create or queue in own else None


async def _create_queues(app: PinLater, client: AsyncClient, queues: Sequence[str], create: bool) -> None:
    """Creates missing queues. If no server answers, the worker waits for one, and producers create the queues.

    create: see worker_of. Raises InvalidArgument.
    """
    own, config_of = {task.queue for task in app.tasks.values()}, _config_of(app, create)
    with unless_away():
        await check_exist(client, [queue for queue in queues if config_of(queue) is None], own)
        for queue in queues:
            config = config_of(queue)
            if config is None or not await client.create_queue(queue, config):
                await _compare(app, client, queue)
            elif queue not in own:
                log.warning("queue %s: created, as it was missing; no task of the app uses it", queue)


async def _compare(app: PinLater, client: AsyncClient, queue: str) -> None:
    """Adds the priorities that the tasks of an existing queue need.

    A lease that is too short, and other settings, are only logged, because an operator may have chosen them.
    """
    found = await client.queue_config(queue)
    lease_ms, priorities = parts_of(app).lease_and_priorities(queue)
    if priorities > found.priorities:
        await client.configure_queue(queue, priorities=priorities)
        log.info("queue %s: its tasks need %d priorities; raised from %d", queue, priorities, found.priorities)
    if lease_ms > found.lease_ms:
        log.warning(
            "queue %s: its lease is %g s, its tasks ask for %g s: pinlater queue set %s --lease %.15gs",
            queue,
            found.lease_ms / 1000,
            lease_ms / 1000,
            queue,
            lease_ms / 1000,
        )
    wanted = parts_of(app).settings(queue)
    settings = {name: getattr(found, name) for name in wanted}
    if settings != wanted:
        log.warning(
            "queue %s: it has %s, its tasks ask for %s: pinlater queue set %s %s",
            queue,
            show_settings(settings),
            show_settings(wanted),
            queue,
            show_options(wanted),
        )
