"""Ends expired leases and notifies waiters of due jobs, after a test has moved the clock of a memory store.

Promises to run the script `expire`, as the monitor of each queue would. Risks: if the move is longer than a lease, the
jobs of live workers are recovered too.
"""

from __future__ import annotations

import re
import secrets
import struct
from typing import Final

from pinlater.memory.commands import run
from pinlater.memory.lua import Scripts
from pinlater.memory.store import Store
from pinlater.model.queue_config import StoredConfig
from pinlater.store.keys import queue_key
from pinlater.store.lanes import LanePool
from pinlater.store.scripts import load_scripts

_HEAD: Final = re.compile(rb"pl:\{([^/}]+)/([^}]+)\}:meta")
_ANY_TIME: Final = bytes(6) + b"\xff" * 12 + bytes(1)
_MORE: Final = struct.Struct(">xxB")
_HEAD_BYTES: Final = 12  # sequence and highest id, before the payload


def expire_leases(store: Store, scripts: Scripts) -> None:
    """Runs the monitor's script once for every queue shard of the store."""
    for key in list(store.values):
        found = _HEAD.fullmatch(key)
        if found:
            _expire(store, scripts, found[1].decode(), found[2].decode())


def _expire(store: Store, scripts: Scripts, queue: str, shard: str) -> None:
    head = queue_key(queue, shard, "meta")
    packed, monitor = run(store, b"HMGET", [head, b"config", b"monitor"])
    config = StoredConfig.unpack(packed) if packed else None
    if config is None or config.deleted:
        return
    # the script must take the move for time that passed, not for a jump of the clock; a call under the id of the active
    # monitor, if a monitor is active, lets that monitor stay active
    run(store, b"HDEL", [head, b"jumped", b"rests"])
    script = load_scripts()["expire"]
    digest = scripts.load(script.source)
    keys = script.names(queue, shard, config.config.priorities)
    owner, hold = (monitor[:8], 1000) if monitor else (secrets.token_bytes(8), 1)
    lanes, more = LanePool(secrets.token_bytes(8)), True
    while more:
        lane = lanes.take()
        arguments = [lane.field, lane.sequence, b"", owner, b"%d" % hold, _ANY_TIME, b""]
        reply = scripts.run(digest, [b"%d" % len(keys), *keys, *arguments])
        lanes.release(lane)
        (more,) = _MORE.unpack_from(reply, _HEAD_BYTES)
