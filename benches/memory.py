"""Bytes a pending job: the growth of used_memory, measured while no hash table is rehashing.

Promises a figure without the second table of a rehash: the bench reads the tables until the server reports no rehash.
Risks: the figure jumps where tables double, so it is measured at two sizes.
"""

from __future__ import annotations

from typing import Any

from benches.support import BODY, Figure, Native, Options, serving
from pinlater import Client, QueueConfig
from pinlater.store.keys import queue_key
from tests.support.servers import Kind, Server, wait_until

#: (bar, aim) in bytes a job, by server and number of pending jobs.
LIMITS: dict[tuple[Kind, int], tuple[float, float]] = {
    ("valkey", 100_000): (230, 210),
    ("valkey", 1_000_000): (245, 226),
    ("redis", 100_000): (305, 280),
    ("redis", 1_000_000): (305, 280),
}
#: Each read of a table that is rehashing moves a few buckets.
READS_A_STEP = 5_000


def pending(kind: Kind, options: Options) -> list[Figure]:
    """Figure 3: at 100 k and 1 M pending jobs with bodies of 100 bytes."""
    sizes = (100_000,) if options.quick else (100_000, 1_000_000)
    return [_measure(kind, count) for count in sizes]


def _measure(kind: Kind, count: int) -> Figure:
    with serving(kind) as server:
        native = Native(server)
        with Client(server.url, timeout_s=60) as client:
            client.create_queue("memory", QueueConfig(priorities=3))
            # scripts, the client's request slot and the first buffers are not part of the cost of a job
            client.purge("memory")
            client.enqueue("memory", BODY)
        before = _settled_bytes(server, native, [])
        with Client(server.url, timeout_s=60) as client:
            for _ in range(count // 1000):
                client.enqueue_many("memory", [BODY] * 1000)
            shard = next(iter(client.session.shards))
        tables = [queue_key("memory", shard, "jobs"), queue_key("memory", shard, "ready:1")]
        used = (_settled_bytes(server, native, tables) - before) / count
        native.close()
    bar, aim = LIMITS[kind, count]
    return Figure(f"3 bytes a pending job, {count:,} pending", kind, used, bar, aim, unit="B")


def _settled_bytes(server: Server, native: Native, tables: list[bytes]) -> int:
    """used_memory once no table is rehashing and the value is stable: a timer of the server frees the buffers of closed
    connections.
    """
    wait_until(lambda: not [table for table in tables if _is_rehashing(native, table)], "the end of the rehash", 120)
    last: list[int] = []

    def is_stable() -> bool:
        # over a second, in which the server's timer runs ten times by default
        last.append(server.memory())
        return len(last) > 200 and max(last[-200:]) - min(last[-200:]) < 100_000 and last[-1] == min(last[-200:])

    wait_until(is_stable, "a stable used_memory", 60)
    return last[-1]


def _is_rehashing(native: Native, table: bytes) -> bool:
    """Whether a table is rehashing. If it is, reads it: only use moves its rehash on."""
    stats: Any = native.call("DEBUG", "HTSTATS-KEY", table)
    if b"rehashing target" not in stats:
        return False
    read = "ZSCORE" if table.endswith(b"ready:1") else "HEXISTS"
    native.pipeline(*[(read, table, "no such id")] * READS_A_STEP)
    return True
