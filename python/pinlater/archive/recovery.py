"""Ends what another archiver left open: batches and restores. Flows only, no I/O.

Promises that whatever step its owner died at, a batch ends in one store and a restore in Redis. A batch of an owner
that lives is safe too: it is aborted, and the owner's COMMIT fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pinlater.archive.batches import (
    BatchState,
    abort,
    drop_rows,
    finalize,
    insert_batch,
    mark_finalized,
    state_of,
)
from pinlater.archive.incarnations import Incarnation
from pinlater.archive.moves import Moves, held, moves_of
from pinlater.archive.moving_job import unpack_ids
from pinlater.archive.queries import query
from pinlater.archive.restores import carry_out, close, open_restores
from pinlater.archive.settle import settle
from pinlater.model.errors import ArchiveDuplicate
from pinlater.store.archive_driver import ArchiveDatabase, Statements
from pinlater.store.effects import Flow, Transaction
from pinlater.store.shards import QueueShard

#: `settled` takes so many names.
_ENDED_AT_ONCE: Final = 1_000


def end_batches(
    queue_shard: QueueShard,
    database: ArchiveDatabase,
    incarnation: Incarnation,
    batches: Sequence[bytes],
    deadline_s: float,
) -> Flow[None]:
    """Ends batches that Redis has: by their rows, or by an ABORTED row."""
    committed = []
    for name in batches:
        if (yield from _judge(database, incarnation, name)) is BatchState.ABORTED:
            yield from abort(queue_shard, name, deadline_s)
        else:
            yield from finalize(queue_shard, database, name, deadline_s)
            committed.append(name)
    yield from until_finalized(queue_shard, database, committed, deadline_s)


def _judge(database: ArchiveDatabase, incarnation: Incarnation, name: bytes) -> Flow[BatchState]:
    """The state of a batch. One that has no row gets an ABORTED one."""
    state = yield from state_of(database, name)
    if state is not None:
        return state

    def insert(sql: Statements) -> None:
        insert_batch(sql, incarnation, name, BatchState.ABORTED)

    try:
        yield Transaction(database, insert)
    except ArchiveDuplicate:  # its owner was faster
        state = yield from state_of(database, name)
        assert state is not None
        return state
    return BatchState.ABORTED


def until_finalized(
    queue_shard: QueueShard, database: ArchiveDatabase, names: Sequence[bytes], deadline_s: float
) -> Flow[None]:
    """Waits until the ends of batches are on the disk of Redis, then lets their jobs come back."""
    left = list(names)
    while left:
        settled = yield from settle(queue_shard, deadline_s, finalized=left)
        yield from mark_finalized(database, [name for name, done in zip(left, settled, strict=True) if done])
        left = [name for name, done in zip(left, settled, strict=True) if not done]
        for name in left:  # the server went back in time
            yield from finalize(queue_shard, database, name, deadline_s)


def end_unknown(
    queue_shard: QueueShard, database: ArchiveDatabase, incarnation: Incarnation, deadline_s: float
) -> Flow[None]:
    """Ends COMMITTED batches that Redis does not know: it removed them, or lost its data. Jobs that Redis has all the
    same lose their rows.
    """
    rows = yield from query(database, "select_committed", incarnation.number)
    ids_of = {bytes(name): unpack_ids(ids) for name, ids in rows[:_ENDED_AT_ONCE]}  # the others at the next look
    names = list(ids_of)
    if not names:
        return
    settled = yield from settle(queue_shard, deadline_s, finalized=names)
    ended = [name for name, done in zip(names, settled, strict=True) if done]
    for name in ended:
        if stale := (yield from held(queue_shard, incarnation, ids_of[name], deadline_s)):
            yield from drop_rows(database, name, stale)
    yield from mark_finalized(database, ended)


def recover(
    queue_shard: QueueShard, database: ArchiveDatabase, incarnation: Incarnation, older_than_ms: int, deadline_s: float
) -> Flow[None]:
    """Ends all that archivers left open on a queue shard.

    older_than_ms: leaves batches alone that were withdrawn after this, by the clock of Redis, as their owner may live.
    """
    moves = yield from moves_of(queue_shard, deadline_s)
    left = [batch.name for batch in moves.batches if batch.since_ms < older_than_ms]
    yield from end_batches(queue_shard, database, incarnation, left, deadline_s)
    yield from end_unknown(queue_shard, database, incarnation, deadline_s)
    restores = yield from open_restores(database, incarnation)
    yield from carry_out(queue_shard, database, incarnation, restores, deadline_s)
    yield from _close_ended(queue_shard, database, incarnation, moves, deadline_s)


def _close_ended(
    queue_shard: QueueShard, database: ArchiveDatabase, incarnation: Incarnation, moves: Moves, deadline_s: float
) -> Flow[None]:
    """Closes the restores that have ended: nobody closed them, or Redis lost its data and forgot.

    Restores of one transaction end in one transaction. So all numbers below the first open one have ended. A restore
    that begins after the first query has a higher number than it gives.
    """
    [(last,)] = yield from query(database, "last_restore", incarnation.number)
    still_open = yield from query(database, "select_restores", incarnation.number)
    ended = min([last, *(number - 1 for number, _, _ in still_open)])
    if moves.closed < ended or any(number <= ended for number in moves.restores):
        yield from close(queue_shard, incarnation, ended, deadline_s)
