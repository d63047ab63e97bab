"""The way to the archive's MySQL: logins, rights, TLS, sockets, and servers that are none.

Promises: no error shows a user or a password.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pinlater.model.errors import (
    ArchiveError,
    ArchiveNotReady,
    ArchiveRefused,
    ArchiveUnavailable,
    InvalidArgument,
)
from pinlater.store.archive_driver import ArchiveDatabase, Statements
from pinlater.store.archive_schema import check_schema
from tests.support.archive import (
    PARAMETERS,
    batches_in,
    connections,
    database_of,
    insert,
)
from tests.support.certificates import CLIENT_USE, Authority
from tests.support.mariadb import ESCAPED_PASSWORD, USER, MariaDB, connected, made_database, query
from tests.support.mysql_proxy import MysqlProxy


def test_a_server_that_is_read_only_is_unavailable(private: ArchiveDatabase, mariadb: MariaDB) -> None:
    user = {"user": "reader", "password": "x"}
    with connected(private.url.url) as connection:
        query(connection, "CREATE OR REPLACE USER reader@'127.0.0.1' IDENTIFIED BY 'x'")
        query(connection, f"GRANT ALL ON {private.url.database}.* TO reader@'127.0.0.1'")
        query(connection, "SET GLOBAL read_only = 1")
    url = f"mysql://{user['user']}:{user['password']}@127.0.0.1:{mariadb.port}/{private.url.database}"
    limited = database_of(url)
    try:
        with pytest.raises(ArchiveUnavailable, match="OPTION_PREVENTS_STATEMENT 1290"):
            limited.transaction(insert)
        connections(private, 0)  # the server may be a replica by now, and the name lead elsewhere
    finally:
        with connected(private.url.url) as connection:
            query(connection, "SET GLOBAL read_only = 0")
    assert limited.transaction(insert) > 0
    limited.close()


@pytest.mark.parametrize(
    ("grant", "kind", "message"),
    [
        ("USAGE ON *.*", ArchiveRefused, "DBACCESS_DENIED_ERROR 1044"),
        (
            "SELECT ON {}.*",
            ArchiveRefused,
            "INSERT command denied .* for table .*batches.* TABLEACCESS_DENIED_ERROR 1142",
        ),
    ],
)
def test_a_missing_right_is_named(
    private: ArchiveDatabase, mariadb: MariaDB, grant: str, kind: type[ArchiveError], message: str
) -> None:
    with connected(private.url.url) as connection:
        query(connection, "CREATE OR REPLACE USER canary@'127.0.0.1' IDENTIFIED BY 'x'")
        query(connection, f"GRANT {grant.format(private.url.database)} TO canary@'127.0.0.1'")
    limited = database_of(f"mysql://canary:x@127.0.0.1:{mariadb.port}/{private.url.database}")
    with pytest.raises(kind, match=message.replace(" TABLE", ".*TABLE")) as caught:
        limited.transaction(insert)
    assert "docs/archive.md" in str(caught.value)
    assert "canary" not in str(caught.value)
    limited.close()


def test_a_wrong_password_is_refused(private: ArchiveDatabase, mariadb: MariaDB) -> None:
    wrong = database_of(f"mysql://tester:CANARY@127.0.0.1:{mariadb.port}/{private.url.database}")
    with pytest.raises(ArchiveRefused, match="ACCESS_DENIED_ERROR 1045") as caught:
        wrong.transaction(insert)
    assert "CANARY" not in str(caught.value)
    assert "tester" not in str(caught.value)


def test_missing_tables_and_databases_name_the_command(mysql_url: str) -> None:
    empty = database_of(mysql_url)
    with pytest.raises(ArchiveNotReady, match=r"NO_SUCH_TABLE 1146\); run `pinlater archive migrate`"):
        empty.transaction(insert)
    empty.close()
    missing = database_of(f"{mysql_url}_missing")
    with pytest.raises(ArchiveNotReady, match=r"BAD_DB_ERROR 1049\); create the database, then run"):
        missing.transaction(insert)


def test_no_server_is_unavailable() -> None:
    with MysqlProxy(1) as proxy:
        port = proxy.port
        with pytest.raises(ArchiveUnavailable, match="2013"):
            database_of(f"mysql://127.0.0.1:{port}/x").transaction(insert)
    with pytest.raises(ArchiveUnavailable, match="2003"):
        database_of(f"mysql://127.0.0.1:{port}/x").transaction(insert)


@pytest.mark.parametrize(
    "greeting",
    [
        b"SSH-2.0-OpenSSH_9\r\n",
        b"\x00" * 4,
        b"\x01\x00\x00\x00\x0a",
        b"\x05\x00\x00\x00\xff\x10\x04no",
        b"HTTP/1.1 400\r\n",
    ],
)
def test_another_kind_of_server_is_an_error_of_the_archive(greeting: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            client, _ = listener.accept()
            with client:
                client.sendall(greeting)

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(ArchiveUnavailable, match=r"archive mysql://127\.0\.0\.1:\d+ \(of a test\): "):
            database_of(f"mysql://127.0.0.1:{listener.getsockname()[1]}").transaction(insert)
        thread.join()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_tls(fresh_mariadb: Callable[..., MariaDB], authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.files
    server = fresh_mariadb(options=(f"ssl-cert={certificate}", f"ssl-key={key}", f"ssl-ca={certificate}"))
    client = authority.sign("client", CLIENT_USE)
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    with made_database(server.url) as url:
        with connected(url) as connection:
            query(connection, "CREATE USER sealed@'127.0.0.1' REQUIRE X509")
            query(connection, "GRANT ALL ON *.* TO sealed@'127.0.0.1'")

        def cipher(options: str, url: str = url) -> bytes | str:
            database = database_of(f"{url}?{options}")
            try:
                [(_, found)] = database.transaction(lambda sql: sql.run_text("SHOW SESSION STATUS LIKE 'Ssl_cipher'"))
            finally:
                database.close()
            return found  # type: ignore[no-any-return]

        assert cipher(f"ssl_ca_certs={certificate}")
        assert cipher("tls=true&ssl_cert_reqs=none")
        assert not cipher("tls=false")
        for untrusted in ("tls=true", f"ssl_ca_certs={other.files.certificate}"):
            with pytest.raises(ArchiveUnavailable, match=r"(?i)certificate"):
                cipher(untrusted)
        with pytest.raises(InvalidArgument, match="No such file"):
            cipher("ssl_ca_certs=/missing")
        sealed = f"mysql://sealed@127.0.0.1:{server.port}/{url.rpartition('/')[2]}"
        both = f"ssl_ca_certs={certificate}&ssl_certfile={client.certificate}&ssl_keyfile={client.key}"
        assert cipher(both, sealed)
        with pytest.raises(ArchiveRefused):
            cipher(f"ssl_ca_certs={certificate}", sealed)


def test_a_server_without_tls_is_refused_if_tls_is_asked_for(private: ArchiveDatabase) -> None:
    with_tls = database_of(f"{private.url.url}?tls=true")
    with pytest.raises(ArchiveRefused, match="expected a server with TLS"):
        with_tls.transaction(insert)
    assert batches_in(private.url.url) == 0


def test_a_unix_socket(private: ArchiveDatabase, mariadb: MariaDB) -> None:
    url = f"mysql://{USER}:{ESCAPED_PASSWORD}@/{private.url.database}?unix_socket={mariadb.socket_path}"
    local = database_of(url)
    local.transaction(insert)
    local.close()
    assert batches_in(private.url.url) == 1


def test_four_rights_are_enough_between_migrations(private: ArchiveDatabase, mariadb: MariaDB) -> None:
    with connected(private.url.url) as connection:
        query(connection, "CREATE OR REPLACE USER least@'127.0.0.1' IDENTIFIED BY 'x'")
        query(connection, f"GRANT SELECT, INSERT, UPDATE, DELETE ON {private.url.database}.* TO least@'127.0.0.1'")
    limited = database_of(f"mysql://least:x@127.0.0.1:{mariadb.port}/{private.url.database}")
    check_schema(limited)

    def work(sql: Statements) -> None:
        for name, params in PARAMETERS.items():
            sql.run(name, params)

    limited.transaction(work)
    limited.close()


def test_without_pymysql_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(InvalidArgument, match=r"pip install 'pinlater\[mysql\]'"):
        database_of("mysql://127.0.0.1/x")


def test_nothing_imports_pymysql_without_an_archive() -> None:
    code = "import pinlater.client.client, pinlater.store.archive_driver, pinlater.cli, sys; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pymysql" not in ran.stdout.split()
