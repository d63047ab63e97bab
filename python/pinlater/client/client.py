"""The blocking client.

Promises what every operation promises, from any number of threads, and after a fork. Risks: a call can block for
`timeout_s`.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Self, TypeVar

from pinlater.model.errors import (
    InvalidArgument,
    OutcomeUnknown,
    PartialDelete,
    PartialEnqueue,
    PartialOutcome,
    PinLaterError,
    checked,
)
from pinlater.model.jobs import Ack, Checkpoint, Claimed, CountsByState, Job, JobInfo, NewJob, State
from pinlater.model.queue_config import QueueConfig, check_source
from pinlater.operations import admin as maintaining
from pinlater.operations import claim as dequeuing
from pinlater.operations import enqueue as enqueuing
from pinlater.operations import inspect as inspecting
from pinlater.operations import leases as holding
from pinlater.operations import queues
from pinlater.store.effects import Flow
from pinlater.store.shards import Session, resolve_shards
from pinlater.store.sync_driver import SyncDriver

T = TypeVar("T")

#: A request may be resent for so long at most: its lane keeps the answer for an hour.
MAX_TIMEOUT_S: Final = 600.0
#: Names what a supervisor gives each of its processes, so that no other has the same source.
MARK_VARIABLE: Final = "PINLATER_MARK"


def source_of(pid: int, mark: str) -> str:
    """The source that claims of a process of this host name, unless its clients are told another."""
    return f"python:{socket.gethostname()}:{pid}" + (f":{mark}" if mark else "")


class ClientSettings:
    """What both clients are made from; see Client."""

    def __init__(
        self,
        url: str | None = None,
        *,
        shards: Mapping[str, str] | None = None,
        source: str | None = None,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 5.0,
    ) -> None:
        self.session = Session(resolve_shards(url, shards))
        self.source = source if source is not None else source_of(os.getpid(), os.environ.get(MARK_VARIABLE, ""))
        check_source(self.source)
        self.timeout_s = _seconds("timeout_s", timeout_s)
        self.timeouts = _seconds("connect_timeout_s", connect_timeout_s), _seconds("read_timeout_s", read_timeout_s)

    def deadline_s(self) -> float:
        """When a call that begins now has to end (monotonic seconds)."""
        return time.monotonic() + self.timeout_s


def listed(name: str, values: Iterable[T]) -> list[T]:
    """The values as a list, or InvalidArgument."""
    try:
        return list(values)
    except TypeError:
        raise InvalidArgument(f"{name}: expected a list or another iterable, got {values!r:.80}") from None


def _seconds(name: str, value: object) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not 0 < value <= MAX_TIMEOUT_S
    ):
        raise InvalidArgument(f"{name}: expected seconds, more than 0 and at most {MAX_TIMEOUT_S:.0f}, got {value!r}")
    return float(value)


def give_drive(error: PinLaterError, drive: Callable[[Any], Any]) -> None:
    """Lets resolve() of an unknown outcome, alone or inside a partial one, ask through a client."""
    parts: Iterable[Any] = [error]
    if isinstance(error, PartialEnqueue):
        parts = error.results
    elif isinstance(error, PartialDelete):
        parts = error.errors.values()
    elif isinstance(error, PartialOutcome):
        parts = [part for _, part in error.unknown]
    for part in parts:
        if isinstance(part, OutcomeUnknown):
            part.drive = drive


class Client:
    """A client that blocks. Use it in a `with` block, or close() it.

    url: `redis://`, `rediss://`, `unix://` or `embedded://`; by default PINLATER_URL, else the embedded server. shards:
    names and URLs of several shards, instead of a URL. source: names this client in claim descriptors. timeout_s: for a
    whole call, up to 600; what was sent shortly before its end is still given 1 s to be answered. connect_timeout_s,
    read_timeout_s: for one connect, one read.

    Every method raises InvalidArgument for a bad argument (nothing was sent), QueueNotFound for an unknown queue,
    ServerUnavailable if no server could be reached (nothing was changed), and OutcomeUnknown if a change was sent and
    its answer was lost. A call on given jobs of several shards (ack, release, renew, checkpoint, retry_jobs,
    delete_jobs) raises PartialOutcome if it was carried out, or may have been, on some and certainly not on others.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        shards: Mapping[str, str] | None = None,
        source: str | None = None,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 5.0,
    ) -> None:
        self.settings = ClientSettings(
            url,
            shards=shards,
            source=source,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            read_timeout_s=read_timeout_s,
        )
        self.session = self.settings.session
        self.driver = SyncDriver(self.session.channel, *self.settings.timeouts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections and lets go of an embedded server. Twice is fine."""
        self.driver.close()
        for server in self.session.servers:
            server.release()

    def run(self, make: Callable[[float], Flow[T]]) -> T:
        """Drives the flow that `make` gives for a deadline."""
        if self.session.forked:
            self.session.renew()
            self.driver.after_fork(self.session.channel)
        try:
            return self.driver.drive(make(time.monotonic() + self.settings.timeout_s))
        except PinLaterError as error:
            give_drive(error, self.run)
            raise

    # queues

    def create_queue(self, queue: str, config: QueueConfig | None = None) -> bool:
        """Makes a queue; True if it was made, False if it was there (its configuration is left as it is)."""
        return self.run(
            lambda end: queues.create_queue(self.session, queue, QueueConfig() if config is None else config, end)
        )

    def configure_queue(self, queue: str, **changes: Any) -> QueueConfig:
        """Changes settings of a queue (fields of QueueConfig) on every shard; returns the new configuration."""
        return self.run(lambda end: queues.configure_queue(self.session, queue, changes, end))

    def queue_config(self, queue: str) -> QueueConfig:
        """The configuration of a queue."""
        return self.run(lambda end: queues.queue_config(self.session, queue, end))

    def delete_queue(self, queue: str) -> bool:
        """Deletes a queue and all its jobs; True if it was there. Raises PartialDelete if a shard did not answer."""
        return self.run(lambda end: queues.delete_queue(self.session, queue, end))

    def queue_names(self) -> list[str]:
        """The names of all queues, sorted."""
        return self.run(lambda end: queues.queue_names(self.session, end))

    # putting in

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
        """Puts one job in line; returns its descriptor.

        priority: 1 (first) to the queue's levels. run_after_ms: not before this time (ms since 1970, by Redis's clock).
        delay_ms: not before so long from now. attempts: how often it may be tried, 1 to 65,535. status: custom status.
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
        """As enqueue, of a job made before."""
        return self.run(partial(enqueuing.enqueue, self.session, queue, job))

    def enqueue_many(self, queue: str, jobs: Iterable[bytes | NewJob]) -> list[str]:
        """Puts many jobs in line; returns their descriptors in order. Raises PartialEnqueue if a part of over 1,000
        jobs failed.
        """
        jobs = listed("jobs", jobs)
        return self.run(lambda end: enqueuing.enqueue_many(self.session, queue, jobs, end))

    # working

    def dequeue(self, queue: str, limit: int = 1, *, wait: float | None = None, dry_run: bool = False) -> list[Job]:
        """Claims up to `limit` due jobs, highest priority first.

        wait: seconds to wait for the first job; None or 0: return at once. dry_run: only show what would be given.
        """
        if dry_run:
            return self.run(lambda end: dequeuing.dry_run(self.session, queue, limit, end))
        source, timeout_s = self.settings.source, self.settings.timeout_s
        return self.run(lambda _: dequeuing.dequeue(self.session, queue, limit, wait, source, timeout_s))

    def ack(
        self,
        *,
        succeeded: Iterable[Claimed | Ack | str] = (),
        failed: Iterable[Claimed | Ack | str] = (),
        source: str = "",
    ) -> list[Any]:
        """Ends running jobs; returns those that were refused because this client does not hold them (any more).

        An item is a Job, (descriptor, token), or an Ack with a status or a delay. A failed job with attempts left is
        tried again. A job that is named twice ends once; as succeeded, if it is named so. source: for items without a
        token: the source of the client that claimed them.
        """
        ended = listed("succeeded", succeeded), listed("failed", failed)
        return self.run(lambda end: holding.ack(self.session, *ended, source, False, end))

    def release(self, jobs: Iterable[Claimed]) -> list[Any]:
        """Hands unstarted jobs back: attempts and place in line stay. Returns those that were refused."""
        held = listed("jobs", jobs)
        return self.run(lambda end: holding.release(self.session, held, "", end))

    def renew(self, jobs: Iterable[Claimed], *, own: bool = False) -> list[Any]:
        """Gives the leases of running jobs their full length again; returns the jobs whose lease is gone.

        A lease belongs to all jobs of one dequeue; own=True takes each of these jobs out into a lease of its own.
        """
        held = listed("jobs", jobs)
        return self.run(lambda end: holding.renew(self.session, held, own, end))

    def checkpoint(self, *checkpoints: Checkpoint, source: str = "") -> list[Checkpoint]:
        """Keeps the progress of running jobs, or puts them back in line; returns the checkpoints that were refused."""
        return self.run(lambda end: holding.checkpoint(self.session, checkpoints, source, end))

    # looking

    def lookup(self, descriptors: Iterable[str], *, with_body: bool = False) -> dict[str, JobInfo]:
        """What is known of jobs, by descriptor; unknown ones are left out."""
        asked = listed("descriptors", descriptors)
        return self.run(lambda end: inspecting.lookup(self.session, asked, with_body, end))

    def count(self, queue: str, *, priority: int | None = None) -> CountsByState:
        """How many jobs there are in each state, of one priority or all."""
        return self.run(lambda end: inspecting.count(self.session, queue, priority, end))

    def peek(self, queue: str) -> dict[int, int]:
        """How many jobs are due now, by priority; zeros for a paused queue."""
        return self.run(lambda end: inspecting.peek(self.session, queue, end))

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
        """Goes through the jobs of a state, page by page; a job that stays where it is comes exactly once.

        future: of pending jobs, those that are due later instead of those due now. Shard by shard, priority by
        priority, latest time first.
        """
        cursor, seen = "", set[str]()
        while True:
            page, cursor = self.scan_page(
                queue, state, priority=priority, future=future, with_body=with_body, limit=page_size, cursor=cursor
            )
            yield from unseen(page, state, seen)
            if not cursor:
                return

    def scan_page(
        self,
        queue: str,
        state: State | str = State.PENDING,
        *,
        priority: int | None = None,
        future: bool = False,
        with_body: bool = False,
        limit: int = 100,
        cursor: str = "",
    ) -> tuple[list[JobInfo], str]:
        """One page of a scan, and the cursor of the next ("" at the end). Running jobs may come twice, in pages of any
        size.
        """
        return self.run(
            lambda end: inspecting.scan_page(
                self.session, queue, state, priority, future, with_body, limit, cursor, end
            )
        )

    # bringing back and removing

    def retry_failed(
        self,
        queue: str,
        *,
        priority: int | None = None,
        limit: int = 1000,
        attempts: int = 1,
        run_after_ms: int | None = None,
        delay_ms: int | None = None,
    ) -> int:
        """Puts up to `limit` failed jobs back in line, with so many attempts left; returns how many. A job that was
        allowed fewer in all is allowed so many from now on.

        Goes in rounds of up to 1,000 jobs; what stops one leaves the rest for another call. Then resolve() of an
        unknown outcome gives how many by then, that round's included; PartialOutcome.result, how many before one that
        certainly failed.
        """
        return self.run(
            lambda end: maintaining.retry_failed(
                self.session, queue, priority, limit, attempts, run_after_ms, delay_ms, end
            )
        )

    def retry_jobs(self, descriptors: Iterable[str], *, attempts: int = 1) -> int:
        """Puts the named failed jobs back in line, as retry_failed does; returns how many of them were failed."""
        named = listed("descriptors", descriptors)
        return self.run(lambda end: maintaining.retry_jobs(self.session, named, attempts, end))

    def delete_jobs(
        self,
        queue: str | None = None,
        state: State | str | None = None,
        *,
        priority: int | None = None,
        limit: int = 1000,
        descriptors: Iterable[str] | None = None,
    ) -> int:
        """Removes up to `limit` jobs of a queue and state, oldest first (running ones in no order), or the named ones
        in any state; returns how many. By state it goes in rounds: see retry_failed.
        """
        if descriptors is not None:
            named = listed("descriptors", descriptors)
            return self.run(lambda end: maintaining.delete_named(self.session, named, end))
        wanted_queue, wanted_state = both_given(queue, state)
        return self.run(
            lambda end: maintaining.delete_jobs(self.session, wanted_queue, wanted_state, priority, limit, end)
        )

    def purge(self, queue: str) -> int:
        """Removes every job of a queue in every state, in rounds as retry_failed; the queue stays. Returns how many."""
        return self.run(lambda end: maintaining.purge(self.session, queue, end))

    def reset_lost(self, queue: str) -> int:
        """Sets the count of lost records, which the doctor reports, back to 0; returns what it was."""
        return self.run(lambda end: maintaining.reset_lost(self.session, queue, end))


def unseen(page: list[JobInfo], state: State | str, seen: set[str]) -> list[JobInfo]:
    """Drops what a scan gave before: only running jobs can come twice."""
    if State.of(state) is not State.IN_PROGRESS:
        return page
    fresh = [info for info in page if info.descriptor not in seen]
    seen.update(info.descriptor for info in fresh)
    return fresh


def both_given(queue: str | None, state: State | str | None) -> tuple[str, State | str]:
    """queue and state of delete_jobs, which needs both or descriptors."""
    if queue is None or state is None:
        raise InvalidArgument("delete_jobs: expected a queue and a state, or descriptors")
    return queue, state
