"""No call of a script reads, takes or gives much: counted by what MONITOR shows of each call, on every verb.

`benches/stalls.py` times the same calls. Here are counts alone, which are the same on a busy machine.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import pytest
import redis

from pinlater import Ack, Checkpoint, Client, NewJob, QueueConfig
from pinlater.archive.moving_job import MovingJob
from pinlater.operations.inspect import DEQUEUE_BYTES
from pinlater.operations.scans import scan_merged
from pinlater.store.requests import read, write
from pinlater.store.scripts import load_scripts
from tests.support.servers import Server

#: What a call reads: so many bytes, and one record more, as it knows a record's size when it has read it.
CALL_BYTES: Final = 1024 * 1024
#: Jobs whose statuses one call reads and writes.
CALL_JOBS: Final = 250
STATUS: Final = "s" * 3_000
LARGE, SMALL = 256 * 1024, 100
TOKEN: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')


class Calls:
    """What MONITOR shows of the scripts that a function runs.

    read: for each call its verb, and the fields of its HGETs and HMGETs by key.
    """

    def __init__(self, server: Server) -> None:
        self._client = server.client(socket_timeout=60)
        connection: Any = redis.Connection  # redis-py leaves it untyped
        self._monitor = connection(host="127.0.0.1", port=server.port)
        self._monitor.connect()
        self._monitor.send_command("MONITOR")
        self._monitor.read_response()
        self._verbs = {script.sha: verb for verb, script in load_scripts().items()}
        self.read: list[tuple[str, dict[str, list[bytes]]]] = []

    def close(self) -> None:
        self._monitor.disconnect()
        self._client.close()

    def of(self, run: Callable[[], Any]) -> Any:
        self._skip()
        self.read = []
        found = run()
        for line in self._skip():
            self._add(line)
        return found

    def _skip(self) -> list[str]:
        """What it showed up to now."""
        mark = secrets.token_hex(8)
        self._client.echo(mark)
        lines = []
        while mark not in (line := self._monitor.read_response(disable_decoding=True).decode("latin1")):
            lines.append(line)
        return lines

    def _add(self, line: str) -> None:
        words = [token.encode("latin1").decode("unicode_escape").encode("latin1") for token in TOKEN.findall(line)]
        name = words[0].upper()
        if name == b"EVALSHA":
            self.read.append((self._verbs[words[1]], {}))
        elif name in (b"HGET", b"HMGET") and " lua]" in line:
            key = words[1].decode().rpartition("}:")[2]
            self.read[-1][1].setdefault(key, []).extend(words[2:])

    def most(self, key: str) -> int:
        """The most fields that a call read of a key."""
        return max((len(read.get(key, [])) for _, read in self.read), default=0)


@pytest.fixture
def calls(server: Server) -> Iterator[Calls]:
    made = Calls(server)
    yield made
    made.close()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url, source="bounds") as made:
        made.create_queue("q", QueueConfig(crash_limit=5))
        yield made


def take(client: Client, count: int) -> list[Any]:
    """All jobs, in as many calls as it takes."""
    jobs: list[Any] = []
    while len(jobs) < count and (more := client.dequeue("q", count - len(jobs))):
        jobs += more
    assert len(jobs) == count
    return jobs


def fail(client: Client, count: int, delay_ms: int = 0) -> None:
    client.ack(failed=[Ack(job, STATUS, delay_ms) for job in take(client, count)])


def test_no_call_reads_more_large_records_than_it_gives(client: Client, calls: Calls) -> None:
    count, most = 40, CALL_BYTES // LARGE + 1
    names = client.enqueue_many("q", [NewJob(b"x" * LARGE, attempts=9)] * count)
    reads: list[Callable[[], Any]] = [
        lambda: client.dequeue("q", count, dry_run=True),
        lambda: client.lookup(names),
        lambda: client.lookup(names, with_body=True),
        lambda: list(client.scan("q", page_size=count)),
        lambda: list(client.scan("q", with_body=True, page_size=count)),
    ]
    dry, *found = [(calls.of(run), calls.most("jobs")) for run in reads]
    assert DEQUEUE_BYTES <= len(dry[0]) * LARGE <= DEQUEUE_BYTES + CALL_BYTES
    assert 0 < dry[1] <= most
    assert [len(jobs) for jobs, _ in found] == [count] * 4
    assert all(0 < read <= most for _, read in found), found

    jobs = calls.of(lambda: take(client, count))
    assert calls.most("jobs") <= CALL_BYTES // LARGE
    running = [calls.of(run) for run in (lambda: list(client.scan("q", "in_progress", with_body=True)),)]
    assert [len(page) for page in running] == [count]
    assert calls.most("jobs") <= most
    assert {len(info.body or b"") for info in running[0]} == {LARGE}

    progress = [Checkpoint(job=job, attempts=3) for job in jobs]
    assert calls.of(lambda: client.checkpoint(*progress)) == []
    assert calls.most("jobs") <= most
    assert {info.attempts_allowed for info in client.lookup(names).values()} == {3}


def test_shards_share_what_a_dry_run_and_a_merged_scan_read(server: Server, calls: Calls) -> None:
    with Client(shards=dict.fromkeys("abcd", server.url)) as client:
        client.create_queue("q")
        for first in range(0, 1200, 100):  # each call is placed on one shard
            client.enqueue_many("q", [NewJob(b"%d" % first, priority=1 + first % 3)] * 100)
        session = client.session

        def read_of(run: Callable[[], Any]) -> int:
            calls.of(run)
            return sum(len(keys.get("jobs", [])) for _, keys in calls.read)

        assert read_of(lambda: client.dequeue("q", 400, dry_run=True)) == 400
        page = partial(scan_merged, session, "q", "pending", None, False, False, 400, "")
        assert 400 <= read_of(lambda: client.run(page)) <= 3 * 400


def test_a_large_record_among_small_ones_is_not_read_by_the_way(client: Client, calls: Calls) -> None:
    """By the mean of the first records, a call would read hundreds of what follows."""
    sizes = [SMALL] * 30 + [LARGE] * 30 + [SMALL, LARGE] * 10
    names = client.enqueue_many("q", [b"x" * size for size in sizes])
    size_of = {int(name.rpartition(":")[2]).to_bytes(8, "big"): size for name, size in zip(names, sizes, strict=True)}
    jobs = calls.of(lambda: take(client, len(sizes)))
    assert [len(job.body) for job in jobs] == sizes
    read = [sum(size_of[id_] for id_ in keys.get("jobs", [])) for _, keys in calls.read]
    assert max(read) <= CALL_BYTES + LARGE
    assert sum(read) <= sum(sizes) + len(read) * LARGE


def test_small_jobs_take_as_few_calls_as_ever(client: Client, calls: Calls) -> None:
    client.enqueue_many("q", [b"x" * SMALL] * 501)
    client.dequeue("q", 2)  # the server knows the script
    client.enqueue("q", b"x" * SMALL)
    assert len(calls.of(lambda: client.dequeue("q", 500))) == 500
    assert [(verb, len(keys["jobs"])) for verb, keys in calls.read] == [("claim", 500)]


def test_no_call_reads_many_statuses(client: Client, calls: Calls, server: Server) -> None:
    count = 600
    names = client.enqueue_many("q", [NewJob(b"", attempts=9)] * count)
    fail(client, count)
    jobs = calls.of(lambda: take(client, count))
    assert calls.most("extras") <= CALL_BYTES // 3_000
    assert len(calls.of(lambda: client.lookup(names))) == count
    assert calls.most("extras") <= CALL_BYTES // 3_000 + 1
    assert calls.most("lease_jobs") < 10  # not once a job
    assert calls.of(lambda: client.renew(jobs, own=True)) == []
    assert max(len(keys.get("running:1", [])) for _, keys in calls.read) <= CALL_JOBS
    assert calls.of(lambda: client.checkpoint(*(Checkpoint(job=job, status="half way\n") for job in jobs))) == []
    assert calls.most("extras") <= CALL_JOBS
    assert calls.of(lambda: client.ack(failed=[Ack(job, STATUS) for job in jobs])) == []
    assert calls.most("extras") <= CALL_JOBS
    last = take(client, count)
    client.checkpoint(*(Checkpoint(job=job, attempts=1) for job in last))
    client.ack(failed=last)
    assert calls.of(lambda: client.retry_failed("q", attempts=3)) == count
    assert calls.most("extras") <= CALL_JOBS


def test_parts_of_an_enqueue_count_their_statuses(client: Client, calls: Calls) -> None:
    client.enqueue("q", b"")  # the server knows the script
    assert len(calls.of(lambda: client.enqueue_many("q", [NewJob(b"", status=STATUS)] * 1_000))) == 1_000
    assert [verb for verb, _ in calls.read] == ["enqueue"] * 3


class Archive:
    """The calls of the archive, on the jobs of a queue."""

    def __init__(self, client: Client) -> None:
        self._client = client
        [self._queue_shard] = client.session.queue_shards("q")

    def write(self, verb: str, *arguments: bytes | str | int) -> bytes:
        reply: list[bytes] = self._client.run(partial(write, self._queue_shard, verb, arguments))
        return reply[2]

    def read(self, verb: str, *arguments: bytes | str | int) -> list[bytes]:
        return self._client.run(partial(read, self._queue_shard, verb, arguments))[2:]

    def withdraw(self, name: bytes, budget: int) -> int:
        words = (1, name, 1, "ready", "earliest", "-inf", "+inf", 500, budget)
        return int.from_bytes(self.write("withdraw", *words)[:4], "big")

    def jobs(self, name: bytes) -> list[MovingJob]:
        found: list[MovingJob] = []
        position = b"0"
        while position:
            _, position, *parts = self.read("read_batch", name, position, CALL_BYTES)
            found += map(MovingJob.from_redis, parts[0::3], parts[1::3], parts[2::3])
        return found

    def restore(self, number: int, jobs: list[MovingJob]) -> bytes:
        packed = [job.for_redis() for job in jobs]
        heads, records = b"".join(head for head, _ in packed), [record for _, record in packed]
        return self.write("restore", 1, number.to_bytes(8, "big"), heads, *records)


def test_batches_of_large_jobs_are_not_read_by_the_way(client: Client, calls: Calls) -> None:
    count, budget = 40, 16
    names = client.enqueue_many("q", [NewJob(b"x" * LARGE, status=STATUS)] * count)
    ids = [int(name.rpartition(":")[2]) for name in names]
    archive, batch = Archive(client), b"A" * 16
    assert calls.of(lambda: archive.withdraw(batch, budget * (LARGE + 4))) == budget
    assert calls.most("jobs") == 0
    found = calls.of(lambda: archive.jobs(batch))
    assert [job.id for job in found] == ids[:budget]
    assert 0 < calls.most("jobs") <= CALL_BYTES // LARGE + 1
    held = calls.of(lambda: archive.read("held", 1, *(id_.to_bytes(8, "big") for id_ in ids)))
    assert held == [b"\1" * count]
    assert calls.most("jobs") == 0
    calls.of(lambda: archive.write("finalize", batch, b""))
    assert (calls.most("jobs"), calls.most("extras")) == (0, 0)
    refused = archive.restore(1, found[:1])  # nothing was closed yet
    archive.write("close", 1, bytes(8), refused[1:])
    for number, job in enumerate(found, start=1):
        assert calls.of(lambda one=job, at=number: archive.restore(at, [one])) == b"\1"  # type: ignore[misc]
        assert (calls.most("jobs"), calls.most("extras")) == (0, 0)
    assert len(client.lookup(names)) == count


def test_batches_of_small_jobs_take_few_calls(client: Client, calls: Calls) -> None:
    client.enqueue_many("q", [b"x" * SMALL] * 600)
    archive, batch = Archive(client), b"A" * 16
    archive.withdraw(b"B" * 16, 1)  # the server knows the script
    assert calls.of(lambda: archive.withdraw(batch, CALL_BYTES)) == 500
    assert [(verb, len(keys["jobs"])) for verb, keys in calls.read] == [("withdraw", 501)]
    assert len(calls.of(lambda: archive.jobs(batch))) == 500
    assert {verb for verb, _ in calls.read} == {"read_batch"}
    assert sum(len(keys.get("jobs", [])) for _, keys in calls.read) == 500


def test_no_call_of_the_archive_reads_many_statuses(client: Client, calls: Calls) -> None:
    client.enqueue_many("q", [NewJob(b"", status=STATUS)] * 500)
    archive, batch = Archive(client), b"A" * 16
    assert calls.of(lambda: archive.withdraw(batch, CALL_BYTES)) == 500
    assert calls.most("extras") == 0
    found = calls.of(lambda: archive.jobs(batch))
    assert (len(found), {job.extras.status for job in found if job.extras}) == (500, {STATUS.encode()})
    assert calls.most("extras") <= CALL_BYTES // 3_000 + 1
    assert calls.of(lambda: archive.write("abort", batch)) == (500).to_bytes(4, "big")
    assert calls.most("extras") == 0
