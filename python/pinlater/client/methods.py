"""The methods that both clients share. Each one checks its arguments and returns a function that makes its flow.

Promises that both clients have the same signatures, checks and docstrings: `Client` blocks until the flow ends,
`AsyncClient` awaits it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from inspect import signature
from typing import Any, TypeAlias, TypeVar

from pinlater.client.base import BaseClient
from pinlater.model.errors import InvalidArgument
from pinlater.model.jobs import Ack, Checkpoint, Claimed, CountsByState, Job, JobInfo, NewJob, State
from pinlater.model.queue_config import QueueConfig
from pinlater.model.times import Seconds
from pinlater.operations import admin, claim, enqueue, inspect, leases, limits, opening, queues, scans, shard_changes
from pinlater.operations.dequeue import dequeue as dequeue_flow
from pinlater.store.effects import Flow
from pinlater.store.shards import NamedShards, resolve_shards

T = TypeVar("T")

#: Makes a flow for a deadline (monotonic seconds).
MakeFlow: TypeAlias = Callable[[float], Flow[T]]

F = TypeVar("F", bound=Callable[..., Any])


def documented_as(method: Callable[..., MakeFlow[Any]]) -> Callable[[F], F]:
    """Decorates a client's version of a shared method: help() shows its name, docstring, parameters and result."""
    shown = signature(method)
    result = shown.return_annotation.removeprefix("MakeFlow[").removesuffix("]")

    def decorate(call: F) -> F:
        wraps(method)(call)
        vars(call)["__signature__"] = shown.replace(return_annotation=result)
        return call

    return decorate


# queues


def create_queue(self: BaseClient, queue: str, config: QueueConfig | None = None) -> MakeFlow[bool]:
    """Creates a queue. Returns True if it is new, False if it existed: then its configuration stays as it is."""
    return partial(queues.create_queue, self.session, queue, QueueConfig() if config is None else config)


def configure_queue(self: BaseClient, /, queue: str, **changes: Any) -> MakeFlow[QueueConfig]:
    """Changes settings of a queue (fields of QueueConfig) on every shard. Returns the new configuration."""
    return partial(queues.configure_queue, self.session, queue, changes)


def queue_config(self: BaseClient, queue: str) -> MakeFlow[QueueConfig]:
    """Returns the configuration of a queue."""
    return partial(queues.queue_config, self.session, queue)


def delete_queue(self: BaseClient, queue: str) -> MakeFlow[bool]:
    """Deletes a queue and all its jobs. Returns True if it existed. Raises PartialDelete if a shard did not answer."""
    return partial(queues.delete_queue, self.session, queue)


def queue_names(self: BaseClient) -> MakeFlow[list[str]]:
    """Returns the names of all queues, sorted."""
    return partial(queues.all_queue_names, self.session)


# pauses, drains and limits


def pause_queue(self: BaseClient, queue: str, seconds: Seconds | None = None, *, by: str = "") -> MakeFlow[int | None]:
    """Pauses a queue: its jobs can not be claimed. Running jobs go on. A pause that ends later stays.

    seconds: how long, in seconds or as a timedelta; None: until resume_queue, as with the setting `paused`.
    by: who asks, for queue_limits, if the pause ends by itself. Default: the client's source, such as python:host:pid.

    Returns for how many ms the queue is paused from now; None: until resume_queue. `done` of a PartialOutcome has the
    names of the shards that are paused.
    """
    if not isinstance(by, str):
        raise InvalidArgument(f"by: expected a text, got {by!r:.60}")
    return partial(opening.pause_queue, self.session, queue, seconds, by or self.settings.source)


def resume_queue(self: BaseClient, queue: str) -> MakeFlow[None]:
    """Ends the pauses of a queue: the setting `paused`, and one that would end by itself. A rate of 0 stays."""
    return partial(opening.resume_queue, self.session, queue)


def drain_queue(self: BaseClient, queue: str, *, stay_closed: bool = False) -> MakeFlow[None]:
    """Makes a queue refuse new jobs, and returns at once. Its jobs run on.

    Once none is pending, scheduled or in progress, the queue's monitor or `pinlater queue drain` opens it again.
    stay_closed: it stays closed.
    """
    if not isinstance(stay_closed, bool):
        raise InvalidArgument(f"stay_closed: expected True or False, got {stay_closed!r:.60}")
    return partial(opening.drain_queue, self.session, queue, stay_closed)


def queue_limits(self: BaseClient, queue: str) -> MakeFlow[limits.QueueLimits]:
    """Returns what the shards of a queue know of its limits now: tokens, jobs in progress, a pause."""
    return partial(limits.queue_limits, self.session, queue)


def change_shards(self: BaseClient, shards: NamedShards) -> MakeFlow[None]:
    """Uses other shards from now on; calls under way end with those that they have. A shard may be added, made
    dequeue-only, or removed.

    shards: all of them, as for a new client.

    The log has a warning with the number of jobs on a removed shard: nobody claims them until it is back.
    """
    return partial(shard_changes.change_shards, self.session, resolve_shards(None, shards))


# jobs in


def enqueue_many(self: BaseClient, queue: str, jobs: Iterable[bytes | NewJob]) -> MakeFlow[list[str]]:
    """Enqueues many jobs. Returns their descriptors in order.

    More than 1,000 jobs leave in parts. Raises PartialEnqueue if a part failed.
    """
    return partial(enqueue.enqueue_many, self.session, queue, listed("jobs", jobs))


# work


def dequeue(
    self: BaseClient, queue: str, limit: int = 1, *, wait: Seconds | None = None, dry_run: bool = False
) -> MakeFlow[list[Job]]:
    """Claims up to `limit` due jobs, highest priority first.

    wait: how long to wait for the first job, in seconds or as a timedelta; None or 0: do not wait.
    dry_run: return the jobs without claiming them.
    """
    if dry_run:
        return partial(claim.dry_run, self.session, queue, limit)
    source, timeout_s = self.settings.source, self.settings.timeout_s
    return lambda _: dequeue_flow(self.session, queue, limit, wait, source, timeout_s)


def ack(
    self: BaseClient,
    *,
    succeeded: Iterable[Claimed | Ack | str] = (),
    failed: Iterable[Claimed | Ack | str] = (),
    source: str = "",
) -> MakeFlow[list[Any]]:
    """Ends running jobs. Returns the items that were refused because this client does not hold them (any more).

    succeeded, failed: each item is a Job, (descriptor, token), or an Ack with a status or a delay. A failed job with
    attempts left runs again. A job that is named twice ends once; succeeded wins.
    source: the source of the client that claimed the jobs, for items without a token.
    """
    ended = listed("succeeded", succeeded), listed("failed", failed)
    return partial(leases.ack, self.session, *ended, source or None, False)


def release(self: BaseClient, jobs: Iterable[Claimed]) -> MakeFlow[list[Any]]:
    """Releases jobs that have not started: they keep their attempts and their position. Returns the refused jobs."""
    return partial(leases.release, self.session, listed("jobs", jobs), None)


def renew(self: BaseClient, jobs: Iterable[Claimed], *, own: bool = False) -> MakeFlow[list[Any]]:
    """Renews the leases of running jobs for their full length. Returns the jobs whose lease no longer exists.

    own: give each of these jobs a lease of its own. By default all jobs of one dequeue share a lease.
    """
    return partial(leases.renew, self.session, listed("jobs", jobs), own)


def checkpoint(self: BaseClient, *checkpoints: Checkpoint, source: str = "") -> MakeFlow[list[Checkpoint]]:
    """Stores the progress of running jobs, or moves them back to pending. Returns the refused checkpoints.

    source: the source of the client that claimed the jobs, for jobs without a token.
    """
    return partial(leases.checkpoint, self.session, checkpoints, source or None)


# looking


def lookup(self: BaseClient, descriptors: Iterable[str], *, with_body: bool = False) -> MakeFlow[dict[str, JobInfo]]:
    """Returns what is known of jobs, by descriptor. Unknown jobs are left out."""
    return partial(inspect.lookup, self.session, listed("descriptors", descriptors), with_body)


def count(self: BaseClient, queue: str, *, priority: int | None = None) -> MakeFlow[CountsByState]:
    """Counts the jobs in each state, of one priority or of all."""
    return partial(inspect.count, self.session, queue, priority)


def peek(self: BaseClient, queue: str) -> MakeFlow[dict[int, int]]:
    """Counts the jobs that are due now, by priority. All are 0 while the queue is paused."""
    return partial(inspect.peek, self.session, queue)


def scan_page(
    self: BaseClient,
    queue: str,
    state: State | str = State.PENDING,
    *,
    priority: int | None = None,
    future: bool = False,
    with_body: bool = False,
    limit: int = 100,
    cursor: str = "",
) -> MakeFlow[tuple[list[JobInfo], str]]:
    """Returns one page of a scan, and the cursor of the next page ("" at the end).

    Running jobs can come twice, and their pages vary in size. The other arguments: see scan.
    """
    return partial(scans.scan_page, self.session, queue, state, priority, future, with_body, limit, cursor)


def pages(page: Callable[..., tuple[list[JobInfo], str]], state: State | str) -> Iterator[JobInfo]:
    """The jobs of a scan. page: returns the page at a `cursor`, and the cursor of the next one."""
    cursor, seen = "", set[str]()
    while True:
        found, cursor = page(cursor=cursor)
        yield from unseen(found, state, seen)
        if not cursor:
            return


def unseen(page: list[JobInfo], state: State | str, seen: set[str]) -> list[JobInfo]:
    """Drops what a scan returned before. Only running jobs can come twice."""
    if State.of(state) is not State.IN_PROGRESS:
        return page
    fresh = [info for info in page if info.descriptor not in seen]
    seen.update(info.descriptor for info in fresh)
    return fresh


# retries and removals


def retry_failed(
    self: BaseClient,
    queue: str,
    *,
    priority: int | None = None,
    limit: int = 1000,
    attempts: int = 1,
    run_after_ms: int | None = None,
    delay_ms: int | None = None,
) -> MakeFlow[int]:
    """Moves up to `limit` failed jobs back to pending. Returns how many.

    attempts: what each job then has left. A job that was allowed fewer in all is allowed this many from now on.
    run_after_ms, delay_ms: as in enqueue.

    The call works in rounds of up to 250 jobs. A round that fails ends the call; call it again for the rest.
    If the outcome of that round is unknown, resolve() returns the total with that round. If it certainly failed,
    PartialOutcome.result is the total of the rounds before it.
    """
    return partial(admin.retry_failed, self.session, queue, priority, limit, attempts, run_after_ms, delay_ms)


def retry_jobs(
    self: BaseClient,
    descriptors: Iterable[str],
    *,
    attempts: int = 1,
    run_after_ms: int | None = None,
    delay_ms: int | None = None,
) -> MakeFlow[int]:
    """Moves the named failed jobs back to pending, as retry_failed does. Returns how many of them were failed."""
    named = listed("descriptors", descriptors)
    return partial(admin.retry_jobs, self.session, named, attempts, run_after_ms, delay_ms)


def delete_jobs(
    self: BaseClient,
    queue: str | None = None,
    state: State | str | None = None,
    *,
    priority: int | None = None,
    limit: int = 1000,
    descriptors: Iterable[str] | None = None,
) -> MakeFlow[int]:
    """Removes jobs: up to `limit` of a queue and a state, or those of `descriptors` in any state. Returns how many.

    By state it removes the oldest first (running ones in no order), in rounds: see retry_failed.
    """
    if descriptors is not None:
        return partial(admin.delete_named, self.session, listed("descriptors", descriptors))
    if queue is None or state is None:
        raise InvalidArgument("delete_jobs: expected a queue and a state, or descriptors")
    return partial(admin.delete_jobs, self.session, queue, state, priority, limit)


def purge(self: BaseClient, queue: str) -> MakeFlow[int]:
    """Removes every job of a queue, in rounds: see retry_failed. The queue stays. Returns how many."""
    return partial(admin.purge, self.session, queue)


def reset_lost(self: BaseClient, queue: str) -> MakeFlow[int]:
    """Sets the count of lost records, which `pinlater doctor` reports, to 0. Returns what it was."""
    return partial(admin.reset_lost, self.session, queue)


def listed(name: str, values: Iterable[T]) -> list[T]:
    """The values as a list. Raises InvalidArgument for what is not iterable."""
    try:
        return list(values)
    except TypeError:
        raise InvalidArgument(f"{name}: expected a list or another iterable, got {values!r:.80}") from None
