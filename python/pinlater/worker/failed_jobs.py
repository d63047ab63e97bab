"""Jobs that failed for good outside of their handler: how scripts name them, and their record in the log."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from pinlater._core import format_descriptor
from pinlater.store.shards import QueueShard

log: Final = logging.getLogger("pinlater.worker")

#: Gets the descriptors of such jobs, and why no server took their end. None: their worker died, or their lease ran out.
OnFailed: TypeAlias = Callable[[list[str], Exception | None], object]

#: How many, then priority and id of each.
_COUNT: Final = struct.Struct(">H")
_JOB: Final = struct.Struct(">BQ")


def read_failed(queue_shard: QueueShard, reply: bytes, at: int) -> tuple[list[str], bytes]:
    """The descriptors of the failed jobs at this position of a reply, and what stands behind them."""
    (count,) = _COUNT.unpack_from(reply, at)
    at += _COUNT.size
    end = at + count * _JOB.size
    queue, shard = queue_shard.queue, queue_shard.shard.name
    return [format_descriptor(queue, shard, *job) for job in _JOB.iter_unpack(reply[at:end])], reply[end:]


def log_failed(descriptors: list[str], error: Exception | None) -> None:
    """Logs jobs that failed by a crash. The acker has logged each end that no server took."""
    if error is None:
        for descriptor in descriptors:
            log.error("job %s failed for good: its worker died, or its lease ran out", descriptor)
