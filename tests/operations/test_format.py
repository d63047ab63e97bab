"""Clients on data of another version of PinLater: refused by name, and side by side within a format.

Promises: versions are simulated by what they pack, on real servers. Old data is what format 1 left under its keys.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from pinlater import AsyncClient, Client, FormatUnsupported, QueueConfig, ServerError, Worker, WorkerConfig
from pinlater.model.errors import PartialDelete
from pinlater.store.keys import queue_key, registry_key
from tests.lua.test_scripts_format import FIRST_FORMAT, LATER
from tests.support.both_clients import CALLS_KINDS, Calls, make_calls
from tests.support.handlers_for_tests import nothing, on_loop, until
from tests.support.servers import Server
from tests.support.wire import Wire, connect
from tests.support.wire_format import settings, unpack_config

CALLS: dict[str, Callable[[Calls], Any]] = {
    "create_queue": lambda c: c.create_queue("old"),
    "queue_config": lambda c: c.queue_config("old"),
    "configure_queue": lambda c: c.configure_queue("old", lease_ms=500),
    "enqueue": lambda c: c.enqueue("old", b""),
    "enqueue_many": lambda c: c.enqueue_many("old", [b"", b""]),
    "dequeue": lambda c: c.dequeue("old"),
    "count": lambda c: c.count("old"),
    "purge": lambda c: c.purge("old"),
}


def put_old_queue(server: Server, shard: str = "1") -> None:
    """A queue as format 1 left it."""
    server.call("SADD", registry_key(shard), "old")
    server.call("HSET", queue_key("old", shard, "m"), "c", FIRST_FORMAT)


@pytest.fixture(params=CALLS_KINDS)
def calls(request: pytest.FixtureRequest, server: Server) -> Iterator[Calls]:
    made = make_calls(request.param, f"1={server.url},2={server.url}")
    made.create_queue("new")
    yield made
    made.close()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("shard", ["1", "2"])
def test_data_of_format_one_is_refused_by_name(calls: Calls, server: Server, call: str, shard: str) -> None:
    put_old_queue(server, shard)
    where = f"queue 'old' on shard {shard} .*127.0.0.1:{server.port}.*"
    says = f"{where}: found format 1, expected 2: drain and delete the queue"
    for _ in range(2):
        with pytest.raises(FormatUnsupported, match=says):
            CALLS[call](calls)
    assert server.call("EXISTS", *(queue_key("old", name, "meta") for name in "12")) == 0


def test_a_queue_of_format_one_is_not_deleted(calls: Calls, server: Server) -> None:
    put_old_queue(server)
    with pytest.raises(PartialDelete) as raised:
        calls.delete_queue("old")
    assert isinstance(raised.value.errors["1"], FormatUnsupported)
    assert isinstance(raised.value.errors["1"], ServerError)


def test_other_queues_go_on(calls: Calls, server: Server) -> None:
    put_old_queue(server)
    calls.enqueue("new", b"x")
    assert [job.body for job in calls.dequeue("new")] == [b"x"]
    assert calls.queue_names() == ["new"]


def test_a_list_of_queues_logs_a_queue_of_format_one_once_for_each_shard_and_session(
    calls: Calls, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    put_old_queue(server)
    for _ in range(3):
        assert calls.queue_names() == ["new"]
    (line,) = caplog.messages
    assert "queue old is left out: config of queue 'old' on shard 1 " in line
    server.call("DEL", queue_key("old", "1", "m"))
    put_old_queue(server, "2")
    for _ in range(3):
        assert calls.queue_names() == ["new"]
    assert [f"on shard {n} " in line for n, line in zip("12", caplog.messages, strict=True)] == [True, True]
    with Client(f"1={server.url},2={server.url}") as other:
        assert other.queue_names() == ["new"]
    assert len(caplog.messages) == 3


@on_loop
async def test_a_worker_reports_a_queue_of_format_one_and_works_on_the_others(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    put_old_queue(server)
    caplog.set_level(logging.WARNING, "pinlater")
    async with AsyncClient(server.url) as client, AsyncClient(server.url) as own:
        await client.create_queue("new")
        async with Worker(own, ["old", "new"], nothing, WorkerConfig()) as worker:
            await client.enqueue("new", b"")
            await until(lambda: worker.stats.succeeded == 1, "a job of the other queue")
            says = re.compile("queue old: .*found format 1, expected 2")
            await until(lambda: any(says.search(line) for line in caplog.messages), "a report of the old queue")


def test_an_embedded_server_with_data_of_format_one(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/data"
    with Client(url) as client:
        client.create_queue("new")
        (server,) = client.session.servers
        raw_url, options = server.connection_arguments(5.0, 5.0)
        with redis.Redis.from_url(raw_url, **options) as raw:
            raw.hset(queue_key("old", "1", "m"), "c", FIRST_FORMAT)
    with Client(url) as client, pytest.raises(FormatUnsupported, match=r"or use another server \(embedded: another"):
        client.create_queue("old")


def test_a_client_keeps_settings_of_a_newer_one(calls: Calls, server: Server) -> None:
    with connect(server) as raw:
        newer = Wire(raw, "shared", "1")
        newer.create(settings(crash_limit=3, later=LATER))
        assert calls.queue_config("shared").crash_limit == 3
        calls.configure_queue("shared", lease_ms=500, crash_limit=5)
        for shard in "12":
            packed = raw.hget(queue_key("shared", shard, "meta"), "config")
            assert packed is not None
            assert unpack_config(packed).settings == settings(lease_ms=500, crash_limit=5, later=LATER)


def test_a_client_reads_the_settings_of_an_older_one(calls: Calls, server: Server) -> None:
    with connect(server) as raw:
        older = Wire(raw, "shared", "1")
        older.create(settings(succeeded_s=24 * 3600, failed_s=168 * 3600))
        assert calls.queue_config("shared") == QueueConfig()
        calls.configure_queue("shared", crash_limit=7)
        assert older.read("config")[0] != b""
        older.version = unpack_config(older.read("config")[0]).version
        older.configure(settings(lease_ms=900))
        assert calls.configure_queue("shared", paused=True) == QueueConfig(
            lease_ms=900, paused=True, crash_limit=7, succeeded_ttl_s=3600, failed_ttl_s=7200
        )
