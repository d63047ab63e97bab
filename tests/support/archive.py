"""An archive for tests: a database with tables, and rows in it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from typing import Any

from pinlater.store.archive_driver import ArchiveDatabase, Statements
from pinlater.store.archive_schema import migrate
from pinlater.store.archive_url import parse_archive_url
from tests.support.mariadb import connected, query
from tests.support.servers import wait_until

COMMITTED, FINALIZED = 1, 2
EPOCH = 3


def database_of(url: str, **options: Any) -> ArchiveDatabase:
    """A database without tables. The caller closes it."""
    return ArchiveDatabase(parse_archive_url(url, "of a test"), **options)


def migrated(url: str, **options: Any) -> ArchiveDatabase:
    """A database with the archive's tables, and no connection. The caller closes it."""
    database = database_of(url)
    migrate(database)
    database.close()
    return database_of(url, **options)


def new_incarnation(database: ArchiveDatabase, queue: bytes = b"q") -> int:
    """The number of a current incarnation of a queue on shard 1."""
    return database.transaction(lambda sql: sql.insert("insert_incarnation", (queue, b"1", EPOCH)))


def job_row(
    id_: int, *, priority: int = 1, run_after_ms: int = 0, sixteenths: int = 0, body: bytes = b""
) -> tuple[Any, ...]:
    """The columns of a job without extras, from its id on."""
    return id_, priority, run_after_ms, sixteenths, 3, None, None, None, None, body


def store_batch(
    sql: Statements, incarnation: int, rows: Iterable[tuple[Any, ...]], state: int = FINALIZED
) -> tuple[bytes, int]:
    """Stores a batch of jobs. Returns its name and its number."""
    name = secrets.token_bytes(16)
    number = sql.insert("insert_batch", (name, incarnation, state, 1, b""))
    sql.run_many("insert_jobs", [(incarnation, number, *row) for row in rows])
    return name, number


#: Parameters with which each statement runs on empty tables.
NAME = b"n" * 16
PARAMETERS: dict[str, tuple[Any, ...]] = {
    "lock_incarnation": (b"q", b"1"),
    "insert_incarnation": (b"q", b"1", 1),
    "set_epoch": (2, 1),
    "end_incarnation": (1,),
    "check_shared": (1,),
    "check_exclusive": (1,),
    "insert_batch": (NAME, 1, 1, 1, b""),
    "insert_jobs": (1, 1, *job_row(1)),
    "select_batch": (NAME,),
    "select_committed": (1,),
    "delete_of_batch": (NAME, 1),
    "finalize_batches": ([NAME],),
    "select_due": (1, 1, 0, 2**63 - 1, 10),
    "count_due": (1, 1, 2**63 - 1, 10),
    "select_jobs_by_id": (1, 9, [1, 2]),
    "select_restores": (1,),
    "number_restore": (1,),
    "insert_restore": (1, 1, 1, b"", 1),
    "delete_jobs_by_id": (1, 9, [1, 2]),
    "delete_restore": (1, 1),
    "select_migrations": (),
    "insert_migration": (999, 1, 1),
    "has_migrations": (),
    "lock_migrations": (0,),
    "unlock_migrations": (),
    "select_incarnation": (b"q", b"1"),
    "select_with_state": (1, 1, [1, 2]),
    "count_rows": (5, 1),
    "select_places": (1, [1, 2]),
    "select_latest_sizes": (1, 1, 0, 9, 9, 9, 9, 10),
    "select_latest": (1, 1, 1, 0, 9, 9, 9, 9, 10),
    "select_ids": (1, 1, [1, 2]),
    "select_page": (1, 0, 10),
    "select_queues": (),
    "select_ended": (),
    "delete_some_jobs": (1, 10),
    "delete_restores": (1,),
    "delete_batches": (1, 10),
    "delete_incarnation": (1,),
    "select_old_batches": (1, 10),
    "delete_old_batches": ([1, 2],),
    "select_first": (1, 1),
    "select_batches_of": (1, [1, 2]),
    "delete_ids": (1, [1, 2]),
    "lock_committed": (NAME,),
    "last_ended": (1,),
    "last_batch": (),
    "number_apart": (1,),
    "last_restore": (1,),
}


def insert(sql: Statements) -> int:
    """A batch of its own."""
    return sql.insert("insert_batch", (os.urandom(16), 1, 1, 1, b""))


def batches_in(url: str) -> int:
    with connected(url) as connection:
        [(count,)] = query(connection, "SELECT COUNT(*) FROM batches")
    return int(count)


PROCESSES = "SELECT id FROM information_schema.processlist WHERE db = %s"


def connections(database: ArchiveDatabase, count: int) -> set[int]:
    """The server's numbers of the connections to this database, once there are so many: one takes a while to end."""
    found: set[int] = set()

    def are_so_many() -> bool:
        nonlocal found
        with connected(database.url.url, database=None) as connection:
            rows = query(
                connection, "SELECT id FROM information_schema.processlist WHERE db = %s", database.url.database
            )
        found = {number for (number,) in rows}
        return len(found) == count

    wait_until(are_so_many, f"{count} connections")
    return found
