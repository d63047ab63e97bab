"""Operations of operators on jobs: retry failed jobs, delete, purge. Flows only, no I/O.

Promises that each script call handles a limited number of jobs. Risks: a large operation makes many script calls. If
one of them fails, the operation stops, and the error has the number of jobs that are done.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from typing import Any, Final

import pinlater._core as _core
from pinlater.model.errors import OutcomeUnknown, PartialOutcome, PinLaterError, checked
from pinlater.model.jobs import NewJob, State
from pinlater.model.queue_config import check_integer
from pinlater.operations.backlog import Backlog
from pinlater.operations.enqueue import MAX_BATCH, when
from pinlater.operations.inspect import check_priority
from pinlater.operations.queue_shards import every_queue_shard, known_queue_shards
from pinlater.store.effects import Argument, Flow, all_of, complete
from pinlater.store.keys import cancel_channel
from pinlater.store.requests import write
from pinlater.store.shards import QueueShard, Session

#: Begins the reply of retry_failed and delete_jobs: how many jobs, whether there are more.
_COUNT: Final = struct.Struct(">IB")


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
    """Moves up to `limit` failed jobs back to pending, highest priority and oldest first. Returns how many."""
    queue_shards = yield from every_queue_shard(session, queue, deadline_s)
    priorities = check_priority(priority, queue_shards)
    check_integer("limit", limit, 0, 2**63 - 1)
    # the arguments have the same limits as those of a new job
    checked(lambda: NewJob(b"", attempts=attempts, run_after_ms=run_after_ms, delay_ms=delay_ms))
    kind, ms = when(run_after_ms, delay_ms)
    return (
        yield from _in_rounds(
            product(priorities, queue_shards),
            "retry_failed",
            lambda _, priority, most: [priority, most, attempts, kind, ms],
            limit,
            deadline_s,
        )
    )


def retry_jobs(
    session: Session,
    descriptors: Iterable[str],
    attempts: int,
    run_after_ms: int | None,
    delay_ms: int | None,
    deadline_s: float,
) -> Flow[int]:
    """Moves the named failed jobs back to pending. Returns how many of them were failed."""
    checked(lambda: NewJob(b"", attempts=attempts, run_after_ms=run_after_ms, delay_ms=delay_ms))
    kind, ms = when(run_after_ms, delay_ms)
    calls = _by_priority(session, list(descriptors))
    flows = [
        _retry_named(queue_shard, priority, [priority, 0, attempts, kind, ms, *ids], deadline_s)
        for queue_shard, priority, ids, _ in calls
    ]
    return (yield from all_of(flows, sum, lambda index: calls[index][3]))


def _retry_named(
    queue_shard: QueueShard, priority: int, arguments: list[Argument], deadline_s: float, done: int = 0
) -> Flow[int]:
    """Works in rounds. Jobs that one round moved are no longer failed, so the next round skips them.

    If a later round fails, it raises OutcomeUnknown, and resolve() does the rest.
    """
    rounds = _in_rounds([(priority, queue_shard)], "retry_failed", partial(_always, arguments), 2**62, deadline_s, done)
    try:
        return (yield from rounds)
    except PartialOutcome as error:
        by_now: int = error.result
        raise OutcomeUnknown(
            str(error), lambda deadline_s: _retry_named(queue_shard, priority, arguments, deadline_s, by_now)
        ) from None


def delete_jobs(
    session: Session, queue: str, state: State | str, priority: int | None, limit: int, deadline_s: float
) -> Flow[int]:
    """Removes up to `limit` jobs of a state, oldest first (running ones in no order). Returns how many.

    The worker of a running job cancels it if it can. The ack of that job is refused.
    """
    return (yield from _delete_states(session, queue, [State.of(state)], priority, limit, deadline_s))


def delete_named(
    session: Session, descriptors: Iterable[str], deadline_s: float, state: State | None = None
) -> Flow[int]:
    """Removes jobs by descriptor. Returns how many existed. state: only those in this state; None: in any."""
    calls = _by_priority(session, list(descriptors))
    flows = [
        complete(_delete_everywhere(session, queue_shard, state, priority, ids, deadline_s), len)
        for queue_shard, priority, ids, _ in calls
    ]
    return (yield from all_of(flows, sum, lambda index: calls[index][3]))


def _delete_everywhere(
    session: Session, queue_shard: QueueShard, state: State | None, priority: int, ids: list[bytes], deadline_s: float
) -> Flow[set[bytes]]:
    """Removes jobs of one priority in Redis and in the backlog. Returns the ids of those that existed."""
    removed = yield from _delete_in_redis(queue_shard, state, priority, ids, deadline_s)
    backlog: Backlog | None = session.backlog if state in (None, State.PENDING) else None
    seen = None
    while backlog is not None and len(removed) < len(ids):
        archived, now_seen = yield from backlog.delete_named(queue_shard, priority, ids, deadline_s)
        removed |= archived
        if now_seen == seen:
            break
        seen = now_seen
        removed |= yield from _delete_in_redis(queue_shard, state, priority, ids, deadline_s)
    return removed


def _delete_in_redis(
    queue_shard: QueueShard, state: State | None, priority: int, ids: list[bytes], deadline_s: float
) -> Flow[set[bytes]]:
    def found(reply: list[Any]) -> set[bytes]:
        return {id_ for id_, flag in zip(ids, reply[2][_COUNT.size :], strict=False) if flag}

    code: Argument = "" if state is None else state.code
    arguments: list[Argument] = [code, priority, 0, _cancel_channel(queue_shard), *ids]
    return (yield from complete(write(queue_shard, "delete_jobs", arguments, deadline_s), found))


def purge(session: Session, queue: str, deadline_s: float) -> Flow[int]:
    """Removes every job of a queue. The queue stays. Returns how many."""
    return (yield from _delete_states(session, queue, list(State), None, 2**62, deadline_s))


def reset_lost(session: Session, queue: str, deadline_s: float) -> Flow[int]:
    """Sets the count of ids that claims found without a record to 0, on every shard. Returns what it was."""
    queue_shards = yield from known_queue_shards(session, queue, deadline_s)
    flows = [complete(write(queue_shard, "reset_lost", [], deadline_s), _u32) for queue_shard in queue_shards]
    return (yield from all_of(flows, sum, lambda _: []))


def _delete_states(
    session: Session, queue: str, states: list[State], priority: int | None, limit: int, deadline_s: float
) -> Flow[int]:
    queue_shards = yield from every_queue_shard(session, queue, deadline_s)
    priorities = check_priority(priority, queue_shards)
    check_integer("limit", limit, 0, 2**63 - 1)
    done = 0
    for state in states:
        arguments = partial(_of_state, state.code)
        parts = list(product(priorities, queue_shards))
        done = yield from _in_rounds(parts, "delete_jobs", arguments, limit, deadline_s, done)
        if session.backlog is not None and state is State.PENDING:
            done = yield from _delete_in_backlog(session, parts, limit, deadline_s, done)
            # jobs may have come back to Redis meanwhile
            done = yield from _in_rounds(parts, "delete_jobs", arguments, limit, deadline_s, done)
    return done


def _delete_in_backlog(
    session: Session, parts: Iterable[tuple[int, QueueShard]], limit: int, deadline_s: float, done: int
) -> Flow[int]:
    """Removes pending jobs that are not in Redis, for up to `limit` jobs with `done`. Returns how many, with `done`."""
    for priority, queue_shard in parts:
        more = True
        while more and done < limit:
            most = min(limit - done, MAX_BATCH)
            call = session.backlog.delete_pending(queue_shard, priority, most, deadline_s)
            before, done = done, (yield from in_round(done, call))
            more = done > before
    return done


def _of_state(code: int, queue_shard: QueueShard, priority: int, most: int) -> list[Argument]:
    return [code, priority, most, _cancel_channel(queue_shard)]


def _cancel_channel(queue_shard: QueueShard) -> bytes:
    return cancel_channel(queue_shard.queue, queue_shard.shard.name)


def _always(arguments: list[Argument], _queue_shard: QueueShard, _priority: int, _most: int) -> list[Argument]:
    return arguments


def _in_rounds(
    parts: Iterable[tuple[int, QueueShard]],
    verb: str,
    arguments: Callable[[QueueShard, int, int], list[Argument]],
    limit: int,
    deadline_s: float,
    done: int = 0,
) -> Flow[int]:
    """Calls a script for each queue shard and priority until no job is left there, for up to `limit` jobs. Returns how
    many, including `done`.

    arguments: makes the arguments of one call. It gets a queue shard, a priority and the call's limit of jobs.
    done: the number of jobs that earlier calls changed.
    """
    more = True

    def changed(reply: list[Any]) -> int:
        nonlocal more
        count, left = _COUNT.unpack_from(reply[2])
        more = bool(left and count)
        return int(count)

    for priority, queue_shard in parts:
        more = True
        while more and done < limit:
            call = write(queue_shard, verb, arguments(queue_shard, priority, min(limit - done, MAX_BATCH)), deadline_s)
            done = yield from in_round(done, complete(call, changed))
    return done


def in_round(done: int, call: Flow[int]) -> Flow[int]:
    """One round of a large call. Returns the number of jobs so far, including this round.

    If this round certainly failed, PartialOutcome has the number of jobs of the earlier rounds. If its outcome is
    unknown, resolve() adds that number.
    """
    try:
        return (yield from complete(call, lambda count: done + count))
    except OutcomeUnknown:
        raise
    except PinLaterError as error:
        if not done:
            raise
        raise PartialOutcome(f"{done} jobs done, then no more: {error}", done, failed=[([], error)]) from None


def _by_priority(session: Session, descriptors: list[str]) -> list[tuple[QueueShard, int, list[bytes], list[str]]]:
    """One call for each queue shard and priority: its ids, and their descriptors."""
    calls: list[tuple[QueueShard, int, list[bytes], list[str]]] = []
    for queue, shard, priorities, ids, positions in checked(_core.group_descriptors, descriptors):
        by_priority: dict[int, tuple[list[bytes], list[str]]] = {}
        for priority, id_, position in zip(priorities, ids, positions, strict=True):
            chosen, named = by_priority.setdefault(priority, ([], []))
            chosen.append(id_)
            named.append(descriptors[position])
        calls += [(session.queue_shard(queue, shard), priority, *chosen) for priority, chosen in by_priority.items()]
    return calls


def _u32(reply: list[Any]) -> int:
    """The number at the start of a reply."""
    return int.from_bytes(reply[2][:4], "big")
