"""The blocking client.

Promises what every operation promises. Any number of threads may share a client, and a fork may use it. Risks: a call
can block for `timeout_s`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Concatenate, ParamSpec, Self, TypeVar

from pinlater.client import methods
from pinlater.client.base import BaseClient, ClientSettings, make_resolvable
from pinlater.client.methods import MakeFlow, documented_as
from pinlater.model.errors import PinLaterError, checked
from pinlater.model.jobs import JobInfo, NewJob, State
from pinlater.operations.enqueue import enqueue
from pinlater.store.archive_url import ArchiveUrl
from pinlater.store.shards import NamedShards
from pinlater.store.sync_driver import SyncDriver

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(method: Callable[Concatenate[BaseClient, P], MakeFlow[T]]) -> Callable[Concatenate[Client, P], T]:
    """Makes a blocking method from a shared method: it runs the flow to the end."""

    @documented_as(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(method(self, *args, **kwargs))

    return call


class Client(BaseClient):
    """A client that blocks. Use it in a `with` block, or close() it.

    url: `redis://`, `rediss://`, `unix://` or `embedded://`. Default: PINLATER_URL, else the embedded server.
    shards: names and URLs of several shards, instead of a URL.
    source: the name of this client in claim descriptors.
    timeout_s: seconds for a whole call, up to 600. A request sent shortly before the end still gets 1 s for its answer.
    connect_timeout_s: seconds for one connect.
    read_timeout_s: seconds for one read.
    archive: the URL of the MySQL archive, `mysql://…`; its jobs count as pending. Default: PINLATER_ARCHIVE_URL, else
    none.

    Every method raises InvalidArgument for a bad argument (nothing was sent), QueueNotFound for an unknown queue,
    ServerUnavailable if no server could be reached (nothing was changed), and OutcomeUnknown if a change was sent and
    its answer was lost. A call on named jobs of several shards (ack, release, renew, checkpoint, retry_jobs,
    delete_jobs), a pause and its end raise PartialOutcome if some shards certainly failed and others did not.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        shards: NamedShards | None = None,
        source: str | None = None,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 5.0,
        archive: str | ArchiveUrl | None = None,
    ) -> None:
        super().__init__(
            ClientSettings(
                url,
                shards=shards,
                source=source,
                timeout_s=timeout_s,
                connect_timeout_s=connect_timeout_s,
                read_timeout_s=read_timeout_s,
                archive=archive,
            )
        )
        self.driver = SyncDriver(*self.settings.timeouts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections and releases an embedded server. A second call does nothing."""
        self.driver.close()
        if self.settings.database is not None:
            self.settings.database.close()
        for server in (*self.session.servers, *self.session.former_servers):
            server.release()

    def run(self, make: MakeFlow[T]) -> T:
        """Runs the flow that `make` returns for a deadline, and returns its result."""
        if self.session.forked:
            self.session.renew()
            self.driver.after_fork()
        try:
            return self.driver.drive(make(time.monotonic() + self.settings.timeout_s))
        except PinLaterError as error:
            make_resolvable(error, self.run)
            raise

    def enqueue(
        self,
        queue: str,
        body: bytes,
        *,
        priority: int = 1,
        run_after_ms: int | None = None,
        delay_ms: int | None = None,
        attempts: int = 2,
        status: str = "",
        key: str | bytes | None = None,
    ) -> str:
        """Enqueues one job. Returns its descriptor.

        priority: 1 (highest) to the number of priorities of the queue.
        run_after_ms: the job does not run before this time (ms since 1970, by Redis's clock).
        delay_ms: the job does not run before this many ms from now.
        attempts: how often the job may be tried, 1 to 65,535.
        status: its custom status.
        key: jobs of one key go to one shard.
        """
        job: NewJob = checked(
            NewJob,
            body,
            priority=priority,
            run_after_ms=run_after_ms,
            delay_ms=delay_ms,
            attempts=attempts,
            status=status,
            key=key,
        )
        return self.enqueue_job(queue, job)

    def enqueue_job(self, queue: str, job: NewJob) -> str:
        """Enqueues a job that was made before. Returns its descriptor."""
        return self.run(partial(enqueue, self.session, queue, job))

    def scan(
        self,
        queue: str,
        state: State | str = State.PENDING,
        *,
        priority: int | None = None,
        future: bool = False,
        with_body: bool = False,
        page_size: int = 100,
    ) -> Iterator[JobInfo]:
        """Iterates over the jobs of a state, page by page. A job that keeps its state, and does not move to the archive
        or back, comes exactly once.

        The order is shard by shard, priority by priority, latest time first.
        priority: only jobs of this priority.
        future: with state pending: jobs that are due later. By default those that are due now.
        with_body: read the bodies too.
        page_size: jobs a call.
        """
        page = partial(self.scan_page, queue, state, priority=priority, future=future, with_body=with_body)
        return methods.pages(partial(page, limit=page_size), state)

    create_queue = _blocking(methods.create_queue)
    configure_queue = _blocking(methods.configure_queue)
    queue_config = _blocking(methods.queue_config)
    delete_queue = _blocking(methods.delete_queue)
    queue_names = _blocking(methods.queue_names)

    pause_queue = _blocking(methods.pause_queue)
    resume_queue = _blocking(methods.resume_queue)
    drain_queue = _blocking(methods.drain_queue)
    queue_limits = _blocking(methods.queue_limits)
    change_shards = _blocking(methods.change_shards)

    enqueue_many = _blocking(methods.enqueue_many)

    dequeue = _blocking(methods.dequeue)
    ack = _blocking(methods.ack)
    release = _blocking(methods.release)
    renew = _blocking(methods.renew)
    checkpoint = _blocking(methods.checkpoint)

    lookup = _blocking(methods.lookup)
    count = _blocking(methods.count)
    peek = _blocking(methods.peek)
    scan_page = _blocking(methods.scan_page)

    retry_failed = _blocking(methods.retry_failed)
    retry_jobs = _blocking(methods.retry_jobs)
    delete_jobs = _blocking(methods.delete_jobs)
    purge = _blocking(methods.purge)
    reset_lost = _blocking(methods.reset_lost)
