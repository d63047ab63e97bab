"""A pending job between Redis and MySQL: as scripts give and take it, and as a row of the table `jobs`.

Promises that a job comes back as it left: every field of its record, its extras and its score is in the row, and
nothing is rounded.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pinlater.model.errors import ServerReplyError

#: The head of a record: format, attempts allowed, priority (docs/design.md §3).
_RECORD: Final = struct.Struct(">BHB")
_RECORD_FORMAT: Final = 1
#: Extras without the status: attempts left, updated (ms), crashes.
_EXTRAS: Final = struct.Struct(">H6sH")
#: One job of the script `restore`: priority, id, run-after (ms), sixteenths of a ms, bytes of its extras.
_RESTORED: Final = struct.Struct(">BQ6sBH")
_ID_BYTES: Final = 8


class Extras(NamedTuple):
    """What a job has besides its record. status: UTF-8."""

    attempts_left: int
    updated_ms: int
    crashes: int
    status: bytes


class MovingJob(NamedTuple):
    """One job.

    run_after_ms, sixteenths: its score, in ms and sixteenths of a ms (lua/lib/original_score.lua).
    extras: None for a job that has none.
    """

    id: int
    priority: int
    run_after_ms: int
    sixteenths: int
    attempts: int
    extras: Extras | None
    body: bytes

    @classmethod
    def from_redis(cls, scored: bytes, record: bytes, extras: bytes) -> MovingJob:
        """The job of three elements of `read_batch`. scored: its id and its score as text."""
        format_, attempts, priority = _RECORD.unpack_from(record)
        if format_ != _RECORD_FORMAT:
            raise ServerReplyError(f"job {scored[:_ID_BYTES].hex()}: expected a record of format 1, got {format_}")
        ms, _, fraction = scored[_ID_BYTES:].partition(b".")
        sixteenths = round(float(b"0." + fraction) * 16) if fraction else 0
        more = None
        if extras:
            left, updated, crashes = _EXTRAS.unpack_from(extras)
            more = Extras(left, int.from_bytes(updated, "big"), crashes, extras[_EXTRAS.size :])
        id_ = int.from_bytes(scored[:_ID_BYTES], "big")
        return cls(id_, priority, int(ms), sixteenths, attempts, more, record[_RECORD.size :])

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> MovingJob:
        """The job of the columns that `row` gives."""
        id_, priority, run_after_ms, sixteenths, attempts, left, updated_ms, crashes, status, body = row
        extras = None if left is None else Extras(left, updated_ms, crashes, bytes(status))
        return cls(id_, priority, run_after_ms, sixteenths, attempts, extras, bytes(body))

    def row(self) -> tuple[Any, ...]:
        """Columns of the table `jobs`: id, priority, run_after_ms, sixteenths, attempts, attempts_left, updated_ms,
        crashes, status, body.
        """
        return (*self[:5], *(self.extras or (None, None, None, None)), self.body)

    def for_redis(self) -> tuple[bytes, bytes]:
        """The job's part of the argument `jobs` of the script `restore`, and its record."""
        extras = b""
        if self.extras is not None:
            left, updated_ms, crashes, status = self.extras
            extras = _EXTRAS.pack(left, updated_ms.to_bytes(6, "big"), crashes) + status
        ms = self.run_after_ms.to_bytes(6, "big")
        head = _RESTORED.pack(self.priority, self.id, ms, self.sixteenths, len(extras))
        return head + extras, _RECORD.pack(_RECORD_FORMAT, self.attempts, self.priority) + self.body


def pack_ids(ids: Sequence[int]) -> bytes:
    """Ids as scripts and tables have them: 8 bytes each."""
    return struct.pack(f">{len(ids)}Q", *ids)


def unpack_ids(packed: bytes) -> list[int]:
    """The ids of pack_ids."""
    return list(struct.unpack(f">{len(packed) // _ID_BYTES}Q", packed))
