"""Acks of the Thrift service's calls: jobs without tokens, each of the source of its call, many calls in one script.

Promises: shown on real servers, from the calls' bytes to the states of their jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from pinlater import Client, CountsByState, _core
from pinlater.operations.leases import ack_calls
from tests.support.servers import Server
from tests.support.thrift_wire import IDL, arguments

SOURCES = ["web:1", "web:2", "web"]


@pytest.fixture
def clients(server: Server) -> Iterator[list[Client]]:
    """A client for each source; the queue is on two shards."""
    with ExitStack() as stack:
        made = [
            stack.enter_context(Client(shards={"1": server.url, "2": server.url}, source=source)) for source in SOURCES
        ]
        made[0].create_queue("mail")
        yield made


def claimed(clients: list[Client], each: int = 4) -> list[list[str]]:
    """The descriptors of so many jobs of each client."""
    clients[0].enqueue_many("mail", [b"body"] * each * len(clients))
    return [[job.descriptor for job in client.dequeue("mail", each)] for client in clients]


def ack_of(source: str, succeeded: list[str], failed: tuple[str, ...] = ()) -> _core.AckCall:
    lists = [[IDL.PinLaterJobAckInfo(name, "said") for name in names] for names in (succeeded, failed)]
    request = IDL.PinLaterJobAckRequest("mail", *lists)
    return _core.read_ack(arguments("ackDequeuedJobs", request, IDL.RequestContext(source)), 0)


def sent(client: Client, calls: list[_core.AckCall], any_source: bool = False) -> list[Any]:
    """How many acks of each call were refused: of jobs that succeeded, and that failed."""
    return client.run(partial(ack_calls, client.session, calls, any_source))


@pytest.mark.parametrize(("setting", "kept"), [("priorities", 0), ("keep_succeeded", 9), ("max_running", 0)])
def test_calls_of_several_sources_go_together(clients: list[Client], setting: str, kept: int) -> None:
    clients[0].configure_queue("mail", **{setting: 99})
    jobs = claimed(clients)
    calls = [ack_of(source, names[:3], (names[3],)) for source, names in zip(SOURCES, jobs, strict=True)]
    assert sent(clients[0], calls) == [(0, 0)] * 3
    assert clients[0].count("mail") == CountsByState(pending=3, succeeded=kept)
    assert {info.status for info in clients[0].lookup([names[3] for names in jobs]).values()} == {"said"}
    # they ended: nobody holds them any more
    assert sent(clients[1], calls) == [(3, 1)] * 3


def test_nobody_fails_for_a_neighbour(clients: list[Client]) -> None:
    first, second, third = claimed(clients)
    calls = [ack_of("web:1", second), ack_of("web:2", []), ack_of("web", third[:1]), ack_of("web:1", first)]
    assert sent(clients[0], calls) == [(4, 0), (0, 0), (0, 0), (0, 0)]
    assert clients[0].count("mail") == CountsByState(in_progress=7)
    assert set(clients[0].lookup(first + third[:1])) == set()


def test_any_source_ends_what_runs(clients: list[Client]) -> None:
    first, second, third = claimed(clients)
    assert sent(clients[2], [ack_of("other", first + second), ack_of("", third)], any_source=True) == [(0, 0)] * 2
    assert clients[0].count("mail") == CountsByState()
    assert sent(clients[2], [ack_of("other", first)], any_source=True) == [(4, 0)]


def test_a_call_of_one_job_is_an_ack(clients: list[Client]) -> None:
    ((name,), _, _) = claimed(clients, 1)
    assert sent(clients[0], [ack_of("web:2", [name])]) == [(1, 0)]
    assert sent(clients[0], [ack_of("web:1", [name])]) == [(0, 0)]
    assert clients[0].count("mail") == CountsByState(in_progress=2)
