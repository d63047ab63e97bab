"""One process of a server, from its start to its exit code.

Promises that a stop signal ends it as `Listener.stop` says, and that what it holds goes back: tokens of limits, and
jobs of claims whose answers were lost or reached nobody.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from contextlib import AsyncExitStack, suppress
from typing import Final

import uvloop

from pinlater.client.async_client import AsyncClient
from pinlater.running.metrics import Samples
from pinlater.running.reports import Report, reporting
from pinlater.server.answer_room import AnswerRoom
from pinlater.server.calls import Calls
from pinlater.server.capacity import Capacity
from pinlater.server.hot_calls import HotCalls
from pinlater.server.listener import Listener
from pinlater.server.methods import Methods
from pinlater.server.passwords import Password
from pinlater.server.queue_config_file import QueueConfigFile
from pinlater.server.samples import samples
from pinlater.server.settings import ServerSettings
from pinlater.server.shard_client import shard_client
from pinlater.server.stats import ServerStats
from pinlater.store.shards import ChosenShards
from pinlater.worker.stop_signals import StopSignals

log: Final = logging.getLogger("pinlater.server")

#: After its connections ended, a process has so long to end calls and to give back what it holds. It is less than
#: OVERTIME_S.
GIVE_BACK_S: Final = 8.0


class ServerProcess:
    """A server in this process. Use it in an `async with` block.

    client: of the shards; whoever made it closes it.
    """

    def __init__(self, client: AsyncClient, settings: ServerSettings) -> None:
        self._client, self._settings = client, settings
        self.stats = ServerStats()
        self.password = Password(settings.password_hash)
        self._capacity = Capacity(settings.max_requests, settings.max_buffered)
        self.calls = Calls(self.stats, self._capacity)
        self.room = AnswerRoom(settings.max_buffered)
        self._hot = HotCalls(client, settings, self.calls, self.room)
        rates = QueueConfigFile(settings.queue_config_file)
        self.calls.methods = Methods(client, settings, self.password, self.stats, rates, self.room).by_name
        self.listener = Listener(settings, self.calls.serve)
        self._capacity.on_room = self.listener.room
        self._stopped = False

    async def start(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Accepts connections from a socket that listens."""
        self._client.session.port = listening.getsockname()[1]
        await self.listener.start(listening, tls)

    async def stop(self) -> None:
        """Ends the connections, then the calls that are left. A second call does nothing."""
        if self._stopped:
            return
        self._stopped = True
        self.password.close()
        await self.listener.stop()
        with suppress(TimeoutError):  # Redis does not answer: leases end by themselves, lost tokens are never doubled
            async with asyncio.timeout(GIVE_BACK_S):
                await self.calls.close()
                await self._hot.close()
                await self.calls.close()  # it may have begun releases

    def samples(self) -> Samples:
        """The metrics of this process."""
        return samples(
            self.stats,
            connections=len(self.listener.connections),
            calls=self._capacity.under_way,
            wrong_passwords=self.password.wrong,
        )


def run_process(settings: ServerSettings, shards: ChosenShards, listening: socket.socket, report_fd: int) -> int:
    """Serves until a stop signal. Returns the exit code. report_fd: file descriptor for reports to the supervisor."""
    run, tls = _Run(settings, shards), settings.tls_context()
    with StopSignals(float(settings.stop_s)) as signals:
        uvloop.run(run.serve(listening, report_fd, tls, signals))
    return 0


class _Run:
    """One run of a server process, with its reports."""

    def __init__(self, settings: ServerSettings, shards: ChosenShards) -> None:
        self._settings, self._shards = settings, shards
        self._stop = asyncio.Event()
        self._is_over = False
        self._process: ServerProcess | None = None

    async def serve(
        self, listening: socket.socket, report_fd: int, tls: ssl.SSLContext | None, signals: StopSignals
    ) -> None:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(shard_client(self._settings, self._shards))
            process = ServerProcess(client, self._settings)
            signals.connect(self._on_signal)
            await stack.enter_async_context(reporting(report_fd, self._report, lambda _: None))
            await process.start(listening, tls)
            self._process = process
            await self._stop.wait()
            await process.stop()
            self._is_over = True

    def _on_signal(self) -> None:
        """The first stop signal lets the calls under way end, a second one does not."""
        if self._stop.is_set() and self._process is not None:
            self._process.listener.hurry()
        self._stop.set()

    def _report(self) -> Report:
        ready = self._process is not None and not self._stop.is_set()
        return Report(
            ready=ready,
            unready="" if ready else "it stops" if self._stop.is_set() else "it starts",
            recycling=False,
            queues=[],
            code=0 if self._is_over else None,
            samples={} if self._process is None else self._process.samples(),
        )
