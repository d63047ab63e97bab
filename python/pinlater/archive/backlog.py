"""The archive as the backlog of a client: archived jobs are looked up, counted, scanned and deleted like pending ones.

Promises that a count has each job once, also while jobs move: it reads Redis, MySQL and Redis again, until no move
began or ended in between. A deletion that meets a restore carries it out first, and then deletes in Redis.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import pinlater._core as _core
from pinlater.archive.incarnations import Incarnation, check_current, end, known_incarnation
from pinlater.archive.moves import Moves, moves_of
from pinlater.archive.moving_job import MovingJob, unpack_ids
from pinlater.archive.queries import query, query_in
from pinlater.archive.recovery import end_unknown
from pinlater.archive.restores import END_MS, carry_out, open_restores
from pinlater.model.errors import ArchiveError, QueueNotFound
from pinlater.model.jobs import CountsByState, JobInfo, State
from pinlater.operations.backlog import Seen
from pinlater.operations.inspect import REPLY_BYTES, count_at, server_time_ms
from pinlater.store.archive_driver import ArchiveDatabase, Row, Statements
from pinlater.store.archive_schema import require_schema
from pinlater.store.effects import Flow, Transaction
from pinlater.store.shards import QueueShard

#: A count begins so often while jobs move. Then it raises ArchiveError.
COUNT_TRIES: Final = 20


class ArchiveBacklog:
    """See operations/backlog.py."""

    def __init__(self, database: ArchiveDatabase) -> None:
        self._database = database
        self._checked = False

    def _incarnation(self, queue_shard: QueueShard, deadline_s: float) -> Flow[Incarnation]:
        """The incarnation that rows belong to. The first call checks that this program can use the tables."""
        if not self._checked:
            yield from require_schema(self._database)
            self._checked = True
        return (yield from known_incarnation(self._database, queue_shard, deadline_s))

    def lookup(
        self, queue_shard: QueueShard, priorities: bytes, ids: list[bytes], with_body: bool, deadline_s: float
    ) -> Flow[tuple[list[JobInfo], Seen]]:
        incarnation = yield from self._incarnation(queue_shard, deadline_s)
        seen = yield from self._seen(incarnation)
        wanted = dict(zip(_numbers(ids), priorities, strict=True))
        parameters = (int(with_body), incarnation.number)
        rows = yield from query_in(self._database, "select_with_state", parameters, list(wanted))
        rows = yield from self._judged(queue_shard, incarnation, rows, deadline_s)
        jobs = [MovingJob.from_row(row[1:]) for row in rows]
        found = [info_of(queue_shard, job, with_body=with_body) for job in jobs if wanted[job.id] == job.priority]
        return found, seen

    def _judged(
        self, queue_shard: QueueShard, incarnation: Incarnation, rows: Sequence[Row], deadline_s: float
    ) -> Flow[list[Row]]:
        """The rows of jobs that are in the archive alone. Redis knows of the others whether they exist: of a batch that
        it still has, and of an open restore that it has carried out.

        rows: the name of the job's batch if it is COMMITTED, then the id.
        """
        if not rows:
            return []
        restores = yield from query(self._database, "select_restores", incarnation.number)
        moves = yield from moves_of(queue_shard, deadline_s)
        batches = {batch.name for batch in moves.batches}
        restored: set[int] = set()
        for number, _, packed in restores:
            if number in moves.restores or number <= moves.closed:
                restored.update(unpack_ids(packed))
        return [row for row in rows if row[1] not in restored and (row[0] is None or bytes(row[0]) not in batches)]

    def _seen(self, incarnation: Incarnation) -> Flow[Seen]:
        rows = yield from query(self._database, "last_restore", incarnation.number)
        return incarnation.number, rows[0][0] if rows else 0

    def count(self, queue_shard: QueueShard, deadline_s: float) -> Flow[list[CountsByState]]:
        incarnation = yield from self._incarnation(queue_shard, deadline_s)
        before = yield from moves_of(queue_shard, deadline_s)
        for _ in range(COUNT_TRIES):
            now_ms = yield from server_time_ms(queue_shard.shard, deadline_s)
            in_redis = yield from count_at(queue_shard, deadline_s)
            archived = yield from self._count_rows(incarnation, before, now_ms)
            after = yield from moves_of(queue_shard, deadline_s)
            if _same(before, after):
                return [counts + archived.get(priority, CountsByState()) for priority, counts in enumerate(in_redis, 1)]
            before = after
        raise ArchiveError(f"{queue_shard}: its jobs move too fast to be counted; try again")

    def _count_rows(self, incarnation: Incarnation, moves: Moves, now_ms: int) -> Flow[dict[int, CountsByState]]:
        """Rows of jobs that Redis does not have, by priority."""
        in_redis = {batch.name for batch in moves.batches}
        restored = set(moves.restores)

        def find(sql: Statements) -> dict[int, CountsByState]:
            counts = {
                priority: CountsByState(pending=int(due), scheduled=int(rows) - int(due))
                for priority, rows, due in sql.run("count_rows", (now_ms, incarnation.number))
            }
            twice: list[int] = []
            for name, ids in sql.run("select_committed", (incarnation.number,)):
                twice += unpack_ids(ids) if bytes(name) in in_redis else []
            for number, _, ids in sql.run("select_restores", (incarnation.number,)):
                twice += unpack_ids(ids) if number in restored else []
            for priority, run_after_ms in sql.run_in("select_places", (incarnation.number,), twice):
                counts[priority] += _minus_one(run_after_ms <= now_ms)
            return counts

        found: dict[int, CountsByState] = yield Transaction(self._database, find)
        return found

    def scan(
        self,
        queue_shard: QueueShard,
        priority: int,
        future: bool,
        with_body: bool,
        limit: int,
        cursor: bytes,
        deadline_s: float,
    ) -> Flow[tuple[list[JobInfo], bytes]]:
        incarnation = yield from self._incarnation(queue_shard, deadline_s)
        now_ms = yield from server_time_ms(queue_shard.shard, deadline_s)
        before = _position(cursor) if cursor else ((END_MS if future else now_ms), _END_SIXTEENTHS, 0)
        least_ms = now_ms + 1 if future else 0
        chosen = (incarnation.number, priority, least_ms, before[0], *before)
        most = (yield from self._page(chosen, limit)) if with_body else limit
        rows = yield from query(self._database, "select_latest", int(with_body), *chosen, most)
        following = ":".join(map(str, _place(MovingJob.from_row(rows[-1][1:])))).encode() if len(rows) == most else b""
        rows = yield from self._judged(queue_shard, incarnation, rows, deadline_s)
        jobs = [MovingJob.from_row(row[1:]) for row in rows]
        return [info_of(queue_shard, job, with_body=with_body) for job in jobs], following

    def _page(self, chosen: Sequence[int], limit: int) -> Flow[int]:
        """How many of these jobs a page has with their bodies: REPLY_BYTES of them, as in Redis, but one job always."""
        sizes = yield from query(self._database, "select_latest_sizes", *chosen, limit)
        totals = accumulate(int(size) for (size,) in sizes)
        return max(1, sum(total <= REPLY_BYTES for total in totals))

    def delete_named(
        self, queue_shard: QueueShard, priority: int, ids: Sequence[bytes], deadline_s: float
    ) -> Flow[tuple[set[bytes], Seen]]:
        incarnation = yield from self._incarnation(queue_shard, deadline_s)
        seen = yield from self._seen(incarnation)
        rows = yield from query_in(self._database, "select_batches_of", (incarnation.number,), _numbers(ids))
        ordered = [(batch, id_) for id_, _, batch in rows]
        archived = yield from self._judged(queue_shard, incarnation, ordered, deadline_s)
        removed = yield from self._delete(incarnation, priority, [id_ for _, id_ in archived])
        yield from self._end_restores(queue_shard, incarnation, deadline_s)
        return {id_.to_bytes(8, "big") for id_ in removed}, seen

    def delete_pending(self, queue_shard: QueueShard, priority: int, limit: int, deadline_s: float) -> Flow[int]:
        incarnation = yield from self._incarnation(queue_shard, deadline_s)
        yield from end_unknown(queue_shard, self._database, incarnation, deadline_s)
        yield from self._end_restores(queue_shard, incarnation, deadline_s)
        # not those of a COMMITTED batch: Redis has them, and has deleted them
        rows = yield from query(self._database, "select_due", incarnation.number, priority, 0, END_MS, limit)
        return len((yield from self._delete(incarnation, priority, [row[0] for row in rows])))

    def _delete(self, incarnation: Incarnation, priority: int, ids: Sequence[int]) -> Flow[list[int]]:
        """Removes rows that no open restore names. Returns the ids of those that were there."""
        if not ids:
            return []

        def remove(sql: Statements) -> list[int]:
            check_current(sql, incarnation, exclusive=True)
            restoring: set[int] = set()
            for _, _, packed in sql.run("select_restores", (incarnation.number,)):
                restoring.update(unpack_ids(packed))
            left = [id_ for id_ in ids if id_ not in restoring]
            found = [id_ for (id_,) in sql.run_in("select_ids", (incarnation.number, priority), left)]
            sql.run_in("delete_ids", (incarnation.number,), found)
            return found

        removed: list[int] = yield Transaction(self._database, remove)
        return removed

    def _end_restores(self, queue_shard: QueueShard, incarnation: Incarnation, deadline_s: float) -> Flow[None]:
        restores = yield from open_restores(self._database, incarnation)
        yield from carry_out(queue_shard, self._database, incarnation, restores, deadline_s)

    def deletion(self, queue_shard: QueueShard, delete: Flow[bool], deadline_s: float) -> Flow[bool]:
        try:
            incarnation = yield from self._incarnation(queue_shard, deadline_s)
        except QueueNotFound:
            return (yield from delete)
        existed = yield from delete
        yield from end(self._database, incarnation)
        return existed


def _numbers(ids: Sequence[bytes]) -> list[int]:
    return [int.from_bytes(id_, "big") for id_ in ids]


_END_SIXTEENTHS: Final = 16


def _place(job: MovingJob) -> tuple[int, int, int]:
    return job.run_after_ms, job.sixteenths, job.id


def _position(cursor: bytes) -> tuple[int, int, int]:
    """The place of the last job of the page before."""
    ms, sixteenths, id_ = map(int, cursor.split(b":"))
    return ms, sixteenths, id_


def _same(before: Moves, after: Moves) -> bool:
    """Whether no move began or ended between two reads."""

    def seen(moves: Moves) -> Any:
        return moves.closed, sorted(batch.name for batch in moves.batches), sorted(moves.restores)

    return bool(seen(before) == seen(after))


def _minus_one(due: bool) -> CountsByState:
    return CountsByState(pending=-1) if due else CountsByState(scheduled=-1)


def info_of(queue_shard: QueueShard, job: MovingJob, *, with_body: bool) -> JobInfo:
    """An archived job as a lookup shows it."""
    created_ms = job.id >> 19
    left, updated_ms, crashes, status = job.extras or (job.attempts, created_ms, 0, b"")
    return JobInfo(
        descriptor=_core.format_descriptor(queue_shard.queue, queue_shard.shard.name, job.priority, job.id),
        state=State.PENDING,
        priority=job.priority,
        attempts_allowed=job.attempts,
        attempts_remaining=left,
        status=status.decode(),
        created_ms=created_ms,
        run_after_ms=job.run_after_ms or None,
        updated_ms=updated_ms,
        crashes=crashes % _SUSPECT,
        claim="",
        body=job.body if with_body else None,
    )


#: Added to the crashes of a job whose last run ended in a crash.
_SUSPECT: Final = 32_768
