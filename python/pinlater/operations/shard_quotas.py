"""Decides how many jobs a claim takes from each shard of a queue: fairness between shards.

Promises that jobs of a higher priority come first on all shards. Shards with jobs of the same priority share evenly.
Risks: a hint is up to 50 ms old, so a claim can find no job.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Final

from pinlater.model.errors import PinLaterError
from pinlater.operations.inspect import peek_at
from pinlater.operations.queue_shards import ASK_AGAIN_S
from pinlater.store.effects import Flow, together
from pinlater.store.shards import QueueShard

#: A hint is the number of due jobs in a script's reply. The client uses a hint for this long, then it peeks again.
HINT_S: Final = 0.05


def refresh_hints(queue_shards: list[QueueShard], deadline_s: float) -> Flow[None]:
    """Peeks at every queue shard, with one pipeline a server, if a hint is too old or if no hint shows a job."""
    now_s = time.monotonic()
    if all(now_s - queue_shard.left_at_s <= HINT_S for queue_shard in queue_shards) and any(
        any(queue_shard.left) for queue_shard in queue_shards
    ):
        return
    results = yield from together([peek_at(queue_shard, deadline_s) for queue_shard in queue_shards])
    failed = [result for result in results if isinstance(result, PinLaterError)]
    for queue_shard, result in zip(queue_shards, results, strict=True):
        if isinstance(result, PinLaterError):
            queue_shard.silent_until_s = time.monotonic() + ASK_AGAIN_S
            queue_shard.left = []
    if len(failed) == len(queue_shards):
        raise failed[0]


def share_out(left: Sequence[Sequence[int]], limit: int) -> list[list[int]]:
    """How many jobs to claim from each queue shard and priority: priority by priority, evenly over the queue shards.

    left: due jobs by priority, for each queue shard; an empty list: no job is known there.
    """
    priorities = max((len(counts) for counts in left), default=0)
    quotas = [[0] * priorities for _ in left]
    for priority in range(priorities):
        open_ = [i for i, counts in enumerate(left) if priority < len(counts) and counts[priority] > 0]
        random.shuffle(open_)
        while open_ and limit > 0:
            share = max(1, limit // len(open_))
            for i in list(open_):
                n = min(share, left[i][priority] - quotas[i][priority], limit)
                quotas[i][priority] += n
                limit -= n
                if quotas[i][priority] == left[i][priority]:
                    open_.remove(i)
    return quotas
