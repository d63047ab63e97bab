"""Reads of one store beside the work on the other. No I/O of its own.

Promises that at most one read is ahead, so two items at most are in memory, and that none is left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item")
Found = TypeVar("Found")


async def read_ahead(
    items: Sequence[Item],
    read: Callable[[Item], Coroutine[Any, Any, Found]],
    work: Callable[[Item, Found], Awaitable[None]],
) -> None:
    """Works on each item with what was read for it, in order. The next one is read meanwhile."""
    reading: asyncio.Task[Found] | None = None
    try:
        for number, item in enumerate(items, 1):
            found = await (reading or asyncio.create_task(read(item)))
            reading = asyncio.create_task(read(items[number])) if number < len(items) else None
            await work(item, found)
    finally:
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
