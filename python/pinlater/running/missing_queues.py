"""Missing queues: which ones a worker creates, and the error for the others.

Promises that a mistyped name creates no queue.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection

from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import InvalidArgument, QueueNotFound
from pinlater.model.queue_config import QueueConfig


async def create_missing(
    client: AsyncClient, queue: str, config: QueueConfig | None, known: Collection[str] = ()
) -> bool:
    """Creates a queue if it is missing. Returns whether it was.

    config: None: do not create it, but raise InvalidArgument with the most similar name.
    known: more names to compare with, besides those of the servers.
    """
    if config is not None:
        return await client.create_queue(queue, config)
    try:
        await client.queue_config(queue)
    except QueueNotFound:
        similar = difflib.get_close_matches(queue, {*known, *await client.queue_names()}, n=1)
        hint = f"did you mean {similar[0]!r}? " if similar else ""
        raise InvalidArgument(f"queue {queue!r}: not found; {hint}--create creates it") from None
    return False
