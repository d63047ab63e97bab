"""Answers to a Thrift client's calls: their frames as values, and their errors as errors of PinLater. No I/O.

Promises that an error which says that nothing was changed is true: after a change, the code of a lost shard leaves the
outcome unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

from thriftpy2.thrift import TApplicationException

import pinlater._core as _core
from pinlater.model.errors import (
    DequeueRefused,
    EnqueueRefused,
    InvalidArgument,
    NotOnThrift,
    OutcomeUnknown,
    PinLaterError,
    QueueNotFound,
    ServerError,
    ServerRefused,
    ServerUnavailable,
)
from pinlater.server.interface import InvalidCall, read_failure, read_result, structs
from pinlater.server.messages import BadMessage, Failure, MessageType, read_answer_head

_Code: Final = structs.ErrorCode
_ERRORS: Final[dict[int, type[PinLaterError]]] = {
    _Code.CONTINUATION_INVALID: InvalidArgument,
    _Code.PASSWORD_INVALID: ServerRefused,
    _Code.QUEUE_NAME_INVALID: InvalidArgument,
    _Code.QUEUE_NAME_TOO_LONG: InvalidArgument,
    _Code.QUEUE_NOT_FOUND: QueueNotFound,
    _Code.PRIORITY_NOT_SUPPORTED: InvalidArgument,
    _Code.DEQUEUE_RATE_LIMITED: DequeueRefused,
    _Code.ENQUEUE_REJECTED: EnqueueRefused,
    _Code.UNKNOWN: ServerError,
    _Code.NO_HEALTHY_SHARDS: ServerUnavailable,
    _Code.SHARD_CONNECTION_FAILED: ServerUnavailable,
}


def reader(method: str, sequence: int) -> Callable[[bytes], Any]:
    """What reads the answer to a call: its result, or the library's exception that it has, as a value.

    Raises BadMessage for the frame of anything else.
    """

    def read(frame: bytes) -> Any:
        head, kind = read_answer_head(frame)
        if (head.method, head.sequence) != (method, sequence):
            raise BadMessage(f"expected the answer to {method}, got one to {head.method!r:.80}")
        try:
            _core.check_message(frame, head.end)
        except _core.BadMessage as error:
            raise BadMessage(str(error)) from None
        if kind is MessageType.EXCEPTION:
            return read_failure(head, frame)
        try:
            return read_result(head, frame)
        except structs.PinLaterException as refused:
            return refused
        except InvalidCall as error:
            raise BadMessage(str(error)) from None

    return read


def result_of(answer: Any, method: str, server: str, *, changes: bool) -> Any:
    """The result of a call, or its error. server: for messages. changes: whether the call changes something."""
    where = f"{method} at {server}"
    if isinstance(answer, structs.PinLaterException):
        if changes and answer.errorCode == _Code.SHARD_CONNECTION_FAILED:
            raise unknown(f"{where}: {answer.message}")
        raise _ERRORS[answer.errorCode](f"{where}: {answer.message}")
    if isinstance(answer, TApplicationException):
        if answer.type == Failure.UNKNOWN_METHOD:
            raise ServerError(f"{where}: the server is no PinLater: {answer.message}")
        wrong = answer.type in (Failure.INTERNAL_ERROR, Failure.PROTOCOL_ERROR)
        raise (InvalidArgument if wrong else ServerError)(f"{where}: {answer.message}")
    return answer


def unknown(message: str) -> OutcomeUnknown:
    """The error of a change whose outcome nobody knows. Its resolve() raises NotOnThrift."""
    error = OutcomeUnknown(message, _resolve)
    error.drive = lambda resume: resume(0.0)
    return error


def _resolve(_: float) -> NoReturn:
    raise NotOnThrift("resolve()", "look at what is there (lookup, count, scan) before you repeat the call")
