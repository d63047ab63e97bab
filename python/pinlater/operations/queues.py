"""Queues on their shards: making, configuring, finding and deleting them. Flows only, no I/O.

Promises that a queue made or configured on one shard reaches the others by the first client that sees the difference,
and that a deleted one does not come back by that. Versions may differ between shards meanwhile; each script call is
checked against its own shard's.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pinlater.model.errors import (
    FormatUnsupported,
    InvalidArgument,
    OutcomeUnknown,
    PartialDelete,
    PinLaterError,
    QueueNotFound,
    ServerError,
    ServerUnavailable,
    from_reply,
)
from pinlater.model.queue_config import CONFIG_FIELDS, QueueConfig, StoredConfig, check_quarantine, check_queue_name
from pinlater.store.effects import Flow, ReplyError, complete, send, together
from pinlater.store.keys import registry_key
from pinlater.store.requests import create, load_config, write
from pinlater.store.shards import QueueShard, Session

log: Final = logging.getLogger("pinlater.queues")

#: A shard that could not be asked is asked again after so long; until then the others serve.
ASK_AGAIN_S: Final = 5.0
#: What one shard said waits so long for another that is silent.
PATIENCE_S: Final = 1.0


def make_lost(session: Session, queue: str, config: QueueConfig, deadline_s: float) -> Flow[None]:
    """Makes a queue that no server knows of, as they have lost their data, say; one that was deleted stays deleted."""
    if _latest((yield from _load_all(session.queue_shards(queue), deadline_s))) is None:
        yield from create_queue(session, queue, config, deadline_s)


def create_queue(session: Session, queue: str, config: QueueConfig, deadline_s: float) -> Flow[bool]:
    """Makes a queue on every shard that answers; True if it was not there before. Changes nothing of a queue that
    exists.
    """
    check_queue_name(queue)
    if not isinstance(config, QueueConfig):
        raise InvalidArgument(f"config: expected a QueueConfig, got {config!r:.80}")
    check_quarantine(queue, config)
    queue_shards = session.queue_shards(queue)
    found = yield from _load_all(queue_shards, deadline_s)
    newest = _newest(found)
    if newest is not None:
        yield from _carry(session, queue_shards, newest, deadline_s)
        return False
    # it was down when the queue was deleted: what it still has of the old queue must not come back with the new one
    if left_over := [
        queue_shard for queue_shard in queue_shards if queue_shard.stored is not None and not queue_shard.stored.deleted
    ]:
        deletion = _latest(found)
        assert deletion is not None
        for queue_shard in left_over:
            yield from _delete(session, queue_shard, deadline_s, deletion.epoch)
        found = yield from _load_all(queue_shards, deadline_s)
    errors: list[PinLaterError] = []
    for queue_shard in queue_shards:
        try:
            yield from _register(session, queue_shard, deadline_s)
            made = yield from _make(queue_shard, config, found, deadline_s)
        except ServerError as error:
            errors.append(error)
            continue
        assert queue_shard.stored is not None
        yield from _carry(session, queue_shards, queue_shard.stored, deadline_s)
        return made
    raise errors[0]


def _make(
    queue_shard: QueueShard, config: QueueConfig, found: dict[QueueShard, StoredConfig | None], deadline_s: float
) -> Flow[bool]:
    """Makes a queue on the first shard, in the life after its deletion on any other."""
    gone, after = _latest(found), b""
    if gone is not None:
        version = (int.from_bytes(gone.version, "big") + 1).to_bytes(8, "big")
        after = replace(gone, version=version, epoch=gone.epoch + 1).carried
    try:
        return (yield from create(queue_shard, config.pack(), after, deadline_s))
    except QueueNotFound:  # deleted once more meanwhile
        return (yield from create(queue_shard, config.pack(), b"", deadline_s))


def queue_config(session: Session, queue: str, deadline_s: float) -> Flow[QueueConfig]:
    """The newest configuration of a queue. Raises QueueNotFound."""
    queue_shards = session.queue_shards(check_queue_name(queue))
    found = yield from _load_all(queue_shards, deadline_s)
    newest = _newest(found)
    if newest is None:
        raise QueueNotFound(f"queue {queue!r}: not found; create_queue makes it")
    yield from _carry(session, queue_shards, newest, deadline_s)
    return newest.config


def configure_queue(session: Session, queue: str, changes: dict[str, Any], deadline_s: float) -> Flow[QueueConfig]:
    """Changes settings of a queue on every shard: compare-and-set on the first, carried to the others. Returns the new
    configuration.
    """
    for name in changes:
        if name not in CONFIG_FIELDS:
            raise InvalidArgument(f"queue configuration: expected one of {', '.join(CONFIG_FIELDS)}, got {name!r}")
    replace(QueueConfig(), **changes)  # names a bad value before anything is sent
    before = yield from queue_config(session, queue, deadline_s)
    new = replace(before, **changes)
    check_quarantine(queue, new)
    if new.priorities < before.priorities:
        raise InvalidArgument(
            f"priorities: expected at least {before.priorities} (their number can only grow), got {new.priorities}"
        )
    for queue_shard in session.queue_shards(queue):
        if queue_shard.stored is None or queue_shard.stored.deleted:
            continue
        # made anew from what the shard has, should somebody else have changed another setting meanwhile
        call = write(queue_shard, "configure", lambda config: [replace(config, **changes).pack(), b""], deadline_s)
        config = yield from complete(call, partial(_remember, queue_shard))
        yield from _carry(session, session.queue_shards(queue), queue_shard.stored, deadline_s)
        return config
    raise QueueNotFound(f"queue {queue!r}: not found; create_queue makes it")


def delete_queue(session: Session, queue: str, deadline_s: float) -> Flow[bool]:
    """Deletes a queue and all its jobs on every shard; True if it was anywhere. Raises PartialDelete if a shard did not
    answer.
    """
    check_queue_name(queue)
    queue_shards = session.queue_shards(queue)
    results = yield from together([_delete(session, queue_shard, deadline_s) for queue_shard in queue_shards])
    errors = {
        queue_shard.shard.name: result
        for queue_shard, result in zip(queue_shards, results, strict=True)
        if isinstance(result, PinLaterError)
    }
    if errors:
        raise PartialDelete(queue, errors)
    return any(results)


def queue_names(session: Session, deadline_s: float) -> Flow[list[str]]:
    """The names of all queues, sorted. The registries are a hint; each name is checked."""
    names: set[str] = set()
    errors: list[PinLaterError] = []
    for shard in session.shards.values():
        command = ("SMEMBERS", registry_key(shard.name))
        answer = (yield from send(shard.server, command, deadline_s=deadline_s))[0]
        if isinstance(answer, list):
            names.update(name.decode() for name in answer)
        else:
            errors.append(answer.error if hasattr(answer, "error") else ServerError(f"{shard}: {answer}"))
    if len(errors) == len(session.shards):
        raise errors[0]
    found = []
    for name in sorted(names):
        try:
            configs = yield from _load_all(session.queue_shards(name), deadline_s)
        except FormatUnsupported as error:
            log.warning("queue %s is left out: %s", name, error)
            continue
        if _newest(configs) is not None:
            found.append(name)
    return found


def agreed_queue_shards(session: Session, queue: str) -> list[QueueShard]:
    """The places of a queue if all of them are known and agree; else none. Asks nobody."""
    queue_shards = session.queue_shards(queue)
    stored = queue_shards[0].stored
    if stored is None or stored.deleted:
        return []
    if len(queue_shards) == 1 or all(
        queue_shard.stored is stored or _agrees(queue_shard, stored) for queue_shard in queue_shards
    ):
        return queue_shards
    return []


def known_queue_shards(session: Session, queue: str, deadline_s: float) -> Flow[list[QueueShard]]:
    """The places of a queue that may be used now: configured alike, on servers that answered when last asked. Raises
    QueueNotFound.

    Costs nothing while all places are known and agree.
    """
    if agreed := agreed_queue_shards(session, queue):
        return agreed
    queue_shards = session.queue_shards(queue)
    check_queue_name(queue)
    now_s = time.monotonic()
    ask = [
        queue_shard
        for queue_shard in queue_shards
        if queue_shard.stored is None and queue_shard.silent_until_s <= now_s
    ]
    if all(queue_shard.stored is None for queue_shard in queue_shards):
        yield from _load_all(queue_shards, deadline_s, ask)
    else:
        yield from _ask(ask, min(deadline_s, now_s + PATIENCE_S))
    newest = _newest({queue_shard: queue_shard.stored for queue_shard in queue_shards})
    if newest is None:
        for queue_shard in queue_shards:
            queue_shard.stored = None
        raise QueueNotFound(f"queue {queue!r}: not found; create_queue makes it")
    yield from _carry(
        session,
        [queue_shard for queue_shard in queue_shards if queue_shard.silent_until_s <= now_s],
        newest,
        deadline_s,
    )
    return [
        queue_shard for queue_shard in queue_shards if queue_shard.stored is not None and not queue_shard.stored.deleted
    ]


def _agrees(queue_shard: QueueShard, stored: StoredConfig) -> bool:
    return queue_shard.stored is not None and queue_shard.stored.age == stored.age


def _newest(found: dict[QueueShard, StoredConfig | None]) -> StoredConfig | None:
    """The configuration of the last life and highest version; None if there is none, or if that one is a deletion."""
    latest = _latest(found)
    return None if latest is None or latest.deleted else latest


def _latest(found: dict[QueueShard, StoredConfig | None]) -> StoredConfig | None:
    """As _newest, or the deletion that is newer."""
    return max((stored for stored in found.values() if stored is not None), key=lambda stored: stored.age, default=None)


def _load_all(
    queue_shards: list[QueueShard], deadline_s: float, first: list[QueueShard] | None = None
) -> Flow[dict[QueueShard, StoredConfig | None]]:
    """Asks shards for a queue's configuration until one answers; those that do not are left out. Raises the first error
    if none does before the deadline, or can be expected to.

    first: those that are asked alone at first; none: all.
    """
    ask = first or queue_shards
    while True:
        until_s = min(deadline_s, time.monotonic() + PATIENCE_S) if len(queue_shards) > 1 else deadline_s
        found, failed = yield from _ask(ask, until_s)
        if found:
            return found
        waits = any(
            isinstance(error, ServerUnavailable) and queue_shard.shard.server.contacted for queue_shard, error in failed
        )
        if until_s == deadline_s or not waits:
            raise failed[0][1]
        ask = queue_shards


def _ask(
    queue_shards: list[QueueShard], deadline_s: float
) -> Flow[tuple[dict[QueueShard, StoredConfig | None], list[tuple[QueueShard, PinLaterError]]]]:
    """Raises FormatUnsupported, also where other shards answered: jobs that are there would be passed over."""
    results = yield from together([load_config(queue_shard, deadline_s) for queue_shard in queue_shards])
    found: dict[QueueShard, StoredConfig | None] = {}
    failed: list[tuple[QueueShard, PinLaterError]] = []
    for queue_shard, result in zip(queue_shards, results, strict=True):
        if isinstance(result, FormatUnsupported):
            raise result
        if isinstance(result, PinLaterError):
            failed.append((queue_shard, result))
            queue_shard.silent_until_s = time.monotonic() + ASK_AGAIN_S
        else:
            found[queue_shard] = result
    return found, failed


def _carry(session: Session, queue_shards: list[QueueShard], newest: StoredConfig, deadline_s: float) -> Flow[None]:
    """Brings every place that has an older configuration, or none, to the newest one."""
    behind = [
        queue_shard for queue_shard in queue_shards if queue_shard.stored is None or queue_shard.stored.age < newest.age
    ]
    results = yield from together([_carry_to(session, queue_shard, newest, deadline_s) for queue_shard in behind])
    for queue_shard, result in zip(behind, results, strict=True):
        if isinstance(result, PinLaterError):
            queue_shard.silent_until_s = time.monotonic() + ASK_AGAIN_S
            log.warning(
                "configuration of queue %s not brought to shard %s yet: %s",
                queue_shard.queue,
                queue_shard.shard.name,
                result,
            )


def _carry_to(session: Session, queue_shard: QueueShard, newest: StoredConfig, deadline_s: float) -> Flow[None]:
    if queue_shard.stored is not None and not queue_shard.stored.deleted and queue_shard.stored.epoch < newest.epoch:
        # it was away when the queue was deleted and made again: its jobs are of the deleted one
        yield from _delete(session, queue_shard, deadline_s, newest.epoch)
    if queue_shard.stored is None or queue_shard.stored.deleted:
        yield from _register(session, queue_shard, deadline_s)
        yield from create(queue_shard, newest.settings, newest.carried, deadline_s)
        return
    _remember(queue_shard, (yield from write(queue_shard, "configure", [newest.settings, newest.carried], deadline_s)))


def _remember(queue_shard: QueueShard, reply: list[Any]) -> QueueConfig:
    queue_shard.stored = StoredConfig.unpack(reply[2])
    return queue_shard.stored.config


def _register(session: Session, queue_shard: QueueShard, deadline_s: float) -> Flow[None]:
    yield from _registry_call("SADD", queue_shard, deadline_s)


def _registry_call(name: str, queue_shard: QueueShard, deadline_s: float) -> Flow[None]:
    command = (name, registry_key(queue_shard.shard.name), queue_shard.queue)
    answer = (yield from send(queue_shard.shard.server, command, deadline_s=deadline_s))[0]
    if isinstance(answer, ReplyError):
        raise from_reply(answer.text, f"{name} in the registry of {queue_shard.shard}")
    if not isinstance(answer, int):
        raise answer.error


def _delete(session: Session, queue_shard: QueueShard, deadline_s: float, below: int | None = None) -> Flow[bool]:
    """below: only what is of an earlier life than this; another client may have made the queue again meanwhile."""
    stored = yield from load_config(queue_shard, deadline_s)
    there = stored is not None and not stored.deleted
    if there:
        try:
            yield from write(queue_shard, "delete_queue", [b"" if below is None else below], deadline_s)
        except QueueNotFound:
            there = False
        except OutcomeUnknown as error:
            # a resend finds it gone: by the first try, or by somebody else; either way it is deleted
            if (yield from _is_there(queue_shard, deadline_s)):
                raise error
    queue_shard.stored = None
    yield from _registry_call("SREM", queue_shard, deadline_s)
    return there


def _is_there(queue_shard: QueueShard, deadline_s: float) -> Flow[bool]:
    stored = yield from load_config(queue_shard, deadline_s + 1.0)
    return stored is not None and not stored.deleted
