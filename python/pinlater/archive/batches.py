"""Moves a batch of pending jobs from Redis to MySQL, one step a function. Flows only, no I/O.

The states of a batch: WITHDRAWN (Redis has it, MySQL does not know it), COMMITTED, FINALIZED and ABORTED (its row in
MySQL). The row is the judge: whoever inserts it first decides whether the batch goes on or its jobs return.

Promises that each step may be repeated, by this process or by another one.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

from pinlater.archive.incarnations import Incarnation, check_current
from pinlater.archive.moving_job import MovingJob, pack_ids, unpack_ids
from pinlater.archive.queries import query
from pinlater.model.errors import ArchiveDuplicate, from_reply
from pinlater.store.archive_driver import ArchiveDatabase, Statements
from pinlater.store.effects import Argument, Flow, NoAnswer, ReplyError, Transaction, send
from pinlater.store.keys import queue_key
from pinlater.store.requests import read, write
from pinlater.store.shards import QueueShard

#: A batch has at most so many jobs, and bytes of records (but always one job).
BATCH_JOBS: Final = 250
BATCH_BYTES: Final = 1024 * 1024
#: A call that reads a batch gives so many bytes.
PAGE_BYTES: Final = 1024 * 1024
NAME_BYTES: Final = 16


class BatchState(IntEnum):
    """What the row of a batch says."""

    COMMITTED = 1
    FINALIZED = 2
    ABORTED = 3


class Range(NamedTuple):
    """Pending jobs of one priority that may leave.

    line: `ready` or `scheduled`. order: which of them leave first, `latest` or `earliest`. first, last: scores as
    Redis takes them, inclusive unless they begin with `(`.
    """

    priority: int
    line: str
    order: str = "latest"
    first: str = "-inf"
    last: str = "+inf"


def count_in(queue_shard: QueueShard, ranges: Sequence[Range], deadline_s: float) -> Flow[int]:
    """How many jobs are in these ranges."""
    queue, shard = queue_shard.queue, queue_shard.shard
    commands = [
        ("ZCOUNT", queue_key(queue, shard.name, f"{each.line}:{each.priority}"), each.first, each.last)
        for each in ranges
    ]
    answers = yield from send(shard.server, *commands, deadline_s=deadline_s)
    for answer in answers:
        if isinstance(answer, ReplyError):
            raise from_reply(answer.text, f"ZCOUNT of {queue_shard}")
        if isinstance(answer, NoAnswer):
            raise answer.error
    return sum(answers)


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A batch that left its line. more: the range has more jobs."""

    name: bytes
    jobs: int
    more: bool


def withdraw(
    queue_shard: QueueShard, incarnation: Incarnation, chosen: Range, limit: int, deadline_s: float
) -> Flow[Withdrawn]:
    """Takes up to `limit` jobs, and at most BATCH_JOBS, out of their line. A batch without jobs does not exist."""
    name = secrets.token_bytes(NAME_BYTES)
    arguments: list[Argument] = [
        incarnation.epoch,
        name,
        chosen.priority,
        chosen.line,
        chosen.order,
        chosen.first,
        chosen.last,
        min(limit, BATCH_JOBS),
        BATCH_BYTES,
    ]
    reply = yield from write(queue_shard, "withdraw", arguments, deadline_s)
    return Withdrawn(name, int.from_bytes(reply[2][:4], "big"), reply[2][4] > 0)


def read_jobs(queue_shard: QueueShard, name: bytes, deadline_s: float) -> Flow[list[MovingJob] | None]:
    """The jobs of a batch as Redis has them. None: Redis does not know the batch."""
    jobs: list[MovingJob] = []
    position = b"0"
    while position:
        reply = yield from read(queue_shard, "read_batch", [name, position, PAGE_BYTES], deadline_s)
        if not reply[2][0]:
            return None
        position, found = reply[3], reply[4:]
        jobs += map(MovingJob.from_redis, found[0::3], found[1::3], found[2::3])
    return jobs


def commit(
    database: ArchiveDatabase, incarnation: Incarnation, batches: Mapping[bytes, Sequence[MovingJob]]
) -> Flow[None]:
    """Stores the jobs of batches, by name, and a row for each batch: all or nothing. Raises ArchiveDuplicate if one has
    a row already, or if an open restore names one of the jobs. Raises IncarnationEnded if the queue was deleted.
    """

    def store(sql: Statements) -> None:
        check_current(sql, incarnation)
        _refuse_restored(sql, incarnation, {job.id for jobs in batches.values() for job in jobs})
        rows: list[tuple[Any, ...]] = []
        for name, jobs in batches.items():
            number = insert_batch(sql, incarnation, name, BatchState.COMMITTED, [job.id for job in jobs])
            rows += [(incarnation.number, number, *job.row()) for job in jobs]
        sql.run_many("insert_jobs", rows)

    yield Transaction(database, store)


def _refuse_restored(sql: Statements, incarnation: Incarnation, ids: set[int]) -> None:
    """A job that came back and left again has a row until its restore ends. With two rows it would run twice if Redis
    lost its data.
    """
    for number, _, packed in sql.run("select_restores", (incarnation.number,)):
        if not ids.isdisjoint(unpack_ids(packed)):
            raise ArchiveDuplicate(f"incarnation {incarnation.number}: restore {number} has a job of the batch")


def insert_batch(
    sql: Statements, incarnation: Incarnation, name: bytes, state: BatchState, ids: Sequence[int] = ()
) -> int:
    """Inserts the row of a batch and returns its number. Raises ArchiveDuplicate if there is one."""
    now_ms = int(time.time() * 1000)
    return sql.insert("insert_batch", (name, incarnation.number, state, now_ms, pack_ids(ids)))


def finalize(queue_shard: QueueShard, database: ArchiveDatabase, name: bytes, deadline_s: float) -> Flow[bool]:
    """Removes what Redis still has of a COMMITTED batch. Returns False if Redis does not know the batch.

    Jobs that were deleted meanwhile lose their rows first: the batch ends only when MySQL has none of them.
    """
    removed = b""
    while True:
        reply = yield from write(queue_shard, "finalize", [name, removed], deadline_s)
        outcome, missing = reply[2][0], reply[2][1:]
        if outcome != _NOT_ENDED:
            return bool(outcome == _ENDED)
        yield from drop_rows(database, name, unpack_ids(missing))
        removed += missing


_ENDED, _NOT_ENDED = 1, 2


def drop_rows(database: ArchiveDatabase, name: bytes, ids: Sequence[int]) -> Flow[None]:
    """Deletes rows of a COMMITTED batch. The jobs of another one may be on their way back."""

    def drop(sql: Statements) -> None:
        if sql.run("lock_committed", (name,)):
            sql.run_many("delete_of_batch", [(name, id_) for id_ in ids])

    yield Transaction(database, drop)


def mark_finalized(database: ArchiveDatabase, names: Iterable[bytes]) -> Flow[None]:
    """Lets the jobs of COMMITTED batches come back. Their ends must be on the disk of Redis."""
    given = list(names)
    yield Transaction(database, lambda sql: sql.run_in("finalize_batches", (), given))


def abort(queue_shard: QueueShard, name: bytes, deadline_s: float) -> Flow[int]:
    """Returns the jobs of an ABORTED batch to their lines. Returns how many."""
    reply = yield from write(queue_shard, "abort", [name], deadline_s)
    return int.from_bytes(reply[2], "big")


def state_of(database: ArchiveDatabase, name: bytes) -> Flow[BatchState | None]:
    """What the row of a batch says. None: it has none."""
    rows = yield from query(database, "select_batch", name)
    return BatchState(rows[0][0]) if rows else None
