"""Producers: enqueue the calls of a task, from sync and async code, with their types kept.

Promises that a call is checked and packed before anything is sent, and that a missing queue is created.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, ParamSpec, TypeAlias, TypeVar

import pinlater._core as _core
from pinlater._core import MAX_TIME_MS
from pinlater.client.base import check_seconds
from pinlater.client.methods import listed
from pinlater.model.errors import InvalidArgument, QueueNotFound, checked
from pinlater.model.jobs import NewJob
from pinlater.model.queue_config import QueueConfig
from pinlater.model.times import Seconds, as_seconds, milliseconds
from pinlater.tasks import envelope
from pinlater.tasks.app_clients import AppClients
from pinlater.tasks.arguments import Arguments
from pinlater.tasks.context import current_trace
from pinlater.tasks.envelope import Codec
from pinlater.tasks.handles import Handle

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

_NONE: Final[dict[str, Any]] = {}


class CallArguments(NamedTuple):
    """The arguments of one call, as `task.args(…)` makes them for enqueue_many."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


#: What enqueue_many takes for a call: task.args(…), or a tuple of positional arguments.
AnyCall: TypeAlias = CallArguments | tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """How a producer sends calls.

    name: the task's name.
    queue: the queue.
    codec: how arguments are packed.
    options: options of NewJob: priority, attempts, delay_ms, run_after_ms, key.
    headers: headers of the envelope.
    arguments: what the task's function takes and returns.
    results: whether the task may keep results; False if it is known to keep none.
    timeout_s: time limit of a call; None: that of the app.
    """

    name: str
    queue: str
    codec: Codec
    options: dict[str, Any]
    headers: dict[str, Any]
    arguments: Arguments
    results: bool = True
    timeout_s: float | None = None


class Producer(Generic[P, R_co]):
    """Enqueues calls of one task: the task itself, `task.using(…)`, or `app.by_name(…)`.

        handle = add.enqueue(1, 2)
        handle = await add.aenqueue(1, 2)                  # in async code
        handle = add.using(delay=60).enqueue(1, 2)         # in a minute
        handles = add.enqueue_many([add.args(1, 2), add.args(3, 4)])

    P: the parameters of the task. R_co: what it returns (of an async task: when awaited).
    send_options: how it sends.

    Each enqueue raises what Client.enqueue raises, TypeError for a call that does not fit the function, and
    InvalidArgument for arguments that can not be packed or not come back.
    Methods that begin with an `a` are for async code. The others raise InvalidArgument where an event loop runs. All
    `aenqueue`s of one turn of the loop leave as one request.
    """

    def __init__(self, clients: AppClients, send_options: SendOptions) -> None:
        self._clients, self.send_options = clients, send_options
        self._queue, self._options = send_options.queue, send_options.options
        self._headers, self._arguments = send_options.headers, send_options.arguments
        self._calls, self._timeout_s = self._arguments.calls, send_options.timeout_s
        self._results = send_options.arguments if send_options.results else None
        self._hooks = clients.enqueue_hooks
        self._codec = send_options.codec
        self._raw = self._codec == "raw"
        self._head = envelope.head(send_options.name, self._codec)
        self._packers = envelope.packers(self._codec)
        self._template: NewJob | None = None

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]:
        """Enqueues one call. Creates its queue if that is not there."""
        job, client = self._job(args, kwargs), self._clients.blocking("enqueue", self._timeout_s)
        try:
            descriptor = client.enqueue_job(self._queue, job)
        except QueueNotFound:
            client.create_queue(self._queue, self._queue_config())
            descriptor = client.enqueue_job(self._queue, job)
        return Handle(self._clients, descriptor, self._results, self._timeout_s)

    #: Other task queues have this name for it.
    delay = enqueue

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]:
        """See enqueue."""
        job, client = self._job(args, kwargs), self._clients.of_loop(self._timeout_s)
        try:
            descriptor = await client.enqueue_job(self._queue, job)
        except QueueNotFound:
            await client.create_queue(self._queue, self._queue_config())
            descriptor = await client.enqueue_job(self._queue, job)
        return Handle(self._clients, descriptor, self._results, self._timeout_s)

    def enqueue_many(self, calls: Iterable[AnyCall]) -> list[Handle[R_co]]:
        """Enqueues many calls, in order, with as few requests as possible.

        calls: each is `task.args(…)`, which type checkers check, or a tuple of positional arguments.

        Raises also PartialEnqueue, which says what was enqueued, if the calls needed several requests and some failed.
        """
        jobs, client = self._jobs(calls), self._clients.blocking("enqueue_many", self._timeout_s)
        try:
            descriptors = client.enqueue_many(self._queue, jobs)
        except QueueNotFound:
            client.create_queue(self._queue, self._queue_config())
            descriptors = client.enqueue_many(self._queue, jobs)
        return [Handle(self._clients, descriptor, self._results, self._timeout_s) for descriptor in descriptors]

    async def aenqueue_many(self, calls: Iterable[AnyCall]) -> list[Handle[R_co]]:
        """See enqueue_many."""
        jobs, client = self._jobs(calls), self._clients.of_loop(self._timeout_s)
        try:
            descriptors = await client.enqueue_many(self._queue, jobs)
        except QueueNotFound:
            await client.create_queue(self._queue, self._queue_config())
            descriptors = await client.enqueue_many(self._queue, jobs)
        return [Handle(self._clients, descriptor, self._results, self._timeout_s) for descriptor in descriptors]

    def args(self, *args: P.args, **kwargs: P.kwargs) -> CallArguments:
        """The arguments of one call, for enqueue_many."""
        return CallArguments(args, kwargs)

    def using(
        self,
        *,
        delay: Seconds | None = None,
        at: datetime.datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        key: str | bytes | None = None,
        trace: str | None = None,
        timeout: Seconds | None = None,
    ) -> Producer[P, R_co]:
        """The same task with other options for its calls. What is not given stays as it is.

        delay: from now, in seconds or as a timedelta.
        at: the earliest time (a datetime with a time zone), instead of a delay.
        priority: 1 (first) to the number of the queue's priorities.
        queue: another queue.
        key: calls with the same key go to the same shard.
        trace: a trace context, which the task finds in `context.trace`.
        timeout: time limit of a call, as `delay`, in place of the app's `timeout_s`. Its handles keep it.
            It does not limit the task.

        Raises InvalidArgument.
        """
        self._check_using(delay, at, queue, trace)
        options, headers = dict(self._options), dict(self._headers)
        if delay is not None or at is not None:
            for name in ("delay", "at"):
                headers.pop(name, None)
            options["delay_ms"] = None if delay is None else milliseconds("delay", delay)
            options["run_after_ms"] = None if at is None else _milliseconds_at(at)
            headers |= {"delay": options["delay_ms"]} if at is None else {"at": options["run_after_ms"]}
        options |= {name: value for name, value in (("priority", priority), ("key", key)) if value is not None}
        headers |= {} if trace is None else {"trace": trace}
        queue = self.send_options.queue if queue is None else queue
        headers = {} if self._raw else headers
        if timeout is not None:
            timeout = check_seconds("timeout", as_seconds(timeout), "seconds or a timedelta")
        return Producer(
            self._clients,
            dataclasses.replace(
                self.send_options, queue=queue, options=options, headers=headers, timeout_s=timeout or self._timeout_s
            ),
        )

    def _check_using(self, delay: object, at: object, queue: str | None, trace: object) -> None:
        name = self.send_options.name
        if delay is not None and at is not None:
            raise InvalidArgument("using: expected a delay or a time (at), got both")
        if not isinstance(trace, str | None):
            raise InvalidArgument(f"trace: expected text, got {trace!r:.60}")
        if not self._raw and queue in self._clients.raw_queues:
            raise InvalidArgument(f"task {name!r}: queue {queue!r} is of a raw task, which takes no others")
        if self._raw and (trace is not None or queue not in (None, self.send_options.queue)):
            raise InvalidArgument(f"task {name!r}: a raw task has no trace, and is found by its own queue alone")

    def _queue_config(self) -> QueueConfig:
        return self._clients.queue_config(self._queue, self.send_options.name, self._options["priority"])

    def _current_headers(self) -> dict[str, Any]:
        """The headers of a call enqueued now: those of using(), the trace of the running task, those of middleware."""
        headers, trace = self._headers, current_trace.get()
        if trace is not None:
            headers = {"trace": trace, **headers}
        if self._hooks and not self._raw:
            headers = dict(headers)
            for hook in self._hooks:
                hook(self.send_options.name, headers)
        return headers

    def _job(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        if self._raw:
            body = self._raw_body(args, kwargs)
        else:
            plain: Sequence[Any] = args
            if not self._calls.knows(args, kwargs):
                plain, kwargs = self._arguments.plain(args, kwargs)
            headers = self._headers if current_trace.get() is None and not self._hooks else self._current_headers()
            document = envelope.document(plain, kwargs, headers) if kwargs or headers else (plain,)
            try:
                body = self._head + self._packers.pack(document)
            except Exception as error:
                raise self._not_packed(error) from None
        if self._template is None:  # options are checked once a producer
            self._template = checked(NewJob, b"", **self._options)
        return self._template.with_body(body)

    def _bodies(self, calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[bytes]:
        """The bodies of many calls. They share their headers, so middleware is called once."""
        if self._raw:
            return [self._raw_body(args, kwargs) for args, kwargs in calls]
        plain = [call if self._calls.knows(*call) else self._arguments.plain(*call) for call in calls]
        pack, head, headers, document = self._packers.pack, self._head, self._current_headers(), envelope.document
        try:
            return [head + pack(document(args, kwargs, headers)) for args, kwargs in plain]
        except Exception as error:
            raise self._not_packed(error) from None

    def _not_packed(self, error: Exception) -> InvalidArgument:
        return InvalidArgument(
            f"task {self.send_options.name!r}: its arguments can not be packed as {self._codec}: {error}"
        )

    def _raw_body(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        if len(args) != 1 or kwargs or not isinstance(args[0], bytes):
            raise InvalidArgument(
                f"task {self.send_options.name!r}: a raw task takes one argument, bytes, got {args!r:.60}"
            )
        return args[0]

    def _jobs(self, calls: Iterable[AnyCall]) -> list[NewJob]:
        pairs = [call if type(call) is CallArguments else (call, _NONE) for call in listed("calls", calls)]
        for args, _ in pairs:
            if not isinstance(args, tuple):
                raise InvalidArgument(f"calls: expected task.args(…) or a tuple of arguments, got {args!r:.60}")
        jobs: list[NewJob] = checked(_core.new_jobs, self._bodies(pairs), **self._options)
        return jobs


def _milliseconds_at(at: datetime.datetime) -> int:
    if not isinstance(at, datetime.datetime) or at.tzinfo is None:
        raise InvalidArgument(f"at: expected a datetime with a time zone, got {at!r:.60}")
    if not 0 <= at.timestamp() <= MAX_TIME_MS / 1000:
        latest = datetime.datetime.fromtimestamp(MAX_TIME_MS // 1000, datetime.UTC)
        raise InvalidArgument(f"at: expected a time from 1970 to {latest:%Y-%m-%d}, got {at}")
    return milliseconds("at", at.timestamp())
