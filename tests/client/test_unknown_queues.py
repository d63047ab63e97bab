"""What a client remembers of queues that are not there: names that a caller makes up.

Promises that memory and the number of remembered queues stay bounded, and that a queue which is used stays remembered.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest

from pinlater import PinLaterError
from pinlater.operations import results
from pinlater.store import call_batches, shards
from tests.support.both_clients import Calls, kind, make
from tests.support.servers import Server

__all__ = ["kind", "make"]  # fixtures

MOST = 20  # instead of 1,000
BYTES_A_NAME = 3_000  # a remembered one takes 1,300 to 2,700


def call_each(calls: Calls, queue: str) -> None:
    """Makes each kind of call on a queue that is not there."""
    job = f"{queue}:s1:p1:1"
    made: list[Callable[[], object]] = [
        lambda: calls.enqueue(queue, b""),
        lambda: calls.enqueue_many(queue, [b""]),
        lambda: calls.lookup([job]),
        lambda: calls.dequeue(queue),
        lambda: calls.ack(succeeded=[job], source="somebody"),
        lambda: calls.count(queue),
        lambda: calls.run(lambda end: results.wait_for(calls.client.session, job, 0, end)),
    ]
    for call in made:
        with suppress(PinLaterError):
            call()


def traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.fixture(autouse=True)
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MAX_UNKNOWN", MOST)
    monkeypatch.setattr(call_batches, "MAX_COALESCERS", MOST)


def test_names_that_are_made_up_take_bounded_memory(make: Callable[..., Calls], server: Server) -> None:
    calls = make(server.url)
    for number in range(2 * MOST):
        call_each(calls, f"before{number}")
    tracemalloc.start()
    try:
        before = traced_bytes()
        for number in range(10 * MOST):
            call_each(calls, f"made_up{number}")
        grown = traced_bytes() - before
    finally:
        tracemalloc.stop()
    assert grown < 2 * MOST * BYTES_A_NAME  # 10 * MOST names were used


def test_a_queue_that_is_forgotten_and_remembered_again(make: Callable[..., Calls], server: Server) -> None:
    calls = make(server.url)
    calls.create_queue("kept")
    calls.create_queue("q")
    session, descriptors = calls.client.session, []
    before = session.queue_shard("kept", "1")
    for number in range(3):
        descriptors.append(calls.enqueue("q", b"%d" % number))  # a lane that repeats would give the first descriptor
        forgotten = session.queue_shard("q", "1")
        forgotten.stored = None  # as after CONFIG_CHANGED
        for made_up in range(2 * MOST):
            call_each(calls, f"made_up{made_up}")
        assert session.queue_shard("q", "1") is not forgotten
        assert session.queue_shard("kept", "1") is before
    assert [job.body for job in calls.dequeue("q", 10)] == [b"0", b"1", b"2"]
    assert len(set(descriptors)) == 3
