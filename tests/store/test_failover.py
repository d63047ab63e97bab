"""A failover while the old primary lives on, or stands still, and old connections stay open: clients go on.

Promises: the same call goes on, no connection and no subscription stays at the old primary, and a wait ends.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pinlater import Client
from pinlater.model.errors import OutcomeUnknown, ServerUnavailable
from pinlater.operations import dequeue
from pinlater.store.effects import Command, Flow, NoAnswer, ReplyError, Send, send
from tests.support.both_clients import Calls, kind, make
from tests.support.cut_proxy import Cut, CutProxy
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


def test_one_call_leaves_a_primary_that_stands_still(make: Make, make_pair: MakePair) -> None:
    pair = make_pair()
    calls = make(pair.url, timeout_s=TIMEOUT_S, read_timeout_s=1.0)
    calls.create_queue("q")
    with ThreadPoolExecutor(THREADS) as threads:
        fill_pool(calls, threads)
    assert connections(pair.primary) > 2
    pair.leave_hanging()
    before = len(pair.address.scripts)
    descriptor = calls.enqueue("q", b"body")
    unanswered = [script for script in pair.address.scripts[before:] if script.reply_size is None]
    assert len(unanswered) == 1
    pair.go_on()
    pair.wait_left()
    assert list(calls.lookup([descriptor])) == [descriptor]


def connections(server: Server) -> int:
    return sum(client["name"] == "pinlater" for client in server.call("CLIENT LIST"))


def test_a_wait_for_a_job_leaves_a_primary_that_stands_still(
    make: Make, make_pair: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dequeue, "SAFETY_S", (0.2, 0.2))  # the first look; later ones are far off
    pair = make_pair()
    calls, producer = make(pair.url, timeout_s=TIMEOUT_S, read_timeout_s=1.0), make(pair.url, timeout_s=TIMEOUT_S)
    calls.create_queue("q")
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(calls.dequeue, "q", 1, wait=TIMEOUT_S)
        wait_until(lambda: listeners(pair.primary), "a subscription")
        pair.leave_hanging()
        wait_until(lambda: listeners(pair.primary), "a subscription at the new primary")
        producer.enqueue("q", b"body")
        assert [job.body for job in waiting.result()] == [b"body"]
    pair.go_on()
    pair.wait_left()


def test_a_connect_that_is_not_answered_leaves_too(make: Make, make_pair: MakePair) -> None:
    """The subscription leads to the same node, and hears nothing of it."""
    pair = make_pair()
    calls = make(pair.url, timeout_s=TIMEOUT_S, read_timeout_s=1.0)
    calls.create_queue("q")
    port = pair.address.server_port
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(calls.dequeue, "q", 1, wait=TIMEOUT_S)
        wait_until(lambda: listeners(pair.primary), "a subscription")
        pair.primary.call("CLIENT", "KILL", "TYPE", "normal")
        pair.leave_hanging()
        pair.address.server_port = port
        calls.client.settings.timeout_s = 0.1
        with pytest.raises(ServerUnavailable, match=r"not reached: \w"):
            calls.enqueue("q", b"early")
        pair.address.server_port = pair.primary.port
        calls.client.settings.timeout_s = TIMEOUT_S
        wait_until(lambda: listeners(pair.primary), "a subscription at the new primary")
        calls.enqueue("q", b"late")
        assert [job.body for job in waiting.result()] == [b"late"]


def test_an_answer_that_another_call_waits_for_is_not_cut_off(make: Make, server: Server) -> None:
    """The one call leaves the node while the other one still waits."""
    with CutProxy(server.port) as proxy, ThreadPoolExecutor(1) as thread:
        calls = make(proxy.url, timeout_s=TIMEOUT_S, read_timeout_s=TIMEOUT_S)
        calls.create_queue("q")
        calls.enqueue("q", b"the server knows the script")
        before = len(proxy.scripts)
        proxy.arm(Cut.DELAY, match=lambda command: b"slow" in b"".join(command))
        proxy.arm(Cut.MUTE, match=lambda command: b"lost" in b"".join(command))
        slow = thread.submit(calls.enqueue, "q", b"slow")
        wait_until(lambda: len(proxy.scripts) > before, "the slow call")
        calls.client.settings.timeout_s = 0.1
        with pytest.raises(OutcomeUnknown) as raised:
            calls.enqueue("q", b"lost")
        proxy.release()
        assert slow.result()
        calls.client.settings.timeout_s = TIMEOUT_S
        assert calls.resolve(raised.value)
        assert [b"slow" in b"".join(one.command) for one in proxy.scripts[before:]].count(True) == 1


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


def test_a_connection_that_ends_after_such_an_error_leaves_the_node(make: Make, server: Server) -> None:
    """The other connections lead to the same node."""
    calls = make(server.url)
    node = calls.client.session.servers[0]
    refuse: list[Command] = [("EVAL", "return redis.error_reply('READONLY says the test')", 0)]
    kill: list[Command] = [("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no"), ("PING",)]
    for commands, leaves in ((kill, False), (refuse + kill, True)):

        def flow(_: float, commands: list[Command] = commands) -> Flow[list[Any]]:
            return (yield [Send(node, commands)])[0]  # type: ignore[no-any-return]

        moves = node.moves
        answers = calls.run(flow)
        assert isinstance(answers[-1], NoAnswer)
        assert (node.moves > moves) == leaves
