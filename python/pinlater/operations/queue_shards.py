"""The shards of a queue: finds the usable ones, and copies the newest configuration to all of them.

Promises that the first client that sees two configurations copies the newer one to the other shards, and that a deleted
queue does not come back this way. Until then versions may differ between shards. Each script checks the version of its
own shard.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from pinlater.model.errors import (
    FormatUnsupported,
    OutcomeUnknown,
    PinLaterError,
    QueueNotFound,
    ServerRefused,
    ServerUnavailable,
    from_reply,
)
from pinlater.model.queue_config import QueueConfig, StoredConfig, check_queue_name
from pinlater.store.effects import Flow, ReplyError, T, send, together
from pinlater.store.keys import registry_key, remnant_field
from pinlater.store.requests import create, load_config, load_known, repeat, write
from pinlater.store.shards import QueueShard, Session

log: Final = logging.getLogger("pinlater.queues")

#: A client asks a shard that did not answer again after this time, unless pings run. Until then it uses the others.
ASK_AGAIN_S: Final = 5.0
#: A call on several shards waits this long for a shard that does not answer.
PATIENCE_S: Final = 1.0

#: The configuration on each shard. A deleted queue has one too. None: the shard has never had the queue.
Found: TypeAlias = Mapping[QueueShard, StoredConfig | None]


def agreed_queue_shards(session: Session, queue: str) -> list[QueueShard]:
    """All shards of a queue, if the client knows the same configuration of each; else none. Sends nothing."""
    queue_shards = session.queue_shards(queue)
    stored = queue_shards[0].stored
    if stored is None or stored.deleted:
        return []
    if len(queue_shards) == 1 or all(
        queue_shard.stored is stored or _agrees(queue_shard, stored) for queue_shard in queue_shards
    ):
        return queue_shards
    return []


def _agrees(queue_shard: QueueShard, stored: StoredConfig) -> bool:
    return queue_shard.stored is not None and queue_shard.stored.age == stored.age


def known_queue_shards(session: Session, queue: str, deadline_s: float) -> Flow[list[QueueShard]]:
    """The shards of a queue that a client may use now: they have one configuration, and their servers answered last
    time. Raises QueueNotFound.

    Sends nothing while all shards are known and agree.
    """
    if agreed := agreed_queue_shards(session, queue):
        return agreed
    queue_shards = session.queue_shards(queue)
    check_queue_name(queue)
    now_s = time.monotonic()
    yield from _ask_unknown(queue_shards, now_s, deadline_s)
    newest = newest_of(queue_shard.stored for queue_shard in queue_shards)
    if newest is not None and any(_is_of_earlier_epoch(queue_shard, newest) for queue_shard in queue_shards):
        # their jobs would be removed: the server of the newest may have lost its data since this client read it
        newest = newest_of((yield from load_all(queue_shards, deadline_s)).values())
    if newest is None:
        for queue_shard in queue_shards:
            queue_shard.stored = None
        raise not_found(queue)
    answering = [queue_shard for queue_shard in queue_shards if not is_passed_over(queue_shard, now_s)]
    yield from carry(answering, newest, deadline_s)
    return [queue_shard for queue_shard in queue_shards if exists(queue_shard.stored)]


def every_queue_shard(session: Session, queue: str, deadline_s: float) -> Flow[list[QueueShard]]:
    """As known_queue_shards, but without one of them the call would be wrong: raises ServerUnavailable that names a
    shard that is unhealthy, or whose configuration is not to be had.
    """
    check_healthy(session)
    known = yield from known_queue_shards(session, queue, deadline_s)
    for queue_shard in session.queue_shards(queue):
        if queue_shard not in known:
            raise ServerUnavailable(f"{queue_shard}: it does not answer, and the call needs each shard of the queue")
    return known


def check_healthy(session: Session) -> None:
    """Raises ShardUnhealthy if a shard is unhealthy, for calls that need each one."""
    for shard in session.shards.values():
        if shard.server.outage is not None:
            raise shard.server.outage()


def naming(queue_shard: QueueShard, flow: Flow[T]) -> Flow[T]:
    """The flow; its ServerUnavailable names the queue shard."""
    try:
        return (yield from flow)
    except ServerUnavailable as error:
        raise type(error)(f"{queue_shard}: {error}") from None


def pass_over(queue_shard: QueueShard, error: PinLaterError) -> None:
    """Uses other shards for ASK_AGAIN_S, because of an error. If its server was silent and is pinged, until its next
    answered ping.
    """
    queue_shard.silent_until_s = time.monotonic() + ASK_AGAIN_S
    server = queue_shard.shard.server
    if server.is_pinged and isinstance(error, ServerUnavailable | OutcomeUnknown):
        server.suspect = True


def is_passed_over(queue_shard: QueueShard, now_s: float) -> bool:
    """Whether calls use other shards now. now_s: monotonic seconds."""
    return queue_shard.silent_until_s > now_s or queue_shard.shard.server.suspect


def _is_of_earlier_epoch(queue_shard: QueueShard, newest: StoredConfig) -> bool:
    stored = queue_shard.stored
    return stored is not None and not stored.deleted and stored.epoch < newest.epoch


def _ask_unknown(queue_shards: list[QueueShard], now_s: float, deadline_s: float) -> Flow[None]:
    unknown = [queue_shard for queue_shard in queue_shards if queue_shard.stored is None]
    ask = [queue_shard for queue_shard in unknown if not is_passed_over(queue_shard, now_s)]
    if len(unknown) == len(queue_shards):
        yield from load_all(queue_shards, deadline_s, ask)
    else:
        yield from _ask(ask, min(deadline_s, now_s + PATIENCE_S))


def not_found(queue: str) -> QueueNotFound:
    """The error for a queue that no shard has."""
    return QueueNotFound(f"queue {queue!r}: not found; create_queue makes it")


def exists(stored: StoredConfig | None) -> bool:
    """Whether a shard has the queue."""
    return stored is not None and not stored.deleted


def newest_of(found: Iterable[StoredConfig | None]) -> StoredConfig | None:
    """The configuration of the last epoch and the highest version. None if there is none, or if it is a deletion."""
    latest = latest_of(found)
    return None if latest is None or latest.deleted else latest


def latest_of(found: Iterable[StoredConfig | None]) -> StoredConfig | None:
    """Like newest_of, but returns a deletion too."""
    return max((stored for stored in found if stored is not None), key=lambda stored: stored.age, default=None)


def load_all(queue_shards: list[QueueShard], deadline_s: float, first: list[QueueShard] | None = None) -> Flow[Found]:
    """Reads the configuration of a queue on its shards until one answers. The result leaves out those that did not.

    first: ask only these shards in the first round. None: ask all.
    Raises the first error if no shard answers before the deadline, or if no shard can answer at all.
    """
    ask = first or queue_shards
    while True:
        until_s = min(deadline_s, time.monotonic() + PATIENCE_S) if len(queue_shards) > 1 else deadline_s
        found, failed = yield from _ask(ask, until_s)
        if found:
            return found
        may_answer = any(
            isinstance(error, ServerUnavailable) and queue_shard.shard.server.may_answer
            for queue_shard, error in failed
        )
        if until_s == deadline_s or not may_answer:
            raise failed[0][1]
        ask = queue_shards


def _ask(
    queue_shards: list[QueueShard], deadline_s: float
) -> Flow[tuple[Found, list[tuple[QueueShard, PinLaterError]]]]:
    """Asks shards once for their configuration.

    Raises FormatUnsupported even if other shards answered; otherwise the jobs of that shard would be ignored.
    """
    results = yield from together([load_config(queue_shard, deadline_s) for queue_shard in queue_shards])
    found: dict[QueueShard, StoredConfig | None] = {}
    failed: list[tuple[QueueShard, PinLaterError]] = []
    for queue_shard, result in zip(queue_shards, results, strict=True):
        if isinstance(result, FormatUnsupported):
            raise result
        if isinstance(result, PinLaterError):
            failed.append((queue_shard, result))
            pass_over(queue_shard, result)
        else:
            found[queue_shard] = result
    return found, failed


def carry(queue_shards: list[QueueShard], newest: StoredConfig, deadline_s: float) -> Flow[None]:
    """Copies the newest configuration to every shard that has an older one or none."""
    behind = [
        queue_shard for queue_shard in queue_shards if queue_shard.stored is None or queue_shard.stored.age < newest.age
    ]
    results = yield from together([_carry_to(queue_shard, newest, deadline_s) for queue_shard in behind])
    for queue_shard, result in zip(behind, results, strict=True):
        if isinstance(result, PinLaterError):
            pass_over(queue_shard, result)
            log.warning(
                "the configuration of queue %s could not be copied to shard %s yet: %s",
                queue_shard.queue,
                queue_shard.shard.name,
                result,
            )


def _carry_to(queue_shard: QueueShard, newest: StoredConfig, deadline_s: float) -> Flow[None]:
    if _is_of_earlier_epoch(queue_shard, newest):
        # the shard was away when the queue was deleted and created again: its jobs belong to the deleted queue
        yield from delete_on(queue_shard, deadline_s, newest.epoch)
    if queue_shard.stored is None or queue_shard.stored.deleted:
        yield from create(queue_shard, newest.settings, newest.carried, deadline_s)
        return
    reply = yield from write(queue_shard, "configure", [newest.settings, newest.carried], deadline_s)
    remember(queue_shard, reply)


def remember(queue_shard: QueueShard, reply: list[Any]) -> QueueConfig:
    """Stores the configuration that the script `configure` replied, and returns it."""
    queue_shard.stored = StoredConfig.unpack(reply[2])
    return queue_shard.stored.config


def delete_on(queue_shard: QueueShard, deadline_s: float, before_epoch: int | None = None) -> Flow[bool]:
    """Deletes a queue on one shard. Returns True if it existed.

    A client that dies between the steps leaves a queue shard that the next deletion, or creation, finds.

    before_epoch: delete the queue only if its epoch is earlier. Another client may have created the queue again.
    """
    stored, remnant = yield from load_known(queue_shard, deadline_s)
    existed = exists(stored)
    if existed:
        try:
            below = b"" if before_epoch is None else before_epoch
            remnant = (yield from write(queue_shard, "delete_queue", [below], deadline_s))[2]
            if not remnant:
                return False  # of a later epoch
        except QueueNotFound:
            existed = False
        except OutcomeUnknown as error:
            # if the queue no longer exists, the first try deleted it, or another client did: both are success
            stored, remnant = yield from load_known(queue_shard, deadline_s + 1.0)
            if exists(stored):
                raise error
    queue_shard.stored = None
    kept = bool(remnant) and (yield from _keep_in_registry(queue_shard, remnant, deadline_s))
    yield from _change_names(queue_shard, "SREM", deadline_s)
    forget = yield from repeat(queue_shard, "forget_queue", [remnant if kept else b""], deadline_s)
    is_there_again = forget[0][1]
    if is_there_again:
        yield from _change_names(queue_shard, "SADD", deadline_s)
    return existed


def _keep_in_registry(queue_shard: QueueShard, remnant: bytes, deadline_s: float) -> Flow[bool]:
    """Writes what a deleted queue leaves into the registry of the shard. Returns whether the user may do that."""
    try:
        yield from repeat(queue_shard, "keep_remnant", [remnant_field(queue_shard.queue), remnant], deadline_s)
    except ServerRefused as error:
        # a tenant's user may not (docs/acl.md): then the queue shard keeps it
        log.debug("what is left of queue %s stays in its own keys: %s", queue_shard.queue, error)
        return False
    return True


def _change_names(queue_shard: QueueShard, command_name: str, deadline_s: float) -> Flow[None]:
    """Adds the queue's name to the registry of the shard, or removes it. command_name: SADD or SREM."""
    command = (command_name, registry_key(queue_shard.shard.name), queue_shard.queue)
    answer = (yield from send(queue_shard.shard.server, command, deadline_s=deadline_s))[0]
    if isinstance(answer, ReplyError):
        raise from_reply(answer.text, f"{command_name} in the registry of {queue_shard.shard}")
    if not isinstance(answer, int):
        raise answer.error
