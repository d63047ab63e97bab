"""What the archive has of a queue, and what moves. Flows only, no I/O."""

from __future__ import annotations

from dataclasses import dataclass

from pinlater.archive.incarnations import Incarnation, known_incarnation
from pinlater.archive.moves import moves_of
from pinlater.archive.queries import query
from pinlater.operations.inspect import server_time_ms
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.store.archive_driver import ArchiveDatabase, Statements
from pinlater.store.effects import Flow, Transaction, all_of
from pinlater.store.shards import QueueShard, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveStatus:
    """Of a queue over all its shards.

    archived: jobs that have rows. due: those of them whose run-after time is over.
    late_ms: how long the first of these has been due; 0: none is due.
    withdrawn: jobs in batches that Redis still has. batches: how many of these there are.
    committed: batches that MySQL has and that did not end. restores: open ones.
    oldest_batch_ms: for how long the oldest batch that Redis has has been open; 0: there is none.
    """

    archived: int = 0
    due: int = 0
    late_ms: int = 0
    withdrawn: int = 0
    batches: int = 0
    committed: int = 0
    restores: int = 0
    oldest_batch_ms: int = 0

    def __add__(self, other: ArchiveStatus) -> ArchiveStatus:
        return ArchiveStatus(
            archived=self.archived + other.archived,
            due=self.due + other.due,
            late_ms=max(self.late_ms, other.late_ms),
            withdrawn=self.withdrawn + other.withdrawn,
            batches=self.batches + other.batches,
            committed=self.committed + other.committed,
            restores=self.restores + other.restores,
            oldest_batch_ms=max(self.oldest_batch_ms, other.oldest_batch_ms),
        )


def status(session: Session, database: ArchiveDatabase, queue: str, deadline_s: float) -> Flow[ArchiveStatus]:
    """The status of a queue."""
    queue_shards = yield from known_queue_shards(session, queue, deadline_s)
    flows = [_status_at(queue_shard, database, deadline_s) for queue_shard in queue_shards]
    return (yield from all_of(flows, lambda parts: sum(parts, ArchiveStatus())))


def archived_at(queue_shard: QueueShard, database: ArchiveDatabase, deadline_s: float) -> Flow[ArchiveStatus]:
    """Of the status of a queue shard what rows say of its jobs: archived, due, late_ms."""
    incarnation = yield from known_incarnation(database, queue_shard, deadline_s)
    now_ms = yield from server_time_ms(queue_shard.shard, deadline_s)
    found: ArchiveStatus = yield Transaction(database, lambda sql: _of_jobs(sql, incarnation, now_ms))
    return found


def _of_jobs(sql: Statements, incarnation: Incarnation, now_ms: int) -> ArchiveStatus:
    rows = sql.run("count_rows", (now_ms, incarnation.number))
    firsts = [sql.run("select_first", (incarnation.number, priority)) for priority, _, due in rows if due]
    return ArchiveStatus(
        archived=sum(int(count) for _, count, _ in rows),
        due=sum(int(due) for _, _, due in rows),
        late_ms=max((now_ms - first[0][0] for first in firsts if first), default=0),
    )


def _status_at(queue_shard: QueueShard, database: ArchiveDatabase, deadline_s: float) -> Flow[ArchiveStatus]:
    incarnation = yield from known_incarnation(database, queue_shard, deadline_s)
    moves = yield from moves_of(queue_shard, deadline_s)
    now_ms = yield from server_time_ms(queue_shard.shard, deadline_s)

    def find(sql: Statements) -> ArchiveStatus:
        return _of_jobs(sql, incarnation, now_ms) + ArchiveStatus(
            withdrawn=sum(batch.jobs for batch in moves.batches),
            batches=len(moves.batches),
            committed=len(sql.run("select_committed", (incarnation.number,))),
            restores=len(sql.run("select_restores", (incarnation.number,))),
            oldest_batch_ms=max((now_ms - batch.since_ms for batch in moves.batches), default=0),
        )

    found: ArchiveStatus = yield Transaction(database, find)
    return found


def count_due(
    queue_shard: QueueShard, database: ArchiveDatabase, priorities: int, until_ms: int, most: int, deadline_s: float
) -> Flow[int]:
    """How many jobs of a queue shard have rows and are due by then; at most `most`, as millions take seconds."""
    incarnation = yield from known_incarnation(database, queue_shard, deadline_s)

    def count(sql: Statements) -> int:
        found = 0
        for priority in range(1, priorities + 1):
            [(more,)] = sql.run("count_due", (incarnation.number, priority, until_ms, most - found))
            found += int(more)
        return found

    found: int = yield Transaction(database, count)
    return found


def archived_queues(database: ArchiveDatabase) -> Flow[list[str]]:
    """The queues that have archived jobs, sorted."""
    rows = yield from query(database, "select_queues")
    return sorted(bytes(name).decode() for (name,) in rows)
