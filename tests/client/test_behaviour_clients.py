"""Clients with threads and forks, calls that leave together, and the server of a client without a URL.

Each concurrent caller gets its own answer, and nothing is done twice or lost. Risks: the tests fork a process that has
threads; the child only calls the client and exits.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pinlater import AsyncClient, Client, CountsByState, Job, NewJob, QueueConfig, State
from pinlater.model.errors import ClientClosed, InvalidArgument, OutcomeUnknown, ServerReplyError
from pinlater.store.keys import queue_key
from pinlater.store.scripts import load_scripts
from pinlater.store.shards import shard_for_key
from tests.conftest import FreshServer
from tests.support.both_clients import CALLS_KINDS, CallsKind, make_calls
from tests.support.cut_proxy import Cut, CutProxy
from tests.support.servers import Server, wait_until

THREADS = 8
JOBS_A_THREAD = 25
LANE_BYTES = 10  # a field of m: session (8), slot (2)


def script_calls(server: Server) -> int:
    """The number of EVALSHA that the server carried out or refused."""
    return int(server.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


def sessions(server: Server) -> set[bytes]:
    fields = server.call("HKEYS", queue_key("q", "1", "meta"))
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
    """Runs `act` in a forked child. Returns its exit code (0: `act` returned)."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)  # nothing of pytest's may run in the child
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_has_its_own_request_slots_and_connections(server: Server) -> None:
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


def in_child_on_a_loop(act: Callable[[], Awaitable[None]]) -> int:
    """As in_child, on a new event loop: this thread already has a running one."""

    async def in_time() -> None:
        await asyncio.wait_for(act(), 15)

    def child() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, in_time()).result()

    return in_child(child)


@pytest.mark.parametrize("first_call", ["enqueue", "ack", "close"])
def test_a_fork_leaves_the_waiting_calls_of_the_parent_alone(server: Server, first_call: str) -> None:
    async def parent() -> None:
        client = AsyncClient(server.url)
        await client.create_queue("q", QueueConfig(keep_succeeded=100))
        await client.enqueue_many("q", [b"%d" % i for i in range(4)])
        *jobs, other = await client.dequeue("q", 4)

        async def child() -> None:
            if first_call == "enqueue":
                assert await client.enqueue("q", b"child")
            if first_call == "ack":
                assert await client.ack(succeeded=[other]) == []
            await client.close()

        before = script_calls(server)
        waiting: list[Any] = [asyncio.ensure_future(client.enqueue("q", b"parent")) for _ in range(3)]
        waiting += [asyncio.ensure_future(client.ack(succeeded=[job])) for job in jobs]
        await asyncio.sleep(0)
        assert script_calls(server) == before
        assert in_child_on_a_loop(child) == 0
        answers = await asyncio.gather(*waiting)
        assert len(set(answers[:3])) == 3
        assert answers[3:] == [[]] * 3
        by_child = first_call == "enqueue", first_call == "ack"
        assert await client.count("q") == CountsByState(
            pending=3 + by_child[0], in_progress=1 - by_child[1], succeeded=3 + by_child[1]
        )
        await client.close()

    asyncio.run(parent())


def test_a_forked_child_leaves_the_connections_of_its_parent_alone(server: Server) -> None:
    """Both share the poll of the parent's loop: the parent would no longer hear a connection that the child closed."""

    async def parent() -> None:
        async with AsyncClient(server.url, timeout_s=60, read_timeout_s=60) as client:
            await client.create_queue("q")
            assert await client.dequeue("q", wait=0.01) == []  # subscribed

            async def child() -> None:
                await client.enqueue("q", b"child")
                gc.collect()
                await client.close()

            assert in_child_on_a_loop(child) == 0
            async with asyncio.timeout(30):
                assert [job.body for job in await client.dequeue("q")] == [b"child"]
                waiting = asyncio.ensure_future(client.dequeue("q", wait=25))
                await client.enqueue("q", b"parent")
                assert [job.body for job in await waiting] == [b"parent"]

    asyncio.run(parent())


# calls that leave together


async def gathered(*calls: Awaitable[Any]) -> list[Any]:
    """What each call returned or raised."""
    return list(await asyncio.gather(*calls, return_exceptions=True))


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


def test_cancelling_one_caller_cancels_no_other(server: Server) -> None:
    async def run() -> None:
        async with AsyncClient(server.url) as client:
            await client.create_queue("q")
            await client.count("q")
            tasks = [asyncio.create_task(client.enqueue("q", b"%d" % i)) for i in range(10)]
            for _ in range(2):  # one turn to join, one to leave together
                await asyncio.sleep(0)
            assert asyncio.all_tasks() - {*tasks, asyncio.current_task()}, "a call of them all"
            tasks[3].cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(results.pop(3), asyncio.CancelledError)
            assert len(await client.lookup([str(result) for result in results])) == 9
            assert await client.count("q") == CountsByState(pending=10), "the job of a cancelled call is put in"

    asyncio.run(run())


def test_a_bad_call_fails_alone(server: Server) -> None:
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


@pytest.mark.parametrize("shards", [1, 2])
def test_a_job_above_a_limit_that_was_lowered_meanwhile_fails_alone(server: Server, shards: int) -> None:
    async def run() -> None:
        urls = {str(number): server.url for number in range(shards)}
        async with AsyncClient(shards=urls) as client, AsyncClient(shards=urls) as other:
            await client.create_queue("q", QueueConfig(body_limit=1000))
            await client.count("q")  # it knows the old limit
            await other.configure_queue("q", body_limit=10)
            bodies = [bytes(11) if number in (0, 30, 99) else b"%d" % number for number in range(100)]
            results = await gathered(*(client.enqueue("q", body) for body in bodies))
            found = await other.lookup([result for result in results if isinstance(result, str)], with_body=True)
            assert [found[result].body if isinstance(result, str) else type(result) for result in results] == [
                InvalidArgument if len(body) == 11 else body for body in bodies
            ]
            assert await other.count("q") == CountsByState(pending=97)

    asyncio.run(run())


def test_a_job_past_a_limit_of_the_server_fails_alone(fresh_server: FreshServer) -> None:
    server = fresh_server(config={"proto-max-bulk-len": "1mb"})

    async def run() -> None:
        async with AsyncClient(server.url, timeout_s=0.5) as client:
            await client.create_queue("q", QueueConfig(body_limit=4_000_000))
            await client.count("q")
            bodies = [b"", bytes(2_000_000), b""]
            results = await gathered(*(client.enqueue("q", body) for body in bodies))
            assert [isinstance(result, str) for result in results] == [True, False, True]
            assert isinstance(results[1], ServerReplyError | OutcomeUnknown)

    asyncio.run(run())


def test_no_enqueue_waits_for_the_shard_of_another(server: Server, fresh_server: FreshServer) -> None:
    silent = fresh_server(aof_always=True)

    async def run() -> None:
        shards = {"1": server.url, "2": silent.url}
        async with AsyncClient(shards=shards, timeout_s=60) as client:
            await client.create_queue("q")
            await client.count("q")
            keys = [str(number) for number in range(20)]
            here = {key: shard_for_key(key.encode(), list(shards)) == "1" for key in keys}
            silent.stop()
            calls = {key: asyncio.ensure_future(client.enqueue("q", b"", key=key)) for key in keys}
            await asyncio.gather(client.enqueue("q", b""), *(calls[key] for key in keys if here[key]))
            assert [calls[key].done() for key in keys] == list(here.values())
            silent.start()
            await asyncio.gather(*calls.values())

    asyncio.run(run())


@pytest.mark.real_server("a proxy stands before its port")
def test_no_ack_shares_the_outcome_of_another_script_call(server: Server) -> None:
    async def run(proxy: CutProxy) -> None:
        async with AsyncClient(proxy.url, timeout_s=0.1) as client, AsyncClient(server.url) as direct:
            await direct.create_queue("q")
            await direct.enqueue_many("q", [b""] * 1200)
            first, second = await direct.dequeue("q", 600), await direct.dequeue("q", 600)
            requests: list[list[bytes]] = []  # lane and sequence: a resend has the same

            def of_the_second(command: list[bytes]) -> bool:
                if command[1:2] != [load_scripts()["ack"].sha]:
                    return False
                requests.append(command[3 + int(command[2]) :][:2])
                return requests[-1] != requests[0]

            await client.ack(succeeded=[("q:s1:p1:5", bytes(7) + b"\1")])  # the server knows the script
            proxy.arm(Cut.AFTER, match=of_the_second, count=10**9)
            known, lost = await gathered(client.ack(succeeded=first), client.ack(succeeded=second))
            proxy.disarm()
            assert known == []
            assert isinstance(lost, OutcomeUnknown)
            assert await lost.resolve() == []
            assert await direct.count("q") == CountsByState()

    with CutProxy(server.port) as proxy:
        asyncio.run(run(proxy))


def test_an_ack_of_a_deleted_queue_fails_alone(server: Server) -> None:
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


@pytest.mark.parametrize("succeeded_first", [True, False])
def test_the_second_ack_of_one_job_is_refused(server: Server, succeeded_first: bool) -> None:
    """As with separate calls: opposite outcomes must not silently become one."""

    async def run() -> None:
        async with AsyncClient(server.url) as client:
            await client.create_queue("q", QueueConfig(keep_succeeded=100))
            await client.enqueue_many("q", [NewJob(b"", attempts=1)] * 4)
            twice, same, *others = await client.dequeue("q", 4)
            ack: Any = client.ack
            kinds = ["succeeded", "failed"] if succeeded_first else ["failed", "succeeded"]
            before = script_calls(server)
            answers = await gathered(
                client.ack(succeeded=others[:1]),
                ack(**{kinds[0]: [twice]}),
                ack(**{kinds[1]: [(twice.descriptor, twice.token), others[1]]}),
                client.ack(succeeded=[same]),
                client.ack(succeeded=[same]),
            )
            assert answers == [[], [], [(twice.descriptor, twice.token)], [], [same]]
            assert script_calls(server) - before <= 4  # three, and one more where the script was not known
            info = (await client.lookup([twice.descriptor]))[twice.descriptor]
            assert info.state is (State.SUCCEEDED if succeeded_first else State.FAILED)
            assert (await client.count("q")).in_progress == 0

    asyncio.run(run())


@pytest.mark.real_server("a proxy stands before its port")
def test_the_second_ack_of_one_job_has_its_own_outcome_if_the_first_is_lost(server: Server) -> None:
    async def run(proxy: CutProxy) -> None:
        async with AsyncClient(proxy.url, timeout_s=0.1) as client, AsyncClient(server.url) as direct:
            await direct.create_queue("q", QueueConfig(keep_succeeded=100))
            await direct.enqueue("q", b"")
            jobs = await client.dequeue("q")
            requests: list[list[bytes]] = []  # lane and sequence: a resend has the same

            def of_the_first(command: list[bytes]) -> bool:
                if command[1:2] != [load_scripts()["ack"].sha]:
                    return False
                requests.append(command[3 + int(command[2]) :][:2])
                return requests[-1] == requests[0]

            await client.ack(succeeded=[("q:s1:p1:5", bytes(7) + b"\1")])  # the server knows the script
            proxy.arm(Cut.AFTER, match=of_the_first, count=10**9)
            lost, refused = await gathered(client.ack(failed=jobs), client.ack(succeeded=jobs))
            proxy.disarm()
            assert isinstance(lost, OutcomeUnknown)
            assert (refused, await lost.resolve()) == (jobs, [])
            assert await direct.count("q") == CountsByState(pending=1)

    with CutProxy(server.port) as proxy:
        asyncio.run(run(proxy))


# where a client goes


@pytest.fixture
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PINLATER_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("kind", CALLS_KINDS)
def test_without_a_url_the_embedded_server_keeps_the_jobs(kind: Any, state_home: Path) -> None:
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
    assert server.call("EXISTS", queue_key("q", "a", "meta"), queue_key("q", "b", "meta")) == 2
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


@pytest.mark.parametrize("kind", CALLS_KINDS)
def test_a_closed_client_raises_and_ends_its_waits(server: Server, kind: CallsKind) -> None:
    calls = make_calls(kind, server.url)
    try:
        calls.create_queue("q")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(calls.dequeue, "q", wait=300)
            with server.client() as client:
                wait_until(lambda: client.exists(queue_key("q", "1", "waiters")), "a waiting dequeue")
            calls.client.close() if kind == "sync" else calls.wait(calls.client.close)
            with pytest.raises(ClientClosed, match="this one is closed"):
                waiting.result()
        with pytest.raises(ClientClosed, match="expected an open client"):
            calls.enqueue("q", b"x")
        wait_until(lambda: "pinlater" not in names_of_connections(server), "no connection of ours")
    finally:
        calls.close()


@pytest.mark.parametrize("kind", CALLS_KINDS)
def test_decorated_jobs_and_the_last_ones_of_a_queue_cost_one_call_each(server: Server, kind: CallsKind) -> None:
    """After some simple jobs, a claim of one job first asks for a simple one. After a miss it no longer does."""
    calls = make_calls(kind, server.url)
    try:
        calls.create_queue("q")
        calls.enqueue_many("q", [*[b"simple"] * 9, *[NewJob(b"decorated", status="s")] * 9])
        for _ in range(4):  # by then all scripts are loaded
            calls.dequeue("q")
        before = script_calls(server)
        assert [len(calls.dequeue("q")) for _ in range(17)] == [1] * 14 + [0] * 3
        assert script_calls(server) == before + 18
        for _ in range(3):
            calls.enqueue("q", b"the only one")
            assert len(calls.dequeue("q")) == 1
            assert calls.dequeue("q") == []
        assert script_calls(server) == before + 27
    finally:
        calls.close()
