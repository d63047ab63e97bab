"""What operations ask of a store that keeps pending jobs of a queue outside Redis. `archive/` has one.

A job may move between Redis and that store at any moment, and even come back and leave again. So operations ask Redis
and the backlog in turns for what neither had, until the backlog has started to bring nothing back in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from pinlater.model.jobs import CountsByState, JobInfo
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.store.effects import Flow, send
from pinlater.store.keys import queue_key
from pinlater.store.shards import QueueShard, Session

#: What the backlog of a queue shard had brought back at a look. If two looks have the same, no job came back between.
Seen: TypeAlias = tuple[int, int]


def leaves_out(session: Session, queue: str, deadline_s: float) -> Flow[bool]:
    """Whether jobs of a queue may wait in an archive that this client does not have: an archiver worked on it."""
    if session.backlog is not None:
        return False
    for queue_shard in (yield from known_queue_shards(session, queue, deadline_s)):
        command = ("HMGET", queue_key(queue, queue_shard.shard.name, "meta"), "settled")
        [answer] = yield from send(queue_shard.shard.server, command, deadline_s=deadline_s)
        if isinstance(answer, list) and answer[0] is not None:
            return True
    return False


class Backlog(Protocol):
    """Pending jobs outside Redis, by queue shard. Each method raises ArchiveError if the store does not answer."""

    def lookup(
        self, queue_shard: QueueShard, priorities: bytes, ids: list[bytes], with_body: bool, deadline_s: float
    ) -> Flow[tuple[list[JobInfo], Seen]]:
        """Those of these jobs that are in the backlog. priorities: a byte an id."""

    def count(self, queue_shard: QueueShard, deadline_s: float) -> Flow[list[CountsByState]]:
        """All jobs of a queue shard, by priority: those in Redis and those in the backlog, each once."""

    def scan(
        self,
        queue_shard: QueueShard,
        priority: int,
        future: bool,
        with_body: bool,
        limit: int,
        cursor: bytes,
        deadline_s: float,
    ) -> Flow[tuple[list[JobInfo], bytes]]:
        """A page of the jobs of a priority, latest time first, and the cursor of the next one; b"" at the end."""

    def delete_named(
        self, queue_shard: QueueShard, priority: int, ids: Sequence[bytes], deadline_s: float
    ) -> Flow[tuple[set[bytes], Seen]]:
        """Removes those of these jobs that are in the backlog. Returns their ids. Those that were coming back are in
        Redis then.
        """

    def delete_pending(self, queue_shard: QueueShard, priority: int, limit: int, deadline_s: float) -> Flow[int]:
        """Removes up to `limit` jobs of a priority, the earliest first. Returns how many. Those that were coming back
        are in Redis then.
        """

    def deletion(self, queue_shard: QueueShard, delete: Flow[bool], deadline_s: float) -> Flow[bool]:
        """Runs the flow that deletes the queue in Redis, and ends what the backlog has of it. Its jobs here never come
        back.
        """
