"""`pinlater.connect`: a client for a URL, whatever serves there.

Promises that the Thrift library is imported for a Thrift URL only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinlater.client.client import Client
from pinlater.model.errors import InvalidArgument
from pinlater.server.thrift_url import is_thrift
from pinlater.store.shards import resolve_shards

if TYPE_CHECKING:
    from pinlater.server.thrift_client import ThriftClient


def connect(
    url: str | None = None,
    *,
    source: str | None = None,
    timeout_s: float = 10.0,
    connect_timeout_s: float = 5.0,
    read_timeout_s: float = 5.0,
) -> Client | ThriftClient:
    """A blocking client: a ThriftClient for `thrift://` and `thrifts://`, a Client for every other URL.

    Without a URL: that of PINLATER_URL, else the embedded server. The other arguments are those of both clients.
    """
    shards = resolve_shards(url, None)
    timeouts: dict[str, Any] = {
        "timeout_s": timeout_s,
        "connect_timeout_s": connect_timeout_s,
        "read_timeout_s": read_timeout_s,
    }
    found = thrift_url(shards)
    if found is None:
        return Client(shards=shards, source=source, **timeouts)
    from pinlater.server.thrift_client import ThriftClient

    return ThriftClient(found, source=source, **timeouts)


def thrift_url(shards: dict[str, str]) -> str | None:
    """The URL of Thrift servers among the chosen servers; None: they are Redis servers. Raises InvalidArgument."""
    found = [url for url in shards.values() if is_thrift(url)]
    if found and len(shards) > 1:
        raise InvalidArgument("server URL: expected thrift://a,b for several Thrift servers, got shards")
    return found[0] if found else None
