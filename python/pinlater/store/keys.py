"""The names of all Redis keys and channels of PinLater. docs/design.md §3 has their contents.

Promises that the keys of a queue shard share one hash tag, and so one slot of a cluster. Its channels begin as its keys
do, so that one ACL pattern covers both.
"""

from hashlib import blake2b
from typing import Final

PREFIX: Final = "pl:"
#: Ends the name of a waiter that is notified by its list.
LIST_MARK: Final = b":list"
#: Names of keys in headers of scripts that are the registry's, not the queue shard's: one key a level of its tree.
_REMNANT_LEVELS: Final = {"remnants_one": 1, "remnants_two": 2, "remnants_three": 3}


def tag(queue: str, shard: str) -> str:
    """The hash tag of a queue shard: `{queue/shard}`."""
    return f"{{{queue}/{shard}}}"


def queue_key(queue: str, shard: str, name: str) -> bytes:
    """The key `name` (`meta`, `jobs`, `ready:1`, …) of a queue on a shard."""
    return f"{PREFIX}{tag(queue, shard)}:{name}".encode()


def script_keys(queue: str, shard: str, names: tuple[str, ...], priorities: int) -> tuple[bytes, ...]:
    """KEYS of a script: each name in order, a family (`ready*`) as one key a priority, priority 1 first."""
    keys = [_script_key(queue, shard, name) for name in names if not name.endswith("*")]
    for family in names:
        if family.endswith("*"):
            keys += [queue_key(queue, shard, f"{family[:-1]}:{priority}") for priority in range(1, priorities + 1)]
    return tuple(keys)


def _script_key(queue: str, shard: str, name: str) -> bytes:
    level = _REMNANT_LEVELS.get(name)
    return queue_key(queue, shard, name) if level is None else _remnant_key(queue, shard, level)


def _remnant_key(queue: str, shard: str, level: int) -> bytes:
    return f"{PREFIX}{{{shard}}}:deleted:{remnant_field(queue).hex()[:level]}".encode()


def remnant_keys(queue: str, shard: str) -> list[bytes]:
    """The hashes of a shard's registry that may have what a deleted queue leaves, the first one first."""
    return [_remnant_key(queue, shard, level) for level in _REMNANT_LEVELS.values()]


def remnant_field(queue: str) -> bytes:
    """Stands for the name of a deleted queue: 8 bytes. Two names that coincide do no harm, as remnants only grow."""
    return blake2b(queue.encode(), digest_size=8).digest()


def registry_key(shard: str) -> bytes:
    """The set of the names of a shard's queues: a hint, `meta` is the truth."""
    return f"{PREFIX}{{{shard}}}:queues".encode()


#: A write that every client may send and that changes nothing: no queue has an empty name. A replica refuses it.
WRITE_NOTHING: Final = ("SREM", registry_key("nothing"), b"")


def wake_channel(queue: str, shard: str, session: bytes) -> bytes:
    """The Pub/Sub channel that notifies one client of a queue shard's jobs (session: 8 bytes)."""
    return queue_key(queue, shard, f"wake:{session.hex()}")


def blocking_list_key(queue: str, shard: str, session: bytes) -> bytes:
    """The list on which a client's blocking claim waits: its channel's name and LIST_MARK."""
    return wake_channel(queue, shard, session) + LIST_MARK


def cancel_channel(queue: str, shard: str) -> bytes:
    """The channel that tells workers of a queue shard which running jobs were removed."""
    return queue_key(queue, shard, "cancel")


def limits_channel(queue: str, shard: str) -> bytes:
    """The channel that tells clients which rest at a limit that the limits have changed."""
    return queue_key(queue, shard, "limits")


def result_channel(queue: str, shard: str) -> bytes:
    """The start of the channel of a job's result. The job's id in hex follows."""
    return queue_key(queue, shard, "result:")
