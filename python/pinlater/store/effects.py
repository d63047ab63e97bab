"""What a flow is made of: the effects it may yield, the answers it gets, and how flows are put together. No I/O stands
here.

A flow is a generator that yields effects; a driver (sync_transport, async_transport) carries them out and sends each
result back in. Promises that flows run together are sent together, one pipeline a server, and that each ends whatever
becomes of the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from pinlater.model.errors import OutcomeUnknown, PartialOutcome, PinLaterError
from pinlater.store.servers import Server

Argument: TypeAlias = bytes | str | int
#: Its arguments, or packed as it is sent.
Command: TypeAlias = tuple[Argument, ...] | bytes


#: What was sent is given so long to be answered, though the deadline be nearer: to stop listening at once would make
#: outcomes unknown that are about to be known.
LEAST_WAIT_S: Final = 1.0


@dataclass(slots=True)  # not frozen: that costs more than the rest of its making
class Send:
    """Effect: commands for one server, in one pipeline. Result: one answer a command, in order.

    deadline_s: monotonic seconds; a nearer one shortens the wait for the answers. blocking: the commands wait on the
    server for what may never come; so do the answers.
    """

    server: Server
    commands: Sequence[Command]
    deadline_s: float = float("inf")
    blocking: bool = False

    def wait_s(self, read_timeout_s: float) -> float:
        """How long to wait for an answer, if the commands leave now."""
        if self.blocking:
            return float("inf")
        left_s = self.deadline_s - time.monotonic()
        return read_timeout_s if left_s >= read_timeout_s else min(read_timeout_s, max(LEAST_WAIT_S, left_s))


@dataclass(frozen=True, slots=True)
class Sleep:
    """Effect: time passes."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Listen:
    """Effect: the client's wake channel is subscribed on these servers, and confirmed (or a server is down). Result:
    rings so far.
    """

    servers: Sequence[Server]


@dataclass(frozen=True, slots=True)
class AwaitNotification:
    """Effect: wait until there were more rings than `since`, a subscription is lost, or seconds have passed. Result:
    None.
    """

    seconds: float
    since: int


@dataclass(frozen=True, slots=True)
class Watch:
    """Effect: subscribes to a channel of a server. Result: the watch, whose `lost` says that nothing is heard any more
    and whose close() ends it, or None if the server does not answer.
    """

    server: Server
    channel: bytes


@dataclass(frozen=True, slots=True)
class AwaitMessage:
    """Effect: wait until the watch heard something, it is lost, or seconds have passed. Result: None."""

    watch: Any
    seconds: float


@dataclass(frozen=True, slots=True)
class Joined:
    """Effect: a question that others join: those of one key that are asked in the same turn of an event loop are
    answered by one flow. make: the flow of a list of items, which gives an answer an item. Result: this item's.
    """

    key: Hashable
    item: Any
    make: Callable[[list[Any]], Flow[list[Any]]]


Effect: TypeAlias = list[Send] | Sleep | Listen | AwaitNotification | Watch | AwaitMessage | Joined
T = TypeVar("T")
R = TypeVar("R")
Flow: TypeAlias = Generator[Effect, Any, T]


@dataclass(frozen=True, slots=True)
class ReplyError:
    """Answer: an error reply, code first."""

    text: str


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Answer: no reply came. sent: whether the server may have got the command."""

    sent: bool
    error: PinLaterError


def send(server: Server, *commands: Command, deadline_s: float) -> Flow[list[Any]]:
    """Sends commands that may as well be carried out twice; returns the answers. Where they were lost, once more."""
    answers: list[Any] = (yield [Send(server, commands, deadline_s)])[0]
    if any(isinstance(answer, NoAnswer) and answer.sent for answer in answers):
        answers = (yield [Send(server, commands, deadline_s)])[0]
    return answers


def together(flows: Sequence[Flow[T]]) -> Flow[list[T | PinLaterError]]:
    """Runs flows side by side, what they send to one server in one pipeline; returns results or PinLaterErrors, in
    order.
    """
    results: list[Any] = [None] * len(flows)
    waiting: dict[int, Effect] = {}
    wake_s: dict[int, float] = {}

    def advance(index: int, value: Any) -> None:
        try:
            effect = waiting[index] = flows[index].send(value)
            if isinstance(effect, Sleep):
                wake_s[index] = time.monotonic() + effect.seconds  # they sleep side by side, not one after the other
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
        else:
            index = min(waiting, key=lambda index: wake_s.get(index, 0.0))
            effect = waiting.pop(index)
            if isinstance(effect, Sleep):
                effect = Sleep(max(0.0, wake_s.pop(index) - time.monotonic()))
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
    """A flow and what its caller makes of its result; resolve() of an unknown outcome does both."""
    try:
        result = yield from flow
    except OutcomeUnknown as error:
        raise completed(error, finish) from None
    return finish(result)


def completed(error: OutcomeUnknown, finish: Callable[[Any], Any]) -> OutcomeUnknown:
    """An unknown outcome of whose answer resolve() gives what the caller makes of it."""
    resume = error.resume
    return OutcomeUnknown(str(error), lambda deadline_s: complete(resume(deadline_s), finish))


def all_of(
    flows: Sequence[Flow[T]], combine: Callable[[list[T]], R], items_of: Callable[[int], list[Any]] | None = None
) -> Flow[R]:
    """Runs flows side by side to their ends, then combines their results.

    items_of: what the caller gave of a flow, by the flow's index; None for reads. If only unknown outcomes keep it from
    the end, resolve() settles those, and then combines. Raises PartialOutcome if some writes were certainly not carried
    out and others were, or may have been; the first error if none was, and for reads.
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
    yield  # a flow, though it has nothing to send


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
    lost, open_ = (sum(len(items) for items, _ in parts) for parts in (failed, unknown))
    message = f"{len(done)} jobs done, {lost} certainly not, {open_} unknown: {failed[0][1]}"
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
