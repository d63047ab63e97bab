"""Decides how many jobs a claim takes from each shard of a queue: fairness between shards.

Promises that jobs of a higher priority come first on all shards. Shards with jobs of the same priority share large
claims evenly, and take turns at random for small ones.
Risks: a hint is up to 50 ms old, so a claim can find no job.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from typing import Final

from pinlater.model.errors import InvalidArgument, PinLaterError
from pinlater.operations.inspect import peek_at
from pinlater.operations.queue_shards import is_passed_over, pass_over
from pinlater.store.effects import Flow, together
from pinlater.store.shards import QueueShard

#: A hint is the number of due jobs in a script's reply. The client uses a hint for this long, then it peeks again.
HINT_S: Final = 0.05
#: A claim is not split over shards into parts of fewer jobs: a call for so many costs little more than one for one.
LEAST_SHARE: Final = 50
#: Claims over several shards wait this long for a silent one.
PATIENCE_S: Final = 2.0
#: 0.1 of 30 shards is 3, not 4: a product of floats may be above its value by this much.
_ROUNDING: Final = 1e-9


def check_coverage(coverage: object) -> None:
    """Raises InvalidArgument for what is no share of the shards."""
    if isinstance(coverage, bool) or not isinstance(coverage, int | float) or not coverage >= 0:
        raise InvalidArgument(f"coverage: expected a share of the shards, 0 or more, got {coverage!r:.60}")


def covered(queue_shards: list[QueueShard], coverage: float, draw: float) -> list[QueueShard]:
    """The queue shards that a call with this coverage looks at: at least one, at most all, in their order.

    draw: a random number. The same number chooses the same ones of the same list.
    """
    share = math.ceil(min(coverage, 1.0) * len(queue_shards) - _ROUNDING)
    if share >= len(queue_shards):
        return queue_shards
    chosen = random.Random(draw).sample(range(len(queue_shards)), max(1, share))
    return [queue_shards[at] for at in sorted(chosen)]


def those_that_answer(queue_shards: list[QueueShard]) -> list[QueueShard]:
    """Those whose servers answered last time, and are neither suspect nor unhealthy; all of them if there are none."""
    now_s = time.monotonic()
    return [
        queue_shard
        for queue_shard in queue_shards
        if not is_passed_over(queue_shard, now_s) and queue_shard.shard.server.outage is None
    ] or queue_shards


def refresh_hints(queue_shards: list[QueueShard], deadline_s: float) -> Flow[None]:
    """Peeks at every queue shard, with one pipeline a server, if a hint is too old or if no hint shows a job."""
    now_s = time.monotonic()
    if all(now_s - queue_shard.left_at_s <= HINT_S for queue_shard in queue_shards) and any(
        any(queue_shard.left) for queue_shard in queue_shards
    ):
        return
    yield from peek_all(queue_shards, deadline_s)


def peek_all(queue_shards: list[QueueShard], deadline_s: float) -> Flow[None]:
    """Peeks at every queue shard. Those that do not answer show no job. Raises the first error if none does."""
    results = yield from together([peek_at(queue_shard, deadline_s) for queue_shard in queue_shards])
    failed = [result for result in results if isinstance(result, PinLaterError)]
    for queue_shard, result in zip(queue_shards, results, strict=True):
        if isinstance(result, PinLaterError):
            pass_over(queue_shard, result)
            queue_shard.left = []
    if len(failed) == len(queue_shards):
        raise failed[0]


def share_out(left: Sequence[Sequence[int]], limit: int) -> list[list[int]]:
    """How many jobs to claim from each queue shard and priority: priority by priority, evenly over the queue shards.

    A share is LEAST_SHARE jobs or more if there are as many. Chance decides which queue shards are left out.

    left: due jobs by priority, for each queue shard; an empty list: no job is known there.
    """
    priorities = max((len(counts) for counts in left), default=0)
    quotas = [[0] * priorities for _ in left]
    for priority in range(priorities):
        open_ = [i for i, counts in enumerate(left) if priority < len(counts) and counts[priority] > 0]
        random.shuffle(open_)
        while open_ and limit > 0:
            share = max(LEAST_SHARE, limit // len(open_))
            for i in list(open_):
                n = min(share, left[i][priority] - quotas[i][priority], limit)
                quotas[i][priority] += n
                limit -= n
                if quotas[i][priority] == left[i][priority]:
                    open_.remove(i)
    return quotas
