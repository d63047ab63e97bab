"""The doctor on archives that are well, and on archives and servers that are each ill in one way."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from pinlater import Client, QueueConfig
from pinlater.cli.doctor.archive_checks import PACKET_SLACK
from pinlater.cli.doctor.check_result import ERROR, NOTE, OK, WARNING, CheckResult
from pinlater.cli.doctor.examine import examine
from pinlater.client.base import ClientSettings
from pinlater.store.archive_driver import ArchiveDatabase
from tests.conftest import FreshServer
from tests.support.mariadb import MariaDB, connected, made_database, query
from tests.support.servers import Server, free_port

APPENDONLY = {"appendonly": "yes"}


def look(server: Server, url: str | None) -> dict[tuple[str, str], CheckResult]:
    """The findings by subject (server, archive or queue) and check."""
    results = examine(ClientSettings(server.url, timeout_s=5.0, archive=url))
    kinds = {"archive": "archive", "queue": "queue"}
    return {(kinds.get(each.subject.split()[0], "server"), each.check): each for each in results}


def levels(server: Server, url: str) -> dict[str, str]:
    """The levels of the findings on the archive's MySQL."""
    return {check: each.level for (kind, check), each in look(server, url).items() if kind == "archive"}


def test_an_archive_that_is_well(server: Server, private: ArchiveDatabase) -> None:
    found = levels(server, private.url.url)
    assert found == dict.fromkeys(("chosen", "reachable", "version", "tables", "durability"), OK)
    assert look(server, private.url.url)["archive", "version"].found.startswith("MariaDB 1")


def test_without_an_archive_nothing_is_said_of_it(server: Server) -> None:
    assert not [key for key in look(server, None) if "archive" in key]


def test_tables_that_are_missing(server: Server, mysql_url: str) -> None:
    finding = look(server, mysql_url)["archive", "tables"]
    assert (finding.level, finding.advice) == (ERROR, "run `pinlater archive migrate`")
    assert finding.found.startswith("its tables are of version 0")


def test_a_server_that_does_not_answer(server: Server) -> None:
    finding = look(server, f"mysql://ada:canary@127.0.0.1:{free_port()}")["archive", "reachable"]
    assert finding.level == ERROR
    assert "canary" not in repr(finding)
    assert finding.advice == "start it, or correct the URL"


def test_a_login_that_is_refused(server: Server, mariadb: MariaDB) -> None:
    finding = look(server, f"mysql://ada:canary@127.0.0.1:{mariadb.start().port}")["archive", "reachable"]
    assert (finding.level, finding.advice) == (ERROR, "check user and password")
    assert "canary" not in repr(finding)


@pytest.mark.parametrize(
    ("options", "check", "found"),
    [
        (("innodb-flush-log-at-trx-commit=2",), "durability", "a power cut can lose"),
        (("innodb-flush-log-at-trx-commit=0",), "durability", "a killed server or a power cut can lose"),
        (("log-bin=log", "server-id=1", "sync-binlog=0"), "binary log", "sync_binlog is 0"),
        (("read-only",), "role", "it is read-only"),
    ],
)
def test_a_setting_that_is_wrong(
    server: Server, fresh_mariadb: Callable[..., MariaDB], options: tuple[str, ...], check: str, found: str
) -> None:
    mysql = fresh_mariadb(options=options)
    with made_database(mysql.url) as url:
        finding = look(server, url)["archive", check]
        assert finding.level == WARNING
        assert found in finding.found
        with connected(url) as connection:
            query(connection, finding.advice.partition(",")[0])  # as it says
        assert WARNING not in levels(server, url).values()


def test_a_synced_binary_log(server: Server, fresh_mariadb: Callable[..., MariaDB]) -> None:
    mysql = fresh_mariadb(options=("log-bin=log", "server-id=1", "sync-binlog=1"))
    with made_database(mysql.url) as url:
        assert "binary log" not in levels(server, url)


def test_bodies_that_no_packet_takes(server: Server, private: ArchiveDatabase) -> None:
    with connected(private.url.url) as connection:
        [(packet,)] = query(connection, "SELECT @@max_allowed_packet")
    most = (packet - PACKET_SLACK) // 2
    with Client(server.url) as client:
        client.create_queue("mail", QueueConfig(body_limit=most))
        assert ("queue", "archive") not in look(server, private.url.url)
        client.configure_queue("mail", body_limit=most + 1)
        finding = look(server, private.url.url)["queue", "archive"]
    assert finding.level == WARNING
    assert finding.advice.startswith(f"SET GLOBAL max_allowed_packet = {packet + 2}, or more")


def test_marks_without_an_archive(server: Server, private: ArchiveDatabase) -> None:
    with Client(server.url) as client:
        client.create_queue("mail", QueueConfig(spill_above=1000))
    assert look(server, None)["queue", "archive"].level == NOTE
    assert ("queue", "archive") not in look(server, private.url.url)


@pytest.mark.parametrize(
    ("kind", "config", "level"),
    [
        ("valkey", APPENDONLY, OK),
        ("valkey", {}, ERROR),
        ("redis", APPENDONLY, ERROR),
        ("redis", APPENDONLY | {"appendfsync": "always"}, OK),
        ("redis", {"appendfsync": "always"}, ERROR),
    ],
)
def test_a_redis_whose_disk_can_be_waited_for(
    fresh_server: FreshServer, private: ArchiveDatabase, kind: str, config: Mapping[str, str], level: str
) -> None:
    finding = look(fresh_server(kind, config=config), private.url.url)["server", "archive"]
    assert finding.level == level, finding


def test_a_user_who_may_not_wait_for_the_disk(fresh_server: FreshServer, private: ArchiveDatabase) -> None:
    server = fresh_server(config=APPENDONLY)
    server.call("ACL", "SETUSER", "app", "on", ">x", "+@all", "-waitaof", "~*", "&*")
    url = f"redis://app:x@127.0.0.1:{server.port}"
    results = examine(ClientSettings(url, timeout_s=5.0, archive=private.url.url))
    [finding] = [each for each in results if each.check == "archive"]
    assert (finding.level, finding.advice) == (ERROR, "ACL SETUSER … +waitaof")
