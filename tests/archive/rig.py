"""Real servers with an archive, and what tests do with them: archivers, workers, checks.

Promises: `check` finds any job that is lost, doubled or changed, by both audits and by what the jobs were before.
Risks: `recover` takes every open batch for abandoned, also those of an owner that lives.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from pinlater import Client, Job, JobInfo, QueueConfig
from pinlater.archive.archiver import Archiver, Selection
from pinlater.archive.incarnations import incarnation_of
from pinlater.archive.recovery import recover
from pinlater.archive.status import ArchiveStatus, status
from pinlater.archive.verify import verify
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.store.archive_driver import ArchiveDatabase
from pinlater.store.effects import Argument
from pinlater.store.requests import write
from pinlater.store.shards import QueueShard, Session
from tests.support.archive import migrated
from tests.support.audits import audit_queue
from tests.support.both_clients import AsyncCalls

QUEUE = "q"
PRIORITIES = 3
MAX_TIME_MS = 2**44 - 1
FAR_MS = 1 << 60
DURABLE = {"appendonly": "yes", "appendfsync": "always"}
#: A server with WAITAOF needs no more than this.
EVERYSEC = {"appendonly": "yes", "appendfsync": "everysec"}
DUE_PAGE = 1_000


def flow_of_recovery(session: Session, database: ArchiveDatabase, queue: str, deadline_s: float) -> Any:
    """Ends all that any archiver left open, however young it is."""
    for queue_shard in (yield from known_queue_shards(session, queue, deadline_s)):
        incarnation = yield from incarnation_of(database, queue_shard, deadline_s)
        yield from recover(queue_shard, database, incarnation, FAR_MS, deadline_s)


class Rig:
    """A blocking client and an archiver of the same servers and the same database.

    shards: name -> URL. archive_url: of a database, whose tables the rig makes.
    """

    def __init__(self, shards: dict[str, str], archive_url: str, queue: str = QUEUE, **settings: Any) -> None:
        migrated(archive_url).close()
        self.shards, self.archive_url, self.queue = shards, archive_url, queue
        self.client = Client(shards=shards, archive=archive_url, **settings)
        self.calls = AsyncCalls(shards=shards, archive=archive_url, **settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.calls.close()
        self.client.close()

    @property
    def database(self) -> ArchiveDatabase:
        assert self.client.settings.database is not None
        return self.client.settings.database

    @property
    def archiver(self) -> Archiver:
        """A new one."""
        client = self.calls.client
        return Archiver(client.run, client.session, client.settings.database)

    def create(self, **settings: Any) -> None:
        self.client.create_queue(self.queue, QueueConfig(priorities=PRIORITIES, **settings))

    def spill(self, **selection: Any) -> int:
        """Returns how many jobs left."""
        archiver = self.archiver
        moved: int = self.calls.wait(lambda: archiver.spill(self.queue, Selection(**selection)))
        return moved

    def restore(self, limit: int | None = None) -> int:
        """Returns how many jobs came back."""
        archiver = self.archiver
        restored: int = self.calls.wait(lambda: archiver.restore(self.queue, limit))
        return restored

    def recover(self) -> None:
        """A fresh archiver ends all that others left open."""
        self.calls.run(
            lambda end: flow_of_recovery(
                self.calls.client.session, self.calls.client.settings.database, self.queue, end
            )
        )

    @property
    def queue_shard(self) -> QueueShard:
        """That of the first shard."""
        return self.queue_shards[0]

    @property
    def queue_shards(self) -> list[QueueShard]:
        found: list[QueueShard] = self.client.run(lambda end: known_queue_shards(self.client.session, self.queue, end))
        return found

    def status(self) -> ArchiveStatus:
        found: ArchiveStatus = self.client.run(lambda end: status(self.client.session, self.database, self.queue, end))
        return found

    def infos(self, descriptors: Iterable[str]) -> dict[str, JobInfo]:
        """All that a lookup shows of jobs."""
        return self.client.lookup(descriptors, with_body=True)

    def take(self, limit: int = DUE_PAGE) -> list[Job]:
        """A worker runs up to so many jobs. Returns them in the order in which it got them."""
        jobs = self.client.dequeue(self.queue, limit)
        self.client.ack(succeeded=jobs)
        return jobs

    def drain(self) -> list[Job]:
        """Workers run all that is due, shard by shard as they come."""
        done: list[Job] = []
        while jobs := self.take():
            done += jobs
        return done

    def crash(self) -> None:
        """The worker that holds jobs is known to be dead: its jobs are pending suspects."""
        arguments: list[Argument] = [self.client.settings.source, "was killed", b"", "0:0"]
        for queue_shard in self.queue_shards:
            self.client.run(lambda end, at=queue_shard: write(at, "end_leases", arguments, end))  # type: ignore[misc]

    def check(self) -> None:
        """Both audits are clean."""
        assert audit_queue(self.client, self.queue).findings == []
        found = self.client.run(lambda deadline_s: verify(self.client.session, self.database, self.queue, deadline_s))
        assert found == []
