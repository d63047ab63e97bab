"""The original's properties file: what becomes of each key, and what is said of mistakes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from pinlater.model.errors import InvalidArgument
from pinlater.server.passwords import hash_password
from pinlater.server.properties_file import KNOWN, read_properties
from pinlater.server.settings import ServerSettings
from tests.support.pages import page, table

HASH = "a" * 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "server.properties"


def read(path: Path, text: str) -> dict[str, Any]:
    path.write_text(text)
    return read_properties(path)


def test_comments_blank_lines_and_space_around(path: Path) -> None:
    text = "# THRIFT_PORT=1\n! of Java\n\n  THRIFT_PORT = 9011 \r\nMAX_CONCURRENT_REQUESTS:7\n\t\nADMIN_PASSWORD_HASH="
    assert read(path, text) == {"port": 9011, "max_requests": 7, "password_hash": ""}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("THRIFT_PORT=9011", {"port": 9011}),
        ("OSTRICH_PORT=9998", {"http": "127.0.0.1:9998"}),
        ("NUM_PRIORITY_LEVELS=5", {"priorities": 5}),
        ("BACKEND_MONITOR_JOB_CLAIMED_TIMEOUT_SECONDS=30", {"lease_s": 30}),
        ("BACKEND_MONITOR_JOB_SUCCEEDED_GC_TTL_HOURS=2", {"succeeded_ttl_s": 7200}),
        ("BACKEND_MONITOR_JOB_FAILED_GC_TTL_HOURS=0", {"failed_ttl_s": 0}),
        (f"ADMIN_PASSWORD_HASH={HASH}", {"password_hash": HASH}),
        ("REDIS_HEALTH_CHECK_CONSECUTIVE_FAILURES=3", {"health_failures": 3}),
        ("REDIS_HEALTH_CHECK_CONSECUTIVE_SUCCESSES=4", {"health_successes": 4}),
        ("REDIS_HEALTH_CHECK_PING_INTERVAL_SECONDS=2", {"health_interval_s": 2}),
        ("MAX_CONCURRENT_REQUESTS=100", {"max_requests": 100}),
        ("SERVER_CONN_MAX_IDLE_TIME_MINUTES=5", {"idle_s": 300}),
        ("QUEUE_CONFIG_FILE_PATH=", {"queue_config_file": ""}),
        ("PINLATER_BACKEND=redis", {}),
        ("SERVER_SET_PATH=/discovery", {}),
        ("BACKEND_NUM_AUTO_RETRIES=3", {}),
    ],
)
def test_what_a_key_sets(path: Path, line: str, expected: dict[str, Any]) -> None:
    found = read(path, line)
    assert found == expected
    ServerSettings(**found)


def test_relative_paths_are_relative_to_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    found = read(path, "QUEUE_CONFIG_FILE_PATH=conf/queues.json\nSHARD_CONFIG_FILE_PATH=/etc/shards.json")
    assert found == {"queue_config_file": f"{path.parent}/conf/queues.json", "shards_file": "/etc/shards.json"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\nTHRIFT_PORT=x", "line 2: THRIFT_PORT: expected an integer from 0 to 65,535, got 'x'"),
        ("THRIFT_PORT=", "line 1: THRIFT_PORT: expected an integer from 0 to 65,535, got ''"),
        ("THRIFT_PORT=65536", "THRIFT_PORT: expected an integer from 0 to 65,535, got '65536'"),
        ("THRIFT_PORT=9_010", "THRIFT_PORT: expected an integer"),
        ("NUM_PRIORITY_LEVELS=0", "NUM_PRIORITY_LEVELS: expected an integer from 1 to 100, got '0'"),
        ("SERVER_CONN_MAX_IDLE_TIME_MINUTES=0", "SERVER_CONN_MAX_IDLE_TIME_MINUTES: expected an integer from 1 to"),
        ("BACKEND_MONITOR_JOB_FAILED_GC_TTL_HOURS=9999999", "expected an integer from 0 to 1,193,046, got '9999999'"),
        ("PINLATER_BACKEND=mysql", "PINLATER_BACKEND: expected redis, got 'mysql'"),
        ("[server]", "line 1: expected KEY=VALUE or a comment, got '[server]'"),
        ("THRIFT_PORT=1\nTHRIFT_PORT=1", "line 2: THRIFT_PORT stands in line 1 too"),
    ],
)
def test_a_wrong_value_names_file_line_and_key(path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        read(path, text)
    assert str(path) in str(raised.value)
    assert said in str(raised.value)


def test_a_wrong_hash_is_not_shown(path: Path) -> None:
    with pytest.raises(InvalidArgument, match="line 1: ADMIN_PASSWORD_HASH: expected 64 hexadecimal") as raised:
        read(path, "ADMIN_PASSWORD_HASH=hunter2")
    assert "hunter2" not in str(raised.value)
    assert read(path, f"ADMIN_PASSWORD_HASH={hash_password('x')}")


def test_a_file_that_cannot_be_read(path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"server\.properties can not be read: No such file"):
        read_properties(path)
    path.write_bytes(b"A=\xff")
    with pytest.raises(InvalidArgument, match="expected UTF-8, got invalid start byte at byte 2"):
        read_properties(path)


def test_what_is_unknown_is_a_warning_that_names_the_near_miss(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read(path, "THRIFT_PROT=1\nMYSQL_USER=joe\nTHRIFT_PORT=2") == {"port": 2}
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        f"{path}, line 1: unknown key 'THRIFT_PROT'; did you mean 'THRIFT_PORT'?",
        f"{path}, line 2: unknown key 'MYSQL_USER'",
    ]


def test_what_has_no_meaning_is_said_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    text = "BACKEND_QUERY_PARALLELISM=5\nSERVER_SET_ENABLED=true\nBACKEND_SOCKET_TIMEOUT_SECONDS=1\nSERVER_SET_PATH=x"
    assert read(path, text) == {}
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: ignored, servers share a rate without them: SERVER_SET_ENABLED, SERVER_SET_PATH",
        f"{path}: ignored, this server does not need them: BACKEND_QUERY_PARALLELISM, BACKEND_SOCKET_TIMEOUT_SECONDS",
    ]


def test_the_page_has_every_key() -> None:
    assert sorted(
        key.strip(" `") for row in table(page("thrift"), "properties") for key in row[0].split(",")
    ) == sorted(KNOWN)
