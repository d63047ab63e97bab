"""Reports of a process to its supervisor, over a file descriptor.

Promises a report each second, more reports until the worker is ready, and a last report at the end.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import orjson

from pinlater.running.background import in_background
from pinlater.running.metrics import Samples

REPORT_S: Final = 1.0
#: Interval of reports until the worker is ready.
FIRST_REPORTS_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a supervisor knows of a process. A report is sent as a line of JSON.

    ready: the worker is ready for jobs.
    unready: why it is not; "" if it is.
    recycling: the process claims no more jobs, and will end with exit code RECYCLE.
    queues: the queues of the worker.
    code: the exit code; None before the end.
    samples: the metrics of the process.
    """

    ready: bool
    unready: str
    recycling: bool
    queues: list[str]
    code: int | None
    samples: Samples


@asynccontextmanager
async def reporting(
    descriptor: int, make: Callable[[], Report], heard: Callable[[dict[str, Any]], object]
) -> AsyncIterator[None]:
    """Sends reports beside the block. A slow supervisor gets fewer reports, but always the last one.

    heard: gets each message of the supervisor.
    """
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=descriptor))

    def send(report: Report) -> None:
        full = writer.transport.get_write_buffer_size() and report.code is None
        if not full and not writer.transport.is_closing():
            writer.write(orjson.dumps(report) + b"\n")

    async def send_on() -> None:
        while True:
            report = make()
            send(report)
            await asyncio.sleep(REPORT_S if report.ready else FIRST_REPORTS_S)

    async def hear() -> None:
        async for line in reader:
            heard(orjson.loads(line))

    try:
        async with in_background(send_on()), in_background(hear()):
            yield
    finally:
        send(make())
        with suppress(OSError):  # the supervisor is gone
            writer.close()
            await writer.wait_closed()
