"""A real MySQL for tests and benches: a MariaDB of their own, or the server of PINLATER_TEST_MYSQL_URL.

Promises: a started server answers. It dies with the process that started it, even by SIGKILL. A restart keeps its port
and folder. It writes each COMMIT to disk (innodb_flush_log_at_trx_commit = 1), as in production.

Risk: as tests/support/servers.py says of free ports. Nobody but the user who runs the tests can reach its folder, but
any process of the machine its port.
"""

from __future__ import annotations

import functools
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.support.requirements import MARIADB, SETPRIV, require
from tests.support.servers import free_port, launch, wait_until

URL_VARIABLE: Final = "PINLATER_TEST_MYSQL_URL"
#: User and password of the private server; it has all rights.
USER: Final = "tester"
PASSWORD: Final = "p@ss/w?rd#1"  # noqa: S105
ESCAPED_PASSWORD: Final = "p%40ss%2Fw%3Frd%231"  # noqa: S105
STOP_DEADLINE_S: Final = 20.0
LOG_TAIL_LINES: Final = 20


class MariaDB:
    """One server in a folder, on 127.0.0.1 and a unix socket. The test is skipped on a machine without MariaDB.

    options: of mariadbd, without their leading dashes.
    """

    def __init__(self, directory: Path, *, options: tuple[str, ...] = ()) -> None:
        require(SETPRIV)
        require(MARIADB)
        self.directory = directory
        self.port = free_port()
        self.socket_path = directory / "server.sock"
        self.log_path = directory / "server.log"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    def start(self) -> Self:
        """Start the process and return once it answers. A second call does nothing."""
        if self.is_running:
            return self
        if not (self.directory / "data" / "mysql").exists():
            self._install()
        with self.log_path.open("ab") as log:
            self._process = launch(self._command(), dict(os.environ), self.directory, log.fileno())
        wait_until(self._answers_or_ended, "an answer of MariaDB")
        if not self.is_running:
            raise RuntimeError(f"expected MariaDB on port {self.port}, but it ended; its log ends:\n{self.log_tail()}")
        return self

    def stop(self) -> None:
        """Send SIGTERM and wait."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL and wait; what was committed is on disk."""
        self._end(signal.SIGKILL)

    def restart(self, *, kill: bool = False) -> Self:
        """End the process (with SIGKILL if `kill`) and start it anew on the same port and folder."""
        self._end(signal.SIGKILL if kill else signal.SIGTERM)
        return self.start()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def url(self, database: str) -> str:
        """The URL of a database on it, for its user with all rights."""
        return f"mysql://{USER}:{ESCAPED_PASSWORD}@127.0.0.1:{self.port}/{database}"

    def log_tail(self) -> str:
        """The last lines of the server's log."""
        lines = self.log_path.read_text(errors="replace").splitlines() if self.log_path.exists() else []
        return "\n".join(lines[-LOG_TAIL_LINES:])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _install(self) -> None:
        """Makes the data folder, or copies that which this session made first: a copy takes a tenth of the time."""
        data = self.directory / "data"
        made = _installed(str(self.directory.parent))
        shutil.copytree(made, data)

    def _command(self) -> list[str]:
        return [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "mariadbd",
            "--no-defaults",
            *_as_root(),
            f"--datadir={self.directory / 'data'}",
            _temporary(self.directory),
            f"--socket={self.socket_path}",
            f"--port={self.port}",
            f"--pid-file={self.directory / 'server.pid'}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--innodb-flush-log-at-trx-commit=1",
            "--innodb-buffer-pool-size=64M",
            *(f"--{option}" for option in self._options),
        ]

    def _answers_or_ended(self) -> bool:
        if not self.is_running:
            return True
        try:
            with connected(self.url("mysql")) as connection:
                return bool(query(connection, "SELECT @@pid_file") == ((str(self.directory / "server.pid"),),))
        except Exception:
            return False

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@functools.cache
def _installed(folder: str) -> Path:
    """A data folder with the user of the tests, which is made once a process."""
    data = Path(folder) / f"mariadb-installed-{os.getpid()}"
    own = ["--no-defaults", *_as_root(), f"--datadir={data}", _temporary(Path(folder))]
    install = ["mariadb-install-db", *own, "--skip-test-db"]
    _run([*install, "--auth-root-authentication-method=normal"], "")
    grants = (
        f"CREATE USER '{USER}'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';"
        f"CREATE USER '{USER}'@'localhost' IDENTIFIED BY '{PASSWORD}';"
        f"GRANT ALL ON *.* TO '{USER}'@'127.0.0.1' WITH GRANT OPTION;"
        f"GRANT ALL ON *.* TO '{USER}'@'localhost' WITH GRANT OPTION;"
    ).replace(";", ";\n")
    bootstrap = ["mariadbd", *own, "--bootstrap"]
    _run(bootstrap, f"FLUSH PRIVILEGES;\n{grants}")
    return data


def _run(command: list[str], text: str) -> None:
    """Runs a command of MariaDB with this text as its input. Its error is in the message."""
    ended = subprocess.run(command, capture_output=True, text=True, input=text)
    if ended.returncode:
        raise RuntimeError(f"expected {command[0]} to exit with 0, got {ended.returncode}: {ended.stderr[-2000:]}")


def _temporary(directory: Path) -> str:
    """A folder of its own for temporary tables: a server that starts removes those of all others in the same folder."""
    temporary = directory / f"temporary-{os.getpid()}"
    temporary.mkdir(exist_ok=True)
    return f"--tmpdir={temporary}"


def _as_root() -> list[str]:
    return ["--user=root"] if os.geteuid() == 0 else []


@contextmanager
def connected(url: str, **options: Any) -> Iterator[Any]:
    """A connection of PyMySQL with autocommit, beside the code under test."""
    import pymysql

    from pinlater.store.archive_url import parse_archive_url

    parsed = parse_archive_url(url, "of a test")
    connection = pymysql.connect(
        host=parsed.host,
        port=parsed.port,
        user=parsed.user,
        password=parsed.password,
        **{"database": parsed.database, "autocommit": True, "connect_timeout": 5, "read_timeout": 60, **options},
    )
    try:
        yield connection
    finally:
        with suppress(pymysql.Error):
            connection.close()


def query(connection: Any, text: str, params: Any = None) -> Any:
    """The rows of a statement, as a tuple of tuples."""
    with connection.cursor() as cursor:
        cursor.execute(text, (params,) if isinstance(params, str | bytes | int) else params)
        return cursor.fetchall()


@contextmanager
def made_database(url_of: Any, name: str | None = None) -> Iterator[str]:
    """A database that exists from `with` to its end. url_of: name -> URL. Gives its URL."""
    name = name or f"pinlater_{secrets.token_hex(6)}"
    with connected(url_of("mysql")) as connection:
        query(connection, f"CREATE DATABASE {name}")
    try:
        yield url_of(name)
    finally:
        with suppress(Exception), connected(url_of("mysql")) as connection:
            query(connection, f"DROP DATABASE {name}")


def given_url(database: str) -> str:
    """PINLATER_TEST_MYSQL_URL with another database."""
    from urllib.parse import urlsplit

    return urlsplit(os.environ[URL_VARIABLE])._replace(path=f"/{database}").geturl()


def is_given() -> bool:
    return bool(os.environ.get(URL_VARIABLE))
