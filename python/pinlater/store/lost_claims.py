"""Claims whose answers were lost: what a queue shard remembers of them.

Promises that the next claim on the queue shard asks for the lost answer first, so that the jobs do not wait for the end
of their lease, and that a lease counts from the time when its claim was sent.
Two claims are never kept here. A caller of `dequeue` on a single shard gets the OutcomeUnknown and asks by `resolve()`.
A blocking claim has no deadline, so its lane asks until there is an answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from pinlater._core import Claim
from pinlater.model.errors import OutcomeUnknown, PinLaterError
from pinlater.store.effects import Flow, completed


class LostClaims:
    """Those of one queue shard. There are several only if several claims were under way. Threads may share it."""

    __slots__ = ("_errors", "_sent")

    def __init__(self) -> None:
        self._errors: deque[OutcomeUnknown] = deque()
        #: Of answers that came late: token -> when the claim was sent (boot_s), and its source.
        self._sent: dict[bytes, tuple[float, str]] = {}

    @property
    def pending(self) -> bool:
        """Whether an answer is missing."""
        return bool(self._errors)

    @property
    def remembered(self) -> bool:
        """Whether anything is known here that the next claims need."""
        return bool(self._errors or self._sent)

    def keep(self, error: OutcomeUnknown) -> None:
        """The next claim asks for this answer."""
        self._errors.append(error)

    def ask(self, deadline_s: float) -> Flow[Claim | None]:
        """A lost answer, which is then not missing any more; None: there is none. An OutcomeUnknown is the caller's to
        keep.
        """
        try:
            error = self._errors.popleft()
        except IndexError:
            return None
        try:
            claim: Claim = yield from error.resume(deadline_s)
        except PinLaterError:
            raise
        except BaseException:  # the caller was cancelled
            self.keep(error)
            raise
        return claim

    def answered_late(
        self, error: OutcomeUnknown, decode: Callable[[list[Any]], Claim], sent_s: float, source: str
    ) -> OutcomeUnknown:
        """The unknown outcome of a claim that was sent then, for this source. decode: makes a Claim of a script's
        reply.
        """

        def finish(reply: list[Any]) -> Claim:
            claim = decode(reply)
            if claim.jobs:
                self._sent[claim.token] = sent_s, source
            return claim

        return completed(error, finish)

    def take_sent_s(self, token: bytes, otherwise_s: float) -> float:
        """When the claim with this token was sent, if its answer came late. Whoever takes its jobs asks, once."""
        return self._sent.pop(token, (otherwise_s, ""))[0]

    def is_of(self, source: str, token: bytes) -> bool:
        """Whether the claim with this token, whose answer came late, was made for this source."""
        return self._sent[token][1] == source
