"""Waits until steps of the archive's protocol are on the disk of a Redis server. Flows only, no I/O.

Promises that a step which `settle` reports as done is on disk on the server that answers now. The check, the write
behind it and WAITAOF share one connection. If the server was started again after the step and went back in time, the
check fails and the caller does the step again.
Risks: a failover to an asynchronous replica takes back what was on the primary's disk.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from pinlater.model.errors import ArchiveError, ServerUnavailable, from_reply
from pinlater.store.effects import Argument, Flow, NoAnswer, ReplyError, send
from pinlater.store.requests import repeat
from pinlater.store.servers import Server
from pinlater.store.shards import QueueShard

#: One WAITAOF lasts so long at most; with `appendfsync everysec` it takes up to a second.
WAIT_MS: Final = 2_000
NOT_DURABLE: Final = (
    "the archive needs a server that writes to disk: `appendonly yes`, and before Redis 7.2 `appendfsync always` too"
)


def settle(
    queue_shard: QueueShard,
    deadline_s: float,
    *,
    withdrawn: Sequence[bytes] = (),
    finalized: Sequence[bytes] = (),
    restored: Sequence[int] = (),
) -> Flow[list[bool]]:
    """Waits for the disk. Returns for each move, in order, whether its step is still done.

    withdrawn, finalized: names of batches. restored: numbers of restores.

    Raises ServerUnavailable if the disk takes until the deadline, and ArchiveError if the server keeps nothing there.
    """
    numbers = b"".join(number.to_bytes(8, "big") for number in restored)
    flags, _ = yield from _settled(queue_shard, [b"".join(withdrawn), b"".join(finalized), numbers], deadline_s)
    return [flag == 1 for flag in flags]


def settled_epoch(queue_shard: QueueShard, deadline_s: float) -> Flow[int]:
    """The epoch of the queue, once it is on disk. Raises QueueNotFound."""
    _, epoch = yield from _settled(queue_shard, [b"", b"", b""], deadline_s)
    return int.from_bytes(epoch, "big")


def _settled(queue_shard: QueueShard, arguments: list[Argument], deadline_s: float) -> Flow[tuple[bytes, bytes]]:
    while True:
        waiting = [("WAITAOF", 1, 0, WAIT_MS)]
        reply, [answer] = yield from repeat(queue_shard, "settled", arguments, deadline_s, then=waiting)
        if (yield from _on_disk(queue_shard.shard.server, answer, deadline_s)):
            return reply[1], reply[2]
        if time.monotonic() >= deadline_s:
            raise ServerUnavailable(f"{queue_shard}: its disk took nothing in {WAIT_MS / 1000:g} s")


def _on_disk(server: Server, answer: Any, deadline_s: float) -> Flow[bool]:
    """Whether what the answer to a WAITAOF is about is on disk."""
    if isinstance(answer, list):
        return bool(answer[0])
    assert isinstance(answer, ReplyError)
    if "unknown command" not in answer.text:
        if "appendonly" in answer.text:
            raise ArchiveError(f"server {server.with_origin}: {NOT_DURABLE}")
        raise from_reply(answer.text, f"WAITAOF of server {server.with_origin}")
    # an answer of such a server is sent after the disk has what it is about
    [policy] = yield from send(server, ("CONFIG", "GET", "appendfsync"), deadline_s=deadline_s)
    [enabled] = yield from send(server, ("CONFIG", "GET", "appendonly"), deadline_s=deadline_s)
    for found in (policy, enabled):
        if isinstance(found, ReplyError):
            raise from_reply(found.text, f"CONFIG GET of server {server.with_origin}")
        if isinstance(found, NoAnswer):
            raise found.error
    if policy[1:] != [b"always"] or enabled[1:] != [b"yes"]:
        raise ArchiveError(f"server {server.with_origin}: {NOT_DURABLE}")
    return True
