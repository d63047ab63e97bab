"""docs/archive.md: its commands print what it shows, its grants are enough and its URLs can be read.

The commands run on a Valkey with appendonly and on a database whose users have the rights of the page, and no others.
"""

from __future__ import annotations

import re
import secrets
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinlater import Queue
from pinlater.client import settings_file
from pinlater.model.errors import ArchiveRefused
from pinlater.store.archive_schema import migrate, schema_of
from pinlater.store.archive_url import Tls, parse_archive_url
from tests.conftest import FreshServer
from tests.support.archive import database_of
from tests.support.cli_runs import environment
from tests.support.mariadb import MariaDB, connected, query
from tests.support.page_runs import check_runs, page_runs
from tests.support.pages import page, table
from tests.support.requirements import BASH, PYMYSQL, require

__all__ = ["environment"]  # a fixture

PAGE = page("archive")
[SQL] = re.findall(r"^```sql\n(.*?)^```\n", PAGE, re.MULTILINE | re.DOTALL)
MIGRATE = "pinlater archive migrate"
DAY_MS = 86_400_000


@pytest.fixture
def urls(mariadb: MariaDB) -> Iterator[tuple[str, str]]:
    """The URLs of the user of programs and of the user of `migrate`, both made as the page says."""
    require(PYMYSQL)
    name = f"pinlater_{secrets.token_hex(4)}"
    admin = mariadb.start().url("mysql")
    statements = [text for text in SQL.replace("pinlater", name).split(";\n") if text]
    with connected(admin) as connection:
        for text in statements:
            query(connection, text)
    yield (
        f"mysql://{name}:PASSWORD@127.0.0.1:{mariadb.port}/{name}",
        f"mysql://{name}_migrate:PASSWORD@127.0.0.1:{mariadb.port}/{name}",
    )
    with connected(admin) as connection:
        query(connection, f"DROP DATABASE {name}")
        query(connection, f"DROP USER {name}, {name}_migrate")


def test_the_marks_in_code_and_in_toml_are_the_same() -> None:
    [toml] = re.findall(r"^```toml\n(.*?)^```\n", PAGE, re.MULTILINE | re.DOTALL)
    [call] = re.findall(r'queue=Queue\("mail", (.*)\)\)$', PAGE, re.MULTILINE)
    marks = {"spill_above": 5_000_000, "restore_below": 1_000_000, "horizon_ms": DAY_MS, "refuse_above": 10_000_000}
    of_code = Queue("mail", **dict(re.findall(r'(\w+)="(\w+)"', call)))
    assert of_code.settings == settings_file.queues_of("", tomllib.loads(toml))["mail"].settings == marks


@pytest.mark.thorough("pages")
def test_the_commands_print_what_the_page_shows(
    tmp_path: Path, environment: dict[str, str], fresh_server: FreshServer, urls: tuple[str, str]
) -> None:
    require(BASH)
    shown = [command for command, _ in page_runs(PAGE)]
    assert shown[:2] == [MIGRATE] * 2
    assert not any("migrate" in command for command in shown[2:])
    used, migrating = urls
    named = {"PINLATER_URL": fresh_server(config={"appendonly": "yes"}).url, "PINLATER_ARCHIVE_URL": used}
    with_right = PAGE.replace(f"$ {MIGRATE}", f"$ {MIGRATE} --archive {migrating}")
    check_runs(with_right, tmp_path, environment | named)


def test_the_user_of_programs_makes_no_tables(urls: tuple[str, str]) -> None:
    used, migrating = urls
    database = database_of(used)
    with pytest.raises(ArchiveRefused, match=r"docs/archive\.md lists the rights"):
        migrate(database)
    maker = database_of(migrating)
    assert migrate(maker)
    maker.close()
    assert schema_of(database).trouble == ""
    database.close()


def test_the_options_of_the_table() -> None:
    options = [option for row in table(PAGE, "options") for option in re.findall(r"`(\w+=\w+)`", row[0])]
    values = [option.replace("FILE", "/a.pem").replace("PATH", "/a.sock") for option in options]
    together = "&".join(value for value in values if not value.startswith("unix_socket"))
    found = parse_archive_url(f"mysql://ada:p%40ss@db:3307/jobs?{together}", "of a test")
    assert found.tls == Tls("/a.pem", "/a.pem", "/a.pem", verify=False, check_hostname=False)
    [socket] = [value for value in values if value.startswith("unix_socket")]
    assert parse_archive_url(f"mysql://?{socket}", "of a test").unix_socket == "/a.sock"


def test_the_defaults_of_the_url() -> None:
    found = parse_archive_url("mysql://", "of a test")
    assert (found.user, found.password, found.host, found.port, found.database) == (
        *("pinlater", "", "127.0.0.1", 3306, "pinlater"),
    )
