"""Handlers that take orders from the job's body, worker processes that run them, and a record of their runs.

Promises: the record is one file, to which every process appends whole lines with the machine's monotonic clock, so that
runs of several processes can be compared.
Risks: a handler that is killed between its work and its line leaves no line.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from pinlater import AsyncClient, Job, QueueConfig
from pinlater.running.worker_command import run_handler
from pinlater.worker.end_rate import EndRate
from pinlater.worker.worker import Worker, WorkerConfig
from tests.support.paths import ROOT
from tests.support.servers import POLL_S, READY_DEADLINE_S, Server, wait_until

RECORD_VARIABLE = "PINLATER_TEST_RECORD"


class Line(NamedTuple):
    """event: start, end or fail. Times are monotonic nanoseconds."""

    event: str
    descriptor: str
    token: str
    attempt: int
    pid: int
    time_ns: int


class Record:
    """The lines of all handlers, in their order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def lines(self, event: str | None = None) -> list[Line]:
        found = []
        whole, _, _ = self.path.read_text().rpartition("\n")  # the last line may be incomplete
        for text in whole.splitlines():
            kind, descriptor, token, attempt, pid, time_ns = text.split()
            if event in (None, kind):
                found.append(Line(kind, descriptor, token, int(attempt), int(pid), int(time_ns)))
        return found

    def count(self, event: str) -> int:
        return len(self.lines(event))

    def wait(self, event: str, count: int, deadline_s: float = READY_DEADLINE_S) -> list[Line]:
        wait_until(lambda: self.count(event) >= count, f"{count} lines of {event!r}", deadline_s)
        return self.lines(event)


def note(event: str, job: Job) -> None:
    """Appends a line; O_APPEND keeps lines of many processes whole."""
    line = f"{event} {job.descriptor} {job.token.hex()} {job.attempt} {os.getpid()} {time.monotonic_ns()}\n"
    handle = os.open(os.environ[RECORD_VARIABLE], os.O_WRONLY | os.O_APPEND)
    os.write(handle, line.encode())
    os.close(handle)


def body(do: str = "nothing", **arguments: Any) -> bytes:
    """A body with orders for the handlers below."""
    return json.dumps({"do": do, **arguments}).encode()


async def work(job: Job) -> None:
    """Runs the order of a body.

    - gate: waits until a file exists.
    - last: sleeps for some seconds.
    - gil: holds the GIL for some seconds, and lets it go for a moment each second. hold: without such moments.
    - keep: keeps the loop, or the GIL, for some seconds, rests, and so on for ever.
    - fail: fails with a given chance, after up to some seconds.
    - spin: blocks the loop for ever. exit: ends the process.
    """
    note("start", job)
    match json.loads(job.body):
        case {"do": "gate", "path": path}:
            await until(Path(path).exists, "the gate", 600.0)
        case {"do": "last", "seconds": seconds}:
            await asyncio.sleep(seconds)
        case {"do": "gil", "seconds": seconds}:
            hold_gil(seconds)
        case {"do": "hold", "seconds": seconds}:
            ctypes.PyDLL(None).sleep(seconds)
        case {"do": "keep", "seconds": seconds, "rest": rest_s, "gil": gil}:
            while True:
                _keep(seconds, gil=gil)
                await asyncio.sleep(rest_s)
        case {"do": "fail", "chance": chance, "seconds": seconds}:
            await asyncio.sleep(random.random() * seconds)
            if random.random() < chance:
                note("fail", job)
                raise ValueError("as told")
        case {"do": "spin"}:
            while True:
                pass
        case {"do": "exit"}:
            os._exit(3)
    note("end", job)


def _keep(seconds: float, *, gil: bool) -> None:
    """Keeps the loop, or the GIL too."""
    if gil:
        ctypes.PyDLL(None).sleep(int(seconds))
    else:
        time.sleep(seconds)


def plain(job: Job) -> None:
    """Runs the order of a body. gate: waits until a file exists. hang: waits for ever."""
    note("start", job)
    match json.loads(job.body):
        case {"do": "gate", "path": path}:
            wait_until(Path(path).exists, "the gate")
        case {"do": "hang"}:
            threading.Event().wait()
    note("end", job)


def hold_gil(seconds: float) -> None:
    """Holds the GIL, as some C code does."""
    libc = ctypes.PyDLL(None)
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        libc.usleep(int(min(left_s, 0.9) * 1_000_000))  # usleep takes less than a second


def on_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an async test on uvloop, as workers do."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        async def main() -> None:
            await test(*arguments, **named)

        uvloop.run(main())

    return run


async def until(condition: Callable[[], object], expected: str, deadline_s: float = READY_DEADLINE_S) -> None:
    """wait_until, on the loop."""
    end_s = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() >= end_s:
            raise TimeoutError(f"expected {expected} within {deadline_s:g} s")
        await asyncio.sleep(POLL_S)


async def nothing(job: Job) -> None:
    pass


@asynccontextmanager
async def clients(server: Server, count: int = 2, **config: Any) -> AsyncIterator[list[AsyncClient]]:
    """Clients of one server with two shards, and the queue q."""
    found = [AsyncClient(shards={"1": server.url, "2": server.url}) for _ in range(count)]
    await found[0].create_queue("q", QueueConfig(**config))
    try:
        yield found
    finally:
        for client in found:
            await client.close()


async def idle(worker: Worker) -> None:
    """Waits until the worker has found no job, is registered, and waits."""
    await until(lambda: worker.fetcher.empty, "an idle worker")


class ShortJobs(EndRate):
    """Makes the worker prefetch as many jobs as it may, as if jobs ended at once."""

    def per_s(self) -> float:
        return 1e6


class WorkerProcesses:
    """Starts worker processes that write to one record. `end` kills those that still run."""

    def __init__(self, shards: Mapping[str, str], record: Record, log: Path) -> None:
        self.shards = dict(shards)
        self.record = record
        self.log = log
        self.all: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        queues: Sequence[str] = ("q",),
        handler: str = "work",
        short_jobs: bool = False,
        processes: int = 1,
        **config: Any,
    ) -> subprocess.Popen[bytes]:
        """One process.

        processes: several run under it, as their supervisor.
        short_jobs: it prefetches all that it may from its first claim on.
        config: of WorkerConfig.
        """
        how = {"handler": handler, "short_jobs": short_jobs, "processes": processes, "config": config}
        arguments = json.dumps({"shards": self.shards, "queues": list(queues), **how})
        return self.run([sys.executable, "-m", "tests.support.handlers_for_tests", arguments])

    def run(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Starts any command, with the record in its environment."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=self.environment, stdout=log, stderr=log)
        self.all.append(process)
        return process

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, RECORD_VARIABLE: str(self.record.path)}

    def logged(self) -> str:
        return self.log.read_text(errors="replace")

    def end(self) -> None:
        for process in self.all:
            process.kill()
            process.wait()


def main() -> int:
    import logging

    logging.basicConfig(level=logging.INFO, format="%(process)d %(levelname)s %(message)s")
    arguments = json.loads(sys.argv[1])
    if arguments["short_jobs"]:
        setattr(EndRate, "per_s", ShortJobs.per_s)  # noqa: B010  (mypy refuses the assignment)
    handler = f"tests.support.handlers_for_tests:{arguments['handler']}"
    return run_handler(
        handler,
        arguments["queues"],
        shards=arguments["shards"],
        config=WorkerConfig(**arguments["config"]),
        processes=arguments["processes"],
        command=[sys.executable, "-m", "tests.support.handlers_for_tests", sys.argv[1]],
    )


if __name__ == "__main__":
    sys.exit(main())
