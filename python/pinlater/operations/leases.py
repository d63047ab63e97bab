"""The operations of a holder on its running jobs: ack, release, renew, checkpoint. Flows only, no I/O.

Promises that only the holder of a job's token, or the source that claimed the job, can change it. Each call returns the
refused jobs. Risks: a call on jobs of several shards makes one script call a shard. Each script call is atomic, the
whole call is not. PartialOutcome lists the jobs that are done.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias

import pinlater._core as _core
from pinlater.model.errors import InvalidArgument, OutcomeUnknown, PinLaterError, QueueNotFound, checked
from pinlater.model.jobs import Checkpoint, Claimed, NewJob
from pinlater.model.queue_config import QueueConfig, check_queue_name, check_source
from pinlater.operations.enqueue import CALL_JOBS, MAX_BATCH, pack_jobs, when
from pinlater.operations.parts import in_parts
from pinlater.store.effects import Argument, Flow, all_of, complete, together
from pinlater.store.requests import CommonKeys, ScriptArguments, write
from pinlater.store.shards import QueueShard, Session

_ITEM: Final = struct.Struct(">B8s8sBB6sH7x")
_BODY, _MOVE, _ATTEMPTS, _STATUS, _OWN_LEASE = 1, 2, 4, 8, 16
#: Of an ack's flags: each job that ends leaves a tombstone.
_TOMBSTONES: Final = 1

#: A checkpoint as the script takes it: its item, its status, and its body if it has one.
_PackedCheckpoint: TypeAlias = tuple[bytes, bytes, bytes | None]


def ack(
    session: Session,
    succeeded: Iterable[Any],
    failed: Iterable[Any],
    source: str | None,
    tombstone: bool,
    deadline_s: float,
) -> Flow[list[Any]]:
    """Ends running jobs. Returns the items that were refused because the caller does not hold them.

    source: who claimed the jobs that come without a token; None: each has its token.
    tombstone: keep the id and the end time of each job that ends.
    """
    succeeded, failed = list(succeeded), list(failed)
    batches = _ack_batches(session, succeeded, failed, tombstone)
    items = [*succeeded, *failed]
    flows = [ack_batch(session, batch, deadline_s, source) for batch in _with_source(batches, source)]
    return (yield from all_of(flows, lambda refused: _items_at(items, refused), _items_of(batches, items)))


def ack_batch(session: Session, batch: _core.AckBatch, deadline_s: float, source: str | None = None) -> Flow[list[int]]:
    """Ends the jobs of one batch. Returns the positions of those that were refused, as the batch has them.

    source: of the jobs without a token, if the batch names no sources itself.
    """
    return _held_batch(session, batch, "ack", ack_arguments(batch, source), deadline_s)


def ack_arguments(batch: _core.AckBatch, source: str | None = None) -> ScriptArguments:
    """What the script of an ack takes for a batch. source: see ack_batch."""
    more = _more(batch, source)

    def arguments(config: QueueConfig) -> list[Argument]:
        given: list[Argument] = [more, batch.groups, batch.ids]
        if batch.fails or batch.flags[0] & _TOMBSTONES or config.keep_succeeded or config.max_running is not None:
            return given
        return CommonKeys(given, batch.groups[0] if len(batch.ids) == 1 else config.priorities)

    return arguments


class RefusedAcks(NamedTuple):
    """How many of the acks of a call were refused, by what they said of their jobs."""

    succeeded: int = 0
    failed: int = 0

    def plus(self, *, succeeded: bool) -> RefusedAcks:
        """With one more."""
        return RefusedAcks(self.succeeded + succeeded, self.failed + (not succeeded))


#: Of calls without refused acks, as nearly all are.
NONE_REFUSED: Final = RefusedAcks()


def ack_calls(
    session: Session, calls: Sequence[_core.AckCall], any_source: bool, deadline_s: float
) -> Flow[list[RefusedAcks | PinLaterError]]:
    """Ends the jobs of several calls of one queue, each by the source of its call. Returns for each call how many of
    its jobs were refused, or the error of one of its shards.

    any_source: end a job whoever claimed it.
    """
    shards = {(call.queue, shard) for call in calls for shard in call.shards()}
    batches = batches_of([session.queue_shard(*each) for each in shards], calls, any_source)
    results = yield from together([ack_batch(session, batch, deadline_s) for batch in batches])
    return outcomes_of(calls, batches, results)


def outcomes_of(
    calls: Sequence[_core.AckCall],
    batches: Sequence[_core.AckBatch],
    results: Sequence[list[int] | PinLaterError],
) -> list[RefusedAcks | PinLaterError]:
    """Of each call how many of its jobs were refused, or the error of one of its batches.

    batches: of batches_of. results: of each batch the positions of the refused jobs, or its error.
    """
    outcomes: list[RefusedAcks | PinLaterError] = [NONE_REFUSED] * len(calls)
    if not any(results):
        return outcomes
    for batch, result in zip(batches, results, strict=True):
        if not result:
            continue
        firsts = [0, *accumulate(call.count for call in calls)]
        for position in batch.positions if isinstance(result, PinLaterError) else result:
            call = bisect_right(firsts, position) - 1
            known = outcomes[call]
            if isinstance(result, PinLaterError):
                outcomes[call] = result
            elif isinstance(known, RefusedAcks):
                outcomes[call] = known.plus(succeeded=position - firsts[call] < calls[call].succeeded)
    return outcomes


def ack_call(session: Session, call: _core.AckCall, any_source: bool, deadline_s: float) -> Flow[RefusedAcks]:
    """As ack_calls, for one call. Raises the error of one of its shards."""
    [outcome] = yield from ack_calls(session, [call], any_source, deadline_s)
    if isinstance(outcome, PinLaterError):
        raise outcome
    return outcome


def batches_of(
    queue_shards: Sequence[QueueShard], calls: Sequence[_core.AckCall], any_source: bool
) -> list[_core.AckBatch]:
    """The script calls for the acks of several calls of one queue. Positions are those of the jobs in all calls.

    queue_shards: all that the calls name.
    """
    keeps = any(each.stored is None or each.stored.config.keep_succeeded for each in queue_shards)
    _, failed = _core.count_acks(calls)
    batches: list[_core.AckBatch] = _core.group_ack_calls(
        calls, any_source, CALL_JOBS if keeps or failed else MAX_BATCH
    )
    return batches


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


def _more(batch: _core.AckBatch, source: str | None) -> bytes:
    name = b"" if source is None else source.encode()
    sources = batch.sources if source is None else bytes([len(name)]) + name
    if not (sources or batch.statuses or any(batch.flags)):
        return b""
    return batch.flags + len(sources).to_bytes(2, "big") + sources + batch.statuses


def queue_shards_of_acks(succeeded: list[Any], failed: list[Any]) -> dict[tuple[str, str], tuple[list[bytes], int]]:
    """The ids of an ack and the bytes of its statuses, by queue and shard. Raises InvalidArgument like ack() without a
    source.
    """
    queue_shards: dict[tuple[str, str], tuple[list[bytes], int]] = {}
    for batch in _with_source(checked(_core.group_acks, succeeded, failed), None):
        ids, size = queue_shards.get((batch.queue, batch.shard), ([], 0))
        queue_shards[batch.queue, batch.shard] = [*ids, *batch.ids], size + len(batch.statuses)
    return queue_shards


def release(session: Session, jobs: Iterable[Claimed], source: str | None, deadline_s: float) -> Flow[list[Any]]:
    """Releases jobs unchanged. Returns those that were refused."""
    jobs = list(jobs)
    batches = checked(_core.group_releases, jobs)
    flows = [
        _held_batch(session, batch, "release", [source or "", batch.groups, batch.ids], deadline_s)
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


def checkpoint_by_source(
    session: Session, checkpoints: Iterable[Checkpoint], source: str, deadline_s: float
) -> Flow[list[Any]]:
    """Stores the progress of running jobs as the Thrift interface has it. Returns the checkpoints that were refused.

    Each has the descriptor of its job. Without move_to_pending a time is ignored. Of a job that is named twice
    only the last checkpoint counts. Attempts below 1 count as 1.

    source: who claimed the jobs, at most 255 bytes. An empty one fits claims that were made with an empty one.
    """
    last = {item.job: item for item in checkpoints}
    items = [_as_thrift_has_it(item) for item in last.values()]
    return (yield from checkpoint(session, items, source, deadline_s, own_leases=True))


def _as_thrift_has_it(item: Checkpoint) -> Checkpoint:
    timed = item if item.move_to_pending else replace(item, run_after_ms=None, delay_ms=None)
    attempts = None if item.attempts is None else max(1, item.attempts)
    return replace(timed, attempts=attempts)


def checkpoint(
    session: Session,
    checkpoints: Iterable[Checkpoint],
    source: str | None,
    deadline_s: float,
    *,
    own_leases: bool = False,
) -> Flow[list[Any]]:
    """Stores the progress of running jobs. Returns the checkpoints that were refused.

    source: as of an ack.
    own_leases: renew the leases of these jobs alone, not those of their whole claims, of which `renew` speaks.
    """
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
        _CheckpointCalls(
            session, batch, [checkpoints[position] for position in batch.positions], source, own_leases
        ).run(deadline_s)
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

    def __init__(
        self, session: Session, batch: _core.AckBatch, chosen: list[Checkpoint], source: str | None, own_leases: bool
    ) -> None:
        self._queue_shard = session.queue_shard(check_queue_name(batch.queue), batch.shard)
        self._batch, self._chosen, self._source, self._own_leases = batch, chosen, source or "", own_leases
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
            self._packed = _pack_checkpoints(self._batch, self._chosen, config, self._own_leases)
        part = in_parts(self._packed[first : first + CALL_JOBS], _size)[0]
        statuses = [struct.pack(">HH", at, len(text)) + text for at, (_, text, _) in enumerate(part) if text]
        bodies = [body for _, _, body in part if body is not None]
        return [self._source, b"".join(item for item, _, _ in part), b"".join(statuses), *bodies]


def _size(packed: _PackedCheckpoint) -> int:
    """The bytes of its status and its body."""
    return len(packed[1]) + len(packed[2] or b"")


def _pack_checkpoints(
    batch: _core.AckBatch, chosen: list[Checkpoint], config: QueueConfig, own_leases: bool
) -> list[_PackedCheckpoint]:
    found: list[_PackedCheckpoint] = []
    for (priority, token), id_, item in zip(_priorities_and_tokens(batch.groups), batch.ids, chosen, strict=True):
        # the limits are those of a new job
        pack_jobs([checked(_checkpoint_as_job, item)], config)
        what = (
            (_BODY if item.body is not None else 0)
            | (_MOVE if item.move_to_pending else 0)
            | (_ATTEMPTS if item.attempts is not None else 0)
            | (_STATUS if item.status else 0)
            | (_OWN_LEASE if own_leases else 0)
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


def _with_source(batches: list[_core.AckBatch], source: str | None) -> list[_core.AckBatch]:
    if source is not None:
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
    return (yield from complete(write(queue_shard, verb, arguments, deadline_s), partial(refused_of, batch)))


def refused_of(batch: _core.AckBatch, reply: list[Any]) -> list[int]:
    """The positions of the refused jobs, in the caller's list, by the reply to a call on a batch."""
    return [batch.positions[index] for (index,) in struct.iter_unpack(">H", reply[2])]


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
