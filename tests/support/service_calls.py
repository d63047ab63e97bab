"""Short calls of the Thrift service for tests, and the service that they run on.

Promises: `Caller` adds nothing to an answer. What a peer raises comes through.
Import the fixtures `service`, `peer`, `wire`, `any_peer`, `calls` and `queue` by name, so that pytest finds them.
Import `pytest_generate_tests` with `peer` or `any_peer`: it sets the clients.

The service has three shards. A file that defines ON_ONE_SHARD runs its tests on one shard too: there the server takes
shorter ways. ON_ONE_SHARD names the clients of these runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count
from typing import Any, Final

import pytest

from pinlater import QueueConfig
from pinlater.server.passwords import hash_password
from tests.support.both_clients import CALLS_KINDS
from tests.support.direct_peers import DirectPeer
from tests.support.servers import Server, wait_until
from tests.support.thrift_clients import PEERS, Failed, Peer, Refused
from tests.support.thrift_server import ThriftServer

PASSWORD: Final = "right"  # noqa: S105
SOURCE: Final = "web:1"
SHARDS: Final = ("1", "2", "3")
ONE_SHARD: Final = SHARDS[:1]
#: The clients that a fixture is in turn.
CLIENTS: Final[Mapping[str, Sequence[str]]] = {"peer": [*PEERS], "any_peer": [*PEERS, *CALLS_KINDS]}
PENDING, IN_PROGRESS, SUCCEEDED, FAILED = range(4)
STATES: Final = (PENDING, IN_PROGRESS, SUCCEEDED, FAILED)
HOUR_MS: Final = 3_600_000

_numbers = count(1)


class Caller:
    """Calls of one peer, as one source. Jobs, acks and checkpoints are dicts of the fields that the interface has."""

    def __init__(self, peer: Peer, source: str = SOURCE) -> None:
        self.peer, self.source = peer, source

    def by(self, source: str) -> Caller:
        """The same peer as another source."""
        return Caller(self.peer, source)

    def call(self, method: str, **arguments: Any) -> Any:
        return self.peer.call(method, context={"source": self.source}, **arguments)

    def request(self, method: str, queue: str, **fields: Any) -> Any:
        return self.call(method, request={"queueName": queue, **fields})

    def create(self, queue: str) -> None:
        self.call("createQueue", name=queue)

    def queue_names(self) -> set[str]:
        return set(self.call("getQueueNames"))

    def enqueue(self, queue: str, *jobs: bytes | dict[str, Any], **fields: Any) -> list[str]:
        """Descriptors. A job that is bytes is a body with these fields."""
        made = [job if isinstance(job, dict) else {"body": job, **fields} for job in jobs]
        found: list[str] = self.request("enqueueJobs", queue, jobs=made)["jobDescriptors"]
        return found

    def dequeue(self, queue: str, limit: int = 100, **fields: Any) -> dict[str, bytes]:
        """Bodies by descriptor."""
        found: dict[str, bytes] = self.request("dequeueJobs", queue, limit=limit, **fields).get("jobs", {})
        return found

    def running(self, queue: str, body: bytes = b"", **fields: Any) -> str:
        """The descriptor of a new job that this source has claimed."""
        [job] = self.enqueue(queue, body, **fields)
        assert list(self.dequeue(queue)) == [job]
        return job

    def ack(self, queue: str, succeeded: Any = None, failed: Any = None) -> None:
        self.call("ackDequeuedJobs", request=ack_request(queue, succeeded, failed))

    def checkpoint(self, queue: str, job: str, **fields: Any) -> None:
        self.request("checkpointJobs", queue, requests=[{"jobDescriptor": job, **fields}])

    def lookup(self, *jobs: str, **fields: Any) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self.call("lookupJobs", request={"jobDescriptors": list(jobs), **fields})
        return found

    def info(self, job: str, **fields: Any) -> dict[str, Any]:
        return self.lookup(job, **fields)[job]

    def body(self, job: str) -> bytes:
        found: bytes = self.info(job, includeBody=True)["body"]
        return found

    def count(self, queue: str, state: int = PENDING, **fields: Any) -> int:
        found: int = self.request("getJobCount", queue, jobState=state, **fields)
        return found

    def counts(self, queue: str) -> tuple[int, ...]:
        """Of the four states, by their numbers."""
        return tuple(self.count(queue, state) for state in STATES)

    def scan(self, queue: str, state: int = PENDING, **fields: Any) -> tuple[list[str], str]:
        """The descriptors of a page, and the continuation."""
        answer = self.request("scanJobs", queue, jobState=state, **fields)
        return [info["jobDescriptor"] for info in answer["scannedJobs"]], answer["continuation"]

    def scan_all(self, queue: str, state: int = PENDING, **fields: Any) -> list[str]:
        """The descriptors of all pages."""
        found, continuation = self.scan(queue, state, **fields)
        while continuation != "-1":
            page, continuation = self.scan(queue, state, continuation=continuation, **fields)
            found += page
        return found

    def retry(self, queue: str, **fields: Any) -> int:
        found: int = self.request("retryFailedJobs", queue, **fields)
        return found

    def delete(self, queue: str, state: int = PENDING, **fields: Any) -> int:
        found: int = self.request("deleteJobs", queue, jobState=state, **fields)
        return found


def ack_request(queue: str, succeeded: Any = None, failed: Any = None) -> dict[str, Any]:
    """A PinLaterJobAckRequest. succeeded, failed: descriptors, or dicts of PinLaterJobAckInfo; None: unset."""
    lists = {"jobsSucceeded": succeeded, "jobsFailed": failed}
    return {"queueName": queue} | {
        name: [each if isinstance(each, dict) else {"jobDescriptor": each} for each in items]
        for name, items in lists.items()
        if items is not None
    }


def refused(code: int) -> AbstractContextManager[pytest.ExceptionInfo[Refused]]:
    """Expects a PinLaterException with this code."""
    return pytest.raises(Refused, match=f"^{code}: ")


def failed(kind: int) -> AbstractContextManager[pytest.ExceptionInfo[Failed]]:
    """Expects a TApplicationException of this type."""
    return pytest.raises(Failed, match=f"^type {kind}: ")


class Service:
    """A server. All its shards are on one store."""

    def __init__(self, store: Server, shards: Sequence[str] = SHARDS, **settings: Any) -> None:
        self.store = store
        self.shards = dict.fromkeys(shards, store.url)
        self.running = ThriftServer(self.shards, password_hash=hash_password(PASSWORD), **settings)

    @property
    def queue_config(self) -> QueueConfig:
        """Of the queues that it creates."""
        return self.running.settings.queue_config

    @property
    def port(self) -> int:
        return self.running.port

    def new_queue(self, **changes: Any) -> str:
        """A queue that no other test has. changes: of the server's settings for queues."""
        name, client = new_name(), self.running.client
        self.running.run(client.create_queue(name, replace(self.queue_config, **changes)))
        return name

    def configure(self, queue: str, **changes: Any) -> None:
        self.running.run(self.running.client.configure_queue(queue, **changes))

    def delete_named(self, *jobs: str) -> None:
        """Removes jobs, which the interface can only by their state."""
        self.running.run(self.running.client.delete_jobs(descriptors=jobs))

    def counted(self, queue: str, what: str) -> int:
        """What the server's process has counted."""
        return self.running.process.stats.counts[queue, what]

    def now_ms(self) -> int:
        """By the clock of the store."""
        return self.store.time_ms()

    def next_ms(self) -> int:
        """Waits until the clock of the store has moved."""
        before_ms = self.now_ms()
        wait_until(lambda: self.now_ms() > before_ms, "the clock to go on")
        return before_ms + 1


def new_name() -> str:
    """The name of a queue that no other test has."""
    return f"q{next(_numbers)}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Sets the clients of a test and the shards of its service, as the head of this file says."""
    chosen: Sequence[str] = getattr(metafunc.module, "ON_ONE_SHARD", ())
    if name := next((name for name in CLIENTS if name in metafunc.fixturenames), None):
        on_one = [kind for kind in CLIENTS[name] if kind in chosen]
        cases = [*((ONE_SHARD, kind) for kind in on_one), *((SHARDS, kind) for kind in CLIENTS[name])]
        ids = [*(f"{kind}, one shard" for kind in on_one), *CLIENTS[name]]
        metafunc.parametrize(("service", name), cases, indirect=True, ids=ids)
    elif chosen and "service" in metafunc.fixturenames:
        metafunc.parametrize("service", (ONE_SHARD, SHARDS), indirect=True, ids=("one shard", "three shards"))


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Server("valkey", tmp_path_factory.mktemp("service")) as store:
        service = Service(store, getattr(request, "param", SHARDS))
        with service.running:
            yield service


@pytest.fixture(scope="module")
def peer(request: pytest.FixtureRequest, service: Service) -> Iterator[Peer]:
    """A client of each library in turn."""
    made = PEERS[request.param](service.port)
    yield made
    made.close()


@pytest.fixture
def wire(peer: Peer) -> Caller:
    """Calls through the service."""
    return Caller(peer)


@pytest.fixture(scope="module")
def any_peer(request: pytest.FixtureRequest, service: Service) -> Iterator[Peer]:
    """A client of each library in turn, then the direct clients."""
    kind = request.param
    made = PEERS[kind](service.port) if kind in PEERS else DirectPeer(kind, service)
    yield made
    made.close()


@pytest.fixture
def calls(any_peer: Peer) -> Caller:
    """Calls through the service, and of the direct clients."""
    return Caller(any_peer)


@pytest.fixture
def queue(service: Service) -> str:
    """A new queue with the server's settings."""
    return service.new_queue()


class Shown:
    """Which lines of a page have a test: each test names its lines."""

    def __init__(self, lines: tuple[str, ...]) -> None:
        assert len(set(lines)) == len(lines)
        self.missing = set(lines)
        self._lines = frozenset(lines)

    def __call__(self, *lines: str) -> Callable[[Any], Any]:
        """Decorates a test that shows these lines."""
        assert self._lines.issuperset(lines), f"{set(lines) - self._lines} are no lines of the page"
        self.missing -= set(lines)
        return lambda test: test
