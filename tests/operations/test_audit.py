"""The audit: it finds each kind of damage in a queue, and nothing in a queue that is only busy.

Each test damages a real queue by hand. A large queue is read in many pages. Risks: that PinLater itself never does such
damage is shown by the state machine (test_machine.py), not here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from pinlater import AsyncClient, Client, CountsByState, Job, NewJob, QueueConfig
from pinlater.model.errors import QueueNotFound, ServerReplyError, ServerUnavailable
from pinlater.operations import audit as audit_module
from pinlater.operations.audit import AuditReport, audit
from pinlater.store.keys import queue_key
from pinlater.store.requests import write
from tests.support.audits import audit_queue
from tests.support.servers import Server

FreshServer = Callable[..., Server]
HOUR_MS = 3_600_000


class Scene:
    """A queue with a job in each state, and raw access to its keys."""

    def __init__(self, server: Server, client: Client) -> None:
        self.client, self.raw = client, server.client()
        client.create_queue("q", QueueConfig(keep_succeeded=9))
        client.enqueue_many("q", [NewJob(b"%d" % i, attempts=1, status="s") for i in range(5)])
        done, failed, single = client.dequeue("q", 1)[0], client.dequeue("q", 1)[0], client.dequeue("q", 1)[0]
        self.pair = client.dequeue("q", 2)
        client.ack(succeeded=[done], failed=[failed])
        self.single = single
        self.ready = client.enqueue("q", b"ready", status="s")
        self.scheduled = client.enqueue("q", b"later", delay_ms=HOUR_MS)
        client.enqueue("q", b"low", priority=2)

    def key(self, name: str) -> bytes:
        return queue_key("q", "1", name)

    def call(self, command: str, name: str, *arguments: Any) -> Any:
        return self.raw.execute_command(command, self.key(name), *arguments)  # type: ignore[no-untyped-call]

    def problems(self) -> dict[str, str]:
        return {finding.subject: finding.problem for finding in audit_queue(self.client, "q").findings}


@pytest.fixture
def scene(server: Server) -> Iterator[Scene]:
    with Client(server.url) as client:
        made = Scene(server, client)
        assert audit_queue(client, "q").findings == []
        yield made
        made.raw.close()


def id_of(job: Job | str) -> bytes:
    number = job.id if isinstance(job, Job) else int(job.rpartition(":")[2])
    return number.to_bytes(8, "big")


def test_a_sound_queue(scene: Scene, server: Server) -> None:
    expected = AuditReport("q", CountsByState(2, 1, 3, 1, 1), [])
    assert audit_queue(scene.client, "q") == expected
    assert expected.ok

    async def by_the_other_client() -> AuditReport:
        async with AsyncClient(server.url) as client:
            return await client.run(lambda deadline_s: audit(client.session, "q", deadline_s))

    assert asyncio.run(by_the_other_client()) == expected


def test_jobs_in_wrong_states(scene: Scene) -> None:
    ready, scheduled = id_of(scene.ready), id_of(scene.scheduled)
    decorated = ready + b"\1"  # it has a status, so x
    scene.call("ZADD", "failed:1", 1, ready)
    assert scene.problems() == {scene.ready: "in several states: ready and failed"}
    scene.call("ZREM", "failed:1", ready)
    scene.call("ZADD", "ready:1", 1, ready)
    assert scene.problems() == {scene.ready: "ready as a simple job, but it has extras or a run-after time of its own"}
    scene.call("ZREM", "ready:1", ready, decorated)
    assert scene.problems() == {scene.ready: "has a record, but is in no state"}
    scene.call("ZADD", "ready:2", 1, decorated)
    assert scene.problems() == {
        scene.ready: "has a record, but is in no state",
        scene.ready.replace(":p1:", ":p2:"): "ready, but its record has another priority",
    }
    scene.call("ZREM", "ready:2", decorated)
    scene.call("HDEL", "jobs", ready)
    assert scene.problems() == {scene.ready: "has extras (attempts and a status), but no record"}
    scene.call("HDEL", "extras", ready)
    assert scene.problems() == {}
    head = scene.call("HGET", "meta", "head")
    scene.call("HSET", "meta", "head", head[:8] + (10**14).to_bytes(6, "big") + head[14:])
    assert scene.problems() == {scene.scheduled: "scheduled earlier than claims look, so they do not find it"}
    scene.call("HDEL", "jobs", scheduled)
    assert scene.problems() == {scene.scheduled: "scheduled, but has no record"}


def test_jobs_that_are_withdrawn_for_no_batch_or_another(scene: Scene) -> None:
    job, batch, other = id_of(scene.ready), b"A" * 16, b"B" * 16
    by_score = scene.call("ZSCORE", "ready:1", job + b"\1")
    scene.call("ZREM", "ready:1", job + b"\1")
    scene.call("ZADD", "withdrawn:1", by_score, job)
    assert scene.problems() == {scene.ready: "withdrawn, but for no batch"}
    scene.call("HSET", "batch_of", job, batch)
    assert scene.problems() == {scene.ready: "withdrawn for a batch that does not name it"}
    scene.call("HSET", "batches", batch, bytes(6) + b"\1", other, bytes(6) + b"\1" + job)
    assert scene.problems() == {scene.ready: "withdrawn for a batch that does not name it"}
    scene.call("HSET", "batches", batch, bytes(6) + b"\1" + job)
    assert scene.problems() == {}
    scene.call("ZADD", "ready:1", by_score, job + b"\1")
    assert scene.problems() == {scene.ready: "in several states: ready and withdrawn"}
    scene.call("ZREM", "withdrawn:1", job)
    assert scene.problems() == {scene.ready: "has a batch, but is not withdrawn"}
    scene.call("ZREM", "ready:1", job + b"\1")
    scene.call("ZADD", "withdrawn:2", by_score, job)
    low = scene.ready.replace(":p1:", ":p2:")
    assert scene.problems()[low] == "withdrawn, but its record has another priority"
    scene.call("HDEL", "jobs", job)
    scene.call("HDEL", "extras", job)
    assert scene.problems() == {low: "withdrawn, but has no record", scene.ready: "has a batch, but is not withdrawn"}


def test_a_batch_that_is_open_is_sound(scene: Scene) -> None:
    [queue_shard] = scene.client.session.queue_shards("q")
    epoch = queue_shard.stored.epoch if queue_shard.stored else 0
    for name, line in ((b"A" * 16, "ready"), (b"B" * 16, "scheduled")):
        words: list[bytes | str | int] = [epoch, name, 1, line, "latest", "-inf", "+inf", 500, 1 << 20]
        scene.client.run(partial(write, queue_shard, "withdraw", words))
    scene.client.delete_jobs(descriptors=[scene.ready])
    assert audit_queue(scene.client, "q") == AuditReport("q", CountsByState(1, 1, 3, 1, 1), [])


def test_leases_that_do_not_fit_their_jobs(scene: Scene) -> None:
    single, pair = scene.single, scene.pair
    scene.call("HINCRBY", "lease_jobs", pair[0].token + b"n", 1)
    assert scene.problems() == {f"lease {pair[0].token.hex()}": "its count is not the number of jobs that run on it"}
    scene.call("HINCRBY", "lease_jobs", pair[0].token + b"n", -1)
    scene.call("ZREM", "leases", single.token)
    assert scene.problems() == {
        f"lease {single.token.hex()}": "never expires",
        single.descriptor: "running without a lease",
    }
    scene.call("HDEL", "lease_jobs", single.token)
    assert scene.problems() == {single.descriptor: "running without a lease"}
    scene.call("HDEL", "running:1", id_of(single))
    scene.call("HDEL", "jobs", id_of(single))
    scene.call("HDEL", "extras", id_of(single))
    scene.call("HSET", "lease_jobs", single.token + b"n", 3)
    scene.call("ZADD", "leases", 1, bytes(8))
    assert scene.problems() == {
        f"lease {single.token.hex()}": "has a count of jobs, but nothing else",
        f"lease {bytes(8).hex()}": "has an expiry, but no jobs",
    }


def test_the_lease_of_a_single_job_has_no_entry(scene: Scene) -> None:
    scene.client.create_queue("one")
    scene.client.enqueue("one", b"x")
    (job,) = scene.client.dequeue("one")
    lease = bytes([job.priority]) + id_of(job) + job.token

    def problems() -> dict[str, str]:
        return {finding.subject: finding.problem for finding in audit_queue(scene.client, "one").findings}

    assert problems() == {}
    assert scene.raw.zrem("pl:{one/1}:leases", lease) == 1
    assert problems() == {job.descriptor: "running without a lease"}
    assert scene.client.renew([job]) == []
    assert problems() == {}
    scene.raw.delete("pl:{one/1}:running:1", "pl:{one/1}:jobs")
    assert problems() == {f"lease {job.token.hex()}": "has an expiry, but no jobs"}


def test_a_job_on_a_lease_that_does_not_name_it(scene: Scene) -> None:
    running = scene.call("HGET", "running:1", id_of(scene.pair[0]))
    scene.call("HSET", "running:1", id_of(scene.single), running)
    problems = scene.problems()
    assert problems[scene.single.descriptor] == "running, but its lease does not name it"
    assert problems[f"lease {scene.single.token.hex()}"] == "its count is not the number of jobs that run on it"


def test_elements_that_are_not_jobs(scene: Scene) -> None:
    scene.call("ZADD", "ready:1", 1, b"short")
    scene.call("HSET", "jobs", b"12345678", b"\1\0\1\x09body")
    scene.call("HSET", "jobs", b"87654321", b"\1")
    assert scene.problems() == {
        f"{b'short'.hex()} in key ready:1": "not an id",
        f"record {b'12345678'.hex()}": "priority: expected 1 to 3, got 9",
        f"record {b'87654321'.hex()}": "priority: expected 1 to 3, got 0",
    }


def test_the_audit_of_a_queue_with_too_many_findings_ends_early(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "MAX_FINDINGS", 50)
    scene.client.enqueue_many("q", [b""] * 3000)
    scene.call("UNLINK", "jobs")
    report = audit_queue(scene.client, "q")
    assert not report.ok
    assert 50 <= len(report.findings) < 3000
    assert str(report.findings[-1]).startswith("shard 1: audit: ended after")


def test_a_large_queue_is_read_in_pages(server: Server) -> None:
    with Client(shards={"a": server.url, "b": server.url}) as client, server.client() as raw:
        client.create_queue("q")
        for _ in range(6):
            client.enqueue_many(
                "q", [NewJob(bytes(100), priority=1 + i % 3, delay_ms=i % 2 * HOUR_MS) for i in range(1000)]
            )
        jobs = client.dequeue("q", 1500)
        client.ack(succeeded=jobs[:100], failed=jobs[100:500])
        report = audit_queue(client, "q")
        assert (report.findings, report.jobs) == ([], client.count("q"))
        last = max(client.scan("q"), key=lambda info: info.created_ms)
        _, shard, priority, number = last.descriptor.split(":")
        ready = queue_key("q", shard[1:], f"ready:{priority[1:]}")
        id_ = int(number).to_bytes(8, "big")
        assert raw.zrem(ready, id_, id_ + b"\1") == 1
        assert [(finding.shard, finding.subject) for finding in audit_queue(client, "q").findings] == [
            (shard[1:], last.descriptor)
        ]


def test_a_busy_queue_has_no_findings(server: Server) -> None:
    stop = threading.Event()
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            with Client(server.url) as client:
                while not stop.is_set():
                    client.enqueue_many(
                        "q", [NewJob(bytes(80), priority=1 + i % 2, status="s" * (i % 3)) for i in range(40)]
                    )
                    jobs = client.dequeue("q", 40 + seed)
                    client.renew(jobs[:3], own=True)
                    client.release(jobs[:5])
                    client.ack(succeeded=jobs[5:30], failed=jobs[30:])
                    client.delete_jobs("q", "pending", limit=7)
        except BaseException as error:
            errors.append(error)

    with Client(server.url) as client:
        client.create_queue("q")
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        try:
            reports = [audit_queue(client, "q") for _ in range(20)]
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert [report.findings for report in reports] == [[]] * 20
        assert errors == []
        assert len({report.jobs for report in reports}) > 1, "nothing went on meanwhile"


def test_a_queue_that_can_not_be_read_is_not_called_sound(server: Server, fresh_server: FreshServer) -> None:
    other = fresh_server()
    with Client(shards={"a": server.url, "b": other.url}, timeout_s=0.3) as client:
        with pytest.raises(QueueNotFound, match="queue 'q': not found"):
            audit_queue(client, "q")
        client.create_queue("q")
        assert audit_queue(client, "q").ok
        other.kill()
        with pytest.raises(ServerUnavailable):
            audit_queue(client, "q")


def test_a_key_of_the_wrong_type_is_named(scene: Scene) -> None:
    scene.call("UNLINK", "failed:1")
    scene.call("SET", "failed:1", "x")
    with pytest.raises(ServerReplyError, match=r"audit of queue 'q' .*key failed:1.*WRONGTYPE"):
        audit_queue(scene.client, "q")
