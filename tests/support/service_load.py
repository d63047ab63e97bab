"""Load on the Thrift service: producers and workers that connect again and try again, and what became of their jobs.

Promises: a producer counts a job as acknowledged when its answer came. A worker acks what it got, again after a lost
connection.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pinlater import Client
from tests.support.servers import wait_until
from tests.support.thrift_clients import RawPeer
from tests.support.thrift_frames import Answer, ack, dequeue, enqueue, read_answer

BATCH = 5
#: After an ack without an answer, a worker goes on for so long before it acks again what it owes.
RETRY_S = 1.0
#: A load that meets faults may take so long for its next jobs.
PROGRESS_S = 150.0


class _User(threading.Thread):
    """A client with a connection of its own, which it makes again when it is closed."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._port, self._stopped = port, threading.Event()
        self._peer: RawPeer | None = None
        #: How often the connection was closed, and answers with an error, by their code.
        self.closed = 0
        self.errors: Counter[int] = Counter()

    def stop(self) -> None:
        self._stopped.set()

    def ask(self, frame: bytes) -> Answer | None:
        """The answer; None: the connection was closed, or there is none."""
        try:
            if self._peer is None:
                self._peer = RawPeer(self._port)
            self._peer.send(frame)
            message = self._peer.frame()
        except ConnectionError:
            message = b""
        if not message:
            self._close()
            self._stopped.wait(0.005)
            return None
        answer = read_answer(message)
        assert answer.failure is None, answer
        if answer.code is not None:
            self.errors[answer.code] += 1
            self._stopped.wait(0.005)
        return answer

    def _close(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None
            self.closed += 1


class Producer(_User):
    """Enqueues until it is stopped. acknowledged: the bodies of answered calls."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__(port, name)
        self.acknowledged: list[bytes] = []

    def run(self) -> None:
        numbers = itertools.count()
        while not self._stopped.is_set():
            bodies = [f"{self.name}-{next(numbers)}".encode() for _ in range(BATCH)]
            answer = self.ask(enqueue("q", *bodies))
            if answer is not None and answer.code is None:
                assert len(answer.value.jobDescriptors) == BATCH
                self.acknowledged += bodies
        self._close()


class Consumer(_User):
    """Dequeues and acks until it is stopped. got: how often each body came. acked: those whose ack was answered."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__(port, name)
        self.got: Counter[bytes] = Counter()
        self.descriptors: set[str] = set()
        self.acked: list[bytes] = []

    def run(self) -> None:
        owed: list[dict[str, bytes]] = []
        retry_s = 0.0
        while not self._stopped.is_set():
            answer = self.ask(dequeue("q", 2 * BATCH, source=self.name))
            if answer is not None and answer.code is None:
                jobs: dict[str, bytes] = answer.value.jobs or {}
                self.got.update(jobs.values())
                self.descriptors.update(jobs)
                owed += [each for each in _by_shard(jobs) if not self._ack(each)]
                if not jobs:
                    self._stopped.wait(0.005)
            # an ack on a shard that is away takes seconds, which must not keep it from the jobs of others
            while owed and time.monotonic() > retry_s:
                if self._ack(owed[0]):
                    del owed[0]
                else:
                    retry_s = time.monotonic() + RETRY_S
        self._close()

    def _ack(self, jobs: dict[str, bytes]) -> bool:
        """Whether the ack of these jobs was answered."""
        ended = self.ask(ack("q", *jobs, source=self.name))
        if ended is None or ended.code is not None:
            return False
        self.acked += jobs.values()
        return True


def _by_shard(jobs: dict[str, bytes]) -> list[dict[str, bytes]]:
    """The jobs of each shard."""
    found: dict[str, dict[str, bytes]] = {}
    for descriptor, body in jobs.items():
        found.setdefault(descriptor.split(":")[1], {})[descriptor] = body
    return list(found.values())


class Load:
    """Producers and workers of one service."""

    def __init__(self, port: int, producers: int = 1, consumers: int = 2) -> None:
        self.producers = [Producer(port, f"p{number}") for number in range(producers)]
        self.consumers = [Consumer(port, f"c{number}") for number in range(consumers)]

    @property
    def users(self) -> list[_User]:
        return [*self.producers, *self.consumers]

    def progress(self, jobs: int = 200) -> None:
        """Waits until so many more jobs were enqueued, and so many acked."""
        self.enqueues(jobs)
        self.acks(jobs)

    def enqueues(self, jobs: int) -> None:
        most = self._acknowledged() + jobs
        wait_until(lambda: self._acknowledged() >= most, f"{jobs} more jobs enqueued", PROGRESS_S)

    def acks(self, jobs: int) -> None:
        most = self._acked() + jobs
        wait_until(lambda: self._acked() >= most, f"{jobs} more jobs acked", PROGRESS_S)

    def _acknowledged(self) -> int:
        return sum(len(each.acknowledged) for each in self.producers)

    def _acked(self) -> int:
        return sum(len(each.acked) for each in self.consumers)

    @property
    def acknowledged(self) -> set[bytes]:
        return set(itertools.chain.from_iterable(each.acknowledged for each in self.producers))

    @property
    def got(self) -> Counter[bytes]:
        return sum((each.got for each in self.consumers), Counter())

    @property
    def errors(self) -> Counter[int]:
        return sum((each.errors for each in self.users), Counter())

    def finish(self, left: Callable[[], int]) -> None:
        """Ends the producers, and the workers once no job is left."""
        for producer in self.producers:
            producer.stop()
            producer.join()
        wait_until(lambda: left() == 0, "all jobs ended", PROGRESS_S)
        self.end()

    def end(self) -> None:
        for user in self.users:
            user.stop()
        for user in self.users:
            user.join()


@contextmanager
def loaded(port: int, **counts: int) -> Iterator[Load]:
    """A load on a service, which ends with the block."""
    load = Load(port, **counts)
    for user in load.users:
        user.start()
    try:
        yield load
    finally:
        load.end()


def left(client: Client) -> int:
    """Jobs of the queue that have not ended."""
    counts = client.count("q")
    return counts.pending + counts.scheduled + counts.in_progress
