"""The schema of the archive's database: its version, the check of a program against it, and migrations.

Promises that `migrate` may run at any time, twice, and by two at once. A migration names the first program that works
on it, so programs of two versions may share a database.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from pinlater.model.errors import ArchiveNotReady, ArchiveUnavailable
from pinlater.store.archive_driver import ArchiveDatabase, Statements
from pinlater.store.effects import Flow, Transaction
from pinlater.store.statements import load_migrations

#: How long a migration waits for another one.
LOCK_S: Final = 10


class Schema(NamedTuple):
    """version: the last migration of the database; 0: none. works_from: the first version of a program that works on
    it. program: the version of this program, which is the number of its last migration.
    """

    version: int
    works_from: int
    program: int

    @property
    def trouble(self) -> str:
        """Why this program cannot use the database, and what to do; "" if it can."""
        if self.version < self.program:
            return (
                f"its tables are of version {self.version}, this program needs {self.program}; "
                "run `pinlater archive migrate`"
            )
        if self.works_from > self.program:
            return (
                f"its tables need a program of version {self.works_from} or later, this one has {self.program}; "
                "update PinLater"
            )
        return ""


def schema_of(database: ArchiveDatabase) -> Schema:
    """The schema of the database. Raises ArchiveError."""
    return database.transaction(_read)


def check_schema(database: ArchiveDatabase) -> None:
    """Raises ArchiveNotReady if this program cannot use the database."""
    _check(database, schema_of(database))


def require_schema(database: ArchiveDatabase) -> Flow[None]:
    """check_schema as a flow."""
    schema: Schema = yield Transaction(database, _read)
    _check(database, schema)


def _check(database: ArchiveDatabase, schema: Schema) -> None:
    if schema.trouble:
        raise ArchiveNotReady(f"archive {database.url}: {schema.trouble}")


def migrate(database: ArchiveDatabase) -> list[int]:
    """Applies the migrations that the database lacks. Returns their numbers.

    database: with a read_timeout_s that is longer than the longest migration.
    """
    return database.transaction(lambda sql: _migrate_alone(sql, database))


def _migrate_alone(sql: Statements, database: ArchiveDatabase) -> list[int]:
    if sql.run("lock_migrations", (LOCK_S,)) != [(1,)]:
        raise ArchiveUnavailable(f"archive {database.url}: another process has been migrating it for {LOCK_S} s")
    try:
        return database.transaction(_apply_missing)  # its COMMIT comes before the end of the lock
    finally:
        sql.run("unlock_migrations")


def _apply_missing(sql: Statements) -> list[int]:
    version = _read(sql).version
    missing = load_migrations()[version:]
    for migration in missing:
        for text in migration.statements:
            sql.run_text(text)
        sql.run("insert_migration", (migration.number, migration.works_from, int(time.time() * 1000)))
    return [migration.number for migration in missing]


def _read(sql: Statements) -> Schema:
    applied = sql.run("select_migrations") if sql.run("has_migrations") else []
    return Schema(
        max((number for number, _ in applied), default=0),
        max((works_from for _, works_from in applied), default=0),
        load_migrations()[-1].number,
    )
