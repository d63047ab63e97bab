"""Makes a call for several jobs until it is answered, however long the server is away.

Promises that an item which no server takes is found, and that the others are carried out without it.
Risk: an item that a server drops without an answer is found after VAIN_TRIES timeouts of the client for each half of
its batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pinlater.model.errors import InvalidArgument, OutcomeUnknown, PinLaterError, QueueNotFound, ServerReplyError
from pinlater.model.pauses import Pauses
from pinlater.operations.parts import in_parts

log: Final = logging.getLogger("pinlater.worker")

#: A server that answered another request after each of so many tries does not take this call.
VAIN_TRIES: Final = 3

T = TypeVar("T")


class Answer(NamedTuple, Generic[T]):
    """refused: items that the worker does not hold. rejected: items that no server takes, each with the reason."""

    refused: list[T]
    rejected: list[tuple[T, Exception]]


async def persist(
    call: Callable[[list[T]], Awaitable[list[Any]]],
    items: list[T],
    size: Callable[[T], int] | None,
    answers: Callable[[T], Awaitable[bool]],
) -> Answer[T]:
    """Carries out the call for all items, in parts that are one script call each.

    call: returns refused items; it applies to all items that it gets, or to none.
    size: of an item, in bytes; None: the items are one part.
    answers: whether the server of an item answers another request.
    """
    if size is None:
        return await _persist_part(call, items, answers)
    answer: Answer[T] = Answer([], [])
    for part in in_parts(items, size):
        refused, rejected = await _persist_part(call, part, answers)
        answer.refused.extend(refused)
        answer.rejected.extend(rejected)
    return answer


async def _persist_part(
    call: Callable[[list[T]], Awaitable[list[Any]]], items: list[T], answers: Callable[[T], Awaitable[bool]]
) -> Answer[T]:
    pauses, in_vain = Pauses(), 0
    resolve: Callable[[], Any] | None = None
    why: PinLaterError
    while True:
        try:
            return Answer(await (call(items) if resolve is None else resolve()), [])
        except OutcomeUnknown as error:
            resolve, why = error.resolve, error
        except QueueNotFound:
            return Answer(items, [])  # the queue was deleted, and its jobs with it
        except InvalidArgument as error:
            return await _halve(call, items, answers, error)
        except PinLaterError as error:
            resolve, why = None, error
        except Exception as error:  # a value that cannot be packed
            return await _halve(call, items, answers, error)
        pause_s = pauses.take()
        log.warning("%d jobs not acked yet, trying again in %.1f s: %s", len(items), pause_s, why)
        await asyncio.sleep(pause_s)
        # a server closes the connection, or answers with an error, where a request is too large for it
        suspect = isinstance(why, OutcomeUnknown | ServerReplyError)
        in_vain = in_vain + 1 if suspect and await answers(items[0]) else 0
        if in_vain >= VAIN_TRIES:
            return await _halve(call, items, answers, why)


async def _halve(
    call: Callable[[list[T]], Awaitable[list[Any]]],
    items: list[T],
    answers: Callable[[T], Awaitable[bool]],
    why: Exception,
) -> Answer[T]:
    """Carries out the halves, each by itself. An item that is alone is the one at fault."""
    if len(items) == 1:
        return Answer([], [(items[0], why)])
    middle = len(items) // 2
    first = await _persist_part(call, items[:middle], answers)
    second = await _persist_part(call, items[middle:], answers)
    return Answer(first.refused + second.refused, first.rejected + second.rejected)
