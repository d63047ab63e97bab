"""What a worker and its task processes say to each other, over a pair of sockets.

Promises that nothing is pickled: a message is a list in msgpack behind its length, and a job's arguments go as the
bytes of its body. Risks: none known.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import Any, Final

import msgpack

from pinlater.model.jobs import Job
from pinlater.tasks import envelope

_LENGTH_BYTES: Final = 4


class Said(IntEnum):
    """What a message is about; what follows it in the list.

    From the worker: JOB (parts of the job), KEPT (name and text of the error that a checkpoint raised, or nothing).
    From the process: READY; BROKEN (it can not start: error, its traceback); BEGUN (it has the job); KEEP (the job's
    new body); RETURNED (the value as envelope.pack_result has it, or nil); ENDED (a word of framework.ends, its reason,
    its delay, headers to keep); FAILED (error, its traceback, status, delay_ms, final).
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


def pack(said: Said, *rest: Any) -> bytes:
    """A message as it is written. Raises what msgpack raises."""
    message: bytes = msgpack.packb([said, *rest], datetime=True)
    return len(message).to_bytes(_LENGTH_BYTES, "big") + message


async def read(reader: asyncio.StreamReader) -> list[Any]:
    """The next message, or EOFError."""
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    packed = await reader.readexactly(length)
    return _unpack(packed)


def readable(message: bytes) -> bytes:
    """The same, if read() can read it: msgpack packs more than it reads. Raises what msgpack raises."""
    _unpack(message[_LENGTH_BYTES:])
    return message


def _unpack(packed: bytes) -> list[Any]:
    message: list[Any] = envelope.unpack_msgpack(packed)
    return message


def parts_of(job: Job) -> list[Any]:
    """What Job() makes the same job of."""
    told = [job.queue, job.shard, job.priority, job.id, job.body, job.token]
    return [*told, job.attempts_allowed, job.attempts_remaining]
