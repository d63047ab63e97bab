"""The home shard of a queue: the one that counts for its limits. Flows only, no I/O.

Promises that all clients take the same shard for the home: its name stands in the queue's configuration.
"""

from __future__ import annotations

from dataclasses import replace

from pinlater.model.errors import InvalidArgument, NotAtHome, UnknownHome
from pinlater.model.jobs import CountsByState
from pinlater.model.queue_config import QueueConfig
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.store.effects import Flow, all_of
from pinlater.store.requests import read
from pinlater.store.shards import QueueShard, Session, shard_for_key


def with_home(session: Session, queue: str, config: QueueConfig, before: str = "") -> QueueConfig:
    """The configuration with a home shard, if it has limits.

    before: the home until now. Raises InvalidArgument for a new home that this client does not know.
    """
    if config.home not in (*session.shards, before, ""):
        raise InvalidArgument(f"home: expected one of the shards {', '.join(session.shards)}, got {config.home!r}")
    if not config.is_limited or config.home:
        return config
    return replace(config, home=shard_for_key(queue.encode(), session.taking or list(session.shards)))


def home_of(session: Session, queue: str, config: QueueConfig) -> QueueShard:
    """The queue shard that counts for the limits. Raises UnknownHome if this client does not know its shard."""
    if config.home not in session.shards:
        known = ", ".join(session.shards)
        raise UnknownHome(
            f"queue {queue!r}: its limits count on shard {config.home!r}: expected that shard among {known}"
        )
    return session.queue_shard(queue, config.home)


def where_jobs_are(session: Session, queue_shards: list[QueueShard]) -> list[QueueShard]:
    """The home shard alone of a queue with max_running; these queue shards of any other."""
    stored = queue_shards[0].stored
    if stored is None or stored.config.max_running is None:
        return queue_shards
    return [home_of(session, queue_shards[0].queue, stored.config)]


def check_jobs_at_home(session: Session, queue: str, config: QueueConfig, deadline_s: float) -> Flow[None]:
    """Raises InvalidArgument if other shards than the home have jobs that may run: max_running would not count them."""
    queue_shards = yield from known_queue_shards(session, queue, deadline_s)
    others = [queue_shard for queue_shard in queue_shards if queue_shard.shard.name != config.home]
    replies = yield from all_of([read(queue_shard, "count", [], deadline_s) for queue_shard in others], list)
    for queue_shard, reply in zip(others, replies, strict=True):
        counts = sum(CountsByState.unpack(reply[2]), CountsByState())
        jobs = counts.pending + counts.scheduled + counts.in_progress + counts.failed
        if jobs:
            raise InvalidArgument(
                f"max_running: expected all jobs on the home shard {config.home}, got {jobs:,} on shard "
                f"{queue_shard.shard.name}: the queue is spread over its shards until it is empty"
            )


def check_at_home(queue_shard: QueueShard, config: QueueConfig) -> None:
    """Raises NotAtHome if a queue with max_running has its home on another shard."""
    if config.max_running is not None and queue_shard.shard.name != config.home:
        raise NotAtHome(
            f"queue {queue_shard.queue!r} has max_running, so its jobs live on shard {config.home!r}: "
            f"expected that one, got {queue_shard.shard.name!r}"
        )
