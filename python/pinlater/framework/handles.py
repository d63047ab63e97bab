"""A job that was enqueued, in the hand of its producer.

Promises an answer of now. Risks: between a look and a removal the job may end.
"""

from __future__ import annotations

from pinlater.async_client import AsyncClient
from pinlater.client import Client
from pinlater.framework.clients import AppClients
from pinlater.jobs import JobInfo, State


class Handle:
    """One job. Its methods ask the servers and raise what a Client raises; those with an `a` are for async code."""

    __slots__ = ("_clients", "descriptor")

    def __init__(self, clients: AppClients, descriptor: str) -> None:
        self._clients = clients
        self.descriptor = descriptor

    def __repr__(self) -> str:
        return f"Handle({self.descriptor!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other.descriptor == self.descriptor

    def __hash__(self) -> int:
        return hash(self.descriptor)

    def status(self) -> State | None:
        """The job's state; None if it is not there: it succeeded and its queue keeps none such, or it was removed."""
        return _state(self.info())

    async def astatus(self) -> State | None:
        """See status."""
        return _state(await self.ainfo())

    def info(self) -> JobInfo | None:
        """All that is known of the job, or None."""
        return self._sync.lookup([self.descriptor]).get(self.descriptor)

    async def ainfo(self) -> JobInfo | None:
        """See info."""
        return (await self._async.lookup([self.descriptor])).get(self.descriptor)

    def cancel(self) -> bool:
        """Removes the job if it is pending or running; True if it was.

        A task that runs is not interrupted: its next checkpoint raises ClaimLost, its end is not kept, and it is not
        tried again. A finished job stays as it is.
        """
        return _unfinished(self.status()) and self._sync.delete_jobs(descriptors=[self.descriptor]) == 1

    async def acancel(self) -> bool:
        """See cancel."""
        unfinished = _unfinished(await self.astatus())
        return unfinished and await self._async.delete_jobs(descriptors=[self.descriptor]) == 1

    @property
    def _sync(self) -> Client:
        return self._clients.sync()

    @property
    def _async(self) -> AsyncClient:
        return self._clients.of_loop()


def _state(info: JobInfo | None) -> State | None:
    return None if info is None else info.state


def _unfinished(state: State | None) -> bool:
    return state in (State.PENDING, State.IN_PROGRESS)
