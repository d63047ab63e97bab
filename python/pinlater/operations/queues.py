"""Queues: creating, configuring, listing and deleting them. Flows only, no I/O.

Promises that a create does not change an existing queue, and that each call works while some shards are down.
queue_shards.py updates these shards later.
"""

from __future__ import annotations

import logging
import weakref
from dataclasses import replace
from functools import partial
from typing import Any, Final

from pinlater.model.errors import (
    FormatUnsupported,
    InvalidArgument,
    PartialDelete,
    PinLaterError,
    QueueNotFound,
    ServerError,
    from_reply,
)
from pinlater.model.queue_config import (
    CONFIG_FIELDS,
    QueueConfig,
    check_hard_mark,
    check_quarantine,
    check_queue_name,
    read_registry,
)
from pinlater.operations.backlog import Backlog
from pinlater.operations.home import check_jobs_at_home, with_home
from pinlater.operations.queue_shards import (
    Found,
    carry,
    check_healthy,
    delete_on,
    exists,
    latest_of,
    load_all,
    newest_of,
    not_found,
    remember,
)
from pinlater.store.effects import Flow, ReplyError, complete, send, together
from pinlater.store.keys import registry_key
from pinlater.store.requests import create, write
from pinlater.store.shards import QueueShard, Session, Shard

log: Final = logging.getLogger("pinlater.queues")

#: What queue_names() has logged: the session's id (a fork has another), and the message or what it is about.
_logged: Final = weakref.WeakKeyDictionary[Session, set[tuple[bytes, str]]]()


def recreate_lost(session: Session, queue: str, config: QueueConfig, deadline_s: float) -> Flow[None]:
    """Creates a queue that no server knows, for example after data loss. A deleted queue stays deleted."""
    found = yield from load_all(session.queue_shards(queue), deadline_s)
    if latest_of(found.values()) is None:
        yield from create_queue(session, queue, config, deadline_s)


def create_queue(session: Session, queue: str, config: QueueConfig, deadline_s: float) -> Flow[bool]:
    """Creates a queue on every shard that answers. Returns True if it is new. A queue that exists does not change."""
    check_queue_name(queue)
    if not isinstance(config, QueueConfig):
        raise InvalidArgument(f"config: expected a QueueConfig, got {config!r:.80}")
    check_quarantine(queue, config)
    check_hard_mark(config)
    config = with_home(session, queue, config)
    queue_shards = session.queue_shards(queue)
    found = yield from load_all(queue_shards, deadline_s)
    newest = newest_of(found.values())
    if newest is not None:
        yield from carry(queue_shards, newest, deadline_s)
        return False
    if left_over := [queue_shard for queue_shard in queue_shards if exists(queue_shard.stored)]:
        yield from _delete_left_over(left_over, found, deadline_s)
        found = yield from load_all(queue_shards, deadline_s)
    return (yield from _create_everywhere(queue_shards, config, found, deadline_s))


def _delete_left_over(left_over: list[QueueShard], found: Found, deadline_s: float) -> Flow[None]:
    """Deletes the data of a deleted queue from shards that were down. Its jobs must not appear in the new queue."""
    deletion = latest_of(found.values())
    assert deletion is not None
    for queue_shard in left_over:
        yield from delete_on(queue_shard, deadline_s, deletion.epoch)


def _create_everywhere(
    queue_shards: list[QueueShard], config: QueueConfig, found: Found, deadline_s: float
) -> Flow[bool]:
    """Creates a queue on the first shard that answers, and copies it from there to the others."""
    errors: list[PinLaterError] = []
    for queue_shard in queue_shards:
        try:
            created = yield from _create_on(queue_shard, config, found, deadline_s)
        except ServerError as error:
            errors.append(error)
            continue
        assert queue_shard.stored is not None
        yield from carry(queue_shards, queue_shard.stored, deadline_s)
        return created
    raise errors[0]


def _create_on(queue_shard: QueueShard, config: QueueConfig, found: Found, deadline_s: float) -> Flow[bool]:
    """Creates a queue on one shard, in the epoch after its deletion on any shard."""
    deletion, carried = latest_of(found.values()), b""
    if deletion is not None:
        version = (int.from_bytes(deletion.version, "big") + 1).to_bytes(8, "big")
        carried = replace(deletion, version=version, epoch=deletion.epoch + 1).carried
    try:
        return (yield from create(queue_shard, config.pack(), carried, deadline_s))
    except QueueNotFound:  # another client deleted it meanwhile
        return (yield from create(queue_shard, config.pack(), b"", deadline_s))


def queue_config(session: Session, queue: str, deadline_s: float) -> Flow[QueueConfig]:
    """The newest configuration of a queue. Raises QueueNotFound."""
    queue_shards = session.queue_shards(check_queue_name(queue))
    found = yield from load_all(queue_shards, deadline_s)
    newest = newest_of(found.values())
    if newest is None:
        raise not_found(queue)
    yield from carry(queue_shards, newest, deadline_s)
    return newest.config


def configure_queue(session: Session, queue: str, changes: dict[str, Any], deadline_s: float) -> Flow[QueueConfig]:
    """Changes settings of a queue: compare-and-set on the first shard, then a copy to the others. Returns the new
    configuration.
    """
    for name in changes:
        if name not in CONFIG_FIELDS:
            raise InvalidArgument(f"queue configuration: expected one of {', '.join(CONFIG_FIELDS)}, got {name!r}")
    if "rate" in changes and changes["rate"] is None:
        changes = {"burst": None, **changes}
    if "refuse_enqueue" in changes:  # a drain ends with the setting that it made
        changes = {"open_when_empty": False, **changes}
    _check_values(changes)
    before = yield from queue_config(session, queue, deadline_s)
    after = with_home(session, queue, replace(before, **changes), before.home)
    _check_change(queue, before, after)
    gets_places = after.max_running is not None and (before.max_running is None or before.home != after.home)
    if gets_places:
        yield from check_jobs_at_home(session, queue, after, deadline_s)
    if after.home != before.home:
        changes = {**changes, "home": after.home}
    queue_shards = session.queue_shards(queue)
    first = next((queue_shard for queue_shard in queue_shards if exists(queue_shard.stored)), None)
    if first is None:
        raise not_found(queue)
    # the change applies to the shard's current configuration: another client may have changed another setting
    call = write(first, "configure", lambda config: [replace(config, **changes).pack(), b""], deadline_s)
    config = yield from complete(call, partial(remember, first))
    assert first.stored is not None
    yield from carry(queue_shards, first.stored, deadline_s)
    if gets_places:
        yield from _check_late_jobs(session, queue, before, config, deadline_s)
    return config


def _check_late_jobs(
    session: Session, queue: str, before: QueueConfig, after: QueueConfig, deadline_s: float
) -> Flow[None]:
    """Looks again for jobs on other shards, which came while the queue got max_running. Takes it back if there are."""
    try:
        yield from check_jobs_at_home(session, queue, after, deadline_s)
    except InvalidArgument:
        changes = {"max_running": before.max_running, "home": before.home}
        yield from configure_queue(session, queue, changes, deadline_s)
        raise


def _check_values(changes: dict[str, Any]) -> None:
    """Raises InvalidArgument for a bad value, before anything is sent."""
    alone = {name: value for name, value in changes.items() if name != "burst" or value is None or "rate" in changes}
    replace(QueueConfig(), **alone)


def _check_change(queue: str, before: QueueConfig, after: QueueConfig) -> None:
    check_quarantine(queue, after)
    check_hard_mark(after)
    if after.priorities < before.priorities:
        raise InvalidArgument(
            f"priorities: expected at least {before.priorities} (their number can only grow), got {after.priorities}"
        )


def delete_queue(session: Session, queue: str, deadline_s: float) -> Flow[bool]:
    """Deletes a queue and all its jobs on every shard. Returns True if any shard had it. Raises PartialDelete if a
    shard did not answer.
    """
    check_queue_name(queue)
    queue_shards = session.queue_shards(queue)
    results = yield from together([_delete_at(session, queue_shard, deadline_s) for queue_shard in queue_shards])
    errors = {
        queue_shard.shard.name: result
        for queue_shard, result in zip(queue_shards, results, strict=True)
        if isinstance(result, PinLaterError)
    }
    if errors:
        raise PartialDelete(queue, errors)
    return any(results)


def _delete_at(session: Session, queue_shard: QueueShard, deadline_s: float) -> Flow[bool]:
    delete = delete_on(queue_shard, deadline_s)
    backlog: Backlog | None = session.backlog
    return (yield from delete if backlog is None else backlog.deletion(queue_shard, delete, deadline_s))


def all_queue_names(session: Session, deadline_s: float) -> Flow[list[str]]:
    """As queue_names, but raises ShardUnhealthy if a shard is: it may know names that the others do not."""
    check_healthy(session)
    return (yield from queue_names(session, deadline_s))


def queue_names(session: Session, deadline_s: float) -> Flow[list[str]]:
    """The names of all queues, sorted. A registry can name a queue that no longer exists, so each name is checked.

    A queue in an unsupported format is left out, and so is what is no name. A session logs this once for each queue
    shard, and each registry. Shards that do not answer are passed over.
    """
    found = yield from together([registered_on(session, shard, deadline_s) for shard in session.shards.values()])
    errors = [each for each in found if isinstance(each, PinLaterError)]
    if len(errors) == len(found):
        raise errors[0]
    existing = []
    for name in sorted(set[str]().union(*(each for each in found if not isinstance(each, PinLaterError)))):
        try:
            stored = yield from load_all(session.queue_shards(name), deadline_s)
        except FormatUnsupported as error:
            _log_once(session, f"queue {name} is left out: {error}")
            continue
        if newest_of(stored.values()) is not None:
            existing.append(name)
    return existing


def _log_once(session: Session, message: str, about: str = "") -> None:
    """about: what stands for the message, if that may change."""
    logged, entry = _logged.setdefault(session, set()), (session.id, about or message)
    if entry not in logged:
        logged.add(entry)
        log.warning("%s", message)


def registered_on(session: Session, shard: Shard, deadline_s: float) -> Flow[set[str]]:
    """The names in the registry of a shard."""
    answer = (yield from send(shard.server, ("SMEMBERS", registry_key(shard.name)), deadline_s=deadline_s))[0]
    if isinstance(answer, ReplyError):
        raise from_reply(answer.text, f"SMEMBERS of the registry of {shard}")
    if not isinstance(answer, list):
        raise answer.error
    names, others = read_registry(answer)
    if others:
        where = f"the registry of {shard}"
        _log_once(session, f"{where} has {len(others):,} entries that are no queue names: {others[0]!r:.60}", where)
    return names
