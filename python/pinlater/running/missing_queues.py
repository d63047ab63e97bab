"""Missing queues that no worker creates.

Promises that a mistyped name creates no queue, and is an error that names a similar one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import InvalidArgument, OutcomeUnknown, QueueError, QueueNotFound, ServerError
from pinlater.model.text import did_you_mean

log: Final = logging.getLogger("pinlater.worker")


async def check_exist(client: AsyncClient, queues: Iterable[str], others: Collection[str] = ()) -> None:
    """Raises InvalidArgument for a queue that is missing.

    others: names to compare its name with, besides those of the servers.
    """
    for queue in queues:
        try:
            await client.queue_config(queue)
        except QueueNotFound:
            hint = did_you_mean(queue, {*others, *await client.queue_names()})
            raise InvalidArgument(f"queue {queue!r}: not found; {hint}{' ' * bool(hint)}--create creates it") from None


@contextmanager
def unless_away() -> Iterator[None]:
    """Ends a block that looks at queues, with a record in the log, where no server answers. Workers wait for one."""
    try:
        yield
    except (ServerError, OutcomeUnknown, QueueError) as error:
        log.warning("queues not looked at yet: %s", error)
