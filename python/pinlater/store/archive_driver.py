"""Transactions on the archive's MySQL, by PyMySQL.

Promises:
- A transaction is done as a whole or not at all. One that met a deadlock or a lock is run again, a few times.
- An error other than ArchiveOutcomeUnknown means that nothing of the transaction was done.
- A connection is dropped after any doubt, so that no transaction meets what is left of another.
- Threads may share a database. A forked child starts without connections.

Risk: `work` may run more than once, so it does nothing but run statements.
"""

from __future__ import annotations

import os
import select
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

from pinlater.model.errors import ArchiveError, ArchiveOutcomeUnknown, ArchiveRefused, ClientClosed, InvalidArgument
from pinlater.model.pauses import Pauses
from pinlater.store.archive_errors import ArchiveConflict, ArchiveLost, from_mysql, too_large
from pinlater.store.archive_url import ArchiveUrl, Tls
from pinlater.store.statements import Statement, load_statements

T = TypeVar("T")
Value: TypeAlias = int | bytes | None
Row: TypeAlias = tuple[Any, ...]

#: A transaction that meets conflicts is run so often.
TRIES: Final = 8
FIRST_PAUSE_S: Final = 0.01
LAST_PAUSE_S: Final = 0.5
#: A statement waits so long for a lock.
LOCK_WAIT_S: Final = 3
#: A database keeps up to this many free connections.
MAX_FREE: Final = 8
#: One statement has so many bytes at most, unless one row has more.
STATEMENT_BYTES: Final = 4 * 1024 * 1024
#: Ids of one `IN` list.
IDS_AT_ONCE: Final = 1_000
#: Room for the header of a packet.
_PACKET_SLACK: Final = 64
_SESSION: Final = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', autocommit = 0, "
    f"innodb_lock_wait_timeout = {LOCK_WAIT_S}",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)


class ArchiveDatabase:
    """The database of the archive. It connects when a transaction needs it.

    connect_timeout_s: for one connect. read_timeout_s: for one answer; more than LOCK_WAIT_S.
    """

    def __init__(self, url: ArchiveUrl, *, connect_timeout_s: float = 5.0, read_timeout_s: float = 30.0) -> None:
        self.url = url
        self._pymysql = _require_pymysql()
        self._tls = None if url.tls is None else _context(url, url.tls)
        self._timeouts = {
            "connect_timeout": connect_timeout_s,
            "read_timeout": read_timeout_s,
            "write_timeout": read_timeout_s,
        }
        self._closed = False
        self.after_fork()
        _databases.add(self)

    def transaction(self, work: Callable[[Statements], T]) -> T:
        """Runs `work` in one transaction and returns its value. Any error that it raises undoes all of it.

        Raises ArchiveError; ClientClosed after close().
        """
        pauses = Pauses(FIRST_PAUSE_S, LAST_PAUSE_S)
        for _ in range(TRIES - 1):
            try:
                return self._once(work)
            except ArchiveConflict:
                time.sleep(pauses.take())
        return self._once(work)

    def after_fork(self) -> None:
        """In a forked child: forgets the parent's connections, and sends nothing on them."""
        self._free: list[_Connection] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes every connection; those of running transactions at their ends. A second call does nothing."""
        self._closed = True
        self._close_free()

    def _once(self, work: Callable[[Statements], T]) -> T:
        if self._closed:
            raise ClientClosed("expected an open archive, this one is closed")
        connection = self._take()
        sql = Statements(connection)
        try:
            result = work(sql)
            sql.check()
        except BaseException as error:
            self._undo(connection, sql, error)
            raise
        try:
            connection.commit(sql.wrote)
        except BaseException:
            self._drop(connection)
            raise
        self._release(connection)
        return result

    def _undo(self, connection: _Connection, sql: Statements, error: BaseException) -> None:
        """Ends a transaction that failed, before its COMMIT."""
        if isinstance(sql.failed, ArchiveLost):
            self._drop(connection)
            self._close_free()
        elif isinstance(error, Exception) and connection.roll_back():
            self._release(connection)
        else:
            self._drop(connection)

    @property
    def _tls_options(self) -> dict[str, Any]:
        """Without TLS it is switched off: PyMySQL would take what the server offers."""
        return {"ssl_disabled": True} if self._tls is None else {"ssl": self._tls}

    def _take(self) -> _Connection:
        """A free connection that is still open, or a new one."""
        while True:
            with self._lock:
                connection = self._free.pop() if self._free else None
            if connection is None:
                return _Connection(self._pymysql, self.url, {**self._timeouts, **self._tls_options})
            if connection.is_open():
                return connection
            self._drop(connection)

    def _release(self, connection: _Connection) -> None:
        with self._lock:
            if keep := connection.is_usable and len(self._free) < MAX_FREE and not self._closed:
                self._free.append(connection)
        if not keep:
            self._drop(connection)

    def _close_free(self) -> None:
        with self._lock:
            free, self._free = self._free, []
        for connection in free:
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        connection.close()


class Statements:
    """The statements of one transaction, by their names in `mysql_archive/`.

    - wrote: some statement changed data, or may have.
    - changed: how many rows the last call changed.
    - failed: the error after which the transaction cannot go on.
    """

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.wrote = False
        self.changed = 0
        self.failed: ArchiveError | None = None

    def run(self, name: str, params: Sequence[Value | Sequence[Value]] = ()) -> list[Row]:
        """Runs a statement. Returns its rows. Raises ArchiveError."""
        statement = load_statements()[name]
        return self._execute(statement.sql % tuple(map(_literal, params)), statement.writes)

    def run_many(self, name: str, rows: Iterable[Sequence[Value]]) -> int:
        """Runs a statement for each row of parameters; an INSERT for many rows at once. Returns how many rows of the
        database it changed.
        """
        statement = load_statements()[name]
        filled = (tuple(map(_literal, row)) for row in rows)
        texts = self._inserts(statement, filled) if statement.row else (statement.sql % row for row in filled)
        total = 0
        for text in texts:
            self._execute(text, statement.writes)
            total += self.changed
        self.changed = total
        return total

    def run_in(self, name: str, params: Sequence[Value], ids: Sequence[Value]) -> list[Row]:
        """Runs a statement whose last parameter is an `IN` list, for so many ids at a time as are good for it.
        Returns its rows; of no ids none.
        """
        rows: list[Row] = []
        total = 0
        for first in range(0, len(ids), IDS_AT_ONCE):
            rows += self.run(name, (*params, ids[first : first + IDS_AT_ONCE]))
            total += self.changed
        self.changed = total
        return rows

    def insert(self, name: str, params: Sequence[Value]) -> int:
        """Runs a statement that numbers something. Returns the number (LAST_INSERT_ID)."""
        self.run(name, params)
        return self._connection.last_number

    def run_text(self, text: str) -> list[Row]:
        """Runs a statement that has no name: of a migration, or about the server. Returns its rows."""
        return self._execute(text, True)

    def check(self) -> None:
        """Raises the error after which the transaction could not go on, if there was one."""
        if self.failed is not None:
            raise self.failed

    def _inserts(self, statement: Statement, rows: Iterable[Row]) -> Iterator[str]:
        """INSERT statements of many rows each."""
        head = statement.sql.removesuffix(statement.row)
        limit = min(STATEMENT_BYTES, self._connection.packet_bytes)
        values: list[str] = []
        size = len(head)
        for row in rows:
            value = statement.row % row
            if values and size + len(value) + 1 > limit:
                yield head + ",".join(values)
                values, size = [], len(head)
            values.append(value)
            size += len(value) + 1
        if values:
            yield head + ",".join(values)

    def _execute(self, text: str, writes: bool) -> list[Row]:
        self.check()
        try:
            rows, self.changed = self._connection.execute(text)
        except ArchiveError as error:
            if isinstance(error, ArchiveConflict | ArchiveLost):
                self.failed = error
            raise
        self.wrote = self.wrote or writes
        return rows


class _Connection:
    """A connection of PyMySQL, whose session is set up. Any error of PyMySQL becomes an ArchiveError: what another kind
    of server sends makes it raise IndexError and the like.

    - packet_bytes: the longest statement that the server takes.
    - last_number: LAST_INSERT_ID of the last statement.
    - is_usable: PyMySQL has not closed it.
    """

    def __init__(self, pymysql: Any, url: ArchiveUrl, options: dict[str, Any]) -> None:
        self._url = url
        try:
            self._connection = pymysql.connect(
                host=url.host,
                port=url.port,
                unix_socket=url.unix_socket,
                user=url.user,
                password=url.password,
                database=url.database,
                charset="utf8mb4",
                autocommit=None,
                program_name="pinlater",
                **options,
            )
        except Exception as error:
            raise from_mysql(error, url) from None
        self._cursor = self._connection.cursor()
        self.last_number = 0
        self.packet_bytes = STATEMENT_BYTES
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise

    def _set_up(self) -> None:
        for text in _SESSION:
            self.execute(text)
        [(packet_bytes,)], _ = self.execute("SELECT @@max_allowed_packet")
        self.packet_bytes = packet_bytes - _PACKET_SLACK
        if self._url.tls is not None:  # PyMySQL goes on without TLS if the server has none
            [(_, cipher)], _ = self.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
            if not cipher:
                raise ArchiveRefused(f"archive {self._url}: expected a server with TLS, this one has none")

    @property
    def is_usable(self) -> bool:
        return bool(self._connection.open)

    def is_open(self) -> bool:
        """Whether a free connection can be used again. The server sends something only to end it."""
        if not self.is_usable:
            return False
        poll = select.poll()
        poll.register(self._connection._sock, select.POLLIN)
        return not poll.poll(0)

    def execute(self, text: str) -> tuple[list[Row], int]:
        """Returns the rows, and how many rows were changed. Raises ArchiveError."""
        if len(text) > self.packet_bytes:
            raise too_large(self._url, len(text), self.packet_bytes)
        try:
            self._cursor.execute(text)
        except Exception as error:
            raise from_mysql(error, self._url) from None
        self.last_number = self._cursor.lastrowid
        return list(self._cursor.fetchall()), self._cursor.rowcount

    def commit(self, wrote: bool) -> None:
        """wrote: the transaction changed data. Raises ArchiveOutcomeUnknown if the answer is lost, and ArchiveConflict
        if the transaction was certainly not done.
        """
        try:
            self._connection.commit()
        except Exception as error:
            found = from_mysql(error, self._url)
            self.close()
            if isinstance(found, ArchiveConflict):
                raise found from None
            if wrote:
                raise ArchiveOutcomeUnknown(f"{found}; the transaction may have been done") from None

    def roll_back(self) -> bool:
        """Returns whether it worked."""
        try:
            self._connection.rollback()
        except Exception:
            return False
        return True

    def close(self) -> None:
        with suppress(Exception):
            self._connection.close()


def _literal(value: Value | Sequence[Value]) -> str:
    """A value as it stands in a statement. No text of a caller stands there as it is."""
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return f"({','.join(map(_literal, value))})"


def _context(url: ArchiveUrl, tls: Tls) -> ssl.SSLContext:
    try:
        return tls.context()
    except OSError as error:
        raise InvalidArgument(f"archive {url}: the files of TLS: {error.strerror or error}") from None


def _require_pymysql() -> Any:
    try:
        import pymysql
    except ImportError:
        raise InvalidArgument(
            "the archive: expected the package PyMySQL, it is not installed: pip install 'pinlater[mysql]'"
        ) from None
    return pymysql


_databases: Final = weakref.WeakSet[ArchiveDatabase]()


def _forked() -> None:
    for database in _databases:
        database.after_fork()


os.register_at_fork(after_in_child=_forked)
