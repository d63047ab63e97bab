"""A client that waits for jobs of several queues has a channel for each, on one connection.

Promises: each wait is ended by its own queue's notification, whichever began first. A channel that the user may not
hear ends no other wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from pinlater import Client
from pinlater.model.errors import ServerRefused
from tests.support.both_clients import Calls, kind, make
from tests.support.servers import Server, wait_until

__all__ = ["kind", "make"]  # fixtures

QUEUES = ("one", "two", "three")
#: Shorter than a safety claim: only a notification ends the wait in time.
WAIT_S = 8.0
PASSWORD = "correct-horse"  # noqa: S105


def channels(server: Server) -> int:
    return len(server.call("PUBSUB", "CHANNELS", "pl:{*}:wake:*"))


def wait_in_thread(calls: Calls, queue: str, got: dict[str, list[bytes]]) -> threading.Thread:
    def wait() -> None:
        got[queue] = [job.body for job in calls.dequeue(queue, wait=WAIT_S)]

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_waits_for_several_queues(make: Callable[..., Calls], server: Server) -> None:
    got: dict[str, list[bytes]] = {}
    with Client(server.url) as client:
        for queue in QUEUES:
            client.create_queue(queue)
        calls = make(server.url)
        threads = []
        for number, queue in enumerate(QUEUES, 1):
            threads.append(wait_in_thread(calls, queue, got))
            wait_until(lambda: channels(server) == number, "its channel")  # noqa: B023
        wait_until(lambda: all(server.call("EXISTS", f"pl:{{{queue}/1}}:waiters") for queue in QUEUES), "three waiters")
        for queue in QUEUES:
            client.enqueue(queue, queue.encode())
        for thread in threads:
            thread.join()
        assert len(server.call("CLIENT", "LIST", "TYPE", "pubsub").splitlines()) == 1
    assert got == {queue: [queue.encode()] for queue in QUEUES}


def test_a_channel_that_is_denied_ends_no_other_wait(make: Callable[..., Calls], server: Server) -> None:
    got: dict[str, list[bytes]] = {}
    rules = ("reset", "on", f">{PASSWORD}", "+@all", "~pl:*", "resetchannels", "&pl:{one/*")
    server.call("ACL", "SETUSER", "half", *rules)
    try:
        with Client(server.url) as client:
            for queue in QUEUES:
                client.create_queue(queue)
            calls = make(f"redis://half:{PASSWORD}@127.0.0.1:{server.port}")
            thread = wait_in_thread(calls, "one", got)
            wait_until(lambda: server.call("EXISTS", "pl:{one/1}:waiters"), "a waiter")
            before = server.call("CLIENT", "LIST", "TYPE", "pubsub").split()[0]
            with pytest.raises(ServerRefused, match="may not subscribe"):
                calls.dequeue("two", wait=WAIT_S)
            assert server.call("CLIENT", "LIST", "TYPE", "pubsub").split()[0] == before
            client.enqueue("one", b"x")
            thread.join()
        assert got == {"one": [b"x"]}
    finally:
        server.call("ACL", "DELUSER", "half")
