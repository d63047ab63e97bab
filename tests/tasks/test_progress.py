"""What a task keeps while it runs and between its runs: progress, and the state of a snooze.

The tests run on servers of each kind, and read by handles and by the command line.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from pinlater import (
    ClaimLost,
    Client,
    Context,
    InvalidArgument,
    PinLater,
    Progress,
    Snooze,
    State,
    SyncContext,
    TaskFailed,
)
from pinlater.running.app_worker import worker_of
from pinlater.tasks import context as module
from pinlater.tasks import envelope
from tests.support.cli_runs import Run, mail, run
from tests.support.cut_proxy import CutProxy
from tests.support.handlers_for_tests import on_loop, until
from tests.support.servers import Server

__all__ = ["mail", "run"]  # fixtures


@pytest.fixture
def app(server: Server) -> Iterator[PinLater]:
    with PinLater(server.url) as app:
        yield app


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock by which progress is held back; it stands still else."""
    now_s = [1000.0]

    def move(seconds: float) -> None:
        now_s[0] += seconds

    class Clock:
        monotonic = staticmethod(lambda: now_s[0])

    monkeypatch.setattr(module, "time", Clock)
    return move


async def work(app: PinLater) -> Any:
    async with worker_of(app) as worker:
        await asyncio.wait_for(worker.run(burst=True), 30)
        return worker.stats


@pytest.mark.parametrize("codec", ["msgpack", "json"])
@on_loop
async def test_progress_is_written_once_a_second_and_taken_along_by_a_checkpoint(
    app: PinLater, clock: Callable[[float], None], codec: envelope.Codec
) -> None:
    seen = list[tuple[Progress | None, Any]]()

    async def look(context: Context) -> None:
        info = await app.handle(context.job.descriptor).ainfo()
        assert info is not None
        assert (info.state, info.task) == (State.IN_PROGRESS, context.task)
        seen.append((info.progress, info.checkpoint))

    @app.task(codec=codec, backoff=3600)
    async def steps(context: Context) -> None:
        await context.progress(1, 10, "started")
        await look(context)
        await context.progress(2, 10)
        await look(context)
        clock(1)
        await context.progress(2.5, 10)
        await look(context)
        await context.progress(3)
        await context.checkpoint({"row": 3})
        await look(context)
        clock(1)
        await context.progress(4, 10, "é")
        await look(context)
        await context.progress(5, 10)
        raise ValueError

    handle = await steps.aenqueue()
    await work(app)
    assert seen == [
        (Progress(1, 10, "started"), None),
        (Progress(1, 10, "started"), None),
        (Progress(2.5, 10), None),
        (Progress(3), {"row": 3}),
        (Progress(4, 10, "é"), {"row": 3}),
    ]
    info = await handle.ainfo()
    assert info is not None
    assert (info.state, info.progress, info.checkpoint) == (State.PENDING, Progress(4, 10, "é"), {"row": 3})
    assert [str(progress) for progress, _ in seen[2:]] == ["2.5 of 10", "3", "4 of 10: é"]
    await app.aclose()


@on_loop
async def test_a_later_attempt_shows_it_still_and_a_plain_function_tells_it_too(app: PinLater) -> None:
    seen = list[Any]()

    @app.task(backoff=0)
    def twice(context: SyncContext) -> None:
        info = app.handle(context.job.descriptor).info()
        assert info is not None
        seen.append((info.progress, context.state))
        if context.attempt == 1:
            context.progress(1, 2, "half")
            raise ValueError
        context.checkpoint("kept")
        info = app.handle(context.job.descriptor).info()
        assert info is not None
        seen.append((info.progress, info.checkpoint))

    await twice.aenqueue()
    await work(app)
    assert seen == [(None, None), (Progress(1, 2, "half"), None), (Progress(1, 2, "half"), "kept")]
    await app.aclose()


@on_loop
async def test_progress_that_can_not_be_written_ends_no_task_unless_its_job_is_lost(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "PROGRESS_S", 0.0)
    seen = list[str]()
    with CutProxy(server.port) as proxy:
        async with PinLater(server.url) as direct, PinLater(proxy.url, timeout_s=0.2) as app:

            @app.task(attempts=1)
            async def task(context: Context) -> None:
                proxy.refuse()
                proxy.cut_all()
                await context.progress(1, 2)
                proxy.accept()
                seen.append("async")

            @app.task(attempts=1)
            def plain(context: SyncContext) -> None:
                proxy.refuse()
                proxy.cut_all()
                context.progress(1, 2)
                proxy.accept()
                assert direct.handle(context.job.descriptor).cancel()
                try:
                    context.progress(2, 2)
                except ClaimLost:
                    seen.append("plain")

            for each in (task, plain):
                await each.aenqueue()
                async with worker_of(app) as worker:  # no burst, which would end where nobody answers for 0.2 s
                    await worker.start()
                    await until(lambda: worker.stats.claimed and not worker.held, "its end")
                    await worker.stop()
        direct.close()
    assert seen == ["async", "plain"]
    assert len([each for each in caplog.records if "its progress was not written" in each.getMessage()]) == 2


@on_loop
async def test_bad_progress_raises(app: PinLater) -> None:
    said = list[str]()

    @app.task
    async def task(context: Context) -> None:
        bad: list[Any] = [("1",), (1, float("nan")), (True,), (Decimal(1),), (1, None, b"x")]
        for arguments in bad:
            with pytest.raises(InvalidArgument) as raised:
                await context.progress(*arguments)
            said.append(str(raised.value))

    @app.task(queue="raw", codec="raw")
    async def raw(context: Context, body: bytes) -> None:
        with pytest.raises(InvalidArgument, match="a raw body has no place"):
            await context.progress(1)

    await task.aenqueue()
    await raw.aenqueue(b"")
    assert (await work(app)).succeeded == 2
    assert said == [
        "progress: done: expected a finite int or float, got '1'",
        "progress: total: expected a finite int or float, got nan",
        "progress: done: expected a finite int or float, got True",
        "progress: done: expected a finite int or float, got Decimal('1')",
        "progress: note: expected text, got b'x'",
    ]
    context = Context(None, "t", None)  # type: ignore[arg-type]
    assert context.headers(1) == {"state": 1}
    await app.aclose()


def test_direct_calls_write_no_progress() -> None:
    app = PinLater("redis://nobody:1")

    @app.task
    async def one(context: Context) -> None:
        await context.progress(1)

    @app.task
    def two(context: SyncContext) -> bool:
        context.progress(1)
        return context.cancelled

    asyncio.run(one())
    assert two() is False


@pytest.mark.parametrize("codec", ["msgpack", "json"])
@on_loop
async def test_a_snooze_goes_on_later_with_its_state_and_uses_no_attempt(
    app: PinLater, clock: Callable[[float], None], codec: envelope.Codec
) -> None:
    seen = list[Any]()

    @app.task(codec=codec, attempts=1)
    async def export(context: Context, pages: int) -> None:
        page = context.state or 0
        seen.append((page, context.attempt))
        if page < pages:
            await context.progress(page, pages)
            await context.progress(page + 1, pages)  # held back, and taken along
            raise Snooze(0, state=page + 1)
        info = await app.handle(context.job.descriptor).ainfo()
        assert info is not None
        seen.append(info.progress)
        raise Snooze(3600)

    handle = await export.using(trace="00-ab").aenqueue(3)
    stats = await work(app)
    assert seen == [(0, 1), (1, 1), (2, 1), (3, 1), Progress(3, 3)]
    assert (stats.postponed, stats.failed) == (4, 0)
    info = await handle.ainfo()
    assert info is not None
    assert (info.state, info.attempts_remaining, info.checkpoint) == (State.PENDING, 1, 3)
    assert envelope.read(info.body or b"")[1:] == ([3], {}, {"trace": "00-ab", "state": 3, "progress": [3, 3, ""]})
    await app.aclose()


@on_loop
async def test_a_state_that_can_not_be_kept_fails_the_attempt(app: PinLater) -> None:
    @app.task(attempts=1, result_ttl=60)
    async def no_word() -> None:
        raise Snooze(0, state={"due": datetime.date(2026, 11, 22)})

    @app.task(attempts=1, result_ttl=60)
    def too_large() -> None:
        raise Snooze(0, state=bytes(2_000_000))

    @app.task(attempts=1, result_ttl=60)
    def never() -> None:
        raise Snooze(-1)

    said: dict[Any, str] = {
        no_word: "InvalidArgument: Snooze: the state can not be packed as msgpack: .*'datetime.date' object; a state",
        too_large: "InvalidArgument: Snooze: the body with its state: expected at most 1,048,576 bytes",
        never: "InvalidArgument: Snooze: delay: expected seconds or a timedelta, 0 or more, got -1",
    }
    async with app:
        handles = [(await task.aenqueue(), text) for task, text in said.items()]
        await work(app)
        for handle, text in handles:
            with pytest.raises(TaskFailed, match=text):
                await handle.aresult(0)


@pytest.mark.parametrize("state", [datetime.date(2026, 11, 22), uuid.UUID(int=1), Decimal("1.5"), 2**64])
@on_loop
async def test_a_checkpoint_says_what_a_state_may_be(app: PinLater, state: Any) -> None:
    said = list[str]()

    @app.task
    async def task(context: Context) -> None:
        with pytest.raises(InvalidArgument) as raised:
            await context.checkpoint(state)
        said.append(str(raised.value))

    async with app:
        await task.aenqueue()
        await work(app)
    (text,) = said
    assert text.startswith("checkpoint: the state can not be packed as msgpack: ")
    assert text.endswith(
        "; a state is of None, bool, int to 64 bits, float, text, list and dict: give other values as text, and read "
        "them from it"
    )


def test_the_command_line_shows_tasks_and_progress(run: Run, mail: str, server: Server) -> None:
    with PinLater(server.url) as app, Client(server.url) as client:

        @app.task(queue=mail, name="import")
        def task(x: int) -> None: ...

        handle = task.enqueue(1)
        body = client.lookup([handle.descriptor], with_body=True)[handle.descriptor].body
        assert body is not None
        client.enqueue(mail, envelope.with_headers(body, {"progress": [3, 10, "rows"]}))
        client.enqueue(mail, envelope.with_headers(body, {"progress": "no progress of ours"}))
        plain = client.enqueue(mail, b"plain")
        of_task, foreign = [job.descriptor for job in client.dequeue(mail, 3)][1:]
        first = run("job", "lookup", handle.descriptor, "--json").document
        assert (first["task"], first["progress"], "body" in first, "body_base64" in first) == ("import",) + (None,) + (
            False,
        ) * 2
        assert run("job", "lookup", of_task, "--json").document["progress"] == {"done": 3, "total": 10, "note": "rows"}
        assert run("job", "lookup", foreign, "--json").document["progress"] is None
        assert "task" not in run("job", "lookup", plain, "--json").document
        lines = run("job", "lookup", of_task).out.splitlines()
        assert lines[1].split() == ["task", "import"]
        assert lines[2].split() == ["arguments", "1"]
        assert lines[4].split(maxsplit=1) == ["progress", "3 of 10: rows"]
        shown = run("job", "ls", mail, "--state", "in_progress")
        heading, *rows = shown.out.splitlines()
        assert heading.split()[-3:] == ["task", "progress", "status"]
        assert any("import  3 of 10: rows" in row for row in rows)
        listed = run("job", "ls", mail, "--state", "in_progress", "--json").out.splitlines()
        assert {"done": 3, "total": 10, "note": "rows"} in [json.loads(line)["progress"] for line in listed]
        assert "progress" not in run("job", "ls", mail).out
