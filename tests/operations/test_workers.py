"""What processes say of themselves, and the measures of queues: who is listed, for how long, and who reads.

Promises: shown on real servers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from pinlater import Ack, Client, NewJob, QueueConfig
from pinlater.operations.workers import QueueMeasures, WorkerProcess, beat, measure, worker_processes
from pinlater.store.keys import queue_key
from pinlater.store.shards import QueueShard
from tests.support.servers import Server

ABOUT: dict[str, Any] = {"host": "h", "process": 7, "version": "1", "concurrency": 3, "started_ms": 5}


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(shards={"a": server.url, "b": server.url}) as client:
        client.create_queue("mail")
        client.create_queue("other")
        yield client


def queue_shard(client: Client, queue: str = "mail", shard: str = "a") -> QueueShard:
    return client.session.queue_shard(queue, shard)


def say(client: Client, source: str, *where: str, sweep: bytes = b"0", ended: bool = False, **record: Any) -> bytes:
    packed = orjson.dumps({**ABOUT, "running": 0, "jobs": [], **record})
    return client.run(lambda end: beat(queue_shard(client, *where), source, b"" if ended else packed, sweep, end))


def listed(client: Client, *queues: str) -> list[WorkerProcess]:
    return client.run(lambda end: worker_processes(client.session, queues or ["mail", "other"], end))


def move_back(server: Server, source: str, by_ms: int) -> None:
    """Makes the last beat of a process older."""
    with server.client() as raw:
        key = queue_key("mail", "a", "workers")
        value: Any = raw.hget(key, source)
        raw.hset(key, source, (int.from_bytes(value[:6], "big") - by_ms).to_bytes(6, "big") + value[6:])


def test_a_process_is_one_entry_on_all_its_queue_shards(client: Client) -> None:
    job = {"descriptor": "mail:sa:p1:1", "task": "send", "attempt": 1, "claimed_ms": 2}
    other = {**job, "descriptor": "other:sb:p1:1", "claimed_ms": 1}
    say(client, "one", "mail", "a", running=12, jobs=[job])
    say(client, "one", "other", "b", running=1, jobs=[other])
    say(client, "two", "other", "a", process=8)
    one, two = listed(client)
    assert (one.source, one.queues, one.running, two.source, two.queues) == (
        "one",
        ["mail", "other"],
        13,
        "two",
        ["other"],
    )
    assert [each.descriptor for each in one.jobs] == ["other:sb:p1:1", "mail:sa:p1:1"]
    assert 0 <= one.silent_ms < 60_000
    [alone] = listed(client, "mail")
    assert (alone.queues, alone.running, len(alone.jobs)) == (["mail"], 12, 1), "the jobs of another queue are shown"


def test_a_process_is_listed_for_a_minute_after_its_last_beat(client: Client, server: Server) -> None:
    say(client, "dead")
    move_back(server, "dead", 59_000)
    [dead] = listed(client)
    assert 59_000 <= dead.silent_ms < 60_000
    move_back(server, "dead", 1_000)
    assert listed(client) == []
    say(client, "other")
    with server.client() as raw:
        assert raw.hkeys(queue_key("mail", "a", "workers")) == [b"other"], "nobody removed what is over"
        assert 0 < raw.pttl(queue_key("mail", "a", "workers")) <= 60_000


def test_a_process_that_ended_is_not_listed(client: Client) -> None:
    say(client, "one")
    say(client, "one", ended=True)
    assert listed(client) == []


def test_many_processes_are_listed_and_swept(client: Client, server: Server) -> None:
    for number in range(300):
        say(client, f"process {number}", process=number, version="1" * 80)
    assert [process.process for process in listed(client)] == list(range(300))
    for number in range(299):
        move_back(server, f"process {number}", 60_000)
    sweep, rounds = b"0", 0
    while sweep != b"0" or not rounds:
        sweep, rounds = say(client, "process 299", process=299, sweep=sweep), rounds + 1
    with server.client() as raw:
        assert raw.hkeys(queue_key("mail", "a", "workers")) == [b"process 299"]


GOOD = {**ABOUT, "running": 0, "jobs": []}
BAD: list[Any] = ["text", 7, [], {}, {**GOOD, "host": 7}, {**GOOD, "jobs": "text"}, {**GOOD, "jobs": [7]}]


@pytest.mark.parametrize("record", [b"", b"no JSON", *map(orjson.dumps, BAD)])
def test_what_is_no_record_is_left_out(client: Client, server: Server, record: bytes) -> None:
    say(client, "one")
    with server.client() as raw:
        raw.hset(queue_key("mail", "a", "workers"), "strange", b"\x0f" + bytes(5) + record)
    assert [process.source for process in listed(client)] == ["one"]


def read(client: Client, reader: bytes, hold_ms: int = 60_000) -> QueueMeasures | None:
    return client.run(lambda end: measure(queue_shard(client), reader, hold_ms, end))


def test_measures_count_the_jobs_of_all_priorities_by_state(server: Server) -> None:
    with Client(shards={"a": server.url}) as client:
        client.create_queue("mail", QueueConfig(priorities=2))
        client.enqueue_many("mail", [NewJob(b"fails", attempts=1), b"runs"])
        client.ack(failed=[Ack(job) for job in client.dequeue("mail", 1)])
        client.dequeue("mail", 1)
        assert read(client, b"reader 1") == QueueMeasures(pending=0, scheduled=0, running=1, failed=1, oldest_due_ms=0)
        now_ms = int(time.time() * 1000)
        client.enqueue("mail", b"new", priority=1)
        client.enqueue("mail", b"old", priority=2, run_after_ms=now_ms - 500_000)
        client.enqueue("mail", b"later", priority=2, run_after_ms=now_ms + 500_000)
        found = read(client, b"reader 1")
        assert found is not None
        assert (found.pending, found.scheduled, found.running, found.failed) == (2, 1, 1, 1)
        assert found.oldest_due_ms >= 500_000


def test_one_reader_reads_until_its_hold_ends(client: Client) -> None:
    assert read(client, b"reader 1") is not None
    assert read(client, b"reader 2") is None
    assert read(client, b"reader 1", hold_ms=1) is not None
    assert read(client, b"reader 2", hold_ms=0) is not None
    assert read(client, b"reader 1") is not None
    assert client.count("mail").pending == 0


def test_a_hold_from_before_the_clock_went_back_does_not_count(client: Client, server: Server) -> None:
    assert read(client, b"reader 1") is not None
    with server.client() as raw:
        raw.hset(queue_key("mail", "a", "meta"), "reader", b"reader 1" + b"\x0f" + bytes(5))
    assert read(client, b"reader 2") is not None


def test_a_field_of_a_later_version_is_left_out(client: Client) -> None:
    say(client, "one", later=1)
    assert [process.source for process in listed(client)] == ["one"]
