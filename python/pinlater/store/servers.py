"""Redis and Valkey servers by URL: what a connection is made from, and what a server must be.

Promises that a server too old to run our scripts is refused by name, before anything is sent to it.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit, urlunsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from pinlater.model.errors import InvalidArgument, ServerTooOld
from pinlater.model.registry import registered, registered_names

MIN_VERSION: Final = (7, 0)  # script flags (#!lua) came with Redis 7.0
#: What one read of a socket takes at most.
READ_BYTES: Final = 65_536
#: Schemes of servers that somebody else runs.
REMOTE_SCHEMES: Final = ("redis://", "rediss://", "unix://")


class Attachment(Protocol):
    """A server that this process holds: it runs until its last holder releases it."""

    @property
    def redis_url(self) -> str:
        """Where it listens."""

    def release(self) -> None:
        """Ends this hold. Twice is fine."""


class Starter(Protocol):
    """A module that starts servers of its own, registered under the scheme of their URLs (`embedded://`)."""

    def check_url(self, url: str) -> object:
        """Raises InvalidArgument for a URL that it cannot serve."""

    def absolute(self, url: str) -> str:
        """The URL, independent of the working directory."""

    def attach(self, url: str) -> Attachment:
        """Starts the server if it does not run, and holds it."""


def absolute(url: object) -> Any:
    """A server URL, independent of the working directory; anything that is not one as it is."""
    starter = _starter_of(url)
    return url if starter is None else starter.absolute(cast(str, url))


def _starter_of(url: object) -> Starter | None:
    return cast("Starter | None", registered(f"{_scheme(url)}://"))


class Server:
    """One server. `contacted`: a connection to it has worked before (then a refused one is worth waiting for)."""

    def __init__(self, url: str) -> None:
        known = [*REMOTE_SCHEMES, *(name for name in registered_names() if name.endswith("://"))]
        if f"{_scheme(url)}://" not in known:
            *first, last = known
            raise InvalidArgument(f"server URL: expected {', '.join(first)} or {last}, got {hide_password(url)!r}")
        self.url = url
        self.contacted = False
        self.version: str | None = None
        self._starter = _starter_of(url)
        self._attachment: Attachment | None = None

    def __repr__(self) -> str:
        return hide_password(self.url)

    def connection_arguments(self, connect_timeout_s: float, read_timeout_s: float) -> tuple[str, dict[str, Any]]:
        """The URL and keyword arguments redis-py's connection pools are made from; starts an embedded server if it is
        one.

        Nothing is retried by redis-py: a write that is sent again must say so on its lane.
        """
        return self.resolve(), {
            "socket_connect_timeout": connect_timeout_s,
            "socket_timeout": read_timeout_s,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            "client_name": "pinlater",
            **_library(),
        }

    def resolve(self) -> str:
        """The URL to connect to; an embedded server, or a memory store, is started if it does not run."""
        if self._starter is None:
            return self.url
        attachment = self._attachment  # another thread may let go of it meanwhile
        if attachment is None:
            attachment = self._attachment = self._starter.attach(self.url)
        return attachment.redis_url

    def restart_embedded(self) -> None:
        """Lets go of an embedded server that does not answer; the next resolve() starts it again."""
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.release()

    def release(self) -> None:
        """Lets go of an embedded server; its last user stops it."""
        self.restart_embedded()

    def check_version(self, info: str) -> None:
        """info: the reply of INFO server. Raises ServerTooOld; keeps the version (`Valkey 9.1.2`, `Redis 7.0.15`).

        A server of 32 bits is refused as well: scripts write times by a C long.
        """
        found = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
        redis_version, valkey_version = found.get("redis_version", "0"), found.get("valkey_version")
        numbers = tuple(int(part) for part in re.findall(r"\d+", redis_version)[:2])
        if numbers < MIN_VERSION:
            raise ServerTooOld(f"server {self}: expected Redis 7.0 or later (or Valkey), got Redis {redis_version}")
        if found.get("arch_bits", "64") != "64":
            raise ServerTooOld(f"server {self}: expected one built for 64 bits, got {found['arch_bits']}")
        self.version = f"Valkey {valkey_version}" if valkey_version else f"Redis {redis_version}"
        self.contacted = True


@functools.cache
def _library() -> dict[str, Any]:
    """How a connection names its library, as redis-py does by itself; but that reads its metadata each time."""
    made = getattr(redis, "DriverInfo", None)
    if made is not None:
        return {"driver_info": made()}
    from redis.utils import get_lib_version  # of redis-py 6

    return {"lib_name": "redis-py", "lib_version": get_lib_version()}  # type: ignore[no-untyped-call]


def check_url(url: str) -> None:
    """Raises InvalidArgument for a URL that redis-py can not read."""
    Server(url)
    if (starter := _starter_of(url)) is not None:
        starter.check_url(url)
        return
    try:
        pool = redis.ConnectionPool.from_url(url, **_library())
        pool.connection_class(**pool.connection_kwargs)  # made, not connected
    except (ValueError, TypeError, redis.RedisError) as error:
        raise InvalidArgument(f"server URL {hide_password(url)!r}: {error}") from None


def _scheme(url: object) -> str | None:
    try:
        return urlsplit(url).scheme if isinstance(url, str) else None
    except ValueError:  # brackets that are no IPv6 address
        return None


def hide_password(url: object) -> str:
    """The URL as it may stand in a message or a log."""
    if not isinstance(url, str):
        return repr(url)
    try:
        parts = urlsplit(url)
        if parts.password is None and "password=" not in parts.query:
            return url
        user = f"{parts.username or ''}:***@" if parts.password is not None else ""
        netloc = user + parts.netloc.rpartition("@")[2]
        query = re.sub(r"password=[^&]*", "password=***", parts.query)
        return urlunsplit((parts.scheme, netloc, parts.path, query, parts.fragment))
    except ValueError:
        return "(a malformed URL)"
