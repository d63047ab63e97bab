"""The state of a queue on each shard: its configuration, monitor and lost records, its jobs and limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from redis.exceptions import ResponseError

from pinlater.cli.doctor.reached_server import ReachedServer, reached_servers
from pinlater.client.base import ClientSettings
from pinlater.model.errors import FormatUnsupported, from_reply
from pinlater.model.jobs import CountsByState
from pinlater.model.queue_config import QueueConfig, StoredConfig
from pinlater.operations.limits import QueueLimits, unpack_limits
from pinlater.store.scripts import load_scripts
from pinlater.store.shards import Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueShardState:
    """The state of a queue on one shard.

    version: grows with each change of the configuration.
    dequeue_only: the shard takes no new jobs.
    config: None if the shard has no such queue.
    lost: ids that claims found without a record.
    error: why the configuration is unknown: no answer, or an unsupported format; "" if it is known.
    """

    shard: str
    server: str
    dequeue_only: bool = False
    version: int = 0
    generation: int = 0
    config: QueueConfig | None = None
    monitor_active: bool = False
    monitor_until_ms: int | None = None
    lost: int = 0
    error: str = ""


def queue_states(settings: ClientSettings, queue: str) -> list[QueueShardState]:
    """The state of a queue on each shard, in the order of the shards."""
    with reached_servers(settings) as (reached, results):
        return [
            queue_state(reached[shard.server], shard, queue)
            if shard.server in reached
            else QueueShardState(
                shard=shard.name,
                server=repr(shard.server),
                dequeue_only=shard.dequeue_only,
                error=results[shard.server].found,
            )
            for shard in settings.session.shards.values()
        ]


def queue_state(server: ReachedServer, shard: Shard, queue: str) -> QueueShardState:
    """The state of a queue on one shard."""
    state = QueueShardState(shard=shard.name, server=server.name, dequeue_only=shard.dequeue_only)
    try:
        _, _, packed, owner, lost, _ = _read(server, shard, queue, "config", 0)
    except ResponseError as error:
        if not isinstance(from_reply(str(error), ""), FormatUnsupported):
            raise
        return replace(state, error=str(error).partition(" ")[2])
    stored = StoredConfig.unpack(packed) if packed else None
    if stored is None or stored.deleted:
        return state
    until_ms = int.from_bytes(owner[8:], "big") if owner else None
    seconds, microseconds = server.redis.time()
    now_ms = seconds * 1000 + microseconds // 1000
    return replace(
        state,
        version=int.from_bytes(stored.version, "big"),
        generation=stored.generation,
        config=stored.config,
        monitor_active=until_ms is not None and until_ms > now_ms,
        monitor_until_ms=until_ms,
        lost=int(lost),
    )


def queue_counts(server: ReachedServer, shard: Shard, queue: str, config: QueueConfig) -> CountsByState:
    """The jobs of a queue on one shard. Raises redis.exceptions.ResponseError if the queue is no longer there."""
    packed = _read(server, shard, queue, "count", config.priorities, b"")[2]
    return sum(CountsByState.unpack(packed), CountsByState())


def queue_limits(server: ReachedServer, shard: Shard, queue: str, config: QueueConfig) -> QueueLimits:
    """What one shard knows of a queue's limits. Raises redis.exceptions.ResponseError if the queue is not there."""
    return unpack_limits(_read(server, shard, queue, "limits", config.priorities, b"")[2])


def _read(server: ReachedServer, shard: Shard, queue: str, verb: str, priorities: int, *arguments: bytes) -> Any:
    """The reply of a script that reads."""
    script = load_scripts()[verb]
    sha = server.redis.script_load(script.source.decode())
    keys = script.names(queue, shard.name, priorities)
    return server.redis.evalsha(sha, len(keys), *keys, b"look", *arguments)
