"""How one request becomes one answer: resends, script loading, configuration changes, deadlines. No I/O.

Promises that a write whose answer was lost is sent again only on its own lane and to its own shard, and that the caller
gets the real answer or OutcomeUnknown.

Risks: a request can end up to LEAST_WAIT_S after its deadline, since each try waits that long for its answer.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

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
from pinlater.model.pauses import Pauses
from pinlater.model.queue_config import QueueConfig, StoredConfig
from pinlater.store.effects import Argument, Command, Flow, NoAnswer, ReplyError, Send, Sleep, complete
from pinlater.store.keys import WRITE_NOTHING, registry_key, remnant_field, remnant_keys
from pinlater.store.lanes import Lane
from pinlater.store.scripts import Script, load_scripts
from pinlater.store.servers import Server
from pinlater.store.shards import QueueShard

#: Pauses between two tries of one request: 20 ms at first, then doubled up to half a second.
FIRST_PAUSE_S: Final = 0.02
LAST_PAUSE_S: Final = 0.5
#: The head of a reply: the request's sequence (4 bytes) and the highest id of the queue shard (8 bytes).
_HEAD_BYTES: Final = 12

#: First words of BLPOP's errors that come back each time: the user may not block, or the server does not know BLPOP.
_NEVER_BLOCKS: Final = ("NOPERM", "ERR", "WRONGTYPE")

#: Stands in errors that a command of a script raised. What the script changed before is not undone.
_IN_SCRIPT: Final = " on @user_script:"
#: Errors that a script may raise half-way. The server checks for the others before it runs a script.
_HALF_WAY: Final = (ServerRefused, ServerReplyError)

#: ARGV of a script, or a function that makes it from the queue's configuration.
ScriptArguments: TypeAlias = Sequence[Argument] | Callable[[QueueConfig], Sequence[Argument]]


class CommonKeys(list[Argument]):
    """Arguments of a call that needs only the keys before the bar of its script's KEYS line.

    priorities: how many priorities those keys cover.
    """

    __slots__ = ("priorities",)

    def __init__(self, arguments: Sequence[Argument], priorities: int) -> None:
        super().__init__(arguments)
        self.priorities = priorities


def read(queue_shard: QueueShard, verb: str, arguments: ScriptArguments, deadline_s: float) -> Flow[list[Any]]:
    """Runs a script that reads, or that may run more than once, until an answer comes. deadline_s: monotonic
    seconds.
    """
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
            answer = _foreign(verb, queue_shard)
        error = _error_of(answer, verb, queue_shard)
        if isinstance(error, ConfigConflict):
            yield from _pause_or_raise(changes, deadline_s, error)
        elif _may_pass(error, answer) and queue_shard.shard.server.may_answer:
            yield from _pause_or_raise(pauses, deadline_s, error)
        else:
            raise error


def _may_pass(error: PinLaterError, answer: Any) -> bool:
    """Whether another try of a reading script may succeed."""
    if isinstance(answer, ReplyError):
        return isinstance(error, ServerUnavailable)
    return isinstance(error, ServerUnavailable | ServerReplyError)


def write(
    queue_shard: QueueShard,
    verb: str,
    arguments: ScriptArguments,
    deadline_s: float,
    *,
    patient: bool = True,
    finish: Callable[[list[Any]], Any] | None = None,
    blocking_list: bytes = b"",
) -> Flow[Any]:
    """Runs a script that writes, at most once. Returns its reply, or what `finish` makes of it (see `complete`).

    - deadline_s: monotonic seconds.
    - patient: try again while the server cannot be reached; else raise ServerUnavailable at once.
    - blocking_list: the key of a list. The server runs the script once the list has an element, without a deadline.

    Raises OutcomeUnknown at the deadline if the script may have run.
    """
    if queue_shard.is_known:
        # the fast path of nearly every call; any other answer goes on as a _Write
        started = start_write(queue_shard, verb, arguments)
        try:
            if blocking_list:
                answer = yield from _blocking(queue_shard, blocking_list, started.command)
            else:
                answer = (yield [Send(queue_shard.shard.server, [started.command], deadline_s)])[0][0]
        except BaseException:
            started.drop()
            raise
        reply = started.reply(answer)
        if reply:
            return reply if finish is None else finish(reply)
        flow = started.go_on(answer, deadline_s, patient=patient)
    else:
        lane = queue_shard.lanes.take()
        flow = _Write(queue_shard, load_scripts()[verb], arguments, lane).run(deadline_s, patient)
    return (yield from flow if finish is None else complete(flow, finish))


class StartedWrite:
    """A write of a queue shard whose configuration is known, before its answer is there.

    Its owner sends `command` once. Then it calls `reply`, and `go_on` if that returns nothing. Or it calls `drop`: if
    nobody reads the answer, or if the owner has read it itself.

    sequence: what its reply begins with.
    """

    __slots__ = ("_arguments", "_lane", "_queue_shard", "_script", "command", "sequence")

    def __init__(
        self, queue_shard: QueueShard, script: Script, arguments: ScriptArguments, lane: Lane, command: Command
    ) -> None:
        self._queue_shard, self._script, self._arguments = queue_shard, script, arguments
        self._lane, self.command, self.sequence = lane, command, lane.sequence

    def reply(self, answer: Any) -> list[Any]:
        """`[sequence, highest id, payload, …]`; [] if this is not the reply to the write."""
        parts = _parts(answer, self._lane.sequence)
        if parts:
            self.drop()
            if parts[1] > self._queue_shard.highest_id:
                self._queue_shard.highest_id = parts[1]
        return parts

    def drop(self) -> None:
        """The lane is free again. Its next request makes a late try of this one stale, as in _Write.__del__."""
        self._queue_shard.lanes.release(self._lane)

    def go_on(self, answer: Any, deadline_s: float, *, patient: bool = True) -> Flow[list[Any]]:
        """The reply, behind an answer that is none. Like `write`."""
        one = _Write(self._queue_shard, self._script, self._arguments, self._lane, self.command)
        return one.run(deadline_s, patient, answer)


def start_write(queue_shard: QueueShard, verb: str, arguments: ScriptArguments) -> StartedWrite:
    """A write by a script of a queue shard whose configuration is known."""
    stored, script, lane = queue_shard.stored, load_scripts()[verb], queue_shard.lanes.take()
    assert stored is not None
    try:
        command = _write_command(queue_shard, script, stored, lane.field, lane.sequence, arguments)
    except BaseException:
        queue_shard.lanes.release(lane)
        raise
    return StartedWrite(queue_shard, script, arguments, lane, command)


class _Write:
    """A write on its lane, which it keeps until the outcome is known or nothing refers to the write any more.

    - command: what was sent already, if something was.
    - maybe_done: a try may have been carried out, so that only a resend on the same lane gets its outcome.
    """

    def __init__(
        self,
        queue_shard: QueueShard,
        script: Script,
        arguments: ScriptArguments,
        lane: Lane,
        command: Command | None = None,
    ) -> None:
        self.queue_shard = queue_shard
        self.script = script
        self.arguments = arguments
        self.field, self.sequence = lane.field, lane.sequence
        self.maybe_done = False
        self._lanes = [lane]
        self._command = command  # a resend repeats it, even if the configuration has changed
        self._unknown_raised = False  # a caller holds an OutcomeUnknown, and may resolve it more than once
        self._outcome: list[Any] | PinLaterError | None = None

    def __del__(self) -> None:
        # The caller was cancelled, or dropped its OutcomeUnknown. The lane's next request makes a late try stale.
        self._release_lane()

    def run(self, deadline_s: float, patient: bool, answer: Any = None) -> Flow[list[Any]]:
        """The reply. A later call returns the same reply, even if the lane carries another request by then.

        answer: the answer to the first try, if there was one.
        """
        outcome = self._outcome
        if outcome is None:
            try:
                outcome = yield from self._run(deadline_s, patient, answer)
            except OutcomeUnknown as error:
                self._unknown_raised = True
                outcome = self._outcome or error
            except PinLaterError as error:
                outcome = self._outcome or error
        if not isinstance(outcome, OutcomeUnknown):
            self._outcome = outcome if self._unknown_raised else None
            self._release_lane()
        if isinstance(outcome, PinLaterError):
            raise outcome
        return outcome

    def _release_lane(self) -> None:
        with suppress(IndexError):  # released before
            self.queue_shard.lanes.release(self._lanes.pop())

    def _run(self, deadline_s: float, patient: bool, answer: Any) -> Flow[list[Any]]:
        pauses, changes = _pauses(), _pauses(at_once=True)
        if _not_loaded(answer) and self._command is not None:
            answer = yield from _load(self.queue_shard.shard.server, self.script, self._command, deadline_s)
        while True:
            if answer is None:
                answer = yield from self._try(deadline_s)
            parts = _parts(answer, self.sequence)
            if parts:
                self.queue_shard.highest_id = max(self.queue_shard.highest_id, parts[1])
                return parts
            error = self._error_of(answer)
            changed = isinstance(error, ConfigConflict)
            if changed:
                self._command = None
            elif not self._may_try_again(error, patient):
                raise error
            try:
                yield from _pause_or_raise(changes if changed else pauses, deadline_s, error)
            except PinLaterError as last:
                raise (self._unknown(last) if self.maybe_done else last) from None
            answer = None

    def _error_of(self, answer: Any) -> PinLaterError:
        """The error of a try. Notes whether the try may have been carried out."""
        if isinstance(answer, list | bytes):
            answer = _foreign(self.script.verb, self.queue_shard)
        self.maybe_done = self.maybe_done or (isinstance(answer, NoAnswer) and answer.sent)
        error = _error_of(answer, self.script.verb, self.queue_shard)
        if isinstance(answer, ReplyError) and _IN_SCRIPT in answer.text and isinstance(error, _HALF_WAY):
            self.maybe_done = True
            raise self._unknown(error)
        return error

    def _try(self, deadline_s: float) -> Flow[Any]:
        """One try: an answer, or an unsent NoAnswer if the configuration could not be read."""
        if self._command is None:
            try:
                self._command = yield from self._make_command(deadline_s)
            except (QueueError, ServerError) as error:
                return NoAnswer(False, error)
        return (yield from _evaluate(self.queue_shard.shard.server, self.script, self._command, deadline_s))

    def _make_command(self, deadline_s: float) -> Flow[Command]:
        # not patient: a patient write tries again as a whole
        config = yield from known_config(self.queue_shard, deadline_s, patient=False)
        return _write_command(self.queue_shard, self.script, config, self.field, self.sequence, self.arguments)

    def _may_try_again(self, error: PinLaterError, patient: bool) -> bool:
        if self.maybe_done:
            # none of these says anything of the try that was lost; and an unhealthy server is not asked again now
            is_unhealthy = self.queue_shard.shard.server.outage is not None
            if is_unhealthy or isinstance(error, QueueNotFound | ServerRefused | ServerTooOld | FormatUnsupported):
                raise self._unknown(error)
            return isinstance(error, ServerError)
        return patient and isinstance(error, ServerUnavailable) and self.queue_shard.shard.server.may_answer

    def _unknown(self, error: PinLaterError) -> OutcomeUnknown:
        happened = "stopped half-way" if _IN_SCRIPT in str(error) else "sent, but no answer came in time"
        message = f"{self.script.verb} of {self.queue_shard}: {happened} ({error}); resolve() asks again"
        return OutcomeUnknown(message, lambda deadline_s: self.run(deadline_s, True))


def _blocking(queue_shard: QueueShard, blocking_list: bytes, command: Command) -> Flow[Any]:
    """The answer to a command that the server holds back until the list has an element."""
    commands: list[Command] = [("BLPOP", blocking_list, "0"), command]
    popped, answer = (yield [Send(queue_shard.shard.server, commands, blocking=True)])[0]
    if isinstance(popped, ReplyError) and popped.text.startswith(_NEVER_BLOCKS):
        queue_shard.blocking_list = b""  # the server would refuse each time
    return answer


def known_config(queue_shard: QueueShard, deadline_s: float, *, patient: bool = True) -> Flow[StoredConfig]:
    """The configuration of a queue on a shard; reads it if it is unknown. Raises QueueNotFound."""
    if queue_shard.stored is None:
        yield from load_config(queue_shard, deadline_s, patient=patient)
    stored = queue_shard.stored
    if stored is None or stored.deleted:
        queue_shard.stored = None
        raise QueueNotFound(f"queue {queue_shard.queue!r}: not found on {queue_shard.shard}; create_queue makes it")
    return stored


class Known(NamedTuple):
    """What a shard has of a queue.

    - stored: its configuration, also of a deleted queue. None: the shard has never had it.
    - remnant: what the queue left and the registry may not have yet. b"" if there is nothing.
    """

    stored: StoredConfig | None
    remnant: bytes


def load_config(queue_shard: QueueShard, deadline_s: float, *, patient: bool = True) -> Flow[StoredConfig | None]:
    """Reads and keeps the configuration of a queue on a shard. None if the shard has never had the queue."""
    return (yield from load_known(queue_shard, deadline_s, patient=patient)).stored


def load_known(queue_shard: QueueShard, deadline_s: float, *, patient: bool = True) -> Flow[Known]:
    """Like load_config, and tells what a deleted queue left there.

    The registry is read behind the configuration: what is removed there is in the registry before.
    """
    reads = _remnant_reads(queue_shard)
    answer, remnants = yield from repeat(queue_shard, "config", [], deadline_s, then=reads, patient=patient)
    packed, left = answer[2], answer[5]
    if packed:
        queue_shard.stored = StoredConfig.unpack(packed)
    else:
        remnant = _remnant_of(remnants, queue_shard)
        queue_shard.stored = StoredConfig.deleted_as(remnant) if remnant else None
    return Known(queue_shard.stored, left)


def _remnant_reads(queue_shard: QueueShard) -> list[Command]:
    field = remnant_field(queue_shard.queue)
    return [("HGET", key, field) for key in remnant_keys(queue_shard.queue, queue_shard.shard.name)]


def _remnant_of(answers: Sequence[Any], queue_shard: QueueShard) -> bytes:
    """What the registry has of a queue, by the answers to _remnant_reads; b"" for a queue that was never deleted."""
    for answer in answers:
        _check_registry(answer, queue_shard)
    return next((bytes(answer) for answer in answers if answer), b"")


def _check_registry(answer: Any, queue_shard: QueueShard) -> None:
    if isinstance(answer, ReplyError):
        raise from_reply(answer.text, f"the registry of {queue_shard.shard}")


def repeat(
    queue_shard: QueueShard,
    verb: str,
    arguments: Sequence[Argument],
    deadline_s: float,
    *,
    then: Sequence[Command] = (),
    patient: bool = True,
    resend: bool = False,
) -> Flow[tuple[list[Any], list[Any]]]:
    """Runs a script that needs no configuration and may run more than once, until an answer comes.

    Each try has a nonce of its own.

    then: commands that the server carries out behind it.
    patient: try again while the server cannot be reached; else raise ServerUnavailable at once.
    resend: if it is not patient, try again all the same after an answer was lost.

    Returns the script's reply and the answers to `then`, error replies included.
    """
    script, pauses = load_scripts()[verb], _pauses()
    while True:
        nonce = secrets.token_bytes(8)
        commands = [_command(queue_shard, script, None, [nonce, *arguments]), *then]
        answer, *others = yield from _evaluate_all(queue_shard.shard.server, script, commands, deadline_s)
        lost = next((other for other in others if isinstance(other, NoAnswer)), None)
        if lost is None and isinstance(answer, list) and answer and answer[0] == nonce:
            return answer, others
        failed = answer if lost is None else lost
        error = _error_of(failed, verb, queue_shard)
        was_sent = resend and isinstance(failed, NoAnswer) and failed.sent
        may_answer = was_sent or (patient and queue_shard.shard.server.may_answer)
        if not (may_answer and isinstance(error, ServerUnavailable)):
            raise error
        yield from _pause_or_raise(pauses, deadline_s, error)


def check_primary(server: Server, deadline_s: float) -> Flow[None]:
    """Makes the driver leave a node that is no primary any more. Only a refused write shows that."""
    yield [Send(server, [WRITE_NOTHING], deadline_s)]


def create(queue_shard: QueueShard, settings: bytes, carried: bytes, deadline_s: float) -> Flow[bool]:
    """Creates a queue on a shard unless it exists, with its name in the registry, and keeps its configuration. Returns
    whether it was created. Raises ServerUnavailable at once if the server cannot be reached.
    """

    def keep(reply: list[Any]) -> bool:
        queue_shard.stored = StoredConfig.unpack(reply[2][1:])
        return bool(reply[2][:1] == b"\1")

    request = _Create(queue_shard, load_scripts()["create"], [settings, carried], queue_shard.lanes.take())
    return (yield from complete(request.run(deadline_s, False), keep))


class _Create(_Write):
    """A write that needs a permit instead of a configuration. It gets another one if its own has ended.

    The registry is read behind the permit, so that it has all epochs that ended before (`lua/permit.lua`).
    """

    def _make_command(self, deadline_s: float) -> Flow[Command]:
        queue_shard = self.queue_shard
        add_name = ("SADD", registry_key(queue_shard.shard.name), queue_shard.queue)
        then = [*_remnant_reads(queue_shard), add_name]
        answer, others = yield from repeat(queue_shard, "permit", [], deadline_s, then=then, patient=False, resend=True)
        *remnants, added = others
        _check_registry(added, queue_shard)
        permitted = [*_arguments(self.arguments, None), answer[1], _remnant_of(remnants, queue_shard)]
        return _command(queue_shard, self.script, None, [self.field, self.sequence, *permitted])


def _arguments(arguments: ScriptArguments, config: StoredConfig | None) -> Sequence[Argument]:
    if callable(arguments):
        assert config is not None
        return arguments(config.config)
    return arguments


def _command(
    queue_shard: QueueShard, script: Script, config: StoredConfig | None, arguments: Sequence[Argument]
) -> Command:
    return queue_shard.head(script.verb, config.config.priorities if config else 0).command(arguments)


def _write_command(
    queue_shard: QueueShard,
    script: Script,
    stored: StoredConfig,
    field: bytes,
    sequence: bytes,
    arguments: ScriptArguments,
) -> Command:
    """field, sequence: the lane's."""
    config = stored.config
    values = arguments(config) if callable(arguments) else arguments
    request = (field, sequence, stored.version) if script.versioned else (field, sequence)
    if type(values) is CommonKeys:
        head = queue_shard.head(script.verb, values.priorities, common=True)
    else:
        head = queue_shard.head(script.verb, config.priorities)
    return head.command([*request, *values])


def _parts(answer: Any, sequence: bytes) -> list[Any]:
    """`[sequence, highest id, payload, …]` of the reply to the request of this sequence; [] for any other answer.

    In the reply the first three are one string.
    """
    if type(answer) is bytes:
        if answer[:4] == sequence and len(answer) >= _HEAD_BYTES:
            return [sequence, answer[4:_HEAD_BYTES], answer[_HEAD_BYTES:]]
    elif type(answer) is list and answer:
        head = _parts(answer[0], sequence)
        return head and [*head, *answer[1:]]
    return []


def _not_loaded(answer: Any) -> bool:
    """Whether the server does not know the script, and so did not run it."""
    return isinstance(answer, ReplyError) and answer.text.startswith("NOSCRIPT")


def _evaluate(server: Server, script: Script, command: Command, deadline_s: float) -> Flow[Any]:
    """The answer to a script's EVALSHA. Loads the script and repeats the call if the server does not know it."""
    return (yield from _evaluate_all(server, script, [command], deadline_s))[0]


def _evaluate_all(server: Server, script: Script, commands: Sequence[Command], deadline_s: float) -> Flow[list[Any]]:
    """The answers to a script's EVALSHA and to the commands behind it."""
    answers: list[Any] = (yield [Send(server, commands, deadline_s)])[0]
    return (yield from _load_first(server, script, commands, deadline_s)) if _not_loaded(answers[0]) else answers


def _load(server: Server, script: Script, command: Command, deadline_s: float) -> Flow[Any]:
    """Sends the script, then the command again; returns the command's answer."""
    return (yield from _load_first(server, script, [command], deadline_s))[0]


def _load_first(server: Server, script: Script, commands: Sequence[Command], deadline_s: float) -> Flow[list[Any]]:
    loading: Command = ("SCRIPT", "LOAD", script.source)
    answers: list[Any]
    loaded, *answers = (yield [Send(server, [loading, *commands], deadline_s)])[0]
    if isinstance(loaded, ReplyError):
        answers[0] = loaded  # a failed load gives the reason
    return answers


def _foreign(verb: str, queue_shard: QueueShard) -> NoAnswer:
    """Takes the place of an answer to another request: this one's answer was lost."""
    return NoAnswer(True, ServerReplyError(f"{verb} of {queue_shard}: the answer is not for this request"))


def _error_of(answer: Any, verb: str, queue_shard: QueueShard) -> PinLaterError:
    """The error of a request. Forgets a configuration that it shows to be out of date."""
    if isinstance(answer, ReplyError):
        error = from_reply(answer.text, f"{verb} of {queue_shard}")
        if isinstance(error, QueueNotFound | ConfigConflict):
            queue_shard.stored = None
        return error
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
