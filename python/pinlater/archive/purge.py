"""Removes rows that nobody needs any more. Flows only, no I/O.

Promises that each transaction removes at most PURGED_AT_ONCE rows.
The row of an ABORTED batch stays until its queue is deleted: it refuses a COMMIT, however late.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from pinlater.archive.queries import query
from pinlater.store.archive_driver import ArchiveDatabase, Statements, Value
from pinlater.store.effects import Flow, Transaction

PURGED_AT_ONCE: Final = 1_000
#: The row of a FINALIZED batch is kept for so long.
KEPT_MS: Final = 24 * 3600 * 1000


def purge(database: ArchiveDatabase) -> Flow[int]:
    """Removes the rows of queues that were deleted, and the rows of batches that ended a day ago. Returns how many jobs
    it removed.
    """
    removed = 0
    for (number,) in (yield from query(database, "select_ended")):
        removed += yield from _all(database, "delete_some_jobs", (number,))
        yield from _all(database, "delete_batches", (number,))
        yield from query(database, "delete_restores", number)
        yield from query(database, "delete_incarnation", number)
    yield from _all(database, "delete_old_batches", (int(time.time() * 1000) - KEPT_MS,))
    return removed


def _all(database: ArchiveDatabase, statement: str, parameters: Sequence[Value]) -> Flow[int]:
    """Runs a statement with a limit until it changes fewer rows. Returns how many it changed."""
    changed, last = 0, PURGED_AT_ONCE

    def some(sql: Statements) -> int:
        sql.run(statement, (*parameters, PURGED_AT_ONCE))
        return sql.changed

    while last == PURGED_AT_ONCE:
        last = yield Transaction(database, some)
        changed += last
    return changed
