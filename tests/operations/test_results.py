"""Results of tasks on real servers: they are stored, waited for, announced, and expire.

Waits end by messages: their own looks come too late here. test_cancel.py has cancelled jobs; test_scripts.py has the
scripts too.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from pinlater import (
    AsyncClient,
    Cancel,
    Client,
    ClientClosed,
    InvalidArgument,
    PinLater,
    PinLaterError,
    ResultGone,
    ResultTimeout,
    ServerRefused,
    ServerUnavailable,
    State,
    TaskFailed,
)
from pinlater.client.base import BaseClient
from pinlater.operations import results as core
from pinlater.operations.parts import in_parts
from pinlater.running.app_worker import worker_of
from pinlater.store import async_subscriber
from pinlater.store.effects import Flow, Subscribe
from pinlater.store.keys import queue_key
from pinlater.tasks import envelope
from pinlater.tasks.app import parts_of
from pinlater.worker.worker import WorkerConfig
from tests.conftest import FreshServer
from tests.support.audits import audit_queue
from tests.support.handlers_for_tests import on_loop, until
from tests.support.pages import page
from tests.support.paths import ROOT
from tests.support.servers import Server
from tests.support.wire import Timed, Wire, connect, fail_all, is_clean, jump, refused, snapshot
from tests.support.wire_format import End, Job, ends, settings

HOUR_S = 3600.0
HOUR_MS = 3_600_000


@pytest.fixture
def app(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[PinLater]:
    """No wait ends by its own look."""
    monkeypatch.setattr(core, "SAFETY_S", HOUR_S)
    with PinLater(server.url) as app:
        yield app


async def work(app: PinLater) -> Any:
    """Runs due jobs. Returns the counts of the worker."""
    async with worker_of(app) as worker:
        await asyncio.wait_for(worker.run(burst=True), 30)
        return worker.stats


async def heard(server: Server, waiters: int) -> None:
    """Waits until this many channels of results are subscribed."""

    def count() -> int:
        with server.client() as client:
            return len(client.pubsub_channels("pl:{*}:result:*"))

    await until(lambda: count() == waiters, f"{waiters} waits")


@pytest.mark.parametrize("codec", ["msgpack", "json"])
@on_loop
async def test_sync_and_async_code_gets_a_result_before_and_after_the_job_ends(
    app: PinLater, server: Server, codec: envelope.Codec
) -> None:
    @app.task(codec=codec, result_ttl=60)
    async def double(x: Any) -> Any:
        return x * 2

    @app.task(codec=codec, result_ttl=60)
    def plain(x: Any) -> Any:
        return {"x": [x, None]}

    handles = [await double.aenqueue(4), await plain.aenqueue("é")]
    waits = [asyncio.ensure_future(handle.aresult(30)) for handle in handles]
    waits += [asyncio.ensure_future(asyncio.to_thread(handle.result, 30)) for handle in handles]
    await heard(server, 2)
    assert (await work(app)).succeeded == 2
    assert await asyncio.gather(*waits) == [8, {"x": ["é", None]}] * 2
    assert await asyncio.to_thread(lambda: [handle.result(0) for handle in handles]) == [8, {"x": ["é", None]}]
    assert await app.handle(handles[0].descriptor).aresult(0) == 8
    assert [await handle.astatus() for handle in handles] == [State.SUCCEEDED] * 2
    assert await asyncio.to_thread(app.handle(handles[0].descriptor).status) is State.SUCCEEDED
    await heard(server, 0)
    await app.aclose()


@on_loop
async def test_many_waits_share_a_connection_and_each_gets_its_own_result(app: PinLater, server: Server) -> None:
    @app.task(result_ttl=60)
    async def same(x: int) -> int:
        return x

    handles = await same.aenqueue_many([(x,) for x in range(200)])
    with server.client() as client:
        before = client.info("stats")["total_connections_received"]
        waits = [asyncio.ensure_future(handle.aresult(30)) for handle in handles + handles[:10]]
        await until(lambda: len(client.pubsub_channels("pl:{*}:result:*")) == 200, "200 waits")
        assert client.info("stats")["total_connections_received"] - before < 100
    with server.client() as client:
        assert len([one for one in client.client_list() if one["sub"] != "0"]) == 1
    await work(app)
    assert await asyncio.gather(*waits) == [*range(200), *range(10)]
    await app.aclose()


@on_loop
async def test_a_wait_raises_for_a_job_that_stays_failed_and_goes_on_for_one_that_is_retried(
    app: PinLater, server: Server
) -> None:
    tries = list[int]()

    @app.task(result_ttl=60, backoff=0)
    async def third_time() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("not yet")
        return len(tries)

    @app.task(result_ttl=60)
    def never() -> None:
        raise Cancel("no good")

    fine, bad = await third_time.aenqueue(), await never.aenqueue()
    waits = [asyncio.ensure_future(handle.aresult(30)) for handle in (fine, bad)]
    await heard(server, 2)
    await work(app)
    assert await waits[0] == 3
    for failing in (waits[1], bad.aresult(0), asyncio.to_thread(bad.result)):
        with pytest.raises(TaskFailed, match=f"job {bad.descriptor} failed: Cancel: no good") as raised:
            await failing
        assert raised.value.descriptor == bad.descriptor
        assert raised.value.status.startswith("Cancel: no good\n")
    await app.aclose()


@on_loop
async def test_a_wait_raises_for_a_result_that_is_late_or_removed(app: PinLater) -> None:
    @app.task(result_ttl=60)
    async def later() -> None: ...

    @app.task
    async def forgets() -> int:
        return 1

    handle = await later.aenqueue()
    for wait in (handle.aresult(0), handle.aresult(0.05), asyncio.to_thread(handle.result, 0.05)):
        with pytest.raises(ResultTimeout, match=f"job {handle.descriptor}: no result within 0") as raised:
            await wait
        assert isinstance(raised.value, TimeoutError)
    for none in (
        await forgets.aenqueue(),
        await forgets.using(delay=0).aenqueue(),
        (await forgets.aenqueue_many([()]))[0],
    ):
        with pytest.raises(InvalidArgument, match="its task keeps no results: expected one with result_ttl"):
            await none.aresult()
    with pytest.raises(InvalidArgument, match="timeout: expected seconds or a timedelta, 0 or more, got -1"):
        await handle.aresult(-1)
    with pytest.raises(InvalidArgument, match=r"result_ttl: expected seconds or a timedelta, 0\.001 or more, got 0"):
        app.task(result_ttl=0)
    with pytest.raises(InvalidArgument):
        app.handle("nothing")
    await work(app)
    assert await app.handle(handle.descriptor).aresult() is None
    with pytest.raises(ResultGone, match="there is no result"):
        await app.handle(none.descriptor).aresult(5)
    await app.aclose()


@on_loop
async def test_a_result_that_can_not_be_stored_fails_the_attempt(app: PinLater) -> None:
    @app.task(result_ttl=60, attempts=1)
    async def no_word() -> object:
        return object()

    @app.task(result_ttl=60, attempts=1)
    def too_large() -> bytes:
        return bytes(2_000_000)

    @app.task(result_ttl=60, attempts=1, queue="raw", codec="raw")
    def no_bytes(body: bytes) -> Any:
        return body if body == b"fine" else "text"

    handles = [await no_word.aenqueue(), await too_large.aenqueue(), await no_bytes.aenqueue(b"")]
    fine = await no_bytes.aenqueue(b"fine")
    await work(app)
    said = [
        "ResultNotKept: result: it can not be packed as msgpack: can not serialize 'object' object; annotate the",
        r"ResultNotKept: result: expected at most 1,048,576 bytes \(the queue's body limit\), got 2,000,006",
        "ResultNotKept: result: expected bytes of a raw task, got 'text'",
    ]
    for handle, text in zip(handles, said, strict=True):
        with pytest.raises(TaskFailed, match=text):
            await handle.aresult(0)
    assert await fine.aresult(0) == b"fine"
    await app.aclose()


@on_loop
async def test_results_cost_one_call_a_batch_and_tasks_without_results_none(app: PinLater, server: Server) -> None:
    @app.task
    async def without() -> int:
        return 1

    @app.task(result_ttl=60, queue="kept")
    async def with_one() -> int:
        return 1

    def calls() -> int:
        with server.client() as client:
            return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])

    spent = list[int]()
    for task in (without, with_one):
        for jobs in (1, 10):
            await task.aenqueue_many([()] * jobs)
            before = calls()
            async with worker_of(app, [task.queue], WorkerConfig(monitor=False)) as worker:
                await worker.run_once()
            spent.append(calls() - before)
    assert spent[3] == spent[1] + 1
    await app.aclose()


@on_loop
async def test_a_lost_subscription_is_renewed(app: PinLater, server: Server) -> None:
    @app.task(result_ttl=60)
    async def one() -> int:
        return 1

    handle = await one.aenqueue()
    waits = [asyncio.ensure_future(handle.aresult(30)), asyncio.ensure_future(asyncio.to_thread(handle.result, 30))]
    with server.client() as client:
        for _ in range(2):
            await until(lambda: client.pubsub_numsub(*client.pubsub_channels())[0:1], "a subscription")
            await until(lambda: sum(n for _, n in client.pubsub_numsub(*client.pubsub_channels())) == 2, "both")
            client.client_kill_filter(_type="pubsub")
        await heard(server, 1)
    await work(app)
    assert await asyncio.gather(*waits) == [1, 1]
    await app.aclose()


def test_threads_wait_side_by_side_and_use_connections_again(app: PinLater, server: Server) -> None:
    @app.task(result_ttl=60)
    async def same(x: int) -> int:
        return x

    async def run() -> None:
        await heard(server, 4)
        await work(app)
        await app.aclose()

    for _ in range(2):
        found = list[int]()
        handles = same.enqueue_many([(x,) for x in range(4)])
        threads = [threading.Thread(target=lambda one=each, to=found: to.append(one.result(30))) for each in handles]
        for thread in threads:
            thread.start()
        asyncio.run(run())
        for thread in threads:
            thread.join(30)
        assert sorted(found) == [0, 1, 2, 3]
    (free,) = parts_of(app).clients.sync().driver.subscriber.free.values()
    assert len(free) == 4  # of the first round, in use again in the second


@on_loop
async def test_a_wait_raises_if_its_user_may_not_subscribe(app: PinLater, server: Server) -> None:
    server.call("ACL", "SETUSER", "deaf", "reset", "on", ">secret", "+@all", "~*", "resetchannels")
    try:
        async with PinLater(server.url) as allowed, PinLater(server.url.replace("//", "//deaf:secret@")) as deaf:

            @allowed.task(result_ttl=60)
            async def task() -> None: ...

            handle = deaf.handle((await task.aenqueue()).descriptor)
            for wait in (handle.aresult(5), asyncio.to_thread(handle.result, 5)):
                with pytest.raises(ServerRefused, match=r"may not subscribe to .*docs/acl\.md"):
                    await wait
            deaf.close()  # the blocking client of the thread
    finally:
        server.call("ACL", "DELUSER", "deaf")


def test_a_wait_survives_a_server_that_is_away(fresh_server: FreshServer) -> None:
    server = fresh_server(config={"appendonly": "yes"})
    with PinLater(server.url, timeout_s=0.5) as app:

        @app.task(result_ttl=60)
        async def one() -> int:
            return 1

        handle = one.enqueue()
        found = list[Any]()

        def wait() -> None:
            try:
                found.append(handle.result(60))
            except PinLaterError as error:
                found.append(error)

        thread = threading.Thread(target=wait)
        thread.start()

        async def run() -> None:
            await heard(server, 1)
            await asyncio.to_thread(server.stop)
            await asyncio.sleep(0.7)  # longer than a call may take
            await asyncio.to_thread(server.start)
            async with AsyncClient(server.url) as client, worker_of(app, client=client) as worker:
                await asyncio.wait_for(worker.run(burst=True), 30)
            await app.aclose()

        asyncio.run(run())
        thread.join(60)
        assert found == [1]


@on_loop
async def test_a_wait_ends_at_its_own_time_though_longer_ones_look_with_it(fresh_server: FreshServer) -> None:
    server = fresh_server(aof_always=True)
    with PinLater(server.url, timeout_s=0.5) as app:

        @app.task(result_ttl=60)
        async def one() -> int:
            return 1

        handles = [await one.aenqueue() for _ in range(2)]
        short, long = [asyncio.ensure_future(handles[at].aresult(wait_s)) for at, wait_s in enumerate((2, 8))]
        await heard(server, 2)
        await asyncio.to_thread(server.stop)  # both look again
        await asyncio.wait([short, long], return_when=asyncio.FIRST_COMPLETED)
        assert (short.done(), long.done()) == (True, False)
        assert isinstance(short.exception(), ServerUnavailable)
        await asyncio.to_thread(server.start)
        async with AsyncClient(server.url) as client, worker_of(app, client=client) as worker:
            await asyncio.wait_for(worker.run(burst=True), 30)
        assert await long == 1
        await app.aclose()


def subscribing(client: BaseClient) -> Flow[bool]:
    """Whether the server confirms a subscription in time."""
    subscription = yield Subscribe(client.session.servers[0], b"news", 0.2)
    if subscription is not None:
        subscription.close()
    return subscription is not None


@pytest.mark.parametrize("connections", [0, 1], ids=["new connection", "used connection"])
def test_a_subscription_is_given_up_in_time(fresh_server: FreshServer, connections: int) -> None:
    server = fresh_server()
    with Client(server.url, connect_timeout_s=600, read_timeout_s=600) as client:
        for _ in range(connections):
            assert client.run(lambda _: subscribing(client))
        server.pause()
        assert not client.run(lambda _: subscribing(client))
        server.kill()


@pytest.mark.parametrize("connections", [0, 1], ids=["new connection", "used connection"])
@on_loop
async def test_a_subscription_is_given_up_in_time_in_async_code(
    fresh_server: FreshServer, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_subscriber, "CONFIRM_S", HOUR_S)
    server = fresh_server()
    async with AsyncClient(server.url, connect_timeout_s=600, read_timeout_s=600) as client:
        for _ in range(connections):
            assert await client.run(lambda _: subscribing(client))
        server.pause()
        assert not await client.run(lambda _: subscribing(client))
        server.kill()


@on_loop
async def test_results_expire_or_are_deleted_with_their_queue_and_the_audit_knows_them(
    app: PinLater, server: Server
) -> None:
    @app.task(result_ttl=60)
    async def one() -> int:
        return 1

    handles = await one.aenqueue_many([()] * 3)
    await work(app)

    def look() -> None:
        with Client(server.url) as client, server.client() as redis_client:
            expiries, values = queue_key("default", "1", "result_expiries"), queue_key("default", "1", "results")
            assert (redis_client.zcard(expiries), redis_client.hlen(values)) == (3, 3)
            client.purge("default")
            assert handles[0].result(0) == 1  # the job is removed, its result is not
            assert audit_queue(client, "default").ok
            redis_client.zrem(expiries, handles[0].descriptor and redis_client.zrange(expiries, 0, 0)[0])
            redis_client.hdel(values, redis_client.zrange(expiries, 0, 0)[0])
            problems = sorted(finding.problem for finding in audit_queue(client, "default").findings)
            assert problems == ["has a result that never expires", "has an expiry, but no result"]
            client.delete_queue("default")
            assert redis_client.exists(expiries, values) == 0

    await asyncio.to_thread(look)
    await app.aclose()


# the scripts


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with connect(server) as made:
        yield made


def test_only_the_holder_of_the_claim_stores_a_result(client: redis.Redis) -> None:
    wire = Wire(client)
    wire.create()
    (first, second) = wire.enqueue(Job(b"a"), Job(b"b"))
    stale = wire.claim()
    assert wire.release(*ends(stale)) == []
    held = wire.claim()
    one, two = ends(held)
    assert wire.store_results(*((end, b"\1old") for end in ends(stale))) == [0, 1]
    assert "result_expiries" not in snapshot(wire)
    listener = client.pubsub()  # type: ignore[no-untyped-call]
    listener.subscribe(b"results:" + first.hex().encode())
    assert listener.get_message(timeout=5)
    assert wire.store_results((one, b"\1x"), (two._replace(token=stale.token), b"\1y")) == [1]
    message = listener.get_message(timeout=5)
    assert message is not None
    assert message["type"] == "message"
    listener.close()
    assert wire.outcome(first) == (1, b"\1x")
    assert wire.outcome(second) == (3, b"")
    assert wire.store_results((one, b"\1again")) == []
    assert wire.outcome(first) == (1, b"\1again")
    assert wire.ack(one, two) == []
    assert [wire.outcome(first), wire.outcome(second)] == [(1, b"\1again"), (0, b"")]
    assert wire.outcome(first, priority=9) == (1, b"\1again")
    assert wire.outcomes([first] * 3, budget=1) == [b"\1\1again"]
    with refused("BAD_REQUEST"):
        wire.read("outcome", 1, b"\1\1", first)
    assert wire.store_results((one, b"\1late")) == [0]


def test_an_outcome_shows_how_a_job_without_a_result_ended(client: redis.Redis) -> None:
    wire = Wire(client)
    wire.create(settings(keep=5))
    (failed,) = fail_all(wire, 1)
    (kept,) = wire.enqueue(Job(b"kept"))
    assert wire.outcome(kept) == (3, b"")
    wire.succeed(wire.claim())
    assert [wire.outcome(failed), wire.outcome(kept), wire.outcome(bytes(8))] == [(2, b"no"), (0, b""), (0, b"")]


@pytest.mark.parametrize("by", ["store_results", "collect"])
def test_an_expired_result_is_not_returned_and_is_removed(fresh_server: FreshServer, by: str) -> None:
    server = fresh_server(fake_clock=True)
    with connect(server) as client:
        timed = Timed(Wire(client), server)
        timed.wire.create()
        ids = timed.wire.enqueue(*[Job(b"")] * 4)
        held = ends(timed.wire.claim())
        timed.wire.store_results((held[0], b"\1a"), (held[1], b"\1b"), ms=10_000)
        timed.wire.store_results((held[2], b"\1c"), ms=HOUR_MS)
        jump(server, 20)
        assert [timed.wire.outcome(id_)[0] for id_ in ids[:3]] == [3, 3, 1]
        if by == "collect":
            timed.wire.collect()
        else:
            timed.wire.store_results((held[3], b"\1d"), ms=HOUR_MS)
        left = 1 + (by == "store_results")
        assert (client.hlen(timed.wire.key("results")), client.zcard(timed.wire.key("result_expiries"))) == (left, left)
        timed.wire.ack(*(End(1, end.id, end.token) for end in held))
        jump(server, 2 * HOUR_S)
        timed.wire.collect()
        assert is_clean(snapshot(timed.wire))


@on_loop
async def test_large_results_are_stored_in_calls_of_bounded_size(server: Server) -> None:
    async with AsyncClient(server.url) as client:
        await client.create_queue("q")
        await client.enqueue_many("q", [b""] * 30)
        jobs = await client.dequeue("q", 30)
        kept = [(job, b"\0" + bytes(100_000), HOUR_MS) for job in jobs]
        assert [len(part) for part in in_parts(kept, lambda one: len(one[1]))] == [5, 5, 5, 5, 5, 5]
        assert await client.run(lambda end: core.store(client.session, kept, end)) == []
        kept = [(job, b"\0", HOUR_MS) for job in jobs[:2]]
        await client.ack(succeeded=jobs[:1])
        assert await client.run(lambda end: core.store(client.session, kept, end)) == jobs[:1]


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_the_example_waits_for_its_results(server: Server) -> None:
    environment = {**os.environ, "PINLATER_URL": server.url}
    options: dict[str, Any] = {"cwd": ROOT / "examples", "env": environment, "stdout": subprocess.PIPE, "text": True}
    worker = subprocess.Popen(
        [sys.executable, "-m", "pinlater", "run", "export:app"], stderr=subprocess.DEVNULL, **options
    )
    try:
        ran = subprocess.run([sys.executable, "export.py"], check=True, timeout=60, **options)
        assert ran.stdout == "6 words\norders.csv\n"
    finally:
        worker.terminate()
        worker.communicate(timeout=30)


def test_the_page_shows_the_example_as_it_is() -> None:
    (shown,) = re.findall(r"<!-- code: export -->\n```python\n.*?(@app\.task.*?)```", page("tasks"), re.DOTALL)
    assert shown in (ROOT / "examples" / "export.py").read_text("utf-8")


@on_loop
async def test_closing_ends_waits(app: PinLater, server: Server) -> None:
    @app.task(result_ttl=60)
    async def task() -> None: ...

    handle = await task.aenqueue()
    waits = [asyncio.ensure_future(handle.aresult()), asyncio.ensure_future(asyncio.to_thread(handle.result))]

    def both() -> bool:
        with server.client() as client:
            return bool(sum(n for _, n in client.pubsub_numsub(*client.pubsub_channels())) == 2)

    await until(both, "two waits")
    app.close()
    await app.aclose()
    for wait in waits:
        with pytest.raises(ClientClosed):
            await asyncio.wait_for(wait, 30)


@on_loop
async def test_closing_ends_a_wait_at_every_turn_of_its_loop(app: PinLater, server: Server) -> None:
    """A wait has tasks of its own (its look, its subscription). A close can come at any point of them."""

    @app.task(result_ttl=60)
    async def task() -> None: ...

    handle = await task.aenqueue()
    for turns in range(1, 80):  # at 0 it has not started, and starts on another client
        wait = asyncio.ensure_future(handle.aresult())
        for _ in range(turns):
            await asyncio.sleep(0)
        await app.aclose()
        with pytest.raises(ClientClosed):
            await asyncio.wait_for(wait, 30)
