"""Makes a call for several jobs until it is answered, however long the server is away.

Promises that an item which no server takes is found, and that the others are carried out without it.
Risk: an item that a server drops without an answer is found after VAIN_TRIES timeouts of the client for each half of
its batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pinlater.model.errors import InvalidArgument, OutcomeUnknown, PinLaterError, QueueNotFound, ServerReplyError
from pinlater.model.pauses import Pauses
from pinlater.operations.parts import in_parts

log: Final = logging.getLogger("pinlater.worker")

#: A server that answered another request after each of so many tries does not take this call.
VAIN_TRIES: Final = 3
#: A smaller request is never too large for a server: an answer to it is awaited without end.
LARGE_BYTES: Final = 64 * 1024

T = TypeVar("T")


class Answer(NamedTuple, Generic[T]):
    """refused: items that the worker does not hold. rejected: items that no server takes, each with the reason."""

    refused: list[T]
    rejected: list[tuple[T, Exception]]


@dataclass(frozen=True, slots=True)
class PersistentCall(Generic[T]):
    """A call for several jobs.

    call: returns what it refused; it applies to all items that it gets, or to none.
    refused_of: the items that the call refused, from all of them and from what it returned.
    answers: whether the server of an item answers another request.
    size: of an item, in bytes; None: the items are few bytes.
    """

    call: Callable[[list[T]], Awaitable[list[Any]]]
    refused_of: Callable[[list[T], list[Any]], list[T]]
    answers: Callable[[T], Awaitable[bool]]
    size: Callable[[T], int] | None = None

    async def run(self, items: list[T]) -> Answer[T]:
        """Carries out the call for all items, in parts that are one script call each."""
        if self.size is None:
            return await self._run_part(items)
        answer: Answer[T] = Answer([], [])
        for part in in_parts(items, self.size):
            refused, rejected = await self._run_part(part)
            answer.refused.extend(refused)
            answer.rejected.extend(rejected)
        return answer

    async def _run_part(self, items: list[T]) -> Answer[T]:
        pauses, in_vain = Pauses(), 0
        resolve: Callable[[], Any] | None = None
        why: PinLaterError
        while True:
            try:
                refused = await (self.call(items) if resolve is None else resolve())
                return Answer(self.refused_of(items, refused), [])
            except OutcomeUnknown as error:
                resolve, why = error.resolve, error
            except QueueNotFound:
                return Answer(items, [])  # the queue was deleted, and its jobs with it
            except InvalidArgument as error:
                return await self._halve(items, error)
            except PinLaterError as error:
                resolve, why = None, error
            except Exception as error:  # a value that cannot be packed
                return await self._halve(items, error)
            pause_s = pauses.take()
            log.warning("%d jobs not acked yet, trying again in %.1f s: %s", len(items), pause_s, why)
            await asyncio.sleep(pause_s)
            in_vain = in_vain + 1 if self._may_not_be_taken(items, why) and await self.answers(items[0]) else 0
            if in_vain >= VAIN_TRIES:
                return await self._halve(items, why)

    def _may_not_be_taken(self, items: list[T], why: PinLaterError) -> bool:
        """Whether another try of just this call may be in vain. A server drops a client whose request is too large."""
        large = self.size is not None and sum(map(self.size, items)) > LARGE_BYTES
        return isinstance(why, ServerReplyError) or (large and isinstance(why, OutcomeUnknown))

    async def _halve(self, items: list[T], why: Exception) -> Answer[T]:
        """Carries out the halves, each by itself. An item that is alone is the one at fault."""
        if len(items) == 1:
            return Answer([], [(items[0], why)])
        middle = len(items) // 2
        first, second = await self._run_part(items[:middle]), await self._run_part(items[middle:])
        return Answer(first.refused + second.refused, first.rejected + second.rejected)
