"""The operations of a holder on its running jobs: ack, release, renew, checkpoint. Flows only, no I/O.

Promises that only the holder of a job's token, or the source that claimed the job, can change it. Each call returns the
refused jobs. Risks: a call on jobs of several shards makes one script call a shard. Each script call is atomic, the
whole call is not. PartialOutcome lists the jobs that are done.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import pinlater._core as _core
from pinlater.model.errors import InvalidArgument, OutcomeUnknown, PinLaterError, QueueNotFound, checked
from pinlater.model.jobs import Checkpoint, Claimed, NewJob
from pinlater.model.queue_config import QueueConfig, check_queue_name, check_source
from pinlater.operations.enqueue import CALL_JOBS, MAX_BATCH, pack_jobs, when
from pinlater.operations.parts import in_parts
from pinlater.store.effects import Argument, Flow, all_of, complete
from pinlater.store.requests import CommonKeys, write
from pinlater.store.shards import Session

_ITEM: Final = struct.Struct(">B8s8sBB6sH7x")
_BODY, _MOVE, _ATTEMPTS, _STATUS = 1, 2, 4, 8

#: A checkpoint as the script takes it: its item, its status, and its body if it has one.
_PackedCheckpoint: TypeAlias = tuple[bytes, bytes, bytes | None]


def ack(
    session: Session, succeeded: Iterable[Any], failed: Iterable[Any], source: str, tombstone: bool, deadline_s: float
) -> Flow[list[Any]]:
    """Ends running jobs. Returns the items that were refused because the caller does not hold them.

    tombstone: keep the id and the end time of each job that ends.
    """
    succeeded, failed = list(succeeded), list(failed)
    batches = _ack_batches(session, succeeded, failed, tombstone)
    items = [*succeeded, *failed]
    flows = []
    for batch in _with_source(batches, source):

        def arguments(config: QueueConfig, batch: _core.AckBatch = batch) -> list[Argument]:
            given: list[Argument] = [_more(batch, source), batch.groups, *batch.ids]
            if failed or tombstone or config.keep_succeeded or config.max_running is not None:
                return given
            return CommonKeys(given, batch.groups[0] if len(batch.ids) == 1 else config.priorities)

        flows.append(_held_batch(session, batch, "ack", arguments, deadline_s))
    return (yield from all_of(flows, lambda refused: _items_at(items, refused), _items_of(batches, items)))


def _ack_batches(session: Session, succeeded: list[Any], failed: list[Any], tombstone: bool) -> list[_core.AckBatch]:
    """The calls of an ack. If one of them may read or write statuses, each has fewer jobs."""
    most = CALL_JOBS if failed else MAX_BATCH
    batches: list[_core.AckBatch] = checked(_core.group_acks, succeeded, failed, tombstone, most)
    if len(succeeded) > CALL_JOBS:
        least = min(most_of_ack(session, batch.queue, batch.shard, bool(failed)) for batch in batches)
        if least < most:
            batches = checked(_core.group_acks, succeeded, failed, tombstone, least)
    return batches


def most_of_ack(session: Session, queue: str, shard: str, fails: bool) -> int:
    """The most jobs of one call. It may read or write statuses if jobs fail, or if the queue keeps succeeded jobs."""
    stored = session.queue_shard(queue, shard).stored
    return CALL_JOBS if fails or stored is None or stored.config.keep_succeeded else MAX_BATCH


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
    batches = checked(_core.group_releases, jobs, CALL_JOBS if own else MAX_BATCH)
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
    flows = [
        _CheckpointCalls(session, batch, [checkpoints[position] for position in batch.positions], source).run(
            deadline_s
        )
        for batch in _with_source(batches, source)
    ]
    return (
        yield from all_of(
            flows,
            lambda refused: _items_at(checkpoints, [*refused, list(repeated)]),
            _items_of(batches, checkpoints),
        )
    )


class _CheckpointCalls:
    """The checkpoints of one queue shard, in calls of at most CALL_JOBS jobs and MAX_BYTES. The script ends a call
    early if the records that it changes are large.
    """

    def __init__(self, session: Session, batch: _core.AckBatch, chosen: list[Checkpoint], source: str) -> None:
        self._queue_shard = session.queue_shard(check_queue_name(batch.queue), batch.shard)
        self._batch, self._chosen, self._source = batch, chosen, source
        self._packed: list[_PackedCheckpoint] = []

    def run(
        self, deadline_s: float, done: int = 0, refused: Sequence[int] = (), call: Flow[list[Any]] | None = None
    ) -> Flow[list[int]]:
        """Returns the positions, in the caller's list, of the refused jobs.

        done, refused: of the calls before. call: the next call, if it was sent before.
        If a call after the first one fails, it raises OutcomeUnknown, and resolve() does the rest.
        """
        found = list(refused)
        while done < len(self._chosen):
            try:
                reply = yield from call or self._write(done, deadline_s)
            except OutcomeUnknown as error:
                raise self._unknown(error, done, found, error.resume) from None
            except PinLaterError as error:
                if not done or isinstance(error, QueueNotFound):
                    raise
                raise self._unknown(error, done, found, partial(self._write, done)) from None
            call = None
            count, *positions = struct.unpack(f">{len(reply[2]) // 2}H", reply[2])
            found += [self._batch.positions[done + position] for position in positions]
            done += count
        return found

    def _write(self, first: int, deadline_s: float) -> Flow[list[Any]]:
        return write(self._queue_shard, "checkpoint", partial(self._arguments, first), deadline_s)

    def _unknown(
        self, error: PinLaterError, done: int, refused: list[int], resume: Callable[[float], Flow[list[Any]]]
    ) -> OutcomeUnknown:
        return OutcomeUnknown(str(error), lambda deadline_s: self.run(deadline_s, done, refused, resume(deadline_s)))

    def _arguments(self, first: int, config: QueueConfig) -> list[Argument]:
        """The arguments of the call that begins with checkpoint number `first`.

        The limits are those of the first call, which checks all checkpoints: a later call never meets a bad one.
        """
        if not first:
            self._packed = _pack_checkpoints(self._batch, self._chosen, config)
        part = in_parts(self._packed[first : first + CALL_JOBS], _size)[0]
        statuses = [struct.pack(">HH", at, len(text)) + text for at, (_, text, _) in enumerate(part) if text]
        bodies = [body for _, _, body in part if body is not None]
        return [self._source, b"".join(item for item, _, _ in part), b"".join(statuses), *bodies]


def _size(packed: _PackedCheckpoint) -> int:
    """The bytes of its status and its body."""
    return len(packed[1]) + len(packed[2] or b"")


def _pack_checkpoints(batch: _core.AckBatch, chosen: list[Checkpoint], config: QueueConfig) -> list[_PackedCheckpoint]:
    found: list[_PackedCheckpoint] = []
    for (priority, token), id_, item in zip(_priorities_and_tokens(batch.groups), batch.ids, chosen, strict=True):
        # the limits are those of a new job
        pack_jobs([checked(_checkpoint_as_job, item)], config)
        what = (
            (_BODY if item.body is not None else 0)
            | (_MOVE if item.move_to_pending else 0)
            | (_ATTEMPTS if item.attempts is not None else 0)
            | (_STATUS if item.status else 0)
        )
        kind, ms = when(item.run_after_ms, item.delay_ms)
        packed = _ITEM.pack(priority, id_, token, what, kind, ms.to_bytes(6, "big"), item.attempts or 0)
        found.append((packed, item.status.encode(), None if item.body is None else bytes(item.body)))
    return found


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


def _held_batch(
    session: Session, batch: _core.AckBatch, verb: str, arguments: Any, deadline_s: float
) -> Flow[list[int]]:
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


def _items_of(batches: Sequence[_core.AckBatch], items: list[Any]) -> Callable[[int], list[Any]]:
    """The caller's items of a batch, by the index of the batch."""
    return lambda index: [items[position] for position in batches[index].positions]


def _items_at(items: list[Any], refused: list[list[int]]) -> list[Any]:
    return [items[position] for position in sorted(position for part in refused for position in part)]
