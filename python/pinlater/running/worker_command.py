"""`pinlater worker`: workers of one handler.

Promises what `composition` promises, and that a mistyped handler is an error before any process starts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pinlater.client import settings_file
from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import InvalidArgument
from pinlater.model.queue_config import QueueConfig
from pinlater.model.queue_options import Queue
from pinlater.running.composition import run_alone, run_supervised, supervise
from pinlater.running.missing_queues import check_exist, unless_away
from pinlater.running.worker_process import ProcessSet, kill_after_s
from pinlater.running.worker_run import Work
from pinlater.store.shards import NamedShards, resolve_shards
from pinlater.tasks.loading import app_name_of
from pinlater.tasks.task import Task
from pinlater.worker.executor import Handler, check_handler
from pinlater.worker.load_object import load_object
from pinlater.worker.worker import Worker, WorkerConfig


def run_handler(
    handler: str | Handler,
    queues: Sequence[str],
    *,
    shards: NamedShards,
    config: WorkerConfig | None = None,
    processes: int = 1,
    command: Sequence[str] = (),
    create: bool = False,
) -> int:
    """Works on queues until a signal. Returns the exit code.

    handler: a function that takes one job, or its name as `module:function`.
    processes: the number of processes. A single one is this process. Several run under a supervisor.
    command: the command line that starts one of several processes. That process calls this function too.
    create: create missing queues. By default they raise InvalidArgument.
    """
    function = load_handler(handler) if isinstance(handler, str) else _checked("handler", handler)
    work = _work(function, queues, shards, config or WorkerConfig(), create)
    code = run_supervised(work)
    if code is not None:
        return code
    if processes == 1:
        return run_alone(work)
    kill_s = kill_after_s(work.config.stop_timeout_s)
    return supervise(work, [ProcessSet(command=command, processes=processes, kill_after_s=kill_s)])


def load_handler(name: str) -> Handler:
    """The function that `module:function` names. Raises as load_object does."""
    return _checked(f"handler {name!r}", load_object(name, "handler"))


def _checked(what: str, handler: Any) -> Handler:
    """Returns a handler. Raises InvalidArgument. what: the handler, as errors name it."""
    if isinstance(handler, Task):
        app = app_name_of(handler)
        raise InvalidArgument(f"{what}: this is a task of app {app}; `pinlater run {app}` works on it")
    return check_handler(handler)


def _work(handler: Handler, queues: Sequence[str], shards: NamedShards, config: WorkerConfig, create: bool) -> Work:
    must_exist = [] if create else queues

    def new_client() -> AsyncClient:
        return AsyncClient(shards=shards, archive=settings_file.archive())

    @asynccontextmanager
    async def open_worker(config: WorkerConfig) -> AsyncIterator[Worker]:
        async with new_client() as client:
            with unless_away():
                await check_exist(client, must_exist)
                limited = settings_file.queues() if create else {}
                for queue in queues if create else []:
                    await client.create_queue(queue, QueueConfig(**limited.get(queue, Queue(queue)).settings))
            yield Worker(client, queues, handler, config)

    return Work(
        queues=queues,
        must_exist=must_exist,
        summary=", ".join(queues),
        servers=str(resolve_shards(None, shards)),
        config=config,
        new_client=new_client,
        open=open_worker,
    )
