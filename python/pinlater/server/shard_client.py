"""A client of the shards of a server: those of its JSON file as they change, each with its health."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pinlater.client import settings_file
from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import InvalidArgument
from pinlater.operations.health import HealthRules
from pinlater.server.health import HealthChecks
from pinlater.server.settings import ServerSettings
from pinlater.server.shards_file import ShardsFile
from pinlater.store.shards import DEFAULT, ChosenShards


def chosen_shards(settings: ServerSettings, otherwise: ChosenShards) -> ChosenShards:
    """The shards of the server's file; without a file those that were chosen otherwise.

    Raises InvalidArgument for a file that cannot be used, and if the servers are named otherwise too.
    """
    if not settings.shards_file:
        return otherwise
    if otherwise.origin != DEFAULT:
        raise InvalidArgument(
            f"servers: expected a shards file or a URL, got both: the file {settings.shards_file} and {otherwise}; "
            f"keep the file, and leave out the URL (--url, --shard, PINLATER_URL, url and [shards] of pinlater.toml); "
            f"or keep the URL, and leave out the file (--shards-file, shards_file, SHARD_CONFIG_FILE_PATH)"
        )
    return ShardsFile(Path(settings.shards_file)).read()


def check_named(settings: ServerSettings, otherwise: ChosenShards, properties: Path | None) -> None:
    """Raises InvalidArgument if a server with a properties file of the original has no servers: it would serve on an
    empty embedded one, and its clients would miss their jobs.
    """
    if properties is not None and not settings.shards_file and otherwise.origin == DEFAULT:
        raise InvalidArgument(
            f"servers: expected the Redis servers beside {properties}, got none; the original names them by "
            f"-Dbackend_config=redis.json: give that file by --shards-file redis.json, or name the servers by --url or "
            f"--shard, PINLATER_URL, or url or [shards] of pinlater.toml (--url embedded:// for an embedded one)"
        )


@asynccontextmanager
async def shard_client(settings: ServerSettings, shards: ChosenShards) -> AsyncIterator[AsyncClient]:
    """A client that follows the file of shards, if there is one, and pings its servers. shards: without a file."""
    file = ShardsFile(Path(settings.shards_file)) if settings.shards_file else None
    first = shards if file is None else file.read()
    async with AsyncClient(shards=first, timeout_s=settings.timeout_s, archive=settings_file.archive()) as client:
        rules = HealthRules(failures=settings.health_failures, successes=settings.health_successes)
        health = HealthChecks(client, rules, interval_s=settings.health_interval_s)
        health.start()
        if file is not None:
            file.start(client)
        try:
            yield client
        finally:
            await health.stop()
            if file is not None:
                await file.stop()
