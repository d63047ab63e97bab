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
    if _latest((yield from _load_all(session.places(queue), deadline_s))) is None:
        yield from create_queue(session, queue, config, deadline_s)


def create_queue(session: Session, queue: str, config: QueueConfig, deadline_s: float) -> Flow[bool]:
    """Makes a queue on every shard that answers; True if it was not there before. Changes nothing of a queue that
    exists.
    """
    check_queue_name(queue)
    if not isinstance(config, QueueConfig):
        raise InvalidArgument(f"config: expected a QueueConfig, got {config!r:.80}")
    check_quarantine(queue, config)
    places = session.places(queue)
    found = yield from _load_all(places, deadline_s)
    newest = _newest(found)
    if newest is not None:
        yield from _carry(session, places, newest, deadline_s)
        return False
    # it was down when the queue was deleted: what it still has of the old queue must not come back with the new one
    if left_over := [place for place in places if place.stored is not None and not place.stored.deleted]:
        deletion = _latest(found)
        assert deletion is not None
        for place in left_over:
            yield from _delete(session, place, deadline_s, deletion.life)
        found = yield from _load_all(places, deadline_s)
    errors: list[PinLaterError] = []
    for place in places:
        try:
            yield from _register(session, place, deadline_s)
            made = yield from _make(place, config, found, deadline_s)
        except ServerError as error:
            errors.append(error)
            continue
        assert place.stored is not None
        yield from _carry(session, places, place.stored, deadline_s)
        return made
    raise errors[0]


def _make(
    place: QueueShard, config: QueueConfig, found: dict[QueueShard, StoredConfig | None], deadline_s: float
) -> Flow[bool]:
    """Makes a queue on the first shard, in the life after its deletion on any other."""
    gone, after = _latest(found), b""
    if gone is not None:
        version = (int.from_bytes(gone.version, "big") + 1).to_bytes(8, "big")
        after = replace(gone, version=version, life=gone.life + 1).carried
    try:
        return (yield from create(place, config.pack(), after, deadline_s))
    except QueueNotFound:  # deleted once more meanwhile
        return (yield from create(place, config.pack(), b"", deadline_s))


def queue_config(session: Session, queue: str, deadline_s: float) -> Flow[QueueConfig]:
    """The newest configuration of a queue. Raises QueueNotFound."""
    places = session.places(check_queue_name(queue))
    found = yield from _load_all(places, deadline_s)
    newest = _newest(found)
    if newest is None:
        raise QueueNotFound(f"queue {queue!r}: not found; create_queue makes it")
    yield from _carry(session, places, newest, deadline_s)
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
    if new.levels < before.levels:
        raise InvalidArgument(f"levels: expected at least {before.levels} (levels can only grow), got {new.levels}")
    for place in session.places(queue):
        if place.stored is None or place.stored.deleted:
            continue
        # made anew from what the shard has, should somebody else have changed another setting meanwhile
        call = write(place, "configure", lambda config: [replace(config, **changes).pack(), b""], deadline_s)
        config = yield from complete(call, partial(_remember, place))
        yield from _carry(session, session.places(queue), place.stored, deadline_s)
        return config
    raise QueueNotFound(f"queue {queue!r}: not found; create_queue makes it")


def delete_queue(session: Session, queue: str, deadline_s: float) -> Flow[bool]:
    """Deletes a queue and all its jobs on every shard; True if it was anywhere. Raises PartialDelete if a shard did not
    answer.
    """
    check_queue_name(queue)
    places = session.places(queue)
    results = yield from together([_delete(session, place, deadline_s) for place in places])
    errors = {
        place.shard.name: result
        for place, result in zip(places, results, strict=True)
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
        configs = yield from _load_all(session.places(name), deadline_s)
        if _newest(configs) is not None:
            found.append(name)
    return found


def agreed_places(session: Session, queue: str) -> list[QueueShard]:
    """The places of a queue if all of them are known and agree; else none. Asks nobody."""
    places = session.places(queue)
    stored = places[0].stored
    if stored is None or stored.deleted:
        return []
    if len(places) == 1 or all(place.stored is stored or _agrees(place, stored) for place in places):
        return places
    return []


def known_places(session: Session, queue: str, deadline_s: float) -> Flow[list[QueueShard]]:
    """The places of a queue that may be used now: configured alike, on servers that answered when last asked. Raises
    QueueNotFound.

    Costs nothing while all places are known and agree.
    """
    if agreed := agreed_places(session, queue):
        return agreed
    places = session.places(queue)
    check_queue_name(queue)
    now_s = time.monotonic()
    ask = [place for place in places if place.stored is None and place.silent_until_s <= now_s]
    if all(place.stored is None for place in places):
        yield from _load_all(places, deadline_s, ask)
    else:
        yield from _ask(ask, min(deadline_s, now_s + PATIENCE_S))
    newest = _newest({place: place.stored for place in places})
    if newest is None:
        for place in places:
            place.stored = None
        raise QueueNotFound(f"queue {queue!r}: not found; create_queue makes it")
    yield from _carry(session, [place for place in places if place.silent_until_s <= now_s], newest, deadline_s)
    return [place for place in places if place.stored is not None and not place.stored.deleted]


def _agrees(place: QueueShard, stored: StoredConfig) -> bool:
    return place.stored is not None and place.stored.age == stored.age


def _newest(found: dict[QueueShard, StoredConfig | None]) -> StoredConfig | None:
    """The configuration of the last life and highest version; None if there is none, or if that one is a deletion."""
    latest = _latest(found)
    return None if latest is None or latest.deleted else latest


def _latest(found: dict[QueueShard, StoredConfig | None]) -> StoredConfig | None:
    """As _newest, or the deletion that is newer."""
    return max((stored for stored in found.values() if stored is not None), key=lambda stored: stored.age, default=None)


def _load_all(
    places: list[QueueShard], deadline_s: float, first: list[QueueShard] | None = None
) -> Flow[dict[QueueShard, StoredConfig | None]]:
    """Asks shards for a queue's configuration until one answers; those that do not are left out. Raises the first error
    if none does before the deadline, or can be expected to.

    first: those that are asked alone at first; none: all.
    """
    ask = first or places
    while True:
        until_s = min(deadline_s, time.monotonic() + PATIENCE_S) if len(places) > 1 else deadline_s
        found, failed = yield from _ask(ask, until_s)
        if found:
            return found
        waits = any(isinstance(error, ServerUnavailable) and place.shard.server.contacted for place, error in failed)
        if until_s == deadline_s or not waits:
            raise failed[0][1]
        ask = places


def _ask(
    places: list[QueueShard], deadline_s: float
) -> Flow[tuple[dict[QueueShard, StoredConfig | None], list[tuple[QueueShard, PinLaterError]]]]:
    results = yield from together([load_config(place, deadline_s) for place in places])
    found: dict[QueueShard, StoredConfig | None] = {}
    failed: list[tuple[QueueShard, PinLaterError]] = []
    for place, result in zip(places, results, strict=True):
        if isinstance(result, PinLaterError):
            failed.append((place, result))
            place.silent_until_s = time.monotonic() + ASK_AGAIN_S
        else:
            found[place] = result
    return found, failed


def _carry(session: Session, places: list[QueueShard], newest: StoredConfig, deadline_s: float) -> Flow[None]:
    """Brings every place that has an older configuration, or none, to the newest one."""
    behind = [place for place in places if place.stored is None or place.stored.age < newest.age]
    results = yield from together([_carry_to(session, place, newest, deadline_s) for place in behind])
    for place, result in zip(behind, results, strict=True):
        if isinstance(result, PinLaterError):
            place.silent_until_s = time.monotonic() + ASK_AGAIN_S
            log.warning(
                "configuration of queue %s not brought to shard %s yet: %s", place.queue, place.shard.name, result
            )


def _carry_to(session: Session, place: QueueShard, newest: StoredConfig, deadline_s: float) -> Flow[None]:
    if place.stored is not None and not place.stored.deleted and place.stored.life < newest.life:
        # it was away when the queue was deleted and made again: its jobs are of the deleted one
        yield from _delete(session, place, deadline_s, newest.life)
    if place.stored is None or place.stored.deleted:
        yield from _register(session, place, deadline_s)
        yield from create(place, newest.config.pack(), newest.carried, deadline_s)
        return
    _remember(place, (yield from write(place, "configure", [newest.config.pack(), newest.carried], deadline_s)))


def _remember(place: QueueShard, reply: list[Any]) -> QueueConfig:
    place.stored = StoredConfig.unpack(reply[2])
    return place.stored.config


def _register(session: Session, place: QueueShard, deadline_s: float) -> Flow[None]:
    yield from _registry_call("SADD", place, deadline_s)


def _registry_call(name: str, place: QueueShard, deadline_s: float) -> Flow[None]:
    command = (name, registry_key(place.shard.name), place.queue)
    answer = (yield from send(place.shard.server, command, deadline_s=deadline_s))[0]
    if isinstance(answer, ReplyError):
        raise from_reply(answer.text, f"{name} in the registry of {place.shard}")
    if not isinstance(answer, int):
        raise answer.error


def _delete(session: Session, place: QueueShard, deadline_s: float, below: int | None = None) -> Flow[bool]:
    """below: only what is of an earlier life than this; another client may have made the queue again meanwhile."""
    stored = yield from load_config(place, deadline_s)
    there = stored is not None and not stored.deleted
    if there:
        try:
            yield from write(place, "delete_queue", [b"" if below is None else below], deadline_s)
        except QueueNotFound:
            there = False
        except OutcomeUnknown as error:
            # a resend finds it gone: by the first try, or by somebody else; either way it is deleted
            if (yield from _is_there(place, deadline_s)):
                raise error
    place.stored = None
    yield from _registry_call("SREM", place, deadline_s)
    return there


def _is_there(place: QueueShard, deadline_s: float) -> Flow[bool]:
    stored = yield from load_config(place, deadline_s + 1.0)
    return stored is not None and not stored.deleted
