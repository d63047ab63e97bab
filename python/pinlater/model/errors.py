"""Every error PinLater raises, in one tree, and the one table that turns what a server says into them.

PinLaterError
├── InvalidArgument (also ValueError)   the call is wrong; nothing was sent
├── QueueError
│   ├── QueueNotFound
│   ├── EnqueueRefused                  the queue's configuration takes no new jobs
│   └── ConfigConflict                  somebody else keeps changing the configuration
├── ServerError
│   ├── ServerUnavailable               nothing was changed
│   ├── ServerFull                      maxmemory; nothing was changed
│   ├── ServerRefused                   wrong password, missing permission, a command the server does not know
│   ├── ServerTooOld
│   ├── FormatUnsupported               a queue on it has data of another version of PinLater
│   ├── ServerReplyError                an answer no version of PinLater gives
│   └── EmbeddedServerError             the embedded server can not be had
├── OutcomeUnknown                      the call may have been carried out; `resolve()` asks again
├── PartialOutcome                      done for some jobs, certainly not for others
├── PartialEnqueue                      some parts of a large enqueue were refused
├── PartialDelete                       a queue is still there on some shards
├── BodyUnreadable                      a job's body is not what its task's codec wrote
├── ClaimLost                           a running job belongs to somebody else by now
├── TaskFailed                          the job whose result was asked for stays failed
├── AppFailed                           the user's code raised before the first job
├── ResultGone                          there is neither the job nor a result of it
└── ResultTimeout (also TimeoutError)   no result in time; the job may still end
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class PinLaterError(Exception):
    """Base of all errors of PinLater."""


class InvalidArgument(PinLaterError, ValueError):
    """An argument is not what was expected; nothing was sent and nothing changed."""


class ClientClosed(PinLaterError, RuntimeError):
    """The client was closed before the call, or while it waited for a job; nothing was changed."""


class QueueError(PinLaterError):
    """The queue is not in a state that allows the call; nothing was changed."""


class QueueNotFound(QueueError):
    """There is no such queue."""


class EnqueueRefused(QueueError):
    """The queue's configuration refuses new jobs (`refuse_enqueue`)."""


class ConfigConflict(QueueError):
    """Whenever the call was sent, until its deadline, somebody else had changed the queue's configuration."""


class ServerError(PinLaterError):
    """The server could not or would not do it."""


class ServerUnavailable(ServerError):
    """No server answered; it is certain that nothing was changed."""


class ServerFull(ServerError):
    """The server reached its maxmemory: it takes no new jobs, everything else works."""


class ServerRefused(ServerError):
    """The server refused the login or the command."""


class ServerTooOld(ServerError):
    """The server's version is below 7.0."""


class FormatUnsupported(ServerError):
    """A queue's data on a server are in the format of another version of PinLater; nothing was changed."""


class ServerReplyError(ServerError):
    """The server answered something this version of PinLater does not know."""


class EmbeddedServerError(ServerError):
    """The embedded server cannot be had."""


class OutcomeUnknown(PinLaterError):
    """The call was sent and no answer came in time: it may have been carried out, or not.

    `resolve()` sends the same request again, on the same lane: it is carried out at most once, and the answer is the
    real one. On an AsyncClient `resolve()` returns an awaitable. It can be called again while it raises OutcomeUnknown,
    for an hour.
    """

    def __init__(self, message: str, resume: Callable[[float], Any]) -> None:
        super().__init__(message)
        #: deadline (monotonic seconds) -> the flow that asks again
        self.resume = resume
        #: set by the client whose call this was
        self.drive: Callable[[Callable[[float], Any]], Any] | None = None

    def part(self, index: int) -> OutcomeUnknown:
        """What is unknown to one of several whose requests left as one: resolve() gives its own part of the answer."""
        own = OutcomeUnknown(str(self), lambda deadline_s: _part_of(self.resume(deadline_s), index))
        own.drive = self.drive
        return own

    def resolve(self) -> Any:
        """Returns what the call would have returned, or raises what it would have raised."""
        if self.drive is None:
            raise PinLaterError("resolve(): this error did not come from a client")
        return self.drive(self.resume)


def _part_of(flow: Generator[Any, Any, Any], index: int) -> Generator[Any, Any, Any]:
    try:
        return (yield from flow)[index]
    except OutcomeUnknown as error:
        raise error.part(index) from None


class PartialOutcome(PinLaterError):
    """A call on jobs in several places (shards, queues, or over 1,000 jobs of one) was not carried out in all of them.

    result: what the call returns of the jobs in `done`. done: the jobs, as the caller gave them, of the places that
    answered. failed: for each place where certainly nothing was changed, its jobs and the error. unknown: for each
    place where it may have been carried out, its jobs and the OutcomeUnknown, whose resolve() gives what the call
    returns of them. Each job given stands in one of the three (named twice: once). A call that goes in rounds
    (retry_failed, delete_jobs by state, purge) names no jobs: `result` is the count so far, and calling it again goes
    on.
    """

    def __init__(
        self,
        message: str,
        result: Any,
        done: Sequence[Any] = (),
        failed: Sequence[tuple[list[Any], PinLaterError]] = (),
        unknown: Sequence[tuple[list[Any], OutcomeUnknown]] = (),
    ) -> None:
        super().__init__(message)
        self.result = result
        self.done = list(done)
        self.failed = list(failed)
        self.unknown = list(unknown)


class PartialEnqueue(PinLaterError):
    """A large enqueue_many was carried out in part.

    `results` has, for each job in order, its descriptor (str) or the error of the part it was in; resolve() of an
    unknown outcome gives the job's descriptor.
    """

    def __init__(self, results: Sequence[str | PinLaterError]) -> None:
        before: Counter[int] = Counter()
        self.results = list(results)
        for position, result in enumerate(results):
            if isinstance(result, OutcomeUnknown):
                # the answer for a part is the descriptors of its jobs, in this order
                self.results[position] = result.part(before[id(result)])
                before[id(result)] += 1
        failed = [result for result in self.results if isinstance(result, PinLaterError)]
        super().__init__(
            f"enqueue_many: {len(failed)} of {len(self.results)} jobs are not certain to be in: {failed[0]}"
        )


class PartialDelete(PinLaterError):
    """A queue could not be deleted on every shard; `errors` maps shard names to what went wrong there."""

    def __init__(self, queue: str, errors: dict[str, PinLaterError]) -> None:
        self.errors = errors
        told = "; ".join(f"shard {shard}: {error}" for shard, error in errors.items())
        super().__init__(f"delete_queue {queue!r}: not deleted everywhere, call it again: {told}")


class BodyUnreadable(PinLaterError):
    """A job's body can not be read; the message says at which part."""


class ClaimLost(PinLaterError):
    """A running job was given to another worker, or removed: what this one does is not kept."""


class TaskFailed(PinLaterError):
    """The job whose result was asked for stays failed. descriptor: which one. status: its custom status: what is kept
    of its failed attempts, the newest last.
    """

    def __init__(self, descriptor: str, status: str) -> None:
        super().__init__(f"job {descriptor} failed: {status.strip() or 'nothing is kept of why'}")
        self.descriptor = descriptor
        self.status = status


class AppFailed(PinLaterError):
    """The user's code that comes before the first job raised: the module of the app or handler, or the lifespan.

    `__cause__`: what.
    """


class ResultGone(PinLaterError):
    """There is neither the job nor a result of it."""


class ResultTimeout(PinLaterError, TimeoutError):
    """No result came in time. The job goes on; asking again is fine."""


#: First word of an error reply of our scripts -> the error it becomes.
SCRIPT_CODES: dict[str, type[PinLaterError]] = {
    "QUEUE_NOT_FOUND": QueueNotFound,
    "ENQUEUE_REFUSED": EnqueueRefused,
    "RESERVATION_GONE": QueueError,  # of prepare and load, which no client sends
    "TOO_MANY": InvalidArgument,
    "BAD_REQUEST": InvalidArgument,
    "STALE_REQUEST": ServerReplyError,
    "CONFIG_CHANGED": ConfigConflict,
    "FORMAT_UNSUPPORTED": FormatUnsupported,
}

#: First word of an error reply of the server -> the error it becomes. All of them mean that the script did not run.
SERVER_CODES: dict[str, type[PinLaterError]] = {
    "OOM": ServerFull,
    "NOAUTH": ServerRefused,
    "WRONGPASS": ServerRefused,
    "NOPERM": ServerRefused,
    "LOADING": ServerUnavailable,
    "READONLY": ServerUnavailable,
    "MASTERDOWN": ServerUnavailable,
    "CLUSTERDOWN": ServerUnavailable,
    "MISCONF": ServerUnavailable,
    "NOREPLICAS": ServerUnavailable,
    "BUSY": ServerUnavailable,
    "TRYAGAIN": ServerUnavailable,
    "NOSCRIPT": ServerUnavailable,  # flushed again while it was loaded
}


def from_reply(text: str, where: str) -> PinLaterError:
    """The error for an error reply.

    text: the reply, its code first. where: which call, queue and server, for the message.
    """
    code, _, rest = text.partition(" ")
    kind = SCRIPT_CODES.get(code) or SERVER_CODES.get(code) or ServerReplyError
    if kind is ServerFull:
        rest = "the server is at its maxmemory and takes no new jobs; acks and dequeues still work"
    return kind(f"{where}: {rest or code}" if code in SCRIPT_CODES or kind is ServerFull else f"{where}: {text}")


def checked(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Calls the native part: the one edge where its refusals become InvalidArgument."""
    try:
        return function(*arguments, **options)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidArgument(str(error)) from None
