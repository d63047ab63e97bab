"""Many clients at once, whose dequeues and riding acks leave together.

Promises: each job is given once and ended by its claimer, on one shard and on three.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from pinlater import CountsByState, QueueConfig
from tests.support.servers import Server
from tests.support.service_calls import Caller, ack_request
from tests.support.thrift_clients import ThriftpyPeer
from tests.support.thrift_server import ThriftServer

CLIENTS, JOBS = 16, 800


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("sources", [1, CLIENTS])
def test_each_job_is_given_once_and_ended(server: Server, shards: int, sources: int) -> None:
    with ThriftServer({f"{at + 1}": server.url for at in range(shards)}) as thrift:
        client = thrift.client
        thrift.run(client.create_queue("mail", QueueConfig(lease_ms=600_000, keep_succeeded=JOBS)))
        for first in range(0, JOBS, 100):
            thrift.run(client.enqueue_many("mail", [b"%d" % at for at in range(first, first + 100)]))

        def work(number: int) -> list[bytes]:
            peer = ThriftpyPeer(thrift.port)
            wire, given, named = Caller(peer, f"web:{number % sources}"), list[bytes](), list[str]()
            while True:
                riding = {"jobAckRequest": ack_request("mail", named)} if named else {}
                jobs = wire.dequeue("mail", 7, **riding)
                given += jobs.values()
                named = [*jobs]
                if not jobs:
                    peer.close()
                    return given

        with ThreadPoolExecutor(CLIENTS) as pool:
            given = Counter(body for bodies in pool.map(work, range(CLIENTS)) for body in bodies)
        assert given == Counter(b"%d" % at for at in range(JOBS))
        assert thrift.run(client.count("mail")) == CountsByState(succeeded=JOBS)
