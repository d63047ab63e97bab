"""The archive's named statements do what their lines say, and the code uses each of them.

Promises: each statement runs on a real MySQL. What stands in `statements.sql` is what the code names.
"""

from __future__ import annotations

import ast
import functools
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pinlater
from pinlater.model.errors import ArchiveDuplicate
from pinlater.store import statements
from pinlater.store.archive_driver import ArchiveDatabase, Statements
from pinlater.store.statements import load_migrations, load_statements
from tests.support.archive import (
    COMMITTED,
    EPOCH,
    FINALIZED,
    PARAMETERS,
    job_row,
    migrated,
    new_incarnation,
    store_batch,
)
from tests.support.mariadb import connected, query

PACKAGE = Path(pinlater.__file__).parent
METHODS = {"run", "run_many", "run_in", "insert"}


@pytest.fixture
def database(mysql_url: str) -> Iterator[ArchiveDatabase]:
    made = migrated(mysql_url)
    yield made
    made.close()


def _strings(node: ast.AST) -> set[str]:
    return {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)}


@functools.cache
def _trees() -> list[ast.Module]:
    """The modules of the package. They are parsed when a test first asks, not in each process that collects tests."""
    return [ast.parse(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")]


def _run_by_name() -> set[str]:
    """Names that the package passes to `sql.run(…)` and the like, and to `query(database, …)`."""
    found = set[str]()
    for tree in _trees():
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="sql"), attr=method), args=[name, *_]):
                    found |= _strings(name) if method in METHODS else set()
                case ast.Call(func=ast.Name(id="query" | "query_in"), args=[_, name, *_]):
                    found |= _strings(name)
    return found


def test_the_code_names_each_statement_and_no_other() -> None:
    assert _run_by_name() - set(load_statements()) == set()
    assert set(load_statements()) - set[str]().union(*map(_strings, _trees())) == set()
    assert len(_run_by_name()) > 20


def test_each_statement_says_what_it_gives() -> None:
    for statement in load_statements().values():
        assert " -> " in statement.about, statement.name
        assert ";" not in statement.sql, statement.name
    text = (statements.SQL_DIRECTORY / "statements.sql").read_text("utf-8")
    assert [line for line in text.splitlines() if len(line) > 120] == []


def test_what_writes_is_known_by_its_first_word() -> None:
    """A lost answer to the COMMIT of what only read is no error, so no statement that writes may pass for one."""
    words = {statement.sql.split()[0]: statement.writes for statement in load_statements().values()}
    assert words == {"SELECT": False, "INSERT": True, "UPDATE": True, "DELETE": True}


def test_a_file_of_another_form_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statements, "SQL_DIRECTORY", tmp_path)
    for text in (
        "-- name: a\nSELECT 1",
        "-- name: a b\n-- x -> y\nSELECT 1",
        "-- name: a\n-- x -> y\nSELECT 1\n-- name: a\n-- x -> y\nSELECT 1",
    ):
        (tmp_path / "statements.sql").write_text(text)
        with pytest.raises(ValueError, match=r"statements\.sql: a"):
            load_statements.__wrapped__()
    (tmp_path / "0002_x.sql").write_text("-- works with programs from: 1\nSELECT 1;\n")
    with pytest.raises(ValueError, match="expected migrations 1, 2, 3"):
        load_migrations.__wrapped__()
    (tmp_path / "0001_x.sql").write_text("SELECT 1;\n")
    with pytest.raises(ValueError, match=r"0001_x\.sql: expected `-- works with"):
        load_migrations.__wrapped__()


def test_every_statement_runs(database: ArchiveDatabase) -> None:
    assert set(PARAMETERS) == set(load_statements())

    def work(sql: Statements) -> None:
        for name, params in PARAMETERS.items():
            sql.run(name, params)

    database.transaction(work)


def test_one_incarnation_of_a_queue_shard_is_current(database: ArchiveDatabase) -> None:
    first = new_incarnation(database)
    with pytest.raises(ArchiveDuplicate):
        new_incarnation(database)
    other = new_incarnation(database, b"other")

    def go_on(sql: Statements) -> list[Any]:
        sql.run("set_epoch", (1, first))
        found = sql.run("lock_incarnation", (b"q", b"1"))
        sql.run("end_incarnation", (first,))
        return [*found, sql.run("lock_incarnation", (b"q", b"1")), sql.run("check_shared", (first,))]

    assert database.transaction(go_on) == [(first, 1, EPOCH), [], []]
    second = new_incarnation(database)
    database.transaction(lambda sql: sql.run("end_incarnation", (second,)))
    third = new_incarnation(database)
    assert len({first, second, third, other}) == 4
    assert database.transaction(lambda sql: sql.run("check_exclusive", (third,))) == [(EPOCH,)]


def test_a_batch_has_one_row_and_ends_once(database: ArchiveDatabase) -> None:
    incarnation = new_incarnation(database)
    names = [secrets.token_bytes(16) for _ in range(3)]

    def insert(name: bytes, state: int) -> int:
        return database.transaction(lambda sql: sql.insert("insert_batch", (name, incarnation, state, 7, b"12345678")))

    numbers = [insert(names[0], COMMITTED), insert(names[1], COMMITTED), insert(names[2], 3)]
    assert numbers == sorted(set(numbers))
    with pytest.raises(ArchiveDuplicate):
        insert(names[0], 3)
    open_ = database.transaction(lambda sql: sql.run("select_committed", (incarnation,)))
    assert open_ == [(names[0], b"12345678"), (names[1], b"12345678")]

    def end(sql: Statements) -> int:
        sql.run_in("finalize_batches", (), [names[0], names[2]])
        return sql.changed

    assert database.transaction(end) == 1
    states = database.transaction(lambda sql: [sql.run("select_batch", (name,)) for name in names])
    assert states == [[(FINALIZED,)], [(COMMITTED,)], [(3,)]]
    assert database.transaction(lambda sql: sql.run("select_batch", (bytes(16),))) == []
    with connected(database.url.url) as connection:
        assert query(connection, "SELECT COUNT(*) FROM batches WHERE ids = ''") == ((1,),)


def test_jobs_come_back_in_their_old_order_from_final_batches_alone(database: ArchiveDatabase) -> None:
    incarnation, other = new_incarnation(database), new_incarnation(database, b"other")
    rows = [
        job_row(9, run_after_ms=5, body=b"abc"),
        job_row(8, run_after_ms=5, sixteenths=1),
        job_row(7, run_after_ms=4, sixteenths=15),
        job_row(6, run_after_ms=6),
        job_row(5, run_after_ms=5),
        job_row(4, run_after_ms=5, priority=2),
    ]

    def store(sql: Statements) -> int:
        _, number = store_batch(sql, incarnation, rows)
        store_batch(sql, incarnation, [job_row(1)], COMMITTED)
        store_batch(sql, other, [job_row(2)])
        return number

    batch = database.transaction(store)

    def due(priority: int, due_ms: int, limit: int) -> list[Any]:
        return database.transaction(lambda sql: sql.run("select_due", (incarnation, priority, 0, due_ms, limit)))

    assert due(1, 2**63 - 1, 10) == [(7, 0, batch), (5, 0, batch), (9, 3, batch), (8, 0, batch), (6, 0, batch)]
    assert due(1, 5, 3) == [(7, 0, batch), (5, 0, batch), (9, 3, batch)]
    assert due(2, 5, 3) == [(4, 0, batch)]


def test_the_choice_of_jobs_reads_the_key_alone(database: ArchiveDatabase) -> None:
    """A body of a MiB costs as much as one of a byte."""
    with connected(database.url.url) as connection:
        plan = query(connection, "EXPLAIN " + load_statements()["select_due"].sql % (1, 1, 0, 5, 10))
    [of_jobs] = [line for line in plan if "jobs" in line]
    assert "restore_order" in of_jobs
    assert "Using index" in of_jobs[-1]
    assert "filesort" not in str(plan)


@pytest.mark.parametrize("name", ["select_due", "select_latest", "select_latest_sizes"])
def test_pages_follow_the_key(database: ArchiveDatabase, name: str) -> None:
    """A page costs as much as it has rows: nothing is sorted."""
    incarnation = new_incarnation(database)
    rows = [job_row(number, run_after_ms=number // 4, sixteenths=number % 2) for number in range(2000)]
    database.transaction(lambda sql: store_batch(sql, incarnation, rows))
    filled = load_statements()[name].sql % PARAMETERS[name]
    with connected(database.url.url) as connection:
        plan = str(query(connection, f"EXPLAIN {filled}"))
    assert "restore_order" in plan
    assert "filesort" not in plan
    assert "temporary" not in plan


def test_pages_of_a_scan_go_back_from_the_latest(database: ArchiveDatabase) -> None:
    incarnation = new_incarnation(database)
    rows = [job_row(number, run_after_ms=number // 4, sixteenths=number % 2) for number in range(40)]
    database.transaction(lambda sql: store_batch(sql, incarnation, rows))
    place, found = (8, 16, 0), list[int]()

    def next_page(sql: Statements) -> list[Any]:
        return sql.run("select_latest", (0, incarnation, 1, 2, place[0], *place, 3))

    while page := database.transaction(next_page):
        found += [row[1] for row in page]
        place = (page[-1][3], page[-1][4], page[-1][1])
    wanted = sorted((row for row in rows if 2 <= row[2] <= 8), key=lambda row: (row[2], row[3], row[0]))
    assert found == [row[0] for row in wanted][::-1]
    assert len(found) == 28


def test_a_job_that_left_again_keeps_its_later_row(database: ArchiveDatabase) -> None:
    incarnation = new_incarnation(database)

    def store(sql: Statements) -> list[tuple[bytes, int]]:
        return [store_batch(sql, incarnation, [job_row(1), job_row(number)]) for number in (2, 3)]

    [(name, first), (_, second)] = database.transaction(store)

    def batches(last: int) -> list[tuple[int, int]]:
        found = database.transaction(lambda sql: sql.run_in("select_jobs_by_id", (incarnation, last), [1, 2, 3]))
        return sorted((row[1], row[0]) for row in found)

    assert batches(second) == [(1, first), (1, second), (2, first), (3, second)]
    assert batches(first) == [(1, first), (2, first)]
    database.transaction(lambda sql: sql.run_in("delete_jobs_by_id", (incarnation, first), [1, 3]))
    assert batches(second) == [(1, second), (2, first), (3, second)]
    gone = database.transaction(lambda sql: sql.run_many("delete_of_batch", [(name, 1), (name, 2), (name, 3)]))
    assert gone == 1
    assert batches(second) == [(1, second), (3, second)]


def test_restores_have_numbers_that_grow(database: ArchiveDatabase) -> None:
    incarnation, other = new_incarnation(database), new_incarnation(database, b"other")

    def begin(sql: Statements) -> int:
        number = sql.insert("number_restore", (incarnation,))
        sql.run("insert_restore", (incarnation, number, 5, b"87654321", 1))
        return number

    assert [database.transaction(begin) for _ in range(3)] == [1, 2, 3]
    assert database.transaction(lambda sql: sql.insert("number_restore", (other,))) == 1
    database.transaction(lambda sql: sql.run("delete_restore", (incarnation, 2)))
    found = database.transaction(lambda sql: sql.run("select_restores", (incarnation,)))
    assert found == [(1, 5, b"87654321"), (3, 5, b"87654321")]
    assert database.transaction(begin) == 4
