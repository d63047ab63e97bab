"""Renews the leases of a worker's jobs on native threads: one a server, made for its first lease.

Promises that neither a busy event loop nor a held GIL ends a lease, that a lost lease is reported, and that no job is
held past its time limit.
Risk: a handler without a time limit that never returns keeps its lease.
"""

from __future__ import annotations

import logging
import secrets
import ssl
from collections.abc import Sequence
from time import time
from typing import Any, Final
from urllib.parse import urlsplit

import hiredis
from redis.connection import parse_url

from pinlater._core import LeaseRenewer
from pinlater.model.clocks import boot_s
from pinlater.model.errors import PinLaterError, QueueNotFound
from pinlater.model.jobs import Job
from pinlater.model.queue_config import QueueConfig
from pinlater.operations.claim import UNCONFIRMED_MS
from pinlater.store.scripts import load_scripts
from pinlater.store.servers import Server
from pinlater.store.shards import QueueShard
from pinlater.worker.job_source import JobSource

log: Final = logging.getLogger("pinlater.worker")

#: An unconfirmed lease is renewed after so long: most jobs have ended by then, and cost no call.
FIRST_MS: Final = 50
_NEVER_S: Final = float("-inf")


class Lease:
    """The lease of one claim.

    unfinished: jobs that are not acked yet.
    lost: the server ended the lease.
    seen_s: when the request was sent whose answer last said that the lease stands (boot_s).
    """

    __slots__ = (
        "_fresh_from_s",
        "_fresh_until_s",
        "_seen_s",
        "handle",
        "lease_s",
        "lost",
        "queue_shard",
        "token",
        "unfinished",
    )

    def __init__(
        self, queue_shard: QueueShard, token: bytes, jobs: int, lease_ms: int, handle: int, seen_s: float
    ) -> None:
        self.queue_shard = queue_shard
        self.token = token
        self.unfinished = jobs
        self.lease_s = lease_ms / 1000
        self.handle = handle
        self.seen_s = seen_s
        self.lost = False

    @property
    def seen_s(self) -> float:
        """See the class."""
        return self._seen_s

    @seen_s.setter
    def seen_s(self, seen_s: float) -> None:
        self._seen_s, self._fresh_from_s = seen_s, time()
        self._fresh_until_s = self._fresh_from_s + self.lease_s / 3 - (boot_s() - seen_s)

    @property
    def due_ms(self) -> int:
        """The lease is to be renewed a third of it after `seen_s`: so long after that was set (ms)."""
        return max(0, int(1000 * (self._fresh_until_s - self._fresh_from_s)))

    @property
    def in_doubt(self) -> bool:
        """Whether the lease may have run out unseen, because the process stood still or the machine was suspended."""
        # The wall clock goes on in suspend too, and costs half as much as boot_s. It may be set, so boot_s decides.
        return not self._fresh_from_s <= time() <= self._fresh_until_s and boot_s() - self._seen_s > self.lease_s / 3


class LeaseRenewal:
    """The renewers of one worker."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.renewers: dict[Server, LeaseRenewer] = {}
        self._handles: dict[tuple[QueueShard, int], int] = {}
        self._leases: dict[tuple[Server, int, bytes], Lease] = {}

    def hold(
        self,
        queue_shard: QueueShard,
        jobs: Sequence[Job],
        config: QueueConfig,
        sent_s: float,
        unconfirmed_after_s: float | None = None,
    ) -> Lease:
        """Renews a claim's lease until all its jobs are done.

        jobs: all of the claim, in its order: by priority.
        sent_s: when the claim was sent. unconfirmed_after_s: its lease is unconfirmed, and was granted after that (both
        boot_s). It is renewed soon.
        """
        first = jobs[0]
        server = queue_shard.shard.server
        renewer = self.renewers.get(server)
        if renewer is None:
            renewer = self.renewers[server] = _make_renewer(server, self._timeout_s)
        priorities = max(config.priorities, jobs[-1].priority)  # the configuration may be older than the claim
        handle = self._handles.get((queue_shard, priorities))
        if handle is None:
            handle = renewer.add_queue(queue_shard.keys("renew", priorities))
            self._handles[queue_shard, priorities] = handle
        lease = Lease(queue_shard, first.token, len(jobs), config.lease_ms, handle, sent_s)
        if unconfirmed_after_s is not None:
            lease.lease_s = min(lease.lease_s, UNCONFIRMED_MS / 1000)
            lease.seen_s = _NEVER_S if _starts_once(first, config) else unconfirmed_after_s
        self._leases[server, handle, first.token] = lease
        # from when the claim was sent: its answer may come late, because the loop was blocked or the answer was lost
        first_ms = lease.due_ms if unconfirmed_after_s is None else min(FIRST_MS, config.lease_ms // 3)
        renewer.hold(handle, first.priority, first.id.to_bytes(8, "big"), first.token, config.lease_ms, first_ms)
        return lease

    def done(self, lease: Lease, jobs: int = 1) -> None:
        """So many jobs of the lease are acked or released."""
        lease.unfinished -= jobs
        if lease.unfinished > 0:
            return
        server = lease.queue_shard.shard.server
        if self._leases.pop((server, lease.handle, lease.token), None) is not None:
            self.renewers[server].drop(lease.handle, lease.token)

    def limit(self, lease: Lease, job: Job, after_s: float) -> None:
        """After so many seconds the job gets a lease of its own, as long as its claim's, which is not renewed."""
        renewer, id_ = self.renewers[lease.queue_shard.shard.server], job.id.to_bytes(8, "big")
        renewer.limit(lease.handle, job.priority, id_, job.token, after_s)

    def drop_limit(self, lease: Lease, job: Job) -> None:
        """The job ended in time."""
        renewer = self.renewers.get(lease.queue_shard.shard.server)
        if renewer is not None:
            renewer.drop_limit(lease.handle, job.id.to_bytes(8, "big"))

    def take_lost(self) -> list[Lease]:
        """Leases that were found lost since the last call."""
        found = []
        for server, renewer in self.renewers.items():
            for handle, token in renewer.take_lost():
                lease = self._leases.pop((server, handle, token), None)
                if lease is not None:
                    lease.lost = True
                    found.append(lease)
        return found

    def close(self) -> None:
        """Ends the threads."""
        for renewer in self.renewers.values():
            renewer.close()
        self.renewers, self._handles, self._leases = {}, {}, {}


def _starts_once(job: Job, config: QueueConfig) -> bool:
    """Whether a job must not start again if its worker dies. Its lease is confirmed before it starts."""
    return config.crash_limit == 1 or (config.crash_limit == 0 and job.attempts_remaining == 1)


async def confirm(source: JobSource, doubtful: dict[Lease, Job]) -> bool:
    """Renews leases in doubt of one queue shard, each by one of its jobs. True if they were answered."""
    now_s, jobs = boot_s(), list(doubtful.values())
    try:
        refused = {job.token for job in await source.renew(jobs)}
    except QueueNotFound:
        refused = {job.token for job in jobs}
    except PinLaterError as error:
        log.warning("%d leases not confirmed yet: %s", len(jobs), error)
        return False
    for lease, job in doubtful.items():
        lease.seen_s, lease.lost = now_s, lease.lost or job.token in refused
    return True


def _make_renewer(server: Server, timeout_s: float) -> LeaseRenewer:
    arguments: dict[str, Any] = dict(parse_url(server.resolve()))  # type: ignore[no-untyped-call]
    kind = getattr(arguments.pop("connection_class", None), "__name__", "Connection")
    path = arguments.get("path")
    host, port = arguments.get("host", "localhost"), int(arguments.get("port", 6379))
    address = f"unix:{path}" if path else f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    tls = _tls(arguments, host) if kind == "SSLConnection" or urlsplit(server.url).scheme == "rediss" else None
    return LeaseRenewer(
        address,
        _handshake(arguments),
        load_scripts()["renew"].source,
        secrets.token_bytes(8),
        tls=tls,
        timeout_s=timeout_s,
    )


def _handshake(arguments: dict[str, Any]) -> list[bytes]:
    commands: list[tuple[Any, ...]] = []
    if arguments.get("password"):
        commands.append(("AUTH", arguments.get("username") or "default", arguments["password"]))
    if arguments.get("db"):
        commands.append(("SELECT", str(arguments["db"])))
    commands.append(("CLIENT", "SETNAME", "pinlater-renewer"))
    return [hiredis.pack_command(command) for command in commands]


_VERIFY: Final = {"none": "none", ssl.CERT_NONE: "none", "CERT_NONE": "none"}


def _tls(arguments: dict[str, Any], host: str) -> dict[str, str | bool | None]:
    return {
        "ca_certs": arguments.get("ssl_ca_certs"),
        "cert": arguments.get("ssl_certfile"),
        "key": arguments.get("ssl_keyfile"),
        "server_name": host,
        "verify": _VERIFY.get(arguments.get("ssl_cert_reqs", "required"), "required"),
        "check_hostname": bool(arguments.get("ssl_check_hostname", True)),
    }
