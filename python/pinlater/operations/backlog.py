"""What operations ask of a store that keeps pending jobs of a queue outside Redis. `archive/` has one.

A job may move between Redis and that store at any moment, and even come back and leave again. So operations ask Redis
and the backlog in turns for what neither had, until the backlog has begun to bring nothing back in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from pinlater.model.jobs import CountsByState, JobInfo
from pinlater.store.effects import Flow
from pinlater.store.shards import QueueShard

#: What the backlog of a queue shard had brought back at a look. If two looks have the same, no job came back between.
Seen: TypeAlias = tuple[int, int]


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
