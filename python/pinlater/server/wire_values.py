"""Values of the wire as the core takes them, and back. No I/O.

Promises what docs/thrift.md says of odd values: which are changed, which name nothing, and which are refused.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable
from typing import Any, Final

import pinlater._core as _core
from pinlater.model.errors import InvalidArgument, checked
from pinlater.model.jobs import Checkpoint, JobInfo, State
from pinlater.server.errors import ErrorCode, Refused, WrongCall
from pinlater.server.interface import structs

_QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_]+", re.ASCII)
_DESCRIPTOR: Final = re.compile(r"([^:]*):s([^:]+):p([0-9]+):([0-9]+)", re.ASCII)
_STATES: Final = {state.code: state for state in State}
#: A queue's name has at most this many characters.
MAX_QUEUE_NAME: Final = 255
#: The longest source in bytes. A longer one is cut in each call alike, so a claim and its acks agree.
MAX_SOURCE_BYTES: Final = 255
MAX_I32: Final = 2**31 - 1


def new_queue_name(name: str) -> str:
    """The name of a queue that is to be created. Raises Refused."""
    if not _QUEUE_NAME.fullmatch(name):
        message = f"queue name: expected letters, digits and underscores, got {name!r:.80}"
        raise Refused(ErrorCode.QUEUE_NAME_INVALID, message)
    if len(name) > MAX_QUEUE_NAME:
        message = f"queue name: expected at most {MAX_QUEUE_NAME} characters, got {len(name):,}"
        raise Refused(ErrorCode.QUEUE_NAME_TOO_LONG, message)
    return name


def may_exist(queue: str) -> bool:
    """Whether a queue can have this name. No call but createQueue refuses a name: it is that of an unknown queue."""
    return len(queue) <= MAX_QUEUE_NAME and _QUEUE_NAME.fullmatch(queue) is not None


def source_of(context: Any) -> str:
    """The source of a call."""
    return cut(context.source, MAX_SOURCE_BYTES)


def cut(text: str, most: int) -> str:
    """The first bytes of a text, cut between characters."""
    encoded = text.encode("utf-8", "replace")
    return text if len(encoded) <= most else encoded[:most].decode("utf-8", "ignore")


def limit_of(request: Any) -> int:
    """The limit of a call. Raises WrongCall for a negative one."""
    limit: int = request.limit
    if limit < 0:
        raise WrongCall(f"limit: expected 0 or more, got {limit}")
    return limit


def mark_of_scan(request: Any) -> str:
    """What the continuations of a scan begin with: those of another scan begin with something else."""
    asked = request.queueName, request.jobState, request.priority, request.scanFutureJobs, request.bodyRegexToMatch
    return f"{zlib.crc32(repr(asked).encode()):08x}:"


def position_of(continuation: str, mark: str) -> str:
    """The position in a scan that a continuation names. Raises Refused for what is no continuation of this scan."""
    if continuation == structs.CONTINUATION_START:
        return ""
    if not continuation.startswith(mark):
        raise Refused(
            ErrorCode.CONTINUATION_INVALID,
            f'continuation: expected "{structs.CONTINUATION_START}" or that of an earlier page of this scan, '
            f"got {continuation!r:.80}",
        )
    return continuation.removeprefix(mark)


def attempts_of(attempts: int) -> int:
    """Attempts as the core takes them: at least 1."""
    return min(max(attempts, 1), _core.MAX_ATTEMPTS)


def time_of(time_ms: int | None) -> int | None:
    """A run-after time as the core takes it; None: now."""
    return min(time_ms, _core.MAX_TIME_MS) if time_ms is not None and time_ms > 0 else None


def existing(descriptors: Iterable[str], shards: Collection[str]) -> list[str]:
    """Those of the descriptors that a job can have. Raises Refused for what is no descriptor.

    shards: the names of the shards that jobs may be of.
    """
    found = []
    for descriptor in descriptors:
        match = _DESCRIPTOR.fullmatch(descriptor)
        if match is None:
            raise Refused(
                ErrorCode.UNKNOWN,
                f"job descriptor: expected queue:s<shard>:p<priority>:<id>, got {descriptor!r:.120}",
            )
        if match[2] not in shards:
            message = f"job descriptor {descriptor!r:.120}: expected a shard of {', '.join(shards)}, got {match[2]!r}"
            raise Refused(ErrorCode.UNKNOWN, message)
        if _is_possible(descriptor):
            found.append(descriptor)
    return found


def by_queue(descriptors: Iterable[str]) -> dict[str, list[str]]:
    """Descriptors by their queues."""
    found: dict[str, list[str]] = {}
    for descriptor in descriptors:
        found.setdefault(descriptor.partition(":")[0], []).append(descriptor)
    return found


def _is_possible(descriptor: str) -> bool:
    try:
        checked(_core.parse_descriptor, descriptor)
    except InvalidArgument:
        return False
    return True


def checkpoints_of(request: Any, shards: Collection[str]) -> list[Checkpoint]:
    """The checkpoints of a call: of a job that is named twice the last. Raises Refused."""
    last = {each.jobDescriptor: each for each in request.requests}
    named = existing(last, shards)
    return [_checkpoint(last[descriptor]) for descriptor in named if descriptor.split(":")[0] == request.queueName]


def _checkpoint(request: Any) -> Checkpoint:
    body, moves = request.newBody, bool(request.moveToPending)
    attempts = request.numOfAttemptsAllowed
    return Checkpoint(
        job=request.jobDescriptor,
        body=body.encode() if isinstance(body, str) else body,
        move_to_pending=moves,
        run_after_ms=time_of(request.runAfterTimestampMillis) if moves else None,
        attempts=None if attempts is None else attempts_of(attempts),
        status=cut(request.prependCustomStatus or "", _core.MAX_STATUS_BYTES),
    )


def state_of(code: int) -> State:
    """The state with this number."""
    return _STATES[code]


def job_info(info: JobInfo) -> Any:
    """A job as the wire has it."""
    return structs.PinLaterJobInfo(
        jobDescriptor=info.descriptor,
        jobState=info.state.code,
        attemptsRemaining=info.attempts_remaining,
        customStatus=info.status,
        createdAtTimestampMillis=info.created_ms,
        runAfterTimestampMillis=info.run_after_ms,
        updatedAtTimestampMillis=info.updated_ms,
        claimDescriptor=info.claim or None,
        body=info.body,
        attemptsAllowed=info.attempts_allowed,
    )
