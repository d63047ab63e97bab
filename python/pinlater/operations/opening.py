"""Pausing and draining queues, and opening them again. Flows only, no I/O.

Promises that a drained queue opens only if it was empty on every shard while no other client changed its configuration.
Risks: while a shard does not answer, a drained queue stays closed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pinlater.model.jobs import CountsByState
from pinlater.model.queue_config import QueueConfig
from pinlater.model.times import Seconds
from pinlater.operations.limits import end_pause, pause_for
from pinlater.operations.queue_shards import agreed_queue_shards, carry, remember
from pinlater.operations.queues import configure_queue, queue_config
from pinlater.store.effects import Argument, Flow, all_of, complete
from pinlater.store.requests import read, write
from pinlater.store.shards import Session


class _Changed(Exception):
    """The configuration is no longer the one that was looked at."""


def pause_queue(session: Session, queue: str, pause: Seconds | None, by: str, deadline_s: float) -> Flow[int | None]:
    """Stops the claims of a queue. Returns for how many ms from now; None: until it is resumed.

    by: who asks for it, if the pause ends by itself.
    """
    if pause is None:
        yield from configure_queue(session, queue, {"paused": True}, deadline_s)
        return None
    return (yield from pause_for(session, queue, pause, by, deadline_s))


def resume_queue(session: Session, queue: str, deadline_s: float) -> Flow[None]:
    """Ends both kinds of pause. A rate of 0 stays."""
    config = yield from queue_config(session, queue, deadline_s)
    yield from end_pause(session, queue, deadline_s)
    if config.paused:
        yield from configure_queue(session, queue, {"paused": False}, deadline_s)


def drain_queue(session: Session, queue: str, stay_closed: bool, deadline_s: float) -> Flow[None]:
    """Refuses new jobs, until the queue is empty and somebody opens it, or for good."""
    changes = {"refuse_enqueue": True, "open_when_empty": not stay_closed}
    yield from configure_queue(session, queue, changes, deadline_s)


def drains(config: QueueConfig) -> bool:
    """Whether the queue opens once it is empty."""
    return config.refuse_enqueue and config.open_when_empty


def open_if_empty(session: Session, queue: str, deadline_s: float) -> Flow[bool]:
    """Opens a drained queue if it is empty: no job is pending, scheduled or in progress on any shard.

    Returns True if this call opened it. The queue stays as it is if a shard does not answer, and if another client
    changes its configuration meanwhile.
    """
    config = yield from queue_config(session, queue, deadline_s)
    queue_shards = agreed_queue_shards(session, queue)
    if not drains(config) or not queue_shards:
        return False
    # from here on no shard takes new jobs, unless the configuration changes
    looked_at = [queue_shard.stored for queue_shard in queue_shards]
    replies = yield from all_of([read(queue_shard, "count", [], deadline_s) for queue_shard in queue_shards], list)
    if unfinished(sum((count for reply in replies for count in CountsByState.unpack(reply[2])), CountsByState())):
        return False
    first = queue_shards[0]

    def opened(known: QueueConfig) -> list[Argument]:
        if [queue_shard.stored for queue_shard in queue_shards] != looked_at:
            raise _Changed
        return [replace(known, refuse_enqueue=False, open_when_empty=False).pack(), b""]

    try:
        yield from complete(write(first, "configure", opened, deadline_s), partial(remember, first))
    except _Changed:
        return False
    assert first.stored is not None
    yield from carry(queue_shards, first.stored, deadline_s)
    return True


def unfinished(counts: CountsByState) -> int:
    """Jobs that have not ended."""
    return counts.pending + counts.scheduled + counts.in_progress
