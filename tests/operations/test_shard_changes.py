"""Shards that are dequeue-only, and shards that come and go while a client runs.

Promises: written once for Client and AsyncClient. Under load each job is enqueued once and ended once: producers and
consumers keep every descriptor, and the shards are asked at the end.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from pinlater import Client, CountsByState, NewJob, QueueConfig, State
from pinlater.model.errors import DequeueOnly, EnqueueRefused, InvalidArgument, OutcomeUnknown, ServerUnavailable
from pinlater.model.jobs import Checkpoint
from tests.conftest import FreshServer
from tests.operations.test_behaviour_shards import forget_hints, key_of, shard_of, stored
from tests.support.audits import audit_queue
from tests.support.both_clients import Calls, kind, make
from tests.support.servers import Server, wait_until

__all__ = ["kind", "make"]  # fixtures

NAMES = ["a", "b", "c"]
JOBS_A_STEP = 60  # so that each change comes while calls are under way


def shards_on(url: str, names: Iterable[str], dequeue_only: str = "") -> dict[str, Any]:
    """Shards on one server."""
    return {name: {"url": url, "dequeue_only": name in dequeue_only} for name in names}


@pytest.fixture
def calls(server: Server, make: Callable[..., Calls]) -> Calls:
    """Three shards on one server."""
    made = make(shards=shards_on(server.url, NAMES))
    made.create_queue("q", QueueConfig(keep_succeeded=10**6))
    return made


def put(calls: Calls, shard: str, body: bytes = b"", **options: Any) -> str:
    """The descriptor of a new job, whose key names the shard among all three."""
    descriptor: str = calls.enqueue("q", body, key=key_of(shard, NAMES), **options)
    return descriptor


# dequeue-only


def test_no_new_job_goes_to_a_dequeue_only_shard(calls: Calls, server: Server) -> None:
    calls.change_shards(shards_on(server.url, NAMES, "b"))
    one_by_one = [calls.enqueue("q", b"") for _ in range(40)]
    together = calls.enqueue_many("q", [NewJob(b"", key=str(i) if i % 2 else None) for i in range(1500)])
    keyed = [put(calls, "b") for _ in range(5)]
    assert set(map(shard_of, one_by_one)) == set(map(shard_of, together)) == {"a", "c"}
    assert len(set(map(shard_of, keyed))) == 1
    assert set(map(shard_of, keyed)) < {"a", "c"}


def test_the_jobs_of_a_dequeue_only_shard_go_on(calls: Calls, server: Server) -> None:
    kept = [put(calls, "b", b"%d" % i, attempts=1) for i in range(6)]
    assert set(map(shard_of, kept)) == {"b"}
    calls.change_shards(shards_on(server.url, NAMES, "b"))
    assert calls.count("q") == CountsByState(pending=6)
    assert len(calls.lookup(kept)) == len(list(calls.scan("q"))) == 6

    jobs = calls.dequeue("q", 4)
    assert calls.checkpoint(Checkpoint(job=jobs[0], body=b"new")) == []
    assert calls.release([jobs[3]]) == []
    assert calls.ack(succeeded=[jobs[0]], failed=jobs[1:3]) == []
    assert calls.retry_failed("q", limit=1) == 1
    failed = calls.scan("q", State.FAILED)
    assert calls.retry_jobs([info.descriptor for info in failed]) == 1
    again = calls.scan("q")
    assert {shard_of(info.descriptor) for info in again} == {"b"}  # retried jobs stay on their shard
    assert len(again) == 5
    assert calls.delete_jobs("q", State.PENDING, limit=1) == 1
    forget_hints(calls)
    rest = calls.dequeue("q", 9)
    assert calls.ack(succeeded=rest) == []
    assert calls.count("q") == CountsByState(succeeded=5)


@pytest.mark.parametrize("shards", [1, 3])
def test_an_enqueue_without_a_shard_that_takes_jobs_says_so(
    server: Server, make: Callable[..., Calls], shards: int
) -> None:
    names = NAMES[:shards]
    calls = make(shards=shards_on(server.url, names, "abc"))
    calls.create_queue("q")
    jobs: list[bytes | NewJob] = [b"", NewJob(b"", key="k")]
    enqueues: list[Callable[[], object]] = [
        lambda: calls.enqueue("q", b""),
        lambda: calls.enqueue("q", b"", key="k"),
        lambda: calls.enqueue_many("q", jobs),
    ]
    for enqueue in enqueues:
        with pytest.raises(DequeueOnly, match=rf"a shard that takes new jobs, each one \({', '.join(names)}\)"):
            enqueue()
    assert issubclass(DequeueOnly, EnqueueRefused)
    assert calls.count("q") == CountsByState()
    calls.change_shards(shards_on(server.url, names))
    assert len(calls.enqueue_many("q", jobs)) == 2


# limits


def test_a_queue_with_max_running_says_how_to_move_it_from_a_dequeue_only_home(calls: Calls, server: Server) -> None:
    calls.configure_queue("q", max_running=2, home="b")
    first = calls.enqueue("q", b"")
    calls.change_shards(shards_on(server.url, NAMES, "b"))
    enqueues: list[Callable[[], object]] = [
        lambda: calls.enqueue("q", b""),
        lambda: calls.enqueue_many("q", [b"", b""]),
    ]
    for enqueue in enqueues:
        with pytest.raises(DequeueOnly, match="once the queue is empty: pinlater queue set q --home a"):
            enqueue()
    jobs = calls.dequeue("q", 9)
    assert [job.descriptor for job in jobs] == [first]  # claims go on
    with pytest.raises(InvalidArgument, match="expected all jobs on the home shard a, got 1 on shard b"):
        calls.configure_queue("q", home="a")
    assert calls.ack(succeeded=jobs) == []
    assert calls.configure_queue("q", home="a").home == "a"
    assert shard_of(calls.enqueue("q", b"")) == "a"


def test_a_client_that_learns_late_of_max_running_does_not_put_jobs_on_a_dequeue_only_home(
    calls: Calls, server: Server
) -> None:
    calls.change_shards(shards_on(server.url, NAMES, "b"))
    calls.enqueue("q", b"")
    calls.purge("q")
    with Client(shards=shards_on(server.url, NAMES)) as other:
        other.configure_queue("q", max_running=2, home="b")
    with pytest.raises(DequeueOnly, match="its jobs live on shard 'b'"):
        calls.enqueue("q", b"")


def test_a_queue_with_a_rate_counts_on_at_a_dequeue_only_home(calls: Calls, server: Server) -> None:
    calls.configure_queue("q", rate="1000/s", home="b")
    calls.change_shards(shards_on(server.url, NAMES, "b"))
    descriptors = {calls.enqueue("q", b"") for _ in range(5)}
    found: set[str] = set()
    while len(found) < 5:
        found |= {job.descriptor for job in calls.dequeue("q", 5, wait=1)}
    assert found == descriptors


def test_limits_choose_a_home_that_takes_jobs(calls: Calls, server: Server) -> None:
    with_all = calls.configure_queue("q", max_running=5).home
    calls.configure_queue("q", max_running=None, home="")
    calls.change_shards(shards_on(server.url, NAMES, with_all))
    assert calls.configure_queue("q", max_running=5).home not in ("", with_all)
    assert calls.enqueue("q", b"")


# changes


def test_the_first_use_brings_a_queue_to_an_added_shard(
    calls: Calls, server: Server, fresh_server: FreshServer
) -> None:
    calls.configure_queue("q", lease_ms=700)
    added = fresh_server()
    calls.change_shards({**shards_on(server.url, NAMES), "new": added.url})
    assert stored(added, "new") is None
    descriptor = calls.enqueue("q", b"", key=key_of("new", [*NAMES, "new"]))
    assert shard_of(descriptor) == "new"
    assert stored(added, "new") == stored(server, "a")
    assert [job.descriptor for job in calls.dequeue("q")] == [descriptor]
    assert calls.count("q") == CountsByState(in_progress=1)
    calls.configure_queue("q", lease_ms=800)
    assert stored(added, "new") == stored(server, "a")


def test_a_removed_shard_is_warned_of_and_comes_back_with_its_jobs(
    calls: Calls, server: Server, fresh_server: FreshServer, caplog: pytest.LogCaptureFixture
) -> None:
    other = fresh_server()
    every = {**shards_on(server.url, NAMES), "x": other.url}
    calls.change_shards(every)
    key = key_of("x", [*every])
    descriptors = calls.enqueue_many("q", [NewJob(b"%d" % i, key=key) for i in range(5)])
    [running] = calls.dequeue("q", 1)
    caplog.clear()
    calls.change_shards(shards_on(server.url, NAMES))
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        f"shard x ({other.url}) was removed with 5 unfinished and 0 failed jobs: nobody claims them until it is back"
    ]
    assert calls.count("q") == CountsByState()
    assert calls.dequeue("q", 9) == []
    assert calls.queue_names() == ["q"]
    assert calls.ack(succeeded=[running]) == []  # a running job ends where it came from
    wait_until(lambda: clients_of(other) == 0, "no connection to a server that no shard uses")

    calls.change_shards(every)
    assert calls.count("q") == CountsByState(pending=4, succeeded=1)
    assert sorted(job.descriptor for job in calls.dequeue("q", 9)) == sorted({*descriptors} - {running.descriptor})


def clients_of(server: Server) -> int:
    """Connections of PinLater clients."""
    with server.client() as client:
        return sum(each["name"] == "pinlater" for each in client.client_list())


def test_the_removal_of_a_home_and_of_a_silent_shard_are_warned_of(
    calls: Calls, server: Server, fresh_server: FreshServer, caplog: pytest.LogCaptureFixture
) -> None:
    calls.configure_queue("q", rate="5/s", home="c")
    calls.change_shards(shards_on(server.url, ["a", "b"]))
    [line] = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert line.startswith("queue q: shard c, which counts for its limits, was removed")
    with pytest.raises(InvalidArgument, match="its limits count on shard 'c': expected that shard among a, b"):
        calls.dequeue("q")
    assert calls.configure_queue("q", home="a").home == "a"
    assert calls.dequeue("q") == []

    other = fresh_server()
    calls.change_shards({**shards_on(server.url, ["a"]), "x": other.url})
    other.stop()
    caplog.clear()
    calls.change_shards(shards_on(server.url, ["a"]))
    [line] = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert line.startswith(f"shard x ({other.url}) was removed; its jobs can not be counted: ")


def test_a_home_that_somebody_else_moves_is_found_by_clients_that_only_claim(calls: Calls, server: Server) -> None:
    calls.configure_queue("q", rate="1000/s", home="c")
    left = shards_on(server.url, ["a", "b"])
    calls.change_shards(left)
    calls.enqueue("q", b"x")
    with pytest.raises(InvalidArgument, match="its limits count on shard 'c'"):
        calls.dequeue("q")
    with Client(shards=left) as operator:
        operator.configure_queue("q", home="a")
    assert [job.body for job in calls.dequeue("q")] == [b"x"]


def test_a_refused_change_changes_nothing(calls: Calls) -> None:
    for shards in ({}, {"a": "redis://x:y"}, {"a": {"url": "redis://x:1", "dequeueonly": True}}, "redis://x:1"):
        with pytest.raises(InvalidArgument):
            calls.change_shards(shards)
    assert [*calls.client.session.shards] == NAMES
    assert calls.enqueue("q", b"")


def used_before(url: str, name: str, epoch: int) -> None:
    """Leaves the queue q on a shard, in this epoch or deleted before it."""
    with Client(shards={name: url}) as client:
        for _ in range(epoch // 2):
            client.create_queue("q")
            client.delete_queue("q")
        if epoch % 2:
            client.create_queue("q")


@pytest.mark.parametrize(("epoch", "name"), [(3, "x"), (2, "x"), (3, "b")])
def test_a_shard_with_a_later_epoch_is_refused(
    calls: Calls, server: Server, fresh_server: FreshServer, epoch: int, name: str
) -> None:
    added = fresh_server()
    used_before(added.url, name, epoch)
    descriptors = {put(calls, each) for each in "ac" for _ in range(3)}
    with pytest.raises(InvalidArgument) as raised:
        calls.change_shards({**shards_on(server.url, NAMES), name: added.url})
    assert str(raised.value) == (
        f"shards: queue 'q' on shard {name} ({added.url}) has epoch {epoch}, shard a ({server.url}) has epoch 1: the "
        "jobs of the earlier epoch would be removed; nothing has changed. Shard "
        f"{name} has data of an earlier use: give it a name that its server has not had, or a server without keys "
        f"pl:{{{name}}}:* and pl:{{…/{name}}}:*"
    )
    assert {each.name: each.server.url for each in calls.client.session.shards.values()} == dict.fromkeys(
        NAMES, server.url
    )
    wait_until(lambda: clients_of(added) == 0, "no connection to a server that no shard uses")
    calls.change_shards({**shards_on(server.url, NAMES), "new": added.url})  # as the message says
    assert {job.descriptor for job in calls.dequeue("q", 9)} == descriptors


def test_a_shard_with_an_earlier_epoch_or_another_queue_is_added(
    calls: Calls, server: Server, fresh_server: FreshServer
) -> None:
    calls.delete_queue("q")
    calls.create_queue("q")
    added = fresh_server()
    used_before(added.url, "x", 1)
    with Client(shards={"x": added.url}) as client:
        client.create_queue("other")
        client.delete_queue("other")
        client.create_queue("other")
        client.enqueue("other", b"its own")
    kept = put(calls, "b")
    calls.change_shards({**shards_on(server.url, NAMES), "x": added.url})
    assert [job.descriptor for job in calls.dequeue("q", 9)] == [kept]
    assert [job.body for job in calls.dequeue("other", 9)] == [b"its own"]


def test_a_shard_that_can_not_be_checked_is_refused(
    calls: Calls, server: Server, fresh_server: FreshServer, make: Callable[..., Calls]
) -> None:
    away = fresh_server()
    away.stop()
    with pytest.raises(
        ServerUnavailable, match=r"^shards: queue 'q' on shard x \(.*\) can not be checked: .*; nothing"
    ):
        calls.change_shards({**shards_on(server.url, NAMES), "x": away.url})
    assert [*calls.client.session.shards] == NAMES
    away.start()
    calls.change_shards({**shards_on(server.url, NAMES), "x": away.url})
    away.stop()  # a shard that stays may be away, if another one answers
    calls.change_shards({**shards_on(server.url, [*NAMES, "d"]), "x": away.url})
    alone = make(shards={"x": away.url})
    with pytest.raises(
        ServerUnavailable, match=r"^shards: the shards that stay do not answer, so those that are added"
    ):
        alone.change_shards({"x": away.url, "a": server.url})
    alone.change_shards({"a": server.url})
    assert alone.count("q") == CountsByState()


# under load


class Load:
    """A producer and two consumers on one client, and what they did.

    keyed: each third job has a key, so it goes to one shard alone.
    put: descriptors that enqueues returned. ended: how often each job was acked. refused: acks that were.
    """

    def __init__(self, calls: Calls, *, keyed: bool) -> None:
        self.calls = calls
        self._keyed = keyed
        self._unknown: list[OutcomeUnknown] = []
        self._held: list[tuple[list[Any], Callable[[], list[Any]]]] = []
        self.put: list[str] = []
        self.ended: Counter[str] = Counter()
        self.refused: list[Any] = []
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(3)
        self._running = [self._threads.submit(self._produce), *(self._threads.submit(self._consume) for _ in range(2))]

    def _produce(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            key = str(number) if self._keyed and number % 3 == 0 else None
            try:
                self.put.append(self.calls.enqueue("q", b"%d" % number, key=key))
            except OutcomeUnknown as error:
                self._unknown.append(error)

    def _consume(self) -> None:
        while not (self._stop.is_set() and self._running[0].done()):
            self.take_all(0.1)

    def take_all(self, wait: float) -> int:
        """Claims and ends some jobs. Returns how many."""
        jobs = self.calls.dequeue("q", 10, wait=wait)
        for shard in {job.shard for job in jobs}:
            self._ack([job for job in jobs if job.shard == shard])
        return len(jobs)

    def _ack(self, jobs: list[Any]) -> None:
        """Ends jobs of one shard. While its server is away they are held."""
        try:
            self.refused += self.calls.ack(succeeded=jobs)
        except ServerUnavailable:
            self._held.append((jobs, partial(self.calls.ack, succeeded=jobs)))
        except OutcomeUnknown as error:
            self._held.append((jobs, partial(self.calls.resolve, error)))
        else:
            self.ended.update(job.descriptor for job in jobs)

    def go_on(self, of: str = "") -> None:
        """Returns when more jobs came in and were ended. of: new ones of this shard."""
        put, ended = len(self.put), self.ended.total()
        wait_until(lambda: self._fails() or len(self.put) >= put + JOBS_A_STEP, "new jobs")
        wait_until(lambda: self._fails() or self.ended.total() >= ended + JOBS_A_STEP, "ended jobs")
        if of:
            wait_until(
                lambda: self._fails() or any(shard_of(each) == of for each in self.put[put:]), f"new jobs on shard {of}"
            )

    def _fails(self) -> bool:
        return any(each.done() for each in self._running)

    def end(self) -> None:
        """Stops, and takes what is left."""
        self._stop.set()
        for each in self._running:
            each.result()
        self._threads.shutdown()
        self.put += [self.calls.resolve(error) for error in self._unknown]
        for jobs, ack in self._held:
            self.refused += ack()
            self.ended.update(job.descriptor for job in jobs)
        while self.take_all(0.1) or self.calls.count("q").pending:
            pass

    def check(self) -> None:
        """Each job came in once and was ended once."""
        assert self.refused == []
        assert len(set(self.put)) == len(self.put)
        assert set(self.ended.values()) == {1}
        assert sorted(self.ended) == sorted(self.put)


def test_shards_are_added_drained_and_removed_under_load(
    server: Server, fresh_server: FreshServer, make: Callable[..., Calls]
) -> None:
    other = fresh_server(aof_always=True)
    calls = make(shards={"a": server.url, "b": server.url})
    calls.create_queue("q", QueueConfig(keep_succeeded=10**6))
    load = Load(calls, keyed=True)
    try:
        load.go_on(of="b")
        calls.change_shards({"a": server.url, "b": server.url, "c": other.url})
        load.go_on(of="c")
        calls.change_shards({"a": server.url, **shards_on(server.url, "b", "b"), "c": other.url})
        since = len(load.put) + 1  # one enqueue may be under way
        with Client(shards={"b": server.url}) as alone:
            wait_until(lambda: unfinished(alone.count("q")) == 0, "a drained shard")
            load.go_on(of="c")
            assert not any(shard_of(each) == "b" for each in load.put[since:])
            calls.change_shards({"a": server.url, "c": other.url})
            load.go_on(of="a")
            assert unfinished(alone.count("q")) == 0
        calls.change_shards({"a": server.url, "b": server.url, "c": other.url})
        load.go_on(of="b")
    finally:
        load.end()
    load.check()
    with Client(shards={"a": server.url, "b": server.url, "c": other.url}) as client:
        assert client.count("q") == CountsByState(succeeded=len(load.put))
        assert not audit_queue(client, "q").findings


def unfinished(counts: CountsByState) -> int:
    return counts.pending + counts.scheduled + counts.in_progress


def test_a_killed_shard_under_load_comes_back_with_its_jobs(
    server: Server, fresh_server: FreshServer, make: Callable[..., Calls]
) -> None:
    away = fresh_server(aof_always=True)
    shards = {"a": server.url, "b": away.url}
    calls = make(shards=shards, timeout_s=2)
    calls.create_queue("q", QueueConfig(keep_succeeded=10**6))
    later = [calls.enqueue("q", b"", key=key_of("b", ["a", "b"]), delay_ms=3_600_000) for _ in range(3)]
    load = Load(calls, keyed=False)
    try:
        load.go_on(of="b")
        away.kill()
        load.go_on(of="a")
        load.go_on(of="a")
        with pytest.raises(ServerUnavailable, match="queue 'q' on shard b"):
            calls.count("q")
        with Client(shards=shards) as other, pytest.raises(ServerUnavailable, match="queue 'q' on shard b"):
            other.count("q")
        away.start()
        load.go_on(of="b")
    finally:
        if not away.is_running:
            away.start()
        load.end()
    load.check()
    assert [info.state for info in calls.lookup(later).values()] == [State.PENDING] * 3
    assert calls.count("q") == CountsByState(scheduled=3, succeeded=len(load.put))
