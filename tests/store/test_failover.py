"""A failover while the old primary lives on and old connections stay open: clients go on at the new primary.

Promises: the same call goes on, no connection and no subscription stays at the old primary, and a wait ends.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pinlater import Client
from pinlater.model.errors import ServerUnavailable
from pinlater.store.effects import ReplyError, send
from tests.support.both_clients import Calls, kind, make
from tests.support.failover import MakePair, make_pair
from tests.support.servers import KINDS, Kind, Server, wait_until

__all__ = ["kind", "make", "make_pair"]  # fixtures

Make = Callable[..., Calls]

TIMEOUT_S = 30.0
THREADS = 8


def fill_pool(calls: Calls, threads: ThreadPoolExecutor) -> None:
    """Makes several free connections."""
    for _ in range(3):
        list(threads.map(lambda _: calls.lookup(["q:s1:p1:1"]), range(THREADS)))


@pytest.mark.parametrize("server_kind", KINDS)
def test_every_call_goes_on_at_the_new_primary(make: Make, make_pair: MakePair, server_kind: Kind) -> None:
    pair = make_pair(server_kind)
    calls = make(pair.url, timeout_s=TIMEOUT_S)
    calls.create_queue("q")
    descriptors = calls.enqueue_many("q", [b"%d" % number for number in range(20)])
    held = calls.dequeue("q", 5)
    with ThreadPoolExecutor(THREADS) as threads:
        fill_pool(calls, threads)
        pair.fail_over()
        added = list(threads.map(lambda number: calls.enqueue("q", b"%d" % number), range(THREADS)))
    assert calls.ack(succeeded=held) == []
    pair.wait_left()
    with Client(pair.primary.url) as direct:
        assert set(direct.lookup(descriptors + added)) == {*descriptors, *added} - {job.descriptor for job in held}


def test_calls_with_little_time_fail_only_until_the_address_moves(make: Make, make_pair: MakePair) -> None:
    pair = make_pair()
    calls = make(pair.url, timeout_s=0.1)
    calls.create_queue("q")
    with ThreadPoolExecutor(THREADS) as threads:
        fill_pool(calls, threads)
    port = pair.address.server_port
    pair.fail_over()
    pair.address.server_port = port
    for _ in range(3):
        with pytest.raises(ServerUnavailable, match="READONLY"):
            calls.enqueue("q", b"early")
    pair.address.server_port = pair.primary.port
    calls.client.settings.timeout_s = TIMEOUT_S
    calls.enqueue("q", b"late")
    pair.wait_left()


def test_a_wait_for_a_job_goes_on(make: Make, make_pair: MakePair) -> None:
    pair = make_pair()
    calls, producer = make(pair.url, timeout_s=TIMEOUT_S), make(pair.url, timeout_s=TIMEOUT_S)
    calls.create_queue("q")
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(calls.dequeue, "q", 1, wait=TIMEOUT_S)
        wait_until(lambda: listeners(pair.primary), "a subscription")
        pair.fail_over()
        producer.enqueue("q", b"body")
        assert [job.body for job in waiting.result()] == [b"body"]
    pair.wait_left()


def listeners(server: Server) -> int:
    return len(server.call("PUBSUB", "CHANNELS", "pl:*"))


@pytest.mark.parametrize("code", ["READONLY", "MASTERDOWN", "UNBLOCKED", "LOADING", "NOAUTH", "MISCONF"])
def test_errors_that_close_the_connection(make: Make, server: Server, code: str) -> None:
    calls = make(server.url)
    refuse = ("EVAL", "return redis.error_reply(ARGV[1])", 0, f"{code} says the test")

    def ask(*command: Any) -> Any:
        return calls.run(lambda end: send(calls.client.session.servers[0], command, deadline_s=end))[0]

    before = ask("CLIENT", "ID")
    assert ask("CLIENT", "ID") == before
    assert ask(*refuse) == ReplyError(f"{code} says the test")
    assert (ask("CLIENT", "ID") == before) == (code == "MISCONF")
