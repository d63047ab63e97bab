"""The operations of a holder on its running jobs: ack, release, renew, checkpoint. Flows only, no I/O.

Promises that only the holder of a job's token, or the source that claimed the job, can change it. Each call returns the
refused jobs. Risks: a call on jobs of several shards makes one script call a shard. Each script call is atomic, the
whole call is not. PartialOutcome lists the jobs that are done.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import pinlater._core as _core
from pinlater.model.errors import InvalidArgument, checked
from pinlater.model.jobs import Checkpoint, Claimed, NewJob
from pinlater.model.queue_config import QueueConfig, check_queue_name, check_source
from pinlater.operations.enqueue import pack_jobs, when
from pinlater.operations.parts import in_parts
from pinlater.store.effects import Argument, Flow, all_of, complete
from pinlater.store.requests import CommonKeys, write
from pinlater.store.shards import Session

_ITEM: Final = struct.Struct(">B8s8sBB6sH7x")
_BODY, _MOVE, _ATTEMPTS, _STATUS = 1, 2, 4, 8

#: Priority and token of a job, its id, its checkpoint.
_CheckpointItem: TypeAlias = tuple[tuple[int, bytes], bytes, Checkpoint]


def ack(
    session: Session, succeeded: Iterable[Any], failed: Iterable[Any], source: str, tombstone: bool, deadline_s: float
) -> Flow[list[Any]]:
    """Ends running jobs. Returns the items that were refused because the caller does not hold them.

    tombstone: keep the id and the end time of each job that ends.
    """
    succeeded, failed = list(succeeded), list(failed)
    batches = checked(_core.group_acks, succeeded, failed, tombstone)
    items = [*succeeded, *failed]
    flows = []
    for batch in _with_source(batches, source):

        def arguments(config: QueueConfig, batch: _core.AckBatch = batch) -> list[Argument]:
            given: list[Argument] = [_more(batch, source), batch.groups, *batch.ids]
            if failed or tombstone or config.keep_succeeded:
                return given
            return CommonKeys(given, batch.groups[0] if len(batch.ids) == 1 else config.priorities)

        flows.append(_held_batch(session, batch, "ack", arguments, deadline_s))
    return (yield from all_of(flows, lambda refused: _items_at(items, refused), _items_of(batches, items)))


def _more(batch: _core.AckBatch, source: str) -> bytes:
    if not (source or batch.statuses or any(batch.flags)):
        return b""
    name = source.encode()
    return batch.flags + len(name).to_bytes(2, "big") + name + batch.statuses


def queue_shards_of_acks(succeeded: list[Any], failed: list[Any]) -> dict[tuple[str, str], tuple[list[bytes], int]]:
    """The ids of an ack and the bytes of its statuses, by queue and shard. Raises InvalidArgument like ack() without a
    source.
    """
    queue_shards: dict[tuple[str, str], tuple[list[bytes], int]] = {}
    for batch in _with_source(checked(_core.group_acks, succeeded, failed), ""):
        ids, size = queue_shards.get((batch.queue, batch.shard), ([], 0))
        queue_shards[batch.queue, batch.shard] = ids + batch.ids, size + len(batch.statuses)
    return queue_shards


def release(session: Session, jobs: Iterable[Claimed], source: str, deadline_s: float) -> Flow[list[Any]]:
    """Releases jobs unchanged. Returns those that were refused."""
    jobs = list(jobs)
    batches = checked(_core.group_releases, jobs)
    flows = [
        _held_batch(session, batch, "release", [source, batch.groups, *batch.ids], deadline_s)
        for batch in _with_source(batches, source)
    ]
    return (yield from all_of(flows, lambda refused: _items_at(jobs, refused), _items_of(batches, jobs)))


def renew(session: Session, jobs: Iterable[Claimed], own: bool, deadline_s: float) -> Flow[list[Any]]:
    """Renews the leases of jobs for their full length. Returns the jobs that were refused.

    own: give each job a lease of its own. By default the leases of whole claims are renewed.
    """
    jobs = list(jobs)
    flows = []
    batches = checked(_core.group_releases, jobs)
    for batch in batches:
        if batch.tokenless:
            raise InvalidArgument("renew: expected a Job or (descriptor, token), got a descriptor without its token")
        packed = [
            bytes([priority]) + id_ + token
            for (priority, token), id_ in zip(_priorities_and_tokens(batch.groups), batch.ids, strict=True)
        ]
        if own:
            flows.append(_held_batch(session, batch, "renew", [b"", b"".join(packed), 0], deadline_s))
        else:
            flows.append(_renew_claims(session, batch, packed, deadline_s))
    return (yield from all_of(flows, lambda refused: _items_at(jobs, refused), _items_of(batches, jobs)))


def _renew_claims(session: Session, batch: _core.AckBatch, packed: list[bytes], deadline_s: float) -> Flow[list[int]]:
    """Renews the leases of whole claims.

    packed: priority, id and token of each job. A claim needs only one of its jobs here.
    """
    tokens = [item[-8:] for item in packed]
    named = dict(zip(tokens, packed, strict=True))

    def refused(reply: list[Any]) -> list[int]:
        distinct = list(named)
        expired = {distinct[position] for (position,) in struct.iter_unpack(">H", reply[2])}
        return [position for position, token in zip(batch.positions, tokens, strict=True) if token in expired]

    queue_shard = session.queue_shard(batch.queue, batch.shard)
    given: list[Argument] = [b"".join(named.values()), b"", 0]
    return (yield from complete(write(queue_shard, "renew", given, deadline_s), refused))


def checkpoint(session: Session, checkpoints: Iterable[Checkpoint], source: str, deadline_s: float) -> Flow[list[Any]]:
    """Stores the progress of running jobs. Returns the checkpoints that were refused."""
    checkpoints = list(checkpoints)
    for item in checkpoints:
        if not isinstance(item, Checkpoint):
            raise InvalidArgument(f"expected a Checkpoint, got {item!r:.80}")
    batches = checked(_core.group_releases, [item.job for item in checkpoints])
    for item in checkpoints:
        checked(_checkpoint_as_job, item)
    # if a job is named twice, only its first checkpoint is carried out, and the others are refused
    repeated = set(range(len(checkpoints))).difference(*(batch.positions for batch in batches))
    flows, parts = [], _checkpoint_parts(_with_source(batches, source), checkpoints)
    for part in parts:

        def arguments(config: QueueConfig, part: _CheckpointPart = part) -> list[Argument]:
            return [source, *_pack_checkpoints(part.items, config)]

        flows.append(_held_batch(session, part, "checkpoint", arguments, deadline_s))
    return (
        yield from all_of(
            flows,
            lambda refused: _items_at(checkpoints, [*refused, list(repeated)]),
            _items_of(parts, checkpoints),
        )
    )


class _Batch(Protocol):
    """Jobs of one queue shard, and their positions in the caller's list."""

    @property
    def queue(self) -> str: ...
    @property
    def shard(self) -> str: ...
    @property
    def positions(self) -> list[int]: ...


class _CheckpointPart(NamedTuple):
    """Checkpoints of one script call. items: priority and token, id, the checkpoint."""

    queue: str
    shard: str
    positions: list[int]
    items: list[_CheckpointItem]


def _checkpoint_parts(batches: list[_core.AckBatch], checkpoints: list[Checkpoint]) -> list[_CheckpointPart]:
    """The checkpoints in parts of a bounded number of bytes."""
    parts = []
    for batch in batches:
        named = zip(batch.positions, _priorities_and_tokens(batch.groups), batch.ids, strict=True)
        for part in in_parts(named, lambda one: len(checkpoints[one[0]].body or b"")):
            items = [(claim, id_, checkpoints[position]) for position, claim, id_ in part]
            parts.append(_CheckpointPart(batch.queue, batch.shard, [position for position, _, _ in part], items))
    return parts


def _pack_checkpoints(chosen: list[_CheckpointItem], config: QueueConfig) -> list[Argument]:
    items, statuses, bodies = [], [], []
    for position, ((priority, token), id_, item) in enumerate(chosen):
        # the limits are those of a new job
        as_job = checked(_checkpoint_as_job, item)
        record = pack_jobs([as_job], config)[2][0]
        what = (
            (_BODY if item.body is not None else 0)
            | (_MOVE if item.move_to_pending else 0)
            | (_ATTEMPTS if item.attempts is not None else 0)
            | (_STATUS if item.status else 0)
        )
        kind, ms = when(item.run_after_ms, item.delay_ms)
        items.append(_ITEM.pack(priority, id_, token, what, kind, ms.to_bytes(6, "big"), item.attempts or 0))
        if item.status:
            text = item.status.encode()
            statuses.append(struct.pack(">HH", position, len(text)) + text)
        if item.body is not None:
            bodies.append(record[4:])
    return [b"".join(items), b"".join(statuses), *bodies]


def _checkpoint_as_job(item: Checkpoint) -> NewJob:
    if not item.move_to_pending and (item.run_after_ms is not None or item.delay_ms is not None):
        raise ValueError("checkpoint: run_after_ms and delay_ms have a meaning only with move_to_pending=True")
    return NewJob(
        item.body if item.body is not None else b"",
        run_after_ms=item.run_after_ms,
        delay_ms=item.delay_ms,
        attempts=item.attempts if item.attempts is not None else 1,
        status=item.status,
    )


def _with_source(batches: list[_core.AckBatch], source: str) -> list[_core.AckBatch]:
    if source != "":
        check_source(source)
    elif any(batch.tokenless for batch in batches):
        raise InvalidArgument(
            "expected a Job or (descriptor, token); a descriptor without its token needs the source that claimed it"
        )
    return batches


def _held_batch(session: Session, batch: _Batch, verb: str, arguments: Any, deadline_s: float) -> Flow[list[int]]:
    """One call on jobs of one queue shard. Returns the positions, in the caller's list, of the refused jobs."""
    check_queue_name(batch.queue)
    queue_shard = session.queue_shard(batch.queue, batch.shard)

    def refused(reply: list[Any]) -> list[int]:
        return [batch.positions[index] for (index,) in struct.iter_unpack(">H", reply[2])]

    return (yield from complete(write(queue_shard, verb, arguments, deadline_s), refused))


def _priorities_and_tokens(groups: bytes) -> list[tuple[int, bytes]]:
    """Priority and token of each id, from the groups of a release."""
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < len(groups):
        priority, count = struct.unpack_from(">BH", groups, at)
        at += 3
        while count:
            token, run = struct.unpack_from(">8sH", groups, at)
            at += 10
            count -= run
            found += [(priority, token)] * run
    return found


def _items_of(batches: Sequence[_Batch], items: list[Any]) -> Callable[[int], list[Any]]:
    """The caller's items of a batch, by the index of the batch."""
    return lambda index: [items[position] for position in batches[index].positions]


def _items_at(items: list[Any], refused: list[list[int]]) -> list[Any]:
    return [items[position] for position in sorted(position for part in refused for position in part)]
