"""Jobs that failed for good outside of their function: by a lease that ran out, or an end that no server took.

Promises: shown with workers of an app in this process, and with processes that are killed together with their
supervisor.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest

from pinlater import (
    AsyncClient,
    Cancel,
    Client,
    Failure,
    InvalidArgument,
    Job,
    PinLater,
    ProcessDied,
    QueueConfig,
    State,
)
from pinlater.running.app_worker import worker_of
from pinlater.tasks import envelope
from pinlater.tasks.runner import TaskRunner
from pinlater.worker.executor import End, Failed, Postponed
from pinlater.worker.worker import WorkerConfig
from tests.support.app_runs import AppRuns, runs
from tests.support.handlers_for_tests import on_loop, until
from tests.support.paths import ROOT
from tests.support.servers import Server, free_port, wait_until

__all__ = ["runs"]  # a fixture

MIB = 1024 * 1024
QUICK = WorkerConfig(tick_s=0.1)


@pytest.mark.parametrize("limit", [0, 1])
@on_loop
async def test_a_lease_that_ran_out_reaches_the_task_of_each_job_once(
    server: Server, caplog: pytest.LogCaptureFixture, limit: int
) -> None:
    """Two monitors look."""
    failures: list[Failure] = []

    async def on_loop(failure: Failure) -> None:
        failures.append(failure)

    async with PinLater(server.url) as app, AsyncExitStack() as stack, AsyncClient(server.url) as client:

        @app.task(attempts=1, on_failure=on_loop)
        async def awaited(number: int) -> None: ...

        @app.task(attempts=1, on_failure=failures.append)
        def plain(number: int) -> None: ...

        await client.create_queue("default", QueueConfig(lease_ms=300, crash_limit=limit))
        jobs = [(await task.aenqueue(number)).descriptor for number, task in ((1, awaited), (2, plain))]
        unknown = await client.enqueue("default", envelope.head("not.here", "msgpack") + b"\x91\x90", attempts=1)
        assert len(await client.dequeue("default", 3)) == 3
        workers = [await stack.enter_async_context(worker_of(app, config=QUICK)) for _ in range(2)]
        for worker in workers:
            await worker.start()
            stack.push_async_callback(worker.stop)
        await until(lambda: len(failures) == 2, "the hooks", 30)
        await until(lambda: "not.here" in caplog.text, "the record of the other one", 30)
    assert sorted(failure.args[0] for failure in failures) == [1, 2]
    said = "lease ran out (crash 1 of 1)" if limit else "its worker process died, or its lease ran out"
    assert {(type(failure.error), str(failure.error)) for failure in failures} == {(ProcessDied, said)}
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    named = zip([*jobs, unknown], [awaited.name, plain.name, "not.here"], strict=True)
    assert sorted(errors) == sorted(f"job {job}: task {name} failed for good: {said}" for job, name in named)


@dataclass(frozen=True, slots=True)
class Unclipped(Failed):
    """A failure whose status is not clipped, and cannot be packed."""

    def __post_init__(self) -> None:
        pass


@pytest.mark.parametrize(
    ("bad", "cancels", "attempts", "runs", "error"),
    [
        (Postponed(0, bytes(2 * MIB)), False, 1, 1, InvalidArgument),
        (Postponed(0, bytes(2 * MIB)), False, 2, 2, InvalidArgument),
        (Unclipped("\ud800", final=True), True, 3, 1, Cancel),
    ],
    ids=["last attempt", "two attempts", "failed by itself"],
)
@on_loop
async def test_an_end_that_no_server_takes_reaches_on_failure_if_it_was_the_last(
    server: Server, bad: End, cancels: bool, attempts: int, runs: int, error: type[Exception]
) -> None:
    failures: list[Failure] = []
    ran: list[int] = []

    def around(runner: TaskRunner) -> Callable[[Job], Awaitable[End]]:
        async def handler(job: Job) -> End:
            await runner(job)
            return bad

        return handler

    async with PinLater(server.url) as app:

        @app.task(attempts=attempts, on_failure=failures.append)
        async def task(number: int) -> None:
            ran.append(number)
            if cancels:
                raise Cancel("by itself")

        config = WorkerConfig(retry_delay_ms=0, monitor=False)
        async with worker_of(app, config=config, around=around) as worker:
            await worker.start()
            handle = await task.aenqueue(7)
            await until(lambda: len(failures) == 1, "the hook", 30)
            await until(lambda: worker.unacked == 0, "the ack", 30)
            await worker.stop()
        info = await handle.ainfo()
        assert info is not None
        assert (info.state, len(ran)) == (State.FAILED, runs)
    assert "its end was not taken" in info.status
    assert [(failure.args, type(failure.error)) for failure in failures] == [([7], error)]


@on_loop
async def test_a_hook_under_way_is_awaited_at_a_stop(server: Server) -> None:
    events: list[str] = []

    async def hook(failure: Failure) -> None:
        events.append("began")
        await until(lambda: stopping, "the stop")
        events.append("ended")

    stopping = False
    async with PinLater(server.url) as app, AsyncClient(server.url) as client:

        @app.task(attempts=1, on_failure=hook)
        async def task() -> None: ...

        await client.create_queue("default", QueueConfig(lease_ms=300, crash_limit=1))
        await task.aenqueue()
        assert len(await client.dequeue("default", 1)) == 1
        async with worker_of(app, config=QUICK) as worker:
            await worker.start()
            await until(lambda: events == ["began"], "the hook", 30)
            await worker.stop()
            stopping = True
    assert events == ["began", "ended"]


def test_a_monitor_without_an_app_logs_the_name_of_the_task(server: Server, tmp_path: Path) -> None:
    call = f"run_monitor(None, shards={{'1': {server.url!r}}}, tick_s=0.1)"
    command = [sys.executable, "-c", f"from pinlater.running.monitor_command import run_monitor; {call}"]
    with PinLater(server.url) as app, Client(server.url) as client, (tmp_path / "log").open("w") as log:
        client.create_queue("default", QueueConfig(lease_ms=300, crash_limit=1))
        handle = app.send("mail", 1)
        assert len(client.dequeue("default", 1)) == 1
        monitor = subprocess.Popen(command, cwd=ROOT, stderr=log)
        try:
            error = f"job {handle.descriptor}: task mail failed for good: lease ran out (crash 1 of 1)"
            wait_until(lambda: error in (tmp_path / "log").read_text(), "the record")
        finally:
            monitor.terminate()
            assert monitor.wait() == 0


TASKS = """
async def hook(failure) -> None:
    note("failed", f"{failure.task}:{failure.args[0]}:{failure.error}".replace(" ", "_"))

@app.task(name="hang", attempts=1, on_failure=hook)
async def hang(number: int) -> None:
    note("began", "hang")
    await asyncio.Event().wait()
"""


@pytest.mark.thorough("crashes")
@pytest.mark.parametrize("options", [(), ("--processes", "2")], ids=["alone", "supervisor"])
@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_processes_that_nobody_saw_die(server: Server, runs: Callable[..., AppRuns], options: tuple[str, ...]) -> None:
    """A process without a supervisor, or a supervisor with its processes, is killed. Two others of the kind look."""
    app_runs, port = runs(server.url, TASKS), free_port()
    with PinLater(server.url) as app, Client(server.url) as client:
        client.create_queue("default", QueueConfig(lease_ms=1_000, crash_limit=1))
        handles = [app.send("hang", number) for number in range(2)]
        dying = app_runs.start(*options)
        pids = {note.pid for note in app_runs.wait("began", 2)}
        for pid in {dying.pid, *pids}:
            os.kill(pid, signal.SIGKILL)
        app_runs.start(*options, "--http", f"127.0.0.1:{port}")
        app_runs.start(*options)
        told = sorted(note.name for note in app_runs.wait("failed", 2))
        assert told == [f"hang:{number}:lease_ran_out_(crash_1_of_1)" for number in range(2)]
        for handle in handles:
            assert re.search(rf"ERROR.* job {handle.descriptor}: task hang failed for good: lease", app_runs.log)

        def metrics() -> str:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                return str(answer.read().decode())

        wait_until(lambda: "pinlater_redelivered_jobs_total" in metrics(), "metrics")
        if "pinlater_redelivered_jobs_total 2" in metrics():  # the monitor of the first one saw it
            line = 'pinlater_failed_by_crash_total{task="hang",queue="default"} 2\n'
            wait_until(lambda: line in metrics(), "its count")
        assert len(app_runs.notes("failed")) == 2
