"""Shards that come and go while a client runs. Flows only, no I/O.

Promises:
- An added shard that has a later epoch of a queue than the shards that stay is refused, and nothing changes. Else their
  jobs would be removed, as those of a deleted queue.
- A change that adds no shard asks no server, so that a silent one does not delay it.
Risks: a queue that is created or deleted between the check and the change is not seen. Jobs on a removed shard are
counted once, just after it was removed; a call under way may still add one.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from pinlater.model.errors import InvalidArgument, PinLaterError, QueueNotFound, ServerError, ServerUnavailable
from pinlater.model.jobs import CountsByState
from pinlater.operations.inspect import count_at
from pinlater.operations.opening import unfinished
from pinlater.operations.queue_shards import PATIENCE_S, exists
from pinlater.operations.queues import registered_on
from pinlater.store.effects import Flow, Leave, together
from pinlater.store.requests import load_config
from pinlater.store.shards import ChosenShards, QueueShard, Session, Shard

log: Final = logging.getLogger("pinlater.shards")

#: The jobs of so many queues of a removed shard are counted at a time.
QUEUES_AT_ONCE: Final = 100


def change_shards(session: Session, chosen: ChosenShards, deadline_s: float) -> Flow[None]:
    """Uses these shards from now on; calls under way end with those that they have.

    The first use of a queue brings its configuration to an added shard. The log has a warning with the number of jobs
    on each removed shard. Raises InvalidArgument, and ServerUnavailable if an added shard or all those that stay do not
    answer; then nothing has changed.
    """
    added = session.candidates(chosen)
    try:
        yield from _check_added(session, chosen, added, deadline_s)
    except PinLaterError:
        for server in dict.fromkeys(shard.server for shard in added if shard.server not in session.servers):
            server.is_used = False
            yield Leave(server)
        raise
    before = session.shards
    left = session.change_shards(chosen)
    log.info("shards: %s", chosen)
    for server in left:
        yield Leave(server)
    for name, shard in before.items():
        if session.shards.get(name) is not shard:
            yield from _warn_of_jobs(session, shard, deadline_s)


def _check_added(session: Session, chosen: ChosenShards, added: list[Shard], deadline_s: float) -> Flow[None]:
    """Raises InvalidArgument if an added shard has a later epoch of a queue than the shards that stay."""
    names = {shard.name for shard in added}
    kept = [shard for name, shard in session.shards.items() if name in chosen and name not in names]
    if not added or not kept:
        return
    until_s = min(deadline_s, time.monotonic() + PATIENCE_S) if len(kept) > 1 else deadline_s
    registries = yield from together([registered_on(session, shard, until_s) for shard in kept])
    answering = {shard: found for shard, found in zip(kept, registries, strict=True) if isinstance(found, set)}
    if not answering:
        what = f"the shards that stay do not answer, so those that are added can not be checked: {registries[0]}"
        raise ServerUnavailable(f"shards: {what}; nothing has changed")
    queues = sorted(set[str]().union(*answering.values()))
    for first in range(0, len(queues), QUEUES_AT_ONCE):
        yield from _compare(session, queues[first : first + QUEUES_AT_ONCE], [*answering], added, deadline_s)


def _compare(
    session: Session, queues: list[str], kept: list[Shard], added: list[Shard], deadline_s: float
) -> Flow[None]:
    """Compares the epochs of some queues. Raises as _check_added."""
    # not those of the session: it does not use the added ones yet
    asked = [QueueShard(queue, shard, session.id) for queue in queues for shard in (*kept, *added)]
    results = yield from together([load_config(queue_shard, deadline_s) for queue_shard in asked])
    count = len(kept) + len(added)
    for first in range(0, len(asked), count):
        of_queue = list(zip(asked, results, strict=True))[first : first + count]
        known = [queue_shard for queue_shard, _ in of_queue[: len(kept)] if queue_shard.stored is not None]
        newest = max(known, key=_epoch, default=None)
        for queue_shard, result in of_queue[len(kept) :]:
            if isinstance(result, PinLaterError):
                kind = ServerUnavailable if isinstance(result, ServerUnavailable) else ServerError
                raise kind(f"shards: {queue_shard} can not be checked: {result}; nothing has changed")
            if newest is not None and exists(newest.stored) and _epoch(queue_shard) > _epoch(newest):
                raise _later_epoch(queue_shard, newest)


def _epoch(queue_shard: QueueShard) -> int:
    return 0 if queue_shard.stored is None else queue_shard.stored.epoch


def _later_epoch(added: QueueShard, kept: QueueShard) -> InvalidArgument:
    name = added.shard.name
    return InvalidArgument(
        f"shards: {added} has epoch {_epoch(added)}, {kept.shard} has epoch {_epoch(kept)}: the jobs of the earlier "
        f"epoch would be removed; nothing has changed. Shard {name} has data of an earlier use: give it a name that "
        f"its server has not had, or a server without keys pl:{{{name}}}:* and pl:{{…/{name}}}:*"
    )


def _warn_of_jobs(session: Session, shard: Shard, deadline_s: float) -> Flow[None]:
    """Logs what is left on a removed shard."""
    try:
        names = sorted((yield from registered_on(session, shard, deadline_s)))
    except PinLaterError as error:
        log.warning("%s was removed; its jobs can not be counted: %s", shard, error)
        return
    # not those of the session: the name may be that of another shard by now
    queue_shards = [QueueShard(name, shard, session.id) for name in names]
    found: list[list[CountsByState] | PinLaterError] = []
    for first in range(0, len(queue_shards), QUEUES_AT_ONCE):
        some = queue_shards[first : first + QUEUES_AT_ONCE]
        found += yield from together([count_at(queue_shard, deadline_s) for queue_shard in some])
    total = CountsByState()
    for queue_shard, result in zip(queue_shards, found, strict=True):
        if isinstance(result, QueueNotFound):
            continue
        if isinstance(result, PinLaterError):
            log.warning("%s was removed; its jobs can not be counted: %s", queue_shard, result)
            continue
        total += sum(result, CountsByState())
        if queue_shard.stored is not None and queue_shard.stored.config.home == shard.name:
            what = "queue %s: shard %s, which counts for its limits, was removed: claims fail until it has another home"
            log.warning(what, queue_shard.queue, shard.name)
    if unfinished(total) or total.failed:
        what = "%s was removed with %d unfinished and %d failed jobs: nobody claims them until it is back"
        log.warning(what, shard, unfinished(total), total.failed)
