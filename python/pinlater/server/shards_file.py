"""The original's JSON file of shards.

    {"shards": [{"name": "1", "shardConfig": {"master": {"host": "localhost", "port": 6379}, "dequeueOnly": true}}]}

Promises that a mistake changes nothing, and that its error has the path of the wrong part, what was expected and what
came. `slave` is read and not used: clients need the primary alone.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import InvalidArgument
from pinlater.model.queue_config import check_shard_name
from pinlater.server.file_watch import FileWatch
from pinlater.server.json_file import JsonFile
from pinlater.store.servers import check_url
from pinlater.store.shards import ChosenShards

_SHARD_KEYS: Final = ("name", "shardConfig")
_CONFIG_KEYS: Final = ("master", "slave", "dequeueOnly")
_SERVER_KEYS: Final = ("host", "port")


class ShardsFile:
    """A file of shards that may change while the program runs."""

    def __init__(self, path: Path) -> None:
        self._name, self._watch = str(path.absolute()), FileWatch(path)

    def read(self) -> ChosenShards:
        """The shards as they are now, for a new client. Raises InvalidArgument."""
        return parse_shards(self._watch.read(), self._name)

    def start(self, client: AsyncClient) -> None:
        """Gives each new version to the client, until stop()."""
        self._watch.start(partial(self._take, client))

    async def stop(self) -> None:
        """Ends the looks; unstarted or twice is fine."""
        await self._watch.stop()

    async def look(self, client: AsyncClient) -> bool:
        """Gives the file to the client if it has changed. Returns whether a new version was taken."""
        return await self._watch.look(partial(self._take, client))

    async def _take(self, client: AsyncClient, data: bytes) -> None:
        await client.change_shards(parse_shards(data, self._name))


def parse_shards(data: bytes, name: str) -> ChosenShards:
    """The shards that the JSON names. name: of the file, for messages and as the origin. Raises InvalidArgument."""
    return _ShardsReader(JsonFile(name, data)).shards()


class _ShardsReader:
    """Reads the shards of a file."""

    def __init__(self, file: JsonFile) -> None:
        self._file = file

    def shards(self) -> ChosenShards:
        file = self._file
        entries = file.table("", file.document, ("shards",)).get("shards")
        if not isinstance(entries, list) or not entries:
            raise file.wrong("shards", "a list of at least one shard", entries)
        urls: dict[str, str] = {}
        closed = []
        for index, entry in enumerate(entries):
            path = f"shards[{index}]"
            shard = file.table(path, entry, _SHARD_KEYS)
            name = self._shard_name(f"{path}.name", shard.get("name"))
            if name in urls:
                raise file.wrong(f"{path}.name", "a name that no other shard has", name)
            config = file.table(f"{path}.shardConfig", shard.get("shardConfig"), _CONFIG_KEYS)
            urls[name] = self._url(f"{path}.shardConfig.master", config.get("master"))
            if config.get("slave") is not None:
                self._url(f"{path}.shardConfig.slave", config["slave"])
            closed += [name] if self._flag(f"{path}.shardConfig.dequeueOnly", config.get("dequeueOnly", False)) else []
        return ChosenShards(urls, f"from {file.name}", closed)

    def _shard_name(self, path: str, value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self._file.wrong(path, "a name or a number", value)
        return self._file.checked(path, check_shard_name, str(value))

    def _url(self, path: str, value: Any) -> str:
        server = self._file.table(path, value, _SERVER_KEYS)
        host, port = server.get("host"), server.get("port")
        if not isinstance(host, str) or not host:
            raise self._file.wrong(f"{path}.host", "the name or address of a host", host)
        if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65_535:
            raise self._file.wrong(f"{path}.port", "a number from 1 to 65535", port)
        url = f"redis://{f'[{host}]' if ':' in host else host}:{port}"
        try:
            check_url(url)
        except InvalidArgument:
            raise self._file.wrong(f"{path}.host", "the name or address of a host", host) from None
        return url

    def _flag(self, path: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise self._file.wrong(path, "true or false", value)
        return value
