"""How one request becomes an answer: lanes, resends, script loading, configuration changes, deadlines. No I/O stands
here.

Promises that a write whose answer was lost is only ever sent again on its own lane, to its own shard, and that the
caller gets the real answer or OutcomeUnknown. Risks only time: a request is sent again until its deadline, and each try
is given LEAST_WAIT_S.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from pinlater.model.backoff import Pauses
from pinlater.model.errors import (
    ConfigConflict,
    FormatUnsupported,
    OutcomeUnknown,
    PinLaterError,
    QueueError,
    QueueNotFound,
    ServerError,
    ServerRefused,
    ServerReplyError,
    ServerTooOld,
    ServerUnavailable,
    from_reply,
)
from pinlater.model.queue_config import QueueConfig, StoredConfig
from pinlater.store.effects import Argument, Command, Flow, NoAnswer, ReplyError, Send, Sleep, complete
from pinlater.store.lanes import Lane
from pinlater.store.scripts import Script, load_scripts
from pinlater.store.servers import Server
from pinlater.store.shards import QueueShard

# Between two tries of one request: from 20 ms, doubled, to half a second.
FIRST_PAUSE_S: Final = 0.02
LAST_PAUSE_S: Final = 0.5
# sequence and h
_HEAD_BYTES: Final = 12

#: What a BLPOP is answered where this user, or this server, lets no client block; other errors pass.
_NEVER_BLOCKS: Final = ("NOPERM", "ERR", "WRONGTYPE")

Arguments: TypeAlias = Sequence[Argument] | Callable[[QueueConfig], Sequence[Argument]]


class CommonKeys(list[Argument]):
    """Arguments of a call that needs only the keys before the bar of its script's KEYS line, of so many priorities."""

    __slots__ = ("priorities",)

    def __init__(self, arguments: Sequence[Argument], priorities: int) -> None:
        super().__init__(arguments)
        self.priorities = priorities


def read(queue_shard: QueueShard, verb: str, arguments: Arguments, deadline_s: float) -> Flow[list[Any]]:
    """Carries out a reading script; sends it again until the deadline (monotonic seconds) while no answer comes."""
    script = load_scripts()[verb]
    pauses, changes = _pauses(), _pauses(at_once=True)
    while True:
        config = yield from known_config(queue_shard, deadline_s)
        nonce = secrets.token_bytes(4)
        head = [nonce, config.version] if script.versioned else [nonce]
        command = _command(queue_shard, script, config, [*head, *_arguments(arguments, config)])
        answer = yield from _evaluate(queue_shard.shard.server, script, command, deadline_s)
        if isinstance(answer, list):
            if len(answer) > 1 and answer[0] == nonce:
                return answer
            answer = NoAnswer(True, ServerReplyError(f"{verb} of {queue_shard}: the answer is not for this request"))
        error = _error_of(answer, verb, queue_shard)
        if isinstance(error, QueueNotFound | ConfigConflict):
            queue_shard.stored = None
        if isinstance(error, ConfigConflict):
            yield from _pause_or_raise(changes, deadline_s, error)
            continue
        told = isinstance(answer, ReplyError) and not isinstance(error, ServerUnavailable)
        if (
            told
            or not isinstance(error, ServerUnavailable | ServerReplyError)
            or not queue_shard.shard.server.contacted
        ):
            raise error
        yield from _pause_or_raise(pauses, deadline_s, error)


def write(
    queue_shard: QueueShard,
    verb: str,
    arguments: Arguments,
    deadline_s: float,
    *,
    patient: bool = True,
    finish: Callable[[list[Any]], Any] | None = None,
    blocking_list: bytes = b"",
) -> Flow[Any]:
    """Carries out a writing script at most once; returns its reply, or what `finish` makes of it (see complete).

    patient: wait for a server that is certainly not reached; else raise ServerUnavailable at once (the caller has
    another shard). bell: a list; carried out only once something is in it, however long that takes. Raises
    OutcomeUnknown at the deadline (monotonic seconds) if an earlier try may have been carried out.
    """
    script, lane, stored = load_scripts()[verb], queue_shard.lanes.take(), queue_shard.stored
    command = answer = None
    if stored is not None and not stored.deleted:
        # nearly every call ends here; what does not begins anew as a _Write, with the first answer
        try:
            command = _write_command(queue_shard, script, stored, lane.field, lane.sequence, arguments)
            if blocking_list:
                answer = yield from _after_ring(queue_shard, blocking_list, command)
            else:
                answer = (yield [Send(queue_shard.shard.server, [command], deadline_s)])[0][0]
            if type(answer) is not list and _not_loaded(answer):
                answer = yield from _load(queue_shard.shard.server, script, command, deadline_s)
        except BaseException:
            queue_shard.lanes.give_back(lane)  # abandoned, as in _Write.__del__
            raise
        parts = _parts(answer, lane.sequence)
        if parts:
            queue_shard.lanes.give_back(lane)
            if parts[1] > queue_shard.h:
                queue_shard.h = parts[1]
            return parts if finish is None else finish(parts)
    flow = _Write(queue_shard, script, arguments, lane, command).run(deadline_s, patient, answer)
    return (yield from flow if finish is None else complete(flow, finish))


class _Write:
    """A write on its lane. `maybe_done`: some try may have been carried out, so only its own lane can tell. command: as
    it was sent.

    The lane is its own until the outcome is known, or until nobody can ask for it any more.
    """

    def __init__(
        self, queue_shard: QueueShard, script: Script, arguments: Arguments, lane: Lane, command: Command | None = None
    ) -> None:
        self.queue_shard = queue_shard
        self.script = script
        self.arguments = arguments
        self.field, self.sequence = lane.field, lane.sequence
        self.maybe_done = False
        self._lanes = [lane]
        self._command = command  # as sent: a resend says the same, whatever the configuration is by now
        self._asked = False  # somebody holds an OutcomeUnknown, and may resolve it more than once
        self._outcome: list[Any] | PinLaterError | None = None

    def __del__(self) -> None:
        # Abandoned: cancelled, or its OutcomeUnknown forgotten. Should a try still arrive, the lane's next number makes
        # it stale.
        self._let_go()

    def run(self, deadline_s: float, patient: bool, answer: Any = None) -> Flow[list[Any]]:
        """The reply, once and for all: whoever asks again is told the same, also where the lane went on meanwhile.

        answer: of the first try, if there was one.
        """
        outcome = self._outcome
        if outcome is None:
            try:
                outcome = yield from self._run(deadline_s, patient, answer)
            except OutcomeUnknown as error:
                self._asked = True
                outcome = self._outcome or error
            except PinLaterError as error:
                outcome = self._outcome or error
        if not isinstance(outcome, OutcomeUnknown):
            self._outcome = outcome if self._asked else None
            self._let_go()
        if isinstance(outcome, PinLaterError):
            raise outcome
        return outcome

    def _let_go(self) -> None:
        with suppress(IndexError):  # given back before
            self.queue_shard.lanes.give_back(self._lanes.pop())

    def _run(self, deadline_s: float, patient: bool, answer: Any) -> Flow[list[Any]]:
        pauses, changes = _pauses(), _pauses(at_once=True)
        while True:
            if answer is None:
                answer = yield from self._try(deadline_s)
            parts = _parts(answer, self.sequence)
            if parts:
                self.queue_shard.h = max(self.queue_shard.h, parts[1])
                return parts
            if isinstance(answer, list | bytes):
                answer = NoAnswer(
                    True,
                    ServerReplyError(f"{self.script.verb} of {self.queue_shard}: the answer is not for this request"),
                )
            self.maybe_done = self.maybe_done or (isinstance(answer, NoAnswer) and answer.sent)
            error = _error_of(answer, self.script.verb, self.queue_shard)
            if isinstance(error, QueueNotFound | ConfigConflict):
                self.queue_shard.stored = None
            changed = isinstance(error, ConfigConflict)
            if changed:
                self._command = None
            elif not self._again(error, patient):
                raise error
            try:
                yield from _pause_or_raise(changes if changed else pauses, deadline_s, error)
            except PinLaterError as last:
                raise (self._unknown(last) if self.maybe_done else last) from None
            answer = None

    def _try(self, deadline_s: float) -> Flow[Any]:
        """One try; an answer, or what kept the configuration from being read, as a Failure that was not sent."""
        if self._command is None:
            try:
                self._command = yield from self._make_command(deadline_s)
            except (QueueError, ServerError) as error:
                return NoAnswer(False, error)
        return (yield from _evaluate(self.queue_shard.shard.server, self.script, self._command, deadline_s))

    def _make_command(self, deadline_s: float) -> Flow[Command]:
        config = yield from known_config(
            self.queue_shard, deadline_s, patient=False
        )  # who is patient tries again as a whole
        return _write_command(self.queue_shard, self.script, config, self.field, self.sequence, self.arguments)

    def _again(self, error: PinLaterError, patient: bool) -> bool:
        if self.maybe_done:
            # none of these says anything of the try that was lost
            if isinstance(error, QueueNotFound | ServerRefused | ServerTooOld | FormatUnsupported):
                raise self._unknown(error)
            return isinstance(error, ServerError)
        return patient and isinstance(error, ServerUnavailable) and self.queue_shard.shard.server.contacted

    def _unknown(self, error: PinLaterError) -> OutcomeUnknown:
        sent = f"{self.script.verb} of {self.queue_shard}: sent, but no answer came in time"
        message = f"{sent} ({error}); resolve() asks again"
        return OutcomeUnknown(message, lambda deadline_s: self.run(deadline_s, True))


def _after_ring(queue_shard: QueueShard, blocking_list: bytes, command: Command) -> Flow[Any]:
    """The answer to a command that the server holds back until the bell rings."""
    rang, answer = (yield [Send(queue_shard.shard.server, [("BLPOP", blocking_list, "0"), command], blocking=True)])[0]
    if isinstance(rang, ReplyError) and rang.text.startswith(_NEVER_BLOCKS):
        queue_shard.blocking_list = b""  # it would be refused again and again
    return answer


def known_config(queue_shard: QueueShard, deadline_s: float, *, patient: bool = True) -> Flow[StoredConfig]:
    """The configuration of a queue on a shard, read if it is not known. Raises QueueNotFound."""
    if queue_shard.stored is None:
        yield from load_config(queue_shard, deadline_s, patient=patient)
    stored = queue_shard.stored
    if stored is None or stored.deleted:
        queue_shard.stored = None
        raise QueueNotFound(f"queue {queue_shard.queue!r}: not found on {queue_shard.shard}; create_queue makes it")
    return stored


def load_config(queue_shard: QueueShard, deadline_s: float, *, patient: bool = True) -> Flow[StoredConfig | None]:
    """Reads and remembers what the shard has of a queue: its configuration, a deleted one's included, or None."""
    script = load_scripts()["config"]
    pauses = _pauses()
    while True:
        nonce = secrets.token_bytes(4)
        answer = yield from _evaluate(
            queue_shard.shard.server, script, _command(queue_shard, script, None, [nonce]), deadline_s
        )
        if isinstance(answer, list) and len(answer) > 2 and answer[0] == nonce:
            queue_shard.stored = StoredConfig.unpack(answer[2]) if answer[2] else None
            return queue_shard.stored
        error = _error_of(answer, "config", queue_shard)
        if not (patient and isinstance(error, ServerUnavailable) and queue_shard.shard.server.contacted):
            raise error
        yield from _pause_or_raise(pauses, deadline_s, error)


def create(queue_shard: QueueShard, settings: bytes, carried: bytes, deadline_s: float) -> Flow[bool]:
    """Makes a queue on a shard if it is not there; True if it was made. Remembers the configuration it has now."""

    def made(reply: list[Any]) -> bool:
        queue_shard.stored = StoredConfig.unpack(reply[2][1:])
        return bool(reply[2][:1] == b"\1")

    request = _Create(queue_shard, load_scripts()["create"], [settings, carried], queue_shard.lanes.take())
    return (yield from complete(request.run(deadline_s, True), made))


class _Create(_Write):
    """A write that needs no configuration."""

    def _make_command(self, deadline_s: float) -> Flow[Command]:
        return _command(
            self.queue_shard, self.script, None, [self.field, self.sequence, *_arguments(self.arguments, None)]
        )
        yield  # a flow, though it has nothing to send


def _arguments(arguments: Arguments, config: StoredConfig | None) -> Sequence[Argument]:
    if callable(arguments):
        assert config is not None
        return arguments(config.config)
    return arguments


def _command(
    queue_shard: QueueShard, script: Script, config: StoredConfig | None, arguments: Sequence[Argument]
) -> Command:
    return queue_shard.head(script.verb, config.config.priorities if config else 0).command(arguments)


def _write_command(
    queue_shard: QueueShard, script: Script, stored: StoredConfig, field: bytes, sequence: bytes, arguments: Arguments
) -> Command:
    """field, sequence: of a lane."""
    config = stored.config
    given = arguments(config) if callable(arguments) else arguments
    request = (field, sequence, stored.version) if script.versioned else (field, sequence)
    if type(given) is CommonKeys:
        head = queue_shard.head(script.verb, given.priorities, common=True)
    else:
        head = queue_shard.head(script.verb, config.priorities)
    return head.command([*request, *given])


def _parts(answer: Any, sequence: bytes) -> list[Any]:
    """`[sequence, h, payload, …]` of the reply of the request of this sequence, whose first three are one string; else
    nothing.
    """
    if type(answer) is bytes:
        if answer[:4] == sequence and len(answer) >= _HEAD_BYTES:
            return [sequence, answer[4:_HEAD_BYTES], answer[_HEAD_BYTES:]]
    elif type(answer) is list and answer:
        head = _parts(answer[0], sequence)
        return head and [*head, *answer[1:]]
    return []


def _not_loaded(answer: Any) -> bool:
    """The server does not know the script, so it was certainly not run."""
    return isinstance(answer, ReplyError) and answer.text.startswith("NOSCRIPT")


def _evaluate(server: Server, script: Script, command: Command, deadline_s: float) -> Flow[Any]:
    """EVALSHA; where the server does not know the script, it is loaded and the call sent once more (it was certainly
    not run).
    """
    answer = (yield [Send(server, [command], deadline_s)])[0][0]
    return (yield from _load(server, script, command, deadline_s)) if _not_loaded(answer) else answer


def _load(server: Server, script: Script, command: Command, deadline_s: float) -> Flow[Any]:
    """The script, and the command once more; its answer."""
    loaded, answer = (yield [Send(server, [("SCRIPT", "LOAD", script.source), command], deadline_s)])[0]
    return loaded if isinstance(loaded, ReplyError) else answer  # why it can not be run says more than that it was not


def _error_of(answer: Any, verb: str, queue_shard: QueueShard) -> PinLaterError:
    if isinstance(answer, ReplyError):
        return from_reply(answer.text, f"{verb} of {queue_shard}")
    if isinstance(answer, NoAnswer):
        return answer.error
    return ServerReplyError(f"{verb} of {queue_shard}: expected a list, got {answer!r:.80}")


def _pauses(*, at_once: bool = False) -> Pauses:
    return Pauses(FIRST_PAUSE_S, LAST_PAUSE_S, at_once=at_once)


def _pause_or_raise(pauses: Pauses, deadline_s: float, error: PinLaterError) -> Flow[None]:
    pause_s = pauses.take()
    if time.monotonic() + pause_s >= deadline_s:
        raise error
    yield Sleep(pause_s)
