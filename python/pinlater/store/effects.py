"""Effects, their answers, and ways to combine flows.

A flow is a generator that yields effects. A driver (`sync_driver.py`, `async_driver.py`) carries out each effect and
sends its result into the flow. Nothing in this file does I/O.

Promises that flows which run together send together, in one pipeline a server, and that each ends on its own whatever
happens to the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import pinlater._core as _core
from pinlater.model.errors import OutcomeUnknown, PartialOutcome, PinLaterError
from pinlater.store.servers import Server

#: An argument of a script. Of Records each string is one.
Argument: TypeAlias = bytes | str | int | _core.Records
#: The words of a command, or its bytes as they are sent.
Command: TypeAlias = tuple[bytes | str | int, ...] | bytes

#: Shortest wait for an answer, even if the deadline is nearer: less would lose answers that are about to arrive.
LEAST_WAIT_S: Final = 1.0


@dataclass(slots=True)  # not frozen: that doubles the cost of making one
class Send:
    """Effect: send commands to one server, in one pipeline. Result: one answer a command, in order.

    deadline_s: end of the wait for the answers, in monotonic seconds. blocking: the commands may block on the server
    without limit, so the wait has no limit. ping: send them although the server is unhealthy.
    """

    server: Server
    commands: Sequence[Command]
    deadline_s: float = float("inf")
    blocking: bool = False
    ping: bool = False

    def wait_s(self, read_timeout_s: float) -> float:
        """Time to wait for an answer, from now."""
        if self.blocking:
            return float("inf")
        left_s = self.deadline_s - time.monotonic()
        return read_timeout_s if left_s >= read_timeout_s else min(read_timeout_s, max(LEAST_WAIT_S, left_s))


@dataclass(frozen=True, slots=True)
class Sleep:
    """Effect: wait. Result: None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Leave:
    """Effect: close the free connections to a server, and its subscriptions. Requests under way go on. Result: None."""

    server: Server


@dataclass(frozen=True, slots=True)
class Listen:
    """Effect: subscribe to these channels of the client, except on servers that do not answer. Result: the number of
    notifications so far.
    """

    channels: Sequence[tuple[Server, bytes]]


@dataclass(frozen=True, slots=True)
class AwaitNotification:
    """Effect: wait for a notification after number `since`, the loss of a subscription, or `seconds`. Result: None."""

    seconds: float
    since: int


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Effect: subscribe to a channel of a server. Result: the subscription, or None if the server does not answer
    within `seconds`.

    The subscription has `lost` (no message comes any more) and close().
    """

    server: Server
    channel: bytes
    seconds: float


@dataclass(frozen=True, slots=True)
class AwaitMessage:
    """Effect: wait for a message, the loss of the subscription, or `seconds`. Result: None."""

    subscription: Any
    seconds: float


@dataclass(frozen=True, slots=True)
class Coalesce:
    """Effect: run one flow for all items of a key that are yielded in one turn of an event loop. Result: the item's.

    make: makes the flow for a list of items; it returns one result an item.
    """

    key: Hashable
    item: Any
    make: Callable[[list[Any]], Flow[list[Any]]]


class Database(Protocol):
    """The archive's database (`archive_driver.py`)."""

    def transaction(self, work: Callable[[Any], Any]) -> Any:
        """Runs `work` in one transaction and returns its value."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """Effect: run `work` in one transaction of a database. Result: its value. A PinLaterError is raised in the flow."""

    database: Database
    work: Callable[[Any], Any]

    def outcome(self) -> Any:
        """Runs it, and blocks. Returns its value or its PinLaterError."""
        try:
            return self.database.transaction(self.work)
        except PinLaterError as error:
            return error


@dataclass(frozen=True, slots=True)
class Transactions:
    """Effect: run transactions, side by side where the driver can. Result: of each its value or PinLaterError."""

    each: Sequence[Transaction]


Effect: TypeAlias = (
    list[Send]
    | Sleep
    | Leave
    | Listen
    | AwaitNotification
    | Subscribe
    | AwaitMessage
    | Coalesce
    | Transaction
    | Transactions
)
T = TypeVar("T")
R = TypeVar("R")
Flow: TypeAlias = Generator[Effect, Any, T]


@dataclass(frozen=True, slots=True)
class ReplyError:
    """Answer: an error reply. text: its code, then its message."""

    text: str


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Answer: there is no reply. sent: the server may have received the command."""

    sent: bool
    error: PinLaterError


def resume(flow: Flow[Any], outcome: Any) -> Effect:
    """Goes on with a flow behind a Transaction. outcome: its value or PinLaterError. Returns the next effect."""
    return flow.throw(outcome) if isinstance(outcome, PinLaterError) else flow.send(outcome)


def send(server: Server, *commands: Command, deadline_s: float) -> Flow[list[Any]]:
    """Sends idempotent commands and returns the answers. Sends them once more if an answer was lost."""
    answers: list[Any] = (yield [Send(server, commands, deadline_s)])[0]
    if any(isinstance(answer, NoAnswer) and answer.sent for answer in answers):
        answers = (yield [Send(server, commands, deadline_s)])[0]
    return answers


def together(flows: Sequence[Flow[T]]) -> Flow[list[T | PinLaterError]]:
    """Runs flows concurrently; returns their results or PinLaterErrors, in order.

    What they send to one server at a time goes into one pipeline.
    """
    results: list[Any] = [None] * len(flows)
    waiting: dict[int, Effect] = {}
    sleep_end_s: dict[int, float] = {}

    def advance(index: int, value: Any, *, of_transaction: bool = False) -> None:
        flow = flows[index]
        try:
            effect = waiting[index] = resume(flow, value) if of_transaction else flow.send(value)
            if isinstance(effect, Sleep):
                sleep_end_s[index] = time.monotonic() + effect.seconds  # sleeps overlap
        except StopIteration as stop:
            results[index] = stop.value
        except PinLaterError as error:
            results[index] = error

    for index in range(len(flows)):
        advance(index, None)
    while waiting:
        sends = {index: effect for index, effect in waiting.items() if isinstance(effect, list)}
        if sends:
            for index, answers in (yield from _send_merged(sends)).items():
                del waiting[index]
                advance(index, answers)
        elif transactions := {index: effect for index, effect in waiting.items() if isinstance(effect, Transaction)}:
            outcomes = yield Transactions([*transactions.values()])
            for index, outcome in zip(transactions, outcomes, strict=True):
                del waiting[index]
                advance(index, outcome, of_transaction=True)
        else:
            index = min(waiting, key=lambda index: sleep_end_s.get(index, 0.0))
            effect = waiting.pop(index)
            if isinstance(effect, Sleep):
                effect = Sleep(max(0.0, sleep_end_s.pop(index) - time.monotonic()))
            advance(index, (yield effect))
    return results


def _send_merged(sends: dict[int, list[Send]]) -> Flow[dict[int, list[list[Any]]]]:
    commands: dict[Server, list[Command]] = {}
    deadline_s: dict[Server, float] = {}
    for effects in sends.values():
        for effect in effects:
            commands.setdefault(effect.server, []).extend(effect.commands)
            deadline_s[effect.server] = max(deadline_s.get(effect.server, 0.0), effect.deadline_s)
    answers = yield [Send(server, merged, deadline_s[server]) for server, merged in commands.items()]
    streams = {server: iter(found) for server, found in zip(commands, answers, strict=True)}
    return {
        index: [[next(streams[effect.server]) for _ in effect.commands] for effect in effects]
        for index, effects in sends.items()
    }


def complete(flow: Flow[T], finish: Callable[[T], R]) -> Flow[R]:
    """Runs a flow and passes its result through `finish`. So does resolve() of an unknown outcome."""
    try:
        result = yield from flow
    except OutcomeUnknown as error:
        raise completed(error, finish) from None
    return finish(result)


def completed(error: OutcomeUnknown, finish: Callable[[Any], Any]) -> OutcomeUnknown:
    """The same unknown outcome, whose resolve() passes the result through `finish`."""
    resume = error.resume
    return OutcomeUnknown(str(error), lambda deadline_s: complete(resume(deadline_s), finish))


def all_of(
    flows: Sequence[Flow[T]], combine: Callable[[list[T]], R], items_of: Callable[[int], list[Any]] | None = None
) -> Flow[R]:
    """Runs flows concurrently to their ends, then combines their results.

    - items_of: index of a flow -> the caller's items of that flow; None for reads.

    Raises the first error if no write was carried out, and for reads. Raises PartialOutcome if some writes were
    certainly not carried out and others were, or may have been. Raises OutcomeUnknown if every other write was carried
    out; its resolve() settles the unknown ones and combines all results.
    """
    results = yield from together(flows)
    return (yield from _settle(results, combine, items_of))


def _settle(
    results: list[T | PinLaterError], combine: Callable[[list[T]], R], items_of: Callable[[int], list[Any]] | None
) -> Flow[R]:
    errors = [result for result in results if isinstance(result, PinLaterError)]
    certain = [error for error in errors if not isinstance(error, OutcomeUnknown)]
    if certain and (items_of is None or len(certain) == len(results)):
        raise certain[0]
    if certain and items_of is not None:
        raise _partial(results, combine, items_of)
    if errors:
        raise OutcomeUnknown(str(errors[0]), lambda deadline_s: _resume_all(results, combine, items_of, deadline_s))
    return combine([result for result in results if not isinstance(result, PinLaterError)])
    yield  # makes this a generator


def _partial(
    results: list[T | PinLaterError], combine: Callable[[list[T]], R], items_of: Callable[[int], list[Any]]
) -> PartialOutcome:
    found: list[T] = []
    done: list[Any] = []
    failed: list[tuple[list[Any], PinLaterError]] = []
    unknown: list[tuple[list[Any], OutcomeUnknown]] = []
    for index, result in enumerate(results):
        items = items_of(index)
        if isinstance(result, OutcomeUnknown):
            unknown.append((items, completed(result, lambda part: combine([part]))))
        elif isinstance(result, PinLaterError):
            failed.append((items, result))
        else:
            found.append(result)
            done += items
    refused, open_ = (sum(len(items) for items, _ in parts) for parts in (failed, unknown))
    message = f"{len(done)} jobs done, {refused} certainly not, {open_} unknown: {failed[0][1]}"
    return PartialOutcome(message, combine(found), done, failed, unknown)


def _resume_all(
    results: list[T | PinLaterError],
    combine: Callable[[list[T]], R],
    items_of: Callable[[int], list[Any]] | None,
    deadline_s: float,
) -> Flow[R]:
    unknown = [index for index, result in enumerate(results) if isinstance(result, OutcomeUnknown)]
    again = yield from together([results[index].resume(deadline_s) for index in unknown])  # type: ignore[union-attr]
    for index, result in zip(unknown, again, strict=True):
        results[index] = result
    return (yield from _settle(results, combine, items_of))
