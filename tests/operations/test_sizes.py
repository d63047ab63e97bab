"""Every size of a call, through the limits of a script (1,000) and of Lua's stack (8,000 values); any bytes as a body.

Each call does all of it or says what it did not do. The order stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pinlater import Checkpoint, CountsByState, NewJob
from tests.conftest import FreshServer
from tests.support.both_clients import CALLS_KINDS, Calls, CallsKind, make_calls
from tests.support.servers import Server

SIZES = [
    0,
    1,
    1_000,
    1_001,
    *(pytest.param(size, marks=pytest.mark.thorough("sizes")) for size in (999, 3_999, 4_000, 20_000)),
]
BODIES = [b"", b"\0", b"\xff\xfe", "é\U0001f600".encode(), b"\r\n$5\r\n*1", bytes(range(256)), b"x" * (1024 * 1024)]


@pytest.fixture(params=CALLS_KINDS)
def calls(request: pytest.FixtureRequest, server: Server) -> Iterator[Calls]:
    made = make_calls(request.param, server.url)
    yield made
    made.close()


@pytest.mark.parametrize("size", SIZES)
def test_every_size_of_every_call(calls: Calls, size: int) -> None:
    calls.create_queue("q")
    bodies = [b"%d" % number for number in range(size)]
    descriptors = calls.enqueue_many("q", bodies)
    assert len(set(descriptors)) == size
    infos = calls.lookup(descriptors, with_body=True)
    assert [infos[descriptor].body for descriptor in descriptors] == bodies
    jobs = calls.dequeue("q", size)
    assert [(job.descriptor, job.body) for job in jobs] == list(zip(descriptors, bodies, strict=True))
    assert calls.renew(jobs) == []
    assert calls.release(jobs) == []
    assert calls.release(jobs) == jobs
    again = calls.dequeue("q", size)
    assert [job.descriptor for job in again] == descriptors
    half = len(again) // 2
    assert calls.ack(succeeded=again[:half]) == []
    assert calls.ack(succeeded=again) == again[:half]
    assert calls.count("q") == CountsByState()


@pytest.mark.parametrize("kind", CALLS_KINDS)
def test_checkpoints_leave_in_calls_of_bounded_size(fresh_server: FreshServer, kind: CallsKind) -> None:
    server = fresh_server(config={"maxmemory-clients": "8mb"})  # a client that needs more is disconnected
    calls = make_calls(kind, server.url, timeout_s=1.0)
    calls.create_queue("q")
    calls.enqueue_many("q", [b"%d" % number for number in range(200)])
    jobs = calls.dequeue("q", 200)
    assert calls.ack(succeeded=jobs[:1]) == []
    checkpoints = [Checkpoint(job=job, body=job.body + bytes(100_000), status=job.body.decode()) for job in jobs]
    repeated = Checkpoint(job=jobs[1], body=b"again")
    assert calls.checkpoint(*checkpoints, repeated) == [checkpoints[0], repeated]
    infos = calls.lookup([job.descriptor for job in jobs[1:]], with_body=True)
    for checkpoint, info in zip(checkpoints[1:], infos.values(), strict=True):
        assert (info.body, info.status) == (checkpoint.body, checkpoint.status)
    calls.close()


@pytest.mark.campaign("sizes")
@pytest.mark.parametrize("kind", CALLS_KINDS)
def test_a_thousand_checkpoints_of_a_mebibyte_pass_a_small_query_buffer(
    fresh_server: FreshServer, kind: CallsKind
) -> None:
    server = fresh_server(config={"client-query-buffer-limit": "2mb"})
    calls = make_calls(kind, server.url, timeout_s=30.0)
    calls.create_queue("q")
    calls.enqueue_many("q", [b""] * 1_000)
    jobs, body = calls.dequeue("q", 1_000), b"x" * 1024 * 1024
    assert calls.checkpoint(*(Checkpoint(job=job, body=body, status=job.descriptor) for job in jobs)) == []
    infos = calls.lookup([job.descriptor for job in jobs])
    assert [(name, info.status) for name, info in infos.items()] == [(job.descriptor, job.descriptor) for job in jobs]
    some = [job.descriptor for job in jobs[::100]]
    assert {info.body for info in calls.lookup(some, with_body=True).values()} == {body}
    calls.close()


@pytest.mark.parametrize("size", SIZES)
def test_every_size_of_ending_by_name(calls: Calls, size: int) -> None:
    calls.create_queue("q")
    descriptors = calls.enqueue_many("q", [NewJob(b"", attempts=1, priority=1 + n % 3) for n in range(size)])
    assert calls.ack(failed=calls.dequeue("q", size)) == []
    assert calls.count("q").failed == size
    assert calls.retry_jobs(descriptors) == size
    assert calls.count("q").pending == size
    assert calls.ack(failed=calls.dequeue("q", size)) == []
    assert calls.retry_failed("q", limit=size) == size
    assert calls.delete_jobs(descriptors=descriptors) == size
    assert calls.delete_jobs(descriptors=descriptors) == 0
    assert calls.count("q") == CountsByState()


def test_a_body_can_be_any_bytes(calls: Calls) -> None:
    calls.create_queue("q")
    alone = [calls.enqueue("q", body) for body in BODIES]
    together = calls.enqueue_many("q", BODIES)
    infos: dict[str, Any] = calls.lookup(alone + together, with_body=True)
    assert [infos[descriptor].body for descriptor in alone + together] == BODIES * 2
    taken: list[bytes] = []
    while jobs := calls.dequeue("q", 100):
        taken += [job.body for job in jobs]
    assert taken == BODIES * 2


def test_other_buffers_are_bodies_too(calls: Calls) -> None:
    calls.create_queue("q")
    for body in (bytearray(b"body"), memoryview(b"body")):
        descriptor = calls.enqueue("q", body)
        assert calls.lookup([descriptor], with_body=True)[descriptor].body == b"body"
