"""Clients among others: threads, forks, calls that leave together, and where a client with no URL goes.

Promises: what concurrent callers get is their own, and nothing is done twice or lost between them.
Risks: forks a process that has threads; the child only calls the client and exits.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pinlater import AsyncClient, Client, CountsByState, Job, QueueConfig
from pinlater.errors import InvalidArgument
from pinlater.keys import queue_key
from tests.both_clients import CALLS_KINDS, make_calls
from tests.servers import Server, wait_until

THREADS = 8
JOBS_A_THREAD = 25
LANE_BYTES = 10  # a field of m: session (8), slot (2)


def script_calls(server: Server) -> int:
    """How many EVALSHA the server has carried out or refused."""
    return int(server.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


def sessions(server: Server) -> set[bytes]:
    fields = server.call("HKEYS", queue_key("q", "1", "m"))
    return {field[:8] for field in fields if len(field) == LANE_BYTES}


# threads


@pytest.mark.parametrize("kind", CALLS_KINDS)
def test_threads_share_a_client(kind: Any, server: Server) -> None:
    calls = make_calls(kind, server.url)
    calls.create_queue("q", QueueConfig(keep_succeeded=1000))

    def produce_and_consume(thread: int) -> tuple[list[str], list[Job]]:
        put = [calls.enqueue("q", b"%d.%d" % (thread, i)) for i in range(JOBS_A_THREAD)]
        got: list[Job] = []
        while len(got) < JOBS_A_THREAD:
            jobs = calls.dequeue("q", min(4, JOBS_A_THREAD - len(got)), wait=8)
            assert calls.ack(succeeded=jobs) == []
            got += jobs
        return put, got

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(produce_and_consume, range(THREADS)))
    put = [descriptor for descriptors, _ in results for descriptor in descriptors]
    got = [job.descriptor for _, jobs in results for job in jobs]
    assert sorted(got) == sorted(put)
    assert len(set(put)) == THREADS * JOBS_A_THREAD
    assert calls.count("q") == CountsByState(succeeded=THREADS * JOBS_A_THREAD)
    calls.close()


# forks


def in_child(act: Callable[[], None]) -> int:
    """Runs it in a forked child; its exit code (0: it returned)."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)  # nothing of pytest's may run in the child
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_has_lanes_and_connections_of_its_own(server: Server) -> None:
    with Client(server.url) as client:
        client.create_queue("q")
        client.enqueue("q", b"parent")
        before = sessions(server)

        def child() -> None:
            client.enqueue("q", b"child")
            assert [job.body for job in client.dequeue("q", 9, wait=8)] == [b"parent", b"child"]

        assert in_child(child) == 0
        assert len(sessions(server)) == len(before) + 1
        client.enqueue("q", b"parent again")
        assert [job.body for job in client.dequeue("q", 9)] == [b"parent again"]
        assert len(sessions(server)) == len(before) + 1
        assert client.count("q") == CountsByState(in_progress=3)


def test_a_forked_child_runs_an_async_client_on_a_loop_of_its_own(server: Server) -> None:
    client = AsyncClient(server.url)

    async def put(body: bytes) -> list[str]:
        await client.create_queue("q")
        return await asyncio.gather(*(client.enqueue("q", body) for _ in range(5)))

    async def put_and_close(body: bytes) -> None:
        assert len(set(await put(body))) == 5
        await client.close()

    asyncio.run(_parent_and_child(put, put_and_close, client, server))
    assert len(sessions(server)) == 2


async def _parent_and_child(put: Any, put_and_close: Any, client: AsyncClient, server: Server) -> None:
    await put(b"parent")

    def child() -> None:
        with ThreadPoolExecutor(1) as pool:  # this thread has a running loop already
            pool.submit(asyncio.run, put_and_close(b"child")).result()

    assert in_child(child) == 0
    await put(b"parent")
    assert await client.count("q") == CountsByState(pending=15)
    await client.close()


# calls that leave together


@pytest.mark.parametrize("count", [1, 50, 1000])
def test_concurrent_enqueues_and_acks_leave_as_one_script_call(server: Server, count: int) -> None:
    async def run() -> None:
        async with AsyncClient(server.url) as client:
            await client.create_queue("q")
            await client.enqueue("q", b"the script is known from here on")
            await client.ack(succeeded=await client.dequeue("q"))
            before = script_calls(server)
            put = await asyncio.gather(*(client.enqueue("q", b"%d" % i) for i in range(count)))
            assert script_calls(server) - before == 1
            jobs = await client.dequeue("q", count)
            assert [(job.descriptor, job.body) for job in jobs] == [(put[i], b"%d" % i) for i in range(count)]
            before = script_calls(server)
            assert await asyncio.gather(*(client.ack(succeeded=[job]) for job in jobs)) == [[]] * count
            assert script_calls(server) - before == 1
            assert await client.count("q") == CountsByState()

    asyncio.run(run())


def test_cancelling_one_caller_cancels_nobody_else(server: Server) -> None:
    async def run() -> None:
        async with AsyncClient(server.url) as client:
            await client.create_queue("q")
            await client.count("q")
            tasks = [asyncio.create_task(client.enqueue("q", b"%d" % i)) for i in range(10)]
            for _ in range(2):  # one turn to join, one to leave together
                await asyncio.sleep(0)
            assert client._tasks
            tasks[3].cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(results.pop(3), asyncio.CancelledError)
            assert len(await client.lookup([str(result) for result in results])) == 9
            assert await client.count("q") == CountsByState(pending=10), "the job of a cancelled call is put in"

    asyncio.run(run())


def test_nobody_fails_for_a_neighbour(server: Server) -> None:
    async def run() -> None:
        async with AsyncClient(server.url) as client:
            await client.create_queue("q", QueueConfig(body_limit=10))
            await client.count("q")
            good = [client.enqueue("q", b"%d" % i) for i in range(5)]
            bad = [client.enqueue("q", b"", priority=4), client.enqueue("q", bytes(11)), client.enqueue("r", b"")]
            results = await asyncio.gather(*good, *bad, return_exceptions=True)
            assert [type(result) for result in results[:5]] == [str] * 5
            assert [type(result).__name__ for result in results[5:]] == [
                "InvalidArgument",
                "InvalidArgument",
                "QueueNotFound",
            ]
            jobs = await client.dequeue("q", 5)
            stranger = ("q:s1:p9:5", bytes(7) + b"\1")
            acks = [client.ack(succeeded=[jobs[0], stranger]), client.ack(failed=[jobs[1]])]
            acks += [client.ack(succeeded=[(name, bytes(8))]) for name in ("q:s1:p0:5", "q:s9:p1:5")]
            acks += [client.ack(succeeded=jobs[2:])]
            answers = await asyncio.gather(*acks, return_exceptions=True)
            assert [answers[0], answers[1], answers[4]] == [[stranger], [], []]
            assert [type(answer) for answer in answers[2:4]] == [InvalidArgument] * 2
            assert await client.count("q") == CountsByState(pending=1)

    asyncio.run(run())


def test_an_ack_of_a_queue_that_is_gone_fails_alone(server: Server) -> None:
    async def run() -> None:
        async with AsyncClient(server.url) as client:
            for queue in ("q", "r"):
                await client.create_queue(queue)
                await client.enqueue(queue, b"")
            kept, lost = (await client.dequeue("q"))[0], (await client.dequeue("r"))[0]
            await client.delete_queue("r")
            results = await asyncio.gather(
                client.ack(succeeded=[kept]), client.ack(succeeded=[lost]), return_exceptions=True
            )
            assert results[0] == []
            assert type(results[1]).__name__ == "QueueNotFound"

    asyncio.run(run())


# where a client goes


@pytest.fixture
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PINLATER_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("kind", CALLS_KINDS)
def test_without_a_url_jobs_are_kept_by_the_embedded_server(kind: Any, state_home: Path) -> None:
    for turn in range(2):
        calls = make_calls(kind)
        assert calls.create_queue("q") is (turn == 0)
        calls.enqueue("q", b"%d" % turn)
        calls.close()
        calls.close()
    assert any(state_home.iterdir()), "nothing was kept in the state directory"
    calls = make_calls(kind)
    assert [job.body for job in calls.dequeue("q", 9)] == [b"0", b"1"]
    calls.close()


@pytest.mark.parametrize("kind", CALLS_KINDS)
def test_the_environment_names_the_server(kind: Any, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINLATER_URL", f"a={server.url},b={server.url}")
    calls = make_calls(kind)
    calls.create_queue("q")
    assert server.call("EXISTS", queue_key("q", "a", "m"), queue_key("q", "b", "m")) == 2
    calls.close()


def names_of_connections(server: Server) -> list[str]:
    with server.client() as client:
        return [entry["name"] for entry in client.client_list()]


def test_a_client_that_is_closed_leaves_no_connection(server: Server) -> None:
    async def use() -> None:
        async with AsyncClient(server.url) as client:
            await client.create_queue("q")
            assert await client.dequeue("q", wait=0.01) == []
            assert "pinlater" in names_of_connections(server)

    with Client(server.url) as client:
        client.create_queue("q")
        assert client.dequeue("q", wait=0.01) == []
        assert "pinlater" in names_of_connections(server)
    asyncio.run(use())
    wait_until(lambda: "pinlater" not in names_of_connections(server), "no connection of ours")
