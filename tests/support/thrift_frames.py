"""Calls of the Thrift service as the bytes that clients send, and answers as tests read them."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from thriftpy2.protocol import TCyBinaryProtocolFactory
from thriftpy2.transport import TCyMemoryBuffer

from pinlater.server.interface import arguments_type, result_type, structs
from pinlater.server.messages import MessageType

_factory: Any = TCyBinaryProtocolFactory
_protocol = _factory().get_protocol
CONTEXT = structs.RequestContext(source="wire")


def framed(message: bytes) -> bytes:
    """A message behind its length."""
    return struct.pack(">i", len(message)) + message


def head(method: str, sequence: int = 1, kind: int = MessageType.CALL) -> bytes:
    """The head of a call."""
    name = method.encode()
    return struct.pack(">HBBi", 0x8001, 0, kind, len(name)) + name + struct.pack(">i", sequence)


def arguments(method: str, **values: Any) -> bytes:
    """The struct of the arguments of a call, with a context; `context=None` leaves it out."""
    names = {name for _, name, *_ in arguments_type(method).thrift_spec.values()}
    given = {"context": CONTEXT, **values} if "context" in names else values
    buffer = TCyMemoryBuffer()
    arguments_type(method)(**given).write(_protocol(buffer))
    return bytes(buffer.getvalue())


def call(method: str, sequence: int = 1, **values: Any) -> bytes:
    """The frame of a call."""
    return framed(head(method, sequence) + arguments(method, **values))


def enqueue(queue: str, *bodies: bytes, sequence: int = 1) -> bytes:
    """The frame of an enqueueJobs."""
    jobs = [structs.PinLaterJob(body=body) for body in bodies]
    return call("enqueueJobs", sequence, request=structs.PinLaterEnqueueRequest(queueName=queue, jobs=jobs))


def dequeue(queue: str, limit: int, sequence: int = 1, source: str = "wire") -> bytes:
    """The frame of a dequeueJobs."""
    request = structs.PinLaterDequeueRequest(queueName=queue, limit=limit)
    return call("dequeueJobs", sequence, context=structs.RequestContext(source=source), request=request)


def ack(queue: str, *descriptors: str, sequence: int = 1, source: str = "wire") -> bytes:
    """The frame of an ackDequeuedJobs: the jobs succeeded."""
    infos = [structs.PinLaterJobAckInfo(jobDescriptor=descriptor) for descriptor in descriptors]
    request = structs.PinLaterJobAckRequest(queueName=queue, jobsSucceeded=infos)
    return call("ackDequeuedJobs", sequence, context=structs.RequestContext(source=source), request=request)


class Answer(NamedTuple):
    """An answer. value: of a reply, its success; an error has a code (PinLaterException) or a failure (the type of a
    TApplicationException).
    """

    method: str
    sequence: int
    value: Any = None
    code: int | None = None
    failure: int | None = None
    message: str = ""


def read_answer(message: bytes) -> Answer:
    """The answer in a frame, without its length."""
    _, _, kind, length = struct.unpack_from(">HBBi", message)
    name = message[8 : 8 + length].decode()
    (sequence,) = struct.unpack_from(">i", message, 8 + length)
    rest = message[12 + length :]
    if kind == MessageType.EXCEPTION:
        (size,) = struct.unpack_from(">i", rest, 3)
        (number,) = struct.unpack_from(">i", rest, 7 + size + 3)
        return Answer(name, sequence, failure=number, message=rest[7 : 7 + size].decode())
    assert kind == MessageType.REPLY
    result = result_type(name)()
    result.read(_protocol(TCyMemoryBuffer(rest)))
    if result.e is not None:
        return Answer(name, sequence, code=result.e.errorCode, message=result.e.message)
    return Answer(name, sequence, value=getattr(result, "success", None))
