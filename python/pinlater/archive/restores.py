"""Brings archived jobs back to Redis. Flows only, no I/O.

Jobs come back in restores: up to RESTORE_JOBS each, under a number that MySQL gives. While restores of an incarnation
are open, nobody begins another one: whoever comes carries them on.

Promises that each step may be repeated, and that a restored job stands where it stood before it left.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from pinlater.archive.incarnations import Incarnation, check_current
from pinlater.archive.moving_job import MovingJob, pack_ids, unpack_ids
from pinlater.archive.queries import query, query_in
from pinlater.archive.settle import settle
from pinlater.store.archive_driver import ArchiveDatabase, Row, Statements
from pinlater.store.effects import Argument, Flow, Transaction
from pinlater.store.requests import write
from pinlater.store.shards import QueueShard

#: A restore has at most so many jobs, and bytes of bodies and statuses (but always one job).
RESTORE_JOBS: Final = 500
RESTORE_BYTES: Final = 1024 * 1024
#: One transaction begins so many restores at most: they share one wait for the disk of Redis.
RESTORES_AT_ONCE: Final = 128
#: Later than any job is due.
END_MS: Final = 2**63 - 1
_REFUSED, _NOTHING_CLOSED = 0, 3


class Restore(NamedTuple):
    """Rows that come back together. last_batch: the highest number of a batch that one of them is of. A row of the
    same job in a later batch does not belong to it.
    """

    number: int
    last_batch: int
    ids: list[int]


class Started(NamedTuple):
    """The restores to carry out. jobs: how many they have; 0 if somebody else began them."""

    restores: list[Restore]
    jobs: int


class Wanted(NamedTuple):
    """Which rows come back: the earliest run-after first. first_ms, last_ms: only those that are due between them."""

    priority: int
    last_ms: int = END_MS
    first_ms: int = 0


def open_restores(database: ArchiveDatabase, incarnation: Incarnation) -> Flow[list[Restore]]:
    """The restores that somebody began and nobody ended."""

    rows = yield from query(database, "select_restores", incarnation.number)
    return [Restore(number, last_batch, unpack_ids(ids)) for number, last_batch, ids in rows]


def begin(database: ArchiveDatabase, incarnation: Incarnation, wanted: Wanted, limit: int) -> Flow[Started]:
    """Begins restores of up to `limit` rows. Returns those that are open if there are any, else the new ones; no
    restores if no row is wanted. Raises IncarnationEnded.
    """

    def start(sql: Statements) -> list[Restore]:
        check_current(sql, incarnation, exclusive=True)
        if sql.run("select_restores", (incarnation.number,)):
            return []
        most = min(limit, RESTORE_JOBS * RESTORES_AT_ONCE)
        rows = sql.run("select_due", (incarnation.number, wanted.priority, wanted.first_ms, wanted.last_ms, most))
        return [_begin_one(sql, incarnation, part) for part in _parts(rows)]

    new: list[Restore] = yield Transaction(database, start)
    if new:
        return Started(new, sum(len(restore.ids) for restore in new))
    return Started((yield from open_restores(database, incarnation)), 0)


def _begin_one(sql: Statements, incarnation: Incarnation, rows: Sequence[Row]) -> Restore:
    number = sql.insert("number_restore", (incarnation.number,))
    ids, last_batch = [row[0] for row in rows], max(row[2] for row in rows)
    now_ms = int(time.time() * 1000)
    sql.run("insert_restore", (incarnation.number, number, last_batch, pack_ids(ids), now_ms))
    return Restore(number, last_batch, ids)


def _parts(rows: Iterable[Row]) -> list[list[Row]]:
    """Splits rows of (id, bytes, …) into restores."""
    parts: list[list[Row]] = []
    room = 0
    for row in rows:
        if not parts or len(parts[-1]) == RESTORE_JOBS or row[1] > room:
            if len(parts) == RESTORES_AT_ONCE:
                break
            parts.append([])
            room = RESTORE_BYTES
        parts[-1].append(row)
        room -= row[1]
    return parts


def carry_out(
    queue_shard: QueueShard,
    database: ArchiveDatabase,
    incarnation: Incarnation,
    restores: Sequence[Restore],
    deadline_s: float,
) -> Flow[None]:
    """Carries out open restores. Raises ServerFull while Redis has no room: they stay open, and nothing is lost."""
    for restore in restores:
        jobs = yield from jobs_of(database, incarnation, restore)
        yield from load(queue_shard, database, incarnation, restore, jobs, deadline_s)
    yield from finish(queue_shard, database, incarnation, restores, deadline_s)


def jobs_of(database: ArchiveDatabase, incarnation: Incarnation, restore: Restore) -> Flow[list[MovingJob]]:
    """The jobs of an open restore; none if it ended."""
    rows = yield from query_in(database, "select_jobs_by_id", (incarnation.number, restore.last_batch), restore.ids)
    return [MovingJob.from_row(row[1:]) for row in rows]


def finish(
    queue_shard: QueueShard,
    database: ArchiveDatabase,
    incarnation: Incarnation,
    restores: Sequence[Restore],
    deadline_s: float,
) -> Flow[None]:
    """Ends restores that Redis has, as carry_out does."""
    if not restores:
        return
    numbers = [restore.number for restore in restores]
    while True:
        settled = yield from settle(queue_shard, deadline_s, restored=numbers)
        again = False
        for restore, done in zip(restores, settled, strict=True):
            if not done:  # Redis went back in time, or the restore is closed: then somebody else saw it on disk
                jobs = yield from jobs_of(database, incarnation, restore)
                again = (yield from load(queue_shard, database, incarnation, restore, jobs, deadline_s)) or again
        if not again:
            break
    yield from _drop(database, incarnation, restores)
    yield from close(queue_shard, incarnation, max(numbers), deadline_s)


def load(
    queue_shard: QueueShard,
    database: ArchiveDatabase,
    incarnation: Incarnation,
    restore: Restore,
    jobs: Sequence[MovingJob],
    deadline_s: float,
) -> Flow[bool]:
    """Gives the jobs of a restore to Redis. Returns False if the restore is closed, or ended.

    A server that lost its data knows no closed restore. It takes none before MySQL has said which ones have ended: this
    one may be among them, and its jobs may have run.
    """
    if not jobs:
        return False
    packed = [job.for_redis() for job in jobs]
    arguments: list[Argument] = [
        incarnation.epoch,
        restore.number.to_bytes(8, "big"),
        b"".join(head for head, _ in packed),
        *(record for _, record in packed),
    ]
    while True:
        reply = yield from write(queue_shard, "restore", arguments, deadline_s)
        if reply[2][0] != _NOTHING_CLOSED:
            return bool(reply[2][0] != _REFUSED)
        ended = yield from _last_ended(database, incarnation)
        yield from close(queue_shard, incarnation, ended, deadline_s, known=reply[2][1:])


def _last_ended(database: ArchiveDatabase, incarnation: Incarnation) -> Flow[int]:
    """All restores up to this number have ended. Raises IncarnationEnded."""

    def find(sql: Statements) -> int:
        check_current(sql, incarnation)
        [(number,)] = sql.run("last_ended", (incarnation.number,))
        return int(number)

    number: int = yield Transaction(database, find)
    return number


def _drop(database: ArchiveDatabase, incarnation: Incarnation, restores: Sequence[Restore]) -> Flow[None]:
    """Removes the rows of restores that are on the disk of Redis."""

    def delete(sql: Statements) -> None:
        for restore in restores:
            sql.run_in("delete_jobs_by_id", (incarnation.number, restore.last_batch), restore.ids)
            sql.run("delete_restore", (incarnation.number, restore.number))

    yield Transaction(database, delete)


def close(
    queue_shard: QueueShard, incarnation: Incarnation, number: int, deadline_s: float, *, known: bytes = b""
) -> Flow[None]:
    """Makes Redis refuse late copies of restores up to this number.

    known: what the script `restore` answered where nothing is closed. Without it, nothing is closed there.
    """
    yield from write(queue_shard, "close", [incarnation.epoch, number.to_bytes(8, "big"), known], deadline_s)
