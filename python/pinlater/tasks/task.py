"""Tasks: functions whose calls can be put in line, from sync and async code, with their types kept.

Promises that a call is packed and checked before anything is sent, and that a queue that is not there is made. Risks: a
call is checked against the function's signature by the type checker alone; a wrong one fails when it runs.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, NamedTuple, ParamSpec, TypeAlias, TypeVar, cast

import pinlater._core as _core
from pinlater._core import MAX_TIME_MS
from pinlater.client.methods import listed
from pinlater.model.errors import InvalidArgument, QueueNotFound, checked
from pinlater.model.jobs import Job, NewJob
from pinlater.model.queue_config import QueueConfig
from pinlater.tasks import envelope
from pinlater.tasks.app_clients import AppClients
from pinlater.tasks.batches import Item
from pinlater.tasks.context import current_trace
from pinlater.tasks.dependencies import Needs
from pinlater.tasks.envelope import Codec
from pinlater.tasks.functions import check_function, context_of, never_fits
from pinlater.tasks.handles import Handle
from pinlater.tasks.reports import Failure
from pinlater.tasks.retry_policies import Backoff, milliseconds
from pinlater.worker.executor import is_async

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

#: The shard's name in the descriptor of a call that no queue saw.
INLINE: Final = "inline"


class Arguments(NamedTuple):
    """One call of enqueue_many, as `task.args(…)` makes it."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


#: Where a task runs: async ones on the loop, plain functions in a thread or in another process.
Kind: TypeAlias = Literal["loop", "thread", "process"]

_NONE: Final[dict[str, Any]] = {}

#: A call of enqueue_many: task.args(…), or a plain tuple of positional arguments.
Call: TypeAlias = Arguments | tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """How a producer sends: where, how packed, options of Client.enqueue, headers of the envelope. given: parameters
    that are the worker's to give. results: whether the task is known to keep none (False) or may (True).
    """

    name: str
    queue: str
    codec: Codec
    options: dict[str, Any]
    headers: dict[str, Any]
    given: frozenset[str] = frozenset()
    results: bool = True


class Producer(Generic[P, R_co]):
    """Puts calls of one task in line: the task itself, `task.using(…)`, or `app.by_name(…)`.

    P: what the task takes. R_co: what it returns; of an async one, awaited. sending: where its calls go, and as what.

    Every method raises what Client.enqueue raises, and InvalidArgument for arguments that the codec can not pack. Those
    with an `a` are for async code, where the others raise InvalidArgument; `aenqueue`s that wait in the same turn of
    the loop leave as one call.
    """

    def __init__(self, clients: AppClients, sending: Sending) -> None:
        self._clients, self.sending = clients, sending
        self._queue, self._options = sending.queue, sending.options
        self._headers, self._given, self._results = sending.headers, sending.given, sending.results
        self._hooks = clients.enqueue_hooks
        self._raw = sending.codec == "raw"
        self._head = envelope.head(sending.name, sending.codec)
        self._codec = sending.codec
        self._packers = envelope.packers(sending.codec)
        self._model: NewJob | None = None

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]:
        """Puts one call in line."""
        job, client = self._job(args, kwargs), self._clients.blocking("enqueue")
        try:
            descriptor = client.enqueue_job(self._queue, job)
        except QueueNotFound:
            client.create_queue(self._queue, self._queue_config())
            descriptor = client.enqueue_job(self._queue, job)
        return Handle(self._clients, descriptor, self._results)

    #: The name it has elsewhere.
    delay = enqueue

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]:
        """See enqueue."""
        job, client = self._job(args, kwargs), self._clients.of_loop()
        try:
            descriptor = await client.enqueue_job(self._queue, job)
        except QueueNotFound:
            await client.create_queue(self._queue, self._queue_config())
            descriptor = await client.enqueue_job(self._queue, job)
        return Handle(self._clients, descriptor, self._results)

    def enqueue_many(self, calls: Iterable[Call]) -> list[Handle[R_co]]:
        """Puts many calls in line, in order. calls: `task.args(…)`, which is type-checked, or tuples of arguments."""
        jobs, client = self._jobs(calls), self._clients.blocking("enqueue_many")
        try:
            descriptors = client.enqueue_many(self._queue, jobs)
        except QueueNotFound:
            client.create_queue(self._queue, self._queue_config())
            descriptors = client.enqueue_many(self._queue, jobs)
        return [Handle(self._clients, descriptor, self._results) for descriptor in descriptors]

    async def aenqueue_many(self, calls: Iterable[Call]) -> list[Handle[R_co]]:
        """See enqueue_many."""
        jobs, client = self._jobs(calls), self._clients.of_loop()
        try:
            descriptors = await client.enqueue_many(self._queue, jobs)
        except QueueNotFound:
            await client.create_queue(self._queue, self._queue_config())
            descriptors = await client.enqueue_many(self._queue, jobs)
        return [Handle(self._clients, descriptor, self._results) for descriptor in descriptors]

    def args(self, *args: P.args, **kwargs: P.kwargs) -> Arguments:
        """One call, for enqueue_many."""
        return Arguments(args, kwargs)

    def using(
        self,
        *,
        delay: float | None = None,
        at: datetime.datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        key: str | bytes | None = None,
        trace: str | None = None,
    ) -> Producer[P, R_co]:
        """The same task, sent otherwise.

        delay: seconds from now. at: not before this time (with its time zone), instead of a delay. priority: 1 (first)
        to the queue's levels. queue: another queue. key: calls of one key go to one shard. trace: a trace context for
        the task. What is not given stays as it is.
        """
        if delay is not None and at is not None:
            raise InvalidArgument("using: expected a delay or a time (at), got both")
        options, headers = dict(self._options), dict(self._headers)
        if delay is not None or at is not None:
            for name in ("delay", "at"):
                headers.pop(name, None)
            options["delay_ms"] = None if delay is None else milliseconds("delay", delay)
            options["run_after_ms"] = None if at is None else _milliseconds_at(at)
            headers |= {"delay": options["delay_ms"]} if at is None else {"at": options["run_after_ms"]}
        options |= {name: value for name, value in (("priority", priority), ("key", key)) if value is not None}
        headers |= {} if trace is None else {"trace": trace}
        sending = self.sending
        if not isinstance(trace, str | None):
            raise InvalidArgument(f"trace: expected text, got {trace!r:.60}")
        if not self._raw and queue in self._clients.raw_queues:
            raise InvalidArgument(f"task {sending.name!r}: queue {queue!r} is of a raw task, which takes no others")
        if self._raw and (trace is not None or queue not in (None, sending.queue)):
            raise InvalidArgument(
                f"task {sending.name!r}: a raw task has no trace, and is found by its own queue alone"
            )
        return Producer(
            self._clients,
            Sending(
                name=sending.name,
                queue=sending.queue if queue is None else queue,
                codec=sending.codec,
                options=options,
                headers={} if self._raw else headers,
                given=sending.given,
                results=sending.results,
            ),
        )

    def _queue_config(self) -> QueueConfig:
        return self._clients.queue_config(self._queue, self.sending.name, self._options["priority"])

    def _told(self) -> dict[str, Any]:
        """The headers of what is put in line now: those of using(), the trace of the task that runs, those of hooks."""
        headers, trace = self._headers, current_trace.get()
        if trace is not None:
            headers = {"trace": trace, **headers}
        if self._hooks and not self._raw:
            headers = dict(headers)
            for hook in self._hooks:
                hook(self.sending.name, headers)
        return headers

    def _job(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        if self._raw:
            body = self._raw_body(args, kwargs)
        else:
            if self._given:
                self._check_given(kwargs)
            headers = self._headers if current_trace.get() is None and not self._hooks else self._told()
            document = envelope.document(args, kwargs, headers) if kwargs or headers else (args,)
            try:
                body = self._head + self._packers.pack(document)
            except Exception as error:
                raise self._not_packed(error) from None
        if self._model is None:  # its options are checked once
            self._model = checked(NewJob, b"", **self._options)
        return self._model.with_body(body)

    def _bodies(self, calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[bytes]:
        """As the body in _job, of each, in one loop."""
        if self._raw:
            return [self._raw_body(args, kwargs) for args, kwargs in calls]
        for _, kwargs in calls if self._given else ():
            self._check_given(kwargs)
        pack, head, headers, document = self._packers.pack, self._head, self._told(), envelope.document
        try:
            return [head + pack(document(args, kwargs, headers)) for args, kwargs in calls]
        except Exception as error:
            raise self._not_packed(error) from None

    def _check_given(self, kwargs: dict[str, Any]) -> None:
        if given := self._given & kwargs.keys():
            told = ", ".join(sorted(given))
            raise InvalidArgument(f"task {self.sending.name!r}: expected {told} from the worker, not from the caller")

    def _not_packed(self, error: Exception) -> InvalidArgument:
        return InvalidArgument(f"task {self.sending.name!r}: its arguments can not be packed as {self._codec}: {error}")

    def _raw_body(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        if len(args) != 1 or kwargs or not isinstance(args[0], bytes):
            raise InvalidArgument(f"task {self.sending.name!r}: a raw task takes one argument, bytes, got {args!r:.60}")
        return args[0]

    def _jobs(self, calls: Iterable[Call]) -> list[NewJob]:
        told = [call if type(call) is Arguments else (call, _NONE) for call in listed("calls", calls)]
        for args, _ in told:
            if not isinstance(args, tuple):
                raise InvalidArgument(f"calls: expected task.args(…) or a tuple of arguments, got {args!r:.60}")
        jobs: list[NewJob] = checked(_core.new_jobs, self._bodies(told), **self._options)
        return jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """How a task is run; see PinLater.task. Times are in the units of the engine. kind: None: as its function asks."""

    backoff: Backoff
    give_up_on: tuple[type[BaseException], ...]
    timeout_s: float | None
    expires_ms: int | None
    lease_ms: int | None
    result_ttl_ms: int | None
    on_failure: Callable[[Failure], Any] | None
    kind: Kind | None = None
    batch: int | None = None
    batch_wait_s: float = 0.0


class Task(Producer[P, R_co]):
    """A function with `@app.task`: an AsyncTask or a PlainTask. A plain call runs it here and now, with a context of
    its own if it takes one; what the worker would give it (`Depends`, `Shared`) is given by the caller.
    """

    def __init__(self, function: Callable[..., Any], clients: AppClients, sending: Sending, running: Running) -> None:
        what = f"task {sending.name!r}"
        check_function(what, function)
        self.needs = Needs(what, function)
        sending = dataclasses.replace(sending, given=frozenset(self.needs.parameters))
        super().__init__(clients, sending)
        # not its __dict__ in one go: reads of an object whose __dict__ was asked for are slow (Python 3.11)
        functools.update_wrapper(self, function, updated=())
        for name, value in getattr(function, "__dict__", {}).items():
            setattr(self, name, value)
        self.name, self.queue = sending.name, sending.queue
        self.codec, self.priority = sending.codec, sending.options["priority"]
        self.function, self.running = function, running
        self.is_async = isinstance(self, AsyncTask)
        self.kind: Kind = running.kind or ("loop" if self.is_async else "thread")
        self.hook_is_async = running.on_failure is not None and is_async(running.on_failure)
        self.context = context_of(what, function, self.is_async)
        self._check()

    def __repr__(self) -> str:
        return f"<task {self.name!r} of queue {self.queue!r}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co | Coroutine[Any, Any, R_co]:
        return cast(R_co, self._call(args, kwargs))

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the function gives, called here and now."""
        if missing := self.needs.parameters.keys() - kwargs.keys():
            told = ", ".join(sorted(missing))
            raise InvalidArgument(f"task {self.name!r}: expected {told} from the caller of a plain call, got none")
        if self.context is None and self.running.batch is None:
            return self.function(*args, **kwargs)
        job = Job(self.queue, INLINE, self.priority, 1, b"", bytes(8), 1, 1)
        if self.context is not None:
            return self.function(self.context(job, self.name, _keep_nothing), *args, **kwargs)
        item: Item[Any] = Item(job, *args)
        return self._batch_of_one(item, self.function([item], **kwargs))

    def _batch_of_one(self, item: Item[Any], value: Any) -> Any:
        """What a plain call of a batch task gives, by what its function gave."""
        raise NotImplementedError

    def never_fits(self, job: Job, error: BaseException) -> bool:
        """Whether the error is that of a call which the function can not take: no further attempt mends it."""
        if type(error) is not TypeError:
            return False
        args, kwargs = ([job.body], {}) if self._raw else envelope.read(job.body)[1:3]
        if self.running.batch is not None:
            return len(args) != 1 or bool(kwargs)
        given, context = self.needs.parameters, self.context is not None
        return never_fits(self.function, args, kwargs, error, given=given, context=context)

    def _check(self) -> None:
        """What goes together, or InvalidArgument."""
        name, kind = self.name, self.kind
        if self.is_async is not (kind == "loop"):
            wanted, got = ("async def", "a plain function") if kind == "loop" else ("a plain function", "async def")
            raise InvalidArgument(f"task {name!r}: expected {wanted} for runs_in={kind!r}, got {got}")
        if self.running.batch is not None and kind == "process":
            raise InvalidArgument(f"task {name!r}: expected a batch task in the loop or in a thread, got {kind!r}")
        if self.running.batch is not None and self.running.result_ttl_ms is not None:
            raise InvalidArgument(f"task {name!r}: expected no result_ttl for a batch, as its function returns nothing")
        if self.running.batch is not None and self.context is not None:
            raise InvalidArgument(f"task {name!r}: expected no context for a batch, as each item has its job")


class PlainTask(Task[P, R_co]):
    """Of a plain function: a call returns what it returns."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        return cast(R_co, self._call(args, kwargs))

    def _batch_of_one(self, item: Item[Any], value: Any) -> None:
        if item.error is not None:
            raise item.error


class AsyncTask(Task[P, R_co]):
    """Of an `async def`: a call is awaited."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        return cast(Coroutine[Any, Any, R_co], self._call(args, kwargs))

    async def _batch_of_one(self, item: Item[Any], value: Any) -> None:
        await value
        if item.error is not None:
            raise item.error


def task_of(function: Callable[..., Any], clients: AppClients, sending: Sending, running: Running) -> Task[..., Any]:
    """The task of either kind."""
    kind: type[Task[..., Any]] = AsyncTask if is_async(function) else PlainTask
    return kind(function, clients, sending, running)


async def _keep_nothing(job: Job, headers: Mapping[str, Any]) -> None:
    """An inline call's checkpoint."""


def _milliseconds_at(at: datetime.datetime) -> int:
    if not isinstance(at, datetime.datetime) or at.tzinfo is None:
        raise InvalidArgument(f"at: expected a datetime with a time zone, got {at!r:.60}")
    if not 0 <= at.timestamp() <= MAX_TIME_MS / 1000:
        latest = datetime.datetime.fromtimestamp(MAX_TIME_MS // 1000, datetime.UTC)
        raise InvalidArgument(f"at: expected a time from 1970 to {latest:%Y-%m-%d}, got {at}")
    return milliseconds("at", at.timestamp())
