"""What a call of the wire is answered when it cannot be carried out: which error has which code.

Promises that every error of PinLater has a code of the interface, and that its message says what was expected.
"""

from __future__ import annotations

import re
from typing import Final

from pinlater.model.errors import (
    EnqueueRefused,
    NoHealthyShards,
    OutcomeUnknown,
    PartialDelete,
    PartialEnqueue,
    PartialOutcome,
    PinLaterError,
    QueueFull,
    QueueNotFound,
    ServerError,
    ServerFull,
    UnknownHome,
)
from pinlater.server.interface import structs

ErrorCode: Final = structs.ErrorCode

#: The first matching entry counts.
CODES: Final[tuple[tuple[type[PinLaterError], int], ...]] = (
    (QueueNotFound, ErrorCode.QUEUE_NOT_FOUND),
    (EnqueueRefused, ErrorCode.ENQUEUE_REJECTED),
    (QueueFull, ErrorCode.ENQUEUE_REJECTED),
    (ServerFull, ErrorCode.ENQUEUE_REJECTED),
    (NoHealthyShards, ErrorCode.NO_HEALTHY_SHARDS),
    (ServerError, ErrorCode.SHARD_CONNECTION_FAILED),
    (UnknownHome, ErrorCode.SHARD_CONNECTION_FAILED),
    (OutcomeUnknown, ErrorCode.SHARD_CONNECTION_FAILED),
)


#: What messages of the core name, as the interface names it.
_NAMES: Final = {
    "create_queue": "createQueue",
    "delete_queue": "deleteQueue",
    "enqueue_many": "enqueueJobs",
    "pattern:": "bodyRegexToMatch:",
}
_NAMED: Final = re.compile("|".join(rf"\b{re.escape(name)}" for name in _NAMES))


class Refused(PinLaterError):
    """A call is answered with a PinLaterException."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class WrongCall(Exception):
    """A call is answered with a TApplicationException of type 6, as the original does for what cannot be meant."""


def refusal_of(error: PinLaterError) -> Refused:
    """The answer for an error of the core."""
    return Refused(code_of(error), message_of(error))


def message_of(error: PinLaterError) -> str:
    """The message of an error, for clients that know the interface alone."""
    return _NAMED.sub(lambda match: _NAMES[match[0]], str(error))


def code_of(error: PinLaterError) -> int:
    """The code of an error. One of several parts has the code of the first part that failed."""
    if isinstance(error, PartialEnqueue):
        return code_of(next(each for each in error.results if isinstance(each, PinLaterError)))
    if isinstance(error, PartialDelete):
        return code_of(next(iter(error.errors.values())))
    if isinstance(error, PartialOutcome):
        return code_of(error.failed[0][1])
    found: int = next((code for kind, code in CODES if isinstance(error, kind)), ErrorCode.UNKNOWN)
    return found
