"""A job that was enqueued, in the hand of its producer.

Promises an answer of now; of `result` the one that comes. Risks: between a look and a removal the job may end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar, cast

from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import BodyUnreadable, InvalidArgument
from pinlater.model.jobs import JobInfo, State
from pinlater.operations import results
from pinlater.tasks import envelope
from pinlater.tasks.app_clients import AppClients

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a task said it is. total: None if it did not say."""

    done: float
    total: float | None = None
    note: str = ""

    def __str__(self) -> str:
        share = "" if self.total is None else f" of {self.total:g}"
        return f"{self.done:g}{share}{': ' if self.note else ''}{self.note}"


@dataclass(frozen=True, slots=True)
class TaskInfo(JobInfo):
    """What is known of a task's job: a JobInfo, and what stands in its envelope.

    task: its name. args, kwargs: of the call, as the codec gives them back. All three are None if the body is no
    envelope. progress: None if it told none. checkpoint: the state that was kept last.
    """

    task: str | None = None
    progress: Progress | None = None
    checkpoint: Any = None
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None

    @classmethod
    def of(cls, info: JobInfo) -> TaskInfo:
        """Reads the body of an info that has one."""
        known = {field.name: getattr(info, field.name) for field in fields(JobInfo)}
        try:
            name, args, kwargs, headers = envelope.read(info.body or b"")
        except BodyUnreadable:
            return cls(**known)
        return cls(
            **known,
            task=name.decode("utf-8", "replace"),
            progress=_progress(headers.get("progress")),
            checkpoint=headers.get("state"),
            args=args,
            kwargs=kwargs,
        )


def _progress(told: Any) -> Progress | None:
    """What the header says; None if it says nothing that a task of ours writes."""
    match told:
        case [int() | float() as done, int() | float() | None as total, str() as note]:
            return Progress(done, total, note)
    return None


class Handle(Generic[R_co]):
    """One job of a task that returns R_co. Its methods ask the servers and raise what a Client raises; those with an
    `a` are for async code, where the others raise InvalidArgument: they would block the loop.

    results: False if its task is known to keep none.
    """

    __slots__ = ("_clients", "_results", "descriptor")

    def __init__(self, clients: AppClients, descriptor: str, results: bool = True) -> None:
        self._clients = clients
        self._results = results
        self.descriptor = descriptor

    def __repr__(self) -> str:
        return f"Handle({self.descriptor!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other.descriptor == self.descriptor

    def __hash__(self) -> int:
        return hash(self.descriptor)

    def status(self) -> State | None:
        """The job's state; None if it is not there: it succeeded and neither it nor a result is kept, or it was
        removed.
        """
        client = self._clients.blocking("status")
        if not self._results:
            return _state(client.lookup([self.descriptor]).get(self.descriptor))
        return client.run(lambda end: results.state_of(client.session, self.descriptor, end))

    async def astatus(self) -> State | None:
        """See status."""
        client = self._async
        if not self._results:
            return _state((await client.lookup([self.descriptor])).get(self.descriptor))
        return await client.run(lambda end: results.state_of(client.session, self.descriptor, end))

    def info(self) -> TaskInfo | None:
        """All that is known of the job, or None."""
        found = self._clients.blocking("info").lookup([self.descriptor], with_body=True).get(self.descriptor)
        return None if found is None else TaskInfo.of(found)

    async def ainfo(self) -> TaskInfo | None:
        """See info."""
        found = (await self._async.lookup([self.descriptor], with_body=True)).get(self.descriptor)
        return None if found is None else TaskInfo.of(found)

    def result(self, timeout: float | None = None) -> R_co:
        """What the task returned, waited for, as its codec gives it back: of a tuple a list, of JSON a date as text.

        timeout: seconds at most; None: as long as it takes, 0: only a look.

        Raises TaskFailed if the job stays failed, ResultTimeout (also a TimeoutError) if it has not ended in time,
        ResultGone if neither job nor result is there any more, and InvalidArgument of a task without result_ttl.
        """
        wait_s, client = self._wait_s(timeout), self._clients.blocking("result")
        if wait_s and self._clients.deferring(blocking=True) and _unfinished(self.status()):
            raise self._runs_later()
        packed = client.run(lambda end: results.wait_for(client.session, self.descriptor, wait_s, end))
        return cast(R_co, envelope.read_result(packed))

    async def aresult(self, timeout: float | None = None) -> R_co:  # noqa: ASYNC109  (the sync twin has it)
        """See result."""
        wait_s, client = self._wait_s(timeout), self._async
        if wait_s and self._clients.deferring(blocking=False) and _unfinished(await self.astatus()):
            raise self._runs_later()
        packed = await client.run(lambda end: results.wait_for(client.session, self.descriptor, wait_s, end))
        return cast(R_co, envelope.read_result(packed))

    def cancel(self) -> bool:
        """Removes the job if it is pending or running; True if it was.

        If it runs, its worker is told: an async task is cancelled, a plain function finds `context.cancelled` set, and
        a checkpoint raises ClaimLost. Its end is not kept, and it is not tried again. A finished job stays as it is.
        """
        client = self._clients.blocking("cancel")
        removed = _unfinished(self.status()) and client.delete_jobs(descriptors=[self.descriptor]) == 1
        if removed and self._results:
            client.run(lambda end: results.tell(client.session, [self.descriptor], end))
        return removed

    async def acancel(self) -> bool:
        """See cancel."""
        client = self._async
        unfinished = _unfinished(await self.astatus())
        removed = unfinished and await client.delete_jobs(descriptors=[self.descriptor]) == 1
        if removed and self._results:
            await client.run(lambda end: results.tell(client.session, [self.descriptor], end))
        return removed

    def _wait_s(self, timeout: object) -> float:
        if not self._results:
            raise InvalidArgument(f"job {self.descriptor}: its task keeps no results: expected one with result_ttl")
        if timeout is None:
            return math.inf
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout <= math.inf:
            raise InvalidArgument(f"timeout: expected seconds, 0 or more, got {timeout!r:.60}")
        return float(timeout)

    def _runs_later(self) -> InvalidArgument:
        return InvalidArgument(
            f"job {self.descriptor}: expected no wait for its result within a task: in immediate mode its job runs "
            "after this task"
        )

    @property
    def _async(self) -> AsyncClient:
        return self._clients.of_loop()


def _state(info: JobInfo | None) -> State | None:
    return None if info is None else info.state


def _unfinished(state: State | None) -> bool:
    return state in (State.PENDING, State.IN_PROGRESS)
