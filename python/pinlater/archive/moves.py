"""What a queue shard has of the archive's protocol: open batches and restores, and jobs. Flows only, no I/O."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from pinlater.archive.incarnations import Incarnation
from pinlater.store.effects import Flow
from pinlater.store.requests import read
from pinlater.store.shards import QueueShard

_BATCH: Final = struct.Struct(">16s6sBI")
_RESTORE: Final = struct.Struct(">Q6s")
_ASKED_AT_ONCE: Final = 1_000


class OpenBatch(NamedTuple):
    """A batch that Redis has. since_ms: when it was withdrawn, by the clock of Redis."""

    name: bytes
    since_ms: int
    priority: int
    jobs: int


class Moves(NamedTuple):
    """What a queue shard has of the archive's protocol. closed: the highest closed restore."""

    epoch: int
    closed: int
    batches: list[OpenBatch]
    restores: list[int]


def moves_of(queue_shard: QueueShard, deadline_s: float) -> Flow[Moves]:
    """Reads the open batches and restores of a queue shard."""
    batches: dict[bytes, OpenBatch] = {}
    restores: list[int] = []
    cursor, epoch, closed = b"0", 0, 0
    while True:
        reply = yield from read(queue_shard, "moves", [cursor], deadline_s)
        epoch, closed, cursor = int(reply[2]), int.from_bytes(reply[3], "big"), reply[4]
        for packed in reply[5:]:
            if len(packed) == _RESTORE.size:
                restores.append(_RESTORE.unpack(packed)[0])
            else:
                name, since, priority, jobs = _BATCH.unpack(packed)
                batches[name] = OpenBatch(name, int.from_bytes(since, "big"), priority, jobs)
        if cursor == b"0":
            return Moves(epoch, closed, list(batches.values()), restores)


def held(queue_shard: QueueShard, incarnation: Incarnation, ids: Sequence[int], deadline_s: float) -> Flow[list[int]]:
    """Those of these jobs that Redis has."""
    found: list[int] = []
    for first in range(0, len(ids), _ASKED_AT_ONCE):
        asked = ids[first : first + _ASKED_AT_ONCE]
        packed = [id_.to_bytes(8, "big") for id_ in asked]
        reply = yield from read(queue_shard, "held", [incarnation.epoch, *packed], deadline_s)
        found += [id_ for id_, flag in zip(asked, reply[2], strict=True) if flag]
    return found
