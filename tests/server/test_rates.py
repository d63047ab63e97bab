"""A queue's rate over three servers and five workers, counted by the times of the claims at Redis.

Promises: at no moment were more jobs given than the rate allows, plus the burst. In the end all were.
Risks: the share of the rate that is given, which a campaign measures, needs a machine that does little else.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from typing import NamedTuple

import pytest

from pinlater import Client, QueueConfig
from pinlater.model.jobs import State
from pinlater.server.interface import structs
from tests.support.servers import Server, wait_until
from tests.support.thrift_clients import RawPeer
from tests.support.thrift_frames import Answer, call, dequeue, read_answer
from tests.support.thrift_server import ThriftServer

pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)  # what is shown is not the store's

BURST = 50
#: Jobs that are waited for at each rate: more than the burst.
SOME = 100
#: A campaign lets each rate hold for so long. It expects this share of what the rate allows.
STEP_S, SHARE = 30.0, 0.97
LIMITED = structs.ErrorCode.DEQUEUE_RATE_LIMITED
#: The server of each of five workers.
EVEN, UNEVEN = (0, 1, 2, 0, 1), (0, 0, 0, 0, 2)

each_spread = pytest.mark.parametrize(
    ("workers_at", "rates"),
    [(EVEN, (100, 100)), (UNEVEN, (100, 50, 0, 200))],
    ids=["even", "uneven, changed, paused and resumed"],
)


class Workers:
    """Five workers that dequeue without an end."""

    def __init__(self, ports: Sequence[int], servers: Sequence[int]) -> None:
        self.got: list[str] = []
        self.codes: Counter[int | None] = Counter()
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(ports[number],)) for number in servers]

    def __enter__(self) -> Workers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _run(self, port: int) -> None:
        with closing(RawPeer(port)) as peer:
            while not self._stopped.is_set():
                answer = ask(peer, dequeue("q", 5))
                self.codes[answer.code] += 1
                jobs = answer.value.jobs or {} if answer.code is None else {}
                self.got += jobs
                if not jobs:
                    self._stopped.wait(0.005)


def ask(peer: RawPeer, frame: bytes) -> Answer:
    peer.send(frame)
    return read_answer(peer.frame())


def shards_of(server: Server) -> dict[str, str]:
    return dict.fromkeys("123", server.url)


@contextmanager
def three_servers(server: Server) -> Iterator[list[ThriftServer]]:
    """Three servers on three shards, all on one Redis: its clock is that of all claims."""
    shards = shards_of(server)
    with ExitStack() as stack:
        yield [stack.enter_context(ThriftServer(shards)) for _ in range(3)]


@contextmanager
def one_server(server: Server) -> Iterator[tuple[RawPeer, Client]]:
    with (
        ThriftServer({"1": server.url}) as thrift,
        closing(RawPeer(thrift.port)) as peer,
        Client(server.url) as client,
    ):
        yield peer, client


#: Jobs a second, from between two times of Redis (ms).
Change = tuple[int, int, float]


def set_rate(client: Client, server: Server, rate: float) -> Change:
    before_ms = server.time_ms()
    client.configure_queue("q", rate=f"{rate}/s")
    return before_ms, server.time_ms(), rate


def most_at(time_ms: int, changes: Sequence[Change]) -> float:
    """Jobs that the rates allow until a time, without the burst."""
    return _sum(time_ms, [(first if rate else last, rate) for first, last, rate in changes])


def least_at(time_ms: int, changes: Sequence[Change]) -> float:
    return _sum(time_ms, [(last if rate else first, rate) for first, last, rate in changes])


def _sum(time_ms: int, steps: Sequence[tuple[int, float]]) -> float:
    ends = [*(since for since, _ in steps[1:]), time_ms]
    spans = [max(0, min(time_ms, end) - since) * rate for (since, rate), end in zip(steps, ends, strict=True)]
    return sum(spans) / 1000


class Given(NamedTuple):
    """When jobs were given (ms of Redis, in order), and what the rates were. end_ms: the last rate held until then."""

    times_ms: list[int]
    changes: list[Change]
    end_ms: int

    def check_most(self) -> None:
        """No more was given than the rates allow, and nothing in a pause."""
        given = [at_ms for at_ms in self.times_ms if at_ms <= self.end_ms]
        over = [number - most_at(at_ms, self.changes) - BURST for number, at_ms in enumerate(given, 1)]
        assert max(over) <= 1, "a token may be half a millisecond early"
        for (_, paused_ms, rate), (resumed_ms, _, _) in pairwise(self.changes):
            if rate == 0:
                assert [at_ms for at_ms in given if paused_ms < at_ms < resumed_ms] == []


#: Waits while a rate holds.
Hold = Callable[[float, Workers], None]


def give(
    server: Server, workers_at: Sequence[int], rates: Sequence[float], jobs: int, hold: Hold, *, rest: bool
) -> Given:
    """Lets workers dequeue jobs under each rate in turn. rest: then without a rate, until all jobs were given."""
    with three_servers(server) as servers, Client(shards=shards_of(server)) as client:
        client.create_queue("q", QueueConfig(rate=0, burst=BURST))
        for _ in range(jobs // 100):
            client.enqueue_many("q", [b"x"] * 100)
        with Workers([each.port for each in servers], workers_at) as workers:
            wait_until(lambda: workers.codes[LIMITED] > 20, "workers that ask in vain")
            assert workers.got == []
            changes = []
            for rate in rates:
                changes.append(set_rate(client, server, rate))
                hold(rate, workers)
            end_ms = server.time_ms()
            if rest:
                client.configure_queue("q", rate=None)
                wait_until(lambda: len(workers.got) >= jobs, "all jobs")
        running = [*client.scan("q", State.IN_PROGRESS)]
    assert sorted(info.descriptor for info in running) == sorted(workers.got)  # each was given once
    assert set(workers.codes) <= {None, LIMITED}
    return Given(sorted(info.updated_ms for info in running), changes, end_ms)


def until_some_were_given(rate: float, workers: Workers) -> None:
    """Waits for jobs, or for workers that ask in vain if the rate gives none."""
    before, asked = len(workers.got), workers.codes[LIMITED]
    if rate:
        wait_until(lambda: len(workers.got) >= before + SOME, f"jobs at a rate of {rate}/s")
    else:
        wait_until(lambda: workers.codes[LIMITED] > asked + SOME, "workers that ask in vain")


@each_spread
def test_no_more_is_given_than_the_rate_allows_and_in_the_end_all(
    server: Server, workers_at: Sequence[int], rates: Sequence[float]
) -> None:
    jobs = 2_000  # some are left even if this machine stands still for seconds
    given = give(server, workers_at, rates, jobs, until_some_were_given, rest=True)
    assert len(given.times_ms) == jobs
    given.check_most()


@pytest.mark.campaign("rates")
@pytest.mark.timeout(600)
@each_spread
def test_hardly_less_is_given_than_the_rate_allows(
    server: Server, workers_at: Sequence[int], rates: Sequence[float]
) -> None:
    given = give(server, workers_at, rates, 30_000, lambda *_: time.sleep(STEP_S), rest=False)
    given.check_most()
    assert sum(at_ms <= given.end_ms for at_ms in given.times_ms) >= least_at(given.end_ms, given.changes) * SHARE


def test_a_queue_with_a_rate_of_0_is_paused(server: Server) -> None:
    """Row: over the rate. 0/s always 429."""
    with one_server(server) as (peer, client):
        client.create_queue("q", QueueConfig(rate=0))
        client.enqueue_many("q", [b"x"] * 10)
        assert ask(peer, dequeue("q", 5)).code == LIMITED
        client.configure_queue("q", rate=None)
        wait_until(lambda: _given(peer, 5) == 5, "jobs of the open queue")


def test_a_resting_server_sends_nothing_to_redis(server: Server) -> None:
    with one_server(server) as (peer, client):
        client.create_queue("q", QueueConfig(rate="1/h"))
        client.enqueue_many("q", [b"x"] * 10)
        for _ in range(5):  # it learns of the limit
            assert ask(peer, dequeue("q", 5)).code == LIMITED
        server.call("CONFIG", "RESETSTAT")
        answers = [ask(peer, dequeue("q", 5)) for _ in range(300)]
        sent = {name for name in server.info("commandstats") if name.startswith(("cmdstat_eval", "cmdstat_fcall"))}
    assert {answer.code for answer in answers} == {LIMITED}
    assert sent == set()


def test_what_is_there_is_given_though_more_is_asked_for(server: Server) -> None:
    """Row: over the rate. Only given jobs are charged, dry runs are free."""
    with one_server(server) as (peer, client):
        client.create_queue("q", QueueConfig(rate="1000/h", burst=7))
        client.enqueue_many("q", [b"x"] * 20)
        wait_until(lambda: _given(peer, 1) == 1, "the first token")
        client.configure_queue("q", rate="1/h")
        dry = structs.PinLaterDequeueRequest(queueName="q", limit=10, dryRun=True)
        assert len(ask(peer, call("dequeueJobs", request=dry)).value.jobs) == 10
        assert client.count("q").in_progress == 1


def _given(peer: RawPeer, limit: int) -> int:
    answer = ask(peer, dequeue("q", limit))
    return 0 if answer.code == LIMITED else len(answer.value.jobs or {})
