"""Who may ack a job: an ack names its source, and the claim of the job must have the same one.

Promises: each test runs over the three Thrift libraries on three shards, and over one of them on one shard.
Risks: two limits are those of the interface, which has no tokens: a source that claims a job again is not told apart
from its first claim, and an empty source is a source too.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from pinlater import Client
from tests.support.servers import Server
from tests.support.service_calls import (
    FAILED,
    IN_PROGRESS,
    SUCCEEDED,
    Caller,
    Service,
    ack_request,
    peer,
    pytest_generate_tests,
    queue,
    service,
    wire,
)
from tests.support.thrift_clients import PEERS, Refused, ThriftpyPeer

__all__ = ["peer", "pytest_generate_tests", "queue", "service", "wire"]  # for pytest

ON_ONE_SHARD = ("thriftpy2",)
CLIENTS = 12


@pytest.mark.parametrize(
    ("claimer", "other"),
    [
        ("web1", "web10"),
        ("web10", "web1"),
        ("web:1", "web"),
        ("web:1", "1"),
        ("web:1", "web:1:2"),
        ("a:b:c", "b"),
        ("a:b:c", "a:b"),
        ("web1", "WEB1"),
        ("web1", ""),
        ("", "web1"),
        ("", ":"),
        ("7", "8"),
        ("é", "e"),
    ],
)
def test_an_ack_of_another_source_is_refused_and_counted(
    wire: Caller, queue: str, service: Service, claimer: str, other: str
) -> None:
    holder, stranger = wire.by(claimer), wire.by(other)
    first, second = holder.running(queue), holder.running(queue)
    before = wire.lookup(first, second)
    stranger.ack(queue, [first], [second])
    stranger.dequeue(queue, jobAckRequest={"queueName": queue, "jobsFailed": [{"jobDescriptor": first}]})
    stranger.checkpoint(queue, second, newBody="x", moveToPending=True)
    assert wire.lookup(first, second) == before
    assert service.counted(queue, "ack_refused") == 3
    assert service.counted(queue, "checkpoint_noop") == 1
    holder.ack(queue, [first], [second])
    assert wire.counts(queue) == (1, 0, 1, 0)
    assert service.counted(queue, "ack_refused") == 3


@pytest.mark.parametrize("source", ["", ":", "::", "a:", ":a", "web:1", "x" * 300, "é" * 200, "a\0b", "'\"%d%s"])
def test_a_source_ends_what_it_claimed(wire: Caller, queue: str, service: Service, source: str) -> None:
    holder = wire.by(source)
    job = holder.running(queue)
    holder.checkpoint(queue, job, prependCustomStatus="mine")
    holder.ack(queue, [job])
    assert (wire.info(job)["jobState"], wire.info(job)["customStatus"]) == (SUCCEEDED, "mine")
    assert service.counted(queue, "ack_refused") == 0


def test_a_long_source_counts_by_its_first_255_bytes(wire: Caller, queue: str) -> None:
    job = wire.by("x" * 255 + "a").running(queue)
    wire.by("x" * 254).ack(queue, [job])
    assert wire.info(job)["jobState"] == IN_PROGRESS
    wire.by("x" * 255 + "b").ack(queue, [job])
    assert wire.info(job)["jobState"] == SUCCEEDED


def test_an_ack_of_a_job_that_another_source_claimed_meanwhile_is_refused(wire: Caller, queue: str) -> None:
    slow, other = wire.by("slow"), wire.by("other")
    job = slow.running(queue, b"", numAttemptsAllowed=5)
    slow.ack(queue, failed=[job])
    assert list(other.dequeue(queue)) == [job]
    slow.ack(queue, [job])
    assert wire.info(job)["jobState"] == IN_PROGRESS
    other.ack(queue, [job])
    assert wire.info(job)["jobState"] == SUCCEEDED


def test_the_first_limit_a_source_that_claims_again_is_not_told_apart(wire: Caller, queue: str) -> None:
    """The interface has no token of a claim, so an ack that is late ends the second claim of its source."""
    job = wire.running(queue, b"", numAttemptsAllowed=5)
    wire.ack(queue, failed=[job])
    assert list(wire.dequeue(queue)) == [job]
    wire.ack(queue, [job])  # sent by the first run of the job, say
    assert wire.info(job)["jobState"] == SUCCEEDED


def test_the_second_limit_sources_without_a_name_are_one(wire: Caller, queue: str) -> None:
    """Two clients that both send an empty source end each other's jobs."""
    job = wire.by("").running(queue)
    wire.by("").ack(queue, [job])
    assert wire.info(job)["jobState"] == SUCCEEDED


# any source


@pytest.fixture(scope="module")
def open_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A server whose acks may come from any source."""
    with Server("valkey", tmp_path_factory.mktemp("open")) as store:
        made = Service(store, ack_any_source=True)
        with made.running:
            yield made


@pytest.mark.parametrize("kind", PEERS)
def test_with_ack_any_source_whoever_acks_ends_a_job(open_service: Service, kind: str) -> None:
    queue, peer = open_service.new_queue(), PEERS[kind](open_service.port)  # type: ignore[index]
    claimer, other = Caller(peer, "web1"), Caller(peer, "")
    first, second, third = (claimer.running(queue, b"%d" % at, numAttemptsAllowed=1) for at in range(3))
    other.ack(queue, [first], [second])
    other.dequeue(queue, jobAckRequest={"queueName": queue, "jobsSucceeded": [{"jobDescriptor": third}]})
    assert [claimer.info(job)["jobState"] for job in (first, second, third)] == [SUCCEEDED, FAILED, SUCCEEDED]
    other.ack(queue, [second])  # it does not run: still a no-op
    assert claimer.info(second)["jobState"] == FAILED
    assert open_service.counted(queue, "ack_refused") == 1
    # a checkpoint is of the claimer alone, as the interface says
    job = claimer.running(queue)
    other.checkpoint(queue, job, newBody="x")
    assert claimer.body(job) == b""
    peer.close()


# calls that leave together


class Crowd:
    """Connections, each of another source, whose calls come to the server in one turn of its loop."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._peers = [ThriftpyPeer(service.port) for _ in range(CLIENTS)]
        self.callers = [Caller(peer, f"web{at}") for at, peer in enumerate(self._peers)]

    def at_once(self, method: str, arguments: list[dict[str, Any]]) -> list[Any]:
        """Results of the calls of one method, or what they raised."""
        standing, sent = Event(), Event()

        async def stand_still() -> None:
            standing.set()
            sent.wait()

        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(self._service.running.run, stand_still())
            standing.wait()
            for caller, peer, given in zip(self.callers, self._peers, arguments, strict=True):
                peer.send(method, context={"source": caller.source}, **given)
            sent.set()
            held.result()
        return [self._received(peer, method) for peer in self._peers]

    @staticmethod
    def _received(peer: ThriftpyPeer, method: str) -> Any:
        try:
            return peer.receive(method)
        except Refused as error:
            return error

    def close(self) -> None:
        for each in self._peers:
            each.close()


@pytest.fixture(scope="module")
def crowd(service: Service) -> Iterator[Crowd]:
    made = Crowd(service)
    yield made
    made.close()


def script_calls(service: Service) -> int:
    with service.store.client() as client:
        return sum(
            client.info("commandstats").get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "fcall")
        )


def enqueue_request(queue: str, *jobs: dict[str, Any]) -> dict[str, Any]:
    return {"request": {"queueName": queue, "jobs": list(jobs)}}


def codes(results: list[Any]) -> list[int | None]:
    return [result.code if isinstance(result, Refused) else None for result in results]


def test_acks_that_leave_together_fail_alone(service: Service, crowd: Crowd) -> None:
    queue, other = service.new_queue(), service.new_queue()
    jobs = [caller.running(queue, b"", numAttemptsAllowed=1) for caller in crowd.callers]
    lists = [ack_request(queue, [job]) for job in jobs]
    lists[1] = ack_request(queue, [jobs[0]])  # of somebody else, and first
    lists[2] = ack_request(queue, ["abc", jobs[2]])
    lists[3] = ack_request(queue, [f"{queue}:s9:p1:1"])
    lists[4] = ack_request(other, [jobs[4]])
    lists[5] = ack_request("unknown", [jobs[5].replace(queue, "unknown")])
    lists[6] = ack_request(queue, failed=[jobs[6]])
    lists[7] = ack_request(queue, [jobs[7]], [jobs[7]])
    before = script_calls(service)
    results = crowd.at_once("ackDequeuedJobs", [{"request": each} for each in lists])
    sent = script_calls(service) - before
    assert codes(results) == [None, None, 500, 500, *[None] * (CLIENTS - 4)]
    assert sent <= 2 * len(service.shards) + 2  # two calls name one job, and two queues are others
    states = [crowd.callers[0].info(job)["jobState"] for job in jobs]
    expected = [SUCCEEDED] * CLIENTS
    expected[1:7] = [IN_PROGRESS] * 5 + [FAILED]
    assert states == expected
    assert service.counted(queue, "ack_refused") == 1


def test_enqueues_that_leave_together_fail_alone(service: Service, crowd: Crowd) -> None:
    queue = service.new_queue(body_limit=100)
    crowd.callers[0].enqueue(queue, b"", b"")
    requests = [enqueue_request(queue, {"body": b"%d" % at}, {"body": b""}) for at in range(CLIENTS)]
    requests[1] = enqueue_request(queue, {"body": b"good"}, {"body": b"", "priority": 9})
    requests[2] = enqueue_request(queue, {"body": b"good"}, {"body": b"x" * 101})
    requests[3] = enqueue_request("unknown", {"body": b""})
    requests[4] = enqueue_request(queue)
    before = script_calls(service)
    results = crowd.at_once("enqueueJobs", requests)
    assert codes(results) == [None, 416, 500, 413, *[None] * (CLIENTS - 4)]
    assert results[2].message == "job 2 of 2: body: expected at most 100 bytes (the queue's body limit), got 101"
    assert script_calls(service) - before < CLIENTS / 2
    assert results[4] == {"jobDescriptors": []}
    made = [job for at in (0, *range(5, CLIENTS)) for job in results[at]["jobDescriptors"]]
    assert len(set(made)) == 2 * (CLIENTS - 4)
    bodies = {at: crowd.callers[0].body(results[at]["jobDescriptors"][0]) for at in range(5, CLIENTS)}
    assert bodies == {at: b"%d" % at for at in range(5, CLIENTS)}
    assert crowd.callers[0].count(queue) == 2 * (CLIENTS - 4) + 2


def test_a_limit_that_changed_meanwhile_refuses_only_the_call_that_breaks_it(service: Service, crowd: Crowd) -> None:
    """The server learns of the new limit only from the script that it sent all jobs to."""
    queue = service.new_queue(body_limit=1_000)
    crowd.callers[0].enqueue(queue, b"")
    with Client(shards=service.shards) as operator:
        operator.configure_queue(queue, body_limit=50)
    sizes = [10] * CLIENTS
    sizes[3] = sizes[8] = 51
    results = crowd.at_once("enqueueJobs", [enqueue_request(queue, {"body": b"x" * size}) for size in sizes])
    assert codes(results) == [500 if size > 50 else None for size in sizes]
    assert results[3].message == "job: body: expected at most 50 bytes (the queue's body limit), got 51"
    assert crowd.callers[0].count(queue) == CLIENTS - 1
