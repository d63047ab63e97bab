"""Migrations on a real MySQL: from empty, twice, by many at once, cut off; and programs of other versions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from pinlater.model.errors import ArchiveNotReady, ArchiveUnavailable
from pinlater.store import archive_schema
from pinlater.store.archive_driver import ArchiveDatabase
from pinlater.store.archive_schema import Schema, check_schema, migrate, schema_of
from pinlater.store.statements import Migration, load_migrations
from tests.support.archive import database_of, new_incarnation
from tests.support.mariadb import connected, query

LAST = len(load_migrations())


@pytest.fixture
def database(mysql_url: str) -> Iterator[ArchiveDatabase]:
    made = database_of(mysql_url)
    yield made
    made.close()


@pytest.fixture
def with_migrations(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes this a program that knows these migrations beside those of today."""

    def use(*more: Migration) -> None:
        monkeypatch.setattr(archive_schema, "load_migrations", lambda: [*load_migrations(), *more])

    return use


def columns_of(url: str, table: str) -> set[str]:
    with connected(url) as connection:
        return {row[0] for row in query(connection, f"SHOW COLUMNS FROM {table}")}


def test_from_empty_and_again(database: ArchiveDatabase) -> None:
    assert schema_of(database) == Schema(0, 0, LAST)
    assert migrate(database) == list(range(1, LAST + 1))
    assert schema_of(database) == Schema(LAST, 1, LAST)
    number = new_incarnation(database)
    assert migrate(database) == []
    assert database.transaction(lambda sql: sql.run("check_shared", (number,))) == [(3,)]
    check_schema(database)


def test_many_at_once(database: ArchiveDatabase) -> None:
    applied: list[int] = []
    together = threading.Barrier(5, timeout=30)

    def run() -> None:
        own = database_of(database.url.url)
        together.wait()
        applied.extend(migrate(own))
        own.close()

    threads = [threading.Thread(target=run) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert applied == list(range(1, LAST + 1))


def test_one_that_was_cut_off_is_applied_again(database: ArchiveDatabase, with_migrations: Callable[..., None]) -> None:
    migrate(database)
    extra = "CREATE TABLE IF NOT EXISTS extra (number INT)"
    with_migrations(Migration(LAST + 1, 1, [extra, "NO SQL"]))
    with pytest.raises(Exception, match="PARSE_ERROR 1064"):
        migrate(database)
    assert schema_of(database).version == LAST
    assert columns_of(database.url.url, "extra") == {"number"}
    with_migrations(Migration(LAST + 1, 1, [extra, "ALTER TABLE extra ADD COLUMN more INT"]))
    assert migrate(database) == [LAST + 1]
    assert columns_of(database.url.url, "extra") == {"number", "more"}


def test_another_migration_that_takes_long_is_named(database: ArchiveDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_schema, "LOCK_S", 0)
    other = database_of(database.url.url)

    def hold(sql: object) -> None:
        sql.run("lock_migrations", (0,))  # type: ignore[attr-defined]
        with pytest.raises(ArchiveUnavailable, match="another process has been migrating it"):
            migrate(database)
        sql.run("unlock_migrations")  # type: ignore[attr-defined]

    other.transaction(hold)
    other.close()
    assert migrate(database)


def test_a_program_says_what_it_needs(database: ArchiveDatabase, with_migrations: Callable[..., None]) -> None:
    with pytest.raises(ArchiveNotReady, match=rf"version 0, this program needs {LAST}; run `pinlater archive migrate`"):
        check_schema(database)
    migrate(database)
    with_migrations(Migration(LAST + 1, 1, []))
    with pytest.raises(ArchiveNotReady, match=rf"version {LAST}, this program needs {LAST + 1}; run"):
        check_schema(database)
    assert migrate(database) == [LAST + 1]
    check_schema(database)
    with_migrations()  # an older program, which still works
    check_schema(database)
    assert migrate(database) == []
    with_migrations(Migration(LAST + 1, 1, []), Migration(LAST + 2, LAST + 1, []))
    assert migrate(database) == [LAST + 2]
    with_migrations()
    with pytest.raises(ArchiveNotReady, match=rf"need a program of version {LAST + 1} or later, this one has {LAST}"):
        check_schema(database)
