"""The calls that users make, to the Thrift service or by the asyncio client.

Promises that each request is measured once under the name of its method, and that what fails raises Failed: then the
statistics have the error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import thriftpy2.rpc
from thriftpy2.protocol import TCyBinaryProtocolFactory
from thriftpy2.transport import TCyFramedTransportFactory

from benches.load.loop_thread import LoopThread
from pinlater import AsyncClient
from pinlater.model.queue_config import QueueConfig
from pinlater.server.interface import structs

THRIFT_PORT = 9010
TIMEOUT_S = 60
#: As long as that of queues that the service creates: users do not renew leases.
LEASE_MS = 600_000

#: Compiled; the library leaves them untyped.
_PROTOCOL: Any = TCyBinaryProtocolFactory
_TRANSPORT: Any = TCyFramedTransportFactory

#: Measures the request in its block. Takes the name of the method.
Measure = Callable[[str], AbstractContextManager[None]]


class Failed(Exception):
    """A request failed."""


class Held(NamedTuple):
    """A job that a user was given. handle: what an ack names."""

    handle: Any
    body: bytes


class Calls(Protocol):
    """What a user can ask for."""

    def create_queue(self, queue: str) -> None: ...

    def enqueue(self, queue: str, bodies: Sequence[bytes]) -> None: ...

    def take(self, queue: str, limit: int, ended: list[Held], acked: Callable[[list[Held]], None]) -> list[Held]:
        """Acks the jobs that ended and dequeues others. Calls `acked` with the jobs whose ack is certain."""

    def ack(self, queue: str, ended: list[Held], acked: Callable[[list[Held]], None]) -> None: ...

    def count(self, queue: str) -> None: ...

    def scan(self, queue: str) -> list[str]:
        """The descriptors of some pending jobs."""

    def lookup(self, descriptors: list[str]) -> None: ...

    def close(self) -> None: ...


class ThriftCalls:
    """A connection to the Thrift service, over gevent's sockets. It connects again after a failure."""

    def __init__(self, host: str, measure: Measure) -> None:
        self._address = urlsplit(host)
        self._measure = measure
        self._context = structs.RequestContext(source="load:locust")
        self._client: Any = None

    def _call(self, method: str, *arguments: Any) -> Any:
        with self._measure(method):
            try:
                return getattr(self._connected(), method)(self._context, *arguments)
            except structs.PinLaterException as error:
                raise RuntimeError(f"{error.errorCode}: {error.message}") from None
            except Exception:
                self.close()
                raise

    def _connected(self) -> Any:
        if self._client is None:
            self._client = thriftpy2.rpc.make_client(
                structs.PinLater,
                self._address.hostname or "127.0.0.1",
                self._address.port or THRIFT_PORT,
                proto_factory=_PROTOCOL(),
                trans_factory=_TRANSPORT(),
                timeout=TIMEOUT_S * 1000,
            )
        return self._client

    def create_queue(self, queue: str) -> None:
        self._call("createQueue", queue)

    def enqueue(self, queue: str, bodies: Sequence[bytes]) -> None:
        jobs = [structs.PinLaterJob(body=body) for body in bodies]
        self._call("enqueueJobs", structs.PinLaterEnqueueRequest(queueName=queue, jobs=jobs))

    def take(self, queue: str, limit: int, ended: list[Held], acked: Callable[[list[Held]], None]) -> list[Held]:
        riding = _acks(queue, ended) if ended else None
        request = structs.PinLaterDequeueRequest(queueName=queue, limit=limit, jobAckRequest=riding)
        answer = self._call("dequeueJobs", request)
        acked(ended)
        return [Held(descriptor, body) for descriptor, body in (answer.jobs or {}).items()]

    def ack(self, queue: str, ended: list[Held], acked: Callable[[list[Held]], None]) -> None:
        self._call("ackDequeuedJobs", _acks(queue, ended))
        acked(ended)

    def count(self, queue: str) -> None:
        states = structs.PinLaterJobState
        for state in (states.PENDING, states.IN_PROGRESS, states.SUCCEEDED, states.FAILED):
            self._call("getJobCount", structs.PinLaterGetJobCountRequest(queueName=queue, jobState=state))

    def scan(self, queue: str) -> list[str]:
        pending = structs.PinLaterJobState.PENDING
        answer = self._call("scanJobs", structs.PinLaterScanJobsRequest(queueName=queue, jobState=pending))
        return [info.jobDescriptor for info in answer.scannedJobs]

    def lookup(self, descriptors: list[str]) -> None:
        self._call("lookupJobs", structs.PinLaterLookupJobRequest(jobDescriptors=descriptors))

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _acks(queue: str, ended: list[Held]) -> Any:
    each = [structs.PinLaterJobAckInfo(jobDescriptor=held.handle) for held in ended]
    return structs.PinLaterJobAckRequest(queueName=queue, jobsSucceeded=each)


class Direct:
    """The asyncio client of a process, which all its users share."""

    def __init__(self, url: str) -> None:
        self.loop = LoopThread()
        self._client: AsyncClient = self.loop.call(partial(_connect, url))

    def run(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Calls a method of the client. Only this greenlet waits."""
        return self.loop.call(partial(getattr(self._client, method), *arguments, **named))

    def close(self) -> None:
        self.loop.call(self._client.close)
        self.loop.close()


async def _connect(url: str) -> AsyncClient:
    return AsyncClient(url, timeout_s=TIMEOUT_S)


class DirectCalls:
    """The calls of a user by the client of its process."""

    def __init__(self, direct: Direct, measure: Measure) -> None:
        self._direct, self._measure = direct, measure

    def _call(self, method: str, *arguments: Any, **named: Any) -> Any:
        with self._measure(method):
            return self._direct.run(method, *arguments, **named)

    def create_queue(self, queue: str) -> None:
        self._call("create_queue", queue, QueueConfig(lease_ms=LEASE_MS))

    def enqueue(self, queue: str, bodies: Sequence[bytes]) -> None:
        if len(bodies) == 1:
            self._call("enqueue", queue, bodies[0])
        else:
            self._call("enqueue_many", queue, bodies)

    def take(self, queue: str, limit: int, ended: list[Held], acked: Callable[[list[Held]], None]) -> list[Held]:
        if ended:
            self.ack(queue, ended, acked)
        return [Held(job, job.body) for job in self._call("dequeue", queue, limit)]

    def ack(self, queue: str, ended: list[Held], acked: Callable[[list[Held]], None]) -> None:
        refused = set(map(id, self._call("ack", succeeded=[held.handle for held in ended])))
        acked([held for held in ended if id(held.handle) not in refused])

    def count(self, queue: str) -> None:
        self._call("count", queue)

    def scan(self, queue: str) -> list[str]:
        page, _ = self._call("scan_page", queue)
        return [info.descriptor for info in page]

    def lookup(self, descriptors: list[str]) -> None:
        self._call("lookup", descriptors)

    def close(self) -> None:
        """The client is that of the process, which closes it."""
