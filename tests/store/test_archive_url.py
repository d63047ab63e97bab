"""The URL of the archive: its parts, its mistakes, and where it comes from.

Promises: no error shows a part of a password.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from pinlater.client import settings_file
from pinlater.model.errors import InvalidArgument
from pinlater.store.archive_url import ARCHIVE_VARIABLE, ArchiveUrl, Tls, parse_archive_url, resolve_archive
from tests.support.certificates import Authority


def parse(url: object) -> ArchiveUrl:
    return parse_archive_url(url, "of a test")


def test_every_part() -> None:
    found = parse("mysql://us%40er:p%2Fa%3As%3Fs%23%E2%82%AC:x@db.example:3307/jobs_1")
    assert (found.user, found.password) == ("us@er", "p/a:s?s#€:x")
    assert (found.host, found.port, found.database) == ("db.example", 3307, "jobs_1")
    assert found.unix_socket is None
    assert found.tls is None
    assert str(found) == "mysql://***@db.example:3307/jobs_1 (of a test)"
    assert "us@er" not in repr(found)
    assert "p/a" not in repr(found)


@pytest.mark.parametrize(
    "url", ["mysql://", "mysql:///", "mysql://:@", "mysql:///pinlater", "mysql://pinlater@127.0.0.1:3306"]
)
def test_defaults(url: str) -> None:
    found = parse(url)
    assert (found.user, found.password, found.host) == ("pinlater", "", "127.0.0.1")
    assert (found.port, found.database, found.unix_socket, found.tls) == (3306, "pinlater", None, None)


def test_other_forms_of_hosts() -> None:
    assert parse("mysql://[::1]:1/x").host == "::1"
    found = parse("mysql://me@/x?unix_socket=/run/mysqld/mysqld.sock")
    assert (found.unix_socket, found.user, found.database) == ("/run/mysqld/mysqld.sock", "me", "x")


@pytest.mark.parametrize(
    ("options", "tls"),
    [
        ("tls=true", Tls()),
        ("tls=yes&ssl_cert_reqs=none", Tls(verify=False)),
        ("ssl_ca_certs=/a%20b", Tls(ca_certs="/a b")),
        ("ssl_certfile=/c&ssl_keyfile=/k", Tls(certfile="/c", keyfile="/k")),
        ("ssl_check_hostname=False", Tls(check_hostname=False)),
        ("tls=0", None),
    ],
)
def test_tls(options: str, tls: Tls | None) -> None:
    assert parse(f"mysql://h/x?{options}").tls == tls


def test_contexts_of_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = map(str, authority.files)
    default = Tls(certificate).context()
    assert (default.verify_mode, default.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert len(default.get_ca_certs()) == 1
    unchecked = Tls(verify=False).context()
    assert (unchecked.verify_mode, unchecked.check_hostname) == (ssl.CERT_NONE, False)
    named = Tls(certificate, check_hostname=False).context()
    assert (named.verify_mode, named.check_hostname) == (ssl.CERT_REQUIRED, False)
    Tls(certificate, certfile=certificate, keyfile=key).context()
    with pytest.raises(OSError, match="No such file"):
        Tls(ca_certs=str(tmp_path / "missing")).context()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (7, "expected a str, got 7"),
        ("redis://u:CANARY@h/x", "expected a URL that begins with mysql://"),
        ("mysql:u:CANARY@h", "a URL that begins with mysql://"),
        ("CANARY", "a URL that begins with mysql://"),
        ("mysql://u:CAN/ARY@h/x", "expected a host, and as port a number.*%2F"),
        ("mysql://u:CAN?ARY@h/x", "expected a host, and as port a number.*%3F"),
        ("mysql://u:CAN#ARY@h/x", "expected no #.*%23"),
        ("mysql://u:CANARY@h:port/x", "from 1 to 65535"),
        ("mysql://u:CANARY@h:0/x", "from 1 to 65535"),
        ("mysql://u:CANARY@h:65536/x", "from 1 to 65535"),
        ("mysql://u:CANARY@[h/x", "special characters escaped"),
        ("mysql://u:CANARY%FF@h/x", "special characters escaped"),
        ("mysql://u:CANARY@h h/x", "expected a host"),
        ("mysql://u:CANARY@h/x/y", "expected one database"),
        ("mysql://u:CANARY@h/x y", "expected one database"),
        (f"mysql://u:CANARY@h/{'x' * 65}", "expected one database: up to 64"),
        ("mysql://u:CANARY@h/x?CANARY", "expected NAME=VALUE"),
        ("mysql://u:CANARY@h/x?CANARY=1", "an option is unknown, expected some of unix_socket, tls, ssl_ca_certs"),
        ("mysql://u:CANARY@h/x?tls=true&tls=true", "each option once"),
        ("mysql://u:CANARY@h/x?tls=", "each option once, with a value"),
        ("mysql://u:CANARY@h/x?tls=CANARY", "tls: expected true or false"),
        ("mysql://u:CANARY@h/x?ssl_check_hostname=CANARY", "ssl_check_hostname: expected true or false"),
        ("mysql://u:CANARY@h/x?ssl_cert_reqs=CANARY", "ssl_cert_reqs: expected required or none"),
        ("mysql://u:CANARY@h/x?tls=false&ssl_certfile=CANARY", "expected ssl_certfile only with tls=true"),
        ("mysql://u:CANARY@h/x?ssl_keyfile=CANARY", "expected ssl_certfile beside ssl_keyfile"),
        ("mysql://u:CANARY@h/x?unix_socket=CANARY", "unix_socket: expected an absolute path"),
        ("mysql://u:CANARY@h/x?unix_socket=/CANARY&tls=1", "expected unix_socket or TLS, got both"),
    ],
)
def test_mistakes(url: object, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as caught:
        parse(url)
    text = str(caught.value)
    assert "of a test" in text
    for part in ("CANARY", "CAN", "ARY"):
        assert part not in text
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(ARCHIVE_VARIABLE, raising=False)
    return tmp_path


def test_argument_before_variable_before_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_file.archive() is None
    assert resolve_archive() is None
    (here / "pinlater.toml").write_text('archive = "mysql://file/x"\n')
    assert str(settings_file.archive()) == f"mysql://file/x (from {here / 'pinlater.toml'})"
    monkeypatch.setenv(ARCHIVE_VARIABLE, "mysql://variable/x")
    assert str(settings_file.archive()) == "mysql://variable/x (from PINLATER_ARCHIVE_URL)"
    assert str(settings_file.archive("mysql://argument/x")) == "mysql://argument/x (from an argument)"
    monkeypatch.setenv(ARCHIVE_VARIABLE, "")
    assert settings_file.archive() is None, "an empty variable names no archive"


@pytest.mark.parametrize(
    ("value", "message"), [("7", "expected a str, got 7"), ('"mysql://:CANARY@h:x/y"', "as port a number")]
)
def test_a_mistake_in_the_file_names_it(here: Path, value: str, message: str) -> None:
    (here / "pinlater.toml").write_text(f"archive = {value}\n")
    with pytest.raises(InvalidArgument, match=message) as caught:
        settings_file.archive()
    assert str(here / "pinlater.toml") in str(caught.value)
    assert "CANARY" not in str(caught.value)
