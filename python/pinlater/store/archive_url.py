"""The URL of the archive: `mysql://user:password@host:port/database?options`.

Promises that no message shows a user, a password or an option. This is the only place that chooses the archive.

Defaults: user `pinlater`, no password, host 127.0.0.1, port 3306, database `pinlater`. Options:

- unix_socket: the path of a socket, instead of host and port.
- tls: `true` for TLS with the authorities that this machine trusts. Each option below implies it. They have the names
  that a Redis URL has for them.
- ssl_ca_certs: the file of other authorities. ssl_certfile, ssl_keyfile: the certificate of this client.
- ssl_cert_reqs: `required` or `none`. ssl_check_hostname: `true` or `false`.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from pinlater.model.errors import InvalidArgument
from pinlater.model.urls import shown_url
from pinlater.store.shards import ARGUMENT

ARCHIVE_VARIABLE: Final = "PINLATER_ARCHIVE_URL"
_SCHEME: Final = "mysql"
_DEFAULT_NAME: Final = "pinlater"
_DEFAULT_HOST: Final = "127.0.0.1"
_DEFAULT_PORT: Final = 3306
_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]*)(?::(\d{1,5}))?")
_DATABASE: Final = re.compile(r"/?|/([A-Za-z0-9_$-]{1,64})")
_TLS_OPTIONS: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_OPTIONS: Final = ("unix_socket", "tls", *_TLS_OPTIONS)
_SWITCH: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_ESCAPES: Final = "a slash, ?, # or at sign in a password is %2F, %3F, %23 or %40"


@dataclass(frozen=True, slots=True)
class Tls:
    """How TLS is spoken. verify: the certificate of the server is checked."""

    ca_certs: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    verify: bool = True
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """Raises OSError for a file that cannot be used."""
        context = ssl.create_default_context(cafile=self.ca_certs)
        context.check_hostname = self.verify and self.check_hostname
        context.verify_mode = ssl.CERT_REQUIRED if self.verify else ssl.CERT_NONE
        if self.certfile is not None:
            context.load_cert_chain(self.certfile, self.keyfile)
        return context


@dataclass(frozen=True, slots=True)
class ArchiveUrl:
    """The archive's server and database. origin: where the URL came from. unix_socket: instead of host and port.
    tls: None without TLS.
    """

    url: str = field(repr=False)
    origin: str
    host: str
    port: int
    user: str = field(repr=False)
    password: str = field(repr=False)
    database: str
    unix_socket: str | None
    tls: Tls | None

    def __str__(self) -> str:
        """For messages: `mysql://***@db:3306/pinlater (from PINLATER_ARCHIVE_URL)`."""
        return f"{shown_url(self.url)} ({self.origin})"


def no_file() -> ArchiveUrl | None:
    """Stands for a settings file that names no archive."""
    return None


def resolve_archive(url: str | None = None, of_file: Callable[[], ArchiveUrl | None] = no_file) -> ArchiveUrl | None:
    """The archive of an argument, else of PINLATER_ARCHIVE_URL, else of the settings file, else none. There is none
    either if the variable is empty.

    of_file: reads the settings file. Raises InvalidArgument for a URL that cannot be used.
    """
    if url is not None:
        return parse_archive_url(url, ARGUMENT)
    text = os.environ.get(ARCHIVE_VARIABLE)
    if text is None:
        return of_file()
    return parse_archive_url(text, f"from {ARCHIVE_VARIABLE}") if text else None


def export_archive(archive: ArchiveUrl | None) -> None:
    """Makes this the archive of the processes that this process starts, and of its own clients."""
    os.environ[ARCHIVE_VARIABLE] = archive.url if archive else ""


def parse_archive_url(url: object, origin: str) -> ArchiveUrl:
    """Raises InvalidArgument for a URL that cannot be used; the message names the part."""
    if not isinstance(url, str):
        raise InvalidArgument(f"archive URL ({origin}): expected a str, got {shown_url(url)}")
    try:
        return _parse(url, origin)
    except ValueError as error:  # also of urlsplit and unquote, whose texts may have the password
        why = str(error) if isinstance(error, InvalidArgument) else "expected a URL with its special characters escaped"
    raise InvalidArgument(f"archive URL {shown_url(url)!r} ({origin}): {why}")


def _parse(url: str, origin: str) -> ArchiveUrl:
    parts = urlsplit(url)
    if parts.scheme != _SCHEME or not url.lower().startswith(f"{_SCHEME}://"):
        raise InvalidArgument(f"expected a URL that begins with {_SCHEME}://, such as {_SCHEME}://db/pinlater")
    if parts.fragment or "#" in url:
        raise InvalidArgument(f"expected no #; {_ESCAPES}")
    login, _, where = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    address, database = _ADDRESS.fullmatch(where), _DATABASE.fullmatch(parts.path)
    if address is None or not 0 < (port := int(address[2] or _DEFAULT_PORT)) < 65_536:
        raise InvalidArgument(f"expected a host, and as port a number from 1 to 65535; {_ESCAPES}")
    if database is None:
        raise InvalidArgument(
            f"expected one database: up to 64 ASCII letters, digits, _, $ and - behind one slash; {_ESCAPES}"
        )
    options = _options(parts.query)
    return ArchiveUrl(
        url,
        origin,
        address[1].strip("[]") or _DEFAULT_HOST,
        port,
        unquote(user, errors="strict") or _DEFAULT_NAME,
        unquote(password, errors="strict"),
        database[1] or _DEFAULT_NAME,
        options.get("unix_socket"),
        _tls(options),
    )


def _options(query: str) -> dict[str, str]:
    if query and not all("=" in option for option in query.split("&")):
        raise InvalidArgument(f"expected NAME=VALUE for each option behind ?; {_ESCAPES}")
    pairs = parse_qsl(query, keep_blank_values=True, errors="strict")
    options = dict(pairs)
    if len(options) < len(pairs) or not all(options.values()):
        raise InvalidArgument("expected each option once, with a value")
    if not options.keys() <= set(_OPTIONS):  # its name may be a part of a password
        raise InvalidArgument(f"an option is unknown, expected some of {', '.join(_OPTIONS)}")
    if "unix_socket" in options and not options["unix_socket"].startswith("/"):
        raise InvalidArgument("unix_socket: expected an absolute path")
    return options


def _tls(options: Mapping[str, str]) -> Tls | None:
    chosen = [name for name in _TLS_OPTIONS if name in options]
    if not _switch(options, "tls", default=bool(chosen)):
        if chosen:
            raise InvalidArgument(f"expected {chosen[0]} only with tls=true")
        return None
    if "unix_socket" in options:
        raise InvalidArgument("expected unix_socket or TLS, got both")
    verify = options.get("ssl_cert_reqs", "required")
    if verify not in ("required", "none"):
        raise InvalidArgument("ssl_cert_reqs: expected required or none")
    if "ssl_keyfile" in options and "ssl_certfile" not in options:
        raise InvalidArgument("expected ssl_certfile beside ssl_keyfile")
    return Tls(
        options.get("ssl_ca_certs"),
        options.get("ssl_certfile"),
        options.get("ssl_keyfile"),
        verify == "required",
        _switch(options, "ssl_check_hostname", default=True),
    )


def _switch(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    if name not in options:
        return default
    value = _SWITCH.get(options[name].lower())
    if value is None:
        raise InvalidArgument(f"{name}: expected true or false")
    return value
