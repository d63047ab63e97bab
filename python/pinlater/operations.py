"""Every operation on jobs, written once as flows without I/O; client.py and async_client.py drive them.

Promises that a bad argument is refused before anything is sent, that each part of a large call is atomic, and that nothing falls over to another
shard unless it is certain that the first did not take it. Risks: a call over several parts or shards can succeed in part; it says so.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from pinlater import _core
from pinlater.config import QueueConfig, check_integer, check_queue_name
from pinlater.errors import (
    InvalidArgument,
    OutcomeUnknown,
    PartialEnqueue,
    PinLaterError,
    ServerFull,
    ServerUnavailable,
)
from pinlater.exchange import Argument, Flow, all_of, complete, read, together, write
from pinlater.jobs import Ack, Checkpoint, Claimed, CountsByState, JobInfo, NewJob, State
from pinlater.queues import ASK_AGAIN_S, known_places
from pinlater.shards import QueueShard, Session, shard_for_key

MAX_BATCH: Final = _core.MAX_BATCH
#: A part of an enqueue carries at most so many bytes of bodies, so that no call holds a server for long.
PART_BYTES: Final = 4 * 1024 * 1024
#: So many parts of a large call are under way at a time.
PARTS_AT_ONCE: Final = 8
#: A claim, lookup or scan page returns at most so many bytes of records (one job always).
REPLY_BYTES: Final = 4 * 1024 * 1024
#: What a script said of a queue is trusted for so long before it is peeked again.
HINT_S: Final = 0.05

# one run of a spec, less what only the script needs: priority and how many
_RUN: Final = struct.Struct(">B7xH")
_ITEM: Final = struct.Struct(">B8s8sBB6sH7x")
_BODY, _MOVE, _ATTEMPTS, _STATUS = 1, 2, 4, 8


# --- enqueue

#: A configuration, and jobs as `_core.pack_jobs` packed them for it.
_Packed: TypeAlias = tuple[QueueConfig, tuple[bytes, bytes, list[bytes]]]


def enqueue_many(session: Session, queue: str, jobs: Iterable[bytes | NewJob], deadline_s: float) -> Flow[list[str]]:
    """Puts jobs in line; returns their descriptors in order. Validated whole first; then each part is atomic alone."""
    jobs = list(jobs)
    places = yield from known_places(session, queue, deadline_s)
    if not jobs:
        return []
    sizes, packed = _validate(jobs, places)
    parts = [(candidates, part) for candidates, chosen in _by_place(session, places, jobs) for part in _parts(sizes, chosen)]
    if len(parts) == 1:
        return (yield from _enqueue_part(parts[0][0], jobs, deadline_s, packed))
    flows = [_enqueue_part(candidates, [jobs[position] for position in part], deadline_s) for candidates, part in parts]
    results: list[Any] = []
    for first in range(0, len(flows), PARTS_AT_ONCE):
        results += yield from together(flows[first : first + PARTS_AT_ONCE])
    return _in_order(len(jobs), [part for _, part in parts], results)


def _validate(jobs: list[Any], places: list[QueueShard]) -> tuple[list[int], _Packed]:
    """Every job before any is sent: a bad one in the last part must not leave the first ones in.

    Returns their sizes in bytes, and the last 1,000 at most as they were packed (all of them, where it is one part).
    """
    assert places[0].stored is not None
    config = places[0].stored.config
    sizes: list[int] = []
    for first in range(0, len(jobs), MAX_BATCH):
        packed = _checked(_core.pack_jobs, jobs[first : first + MAX_BATCH], config.body_limit, config.levels, first)
        sizes += map(len, packed[2])
    return sizes, (config, packed)


def _by_place(session: Session, places: list[QueueShard], jobs: list[Any]) -> list[tuple[list[QueueShard], list[int]]]:
    """Candidate places and positions of jobs: keyed jobs have one candidate, the others all, in random order."""
    keyed: dict[str, list[int]] = {}
    free: list[int] = []
    if len(places) == 1 and len(session.shards) == 1:
        return [(places, list(range(len(jobs))))]
    names = list(session.shards)
    for position, job in enumerate(jobs):
        key = job.key if isinstance(job, NewJob) else None
        (free if key is None else keyed.setdefault(shard_for_key(key, names), [])).append(position)
    groups = [([session.place(places[0].queue, name)], positions) for name, positions in keyed.items()]
    if free:
        groups.append((_shuffled(places), free))
    return groups


def _shuffled(places: list[QueueShard]) -> list[QueueShard]:
    """In random order, those that answered when last asked first."""
    now_s = time.monotonic()
    return sorted(random.sample(places, len(places)), key=lambda place: place.silent_until_s > now_s)


def _parts(sizes: list[int], positions: list[int]) -> list[list[int]]:
    """Positions in parts of at most 1,000 jobs and PART_BYTES."""
    if len(positions) <= MAX_BATCH and sum(sizes) <= PART_BYTES:
        return [positions]
    parts: list[list[int]] = [[]]
    total = 0
    for position in positions:
        if len(parts[-1]) == MAX_BATCH or (parts[-1] and total + sizes[position] > PART_BYTES):
            parts.append([])
            total = 0
        parts[-1].append(position)
        total += sizes[position]
    return parts


def _enqueue_part(
    candidates: list[QueueShard], jobs: list[Any], deadline_s: float, packed: _Packed | None = None
) -> Flow[list[str]]:
    """Enqueues on the first candidate that takes the jobs; another one is tried only if it is certain that it did not."""
    for place in candidates[:-1]:
        try:
            return (yield from _enqueue_at(place, jobs, deadline_s, False, packed))
        except (ServerUnavailable, ServerFull):
            place.silent_until_s = time.monotonic() + ASK_AGAIN_S
    return (yield from _enqueue_at(candidates[-1], jobs, deadline_s, True, packed))


def _enqueue_at(
    place: QueueShard, jobs: list[Any], deadline_s: float, patient: bool, packed: _Packed | None
) -> Flow[list[str]]:
    sent: list[Any] = []

    def arguments(config: QueueConfig) -> list[Argument]:
        sent[:] = packed[1] if packed is not None and packed[0] == config else pack_jobs(jobs, config)
        spec, statuses, records = sent
        return [spec, statuses, *records]

    def descriptors(reply: list[Any]) -> list[str]:
        runs = list(_RUN.iter_unpack(sent[0]))
        priorities = runs[0][0] if len(runs) == 1 else b"".join(bytes([priority]) * n for priority, n in runs)
        first = int.from_bytes(reply[2], "big")
        return _core.format_descriptors(place.queue, place.shard.name, priorities, first, len(jobs))

    return (yield from complete(write(place, "enqueue", arguments, deadline_s, patient=patient), descriptors))


def pack_jobs(jobs: Sequence[Any], config: QueueConfig) -> tuple[bytes, bytes, list[bytes]]:
    """Spec, statuses and records of jobs, or InvalidArgument naming the job."""
    packed: tuple[bytes, bytes, list[bytes]] = _checked(_core.pack_jobs, jobs, config.body_limit, config.levels)
    return packed


def _checked(function: Callable[..., Any], *arguments: Any) -> Any:
    """The one edge where errors of the native part become ours."""
    try:
        return function(*arguments)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidArgument(str(error)) from None


def _in_order(count: int, parts: list[list[int]], results: list[Any]) -> list[str]:
    ordered: list[Any] = [None] * count
    for positions, result in zip(parts, results, strict=True):
        for offset, position in enumerate(positions):
            ordered[position] = result if isinstance(result, PinLaterError) else result[offset]
    errors = [result for result in results if isinstance(result, PinLaterError)]
    if not errors:
        return ordered
    if len(errors) == len(results) and not any(isinstance(error, OutcomeUnknown) for error in errors):
        raise errors[0]
    raise PartialEnqueue(ordered)


# --- ending, keeping and handing back


def ack(
    session: Session, succeeded: Iterable[Any], failed: Iterable[Any], source: str, tombstone: bool, deadline_s: float
) -> Flow[list[Any]]:
    """Ends running jobs; returns the items that were refused because the caller does not hold them."""
    succeeded, failed = list(succeeded), list(failed)
    batches = _checked(_core.group_acks, succeeded, failed, tombstone)
    items = [*succeeded, *failed]
    flows = [
        _held_batch(session, batch, "ack", [batch.flags, source, batch.groups, batch.statuses, *batch.ids], deadline_s)
        for batch in _with_source(batches, source)
    ]
    return (yield from all_of(flows, lambda refused: _items_at(items, refused)))


def check_acks(succeeded: list[Any], failed: list[Any]) -> None:
    """Raises InvalidArgument for what ack() would refuse."""
    _with_source(_checked(_core.group_acks, succeeded, failed), "")


def release(session: Session, jobs: Iterable[Claimed], source: str, deadline_s: float) -> Flow[list[Any]]:
    """Hands jobs back as they were; returns those that were refused."""
    jobs = list(jobs)
    batches = _checked(_core.group_releases, jobs)
    flows = [
        _held_batch(session, batch, "release", [source, batch.groups, *batch.ids], deadline_s)
        for batch in _with_source(batches, source)
    ]
    return (yield from all_of(flows, lambda refused: _items_at(jobs, refused)))


def renew(session: Session, jobs: Iterable[Claimed], own: bool, deadline_s: float) -> Flow[list[Any]]:
    """Gives the leases of jobs their full length again: whole claims, or (own) a lease for each job alone. Returns the refused."""
    jobs = list(jobs)
    flows = []
    for batch in _checked(_core.group_releases, jobs):
        if batch.tokenless:
            raise InvalidArgument("renew: expected a Job or (descriptor, token), got a descriptor without its token")
        tokens = [token for _, token in _levels_and_tokens(batch.groups)]
        if own:
            packed = b"".join(
                bytes([level]) + id_ + token
                for (level, token), id_ in zip(_levels_and_tokens(batch.groups), batch.ids, strict=True)
            )
            flows.append(_held_batch(session, batch, "renew", [b"", packed], deadline_s))
        else:
            flows.append(_renew_tokens(session, batch, tokens, deadline_s))
    return (yield from all_of(flows, lambda refused: _items_at(jobs, refused)))


def _renew_tokens(session: Session, batch: _core.AckBatch, tokens: list[bytes], deadline_s: float) -> Flow[list[int]]:
    distinct = list(dict.fromkeys(tokens))
    place = session.place(batch.queue, batch.shard)

    def refused(reply: list[Any]) -> list[int]:
        gone = {distinct[position] for (position,) in struct.iter_unpack(">H", reply[2])}
        return [position for position, token in zip(batch.positions, tokens, strict=True) if token in gone]

    return (yield from complete(write(place, "renew", [b"".join(distinct), b""], deadline_s), refused))


def checkpoint(session: Session, checkpoints: Iterable[Checkpoint], source: str, deadline_s: float) -> Flow[list[Any]]:
    """Keeps the progress of running jobs; returns the checkpoints that were refused."""
    checkpoints = list(checkpoints)
    batches = _checked(_core.group_releases, [item.job for item in checkpoints])
    for item in checkpoints:
        _checked(_checkpoint_as_job, item, 1)
    # of a job named twice the first one stands: the others are not carried out, so they are refused
    repeated = set(range(len(checkpoints))).difference(*(batch.positions for batch in batches))
    flows = []
    for batch in _with_source(batches, source):
        chosen = [checkpoints[position] for position in batch.positions]

        def arguments(config: QueueConfig, batch: Any = batch, chosen: Any = chosen) -> list[Argument]:
            return [source, *_pack_checkpoints(batch, chosen, config)]

        flows.append(_held_batch(session, batch, "checkpoint", arguments, deadline_s))
    return (yield from all_of(flows, lambda refused: _items_at(checkpoints, [*refused, list(repeated)])))


def _pack_checkpoints(batch: _core.AckBatch, chosen: list[Checkpoint], config: QueueConfig) -> list[Argument]:
    items, statuses, bodies = [], [], []
    for position, ((level, token), id_, item) in enumerate(
        zip(_levels_and_tokens(batch.groups), batch.ids, chosen, strict=True)
    ):
        # the same limits as a new job's, from the same place
        as_job = _checked(_checkpoint_as_job, item, level)
        record = pack_jobs([as_job], config)[2][0]
        what = (
            (_BODY if item.body is not None else 0)
            | (_MOVE if item.move_to_pending else 0)
            | (_ATTEMPTS if item.attempts is not None else 0)
            | (_STATUS if item.status else 0)
        )
        kind, ms = _when(item.run_after_ms, item.delay_ms)
        items.append(_ITEM.pack(level, id_, token, what, kind, ms.to_bytes(6, "big"), item.attempts or 0))
        if item.status:
            text = item.status.encode()
            statuses.append(struct.pack(">HH", position, len(text)) + text)
        if item.body is not None:
            bodies.append(record[4:])
    return [b"".join(items), b"".join(statuses), *bodies]


def _checkpoint_as_job(item: Checkpoint, level: int) -> NewJob:
    if not item.move_to_pending and (item.run_after_ms is not None or item.delay_ms is not None):
        raise ValueError("checkpoint: run_after_ms and delay_ms have a meaning only with move_to_pending=True")
    return NewJob(
        item.body if item.body is not None else b"",
        priority=level,
        run_after_ms=item.run_after_ms,
        delay_ms=item.delay_ms,
        attempts=item.attempts if item.attempts is not None else 1,
        status=item.status,
    )


def _when(run_after_ms: int | None, delay_ms: int | None) -> tuple[int, int]:
    """kind and ms as the scripts take them."""
    if run_after_ms:
        return 1, run_after_ms
    return (2, delay_ms) if delay_ms else (0, 0)


def _with_source(batches: list[_core.AckBatch], source: str) -> list[_core.AckBatch]:
    if not source and any(batch.tokenless for batch in batches):
        raise InvalidArgument("expected a Job or (descriptor, token); a bare descriptor needs the source that claimed it")
    return batches


def _held_batch(session: Session, batch: _core.AckBatch, verb: str, arguments: Any, deadline_s: float) -> Flow[list[int]]:
    """One call on jobs of one place; returns positions (in what the caller gave) that were refused."""
    check_queue_name(batch.queue)
    place = session.place(batch.queue, batch.shard)

    def refused(reply: list[Any]) -> list[int]:
        return [batch.positions[index] for (index,) in struct.iter_unpack(">H", reply[2])]

    return (yield from complete(write(place, verb, arguments, deadline_s), refused))


def _levels_and_tokens(groups: bytes) -> list[tuple[int, bytes]]:
    """Level and token of each id, from the groups of a release."""
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < len(groups):
        level, count = struct.unpack_from(">BH", groups, at)
        at += 3
        while count:
            token, run = struct.unpack_from(">8sH", groups, at)
            at += 10
            count -= run
            found += [(level, token)] * run
    return found


def _items_at(items: list[Any], refused: list[list[int]]) -> list[Any]:
    return [items[position] for position in sorted(position for part in refused for position in part)]


# --- looking


def lookup(session: Session, descriptors: Iterable[str], with_body: bool, deadline_s: float) -> Flow[dict[str, JobInfo]]:
    """What is known of jobs, by descriptor; unknown ones are left out."""
    groups = _checked(_core.group_descriptors, list(descriptors))
    flows = [
        _lookup_at(session.place(queue, shard), levels, ids, with_body, deadline_s) for queue, shard, levels, ids, _ in groups
    ]
    found = yield from all_of(flows, lambda parts: [info for part in parts for info in part])
    return {info.descriptor: info for info in found}


def _lookup_at(place: QueueShard, levels: bytes, ids: list[bytes], with_body: bool, deadline_s: float) -> Flow[list[JobInfo]]:
    infos: list[JobInfo] = []
    done = 0
    while done < len(ids):
        arguments: list[Argument] = [int(with_body), REPLY_BYTES, levels[done:], *ids[done:]]
        reply = yield from read(place, "lookup", arguments, deadline_s)
        infos += [JobInfo.unpack(place.queue, place.shard.name, packed) for packed in reply[2:] if packed]
        done += len(reply) - 2
    return infos


def count(session: Session, queue: str, priority: int | None, deadline_s: float) -> Flow[CountsByState]:
    """How many jobs a queue has, over all shards."""
    places = yield from known_places(session, queue, deadline_s)
    _check_priority(priority, places)
    replies = yield from all_of([read(place, "count", [], deadline_s) for place in places], list)
    total = CountsByState()
    for reply in replies:
        levels = CountsByState.unpack(reply[2])
        for counts in levels if priority is None else levels[priority - 1 : priority]:
            total += counts
    return total


def peek(session: Session, queue: str, deadline_s: float) -> Flow[dict[int, int]]:
    """How many jobs are due now, by priority, over all shards."""
    places = yield from known_places(session, queue, deadline_s)
    yield from all_of([peek_at(place, deadline_s) for place in places], list)
    return {level: sum(place.left[level - 1] for place in places) for level in range(1, len(places[0].left) + 1)}


def peek_at(place: QueueShard, deadline_s: float) -> Flow[None]:
    """Brings up to date what is known of a place's due jobs."""
    reply = yield from read(place, "peek", [], deadline_s)
    place.left = list(struct.unpack(f">{len(reply[2]) // 4}I", reply[2])) if reply[3] == b"0" else [0] * (len(reply[2]) // 4)
    place.left_at_s = time.monotonic()


def scan_page(
    session: Session,
    queue: str,
    state: State | str,
    priority: int | None,
    future: bool,
    with_body: bool,
    limit: int,
    cursor: str,
    deadline_s: float,
) -> Flow[tuple[list[JobInfo], str]]:
    """One page of a scan and where to go on: "" at first and at the end. Shard by shard, level by level, latest time first."""
    places = yield from known_places(session, queue, deadline_s)
    levels = _check_priority(priority, places)
    check_integer("limit", limit, 1, MAX_BATCH)
    shard, level, position = _read_cursor(cursor, places[0].shard.name, levels[0])
    order = [(place, at) for place in places for at in levels]
    here = next((i for i, (place, at) in enumerate(order) if (place.shard.name, at) == (shard, level)), None)
    if here is None:
        raise InvalidArgument(f"cursor: expected one of an earlier page of this scan, got {cursor!r}")
    place = order[here][0]
    arguments: list[Argument] = [State.of(state).code, level, int(future), position, limit, int(with_body), REPLY_BYTES]
    reply = yield from read(place, "scan", arguments, deadline_s)
    infos = [JobInfo.unpack(queue, place.shard.name, packed) for packed in reply[3:]]
    if reply[2]:
        return infos, f"{shard}.{level}.{reply[2].hex()}"
    if here + 1 == len(order):
        return infos, ""
    following, at = order[here + 1]
    return infos, f"{following.shard.name}.{at}."


def _read_cursor(cursor: str, first_shard: str, first_level: int) -> tuple[str, int, bytes]:
    if not cursor:
        return first_shard, first_level, b""
    try:
        shard, level, position = cursor.split(".")
        return shard, int(level), bytes.fromhex(position)
    except (ValueError, AttributeError):
        raise InvalidArgument(f"cursor: expected one of an earlier page of this scan, got {cursor!r}") from None


def _check_priority(priority: int | None, places: list[QueueShard]) -> list[int]:
    """The levels meant: one, or all."""
    assert places[0].stored is not None
    levels = places[0].stored.config.levels
    if priority is None:
        return list(range(1, levels + 1))
    if isinstance(priority, bool) or not isinstance(priority, int) or not 1 <= priority <= levels:
        raise InvalidArgument(f"priority: expected 1 to {levels} (the queue has {levels} levels), got {priority!r}")
    return [priority]


# --- bringing back and removing


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
    levels = _check_priority(priority, places)
    check_integer("limit", limit, 0, 2**63 - 1)
    # the same limits as a new job's, from the same place
    _checked(lambda: NewJob(b"", attempts=attempts, run_after_ms=run_after_ms, delay_ms=delay_ms))
    kind, ms = _when(run_after_ms, delay_ms)
    done = 0
    for level in levels:
        for place in places:
            while done < limit:
                most = min(limit - done, MAX_BATCH)
                reply = yield from write(place, "retry_failed", [level, most, attempts, kind, ms], deadline_s)
                moved = int.from_bytes(reply[2], "big")
                done += moved
                if moved < most:
                    break
    return done


def retry_jobs(session: Session, descriptors: Iterable[str], attempts: int, deadline_s: float) -> Flow[int]:
    """Puts the named failed jobs back in line; returns how many were failed."""
    _checked(lambda: NewJob(b"", attempts=attempts))
    flows = [
        complete(write(place, "retry_failed", [level, 0, attempts, 0, 0, *ids], deadline_s), _u32)
        for place, level, ids in _by_level(session, descriptors)
    ]
    return (yield from all_of(flows, sum))


def delete_jobs(
    session: Session, queue: str, state: State | str, priority: int | None, limit: int, deadline_s: float
) -> Flow[int]:
    """Removes up to `limit` jobs of a state, oldest first; returns how many. A running one's ack will be refused."""
    places = yield from known_places(session, queue, deadline_s)
    levels = _check_priority(priority, places)
    code = State.of(state).code
    check_integer("limit", limit, 0, 2**63 - 1)
    done = 0
    for level in levels:
        for place in places:
            more = True
            while more and done < limit:
                arguments = [code, level, min(limit - done, MAX_BATCH)]
                reply = yield from write(place, "delete_jobs", arguments, deadline_s)
                gone, left = struct.unpack(">IB", reply[2])
                done += gone
                more = bool(left and gone)
    return done


def delete_named(session: Session, descriptors: Iterable[str], deadline_s: float) -> Flow[int]:
    """Removes jobs by descriptor, whatever their state; returns how many were there."""
    flows = [
        complete(write(place, "delete_jobs", ["", level, 0, *ids], deadline_s), lambda reply: int(struct.unpack(">IB", reply[2])[0]))
        for place, level, ids in _by_level(session, descriptors)
    ]
    return (yield from all_of(flows, sum))


def purge(session: Session, queue: str, deadline_s: float) -> Flow[int]:
    """Removes every job of a queue in every state; the queue stays. Returns how many."""
    total = 0
    for state in State:
        total += yield from delete_jobs(session, queue, state, None, 2**62, deadline_s)
    return total


def _by_level(session: Session, descriptors: Iterable[str]) -> list[tuple[QueueShard, int, list[bytes]]]:
    calls: dict[tuple[str, str, int], list[bytes]] = {}
    parts: list[tuple[QueueShard, int, list[bytes]]] = []
    for queue, shard, levels, ids, _ in _checked(_core.group_descriptors, list(descriptors)):
        calls.clear()
        for level, id_ in zip(levels, ids, strict=True):
            calls.setdefault((queue, shard, level), []).append(id_)
        parts += [(session.place(queue, shard), level, chosen) for (_, _, level), chosen in calls.items()]
    return parts


def _u32(reply: list[Any]) -> int:
    return int.from_bytes(reply[2], "big")


def ack_of(job: Claimed | Ack) -> Ack:
    """The Ack itself, or one that says nothing more."""
    return job if isinstance(job, Ack) else Ack(job)
