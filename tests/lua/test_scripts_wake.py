"""Which waiter is notified, when, and which one holds the timer of the next scheduled job.

Promises: a real connection that listens on the worker's channel counts the notifications.
Risks: the test of the timer needs libfaketime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from pinlater.store.keys import LIST_MARK
from tests.support.listener import Listener
from tests.support.memory import EVERY_KIND, AnyKind
from tests.support.servers import Server
from tests.support.wire import Wire, connect, jump
from tests.support.wire_format import DELAY, FAR_MS, PENDING, Job, ends, settings

EACH_KIND = pytest.mark.parametrize("kind", EVERY_KIND)
FreshServer = Callable[..., Server]


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with connect(server) as client:
        made = Wire(client)
        made.create()
        yield made


@pytest.fixture
def listen(wire: Wire) -> Iterator[Callable[[bytes], Listener]]:
    made: list[Listener] = []

    def make(waiter: bytes) -> Listener:
        made.append(Listener(wire.client, channel_of(wire, waiter)))
        return made[-1]

    yield make
    for listener in made:
        listener.pubsub.close()


def channel_of(wire: Wire, waiter: bytes) -> bytes:
    return wire.key(f"wake:{waiter.decode()}")


@dataclass
class ListListener(Listener):
    """The list that a worker's blocking claim waits at; the worker listens on its channel too."""

    list: bytes = b""

    def notifications(self) -> int:
        assert super().notifications() == 0, "a message, although the worker waits at a list"
        elements = int(self.client.llen(self.list))
        assert elements == 0 or 0 < self.client.pttl(self.list) <= 60_000
        self.client.delete(self.list)
        return elements


def waiting(wire: Wire, channel: bytes = b"me") -> None:
    assert wire.claim(1, channel=channel).jobs == []


def after_a_failure(wire: Wire) -> None:
    wire.enqueue(Job(allowed=1))
    wire.fail(wire.claim())


# What happens before the worker waits, and what must notify it. held: the jobs that another worker claimed.
CAUSES: dict[str, tuple[Callable[[Wire], Any], Callable[[Wire, Any], Any]]] = {
    "enqueue": (lambda w: None, lambda w, _: w.enqueue_bodies(b"x")),
    "a first timer": (lambda w: None, lambda w, _: w.enqueue(Job(b"x", 1, DELAY, 60_000))),
    "load": (lambda w: w.prepare(1), lambda w, reservation: w.load(reservation, Job())),
    "retry_failed": (after_a_failure, lambda w, _: w.retry_failed()),
    "release": (lambda w: w.enqueue_bodies(b"x") and w.claim(), lambda w, held: w.release(*ends(held))),
    "fail": (lambda w: w.enqueue_bodies(b"x") and w.claim(), lambda w, held: w.fail(held)),
    "move": (
        lambda w: w.enqueue_bodies(b"x") and w.claim(),
        lambda w, held: w.checkpoint(ends(held)[0], move=(0, 0)),
    ),
    "un-pause": (lambda w: w.configure(settings(flags=1)), lambda w, _: w.configure(settings())),
    "pass_on": (lambda w: None, lambda w, _: w.write("pass_on", b"")),
}


@pytest.mark.parametrize("what", CAUSES)
def test_what_gives_work_notifies_one_waiter(wire: Wire, listen: Callable[[bytes], Listener], what: str) -> None:
    prepare, act = CAUSES[what]
    held = prepare(wire)
    one, two = listen(b"one"), listen(b"two")
    waiting(wire, b"one")
    waiting(wire, b"two")
    assert (one.notifications(), two.notifications()) == (0, 0)
    act(wire, held)
    assert one.notifications() + two.notifications() == 1
    assert wire.client.zcard(wire.key("waiters")) == 1


@pytest.mark.parametrize("what", [*CAUSES, "delete_queue"])
def test_what_gives_work_notifies_a_live_worker_at_its_list(wire: Wire, what: str) -> None:
    prepare, act = CAUSES.get(what, (lambda w: None, lambda w, _: w.write("delete_queue", b"")))
    held = prepare(wire)
    alive, dead = b"alive" + LIST_MARK, b"dead" + LIST_MARK
    listener = ListListener(wire.client, channel_of(wire, b"alive"), list=channel_of(wire, alive))
    waiting(wire, alive)
    waiting(wire, dead)
    assert listener.notifications() == 0
    act(wire, held)
    assert listener.notifications() == 1
    assert wire.client.exists(channel_of(wire, dead)) == 0
    assert wire.client.zcard(wire.key("waiters")) == 0
    listener.pubsub.close()


def test_a_worker_that_did_not_claim_for_long_is_given_nothing(wire: Wire) -> None:
    quiet, other = b"quiet" + LIST_MARK, b"other" + LIST_MARK
    listeners = [
        ListListener(wire.client, channel_of(wire, name.removesuffix(LIST_MARK)), list=channel_of(wire, name))
        for name in (quiet, other)
    ]
    waiting(wire, other)
    waiting(wire, quiet)
    scores: Any = dict(wire.client.zscan_iter(wire.key("waiters")))
    wire.client.zadd(wire.key("waiters"), {quiet: scores[quiet] - 17_000, other: scores[other] - 15_000})
    wire.enqueue_bodies(b"x")
    wire.client.zadd(wire.key("waiters"), {quiet: scores[quiet] - 17_000})
    wire.enqueue_bodies(b"x")
    assert [listener.notifications() for listener in listeners] == [0, 1]
    for listener in listeners:
        listener.pubsub.close()


def test_what_gives_no_work_notifies_nobody(wire: Wire, listen: Callable[[bytes], Listener]) -> None:
    wire.enqueue(Job(b"a", 1, DELAY, 60_000), Job(b"held"))
    held = wire.claim()
    listener = listen(b"me")
    waiting(wire)
    wire.enqueue(Job(b"b", 1, DELAY, 90_000))
    wire.retry_failed()
    assert wire.succeed(held) == []
    wire.delete_jobs(PENDING, limit=1)
    wire.configure(settings(flags=1))
    wire.enqueue_bodies(b"while paused")
    assert listener.notifications() == 0
    waiting(wire)
    wire.configure(settings())
    assert listener.notifications() == 1


def test_a_paused_queue_gives_nothing_and_says_so(wire: Wire) -> None:
    wire.configure(settings(flags=1))
    wire.enqueue_bodies(b"x")
    claimed = wire.claim(channel=b"me")
    assert (claimed.jobs, claimed.token, claimed.limited) == ([], b"", 1)
    assert wire.replayed_claim() == claimed
    assert (wire.dry_run().jobs, wire.dry_run().limited) == ([], 1)
    assert wire.client.zrange(wire.key("waiters"), 0, -1) == [b"me"]


@pytest.mark.parametrize("dead", [0, 3, 60, 999])
def test_dead_waiters_are_skipped(wire: Wire, listen: Callable[[bytes], Listener], dead: int) -> None:
    listener = listen(b"me")
    waiting(wire)
    wire.client.zadd(wire.key("waiters"), {b"me": 1} | {b"dead%d" % i: FAR_MS for i in range(dead)})
    wire.enqueue_bodies(b"x")
    assert listener.notifications() == 1


def test_a_claim_that_leaves_jobs_notifies_the_next_waiter(wire: Wire, listen: Callable[[bytes], Listener]) -> None:
    one = listen(b"one")
    waiting(wire, b"one")
    wire.configure(settings(flags=1))  # so that the enqueue notifies nobody
    wire.enqueue_bodies(b"a", b"b")
    config = wire.read("config")[0]
    wire.client.hset(wire.key("meta"), "config", config[:1] + b"\0" + config[2:])
    assert len(wire.claim(1, channel=b"two").jobs) == 1
    assert one.notifications() == 1
    assert len(wire.claim(1, channel=b"two").jobs) == 1
    assert one.notifications() == 0


@EACH_KIND
def test_one_waiter_holds_the_timer_and_another_takes_it_over(kind: AnyKind, fresh_server: FreshServer) -> None:
    server = fresh_server(kind, fake_clock=True)
    with connect(server) as client:
        wire = Wire(client)
        wire.create()
        wire.enqueue(Job(b"x", 1, DELAY, 600_000))
        due_in = {name: wire.claim(channel=name).due_in_ms for name in (b"one", b"two", b"one")}
        assert 0 < due_in[b"one"] <= 600_000
        assert due_in[b"two"] == 0
        wire.enqueue(Job(b"y", 1, DELAY, 300_000))
        assert 0 < wire.claim(channel=b"two").due_in_ms <= 300_000
        assert wire.replayed_claim().due_in_ms > 0
        assert wire.claim(channel=b"one").due_in_ms == 0
        jump(server, 16)  # the holder was not heard of for longer than a safety claim takes
        assert wire.claim(channel=b"one").due_in_ms > 0
        assert wire.claim(channel=b"two").due_in_ms == 0


def test_every_waiter_is_notified_when_the_queue_is_deleted(wire: Wire, listen: Callable[[bytes], Listener]) -> None:
    wire.configure(settings(flags=1))  # of a paused queue too
    names = [b"%d" % i for i in range(6)]
    heard = [listen(name) for name in names]
    for name in names:
        waiting(wire, name)
    wire.write("delete_queue", b"")
    assert [listener.notifications() for listener in heard] == [1] * 6


def leave(wire: Wire, channel: bytes) -> None:
    wire.other().write("pass_on", channel)


def test_a_client_that_leaves_passes_on_the_timer_it_holds(wire: Wire, listen: Callable[[bytes], Listener]) -> None:
    one, two = listen(b"one"), listen(b"two")
    wire.enqueue(Job(b"x", 1, DELAY, 600_000))
    assert wire.claim(channel=b"one").due_in_ms > 0
    assert wire.claim(channel=b"two").due_in_ms == 0
    leave(wire, b"one")
    assert (one.notifications(), two.notifications()) == (0, 1)
    assert wire.client.zcard(wire.key("waiters")) == 0
    assert wire.claim(channel=b"two").due_in_ms > 0


def test_a_client_that_leaves_passes_on_only_its_own_notification(
    wire: Wire, listen: Callable[[bytes], Listener]
) -> None:
    one, two = listen(b"one"), listen(b"two")
    waiting(wire, b"one")
    waiting(wire, b"two")
    leave(wire, b"two")
    assert wire.client.zrange(wire.key("waiters"), 0, -1) == [b"one"]
    waiting(wire, b"two")
    wire.enqueue_bodies(b"x")
    assert (one.notifications(), two.notifications()) == (0, 1)
    leave(wire, b"two")  # it did not claim
    assert (one.notifications(), two.notifications()) == (1, 0)


def test_the_timer_of_removed_jobs_notifies_nobody(wire: Wire, listen: Callable[[bytes], Listener]) -> None:
    two = listen(b"two")
    wire.enqueue(Job(b"x", 1, DELAY, 600_000))
    for channel in (b"one", b"two"):
        wire.claim(channel=channel)
    wire.delete_jobs(PENDING, limit=1)
    wire.set_head(due_ms=1)
    wire.claim()  # finds out that none is scheduled
    leave(wire, b"one")
    assert two.notifications() == 0


@EACH_KIND
def test_the_monitor_notifies_of_a_scheduled_job_that_nobody_saw_become_due(
    kind: AnyKind, fresh_server: FreshServer
) -> None:
    server = fresh_server(kind, fake_clock=True)
    with connect(server) as client:
        wire = Wire(client)
        wire.create()
        wire.enqueue(Job(b"x", 1, DELAY, 5_000))
        assert wire.claim(channel=b"killed").due_in_ms > 0  # nobody listens on its channel
        assert wire.claim(channel=b"me").due_in_ms == 0
        listener = Listener(client, channel_of(wire, b"me"))
        wire.expire()
        assert listener.notifications() == 0
        jump(server, 6)
        wire.expire()
        assert listener.notifications() == 1
        assert wire.claim(channel=b"me").bodies == [b"x"]
        listener.pubsub.close()


def test_a_thousand_ids_without_records_do_not_hide_what_is_behind(
    wire: Wire, listen: Callable[[bytes], Listener]
) -> None:
    without_records = wire.enqueue(*[Job()] * 1000)
    wire.enqueue_bodies(b"behind")
    wire.client.hdel(wire.key("jobs"), *without_records)
    listener = listen(b"me")
    claimed = wire.claim(1000, channel=b"me")
    assert (claimed.jobs, claimed.left, listener.notifications()) == ([], [1, 0, 0], 1)
    assert wire.claim().bodies == [b"behind"]


@EACH_KIND
def test_clients_hear_how_long_a_queue_pauses_and_that_its_limits_changed(
    fresh_server: FreshServer, kind: AnyKind
) -> None:
    with connect(fresh_server(kind)) as client:
        wire = Wire(client)
        wire.create()
        pubsub = client.pubsub()
        pubsub.subscribe(wire.key("limits"))
        pubsub.get_message(timeout=30)
        for pause_ms in (60_000, 1_000, 0):  # the second one is shorter, the third one ends the pause
            wire.write("pause", pause_ms, b"me")
        wire.configure(settings())
        assert [pubsub.get_message(timeout=30)["data"] for _ in range(2)] == [b"60000", b""]
        pubsub.close()
