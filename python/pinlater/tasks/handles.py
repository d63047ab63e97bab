"""Handles: what a producer holds of a job that it enqueued.

Promises that each method asks the server anew. Risks: cancel() reads the state before it removes the job, so the job
may end in between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar, cast

from pinlater.client.async_client import AsyncClient
from pinlater.client.client import Client
from pinlater.model.errors import BodyUnreadable, InvalidArgument
from pinlater.model.jobs import JobInfo, State
from pinlater.model.times import Seconds, as_seconds
from pinlater.operations import results
from pinlater.tasks import envelope
from pinlater.tasks.app_clients import AppClients
from pinlater.tasks.arguments import UNKNOWN, Arguments

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress that a task reported.

    done, total: numbers in the task's unit; total is None if the task gave none.
    note: text of the task.
    """

    done: float
    total: float | None = None
    note: str = ""

    def __str__(self) -> str:
        share = "" if self.total is None else f" of {self.total:g}"
        return f"{self.done:g}{share}{': ' if self.note else ''}{self.note}"


@dataclass(frozen=True, slots=True)
class TaskInfo(JobInfo):
    """All that is known of a task's job: the fields of a JobInfo, and what its body says.

    task: the task's name.
    args, kwargs: the arguments of the call, as the codec restores them.
    progress: the last progress that was written, or None.
    checkpoint: the state of the last checkpoint, or None.

    These are None if the body is no envelope.
    """

    task: str | None = None
    progress: Progress | None = None
    checkpoint: Any = None
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None

    @classmethod
    def of(cls, info: JobInfo) -> TaskInfo:
        """Makes a TaskInfo from a JobInfo that has a body."""
        values = {field.name: getattr(info, field.name) for field in fields(JobInfo)}
        try:
            name, args, kwargs, headers = envelope.read(info.body or b"")
        except BodyUnreadable:
            return cls(**values)
        return cls(
            **values,
            task=name.decode("utf-8", "replace"),
            progress=_progress(headers.get("progress")),
            checkpoint=headers.get("state"),
            args=args,
            kwargs=kwargs,
        )


def _progress(header: Any) -> Progress | None:
    """The progress in a header; None for anything that a Context does not write."""
    match header:
        case [int() | float() as done, int() | float() | None as total, str() as note]:
            return Progress(done, total, note)
    return None


class Handle(Generic[R_co]):
    """One job of a task that returns R_co.

        handle = add.enqueue(1, 2)
        handle.result(timeout=5)          # 3, for a task with result_ttl
        await handle.aresult(timeout=5)   # the same in async code

    descriptor: names the job; `app.handle(descriptor)` makes the handle again.

    Each method asks the servers, and raises what a Client raises. Each call has the time limit of the producer that
    made the handle (`using(timeout=)`), else the app's `timeout_s`. Methods that begin with an `a` are for async code.
    The others raise InvalidArgument where an event loop runs, as they would block it.
    """

    __slots__ = ("_clients", "_results", "_timeout_s", "descriptor")

    def __init__(
        self,
        clients: AppClients,
        descriptor: str,
        results: Arguments | None = UNKNOWN,
        timeout_s: float | None = None,
    ) -> None:
        # results: restores them; None if the task is known to keep none. timeout_s: of a call; None: that of the app
        self._clients = clients
        self._results = results
        self._timeout_s = timeout_s
        self.descriptor = descriptor

    def __repr__(self) -> str:
        return f"Handle({self.descriptor!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other.descriptor == self.descriptor

    def __hash__(self) -> int:
        return hash(self.descriptor)

    def status(self) -> State | None:
        """The job's state; None if the job is not there any more.

        That is: it was removed, or it succeeded and neither the job nor its result is kept any more.

        Raises JobUnknown for a job that never was, where that can be known: its id is later than the last one of its
        queue on its shard. Raises QueueNotFound if there is no such queue. An earlier id that was never given counts as
        that of a job which is not there any more.
        """
        client = self._blocking("status")
        return client.run(lambda end: results.state_of(client.session, self.descriptor, end))

    async def astatus(self) -> State | None:
        """See status."""
        client = self._async
        return await client.run(lambda end: results.state_of(client.session, self.descriptor, end))

    def info(self) -> TaskInfo | None:
        """All that is known of the job; None if the job is not there."""
        found = self._blocking("info").lookup([self.descriptor], with_body=True).get(self.descriptor)
        return None if found is None else TaskInfo.of(found)

    async def ainfo(self) -> TaskInfo | None:
        """See info."""
        found = (await self._async.lookup([self.descriptor], with_body=True)).get(self.descriptor)
        return None if found is None else TaskInfo.of(found)

    def result(self, timeout: Seconds | None = None) -> R_co:
        """Waits for the job to end and returns what the task returned, as its annotation says.

        Without an annotation, or from `app.handle()`, it is what its codec restores: a list for a tuple, text for a
        date in JSON. So is a result that does not fit its annotation.

        timeout: the longest wait, in seconds or as a timedelta. None: no limit. 0: no wait. It holds whatever the
            server does, but what was sent gets 1 s for its answer. If the limit of a call is shorter, a server that
            does not answer at first ends the wait at that limit. Later it is asked again until the wait ends.

        Raises:
            TaskFailed: the job failed for good.
            ResultTimeout: the job did not end in time, as the server said at the end. It is a TimeoutError too.
            ServerUnavailable: no server answered until the end, so nobody knows whether the job ended.
            ResultGone: neither the job nor its result is there any more.
            InvalidArgument: the task keeps no results, as it has no result_ttl.
        """
        wait_s, client = self._wait_s(timeout), self._blocking("result")
        if wait_s and self._clients.deferring(blocking=True) and _unfinished(self.status()):
            raise self._deferred_error()
        packed = client.run(lambda end: results.wait_for(client.session, self.descriptor, wait_s, end))
        return self._restored(packed)

    async def aresult(self, timeout: Seconds | None = None) -> R_co:  # noqa: ASYNC109  (the sync twin has it)
        """See result."""
        wait_s, client = self._wait_s(timeout), self._async
        if wait_s and self._clients.deferring(blocking=False) and _unfinished(await self.astatus()):
            raise self._deferred_error()
        packed = await client.run(lambda end: results.wait_for(client.session, self.descriptor, wait_s, end))
        return self._restored(packed)

    def cancel(self) -> bool:
        """Removes the job if it is pending or running, and returns whether it was. A finished job stays as it is.

        The worker of a running job is notified: it cancels an async task, sets `context.cancelled` for a plain
        function, and kills the process of a process task. A checkpoint of the job then raises ClaimLost. The end of the
        run is not kept, and the job is not tried again.
        """
        client = self._blocking("cancel")
        removed = _unfinished(self.status()) and client.delete_jobs(descriptors=[self.descriptor]) == 1
        if removed and self._results:
            client.run(lambda end: results.notify(client.session, [self.descriptor], end))
        return removed

    async def acancel(self) -> bool:
        """See cancel."""
        client = self._async
        unfinished = _unfinished(await self.astatus())
        removed = unfinished and await client.delete_jobs(descriptors=[self.descriptor]) == 1
        if removed and self._results:
            await client.run(lambda end: results.notify(client.session, [self.descriptor], end))
        return removed

    def _restored(self, packed: bytes) -> R_co:
        assert self._results is not None
        return cast(R_co, self._results.read_result(packed))

    def _wait_s(self, timeout: Seconds | None) -> float:
        if not self._results:
            raise InvalidArgument(f"job {self.descriptor}: its task keeps no results: expected one with result_ttl")
        if timeout is None:
            return math.inf
        wait_s = as_seconds(timeout)
        if isinstance(wait_s, bool) or not isinstance(wait_s, int | float) or not 0 <= wait_s <= math.inf:
            raise InvalidArgument(f"timeout: expected seconds or a timedelta, 0 or more, got {timeout!r:.60}")
        return float(wait_s)

    def _deferred_error(self) -> InvalidArgument:
        return InvalidArgument(
            f"job {self.descriptor}: expected no wait for its result within a task: in immediate mode its job runs "
            "after this task"
        )

    def _blocking(self, call: str) -> Client:
        return self._clients.blocking(call, self._timeout_s)

    @property
    def _async(self) -> AsyncClient:
        return self._clients.of_loop(self._timeout_s)


def _unfinished(state: State | None) -> bool:
    return state in (State.PENDING, State.IN_PROGRESS)
