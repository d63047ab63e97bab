"""Transactions on a real MySQL: bytes come back as they went, errors mean what the table says.

Promises: each error is provoked on the server. Risks: locks are shown with MariaDB's lock waits, which take seconds.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pinlater.model.errors import (
    ArchiveDuplicate,
    ArchiveError,
    ArchiveOutcomeUnknown,
    ArchiveUnavailable,
    ClientClosed,
)
from pinlater.store import archive_driver
from pinlater.store.archive_driver import MAX_FREE, TRIES, ArchiveDatabase, Statements
from pinlater.store.archive_errors import ArchiveConflict, ArchiveLost
from tests.support.archive import (
    batches_in,
    connections,
    database_of,
    insert,
    job_row,
    migrated,
    new_incarnation,
    store_batch,
)
from tests.support.mariadb import MariaDB, connected, made_database, query
from tests.support.mysql_proxy import Cut, MysqlProxy

MIB = 1024 * 1024
EVERY_BYTE = bytes(range(256)) * 2
STATUSES = [b"", "😀 ünïcode 'quoted' \\ % \x00\n".encode(), "😀".encode() * 750, b"x" * 3000]
BODIES = [b"", b"'", b"\\", b"%s", b"%", EVERY_BYTE, bytes(random.Random(1).randbytes(MIB)), b"\\" * MIB]


@pytest.fixture
def database(mysql_url: str) -> Iterator[ArchiveDatabase]:
    made = migrated(mysql_url)
    yield made
    made.close()


def rows_of(database: ArchiveDatabase, incarnation: int, ids: list[int]) -> list[Any]:
    return database.transaction(lambda sql: sql.run_in("select_jobs_by_id", (incarnation, 2**32 - 1), ids))


def test_bodies_statuses_and_numbers_come_back_as_they_went(database: ArchiveDatabase) -> None:
    incarnation = new_incarnation(database)
    rows: list[tuple[Any, ...]] = [job_row(number, body=body) for number, body in enumerate(BODIES)]
    rows += [
        (100 + number, 255, 2**48 - 1, 15, 65_535, 65_535, 2**48 - 1, 65_535, status, b"b")
        for number, status in enumerate(STATUSES)
    ]
    rows.append((2**64 - 1, 1, 0, 0, 0, 0, 0, 0, b"", b""))
    database.transaction(lambda sql: store_batch(sql, incarnation, rows))
    found = {row[1]: row[1:] for row in rows_of(database, incarnation, [row[0] for row in rows])}
    assert found == {row[0]: row for row in rows}
    with connected(database.url.url) as connection:
        sizes = query(connection, "SELECT id, bytes FROM jobs")
    assert dict(sizes) == {row[0]: len(row[-1]) + len(row[-2] or b"") for row in rows}


def test_a_status_that_is_too_long_is_refused_and_nothing_is_cut_off(database: ArchiveDatabase) -> None:
    incarnation = new_incarnation(database)
    row = (1, 1, 1, 0, 1, 1, 1, 1, b"x" * 3001, b"")
    with pytest.raises(ArchiveError, match="DATA_TOO_LONG 1406"):
        database.transaction(lambda sql: store_batch(sql, incarnation, [row]))
    assert rows_of(database, incarnation, [1]) == []
    assert batches_in(database.url.url) == 0


def test_many_rows_take_as_many_statements_as_the_server_needs(
    database: ArchiveDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_driver, "STATEMENT_BYTES", 2000)
    incarnation = new_incarnation(database)
    rows = [job_row(number, body=b"x" * (3000 if number == 7 else 100)) for number in range(50)]

    def work(sql: Statements) -> int:
        store_batch(sql, incarnation, rows)
        return sql.changed

    assert database.transaction(work) == 50
    assert len(rows_of(database, incarnation, list(range(50)))) == 50


def test_lists_of_ids_go_in_parts(database: ArchiveDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_driver, "IDS_AT_ONCE", 3)
    incarnation = new_incarnation(database)
    database.transaction(lambda sql: store_batch(sql, incarnation, [job_row(number) for number in range(10)]))
    assert [row[1] for row in rows_of(database, incarnation, list(range(10)))] == list(range(10))
    assert rows_of(database, incarnation, []) == []

    def delete(sql: Statements) -> int:
        sql.run_in("delete_jobs_by_id", (incarnation, 2**32 - 1), list(range(1, 9)))
        return sql.changed

    assert database.transaction(delete) == 8
    assert [row[1] for row in rows_of(database, incarnation, list(range(10)))] == [0, 9]


def test_a_body_larger_than_the_server_takes_is_refused_before_it_is_sent(
    fresh_mariadb: Callable[..., MariaDB],
) -> None:
    server = fresh_mariadb(options=("max-allowed-packet=1M",))
    with made_database(server.url) as url:
        database = migrated(url)
        with pytest.raises(ArchiveError, match="max_allowed_packet") as caught:
            database.transaction(lambda sql: store_batch(sql, 1, [job_row(1, body=bytes(MIB))]))
        assert type(caught.value) is ArchiveError
        assert len(connections(database, 1)) == 1  # it was not dropped
        database.close()


def test_an_error_of_work_undoes_all_of_it(database: ArchiveDatabase) -> None:
    def work(sql: Statements) -> None:
        insert(sql)
        raise KeyError("of the caller")

    with pytest.raises(KeyError):
        database.transaction(work)
    assert batches_in(database.url.url) == 0
    assert database.transaction(insert) > 0
    assert batches_in(database.url.url) == 1


def test_a_duplicate_is_a_verdict(database: ArchiveDatabase) -> None:
    name = os.urandom(16)

    def work(sql: Statements) -> None:
        insert(sql)
        sql.insert("insert_batch", (name, 1, 1, 1, b""))

    database.transaction(work)
    with pytest.raises(ArchiveDuplicate, match="DUP_ENTRY 1062"):
        database.transaction(work)
    assert batches_in(database.url.url) == 2


def test_a_transaction_that_lost_a_deadlock_is_run_again(database: ArchiveDatabase) -> None:
    numbers = [new_incarnation(database, queue) for queue in (b"a", b"b")]
    both = threading.Barrier(2, timeout=30)
    runs: list[int] = []

    def lock_both(order: list[int]) -> None:
        def work(sql: Statements) -> None:
            first = runs.count(order[0]) == 0
            runs.append(order[0])
            sql.run("set_epoch", (10, order[0]))
            if first:
                both.wait()
            sql.run("set_epoch", (10, order[1]))

        database.transaction(work)

    threads = [threading.Thread(target=lock_both, args=(order,)) for order in (numbers, numbers[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 3  # one of them was run again
    epochs = database.transaction(lambda sql: [sql.run("check_shared", (number,)) for number in numbers])
    assert epochs == [[(10,)], [(10,)]]


def test_a_lock_that_stays_is_waited_for_a_few_times(
    database: ArchiveDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_driver, "TRIES", 2)
    number, runs = new_incarnation(database), []

    def work(sql: Statements) -> None:
        runs.append(insert(sql))
        sql.run("check_exclusive", (number,))

    with connected(database.url.url, autocommit=False) as other:
        query(other, "SELECT * FROM incarnations WHERE number = %s LOCK IN SHARE MODE", number)
        assert database.transaction(lambda sql: sql.run("check_shared", (number,))) == [(3,)]
        with pytest.raises(ArchiveUnavailable, match="LOCK_WAIT_TIMEOUT 1205"):
            database.transaction(work)
    assert len(runs) == 2 < TRIES
    assert batches_in(database.url.url) == 0


def test_work_that_hides_a_lost_transaction_does_not_commit_its_rest(database: ArchiveDatabase) -> None:
    """InnoDB undoes all of a transaction that lost a deadlock; what follows would be half of it."""
    failed = ArchiveConflict("of the test")
    runs = []

    def work(sql: Statements) -> None:
        insert(sql)
        runs.append(sql)
        if len(runs) == 1:
            sql.failed = failed
            with pytest.raises(ArchiveConflict):
                insert(sql)

    database.transaction(work)
    assert len(runs) == 2
    assert batches_in(database.url.url) == 1


def test_any_other_error_is_given_by_name_and_number(database: ArchiveDatabase) -> None:
    with pytest.raises(ArchiveError, match=r"syntax.*\(PARSE_ERROR 1064\)") as caught:
        database.transaction(lambda sql: sql.run_text("NO SQL"))
    assert type(caught.value) is ArchiveError
    used = connections(database, 1)
    database.transaction(insert)
    assert connections(database, 1) == used


@pytest.fixture
def proxied(mariadb: MariaDB, private: ArchiveDatabase) -> Iterator[tuple[ArchiveDatabase, MysqlProxy]]:
    """The database behind a proxy."""
    with MysqlProxy(mariadb.start().port) as proxy:
        url = private.url.url.replace(f":{mariadb.port}/", f":{proxy.port}/")
        made = database_of(url, read_timeout_s=5.0)
        yield made, proxy
        made.close()


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
def test_a_connection_cut_at_a_statement_leaves_nothing(proxied: tuple[ArchiveDatabase, MysqlProxy], cut: Cut) -> None:
    database, proxy = proxied
    proxy.arm(b"INSERT INTO batches", cut)
    with pytest.raises(ArchiveUnavailable, match="2013"):
        database.transaction(insert)
    assert proxy.cuts == 1
    assert batches_in(database.url.url) == 0
    database.transaction(insert)
    assert batches_in(database.url.url) == 1


@pytest.mark.parametrize(("cut", "done"), [(Cut.BEFORE, 0), (Cut.AFTER, 1)])
def test_the_outcome_of_a_commit_whose_answer_is_lost_is_unknown(
    proxied: tuple[ArchiveDatabase, MysqlProxy], cut: Cut, done: int
) -> None:
    database, proxy = proxied
    proxy.arm(b"COMMIT", cut)
    with pytest.raises(ArchiveOutcomeUnknown, match="the transaction may have been done"):
        database.transaction(insert)
    assert proxy.cuts == 1
    assert batches_in(database.url.url) == done
    database.transaction(insert)
    assert batches_in(database.url.url) == done + 1


def test_a_commit_without_an_answer_in_time_is_unknown(mariadb: MariaDB, private: ArchiveDatabase) -> None:
    with MysqlProxy(mariadb.start().port) as proxy:
        url = private.url.url.replace(f":{mariadb.port}/", f":{proxy.port}/")
        impatient = database_of(url, read_timeout_s=0.5)
        proxy.arm(b"COMMIT", Cut.SILENCE)
        with pytest.raises(ArchiveOutcomeUnknown):
            impatient.transaction(insert)
        assert batches_in(private.url.url) == 1
        impatient.close()


def test_a_lost_commit_of_what_only_read_is_no_error(proxied: tuple[ArchiveDatabase, MysqlProxy]) -> None:
    database, proxy = proxied
    proxy.arm(b"COMMIT", Cut.BEFORE)
    assert database.transaction(lambda sql: sql.run("select_batch", (bytes(16),))) == []
    assert proxy.cuts == 1
    assert database.transaction(insert) > 0


def test_a_killed_connection_is_not_used_again(database: ArchiveDatabase) -> None:
    database.transaction(insert)
    [first] = connections(database, 1)
    with connected(database.url.url) as connection:
        query(connection, f"KILL {first}")
    database.transaction(insert)
    assert first not in connections(database, 1)
    assert batches_in(database.url.url) == 2


def test_a_connection_that_is_killed_in_a_transaction_leaves_nothing(database: ArchiveDatabase) -> None:
    def work(sql: Statements) -> None:
        insert(sql)
        [own] = connections(database, 1)
        with connected(database.url.url) as connection:
            query(connection, f"KILL {own}")
        insert(sql)

    with pytest.raises(ArchiveLost):
        database.transaction(work)
    assert batches_in(database.url.url) == 0
    assert database.transaction(insert) > 0


@pytest.mark.parametrize("kill", [True, False])
def test_a_server_that_ends_and_comes_back(fresh_mariadb: Callable[..., MariaDB], kill: bool) -> None:
    server = fresh_mariadb()
    with made_database(server.url) as url:
        database = migrated(url)
        database.transaction(insert)

        def work(sql: Statements) -> None:
            insert(sql)
            server.kill() if kill else server.stop()
            insert(sql)

        with pytest.raises(ArchiveUnavailable):
            database.transaction(work)
        with pytest.raises(ArchiveUnavailable, match="2003"):
            database.transaction(insert)
        server.start()
        database.transaction(insert)
        assert batches_in(url) == 2
        database.close()


def test_threads_share_a_database_and_a_few_connections_stay(database: ArchiveDatabase) -> None:
    together = threading.Barrier(MAX_FREE + 4, timeout=30)

    def work(sql: Statements) -> None:
        insert(sql)
        together.wait()

    threads = [threading.Thread(target=database.transaction, args=(work,)) for _ in range(MAX_FREE + 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert batches_in(database.url.url) == MAX_FREE + 4
    used = connections(database, MAX_FREE)
    database.transaction(insert)
    assert connections(database, MAX_FREE) == used


def test_a_forked_child_has_connections_of_its_own(database: ArchiveDatabase) -> None:
    database.transaction(insert)
    [parents] = connections(database, 1)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            [(own,)] = database.transaction(lambda sql: sql.run_text("SELECT CONNECTION_ID()"))
            database.transaction(insert)
            code = 0 if own != parents else 2
            database.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    database.transaction(insert)  # the child sent nothing on it, not even a farewell
    assert connections(database, 1) == {parents}
    assert batches_in(database.url.url) == 3


def test_a_closed_database_takes_no_transaction_and_has_no_connection(database: ArchiveDatabase) -> None:
    def work(sql: Statements) -> None:
        insert(sql)
        database.close()

    database.transaction(work)  # one that runs ends
    assert batches_in(database.url.url) == 1
    assert connections(database, 0) == set()
    with pytest.raises(ClientClosed):
        database.transaction(insert)


def test_the_session_does_not_depend_on_the_settings_of_the_server(fresh_mariadb: Callable[..., MariaDB]) -> None:
    server = fresh_mariadb(
        options=(
            "sql-mode=ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH",
            "default-time-zone=+05:00",
            "transaction-isolation=SERIALIZABLE",
            "character-set-server=latin1",
            "init-connect=SET autocommit=1",
        )
    )
    with made_database(server.url) as url:
        database = migrated(url)
        incarnation = new_incarnation(database)
        row = (1, 1, 1, 0, 1, 1, 1, 1, STATUSES[1], EVERY_BYTE)
        with pytest.raises(ZeroDivisionError):
            database.transaction(lambda sql: (store_batch(sql, incarnation, [row]), 1 // 0))
        database.transaction(lambda sql: store_batch(sql, incarnation, [row]))
        assert [found[1:] for found in rows_of(database, incarnation, [1])] == [row]
        database.close()
