"""Every Redis key of PinLater, and nothing else that knows how one is spelled.

Promises that all keys of a queue and shard share one hash tag, so that they stand in one slot of a cluster. The
contents of each key: docs/design.md §3.
"""

from typing import Final

PREFIX: Final = "pl:"


def tag(queue: str, shard: str) -> str:
    """`{queue/shard}`: what the hash slot is computed from."""
    return f"{{{queue}/{shard}}}"


def queue_key(queue: str, shard: str, name: str) -> bytes:
    """The key `name` (`meta`, `jobs`, `ready:1`, …) of a queue on a shard."""
    return f"{PREFIX}{tag(queue, shard)}:{name}".encode()


def script_keys(queue: str, shard: str, names: tuple[str, ...], priorities: int) -> tuple[bytes, ...]:
    """KEYS of a script: each name in order, a family (`ready*`) as one key a priority, priority 1 first."""
    keys = [queue_key(queue, shard, name) for name in names if not name.endswith("*")]
    for family in names:
        if family.endswith("*"):
            keys += [queue_key(queue, shard, f"{family[:-1]}:{priority}") for priority in range(1, priorities + 1)]
    return tuple(keys)


def registry_key(shard: str) -> bytes:
    """The set of the names of a shard's queues: a hint, `meta` is the truth."""
    return f"{PREFIX}{{{shard}}}:queues".encode()


def wake_channel(session: bytes) -> bytes:
    """The Pub/Sub channel on which a client (8 bytes of session) is woken."""
    return f"{PREFIX}wake:{session.hex()}".encode()


def blocking_list_key(queue: str, shard: str, channel: bytes) -> bytes:
    """The list on which a client blocks for a queue and shard: the scripts find its wake channel at the end."""
    return queue_key(queue, shard, channel.decode())


def cancel_channel(queue: str, shard: str) -> bytes:
    """Where workers of a queue and shard hear of running jobs that were removed."""
    return f"{PREFIX}wake:{tag(queue, shard)}".encode()


def result_channel(queue: str, shard: str) -> bytes:
    """What the channel of a job's result begins with; the id in hex follows."""
    return f"{PREFIX}wake:{tag(queue, shard)}:".encode()
