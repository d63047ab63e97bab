"""The processes that benches/service.py measures: `serve URL` is a process of the Thrift service, `echo FILE` reads
frames and answers each with the frame in a file. Each prints its port, and ends when its stdin does.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


class Echo(asyncio.Protocol):
    """The least that a server of frames in Python does: it finds the ends of frames and answers each."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._received = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        received = self._received + data if self._received else data
        while len(received) >= 4 and len(received) >= (end := 4 + int.from_bytes(received[:4], "big")):
            self._transport.write(self._answer)
            received = received[end:]
        self._received = received


async def echo(answer: bytes) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Echo(answer), "127.0.0.1", 0)
    await until_the_end(server.sockets[0].getsockname()[1])


async def serve(url: str) -> None:
    from pinlater import AsyncClient
    from pinlater.server.server_process import ServerProcess
    from pinlater.server.settings import ServerSettings
    from pinlater.server.sockets import bind

    settings = ServerSettings(host="127.0.0.1", port=0, keep_succeeded=0)
    async with AsyncClient(url) as client:
        process = ServerProcess(client, settings)
        listening = bind(settings)
        await process.start(listening)
        await until_the_end(listening.getsockname()[1])
        await process.stop()


async def until_the_end(port: int) -> None:
    print(port, flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, ended.set)
    await ended.wait()


if __name__ == "__main__":
    role, argument = sys.argv[1:]
    uvloop.run(serve(argument) if role == "serve" else echo(Path(argument).read_bytes()))
