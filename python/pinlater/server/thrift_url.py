"""URLs of Thrift servers: `thrift://host:9010`, several as `thrift://a:9010,b:9010`, with TLS `thrifts://`.

Promises that no message shows a URL that cannot be read. No I/O, but for the file of `ca=`.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from pinlater.model.errors import InvalidArgument
from pinlater.model.urls import shown_url

#: Without and with TLS.
SCHEMES: Final = ("thrift://", "thrifts://")
_BEGINNINGS: Final = tuple(scheme.removesuffix("//") for scheme in SCHEMES)
#: Begins the error of a call that no server has answered.
NO_ANSWER: Final = "no server carried out the call"
DEFAULT_PORT: Final = 9010
_URL: Final = re.compile(r"(thrifts?)://([^/?#@]+)/?(?:\?([^#]*))?", re.ASCII)
_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[\w.-]+)(?::(\d{1,5}))?", re.ASCII)
_EXPECTED: Final = (
    "expected thrift://host:9010, several hosts with commas between them, or thrifts:// with ?ca=FILE behind it"
)


@dataclass(frozen=True, slots=True)
class ThriftUrl:
    """The servers of a URL, each with the whole interface.

    - addresses: hosts and ports.
    - tls: how their certificates are checked; None: no TLS.
    """

    addresses: tuple[tuple[str, int], ...]
    tls: ssl.SSLContext | None

    def shown(self, index: int) -> str:
        """One of the servers, for messages."""
        host, port = self.addresses[index]
        return f"{SCHEMES[self.tls is not None]}{f'[{host}]' if ':' in host else host}:{port}"


def is_thrift(url: object) -> bool:
    """Whether a URL is meant for Thrift servers. It may be malformed."""
    return isinstance(url, str) and url.startswith(_BEGINNINGS)


def parse_thrift_url(url: str) -> ThriftUrl:
    """Reads a URL. Raises InvalidArgument."""
    found = _URL.fullmatch(url) if isinstance(url, str) else None
    if found is None:
        raise InvalidArgument(f"server URL {shown_url(url)!r}: {_EXPECTED}")
    addresses = tuple(_address(text, url) for text in found[2].split(","))
    options = dict(parse_qsl(found[3] or "", keep_blank_values=True))
    if options.keys() - {"ca"} or (options and found[1] == "thrift"):
        raise InvalidArgument(f"server URL {shown_url(url)!r}: {_EXPECTED}")
    return ThriftUrl(addresses, _tls(options.get("ca")) if found[1] == "thrifts" else None)


def _address(text: str, url: str) -> tuple[str, int]:
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or not 0 < (port := int(found[2] or DEFAULT_PORT)) < 65536:
        raise InvalidArgument(f"server URL {shown_url(url)!r}: {_EXPECTED}")
    return found[1].strip("[]"), port


def _tls(ca: str | None) -> ssl.SSLContext:
    """The check of certificates. ca: a file with those of authorities; None: those of the system."""
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise InvalidArgument(f"server URL: ca: {ca} can not be read: {error.strerror or error}") from None
