"""The lease renewer over TLS, against a redis-server that has it.

Promises: what OpenSSL accepts by redis-py's options is accepted, what it refuses is refused with the reason.
Risks: needs a redis-server built with TLS, as Debian's is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import CLIENT_USE, LOCAL_NAMES, Authority
from tests.support.renewing import DEADLINE_S, LEASE_MS, Make, failed, keys, make, take, token
from tests.support.servers import Server

__all__ = ["make"]  # a fixture

Tls = dict[str, str | bool | None]


def options(**changed: str | bool | None) -> Tls:
    defaults: Tls = {"ca_certs": None, "cert": None, "key": None}
    return defaults | {"server_name": "127.0.0.1", "verify": "required", "check_hostname": True} | changed


def hold(renewer: Any) -> Any:
    renewer.hold(renewer.add_queue(keys()), 1, token(1), token(1), LEASE_MS)
    return renewer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a certificate for localhost and 127.0.0.1 that the authority server.crt signed."""
    directory = tmp_path_factory.mktemp("signed")
    certificate, key = directory / "leaf.crt", directory / "leaf.key"
    config = {"tls-cert-file": str(certificate), "tls-key-file": str(key)}
    server = Server("redis", directory, tls=True, config=config)
    assert server.authority is not None
    server.authority.sign("leaf", LOCAL_NAMES)
    server.authority.sign("worker", CLIENT_USE)
    with server:
        with server.client() as client:
            take(client, 1)
        yield server


def authority(server: Server) -> str:
    assert server.tls_files is not None
    return str(server.tls_files.certificate)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_a_signed_certificate_is_accepted_for_its_names(server: Server, make: Make, name: str) -> None:
    renewer = hold(make(server, tls=options(ca_certs=authority(server), server_name=name)))
    assert renewer.wait_renewed(2, DEADLINE_S), renewer.stats().last_error
    assert renewer.stats().failures == 0


def test_a_self_signed_certificate_that_is_its_own_authority(fresh_server: Callable[..., Server], make: Make) -> None:
    own = fresh_server("redis", tls=True)
    renewer = hold(make(own, tls=options(ca_certs=authority(own))))
    assert renewer.wait_renewed(1, DEADLINE_S), renewer.stats().last_error
    other = hold(make(own, tls=options(ca_certs=authority(own), server_name="elsewhere.example")))
    assert "not valid for name" in failed(other)


def test_another_name_is_refused_unless_names_are_not_checked(server: Server, make: Make) -> None:
    elsewhere = options(ca_certs=authority(server), server_name="elsewhere.example")
    refused = hold(make(server, tls=elsewhere))
    assert "not valid for name" in failed(refused, 2)
    assert refused.stats().renewals == 0
    unchecked = hold(make(server, tls=elsewhere | {"check_hostname": False}))
    assert unchecked.wait_renewed(1, DEADLINE_S), unchecked.stats().last_error


def test_an_unknown_authority_is_refused_unless_nothing_is_verified(server: Server, make: Make, tmp_path: Path) -> None:
    stranger = str(Authority(tmp_path).files.certificate)
    for ca_certs in (stranger, None):
        refused = hold(make(server, tls=options(ca_certs=ca_certs, check_hostname=False)))
        assert failed(refused).startswith("tls: invalid peer certificate: ")
        assert refused.stats().renewals == 0
    careless = hold(make(server, tls=options(ca_certs=stranger, verify="none")))
    assert careless.wait_renewed(1, DEADLINE_S), careless.stats().last_error


def test_the_system_authorities_count_when_none_is_named(
    server: Server, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", authority(server))
    renewer = hold(make(server, tls=options()))
    assert renewer.wait_renewed(1, DEADLINE_S), renewer.stats().last_error


def test_a_server_that_wants_a_client_certificate_gets_it(server: Server, make: Make) -> None:
    folder = server.directory
    mine = {"cert": str(folder / "worker.crt"), "key": str(folder / "worker.key")}
    with server.client() as client:
        client.config_set("tls-auth-clients", "yes")
        try:
            without = hold(make(server, tls=options(ca_certs=authority(server))))
            assert "CertificateRequired" in failed(without)
            renewer = hold(make(server, tls=options(ca_certs=authority(server), **mine)))
            assert renewer.wait_renewed(1, DEADLINE_S), renewer.stats().last_error
        finally:
            client.config_set("tls-auth-clients", "no")


def test_tls_to_a_server_without_it_and_the_other_way_round(
    server: Server, fresh_server: Callable[..., Server], make: Make
) -> None:
    plain = hold(make(fresh_server("redis"), tls=options(verify="none"), timeout_s=0.5))
    assert failed(plain).startswith("tls: ")
    assert failed(hold(make(server, timeout_s=0.5))) != ""


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"ca_certs": "/no/such/file"}, "expected PEM certificates in /no/such/file, came "),
        ({"ca_certs": "KEY"}, "expected PEM certificates in .*worker.key, came none"),
        ({"cert": "CERT"}, "expected both tls cert and tls key, or neither, came one of them"),
        ({"cert": "CERT", "key": "CERT"}, "expected an unencrypted PEM private key in .*worker.crt, came "),
        ({"verify": "maybe"}, 'expected tls verify to be "required" or "none", came "maybe"'),
        ({"server_name": "no name"}, 'expected a host name or address as tls server_name, came "no name"'),
    ],
)
def test_what_cannot_work_is_refused_at_once(
    server: Server, make: Make, changed: dict[str, str], expected: str
) -> None:
    files = {"CERT": str(server.directory / "worker.crt"), "KEY": str(server.directory / "worker.key")}
    tls = options(**{option: files.get(value, value) for option, value in changed.items()})
    with pytest.raises(ValueError, match=expected):
        make(server, tls=tls)


def test_a_missing_option_and_a_unix_socket_are_refused(server: Server, make: Make) -> None:
    with pytest.raises(KeyError, match="check_hostname"):
        make(server, tls={option: value for option, value in options().items() if option != "check_hostname"})
    with pytest.raises(ValueError, match="expected no tls with a unix socket, came tls for /run/a"):
        make("unix:/run/a", tls=options())
