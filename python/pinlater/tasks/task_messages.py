"""The messages between a worker and its task processes, over a pair of sockets.

Promises that nothing is pickled: a message is a list in msgpack behind its length, and a job's arguments travel as the
bytes of its body.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import Any, Final

import msgpack

from pinlater.model.jobs import Job
from pinlater.tasks import envelope

_LENGTH_BYTES: Final = 4


class MessageKind(IntEnum):
    """The first item of a message. It says what the other items are.

    The worker sends:
        JOB: the task's name and the parts of the job (job_parts).
        KEPT: name and text of the error that a checkpoint raised, or nothing.

    The process sends:
        READY: nothing.
        BROKEN: why it can not start: the error and its traceback, as text.
        STARTED: nothing; it has the job.
        KEEP: the job's new body, for a checkpoint.
        RETURNED: the value as envelope.pack_result packs it, or None.
        ENDED: the name of a TaskEnd, its reason, its delay in seconds, headers to keep.
        FAILED: the error and its traceback as text, then status, delay_ms and final of the Failed.
    """

    READY = 1
    JOB = 2
    KEEP = 3
    KEPT = 4
    RETURNED = 5
    ENDED = 6
    FAILED = 7
    STARTED = 8
    BROKEN = 9


def pack(kind: MessageKind, *items: Any) -> bytes:
    """A message as bytes. Raises what msgpack raises."""
    message: bytes = msgpack.packb([kind, *items], datetime=True)
    return len(message).to_bytes(_LENGTH_BYTES, "big") + message


async def read(reader: asyncio.StreamReader) -> list[Any]:
    """The next message. Raises EOFError at the end of the stream."""
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    return _unpack(await reader.readexactly(length))


def check_readable(message: bytes) -> bytes:
    """Returns the message. Raises what msgpack raises if read() could not read it: msgpack packs more than it reads."""
    _unpack(message[_LENGTH_BYTES:])
    return message


def _unpack(packed: bytes) -> list[Any]:
    message: list[Any] = envelope.unpack_msgpack(packed)
    return message


def job_parts(job: Job) -> list[Any]:
    """The arguments from which Job() makes an equal job."""
    claimed = [job.queue, job.shard, job.priority, job.id, job.body, job.token]
    return [*claimed, job.attempts_allowed, job.attempts_remaining]
