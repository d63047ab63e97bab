"""Redis and Valkey servers by URL: connection arguments, and the check of a server's version.

Promises that a server too old for the scripts is refused by name before any request.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from pinlater.model.errors import InvalidArgument, ServerTooOld, ServerUnavailable
from pinlater.model.registry import registered, registered_names
from pinlater.model.text import did_you_mean
from pinlater.model.urls import shown_url

MIN_VERSION: Final = (7, 0)  # script flags (#!lua) came with Redis 7.0
#: Size of one read of a socket.
READ_BYTES: Final = 65_536
#: Schemes of servers that PinLater does not start.
REMOTE_SCHEMES: Final = ("redis://", "rediss://", "unix://")
#: No server of a shard has these, and `pinlater.connect` takes them.
_OF_CONNECT: Final = ("thrift://", "thrifts://")
_HOST: Final = re.compile(r"[\w.:%\[\]-]*")
_DATABASE: Final = re.compile(r"/*\d*/*")
#: These divide options elsewhere, so a password may follow them. In the path of a socket they are escaped.
_DIVIDERS: Final = re.compile(r"[;&]")


class Attachment(Protocol):
    """This process's hold on a server, which runs until its last holder releases it."""

    @property
    def redis_url(self) -> str:
        """The URL on which it listens."""

    def release(self) -> None:
        """Ends this hold. A second call does nothing."""


class Starter(Protocol):
    """A module that starts servers, registered under the scheme of their URLs (`embedded://`)."""

    def check_url(self, url: str) -> object:
        """Raises InvalidArgument for a URL that the module cannot serve."""

    def absolute(self, url: str, directory: Path | None = None) -> str:
        """The URL, independent of the working directory. directory: what it is relative to instead."""

    def attach(self, url: str) -> Attachment:
        """Holds the server, and starts it if it does not run."""


def absolute(url: object, directory: Path | None = None) -> Any:
    """A server URL, independent of the working directory. Returns any other value unchanged.

    directory: what a relative path is relative to, instead of the working directory.
    """
    starter = _starter_of(url)
    return url if starter is None else starter.absolute(cast(str, url), directory)


def _starter_of(url: object) -> Starter | None:
    return cast("Starter | None", registered(f"{_scheme(url)}://"))


class Server:
    """One server.

    - origin: where its URL came from, for messages; "" if that is not known.
    - contacted: a connection to it has worked before, so a refused one is worth another try.
    - version: `Valkey 9.1.2` or `Redis 7.0.15`; None until a connection has checked it.
    - is_used: a shard of the session is on it; else its connections are closed after their requests.
    - outage: makes the error of each request while the server is unhealthy (operations/health.py). None: it is not.
    - is_pinged: pings run. They find out when a silent server answers again.
    - suspect: the last ping failed, or a call got no answer since. New jobs and claims go to other servers meanwhile.
    - moves: how often the driver left the node that its connections led to. It uses no connection from before.
    """

    def __init__(self, url: str, origin: str = "") -> None:
        check_scheme(url)
        self.url, self.origin = url, origin
        self.contacted = False
        self.version: str | None = None
        self.is_used = True
        self.outage: Callable[[], ServerUnavailable] | None = None
        self.is_pinged = self.suspect = False
        self.moves = 0
        self._node = ""
        self._starter = _starter_of(url)
        self._attachment: Attachment | None = None

    def __repr__(self) -> str:
        return shown_url(self.url)

    @property
    def with_origin(self) -> str:
        """For messages: `redis://a:6379 (from PINLATER_URL)`."""
        return f"{self} ({self.origin})" if self.origin else str(self)

    @property
    def may_answer(self) -> bool:
        """Whether a request that it did not take is worth another try."""
        return self.contacted and self.outage is None

    def connection_arguments(self, connect_timeout_s: float, read_timeout_s: float) -> tuple[str, dict[str, Any]]:
        """URL and keyword arguments for a connection pool of redis-py. Starts an embedded server.

        redis-py retries nothing: only `requests.py` may repeat a write, since it uses the same lane.
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
        """The URL to connect to. Starts an embedded server or a memory store that does not run."""
        if self._starter is None:
            return self.url
        attachment = self._attachment  # one read: another thread may release it
        if attachment is None:
            attachment = self._attachment = self._starter.attach(self.url)
        return attachment.redis_url

    def restart_embedded(self) -> None:
        """Releases an embedded server that does not answer; the next resolve() starts it again."""
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.release()

    def release(self) -> None:
        """Releases an embedded server. It stops after its last user."""
        self.restart_embedded()

    def check_node(self, info: str) -> bool:
        """Checks and keeps the version. info: the reply to INFO server on a new connection. Returns whether it leads to
        another node than the last one did: older connections may be silent for ever. Raises ServerTooOld.
        """
        found = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
        self._check_version(found)
        node, self._node = self._node, found.get("run_id", "")
        return node not in ("", self._node)

    def _check_version(self, found: dict[str, str]) -> None:
        """A 32-bit server is refused as well: its scripts would write times as 32-bit numbers."""
        redis_version, valkey_version = found.get("redis_version", "0"), found.get("valkey_version")
        numbers = tuple(int(part) for part in re.findall(r"\d+", redis_version)[:2])
        if numbers < MIN_VERSION:
            raise ServerTooOld(
                f"server {self.with_origin}: expected Redis 7.0 or later (or Valkey), got Redis {redis_version}"
            )
        if found.get("arch_bits", "64") != "64":
            raise ServerTooOld(f"server {self.with_origin}: expected a 64-bit build, got {found['arch_bits']}")
        self.version = f"Valkey {valkey_version}" if valkey_version else f"Redis {redis_version}"
        self.contacted = True


@functools.cache
def _library() -> dict[str, Any]:
    """The name of the client library, cached: redis-py reads its package metadata for each connection."""
    driver_info = getattr(redis, "DriverInfo", None)
    if driver_info is not None:
        return {"driver_info": driver_info()}
    from redis.utils import get_lib_version  # of redis-py 6

    return {"lib_name": "redis-py", "lib_version": get_lib_version()}  # type: ignore[no-untyped-call]


def check_scheme(url: object, expected: Sequence[str] = ()) -> None:
    """Raises InvalidArgument for a URL of an unknown scheme. expected: the schemes that the error names; (): all."""
    known = [*REMOTE_SCHEMES, *(name for name in registered_names() if name.endswith("://"))]
    scheme = _scheme(url)
    if f"{scheme}://" in known:
        return
    *first, last = named = expected or known
    said = f"server URL: expected {', '.join(first)} or {last}, got {shown_url(url)!r}"
    if isinstance(url, str) and url.startswith(_OF_CONNECT):
        raise InvalidArgument(f"{said}; pinlater.connect() takes it")
    near = did_you_mean(scheme or "", [name.removesuffix("://") for name in named])
    raise InvalidArgument(f"{said}; {near}" if near else said)


def check_url(url: str) -> None:
    """Raises InvalidArgument for a URL that redis-py cannot read."""
    Server(url)
    if (starter := _starter_of(url)) is not None:
        starter.check_url(url)
        return
    if why := _refusal(url):  # no error is raised while another is handled: that one's text may have the password
        raise InvalidArgument(f"server URL {shown_url(url)!r}: {why}")


def _refusal(url: str) -> str:
    """Why the URL cannot be used; "" if it can."""
    if not _is_plain(url):
        return (
            "expected a host or path, numbers as port and database, and options behind ?; "
            "a slash, ?, # or at sign in a password is %2F, %3F, %23 or %40"
        )
    try:
        pool = redis.ConnectionPool.from_url(url, **_library())
        pool.connection_class(**pool.connection_kwargs)  # makes a connection object; does not connect
    except (ValueError, TypeError, redis.RedisError) as error:
        options = unquote(urlsplit(url).query)
        secret = "@" in options or "password" in options.lower()
        return "an option is unknown, or has a wrong value" if secret else str(error)
    return ""


def _is_plain(url: str) -> bool:
    """Whether host, port and database are such, and each option has a value: else a part of a password may stand
    there.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # not a number; or brackets without an IPv6 address
        return False
    options = parts.query.split("&") if parts.query else []
    if parts.fragment or not all("=" in option for option in options):
        return False
    if parts.scheme == "unix":
        return _DIVIDERS.search(parts.path) is None
    return all((_HOST.fullmatch(parts.netloc.rpartition("@")[2]), _DATABASE.fullmatch(parts.path)))


def _scheme(url: object) -> str | None:
    try:
        return urlsplit(url).scheme if isinstance(url, str) else None
    except ValueError:
        return None
