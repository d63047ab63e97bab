"""Shards that are removed while jobs of theirs run.

Promises: their jobs are still ended, whether their acks come alone or ride on a dequeue, beside jobs of other shards.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pinlater import QueueConfig
from tests.support.servers import Server
from tests.support.service_calls import Caller, ack_request, refused
from tests.support.thrift_clients import ThriftpyPeer
from tests.support.thrift_server import ThriftServer


@pytest.fixture
def thrift(server: Server) -> Iterator[ThriftServer]:
    """A server with two shards."""
    with ThriftServer({"1": server.url, "2": server.url}) as running:
        running.run(running.client.create_queue("mail", QueueConfig(lease_ms=600_000, keep_succeeded=100)))
        yield running


@pytest.fixture
def wire(thrift: ThriftServer) -> Iterator[Caller]:
    peer = ThriftpyPeer(thrift.port)
    yield Caller(peer)
    peer.close()


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
@pytest.mark.parametrize("riding", [False, True], ids=["alone", "riding on a dequeue"])
def test_running_jobs_of_a_removed_shard_are_ended(
    thrift: ThriftServer, wire: Caller, server: Server, riding: bool
) -> None:
    while len({job.split(":")[1] for job in wire.scan_all("mail")}) < 2:
        wire.enqueue("mail", b"x")
    jobs = wire.dequeue("mail")
    thrift.run(thrift.client.change_shards({"1": server.url}))
    assert {info["jobState"] for info in wire.lookup(*jobs).values()} == {1}
    if riding:
        assert wire.dequeue("mail", jobAckRequest=ack_request("mail", [*jobs])) == {}
    else:
        wire.ack("mail", succeeded=[*jobs])
    assert {info["jobState"] for info in wire.lookup(*jobs).values()} == {2}
    with refused(500):
        wire.ack("mail", succeeded=[*jobs, "mail:s3:p1:1"])
