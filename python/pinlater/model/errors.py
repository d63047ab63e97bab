"""All errors of PinLater in one tree, and the tables that map error replies to them.

PinLaterError
├── InvalidArgument (also ValueError)   the call is wrong; nothing was sent
├── ClientClosed (also RuntimeError)    the client was closed; nothing was changed
├── NotOnThrift                         the Thrift interface has no such call; nothing was sent
├── CallTimeout (also TimeoutError)     there was more to read than its time allowed; nothing was changed
├── QueueError
│   ├── QueueNotFound
│   ├── EnqueueRefused                  the queue's configuration takes no new jobs
│   │   └── DequeueOnly                 the shards that they could go to take no new jobs
│   ├── DequeueRefused                  over Thrift: the queue gives no jobs now
│   ├── QueueFull                       a shard holds as many jobs of the queue as it may
│   ├── EpochChanged                    the call is meant for another epoch of the queue
│   └── ConfigConflict                  another client keeps changing the configuration
├── ServerError
│   ├── ServerUnavailable               nothing was changed
│   │   └── ShardUnhealthy              its last pings failed, so nothing was sent
│   │       └── NoHealthyShards         nor is any other shard healthy
│   ├── ServerFull                      maxmemory; nothing was changed
│   ├── ServerRefused                   wrong password, missing permission, unknown command
│   ├── ServerTooOld
│   ├── FormatUnsupported               a queue on it has data of another version of PinLater
│   ├── ServerReplyError                an answer no version of PinLater gives
│   └── EmbeddedServerError             the embedded server can not be had
├── ArchiveError                        MySQL refused, or answered what nobody expected
│   ├── ArchiveUnavailable              nothing of the transaction was done; try later
│   ├── ArchiveOutcomeUnknown           the transaction may have been done
│   ├── ArchiveDuplicate                the row is there already; nothing of the transaction was done
│   ├── ArchiveRefused                  wrong password, missing right
│   └── ArchiveNotReady                 tables are missing, or of another version of PinLater
├── OutcomeUnknown                      the call may have been carried out; `resolve()` asks again
├── PartialOutcome                      done for some jobs, certainly not for others
├── PartialEnqueue                      some parts of a large enqueue were refused
├── PartialDelete                       a queue still exists on some shards
├── BodyUnreadable                      the task's codec cannot read the job's body
├── ClaimLost                           another worker has the job, or it was removed
├── TaskFailed                          the job failed for good
├── AppFailed                           the user's code raised before the first job
├── ResultGone                          neither the job nor its result exists any more
└── ResultTimeout (also TimeoutError)   no result in time; the job may still end
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class PinLaterError(Exception):
    """Base class of all errors of PinLater."""


class InvalidArgument(PinLaterError, ValueError):
    """An argument is wrong. Nothing was sent, and nothing was changed."""


class UnknownHome(InvalidArgument):
    """The limits of a queue count on a shard that this client does not have. Nothing was sent."""


class ClientClosed(PinLaterError, RuntimeError):
    """The client was closed before the call, or while the call waited for a job. Nothing was changed."""


class NotOnThrift(PinLaterError):
    """The Thrift interface has no such call, or no such argument. Nothing was sent.

    what: the call or the argument. instead: what to use.
    """

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(f"{what} is not on the Thrift interface; {instead}")
        self.what, self.instead = what, instead


class CallTimeout(PinLaterError, TimeoutError):
    """The servers answered, but the call had more to read than its time allowed. Nothing was changed."""


class QueueError(PinLaterError):
    """The queue's state does not allow the call. Nothing was changed."""


class QueueNotFound(QueueError):
    """The queue does not exist."""


class JobUnknown(QueueError):
    """The queue has not given this id yet: the descriptor is wrong or of another server, or the server lost the job."""


class EnqueueRefused(QueueError):
    """The queue's configuration refuses new jobs (`refuse_enqueue`)."""


class DequeueOnly(EnqueueRefused):
    """The shards that new jobs could go to are dequeue-only: all of them, or the home shard of a queue with
    `max_running`.
    """


class DequeueRefused(QueueError):
    """A Thrift server gives no jobs of the queue now: its rate has no tokens left, or it is paused."""


class QueueFull(QueueError):
    """A shard holds as many jobs of the queue as its setting `refuse_above` allows. None of the new ones came in."""


class NotAtHome(QueueError):
    """The queue has `max_running`, so its jobs live on its home shard alone, and this client does not know that one."""


class EpochChanged(QueueError):
    """The call is meant for another epoch of the queue: the queue was deleted and made again, or its server lost its
    data.
    """


class ConfigConflict(QueueError):
    """Until the deadline, another client changed the queue's configuration before each try of the call."""


class ServerError(PinLaterError):
    """The server could not carry out the call, or refused it."""


class ServerUnavailable(ServerError):
    """No server answered. Certainly nothing was changed."""


class ShardUnhealthy(ServerUnavailable):
    """The server of a shard did not answer its last pings. Nothing was sent; a ping finds out when it answers again."""


class NoHealthyShards(ShardUnhealthy):
    """No shard that could take the call is healthy."""


class ServerFull(ServerError):
    """The server reached its maxmemory. It takes no new jobs; everything else works."""


class ServerRefused(ServerError):
    """The server refused the login or the command."""


class ServerTooOld(ServerError):
    """The server's version is below 7.0."""


class FormatUnsupported(ServerError):
    """A queue's data on a server are in the format of another version of PinLater; nothing was changed."""


class ServerReplyError(ServerError):
    """This version of PinLater does not know the server's answer."""


class EmbeddedServerError(ServerError):
    """The embedded server cannot be started or used."""


class ArchiveError(PinLaterError):
    """The archive's MySQL could not carry out a transaction, or refused it. Nothing of it was done."""


class ArchiveUnavailable(ArchiveError):
    """MySQL does not answer, is read-only or too busy. Certainly nothing of the transaction was done."""


class ArchiveOutcomeUnknown(ArchiveError):
    """The answer to a COMMIT was lost: the transaction was done as a whole, or not at all."""


class ArchiveDuplicate(ArchiveError):
    """A row with this key is there already. Nothing of the transaction was done."""


class ArchiveRefused(ArchiveError):
    """MySQL refused the login, or the user lacks a right."""


class ArchiveNotReady(ArchiveError):
    """The archive's tables are missing, or are of a version that this program cannot use."""


class OutcomeUnknown(PinLaterError):
    """The call was sent, but no answer came in time. It may have been carried out, or not. Or a checkpoint that took
    several requests failed after the first one.

    `resolve()` sends the same request again on the same lane. The request is carried out at most once, and the answer
    is the real one. Then it does the rest of a checkpoint. On an AsyncClient, `resolve()` returns an awaitable. While
    it raises OutcomeUnknown, it can be called again, for an hour.
    """

    def __init__(self, message: str, resume: Callable[[float], Any]) -> None:
        super().__init__(message)
        #: Deadline (monotonic seconds) -> the flow that sends the request again.
        self.resume = resume
        #: Runs such a flow. Set by the client that made the call.
        self.drive: Callable[[Callable[[float], Any]], Any] | None = None

    def part(self, index: int) -> OutcomeUnknown:
        """The unknown outcome of one of several calls that left as one request: resolve() returns its own part."""
        own = OutcomeUnknown(str(self), lambda deadline_s: _part_of(self.resume(deadline_s), index))
        own.drive = self.drive
        return own

    def resolve(self) -> Any:
        """Returns the result of the call, or raises its error."""
        if self.drive is None:
            raise PinLaterError("resolve(): this error did not come from a client")
        return self.drive(self.resume)


def _part_of(flow: Generator[Any, Any, Any], index: int) -> Generator[Any, Any, Any]:
    try:
        return (yield from flow)[index]
    except OutcomeUnknown as error:
        raise error.part(index) from None


class PartialOutcome(PinLaterError):
    """A call was carried out for some of its jobs only. It took several requests: one a queue shard and 1,000 jobs, or
    250 jobs of an ack with failures.

    - result: the call's result for the jobs in `done`.
    - done: the jobs whose requests were carried out, as the caller passed them.
    - failed: for each request that certainly changed nothing, its jobs and the error.
    - unknown: for each request that may have been carried out, its jobs and the OutcomeUnknown. Its resolve() returns
      the call's result for them.

    Each job is in one of the three, and only once. A call without a list of jobs (retry_failed, delete_jobs by state,
    purge) has empty lists; `result` is the count so far, and another call goes on.
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

    results: for each job in order, its descriptor (str) or the error of its part. resolve() of an OutcomeUnknown
    returns the job's descriptor.
    """

    def __init__(self, results: Sequence[str | PinLaterError]) -> None:
        before: Counter[int] = Counter()
        self.results = list(results)
        for position, result in enumerate(results):
            if isinstance(result, OutcomeUnknown):
                # the answer for a part is the list of its jobs' descriptors, in this order
                self.results[position] = result.part(before[id(result)])
                before[id(result)] += 1
        failed = [result for result in self.results if isinstance(result, PinLaterError)]
        super().__init__(
            f"enqueue_many: {len(failed)} of {len(self.results)} jobs are not certain to be in: {failed[0]}"
        )


class PartialDelete(PinLaterError):
    """A queue could not be deleted on every shard. errors: shard name -> the error of that shard."""

    def __init__(self, queue: str, errors: dict[str, PinLaterError]) -> None:
        self.errors = errors
        by_shard = "; ".join(f"shard {shard}: {error}" for shard, error in errors.items())
        super().__init__(f"delete_queue {queue!r}: not deleted everywhere, call it again: {by_shard}")


class BodyUnreadable(PinLaterError):
    """A job's body cannot be read. The message names the part."""


class ClaimLost(PinLaterError):
    """Another worker has the running job, or it was removed. PinLater discards what this worker does with it."""


class TaskFailed(PinLaterError):
    """The job failed for good, so it has no result.

    descriptor: the job. status: its custom status, with its failed attempts, the newest last.
    """

    def __init__(self, descriptor: str, status: str) -> None:
        super().__init__(f"job {descriptor} failed: {status.strip() or 'no reason was kept'}")
        self.descriptor = descriptor
        self.status = status


class AppFailed(PinLaterError):
    """The user's code raised before the first job: in the module of the app or handler, or in the lifespan.

    `__cause__` is the user's error.
    """


class ResultGone(PinLaterError):
    """Neither the job nor its result exists any more."""


class ResultTimeout(PinLaterError, TimeoutError):
    """No result came in time. The job goes on, and another call may get its result."""


#: First word of a script's error reply -> the error to raise.
SCRIPT_CODES: dict[str, type[PinLaterError]] = {
    "QUEUE_NOT_FOUND": QueueNotFound,
    "ENQUEUE_REFUSED": EnqueueRefused,
    "QUEUE_FULL": QueueFull,
    "NOT_AT_HOME": NotAtHome,
    "EPOCH_CHANGED": EpochChanged,
    "RESERVATION_GONE": QueueError,  # of prepare and load, which no client sends
    "TOO_MANY": InvalidArgument,
    "BAD_REQUEST": InvalidArgument,
    "STALE_REQUEST": ServerReplyError,
    "CONFIG_CHANGED": ConfigConflict,
    "FORMAT_UNSUPPORTED": FormatUnsupported,
}

#: First word of a server's error reply -> the error to raise. With all of these the script did not run, unless the text
#: says that a command of the script was refused.
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
    "NOSCRIPT": ServerUnavailable,  # flushed again between load and call
}


def from_reply(text: str, where: str) -> PinLaterError:
    """The error for an error reply.

    text: the reply, code first. where: call, queue and server, for the message.
    """
    code, _, rest = text.partition(" ")
    kind = SCRIPT_CODES.get(code) or SERVER_CODES.get(code) or ServerReplyError
    if kind is ServerFull:
        rest = "the server is at its maxmemory and takes no new jobs; acks and dequeues still work"
    return kind(f"{where}: {rest or code}" if code in SCRIPT_CODES or kind is ServerFull else f"{where}: {text}")


def checked(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Calls a function of `pinlater._core` and turns its refusals into InvalidArgument. No other code does."""
    try:
        return function(*arguments, **options)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidArgument(str(error)) from None
