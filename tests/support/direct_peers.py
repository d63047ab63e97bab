"""The direct clients behind the way of calling of the Thrift clients, so that one test runs for both.

Promises: values are those of the interface, errors are those of the direct client. A field that the direct clients have
no argument for raises NoSuchArgument. tests/server/test_direct_clients.py has each difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from pinlater import Ack, Checkpoint, JobInfo, NewJob, QueueConfig
from pinlater.server.wire_values import state_of
from tests.support.both_clients import Calls, CallsKind, make_calls
from tests.support.thrift_clients import Peer

#: Fields of the interface, and the arguments of a client.
JOB: Final = {
    "body": "body",
    "priority": "priority",
    "runAfterTimestampMillis": "run_after_ms",
    "numAttemptsAllowed": "attempts",
    "customStatus": "status",
}
DEQUEUE: Final = {"queueName": "queue", "limit": "limit", "dryRun": "dry_run"}
COUNT: Final = {"queueName": "queue", "priority": "priority"}
SCAN: Final = {
    "queueName": "queue",
    "jobState": "state",
    "priority": "priority",
    "scanFutureJobs": "future",
    "limit": "limit",
}
RETRY: Final = {
    "queueName": "queue",
    "priority": "priority",
    "attemptsToAllow": "attempts",
    "runAfterTimestampMillis": "run_after_ms",
    "limit": "limit",
}
DELETE: Final = {"queueName": "queue", "jobState": "state", "priority": "priority", "limit": "limit"}


class NoSuchArgument(Exception):
    """The direct clients have no such argument."""


class ForDirect(Protocol):
    """What a direct client needs of a service: its shards, and the settings of its queues."""

    @property
    def shards(self) -> Mapping[str, str]: ...

    @property
    def queue_config(self) -> QueueConfig: ...


class DirectPeer(Peer):
    """A direct client for each source."""

    def __init__(self, kind: CallsKind, service: ForDirect) -> None:
        super().__init__(0)
        self._kind, self._service = kind, service
        self._clients: dict[str, Calls] = {}

    def call(self, method: str, **arguments: Any) -> Any:
        source = arguments.pop("context")["source"]
        if source not in self._clients:
            self._clients[source] = make_calls(self._kind, shards=self._service.shards, source=source)
        client = self._clients[source]
        if method == "createQueue":
            return client.create_queue(arguments["name"], self._service.queue_config) and None
        if method == "deleteQueue":
            return client.delete_queue(arguments["name"]) and None
        if method == "getQueueNames":
            return set(client.queue_names())
        return METHODS[method](client, source, dict(arguments["request"]))

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


def _enqueue(client: Calls, _: str, request: dict[str, Any]) -> Any:
    jobs = [NewJob(**_given(job, JOB)) for job in request["jobs"]]
    return {"jobDescriptors": client.enqueue_many(request["queueName"], jobs)}


def _dequeue(client: Calls, source: str, request: dict[str, Any]) -> Any:
    if acks := request.pop("jobAckRequest", None):
        _ack(client, source, acks)
    jobs = client.dequeue(**_given(request, DEQUEUE))
    if not jobs:
        return {}
    return {
        "jobs": {job.descriptor: job.body for job in jobs},
        "jobMetadata": {
            job.descriptor: {"attemptsAllowed": job.attempts_allowed, "attemptsRemaining": job.attempts_remaining}
            for job in jobs
        },
    }


def _ack(client: Calls, source: str, request: dict[str, Any]) -> None:
    succeeded, failed = (
        [
            Ack((ack["jobDescriptor"], None), ack.get("appendCustomStatus", ""), ack.get("retryDelayMillis", 0))
            for ack in request.get(name, ())
        ]
        for name in ("jobsSucceeded", "jobsFailed")
    )
    client.ack(succeeded=succeeded, failed=failed, source=source)


def _checkpoint(client: Calls, source: str, request: dict[str, Any]) -> None:
    client.checkpoint(*map(_as_checkpoint, request["requests"]), source=source)


def _as_checkpoint(request: dict[str, Any]) -> Checkpoint:
    body = request.get("newBody")
    return Checkpoint(
        job=(request["jobDescriptor"], None),
        body=None if body is None else body.encode(),
        move_to_pending=request.get("moveToPending", False),
        run_after_ms=request.get("runAfterTimestampMillis"),
        attempts=request.get("numOfAttemptsAllowed"),
        status=request.get("prependCustomStatus", ""),
    )


def _lookup(client: Calls, _: str, request: dict[str, Any]) -> Any:
    infos = client.lookup(request["jobDescriptors"], with_body=request.get("includeBody", False))
    return {descriptor: _info(info) for descriptor, info in infos.items()}


def _count(client: Calls, _: str, request: dict[str, Any]) -> Any:
    state, future = state_of(request.pop("jobState")), request.pop("countFutureJobs", False)
    counts = client.count(**_given(request, COUNT))
    return counts.scheduled if future else getattr(counts, state.value)


def _scan(client: Calls, _: str, request: dict[str, Any]) -> Any:
    continuation = request.pop("continuation", "0")
    infos, cursor = client.scan_page(**_given(request, SCAN), cursor="" if continuation == "0" else continuation)
    return {"scannedJobs": [*map(_info, infos)], "continuation": cursor or "-1"}


def _retry(client: Calls, _: str, request: dict[str, Any]) -> Any:
    return client.retry_failed(**_given({"priority": 1} | request, RETRY))


def _delete(client: Calls, _: str, request: dict[str, Any]) -> Any:
    return client.delete_jobs(**_given({"priority": 1} | request, DELETE))


METHODS: Final[dict[str, Callable[[Calls, str, dict[str, Any]], Any]]] = {
    "enqueueJobs": _enqueue,
    "dequeueJobs": _dequeue,
    "ackDequeuedJobs": _ack,
    "checkpointJobs": _checkpoint,
    "lookupJobs": _lookup,
    "getJobCount": _count,
    "scanJobs": _scan,
    "retryFailedJobs": _retry,
    "deleteJobs": _delete,
}


def _given(fields: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The arguments for fields of the interface."""
    if unknown := fields.keys() - names.keys():
        raise NoSuchArgument(", ".join(sorted(unknown)))
    return {names[name]: state_of(value) if name == "jobState" else value for name, value in fields.items()}


def _info(info: JobInfo) -> dict[str, Any]:
    """The fields that are set."""
    fields = {
        "jobDescriptor": info.descriptor,
        "jobState": info.state.code,
        "attemptsRemaining": info.attempts_remaining,
        "customStatus": info.status,
        "createdAtTimestampMillis": info.created_ms,
        "runAfterTimestampMillis": info.run_after_ms,
        "updatedAtTimestampMillis": info.updated_ms,
        "claimDescriptor": info.claim or None,
        "body": info.body,
        "attemptsAllowed": info.attempts_allowed,
    }
    return {name: value for name, value in fields.items() if value is not None}
