"""Removes rows that nobody needs any more. Flows only, no I/O.

Promises that each transaction removes at most PURGED_AT_ONCE rows.
The row of an ABORTED batch stays until its queue is deleted: it refuses a COMMIT, however late.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from pinlater.archive.queries import query
from pinlater.store.archive_driver import ArchiveDatabase, Statements
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
        removed += yield from _all(database, partial(_delete_some, "delete_some_jobs", number))
        yield from _all(database, partial(_delete_some, "delete_batches", number))
        yield from query(database, "delete_restores", number)
        yield from query(database, "delete_incarnation", number)
    yield from _all(database, partial(_delete_old, int(time.time() * 1000) - KEPT_MS))
    return removed


def _delete_some(statement: str, incarnation: int, sql: Statements) -> int:
    sql.run(statement, (incarnation, PURGED_AT_ONCE))
    return sql.changed


def _delete_old(before_ms: int, sql: Statements) -> int:
    """Reads the numbers first, which waits for nobody. A DELETE by time would look at each row, and so wait for the
    COMMITs of all queues, also for that of an archiver that stands still.
    """
    numbers = [number for (number,) in sql.run("select_old_batches", (before_ms, PURGED_AT_ONCE))]
    sql.run_in("delete_old_batches", (), numbers)
    return len(numbers)


def _all(database: ArchiveDatabase, some: Callable[[Statements], int]) -> Flow[int]:
    """Runs transactions until one removes fewer rows than it may. Returns how many rows they removed."""
    removed, last = 0, PURGED_AT_ONCE
    while last == PURGED_AT_ONCE:
        last = yield Transaction(database, some)
        removed += last
    return removed
