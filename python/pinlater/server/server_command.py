"""`pinlater server`: the processes of a server under a supervisor, and the monitor of its queues.

Promises that no connection is refused while a process starts or ends: the supervisor keeps their sockets.
A SIGHUP reads the settings again and replaces the processes one by one; a stop signal stops them.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing, nullcontext
from dataclasses import replace
from typing import Final

from pinlater.running.background import in_background
from pinlater.running.queue_reader import reading_queues
from pinlater.running.status import SupervisorStatus
from pinlater.running.supervisor import Supervisor
from pinlater.running.worker_process import REPORT_VARIABLE, ProcessSet, kill_after_s
from pinlater.server.admin import bind_pages, pages_of, serving_pages
from pinlater.server.home_keeper import HomeKeeper
from pinlater.server.queue_config_file import QueueConfigFile, RateKeeper
from pinlater.server.read_settings import export_settings
from pinlater.server.samples import monitor_samples
from pinlater.server.server_process import run_process
from pinlater.server.settings import ServerSettings
from pinlater.server.shard_client import chosen_shards, shard_client
from pinlater.server.sockets import Sockets, raise_file_limit
from pinlater.store.shards import ChosenShards
from pinlater.worker.monitor import Monitor
from pinlater.worker.stop_signals import StopLines

log: Final = logging.getLogger("pinlater.server")

#: Environment variable with the file descriptor of the socket that listens.
LISTEN_VARIABLE: Final = "PINLATER_LISTEN_FD"
#: Settings that a reload does not change, because the supervisor itself uses them.
AT_START: Final = ("host", "port", "http", "shards_file", "queue_config_file")
STOP_LINES: Final = StopLines(
    "stopping, press Ctrl-C again to close connections without waiting for the calls under way",
    "closing connections without waiting for the calls under way",
)


def run_server(
    settings: ServerSettings,
    shards: ChosenShards,
    command: Sequence[str],
    read: Callable[[], ServerSettings] | None = None,
) -> int:
    """Serves until a signal. Returns the exit code.

    command: the command line that starts one process. That process calls this function too.
    read: returns the settings after a reload. By default they do not change.
    """
    report_fd = os.environ.pop(REPORT_VARIABLE, None)
    if report_fd is not None:
        listening = socket.socket(fileno=int(os.environ.pop(LISTEN_VARIABLE)))
        for descriptor in (int(report_fd), listening.fileno()):
            os.set_inheritable(descriptor, False)
        return run_process(settings, shards, listening, int(report_fd))
    shards = chosen_shards(settings, shards)
    raise_file_limit(settings.max_connections)
    with ExitStack() as stack:
        # before anything is announced
        sockets = stack.enter_context(closing(Sockets(settings)))
        pages = stack.enter_context(bind_pages(settings.http)) if settings.http else None
        return _supervise(settings, shards, sockets, pages, command, read or (lambda: settings))


def _supervise(
    settings: ServerSettings,
    shards: ChosenShards,
    sockets: Sockets,
    pages: socket.socket | None,
    command: Sequence[str],
    read: Callable[[], ServerSettings],
) -> int:
    def process_sets(of: ServerSettings) -> list[ProcessSet]:
        export_settings(of)
        return [
            ProcessSet(
                command=command,
                name="server process",
                kill_after_s=kill_after_s(of.stop_s),
                descriptors={LISTEN_VARIABLE: listening.fileno()},
            )
            for listening in sockets.of(of.processes)
        ]

    def reload() -> list[ProcessSet]:
        status.process_sets = sets = process_sets(_at_reload(settings, read()))
        return sets

    rates = QueueConfigFile(settings.queue_config_file)
    rates.read()
    sets = process_sets(settings)
    status = SupervisorStatus(sets)
    host, port = sockets.address
    log.info("servers: %s", shards)
    log.info("PinLater's Thrift service listens on %s, port %d%s", host, port, ", with TLS" * bool(settings.tls_cert))
    supervisor = Supervisor(
        sets, reloaded=reload, listener=status, stop_lines=STOP_LINES, ready=f"ready on port {port}"
    )
    return supervisor.run(lambda: _beside(settings, shards, rates, status, pages))


@asynccontextmanager
async def _beside(
    settings: ServerSettings,
    shards: ChosenShards,
    rates: QueueConfigFile,
    status: SupervisorStatus,
    pages: socket.socket | None,
) -> AsyncIterator[None]:
    """Runs the monitor of all queues, what sets their rates, and the admin pages beside the block.

    pages: the socket of the admin pages; None: there are none.
    """
    async with AsyncExitStack() as stack:
        # one client: each watches the shards and logs what becomes of them
        client = await stack.enter_async_context(shard_client(settings, shards))
        status.monitor = monitor = Monitor(client)
        status.own_samples = lambda: monitor_samples(monitor.counts)
        await monitor.start()
        stack.push_async_callback(monitor.stop)
        rates.start()
        stack.push_async_callback(rates.stop)
        await stack.enter_async_context(in_background(RateKeeper(client, rates).run()))
        await stack.enter_async_context(in_background(HomeKeeper(client, rates).run()))
        if pages is not None:
            reading = reading_queues(lambda: nullcontext(client), monitor.queues)
            status.queue_samples = await stack.enter_async_context(reading)
            await stack.enter_async_context(serving_pages(pages, pages_of(status, client.session)))
        yield


def _at_reload(old: ServerSettings, new: ServerSettings) -> ServerSettings:
    """The new settings, except those of AT_START."""
    kept = {name: getattr(old, name) for name in AT_START}
    if changed := [name for name, value in kept.items() if getattr(new, name) != value]:
        log.warning("reload: a change of %s takes effect at the next start", ", ".join(changed))
    return replace(new, **kept)
