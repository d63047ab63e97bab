"""Several clients on several memory stores without a network, whose clocks the test moves, and a witness of the limits.

Promises: no call waits; time passes for clients and servers together, in whole ms. An answer may be lost, and a request
may be carried out later than its client gave it up. After each script call the witness compares what claims and grants
gave with the flow of the rate, which it adds up exactly.
Risks: flows run one after the other. interleaving.py has the orders of their steps.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, TypeVar

from pinlater._core import pack_commands
from pinlater.memory.commands import run
from pinlater.memory.lua import Scripts
from pinlater.memory.store import Clock, CommandError, Store
from pinlater.model.clocks import boot_s
from pinlater.model.errors import ServerUnavailable
from pinlater.model.queue_config import QueueConfig, StoredConfig
from pinlater.store.effects import AwaitNotification, Command, Flow, Listen, NoAnswer, ReplyError, Sleep
from pinlater.store.keys import queue_key
from pinlater.store.scripts import load_scripts
from pinlater.store.shards import Session
from tests.support.interleaving import VERBS
from tests.support.resp import parse_command
from tests.support.wire_format import Account

T = TypeVar("T")

START_MS: Final = 1_900_000_000_000
#: A client waits so long for an answer that does not come.
SILENCE_MS: Final = 500
#: A call that does more than this turns round and round.
MOST_EFFECTS: Final = 600


class Passed:
    """How much time has passed for all. Stands for the module `time` in the modules of flows."""

    def __init__(self) -> None:
        self.ms = 0

    def monotonic(self) -> float:
        return 1_000_000 + self.ms / 1000

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@contextmanager
def client_time(passed: Passed) -> Iterator[None]:
    """The flows of this process see this time instead of the machine's."""
    changed: list[tuple[Any, str, Any]] = []
    for name, module in list(sys.modules.items()):
        if name.startswith(("pinlater.operations.", "pinlater.store.")) and "driver" not in name:
            for attribute, value in (("time", passed), ("boot_s", passed.monotonic)):
                old = getattr(module, attribute, None)
                if old is time or old is boot_s:
                    changed.append((module, attribute, old))
                    setattr(module, attribute, value)
    try:
        yield
    finally:
        for module, attribute, old in changed:
            setattr(module, attribute, old)


class _ShardClock(Clock):
    def __init__(self, passed: Passed) -> None:
        super().__init__()
        self._passed, self.jumped_ms = passed, 0

    @property
    def ms(self) -> int:
        return START_MS + self._passed.ms + self.jumped_ms

    def now_us(self) -> int:
        return self.ms * 1000


class ShardStore:
    """One shard: its store, and whether it answers."""

    def __init__(self, name: str, queue: str, passed: Passed) -> None:
        self.name = name
        self.clock = _ShardClock(passed)
        self.store = Store(self.clock, lambda _, __: 0, lambda _: 0)
        self.scripts = Scripts(self.store)
        self.is_up = True
        self._queue = queue
        self.load()

    def load(self) -> None:
        for script in load_scripts().values():
            self.scripts.load(script.source)

    def meta(self, field: bytes) -> bytes | None:
        found: Any = self.store.values.get(queue_key(self._queue, self.name, "meta"), {})
        value: bytes | None = found.get(field)
        return value

    @property
    def packed(self) -> bytes | None:
        """The configuration of the queue, unless it is deleted."""
        packed = self.meta(b"config")
        return packed if packed is not None and packed[1] < 128 else None

    @property
    def config(self) -> QueueConfig | None:
        return None if self.packed is None else StoredConfig.unpack(self.packed).config

    @property
    def running(self) -> int:
        """Jobs in progress."""
        names = [queue_key(self._queue, self.name, f"running:{priority}") for priority in range(1, 10)]
        return sum(len(self.store.values.get(name, ())) for name in names)

    @property
    def flow(self) -> QueueConfig | None:
        """The configuration, if tokens flow in here by it."""
        config = self.config
        return config if config is not None and config.rate is not None and config.home == self.name else None

    @property
    def is_paused(self) -> bool:
        """Whether claims here give nothing."""
        pause = self.meta(b"pause") if self.packed and self.packed[1] & 16 else None
        begin, end = (int.from_bytes(pause[at : at + 6], "big") for at in (0, 6)) if pause else (0, 0)
        return bool(self.packed and self.packed[1] & 1) or end > self.clock.ms or begin > self.clock.ms

    @property
    def account(self) -> Account | None:
        account = self.meta(b"account")
        return account and Account.unpack(account)  # type: ignore[return-value]

    def answer(self, command: Command) -> Any:
        name, *arguments = parse_command(pack_commands([command]))
        self.store.expire()
        try:
            if name == b"EVALSHA":
                return self.scripts.run(arguments[0], arguments[1:])
            return run(self.store, name, arguments)
        except CommandError as error:
            return ReplyError(str(error))


@dataclass
class Fate:
    """What happens to the next request of a verb. is_late: it is carried out later than its client gave it up. lost:
    how many of its answers are lost.
    """

    verb: str = ""
    lost: int = 0
    is_late: bool = False


class Fleet:
    """The shards, and what the limits allowed and gave so far.

    allowed: tokens that flowed in since the beginning, with at most one burst for each jump forward.
    claimed: jobs that claims gave while their shard had a rate.
    """

    def __init__(self, queue: str, shards: int) -> None:
        self.queue = queue
        self.time = Passed()
        self.shards = {str(n): ShardStore(str(n), queue, self.time) for n in range(1, shards + 1)}
        self.sessions: list[Session] = []
        self.allowed, self.claimed = Fraction(0), 0
        self.late: list[tuple[str, list[Command]]] = []
        self.verbs: list[str] = []
        #: What happens just before the next request of a verb.
        self.before: dict[str, Callable[[], Any]] = {}

    def session(self) -> Session:
        """A new client."""
        session = Session({name: f"redis://nowhere:{name}" for name in self.shards})
        for server in session.servers:
            server.contacted = True
        self.sessions.append(session)
        return session

    # time

    def pass_ms(self, ms: int) -> None:
        """Time passes, for clients and servers."""
        for shard in self.shards.values():
            if flow := shard.flow:
                rate = flow.exact_rate
                assert rate is not None
                self.allowed += Fraction(ms * rate.count, rate.per_ms)
        self.time.ms += ms

    def jump(self, name: str, ms: int) -> None:
        """The clock of a server jumps."""
        shard = self.shards[name]
        if ms > 0 and (flow := shard.flow):
            rate = flow.exact_rate
            assert rate is not None
            burst = Fraction(flow.burst or rate.default_burst)
            self.allowed += min(burst, Fraction(ms * rate.count, rate.per_ms))
        shard.clock.jumped_ms += ms

    # calls

    def drive(self, flow: Flow[T], session: Session, fate: Fate | None = None) -> T:
        """Runs a flow to its end."""
        fate = fate or Fate()
        given: Any = None
        for _ in range(MOST_EFFECTS):
            try:
                effect = flow.send(given)
            except StopIteration as stop:
                result: T = stop.value
                return result
            given = None
            if isinstance(effect, list):
                given = [self._send(self._name_of(session, one.server), one.commands, fate) for one in effect]
            elif isinstance(effect, Sleep | AwaitNotification):
                self.pass_ms(max(1, round(effect.seconds * 1000 + 0.499)))
            elif isinstance(effect, Listen):
                given = 0
        raise AssertionError(f"expected a call that ends, got one that sent {self.verbs[-20:]}")

    @staticmethod
    def _name_of(session: Session, server: Any) -> str:
        return next(name for name, shard in session.shards.items() if shard.server is server)

    def _send(self, name: str, commands: Any, fate: Fate) -> list[Any]:
        shard = self.shards[name]
        if not shard.is_up:
            self.pass_ms(1)
            return [NoAnswer(False, ServerUnavailable("away"))] * len(commands)
        if not any(verb_of(command) == fate.verb for command in commands) or not fate.lost:
            return [self.answer(shard, command) for command in commands]
        fate.lost -= 1
        if not fate.is_late:
            for command in commands:
                self.answer(shard, command)
        elif (name, commands) not in self.late:
            self.late.append((name, commands))
        self.pass_ms(SILENCE_MS)
        return [NoAnswer(True, ServerUnavailable("the answer was lost"))] * len(commands)

    def carry_out_late(self) -> None:
        """A request comes that its client gave up."""
        name, commands = self.late.pop(0)
        for command in commands:
            self.answer(self.shards[name], command)

    def answer(self, shard: ShardStore, command: Command) -> Any:
        """Carries a command out, and looks at what it did."""
        verb = verb_of(command)
        if happens := self.before.pop(verb, None):
            happens()
        self.verbs = [*self.verbs[-500:], verb]
        config, was_paused, before = shard.config, shard.is_paused, shard.running
        found = shard.answer(command)
        given = shard.running - before
        if verb == "claim" and given > 0:
            assert config is not None
            assert not was_paused, "a paused queue gave a job"
            if config.rate is not None:
                self.claimed += given
            if config.max_running is not None:
                assert shard.name == config.home, "jobs beside the home shard"
                assert shard.running <= config.max_running, "more jobs at once than max_running"
        self.check()
        return found

    # the promise

    @property
    def held(self) -> int:
        """Tokens in the hands of clients."""
        held = 0
        for session in self.sessions:
            for queue_shard in session.queue_shards(self.queue):
                bucket = queue_shard.allowance.bucket
                bucket.take(0, int((1_000_000 + self.time.ms / 1000) * 1000))
                held += bucket.held
        return held

    def check(self) -> None:
        """No token is there that did not flow in, and none twice."""
        kept = Fraction(0)
        for shard in self.shards.values():
            account, flow = shard.account, shard.flow
            assert (account is None) or flow, "an account where no rate is"
            if account and flow:
                rate = flow.exact_rate
                assert rate is not None
                tokens = Fraction(account.units, rate.per_ms)
                assert tokens <= (flow.burst or rate.default_burst), "more tokens than a burst"
                kept += tokens
        total = self.claimed + self.held + kept
        assert total <= self.allowed, f"{self.claimed} claimed + {self.held} held + {kept} left > {self.allowed}"


def verb_of(command: Command) -> str:
    """The verb of a script, or the name of a command."""
    words = parse_command(pack_commands([command]))
    return VERBS.get(words[1], "") if words[0] == b"EVALSHA" else words[0].decode()


Make = Callable[[Session], Flow[Any]]
