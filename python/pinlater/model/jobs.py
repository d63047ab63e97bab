"""Values of jobs: to enqueue (NewJob), claimed (Job), looked up (JobInfo), to end (Ack).

Promises immutable values. `pinlater._core` packs and unpacks their bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

import pinlater._core as _core
from pinlater._core import Job, NewJob
from pinlater.model.errors import InvalidArgument

__all__ = ["Ack", "Checkpoint", "Claimed", "CountsByState", "Job", "JobInfo", "NewJob", "State"]


class State(Enum):
    """The state of a job. The value is its name in the CLI and in JSON, and its text: `str(State.FAILED)`."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    SUCCEEDED = "succeeded"
    FAILED = "failed"

    def __str__(self) -> str:
        return self.value

    @property
    def code(self) -> int:
        """Its number in Lua and Thrift."""
        return _CODES[self]

    @classmethod
    def of(cls, value: State | str) -> State:
        """The state, or the state of that name. Raises InvalidArgument."""
        try:
            return cls(value)
        except ValueError:
            names = ", ".join(state.value for state in cls)
            raise InvalidArgument(f"state: expected one of {names}, got {value!r}") from None


_CODES: Final = {State.PENDING: 0, State.IN_PROGRESS: 1, State.SUCCEEDED: 2, State.FAILED: 3}
_STATES: Final = {code: state for state, code in _CODES.items()}

#: A job that the caller holds: the Job from a dequeue, or (descriptor, token of the claim).
Claimed: TypeAlias = Job | tuple[str, bytes]


class Ack(NamedTuple):
    """The end of one running job, with details.

    - job: the Job, or (descriptor, token); (descriptor, None) if the call has a `source`.
    - status: text that is appended to the job's custom status, at most 3,000 bytes.
    - delay_ms: time until a failed job is tried again.
    """

    job: Claimed | tuple[str, None] | str
    status: str = ""
    delay_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Progress of one running job.

    - job: the Job, or (descriptor, token).
    - body: the new body.
    - move_to_pending: releases the job; it runs again at run_after_ms, after delay_ms, or at once.
    - attempts: new number of attempts allowed and remaining.
    - status: text that is put in front of the custom status.
    """

    job: Claimed | tuple[str, None] | str
    body: bytes | None = None
    move_to_pending: bool = False
    run_after_ms: int | None = None
    delay_ms: int | None = None
    attempts: int | None = None
    status: str = ""


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A looked-up job. Times are milliseconds since 1970 by Redis's clock.

    - run_after_ms: of a pending job, its run-after time; of a running job, the time of its claim; else None.
    - updated_ms: the last change of state or status.
    - crashes: how often its worker died or let the lease expire.
    - claim: the claim descriptor of a running job, else "".
    - body: None unless the call asked for it.
    """

    descriptor: str
    state: State
    priority: int
    attempts_allowed: int
    attempts_remaining: int
    status: str
    created_ms: int
    run_after_ms: int | None
    updated_ms: int
    crashes: int
    claim: str
    body: bytes | None

    @property
    def headline(self) -> str:
        """The newest entry of the status, without its indented lines."""
        lines = self.status.splitlines()
        return next((line for line in reversed(lines) if line[:1].strip()), lines[-1] if lines else "")

    @classmethod
    def unpack(cls, queue: str, shard: str, packed: bytes) -> JobInfo:
        """Reads one "Job info" of docs/design.md §4."""
        code, priority, id_, allowed, remaining, run_after_ms, updated_ms, crashes, status, claim, body = (
            _core.unpack_info(packed)
        )
        return cls(
            descriptor=_core.format_descriptor(queue, shard, priority, id_),
            state=_STATES[code],
            priority=priority,
            attempts_allowed=allowed,
            attempts_remaining=remaining,
            status=status,
            created_ms=id_ >> 19,
            run_after_ms=run_after_ms or None,
            updated_ms=updated_ms,
            crashes=crashes,
            claim=claim,
            body=body,
        )


@dataclass(frozen=True, slots=True)
class CountsByState:
    """Numbers of jobs. pending: due now. scheduled: due later."""

    pending: int = 0
    scheduled: int = 0
    in_progress: int = 0
    succeeded: int = 0
    failed: int = 0

    @classmethod
    def unpack(cls, packed: bytes) -> list[CountsByState]:
        """Reads the reply of `count`: one value a priority, priority 1 first."""
        return [cls(*numbers) for numbers in struct.iter_unpack(">5I", packed)]

    def __add__(self, other: CountsByState) -> CountsByState:
        return CountsByState(
            self.pending + other.pending,
            self.scheduled + other.scheduled,
            self.in_progress + other.in_progress,
            self.succeeded + other.succeeded,
            self.failed + other.failed,
        )
