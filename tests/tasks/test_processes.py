"""Tasks with runs_in="process", on real servers and real processes: tests/support/calls_app.py has them.

Process ids show which process ran a task. The table of ends is tested in test_task_ends.py.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from pinlater import (
    Failure,
    InvalidArgument,
    Middleware,
    PinLater,
    ProcessDied,
    RaisedInProcess,
    State,
    SyncContext,
    TaskFailed,
)
from pinlater.running.app_worker import worker_of
from pinlater.tasks import envelope
from pinlater.tasks import task_processes as processes
from pinlater.tasks.app import parts_of
from pinlater.tasks.loading import import_name, load_app
from pinlater.worker.worker import WorkerConfig
from tests.conftest import FreshServer
from tests.support import calls_app
from tests.support.calls_app import app
from tests.support.handlers_for_tests import RECORD_VARIABLE, on_loop, until
from tests.support.servers import is_alive


@pytest.fixture
def out(fresh_server: FreshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that tasks write to; the app works on a server, whose kind makes no difference to processes."""
    monkeypatch.setenv("PINLATER_URL", fresh_server().url)
    path = tmp_path / "out"
    path.touch()
    yield path
    app.close()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def pid_of(line: str) -> int:
    return int(line.split()[-1])


async def run(*queues: str, processes: int = 1, **config: Any) -> Any:
    """Runs what is due; returns the worker's counts."""
    async with worker_of(app, queues or None, WorkerConfig(**config), task_processes=processes) as worker:
        await asyncio.wait_for(worker.run(burst=True), 60)
        return worker.stats


@on_loop
async def test_jobs_share_processes_that_end_with_the_worker(out: Path) -> None:
    async with app:
        await calls_app.add.aenqueue_many([calls_app.add.args(str(out), x, y=1) for x in range(20)])
        assert (await run(processes=2)).succeeded == 20
    assert sorted(int(line.split()[0]) for line in lines(out)) == list(range(1, 21))
    pids = {pid_of(line) for line in lines(out)}
    assert 1 <= len(pids) <= 2
    assert os.getpid() not in pids
    assert not any(is_alive(pid) for pid in pids)


@on_loop
async def test_a_checkpoint_goes_through_the_worker_and_a_trace_goes_on(out: Path) -> None:
    async with app:
        await calls_app.checkpointed.using(trace="00-ab").aenqueue(str(out))
        assert (await run("default")).failed == 1
        client = parts_of(app).clients.of_loop()
        (sent,) = await client.dequeue("cheap")
        assert envelope.read(sent.body)[3] == {"trace": "00-ab"}
    said = lines(out)
    assert said[:2] == ["1 None 00-ab None", "2 {'at': 2} 00-ab None"]
    assert said[2].startswith("checkpoint: the state can not be packed as msgpack")


@on_loop
async def test_a_task_in_a_process_gets_what_the_lifespan_of_the_process_shares(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RECORD_VARIABLE, str(out))
    async with app:
        await calls_app.given.aenqueue_many([("a",), ("b",)])
        assert (await run("given")).succeeded == 2
    said = [line.split() for line in lines(out)]
    here, there = str(os.getpid()), said[2][1]
    assert [line[0] for line in said] == ["lifespan", "lifespan", "a", "closed", "b", "closed", "left", "left"]
    assert [line[-1] for line in said if len(line) > 1] == [here, there, there, there, there, here]
    assert here != there


@on_loop
async def test_results_come_from_processes(out: Path) -> None:
    async with app:
        fine, bad = await calls_app.square.aenqueue(7), await calls_app.square.aenqueue("x")
        stats = await run("kept")
        assert (stats.succeeded, stats.failed) == (1, 1)
        assert await fine.aresult(timeout=10) == {"square": 49}
        with pytest.raises(TaskFailed, match="result: it can not be packed as json"):
            await bad.aresult(timeout=10)


@on_loop
async def test_arguments_and_results_of_a_process_are_what_annotations_say(out: Path) -> None:
    day = datetime.date(2026, 11, 22)
    async with app:
        handle = await calls_app.price_on.aenqueue(day, {day: Decimal("1.50")})
        await run("kept")
        assert str(await handle.aresult(timeout=10)) == "1.50"


@on_loop
async def test_a_snooze_keeps_state_and_progress_from_a_process(out: Path) -> None:
    async with app:
        await calls_app.stateful.aenqueue(str(out))
        stats = await run("kept")
    assert (stats.postponed, stats.succeeded) == (1, 1)
    assert lines(out) == ["None False", "{'at': 1} False"]


@on_loop
async def test_what_can_not_be_read_back_fails_its_job_and_spares_its_process(out: Path) -> None:
    async with app:
        wheres = ("", "value", "state", "")
        before, value, state, after = [await calls_app.unreadable.aenqueue(where) for where in wheres]
        await run("values", concurrency=1)
        assert await before.aresult(timeout=10) == await after.aresult(timeout=10)
        with pytest.raises(TaskFailed, match="ResultNotKept: result: it can not be read: OverflowError"):
            await value.aresult(timeout=10)
        with pytest.raises(
            TaskFailed, match=r"Snooze: its delay or state can not be packed and read back: OverflowError.*; a state is"
        ):
            await state.aresult(timeout=10)


@on_loop
async def test_a_value_that_is_not_kept_is_for_middleware_that_sees_it(out: Path) -> None:
    seen = dict[str, Any]()

    class Watch(Middleware):
        async def around(self, execution: Any, run: Any) -> Any:
            seen[execution.args[0]] = await run()

    async with app:
        with pytest.MonkeyPatch.context() as patch:
            for middleware in ([], [Watch()]):
                patch.setattr(app, "middleware", middleware)
                await calls_app.value.aenqueue_many([("unreadable",), ("unpackable",), ("fine",)])
                assert (await run("values", concurrency=1)).succeeded == 3
    assert seen == {"unreadable": None, "unpackable": None, "fine": [1, "a"]}


@on_loop
async def test_what_a_task_forks_gets_signals_and_ends_with_the_function(out: Path) -> None:
    codes = {"terminate": -signal.SIGTERM, "": 0, "3": 3, "checkpoint": 1}
    async with app:
        handles = {how: await calls_app.forks.aenqueue(how) for how in codes}
        await run("kept")
        assert {how: await handle.aresult(timeout=10) for how, handle in handles.items()} == codes


@on_loop
async def test_threads_of_a_task_use_its_context_at_once(out: Path) -> None:
    async with app:
        handle = await calls_app.at_once.aenqueue(50)
        await run("kept")
        assert await handle.aresult(timeout=10) is True


@on_loop
async def test_a_thread_that_outlives_its_job_does_not_reach_the_next_one(out: Path) -> None:
    async with app:
        first, second = await calls_app.outliving.aenqueue(), await calls_app.outliving.aenqueue()
        await run("kept", concurrency=1)
        assert await first.aresult(timeout=10) == ""
        refused = await second.aresult(timeout=10)
    assert refused == f"checkpoint: job {first.descriptor} has ended in this process"


@on_loop
async def test_the_process_of_a_cancelled_job_is_killed(out: Path) -> None:
    async with app, worker_of(app, ["default"], task_processes=1) as worker:
        await worker.start()
        handle = await calls_app.last.aenqueue(str(out))
        await until(lambda: lines(out), "its begin")
        pid = pid_of(lines(out)[0])
        assert await handle.acancel()
        await until(lambda: worker.stats.cancelled == 1, "its end")
        await until(lambda: not is_alive(pid), "the end of its process")
        await worker.stop()


@on_loop
async def test_a_job_cancelled_while_its_process_starts_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    connecting = asyncio.Event()

    async def connect(**_: Any) -> Any:
        connecting.set()
        await asyncio.Event().wait()

    async def keep(*_: Any) -> None: ...

    pool = processes.ProcessPool("tests.support.calls_app:app", 1, "w", keep, False, None)
    before = set(psutil.Process().children())
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "open_unix_connection", connect)
        job: Any = None
        running = asyncio.ensure_future(pool.run(calls_app.add, job, [], {}, {}))
        await asyncio.wait_for(connecting.wait(), 30)
        running.cancel()
        await asyncio.wait([running])
    assert running.cancelled()
    assert set(psutil.Process().children()) == before
    await pool.close()


@on_loop
async def test_a_cancelled_wait_for_a_process_does_not_end_other_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process, killed = await asyncio.create_subprocess_exec("sleep", "600"), asyncio.Event()
    ours, theirs = socket.socketpair()
    theirs.close()
    child = processes.TaskProcess(process, *await asyncio.open_unix_connection(sock=ours))
    monkeypatch.setattr(processes, "EXIT_TIMEOUT_S", 0.01)
    monkeypatch.setattr(child, "kill", killed.set)
    receiving = asyncio.ensure_future(child.receive())
    await asyncio.wait_for(killed.wait(), 30)
    receiving.cancel()
    await asyncio.wait([receiving])
    assert not child.exited.done()
    process.kill()
    assert await child.exited == -signal.SIGKILL


@on_loop
async def test_a_raw_body_goes_to_a_process(out: Path) -> None:
    async with app:
        await calls_app.raw.aenqueue(str(out).encode())
        assert (await run("raw")).succeeded == 1
    assert pid_of(lines(out)[0]) != os.getpid()


@on_loop
async def test_an_idle_process_that_dies_costs_no_attempt(out: Path) -> None:
    async with app, worker_of(app, task_processes=1) as worker:
        await worker.start()
        for number in range(2):
            await calls_app.add.aenqueue(str(out), 0, y=0)
            await until(lambda number=number: len(lines(out)) > number, "its line")  # type: ignore[misc]
            await until(lambda number=number: worker.stats.succeeded > number, "its end")  # type: ignore[misc]
            pid = pid_of(lines(out)[-1])
            os.kill(pid, signal.SIGKILL)
            await until(lambda pid=pid: not is_alive(pid), "its end")  # type: ignore[misc]
        await worker.stop()
        assert worker.stats.failed == 0


@on_loop
async def test_a_job_that_ends_its_process_at_once_had_started(out: Path) -> None:
    """Unlike a job whose idle process died before it started: that one runs again at once."""
    async with app:
        for _ in range(3):
            await calls_app.add.aenqueue(str(out), 0, y=0)
            await calls_app.die.aenqueue("exit")
        stats = await run("default", concurrency=1)
    assert (stats.succeeded, stats.failed) == (3, 3)


@on_loop
async def test_jobs_wait_for_processes_that_can_not_start(
    out: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def logged() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]

    monkeypatch.setattr("pinlater.tasks.task_processes.FIRST_PAUSE_S", 0.25)
    monkeypatch.setenv(calls_app.ALONE_VARIABLE, str(os.getpid()))
    async with app, worker_of(app, ["default"], task_processes=1) as worker:
        await calls_app.add.aenqueue_many([calls_app.add.args(str(out), x, y=1) for x in range(3)])
        await worker.start()
        await until(lambda: len(logged()) == 2, "two starts that failed")
        monkeypatch.delenv(calls_app.ALONE_VARIABLE)
        await until(lambda: worker.stats.succeeded == 3, "the end of the jobs")
        await worker.stop()
        assert worker.stats.failed == 0
    said = "no task process can start: OSError: no database; jobs that need one are postponed for the next"
    assert logged() == [f"{said} {pause_s} s" for pause_s in (0.25, 0.5)]
    assert 'raise OSError("no database")' in caplog.text


@on_loop
async def test_what_a_process_task_raised_is_seen_by_hooks_and_middleware(out: Path) -> None:
    seen = list[BaseException | None]()
    failures = list[Failure]()

    class Watch(Middleware):
        async def after(self, execution: Any, error: BaseException | None) -> None:
            seen.append(error)

    async def hook(failure: Failure) -> None:
        failures.append(failure)

    async with app, parts_of(app).clients.new() as client:
        await client.create_queue("default")
        await calls_app.fail.aenqueue("lookup")
        await calls_app.die.aenqueue("exit")
        options = calls_app.fail.options
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(app, "middleware", [Watch()])
            patch.setattr(calls_app.fail, "options", dataclasses.replace(options, on_failure=hook))
            await run()
    by_kind = {type(error): error for error in seen}
    assert set(by_kind) == {RaisedInProcess, ProcessDied}
    raised = by_kind[RaisedInProcess]
    assert str(raised) == "KeyError: 'no'"
    assert raised is not None
    assert "raise ends[how]\nKeyError: 'no'" in "".join(raised.__notes__)
    (failure,) = failures
    assert (failure.error, failure.args) == (raised, ["lookup"])
    assert "calls_app.py" in failure.status


@on_loop
async def test_what_a_task_raises_in_a_process_counts_as_elsewhere(out: Path) -> None:
    """The process reports how the error ends the job, as only it can call the task's backoff."""
    told_of = ("retry", "snooze", "cancel", "error", "lookup", "abort")
    async with app:
        handles = {how: await calls_app.fail.aenqueue(how) for how in told_of}
        await run("default", concurrency=2, processes=2)
        infos = {how: await handle.ainfo() for how, handle in handles.items()}
    ends = {}
    for how, info in infos.items():
        assert info is not None
        wait_s = None if info.run_after_ms is None else (info.run_after_ms - info.created_ms) // 60_000
        ends[how] = (info.state, info.attempts_remaining, info.status.partition("\n")[0], wait_s)
    assert ends == {
        "retry": (State.PENDING, 4, "Retry: why", 60),
        "snooze": (State.PENDING, 5, "", 60),
        "cancel": (State.FAILED, 0, "Cancel: why", None),
        "error": (State.PENDING, 4, "ValueError: ('no', 3600)", 60),
        "lookup": (State.FAILED, 0, "KeyError: 'no'", None),
        "abort": (State.FAILED, 0, "Abort: no", None),
    }


@on_loop
async def test_the_wait_for_a_process_is_no_part_of_an_attempt(out: Path) -> None:
    """Attempts of one process are one after the other, so they do not last longer than all together."""
    async with app:
        handles = await calls_app.spin.aenqueue_many([(str(out),)] * 3)
        began_s = time.monotonic()
        assert (await run("default", concurrency=3)).failed == 3
        together_s = time.monotonic() - began_s
        infos = [await handle.ainfo() for handle in handles]
    lasted_s = [float(info.status.split()[-2]) for info in infos if info is not None]
    assert len(lasted_s) == 3
    assert sum(lasted_s) <= together_s


@on_loop
async def test_a_backoff_that_raises_in_a_process_hides_no_error(out: Path) -> None:
    async with app:
        handle = await calls_app.fail.aenqueue("exit")  # its backoff looks at an error that has no second argument
        await run("default")
        info = await handle.ainfo()
    assert info is not None
    assert (info.state, info.attempts_remaining) == (State.PENDING, 4)
    assert info.status.startswith("SystemExit: no\n")
    assert info.status.endswith("so the default one applies: IndexError: tuple index out of range\n")


@on_loop
async def test_processes_die_with_a_worker_that_is_killed(out: Path) -> None:
    async with app:
        await calls_app.last.aenqueue(str(out))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pinlater", "run", "tests.support.calls_app:app", "--task-processes", "1"),
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await until(lambda: lines(out), "its begin", 30)
        finally:
            process.kill()
            await process.wait()
        pid = pid_of(lines(out)[0])
        await until(lambda: not is_alive(pid), "the end of the task's process")


@on_loop
async def test_a_signal_to_all_processes_lets_a_task_end(out: Path) -> None:
    """An orchestrator sends it so, and Ctrl-C in a terminal."""
    async with app, worker_of(app, task_processes=1) as worker:
        await worker.start()
        handle = await calls_app.last.aenqueue(str(out))
        await until(lambda: lines(out), "its begin")
        pid = pid_of(lines(out)[0])
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            os.kill(pid, number)
        await asyncio.sleep(0.1)
        assert is_alive(pid)
        worker.request_stop()
        worker.request_stop()
        await worker.stop()
        info = await handle.ainfo()
    assert info is not None
    assert (info.state, info.attempts_remaining) == (State.PENDING, 2)
    assert not is_alive(pid)


@on_loop
async def test_a_process_imports_the_app_by_the_name_that_its_worker_used(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks may be in other modules, which have the app as a variable too."""
    (tmp_path / "one.py").write_text("from pinlater import PinLater\napp = PinLater()\nimport two\n")
    (tmp_path / "two.py").write_text(
        "from pathlib import Path\nfrom one import app\n"
        "@app.task(name='t', runs_in='process', attempts=1)\ndef t(path): Path(path).write_text('ran')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("one:app", "two:app"):
        found = load_app(name)
        async with found, worker_of(found) as worker:
            handle = await found.asend("t", str(out))
            await worker.run(burst=True)
            assert import_name(found) == name
            assert await handle.ainfo() is None
        assert lines(out) == ["ran"]
    found.task(name="new", runs_in="process", attempts=1)(_plain)
    async with found, worker_of(found) as worker:
        handle = await found.asend("new")
        await worker.run_once()
        info = await handle.ainfo()
    assert info is not None
    assert info.status == "the app two:app, as its process imports it, has no task 'new'\n"


def _plain() -> None: ...


async def _async() -> None: ...


def _with_context(context: SyncContext) -> None: ...


@pytest.mark.parametrize(
    ("options", "function", "said"),
    [
        ({"runs_in": "process"}, _async, "expected a plain function for runs_in='process', got async def"),
        ({"runs_in": "thread"}, _async, "expected a plain function for runs_in='thread', got async def"),
        ({"runs_in": "loop"}, _plain, "expected async def for runs_in='loop', got a plain function"),
        ({"runs_in": "fork"}, _plain, "runs_in: expected one of loop, thread, process, got 'fork'"),
        ({"runs_in": "process", "batch": 2}, _plain, "expected a batch task in the loop or in a thread, got 'process'"),
        ({"batch": 2}, _with_context, "expected no context for a batch, as each item has its job"),
        ({"batch": 2, "result_ttl": 5}, _plain, "expected no result_ttl for a batch, as its function returns nothing"),
        ({"batch": 0}, _plain, "batch: expected an integer from 1 to 100,000"),
        ({"batch": 2, "batch_wait": -1}, _plain, "batch_wait: expected seconds or a timedelta, 0 or more, got -1"),
    ],
)
def test_bad_kinds_raise_where_the_task_is_defined(options: dict[str, Any], function: Any, said: str) -> None:
    other_app = PinLater("redis://nobody:1")
    with pytest.raises(InvalidArgument, match=said):
        other_app.task(**options)(function)
    assert other_app.tasks == {}
    assert other_app.task(runs_in="loop")(_async).kind == "loop"
    assert other_app.task(runs_in="thread")(_plain).kind == "thread"


@on_loop
async def test_an_app_that_no_module_has_can_not_be_imported(fresh_server: FreshServer) -> None:
    async with PinLater(fresh_server().url) as other_app:
        other_app.task(runs_in="process")(_plain)
        with pytest.raises(InvalidArgument, match="expected the app as a variable of a module that has tasks of it"):
            async with worker_of(other_app):
                pass
