"""What becomes of one call: its frame goes to its method, and the answer's frame comes back.

Promises that each call whose head can be read gets exactly one answer, whatever its method raises.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from typing import Any, Final, TypeAlias

import pinlater._core as _core
from pinlater.model.errors import InvalidArgument, PinLaterError, UnknownHome
from pinlater.server.capacity import Capacity
from pinlater.server.errors import ErrorCode, Refused, WrongCall, message_of, refusal_of
from pinlater.server.interface import METHODS, InvalidCall, read_arguments, write_exception, write_result
from pinlater.server.messages import BadMessage, Failure, Head, application_exception, read_head
from pinlater.server.stats import ServerStats, Timings

log: Final = logging.getLogger("pinlater.server")

#: Called if a client left before it took the whole answer.
Lost: TypeAlias = Callable[[], None]
#: Sends the frame of an answer.
Answer: TypeAlias = Callable[[bytes, Lost | None], None]

_NO_ROOM: Final = "this server carries out as many calls as it may already; try again"


class UnknownMethod(Exception):
    """The interface has no such method."""


#: The types of a TApplicationException, by what a call raised. What is not here is a fault of this server.
FAILURES: Final[dict[type[BaseException], Failure]] = {
    UnknownMethod: Failure.UNKNOWN_METHOD,
    InvalidCall: Failure.PROTOCOL_ERROR,
    _core.MissingField: Failure.PROTOCOL_ERROR,
    WrongCall: Failure.INTERNAL_ERROR,
    InvalidArgument: Failure.INTERNAL_ERROR,
}


class Call:
    """One call that is carried out. Either `end` or `fail` ends it, once. It may receive the result of a batch."""

    __slots__ = ("_answer", "_calls", "_size", "_started_s", "_timings", "method", "sequence")

    def __init__(self, calls: Calls, method: str, timings: Timings, sequence: int, answer: Answer, size: int) -> None:
        self.method, self.sequence = method, sequence
        self._calls, self._timings, self._answer, self._size = calls, timings, answer, size
        self._started_s = monotonic()

    def end(self, frame: bytes, lost: Lost | None = None) -> None:
        """Answers. frame: of the answer. lost: called if the client leaves, or left, before it has the answer."""
        self._calls.capacity.give(self._size)
        self._timings.add(monotonic() - self._started_s)
        self._answer(frame, lost)

    def fail(self, error: BaseException) -> None:
        """Answers with the error that stands for this one."""
        self.end(self._calls.error_frame(Head(self.method, self.sequence, 0), error))

    # of store.call_batches.Receiver

    set_result = end
    set_exception = fail

    #: Returns False: a call is answered even if its client has left.
    done = staticmethod(bool)


class Calls:
    """Carries out the calls of all connections of a process. One that finds no room is refused."""

    def __init__(self, stats: ServerStats, capacity: Capacity) -> None:
        self.stats, self.capacity = stats, capacity
        #: What takes the arguments of a call and returns its result, by the name of the method.
        self.methods: dict[str, Callable[[Any], Awaitable[Any]]] = {}
        #: By the type of its requests: the name of a hot method, its timings, and what takes a call and its request.
        self._hot: dict[type, tuple[str, Timings, Callable[[Call, Any], None]]] = {}
        self._loop = asyncio.get_running_loop()
        #: What is under way for calls: of this class, and of whoever carries calls out.
        self.tasks: set[asyncio.Task[None]] = set()

    def add_hot(self, request: type, method: str, start: Callable[[Call, Any], None]) -> None:
        """Makes a method hot.

        request: the type of its requests. start: takes a call and its request, and ends the call.
        """
        self._hot[request] = method, self.stats.timings_of(method), start

    async def close(self) -> None:
        """Waits for all calls, and for what they left behind, such as jobs that nobody got."""
        while self.tasks or self.capacity.under_way:
            await asyncio.gather(*self.tasks, return_exceptions=True)
            await asyncio.sleep(0)  # a call may wait for this turn's flush

    def serve(self, frame: bytes, answer: Answer) -> bool:
        """Carries out the call in a frame. Returns whether there was room for it. Raises BadMessage.

        answer: called once with the frame of the answer.
        """
        size = len(frame)
        if not self.capacity.take(size):
            answer(self.error_frame(read_head(frame), Refused(ErrorCode.UNKNOWN, _NO_ROOM)), None)
            return False
        try:
            hot = _core.read_hot_call(frame)
        except ValueError as error:
            self._or_close(self._refuse, frame, answer, size, error)
            return True
        if hot is None:
            self._or_close(self._serve_other, frame, answer, size)
            return True
        sequence, request = hot
        method, timings, start = self._hot[type(request)]
        call = Call(self, method, timings, sequence, answer, size)
        try:
            start(call, request)
        except Exception as error:
            call.fail(error)
        return True

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine that ends a call, or does what a call left behind."""
        task = self._loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def error_frame(self, head: Head, error: BaseException) -> bytes:
        """The answer to a call that raised."""
        is_wrong = isinstance(error, InvalidArgument) and not isinstance(error, UnknownHome)
        if isinstance(error, PinLaterError) and not (is_wrong or isinstance(error, Refused)):
            error = refusal_of(error)
        if isinstance(error, Refused) and head.method in METHODS:
            self.stats.failed(head.method, ErrorCode._VALUES_TO_NAMES[error.code])
            return write_exception(head, error.code, str(error))
        self.stats.failed(head.method, type(error).__name__)
        for kind, failure in FAILURES.items():
            if isinstance(error, kind):
                text = message_of(error) if isinstance(error, InvalidArgument) else str(error)
                return application_exception(head, failure, text)
        log.error("%s: an unexpected error", head.method, exc_info=error)
        if head.method in METHODS:  # as the original; a client must not take it for a wrong call
            return write_exception(head, ErrorCode.UNKNOWN, f"unexpected {type(error).__name__}; see the server's log")
        return application_exception(head, Failure.INTERNAL_ERROR, f"unexpected {type(error).__name__}; see the log")

    def _or_close(self, serve: Callable[..., None], frame: bytes, answer: Answer, size: int, *more: Any) -> None:
        """Serves a call off the hot path. Raises BadMessage for a call that cannot be read, and frees its room."""
        try:
            serve(frame, answer, size, *more)
        except (BadMessage, _core.BadMessage) as error:
            self.capacity.give(size)
            raise BadMessage(str(error)) from None

    def _serve_other(self, frame: bytes, answer: Answer, size: int) -> None:
        """Carries out a call that is not hot, or whose head is not strict."""
        head = read_head(frame)
        call = self._call_of(head, answer, size)
        try:
            self._carry_out(call, head, frame)
        except _core.BadMessage:
            raise
        except Exception as error:
            call.fail(error)

    def _call_of(self, head: Head, answer: Answer, size: int) -> Call:
        return Call(self, head.method, self.stats.timings_of(head.method), head.sequence, answer, size)

    def _carry_out(self, call: Call, head: Head, frame: bytes) -> None:
        method = self.methods.get(head.method)
        if method is not None:
            _core.check_message(frame, head.end)
            self.start(_run(call, method(read_arguments(head, frame))))
        elif head.method in HOT_READERS:  # its head is not strict
            try:
                request = HOT_READERS[head.method](frame, head.end)
            except ValueError as error:
                raise _as_refusal(error) from None
            self._hot[type(request)][2](call, request)
        else:
            raise UnknownMethod(f"unknown method {head.method!r:.80}")

    def _refuse(self, frame: bytes, answer: Answer, size: int, error: ValueError) -> None:
        """Answers a hot call whose arguments are wrong."""
        refusal = _as_refusal(error)
        if isinstance(refusal, _core.BadMessage):
            raise refusal
        self._call_of(read_head(frame), answer, size).fail(refusal)


def _as_refusal(error: ValueError) -> Exception:
    """What a hot call is answered whose arguments cannot be read."""
    return error if isinstance(error, _core.BadMessage | _core.MissingField) else Refused(ErrorCode.UNKNOWN, str(error))


#: What reads the arguments of a hot call.
HOT_READERS: Final[dict[str, Callable[[bytes, int], Any]]] = {
    "enqueueJobs": _core.read_enqueue,
    "dequeueJobs": _core.read_dequeue,
    "ackDequeuedJobs": _core.read_ack,
}


async def _run(call: Call, result: Awaitable[Any]) -> None:
    try:
        answer = write_result(Head(call.method, call.sequence, 0), await result)
    except Exception as error:
        call.fail(error)
    else:
        call.end(answer)
