"""Which queue a row of the archive belongs to: the incarnations of a queue on a shard.

An incarnation begins when a queue is made and ends when it is deleted. Redis counts both in the queue's epoch, and
forgets the count if it loses its data. MySQL numbers incarnations for ever.

Promises that rows of a queue that was deleted never come back, and that rows of a queue whose Redis lost its data do.
Risk: a deletion that MySQL did not hear of, followed by a loss of Redis before anybody looked, is taken for a loss.
"""

from __future__ import annotations

from typing import NamedTuple

from pinlater.model.errors import ArchiveError
from pinlater.store.archive_driver import ArchiveDatabase, Statements
from pinlater.store.effects import Flow, Transaction
from pinlater.store.shards import QueueShard


class Incarnation(NamedTuple):
    """One incarnation. epoch: that of Redis when it was last compared."""

    number: int
    epoch: int


class IncarnationEnded(ArchiveError):
    """The queue was deleted, or MySQL knows a later epoch. Compare again."""


def compare(database: ArchiveDatabase, queue_shard: QueueShard, epoch: int) -> Flow[Incarnation]:
    """The current incarnation of a queue shard that has this epoch in Redis. A later epoch than MySQL knows ends the
    one before. An earlier one shows that Redis lost its data: the incarnation goes on with it.
    """
    queue, shard = queue_shard.queue.encode(), queue_shard.shard.name.encode()

    def find(sql: Statements) -> Incarnation:
        rows = sql.run("lock_incarnation", (queue, shard))
        if rows and epoch > rows[0][1]:
            end(sql, rows[0][0])
            rows = []
        if not rows:
            return Incarnation(sql.insert("insert_incarnation", (queue, shard, epoch)), epoch)
        if epoch < rows[0][1]:
            sql.run("set_epoch", (epoch, rows[0][0]))
        return Incarnation(rows[0][0], epoch)

    return (yield Transaction(database, find))


def end(sql: Statements, number: int) -> None:
    """Ends an incarnation. Its rows never come back; `purge` removes them."""
    sql.run("end_incarnation", (number,))


def check_current(sql: Statements, incarnation: Incarnation, *, exclusive: bool = False) -> None:
    """Raises IncarnationEnded unless it is the current one, and keeps it so until the end of the transaction.

    exclusive: no other transaction may check it meanwhile.
    """
    rows = sql.run("check_exclusive" if exclusive else "check_shared", (incarnation.number,))
    if not rows or rows[0][0] != incarnation.epoch:
        raise IncarnationEnded(f"incarnation {incarnation.number}: it ended, or its epoch is not {incarnation.epoch}")
