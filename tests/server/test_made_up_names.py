"""Names that callers make up: queues, shards, methods and sources that are not there take no memory for ever.

Promises: what a server process keeps stays bounded. Its counts have no name that a caller made up.
"""

from __future__ import annotations

import gc
import tracemalloc
from contextlib import suppress

import pytest

from pinlater.store import call_batches, shards
from tests.support.service_calls import Caller, Service, ack_request, service
from tests.support.thrift_clients import Failed, RawPeer, Refused, ThriftpyPeer
from tests.support.thrift_wire import message

__all__ = ["service"]  # fixture

MOST = 20  # instead of 1,000
NAMES = 100
GROWN_BYTES = 40_000  # 400 bytes a name; the session forgets and learns up to MOST queue shards, of 2,000 bytes each


def call_each(calls: Caller, name: str) -> None:
    """Each kind of call on a queue that is not there, from a source that nobody has."""
    calls, job = calls.by(name), f"{name}:s1:p1:1"
    for call in (
        lambda: calls.enqueue(name, b""),
        lambda: calls.enqueue(name, *[b""] * 2),
        lambda: calls.dequeue(name),
        lambda: calls.dequeue(name, dryRun=True),
        lambda: calls.dequeue(name, jobAckRequest=ack_request(name, [job])),
        lambda: calls.ack(name, [job], [job]),
        lambda: calls.ack(name, [f"{name}:s{name}:p1:1"]),
        lambda: calls.checkpoint(name, job, newBody="x"),
        lambda: calls.lookup(job),
        lambda: calls.count(name),
        lambda: calls.count(name, bodyRegexToMatch=name),
        lambda: calls.scan(name),
        lambda: calls.retry(name),
        lambda: calls.delete(name),
    ):
        with suppress(Refused, Failed):
            call()


def traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def test_made_up_names_take_bounded_memory(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MAX_UNKNOWN", MOST)
    monkeypatch.setattr(call_batches, "MAX_COALESCERS", MOST)
    service.running.run(renewed(service))
    calls, stats = Caller(ThriftpyPeer(service.port)), service.running.process.stats
    tracemalloc.start()
    try:
        for number in range(2 * MOST):
            call_each(calls, f"before{number}")
        known, before = (set(stats.counts), set(stats.errors), set(stats.timings)), traced_bytes()
        for number in range(NAMES):
            call_each(calls, f"made_up{number}")
        grown = traced_bytes() - before
    finally:
        tracemalloc.stop()
        calls.peer.close()
    assert (set(stats.counts), set(stats.errors), set(stats.timings)) == known
    assert grown < GROWN_BYTES


async def renewed(service: Service) -> None:
    service.running.client.session.renew()  # it reads MAX_UNKNOWN


def test_made_up_methods_have_one_name(service: Service) -> None:
    raw, stats = RawPeer(service.port), service.running.process.stats
    for number in range(50):
        raw.send(message(f"no_such{number}"))
        assert f"unknown method 'no_such{number}'".encode() in raw.frame()
    assert stats.errors["(unknown)", "UnknownMethod"] == 50
    assert not any("no_such" in name for name in stats.timings)
    raw.close()
