"""Connects to servers, and reports for each server whether it answered.

Promises that all connections are closed at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from pinlater.cli.doctor.check_result import ERROR, OK, CheckResult
from pinlater.client.base import ClientSettings
from pinlater.model.errors import PinLaterError, ServerTooOld
from pinlater.model.urls import hide_user
from pinlater.store.servers import Server


@dataclass(slots=True)
class ReachedServer:
    """A server that answered, with its INFO.

    shards: the names of its shards. queues: those to check; none: all.
    """

    server: Server
    redis: redis.Redis
    shards: Sequence[str] = ()
    queues: Sequence[str] = ()
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The URL of the server, without the password."""
        return repr(self.server)

    def config(self, name: str) -> str | None:
        """A setting of the server. None if CONFIG GET is denied, as on managed servers."""
        try:
            return dict(self.redis.config_get(name)).get(name)
        except ResponseError:
            return None

    def result(self, level: str, check: str, found: str, advice: str = "") -> CheckResult:
        """What a check of this server found."""
        return CheckResult(level, self.name, check, found, advice)


@contextmanager
def reached_servers(
    settings: ClientSettings,
    queues: Sequence[str] = (),
) -> Iterator[tuple[dict[Server, ReachedServer], dict[Server, CheckResult]]]:
    """Yields the servers that answered, and for each server a check result that says whether it answered."""
    reached: dict[Server, ReachedServer] = {}
    results: dict[Server, CheckResult] = {}
    try:
        for server in settings.session.servers:
            results[server] = _reach(server, settings.timeouts, reached)
            if server in reached:
                shards = settings.session.shards.values()
                reached[server].shards = [shard.name for shard in shards if shard.server is server]
                reached[server].queues = queues
        yield reached, results
    finally:
        for connected in reached.values():
            with suppress(RedisError, OSError):
                connected.redis.close()
        for server in settings.session.servers:
            server.release()


def server_versions(settings: ClientSettings) -> dict[str, str | None]:
    """The version of each server by its URL (passwords hidden). None if it did not answer."""
    with reached_servers(settings) as (reached, results):
        return {repr(server): server.version if server in reached else None for server in results}


def _reach(server: Server, timeouts: tuple[float, float], reached: dict[Server, ReachedServer]) -> CheckResult:
    try:
        url, arguments = server.connection_arguments(*timeouts)
        connected = ReachedServer(server, redis.Redis.from_url(url, **arguments))
        connected.info = dict(connected.redis.info())
        server.check_version("\n".join(f"{key}:{value}" for key, value in connected.info.items()))
    except (AuthenticationError, NoPermissionError) as error:
        advice = "check user and password in the URL; a client needs INFO and CLIENT SETNAME"
        return CheckResult(ERROR, repr(server), "reachable", f"login refused: {hide_user(str(error))}", advice)
    except ServerTooOld as error:
        advice = "upgrade it: the scripts need Redis 7.0"
        return CheckResult(ERROR, repr(server), "reachable", str(error), advice)
    except (RedisError, OSError, PinLaterError) as error:
        return CheckResult(ERROR, repr(server), "reachable", str(error), "start it, or correct the URL")
    reached[server] = connected
    return connected.result(OK, "reachable", "answers, login accepted")
