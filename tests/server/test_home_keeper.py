"""Rates of the original's file go on when the shard that counts for one is removed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from pinlater import AsyncClient, QueueConfig
from pinlater.model.errors import InvalidArgument
from pinlater.server.home_keeper import HomeKeeper
from pinlater.server.queue_config_file import QueueConfigFile
from tests.support.servers import Server

QUEUES = [f"q{number}" for number in range(8)]


def file_of(path: Path, *queues: str) -> QueueConfigFile:
    entries = [{"name": queue, "queueConfig": {"maxJobsPerSecond": 1000}} for queue in queues]
    path.write_text(json.dumps({"queues": entries}))
    file = QueueConfigFile(str(path))
    file.read()
    return file


@pytest.mark.parametrize("server", ["valkey"], indirect=True)  # what is shown is not the store's
def test_a_rate_whose_shard_is_removed_counts_on_another(server: Server, tmp_path: Path) -> None:
    async def run() -> None:
        async with AsyncClient(shards={"a": server.url, "b": server.url}) as client:
            for queue in QUEUES:
                await client.create_queue(queue, QueueConfig(rate="1000/s"))
            homes = {queue: (await client.queue_config(queue)).home for queue in QUEUES}
            assert set(homes.values()) == {"a", "b"}
            kept, left = (next(queue for queue in QUEUES if homes[queue] == shard) for shard in "ba")
            other = next(queue for queue in QUEUES if homes[queue] == "a" and queue != left)
            keeper = HomeKeeper(client, file_of(tmp_path / "rates.json", kept, left, "missing"))
            await keeper.look()
            assert {queue: (await client.queue_config(queue)).home for queue in QUEUES} == homes

            await client.change_shards({"b": server.url})
            await client.enqueue(left, b"x")
            with pytest.raises(InvalidArgument, match="its limits count on shard 'a'"):
                await client.dequeue(left)
            await keeper.look()
            assert (await client.queue_config(left)).home == "b"
            assert (await client.queue_config(kept)).home == "b"
            assert (await client.queue_config(other)).home == "a"  # an operator has set its rate
            assert [job.body for job in await client.dequeue(left)] == [b"x"]

    asyncio.run(run())


@pytest.mark.parametrize("server", ["valkey"], indirect=True)  # what is shown is not the store's
def test_a_home_that_can_not_be_moved_yet_is_tried_again(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with AsyncClient(shards={"a": server.url, "b": server.url}, timeout_s=0.5) as client:
            await client.create_queue("q", QueueConfig(rate="1000/s", home="a"))
            await client.change_shards({"b": server.url})
            keeper = HomeKeeper(client, file_of(tmp_path / "rates.json", "q"))
            server.pause()
            try:
                await keeper.look()
            finally:
                server.resume()
            assert "queue q: no other shard counts for its limits yet" in caplog.text
            await keeper.look()
            assert (await client.queue_config("q")).home == "b"

    asyncio.run(run())
