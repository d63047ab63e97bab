"""Bringing failed jobs back and removing jobs: retry, delete, purge. Flows only, no I/O.

Promises bounded script calls however many jobs there are. Risks: a large call is many small ones; one that fails leaves
the rest undone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from pinlater import _core
from pinlater.config import check_integer
from pinlater.enqueuing import MAX_BATCH, when
from pinlater.errors import checked
from pinlater.exchange import write
from pinlater.flows import Argument, Flow, all_of, complete
from pinlater.inspecting import check_priority
from pinlater.jobs import NewJob, State
from pinlater.queues import known_places
from pinlater.shards import QueueShard, Session


def retry_failed(
    session: Session,
    queue: str,
    priority: int | None,
    limit: int,
    attempts: int,
    run_after_ms: int | None,
    delay_ms: int | None,
    deadline_s: float,
) -> Flow[int]:
    """Puts up to `limit` failed jobs back in line, highest priority and oldest first; returns how many."""
    places = yield from known_places(session, queue, deadline_s)
    levels = check_priority(priority, places)
    check_integer("limit", limit, 0, 2**63 - 1)
    # the same limits as a new job's, from the same place
    checked(lambda: NewJob(b"", attempts=attempts, run_after_ms=run_after_ms, delay_ms=delay_ms))
    kind, ms = when(run_after_ms, delay_ms)
    return (
        yield from _in_parts(
            places, levels, "retry_failed", lambda level, most: [level, most, attempts, kind, ms], limit, deadline_s
        )
    )


def retry_jobs(session: Session, descriptors: Iterable[str], attempts: int, deadline_s: float) -> Flow[int]:
    """Puts the named failed jobs back in line; returns how many were failed."""
    checked(lambda: NewJob(b"", attempts=attempts))
    flows = []
    for place, level, ids in _by_level(session, descriptors):
        # those that a call has put back are not failed any more: the next one passes over them
        arguments: list[Argument] = [level, 0, attempts, 0, 0, *ids]
        flows.append(_in_parts([place], [level], "retry_failed", partial(_always, arguments), len(ids), deadline_s))
    return (yield from all_of(flows, sum))


def delete_jobs(
    session: Session, queue: str, state: State | str, priority: int | None, limit: int, deadline_s: float
) -> Flow[int]:
    """Removes up to `limit` jobs of a state, oldest first (running ones in no order); returns how many. A running one's
    ack will be refused.
    """
    places = yield from known_places(session, queue, deadline_s)
    levels = check_priority(priority, places)
    code = State.of(state).code
    check_integer("limit", limit, 0, 2**63 - 1)
    return (
        yield from _in_parts(places, levels, "delete_jobs", lambda level, most: [code, level, most], limit, deadline_s)
    )


def _in_parts(
    places: list[QueueShard],
    levels: list[int],
    verb: str,
    arguments: Callable[[int, int], list[Argument]],
    limit: int,
    deadline_s: float,
) -> Flow[int]:
    """Calls a script on each place, level by level, as long as it says that it left something, for `limit` jobs at
    most; returns how many. arguments: of a level and the most jobs of one call.
    """
    done, more = 0, True

    def add(before: int, reply: list[Any]) -> int:
        nonlocal more
        changed, left = struct.unpack(">IB", reply[2])
        more = bool(left and changed)
        return int(before + changed)

    for level in levels:
        for place in places:
            more = True
            while more and done < limit:
                call = write(place, verb, arguments(level, min(limit - done, MAX_BATCH)), deadline_s)
                # resolve() of an unknown outcome tells what was done up to then
                done = yield from complete(call, partial(add, done))
    return done


def _always(arguments: list[Argument], _level: int, _most: int) -> list[Argument]:
    return arguments


def delete_named(session: Session, descriptors: Iterable[str], deadline_s: float) -> Flow[int]:
    """Removes jobs by descriptor, whatever their state; returns how many were there."""
    flows = [
        complete(
            write(place, "delete_jobs", ["", level, 0, *ids], deadline_s),
            lambda reply: int(struct.unpack(">IB", reply[2])[0]),
        )
        for place, level, ids in _by_level(session, descriptors)
    ]
    return (yield from all_of(flows, sum))


def purge(session: Session, queue: str, deadline_s: float) -> Flow[int]:
    """Removes every job of a queue in every state; the queue stays. Returns how many."""
    total = 0
    for state in State:
        total += yield from delete_jobs(session, queue, state, None, 2**62, deadline_s)
    return total


def reset_lost(session: Session, queue: str, deadline_s: float) -> Flow[int]:
    """Counts anew the ids that claims find without a record, on every shard; returns how many there were."""
    places = yield from known_places(session, queue, deadline_s)
    flows = [
        complete(write(place, "reset_lost", [], deadline_s), lambda reply: int.from_bytes(reply[2], "big"))
        for place in places
    ]
    return (yield from all_of(flows, sum))


def _by_level(session: Session, descriptors: Iterable[str]) -> list[tuple[QueueShard, int, list[bytes]]]:
    calls: dict[tuple[str, str, int], list[bytes]] = {}
    parts: list[tuple[QueueShard, int, list[bytes]]] = []
    for queue, shard, levels, ids, _ in checked(_core.group_descriptors, list(descriptors)):
        calls.clear()
        for level, id_ in zip(levels, ids, strict=True):
            calls.setdefault((queue, shard, level), []).append(id_)
        parts += [(session.place(queue, shard), level, chosen) for (_, _, level), chosen in calls.items()]
    return parts
