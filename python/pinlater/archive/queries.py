"""One statement as a transaction of its own. Flows only, no I/O."""

from __future__ import annotations

from collections.abc import Sequence

from pinlater.store.archive_driver import ArchiveDatabase, Row, Value
from pinlater.store.effects import Flow, Transaction


def query(database: ArchiveDatabase, name: str, *params: Value) -> Flow[list[Row]]:
    """Runs a statement and returns its rows."""
    rows: list[Row] = yield Transaction(database, lambda sql: sql.run(name, params))
    return rows


def query_in(database: ArchiveDatabase, name: str, params: Sequence[Value], ids: Sequence[int]) -> Flow[list[Row]]:
    """Runs a statement whose last parameter is a list of ids, and returns its rows."""
    rows: list[Row] = yield Transaction(database, lambda sql: sql.run_in(name, params, ids))
    return rows
