"""Which queue a row of the archive belongs to: the incarnations of a queue on a shard. Flows only, no I/O.

An incarnation begins when a queue is made and ends when it is deleted. Redis counts both in the queue's epoch, and
forgets the count if it loses its data. MySQL numbers incarnations for ever.

Promises that rows of a queue that was deleted never come back, and that rows of a queue whose Redis lost its data do.
Risk: a deletion that MySQL did not hear of is taken for a loss if Redis lost its data before anybody looked, or if it
had lost its data earlier and the epoch is not above the one from before.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from pinlater.archive.queries import query
from pinlater.archive.settle import settled_epoch
from pinlater.model.errors import ArchiveDuplicate, ArchiveError
from pinlater.store.archive_driver import ArchiveDatabase, Row, Statements
from pinlater.store.effects import Flow, Transaction
from pinlater.store.requests import known_config
from pinlater.store.shards import QueueShard


class Incarnation(NamedTuple):
    """One incarnation. epoch: that of Redis when it was last compared."""

    number: int
    epoch: int


class _Seen(NamedTuple):
    """What MySQL has of a queue shard.

    lost_epoch: the highest epoch before Redis lost its data. last_batch: the highest number of a batch of any queue, or
    None; where there is no incarnation it does not count.
    """

    incarnation: Incarnation | None
    lost_epoch: int
    last_batch: int | None


class IncarnationEnded(ArchiveError):
    """The queue was deleted, or its epoch is another one by now. Compare again."""


def incarnation_of(database: ArchiveDatabase, queue_shard: QueueShard, deadline_s: float) -> Flow[Incarnation]:
    """The current incarnation of a queue shard, as Redis and MySQL know it. Raises QueueNotFound.

    A later epoch than MySQL has ever known ends the incarnation before. An earlier one shows that Redis lost its data:
    the incarnation goes on, also if another shard brings the old epoch back later.

    Redis is read after MySQL, and MySQL is changed only if it still says the same, and no batch was committed. So no
    epoch decides that this client read earlier, or that a restart of Redis takes back, or that a loss took since.
    """
    epoch = (yield from known_config(queue_shard, deadline_s)).epoch
    while True:
        seen = yield from _look(database, queue_shard)
        known = seen.incarnation
        if known is not None and known.epoch == epoch:
            return known
        epoch = yield from settled_epoch(queue_shard, deadline_s)
        if known is None or known.epoch != epoch:
            yield from _change(database, queue_shard, seen, epoch)


def known_incarnation(database: ArchiveDatabase, queue_shard: QueueShard, deadline_s: float) -> Flow[Incarnation]:
    """Like incarnation_of, for those who only read. A queue that MySQL does not know has number 0, which no row has."""
    if (yield from _look(database, queue_shard)).incarnation is None:
        return Incarnation(0, 0)
    return (yield from incarnation_of(database, queue_shard, deadline_s))


def _look(database: ArchiveDatabase, queue_shard: QueueShard) -> Flow[_Seen]:
    return _seen((yield from query(database, "select_incarnation", *_names(queue_shard))))


def _seen(rows: Sequence[Row]) -> _Seen:
    if not rows:
        return _Seen(None, 0, None)
    number, epoch, lost_epoch, last_batch = rows[0]
    return _Seen(Incarnation(number, epoch), lost_epoch, last_batch)


def _change(database: ArchiveDatabase, queue_shard: QueueShard, seen: _Seen, epoch: int) -> Flow[None]:
    """Gives MySQL the epoch of Redis, unless MySQL has changed since `seen` was read.

    A Redis that lost its data may have the epoch of an earlier incarnation again. So numbers tell the restores apart.
    """

    def change(sql: Statements) -> None:
        known = seen.incarnation
        rows = sql.run("lock_incarnation", _names(queue_shard))
        last = sql.run("last_batch")  # behind the lock, which waits for commits
        if _seen([(*row, *last[0]) for row in rows]) != seen:
            return
        if known is not None and epoch <= max(known.epoch, seen.lost_epoch):
            sql.run("set_epoch", (epoch, known.number))
            return
        if known is not None:
            sql.run("end_incarnation", (known.number,))
        number = sql.insert("insert_incarnation", (*_names(queue_shard), epoch))
        sql.run("number_apart", (number,))

    with suppress(ArchiveDuplicate):  # another archiver inserted it
        yield Transaction(database, change)


def end(database: ArchiveDatabase, incarnation: Incarnation) -> Flow[None]:
    """Ends an incarnation whose queue was deleted in Redis. Its rows never come back; `purge` removes them."""
    yield from query(database, "end_incarnation", incarnation.number)


def check_current(sql: Statements, incarnation: Incarnation, *, exclusive: bool = False) -> None:
    """Raises IncarnationEnded unless it is the current one, and keeps it so until the end of the transaction.

    exclusive: no other transaction may check it meanwhile.
    """
    rows = sql.run("check_exclusive" if exclusive else "check_shared", (incarnation.number,))
    if not rows or rows[0][0] != incarnation.epoch:
        raise IncarnationEnded(f"incarnation {incarnation.number}: it ended, or its epoch is not {incarnation.epoch}")


def _names(queue_shard: QueueShard) -> tuple[bytes, bytes]:
    return queue_shard.queue.encode(), queue_shard.shard.name.encode()
