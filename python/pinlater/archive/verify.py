"""The audit over both stores: each archived job is in MySQL alone. Flows only, no I/O.

It adds to `operations/audit.py`, which audits what Redis has. A job that moves is checked again, as it may be in both
stores for a moment.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

import pinlater._core as _core
from pinlater.archive.incarnations import Incarnation, known_incarnation
from pinlater.archive.moves import held, moves_of
from pinlater.archive.moving_job import unpack_ids
from pinlater.archive.queries import query, query_in
from pinlater.operations.audit import Finding
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.store.archive_driver import ArchiveDatabase, Row
from pinlater.store.effects import Flow, Sleep
from pinlater.store.shards import QueueShard, Session

PAGE: Final = 1_000
#: A job that was wrong is looked at again after this time, so often.
LOOK_AGAIN_S: Final = 0.5
LOOKS: Final = 3


def verify(session: Session, database: ArchiveDatabase, queue: str, deadline_s: float) -> Flow[list[Finding]]:
    """The problems of a queue's archived jobs.

    deadline_s: the time until then is what each single call may take; all of it may take longer.
    """
    patience_s = deadline_s - time.monotonic()
    findings: list[Finding] = []
    for queue_shard in (yield from known_queue_shards(session, queue, deadline_s)):
        findings += yield from _Verification(queue_shard, database, patience_s).run()
    return findings


class _Verification:
    """The audit of the archived jobs of one queue shard."""

    def __init__(self, queue_shard: QueueShard, database: ArchiveDatabase, patience_s: float) -> None:
        self._queue_shard, self._database, self._patience_s = queue_shard, database, patience_s

    def run(self) -> Flow[list[Finding]]:
        incarnation = yield from known_incarnation(self._database, self._queue_shard, self._deadline_s())
        findings: list[Finding] = []
        last = 0
        while True:
            rows = yield from query(self._database, "select_page", incarnation.number, last, PAGE)
            if not rows:
                return findings
            last = rows[-1][0]
            findings += yield from self._judge(incarnation, rows)

    def _judge(self, incarnation: Incarnation, rows: list[Row]) -> Flow[list[Finding]]:
        wrong = yield from self._wrong(incarnation, rows)
        for _ in range(LOOKS - 1):
            if not wrong:
                break
            yield Sleep(LOOK_AGAIN_S)
            again = yield from query_in(self._database, "select_batches_of", (incarnation.number,), list(wrong))
            wrong = yield from self._wrong(incarnation, again)
        return [self._finding(id_, *found) for id_, found in wrong.items()]

    def _wrong(self, incarnation: Incarnation, rows: Sequence[Row]) -> Flow[dict[int, tuple[int, str]]]:
        """id -> its priority and what is wrong with it."""
        ids = [row[0] for row in rows]
        in_redis = set((yield from held(self._queue_shard, incarnation, ids, self._deadline_s())))
        moving = yield from self._moving(incarnation)
        assert self._queue_shard.stored is not None
        problems = _problems(rows, in_redis, moving, self._queue_shard.stored.config.priorities)
        return {id_: (priority, problem) for id_, priority, problem in problems}

    def _moving(self, incarnation: Incarnation) -> Flow[tuple[set[bytes], set[int]]]:
        """The batches that Redis has, and the jobs of open restores."""
        moves = yield from moves_of(self._queue_shard, self._deadline_s())
        rows = yield from query(self._database, "select_restores", incarnation.number)
        return {batch.name for batch in moves.batches}, {id_ for _, _, ids in rows for id_ in unpack_ids(ids)}

    def _finding(self, id_: int, priority: int, problem: str) -> Finding:
        queue, shard = self._queue_shard.queue, self._queue_shard.shard.name
        return Finding(shard, _core.format_descriptor(queue, shard, priority, id_), problem)

    def _deadline_s(self) -> float:
        return time.monotonic() + self._patience_s


def _problems(
    rows: Sequence[Row], in_redis: set[int], moving: tuple[set[bytes], set[int]], priorities: int
) -> Iterator[tuple[int, int, str]]:
    batches, restoring = moving
    seen: set[int] = set()
    for id_, priority, batch in rows:
        if id_ in seen:
            yield id_, priority, "has two rows in the archive"
        elif id_ in in_redis and id_ not in restoring and (batch is None or bytes(batch) not in batches):
            yield id_, priority, "in Redis and in the archive"
        elif priority > priorities:  # Redis lost its data, and the queue was made again
            yield id_, priority, f"it cannot come back while the queue has fewer than {priority} priorities"
        seen.add(id_)
