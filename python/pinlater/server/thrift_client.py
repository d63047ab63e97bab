"""The blocking client of Thrift servers.

Promises the names, arguments and results of `Client` for what the interface has. What it lacks raises NotOnThrift.
Any number of threads may share a client, and a fork may use it. Risks: a change is sent once. If its answer is lost,
OutcomeUnknown says so, and nobody can ask for the answer again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from functools import partial, wraps
from itertools import count as counter
from itertools import groupby
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

import pinlater._core as _core
from pinlater.client.base import MARK_VARIABLE, check_seconds, source_of
from pinlater.client.client import Client
from pinlater.client.methods import listed, pages
from pinlater.model.errors import (
    InvalidArgument,
    NotOnThrift,
    OutcomeUnknown,
    PartialEnqueue,
    PartialOutcome,
    PinLaterError,
    checked,
)
from pinlater.model.jobs import Ack, Checkpoint, Claimed, CountsByState, Job, JobInfo, NewJob, State
from pinlater.model.queue_config import QueueConfig, check_integer, check_queue_name, check_source
from pinlater.model.times import Seconds
from pinlater.operations.parts import in_parts
from pinlater.server.interface import structs, write_call
from pinlater.server.thrift_answers import reader, result_of, unknown
from pinlater.server.thrift_connections import AnswerLost, ThriftConnections
from pinlater.server.thrift_url import parse_thrift_url
from pinlater.server.thrift_values import (
    ON_REDIS,
    Item,
    checkpoint_of,
    claimed_jobs,
    descriptors_of,
    end_of,
    job_info,
    new_job,
    size_of_job,
    time_of,
)

P = ParamSpec("P")
T = TypeVar("T")

_MAX_LIMIT: Final = 2**31 - 1
_MAX_SEQUENCE: Final = 2**31 - 1


def _lacking(
    method: Callable[Concatenate[Client, P], T], instead: str = ON_REDIS
) -> Callable[Concatenate[ThriftClient, P], T]:
    """A method of Client that the interface lacks. instead: what to use."""

    @wraps(method)
    def call(self: ThriftClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        raise NotOnThrift(f"{method.__name__}()", instead)

    call.__doc__ = f"Raises NotOnThrift: {instead}."
    return call


class ThriftClient:
    """A client of Thrift servers that blocks. Use it in a `with` block, or close() it.

    url: `thrift://host:9010`, `thrift://a:9010,b:9010` for servers of the same queues, or with TLS
    `thrifts://host:9010`; `?ca=FILE` names the certificates to trust instead of the system's.
    source: the name of this client. An ack counts if the job was dequeued with the same one.
    timeout_s: seconds for a whole call, up to 600. An answer that is on its way then still gets 1 s.
    connect_timeout_s: seconds for one connect.
    read_timeout_s: seconds for the answer to a call that only looks, before the next server is asked.

    Every method raises InvalidArgument for a bad argument, NotOnThrift for one that the interface lacks (nothing was
    sent), ServerUnavailable if no server could be reached (nothing was changed), and OutcomeUnknown if a change was
    sent and its answer was lost. An unknown queue raises QueueNotFound on an enqueue; other calls find it empty.
    """

    def __init__(
        self,
        url: str,
        *,
        source: str | None = None,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 5.0,
    ) -> None:
        servers = parse_thrift_url(url)
        own = source_of(os.getpid(), os.environ.get(MARK_VARIABLE, ""))
        self._source = check_source(own if source is None else source)
        self._timeout_s = check_seconds("timeout_s", timeout_s)
        self._connections = ThriftConnections(
            servers,
            check_seconds("connect_timeout_s", connect_timeout_s),
            check_seconds("read_timeout_s", read_timeout_s),
        )
        self._calls = counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections. Calls under way still get their answers. A second call does nothing."""
        self._connections.close()

    def within(self, timeout_s: float) -> Self:
        """This client with another time limit of each call, in seconds. Both share their connections: close one."""
        other = copy(self)
        other._timeout_s = check_seconds("timeout_s", timeout_s)
        return other

    # queues

    def create_queue(self, queue: str, config: QueueConfig | None = None) -> bool:
        """Creates a queue with the server's settings. Returns False if there was one of this name before.

        It asks for the names of all queues first, so another client may create the queue in between.
        """
        if config is not None:
            raise NotOnThrift("create_queue(config=…)", ON_REDIS)
        return not self._was_there("createQueue", queue)

    def delete_queue(self, queue: str, *, password: str) -> bool:
        """Deletes a queue and all its jobs. Returns False if there was none just before.

        password: the server's. A wrong one raises ServerRefused.
        """
        if not isinstance(password, str):
            raise InvalidArgument("password: expected a text")
        return self._was_there("deleteQueue", queue, password=password)

    def _was_there(self, method: str, queue: str, **arguments: str) -> bool:
        """Calls a method with the name of a queue. Returns whether the queue existed before."""
        end_s = self._end_s()
        known = check_queue_name(queue) in self._call("getQueueNames", end_s)
        self._call(method, end_s, changes=True, name=queue, **arguments)
        return known

    def queue_names(self) -> list[str]:
        """Returns the names of all queues, sorted."""
        return sorted(self._call("getQueueNames", self._end_s()))

    # jobs in

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
        """Enqueues one job. Returns its descriptor. See Client.enqueue.

        delay_ms: from now by this machine's clock. key: raises NotOnThrift.
        """
        options = {"run_after_ms": run_after_ms, "delay_ms": delay_ms, "attempts": attempts, "status": status}
        return self.enqueue_job(queue, checked(NewJob, body, priority=priority, key=key, **options))

    def enqueue_job(self, queue: str, job: NewJob) -> str:
        """Enqueues a job that was made before. Returns its descriptor."""
        return self.enqueue_many(queue, [job])[0]

    def enqueue_many(self, queue: str, jobs: Iterable[bytes | NewJob]) -> list[str]:
        """Enqueues many jobs. Returns their descriptors in order.

        More than 1,000 jobs, or much data, leave in parts. Raises PartialEnqueue if a part failed.
        """
        end_s, name = self._end_s(), check_queue_name(queue)
        parts = in_parts([new_job(job) for job in listed("jobs", jobs)], size_of_job)
        results = [self._enqueued(name, part, end_s) for part in parts]
        errors = [result for result in results if isinstance(result, PinLaterError)]
        if errors and (len(parts) == 1 or _nothing_is_done(errors, len(parts))):
            raise errors[0]
        each: list[Any] = [
            one
            for part, result in zip(parts, results, strict=True)
            for one in ([result] * len(part) if isinstance(result, PinLaterError) else result)
        ]
        if errors:
            raise PartialEnqueue(each)
        return each

    def _enqueued(self, queue: str, part: list[Any], end_s: float) -> list[str] | PinLaterError:
        request = structs.PinLaterEnqueueRequest(queueName=queue, jobs=part)
        try:
            response = self._call("enqueueJobs", end_s, changes=True, request=request)
        except PinLaterError as error:
            return error
        if len(response.jobDescriptors) != len(part):
            given = len(response.jobDescriptors)
            return unknown(f"enqueueJobs: expected {len(part):,} descriptors, the server gave {given:,}")
        return list(response.jobDescriptors)

    # work

    def dequeue(self, queue: str, limit: int = 1, *, wait: Seconds | None = None, dry_run: bool = False) -> list[Job]:
        """Claims up to `limit` due jobs, highest priority first. Their token is eight zero bytes.

        wait: raises NotOnThrift. dry_run: return the jobs without claiming them.
        Raises DequeueRefused if the queue is paused, or its rate has no tokens left.
        """
        if wait:
            raise NotOnThrift(
                "dequeue(wait=…)", "call dequeue again after a pause, or use a client of the Redis servers"
            )
        check_integer("limit", limit, 0, _MAX_LIMIT)
        request = structs.PinLaterDequeueRequest(queueName=check_queue_name(queue), limit=limit, dryRun=bool(dry_run))
        return claimed_jobs(self._call("dequeueJobs", self._end_s(), changes=not dry_run, request=request))

    def ack(
        self,
        *,
        succeeded: Iterable[Claimed | Ack | str] = (),
        failed: Iterable[Claimed | Ack | str] = (),
        source: str = "",
    ) -> list[Any]:
        """Ends running jobs. Returns an empty list: the interface does not say which ones were refused.

        succeeded, failed: each item is a Job, a descriptor alone or with a token, or an Ack with a status or a delay.
        Tokens do not count: a job ends if it was dequeued with the source of this client.
        source: of the client that dequeued the jobs, if it was another one.
        """
        ended = [end_of(each, succeeded=True) for each in listed("succeeded", succeeded)]
        ended += [end_of(each, succeeded=False) for each in listed("failed", failed)]
        self._in_parts("ack", ended, "ackDequeuedJobs", _ack_request, source)
        return []

    def checkpoint(self, *checkpoints: Checkpoint, source: str = "") -> list[Checkpoint]:
        """Stores the progress of running jobs, or moves them back to pending. Returns an empty list, as ack does.

        source: see ack. Of two checkpoints of one job in a call the last one counts.
        """
        items = [checkpoint_of(each) for each in checkpoints]
        self._in_parts("checkpoint", items, "checkpointJobs", _checkpoint_request, source)
        return []

    def _in_parts(
        self, name: str, items: list[Item], method: str, request: Callable[[str, list[Item]], Any], source: str
    ) -> None:
        """Sends a call for each queue and each 1,000 jobs. Raises PartialOutcome if some failed and others did not."""
        context = check_source(source) if source else self._source
        end_s = self._end_s()
        by_queue = groupby(sorted(items, key=lambda item: item.queue), lambda item: item.queue)
        parts = [(queue, part) for queue, own in by_queue for part in in_parts(own, lambda item: item.size)]
        done: list[Any] = []
        failed: list[tuple[list[Any], PinLaterError]] = []
        for queue, part in parts:
            given = [item.given for item in part]
            try:
                self._call(method, end_s, changes=True, source=context, request=request(queue, part))
                done += given
            except PinLaterError as error:
                failed.append((given, error))
        if not failed:
            return
        first = failed[0][1]
        if len(parts) == 1 or _nothing_is_done([error for _, error in failed], len(parts)):
            raise first
        lost = [(given, error) for given, error in failed if isinstance(error, OutcomeUnknown)]
        refused = [(given, error) for given, error in failed if not isinstance(error, OutcomeUnknown)]
        message = f"{name}: {len(failed)} of {len(parts)} calls are not certain to be carried out: {first}"
        raise PartialOutcome(message, [], done, refused, lost)

    # looking

    def lookup(self, descriptors: Iterable[str], *, with_body: bool = False) -> dict[str, JobInfo]:
        """Returns what is known of jobs, by descriptor. Unknown jobs are left out. `crashes` is always 0."""
        named, end_s = descriptors_of(listed("descriptors", descriptors)), self._end_s()
        found: dict[str, JobInfo] = {}
        for part in in_parts(named, len):
            request = structs.PinLaterLookupJobRequest(jobDescriptors=part, includeBody=bool(with_body))
            infos: Mapping[str, Any] = self._call("lookupJobs", end_s, request=request)
            found |= {descriptor: job_info(info) for descriptor, info in infos.items()}
        return found

    def count(self, queue: str, *, priority: int | None = None) -> CountsByState:
        """Counts the jobs in each state, of one priority or of all. It takes five calls, one after the other."""
        end_s, name = self._end_s(), check_queue_name(queue)

        def number(state: State, *, future: bool = False) -> int:
            request = structs.PinLaterGetJobCountRequest(
                queueName=name, jobState=state.code, priority=_priority(priority), countFutureJobs=future
            )
            return int(self._call("getJobCount", end_s, request=request))

        return CountsByState(
            pending=number(State.PENDING),
            scheduled=number(State.PENDING, future=True),
            in_progress=number(State.IN_PROGRESS),
            succeeded=number(State.SUCCEEDED),
            failed=number(State.FAILED),
        )

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
        """Iterates over the jobs of a state, page by page, latest time first. See Client.scan and scan_page."""
        page = partial(self.scan_page, queue, state, priority=priority, future=future, with_body=with_body)
        return pages(partial(page, limit=page_size), state)

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
        """Returns one page of a scan, and the cursor of the next page ("" at the end).

        with_body: takes a second call; jobs that are removed in between are left out.
        """
        wanted, end_s = State.of(state), self._end_s()
        if future and wanted is not State.PENDING:
            raise InvalidArgument(f"future: expected with pending jobs, got {wanted.value} ones")
        request = structs.PinLaterScanJobsRequest(
            queueName=check_queue_name(queue),
            jobState=wanted.code,
            priority=_priority(priority),
            scanFutureJobs=bool(future),
            continuation=cursor or structs.CONTINUATION_START,
            limit=check_integer("limit", limit, 1, _MAX_LIMIT),
        )
        response = self._call("scanJobs", end_s, request=request)
        infos = [job_info(info) for info in response.scannedJobs]
        if with_body:
            bodies = self.lookup([info.descriptor for info in infos], with_body=True)
            infos = [replace(info, body=bodies[info.descriptor].body) for info in infos if info.descriptor in bodies]
        end = response.continuation in (None, structs.CONTINUATION_END)
        return infos, "" if end else response.continuation

    # retries and removals

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
        """Moves up to `limit` failed jobs back to pending. Returns how many. See Client.retry_failed.

        The interface does it for one priority a call. Without `priority` there is a call for each that may have some.
        """
        # the arguments have the same limits as those of a new job
        job = checked(NewJob, b"", attempts=attempts, run_after_ms=run_after_ms, delay_ms=delay_ms)
        request = structs.PinLaterRetryFailedJobsRequest(
            queueName=check_queue_name(queue),
            attemptsToAllow=job.attempts,
            runAfterTimestampMillis=time_of(job.run_after_ms, job.delay_ms),
        )
        return self._each_priority("retryFailedJobs", request, State.FAILED, priority, limit)

    def delete_jobs(
        self,
        queue: str | None = None,
        state: State | str | None = None,
        *,
        priority: int | None = None,
        limit: int = 1000,
        descriptors: Iterable[str] | None = None,
    ) -> int:
        """Removes up to `limit` jobs of a queue and a state. Returns how many. descriptors: raises NotOnThrift.

        The interface does it for one priority a call: see retry_failed.
        """
        if descriptors is not None:
            raise NotOnThrift("delete_jobs(descriptors=…)", ON_REDIS)
        if queue is None or state is None:
            raise InvalidArgument("delete_jobs: expected a queue and a state")
        wanted = State.of(state)
        request = structs.PinLaterDeleteJobsRequest(queueName=check_queue_name(queue), jobState=wanted.code)
        return self._each_priority("deleteJobs", request, wanted, priority, limit)

    def _each_priority(self, method: str, request: Any, state: State, priority: int | None, limit: int) -> int:
        """Calls a method for one priority, or for each until `limit` or all jobs of the state are done."""
        end_s = self._end_s()
        left = check_integer("limit", limit, 0, _MAX_LIMIT)
        priorities = [_priority(priority)]
        if priority is None:
            counts = self.count(request.queueName)
            left = min(left, getattr(counts, state.value) + (counts.scheduled if state is State.PENDING else 0))
            priorities = [*range(1, _core.MAX_PRIORITY + 1)]
        done = 0
        for request.priority in priorities:
            if done >= left:
                break
            request.limit = left - done
            try:
                done += self._call(method, end_s, changes=True, request=request)
            except OutcomeUnknown:
                raise
            except PinLaterError as error:
                if not done:
                    raise
                raise PartialOutcome(f"{method}: done for {done:,} jobs, then: {error}", done) from error
        return done

    # what the interface lacks

    configure_queue = _lacking(Client.configure_queue)
    queue_config = _lacking(Client.queue_config)
    pause_queue = _lacking(Client.pause_queue)
    resume_queue = _lacking(Client.resume_queue)
    drain_queue = _lacking(Client.drain_queue)
    queue_limits = _lacking(Client.queue_limits)
    change_shards = _lacking(Client.change_shards)
    reset_lost = _lacking(Client.reset_lost)
    run = _lacking(Client.run)
    release = _lacking(Client.release, "use checkpoint() with move_to_pending=True")
    renew = _lacking(Client.renew, "use checkpoint(), which begins the lease of a job anew")
    peek = _lacking(Client.peek, "use count() with a priority")
    retry_jobs = _lacking(Client.retry_jobs, "use retry_failed()")
    purge = _lacking(Client.purge, "use delete_jobs() for each state, or delete_queue()")

    def _end_s(self) -> float:
        return time.monotonic() + self._timeout_s

    def _call(self, method: str, end_s: float, *, changes: bool = False, source: str = "", **arguments: Any) -> Any:
        """Calls a method of the interface. changes: whether it changes something. source: instead of this client's."""
        sequence = next(self._calls) & _MAX_SEQUENCE
        context = structs.RequestContext(source=source or self._source)
        frame = write_call(method, sequence, {"context": context, **arguments})
        try:
            answer, server = self._connections.ask(frame, reader(method, sequence), end_s, changes=changes)
        except AnswerLost as error:
            raise unknown(f"{method}: sent, and the answer was lost: {error}") from None
        return result_of(answer, method, server, changes=changes)


def _nothing_is_done(errors: list[PinLaterError], parts: int) -> bool:
    """Whether all parts of a call certainly failed."""
    return len(errors) == parts and not any(isinstance(error, OutcomeUnknown) for error in errors)


def _priority(priority: int | None) -> int | None:
    return None if priority is None else check_integer("priority", priority, 1, _core.MAX_PRIORITY)


def _ack_request(queue: str, items: list[Item]) -> Any:
    return structs.PinLaterJobAckRequest(
        queueName=queue,
        jobsSucceeded=[item.wire for item in items if item.succeeded],
        jobsFailed=[item.wire for item in items if not item.succeeded],
    )


def _checkpoint_request(queue: str, items: list[Item]) -> Any:
    return structs.PinLaterCheckpointJobsRequest(queueName=queue, requests=[item.wire for item in items])
