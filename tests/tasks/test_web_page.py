"""docs/web.md: its apps, run as they are written, on a server that answers, stands still or loses an answer.

Promises: what `using(timeout=)` limits is tried with an app whose own limit is ten minutes.
"""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pinlater import Client, InvalidArgument, OutcomeUnknown, PinLater, ResultTimeout, ServerUnavailable, State
from pinlater.tasks.task import Task
from tests.support.cut_proxy import Cut, CutProxy
from tests.support.pages import page
from tests.support.requirements import WEB, require
from tests.support.servers import Server

PAGE = page("web")
#: The request of each app.
PATHS = {"shop": "/users?address=ada", "store": "/users/ada"}


class Web(NamedTuple):
    """An app of the page. post(): sends its request, and returns the status and the JSON of the answer."""

    server: Server
    proxy: CutProxy
    post: Callable[[], tuple[int, Any]]

    def jobs(self) -> int:
        with Client(self.server.url) as client:
            return client.count("mail").pending


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    with Server("valkey", tmp_path / "server") as server:
        yield server


@pytest.fixture(params=["shop", "store"])
def web(
    request: pytest.FixtureRequest, own_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Web]:
    require(WEB)
    name = request.param
    for block in re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / f"web_{block[0]}.py").write_text(block[1])
    monkeypatch.syspath_prepend(str(tmp_path))
    with CutProxy(own_server.port) as proxy, ExitStack() as stack:
        monkeypatch.setenv("PINLATER_URL", proxy.url)
        module = importlib.import_module(f"web_{name}")
        if name == "shop":
            client = stack.enter_context(importlib.import_module("fastapi.testclient").TestClient(module.web))
        else:
            client = module.web.test_client()
            stack.callback(module.jobs.close)

        def post() -> tuple[int, Any]:
            answer = client.post(PATHS[name])
            found = answer.json if isinstance(answer.json, dict | None) else answer.json()
            return answer.status_code, found

        yield Web(own_server, proxy, post)


def test_a_job_is_enqueued(web: Web) -> None:
    status, found = web.post()
    assert status == 202
    assert re.fullmatch(r"mail:s1:p1:\d+", found["job"])
    assert web.jobs() == 1


def test_a_server_that_is_away_is_503(web: Web) -> None:
    assert web.post()[0] == 202
    web.server.kill()
    assert web.post()[0] == 503
    web.server.start()
    assert web.post()[0] == 202


def test_a_server_that_stands_still_is_503(web: Web) -> None:
    assert web.post()[0] == 202
    web.server.pause()
    try:
        assert web.post()[0] == 503
    finally:
        web.server.resume()


def test_a_lost_answer_is_asked_for_and_makes_one_job(web: Web) -> None:
    assert web.post()[0] == 202
    web.proxy.arm(Cut.MUTE)
    status, found = web.post()
    assert (status, web.jobs()) == (202, 2)
    assert found["job"]


def app_of(server: Server) -> tuple[PinLater, Task[[int], None]]:
    app = PinLater(server.url, timeout_s=600.0)

    @app.task
    def work(number: int) -> None: ...

    return app, work


def test_the_time_limit_of_one_call(own_server: Server) -> None:
    app, work = app_of(own_server)
    quick = work.using(timeout=0.2).using(delay=5)  # kept by the next using()
    with app:
        assert quick.enqueue(1).descriptor
        assert len(quick.enqueue_many([(1,), (2,)])) == 2
        own_server.pause()
        try:
            for call in (lambda: quick.enqueue(1), lambda: quick.enqueue_many([(1,)])):
                with pytest.raises((OutcomeUnknown, ServerUnavailable)):
                    call()
        finally:
            own_server.kill()
        with pytest.raises(ServerUnavailable):
            quick.enqueue(1)


def test_the_time_limit_of_one_call_in_async_code(own_server: Server) -> None:
    async def calls() -> None:
        app, work = app_of(own_server)
        quick = work.using(timeout=timedelta(seconds=0.2))
        async with app:
            await asyncio.gather(*(quick.aenqueue(number) for number in range(3)))
            assert len(await quick.aenqueue_many([(1,), (2,)])) == 2
            await work.aenqueue(1)
            own_server.pause()
            for call in (quick.aenqueue(1), quick.aenqueue_many([(1,)])):
                with pytest.raises((OutcomeUnknown, ServerUnavailable)):
                    await call
            own_server.kill()
            with pytest.raises(ServerUnavailable):
                await quick.aenqueue(1)

    asyncio.run(calls())


@pytest.mark.parametrize("wrong", [0, -1, 601, float("nan"), "1", "0.5s", True, timedelta(0)])
def test_a_wrong_time_limit(wrong: Any) -> None:
    work = PinLater("redis://nowhere").task(nothing)
    with pytest.raises(
        InvalidArgument, match="timeout: expected seconds or a timedelta, more than 0 and at most 600, got "
    ):
        work.using(timeout=wrong)


def nothing() -> None: ...


def answering_app(server: Server) -> tuple[PinLater, Task[[], int]]:
    app = PinLater(server.url, timeout_s=600.0)

    @app.task(result_ttl=60)
    def answer() -> int:
        return 42

    return app, answer


def test_handles_keep_the_time_limit_of_their_producer(own_server: Server) -> None:
    app, answer = answering_app(own_server)
    quick = answer.using(timeout=0.2)
    with app:
        handle, other = quick.enqueue(), quick.enqueue_many([()])[0]
        assert handle.status() is State.PENDING
        own_server.pause()
        for call in (handle.status, handle.info, handle.cancel, handle.result, other.status):
            with pytest.raises(ServerUnavailable):
                call()
        own_server.kill()


def test_handles_keep_the_time_limit_of_their_producer_in_async_code(own_server: Server) -> None:
    async def calls() -> None:
        app, answer = answering_app(own_server)
        quick = answer.using(timeout=0.2)
        async with app:
            handle, other = await quick.aenqueue(), (await quick.aenqueue_many([()]))[0]
            assert await handle.astatus() is State.PENDING
            own_server.pause()
            for call in (handle.astatus, handle.ainfo, handle.acancel, handle.aresult, other.astatus):
                with pytest.raises(ServerUnavailable):
                    await call()
            own_server.kill()

    asyncio.run(calls())


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_a_wait_ends_in_time_though_the_server_stands_still(own_server: Server, timeout: float) -> None:
    app, answer = answering_app(own_server)
    with app:
        handle = answer.enqueue()
        with pytest.raises(ResultTimeout):
            handle.result(timeout=timeout)
        own_server.pause()
        with pytest.raises(ServerUnavailable):
            handle.result(timeout=timeout)
        own_server.kill()


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_a_wait_ends_in_time_though_the_server_stands_still_in_async_code(own_server: Server, timeout: float) -> None:
    async def calls() -> None:
        app, answer = answering_app(own_server)
        async with app:
            handle = await answer.aenqueue()
            with pytest.raises(ResultTimeout):
                await handle.aresult(timeout=timeout)
            own_server.pause()
            for ended in await asyncio.gather(
                *(handle.aresult(timeout=timeout) for _ in range(3)), return_exceptions=True
            ):
                assert isinstance(ended, ServerUnavailable)
            own_server.kill()

    asyncio.run(calls())
