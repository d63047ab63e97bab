"""The settings of a server: which source wins, and what is said of mistakes in each."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pinlater.model.errors import InvalidArgument
from pinlater.running.read_options import read_config
from pinlater.running.worker_process import REPORT_VARIABLE
from pinlater.server.passwords import hash_password
from pinlater.server.read_settings import SETTINGS_VARIABLE, export_settings, read_settings
from pinlater.server.settings import ServerSettings
from tests.support.certificates import LOCAL_NAMES, Authority
from tests.support.pages import page, table


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(REPORT_VARIABLE, raising=False)
    monkeypatch.setenv(SETTINGS_VARIABLE, "")
    return tmp_path


@pytest.fixture
def toml(folder: Path) -> Path:
    return folder / "pinlater.toml"


@pytest.fixture
def properties(folder: Path) -> Path:
    return folder / "server.properties"


def test_without_anything_the_defaults_count() -> None:
    assert read_settings({}) == ServerSettings()


def test_the_later_source_wins(toml: Path, properties: Path) -> None:
    toml.write_text("[server]\nport = 1\nlease_s = 2\npriorities = 4\n")
    properties.write_text("THRIFT_PORT=3\nBACKEND_MONITOR_JOB_CLAIMED_TIMEOUT_SECONDS=5\n")
    found = read_settings({"port": 6}, properties)
    assert (found.port, found.lease_s, found.priorities, found.processes) == (6, 5, 4, 1)


def test_paths_are_relative_to_what_names_them(toml: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".git").mkdir()
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")
    toml.write_text('[server]\nshards_file = "shards.json"\nqueue_config_file = ""\n')
    found = read_settings({"queue_config_file": "queues.json"})
    assert found.shards_file == str(folder / "shards.json")
    assert found.queue_config_file == str(folder / "below" / "queues.json")


def test_no_http_in_each_way(toml: Path) -> None:
    toml.write_text("[server]\nhttp = false\n")
    assert read_settings({}).http == ""
    assert read_settings({"http": ":80"}).http == ":80"
    toml.write_text("")
    assert read_settings({"http": ""}).http == ""


def test_the_table_is_nothing_to_pinlater_run(toml: Path) -> None:
    toml.write_text('app = "a:b"\n[server]\nport = 1\n')
    assert read_config(None)["app"] == "a:b"
    assert "server" not in read_config(None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[server]\nprot = 1", "pinlater.toml: unknown key 'prot' in [server]; did you mean 'port'? expected one of"),
        ("server = 1", "pinlater.toml: server: expected a table, got 1"),
        ("[server]\nport = -1", "pinlater.toml: [server]: port: expected an integer from 0 to 65,535, got -1"),
        ("[server]\nport = true", "port: expected an integer"),
        ("[server]\npriorities = 1000", "pinlater.toml: [server]: priorities: expected an integer from 1 to 100"),
        ("[server]\nhost = 1", "[server]: host: expected a text, got 1"),
        ("[server]\nack_any_source = 1", "ack_any_source: expected true or false, got 1"),
        ('[server]\nhttp = "80"', "[server]: http: expected HOST:PORT"),
        ('[server]\ntls_key = "k"', "[server]: TLS: expected tls_cert and tls_key, got tls_key without tls_cert"),
        ('[server]\npassword_hash = "secret"', "password_hash: expected what `pinlater server --hash-password` prints"),
        ('[server]\npassword_hash = "$argon2id$x"', "password_hash: expected"),
    ],
)
def test_mistakes_in_toml(toml: Path, text: str, said: str) -> None:
    toml.write_text(text)
    with pytest.raises(InvalidArgument) as raised:
        read_settings({})
    assert said in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_mistake_of_the_properties_file_names_it(properties: Path) -> None:
    properties.write_text("THRIFT_PORT=x")
    with pytest.raises(InvalidArgument, match=r"server\.properties, line 1: THRIFT_PORT"):
        read_settings({}, properties)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"port": 65536}, "port: expected an integer from 0 to 65,535, got 65536"),
        ({"tls_cert": "c"}, "got tls_cert without tls_key"),
        ({"tls_cert": "nowhere", "tls_key": "k"}, "TLS: {folder}/nowhere can not be read: No such file"),
        ({"tls_cert": "empty", "tls_key": "nowhere"}, "TLS: {folder}/nowhere can not be read: No such file"),
        ({"tls_cert": "empty", "tls_key": "empty"}, "chain in {folder}/empty and its key in {folder}/empty, both in"),
    ],
)
def test_mistakes_of_flags(folder: Path, flags: dict[str, Any], said: str) -> None:
    (folder / "empty").touch()
    with pytest.raises(InvalidArgument) as raised:
        read_settings(flags)
    assert said.format(folder=folder) in str(raised.value)


def test_a_key_of_another_certificate(folder: Path) -> None:
    authority = Authority(folder)
    one, other = authority.files, authority.sign("other", LOCAL_NAMES)
    assert read_settings({"tls_cert": str(one.certificate), "tls_key": str(one.key)}).tls_context() is not None
    with pytest.raises(InvalidArgument, match="both in PEM; KEY_VALUES_MISMATCH"):
        read_settings({"tls_cert": str(one.certificate), "tls_key": str(other.key)})


def test_a_process_gets_the_settings_of_its_supervisor(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ServerSettings(port=5, password_hash=hash_password("x"), ack_any_source=True, tls_cert="c", tls_key="k")
    export_settings(settings)
    toml.write_text("is edited just now")
    monkeypatch.setenv(REPORT_VARIABLE, "3")
    assert read_settings({}) == settings


def test_the_hash_is_in_no_text_of_the_settings() -> None:
    assert "argon2" not in repr(ServerSettings(password_hash=hash_password("x")))


def test_the_page_has_every_setting() -> None:
    rows = table(page("thrift"), "settings")
    assert {row[0].strip("`") for row in rows} == {each.name for each in fields(ServerSettings)}
