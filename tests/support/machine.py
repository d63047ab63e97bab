"""The rig of the state machine: a server with a frozen clock, and a client that remembers and replays its requests.

Promises: TIME is one value until `FrozenClock.advance`; a finished request can be sent again byte for byte.
Risks: needs libfaketime.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from pinlater import Client, Job
from pinlater._core import decode_claim, pack_commands
from pinlater.memory.store import Clock
from pinlater.store.effects import Command, Flow, ReplyError, Send, send
from pinlater.store.keys import queue_key
from pinlater.store.scripts import Script, load_scripts
from pinlater.store.servers import Server as Address
from pinlater.store.sync_driver import SyncDriver
from tests.support.model import HOUR_MS, Model
from tests.support.resp import parse_command
from tests.support.servers import Server, wait_until
from tests.support.wire import apart

START_S: Final = 1_900_000_000  # any time that is not now, so that a client's clock shows where it is used
VERBS: Final[dict[Any, Script]] = {script.sha: script for script in load_scripts().values()}


class FrozenClock:
    """The wall clock of a server, in whole seconds."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._path = server.directory / "clock"
        self._client = server.client()
        self.now_ms = START_S * 1000
        self.advance(0)

    def advance(self, seconds: int) -> None:
        """Moves the clock on, and returns once scripts see it."""
        self.now_ms += 1000 * seconds
        text = time.strftime("%Y-%m-%d %H:%M:%S\n", time.gmtime(self.now_ms // 1000))
        fresh = self._path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self._path)
        wait_until(lambda: self._time_s() == self.now_ms // 1000, f"scripts to see {text}")

    def close(self) -> None:
        self._client.close()

    def _time_s(self) -> int:
        return int(self._client.execute_command("EVAL", "return redis.call('TIME')[1]", 0))  # type: ignore[no-untyped-call]


class MemoryClock(Clock):
    """The clock of a memory store, in whole seconds, as FrozenClock has it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = START_S * 1000

    def now_us(self) -> int:
        return self.now_ms * 1000

    def advance(self, seconds: int) -> None:
        """Moves the clock on."""
        self.now_ms += 1000 * seconds

    def close(self) -> None:
        """Does nothing."""


@dataclass(frozen=True)
class Sent:
    """An answered write. lane: key m and lane. sequence: its number on the lane."""

    verb: str
    server: Address
    command: Command
    lane: tuple[Any, Any]
    sequence: bytes
    answer: list[Any] | bytes
    at_ms: int


class RememberingTransport(SyncDriver):
    """Keeps the last answered request of each lane, and a few earlier ones."""

    def __init__(self, clock: FrozenClock | MemoryClock) -> None:
        super().__init__(5.0, 5.0)
        self._clock = clock
        self.last: dict[tuple[Any, Any], Sent] = {}
        self.followed: list[Sent] = []
        self.remembers = True

    def _send_all(self, sends: list[Send]) -> list[list[Any]]:
        answers = super()._send_all(sends)
        if self.remembers:
            for effect, answered in zip(sends, answers, strict=True):
                for command, answer in zip(effect.commands, answered, strict=True):
                    self._remember(effect.server, command, answer)
        return answers

    def forget(self) -> None:
        """Forgets what the server may have forgotten too."""
        self.last.clear()
        self.followed.clear()

    def _remember(self, server: Address, command: Command, answer: Any) -> None:
        words = parse_command(pack_commands([command]))
        script = VERBS.get(words[1])  # the first argument of another command is not the digest of a script
        if script is None or not script.on_lane or not isinstance(answer, list | bytes):
            return
        after_keys = 3 + int(words[2])
        lane, sequence = (words[3], words[after_keys]), words[after_keys + 1]
        before = self.last.get(lane)
        if before is not None:
            self.followed = [*self.followed[-5:], before]
        self.last[lane] = Sent(script.verb, server, command, lane, sequence, answer, self._clock.now_ms)


class Rig:
    """One example's client, on one or two shards of a server, and its queue."""

    def __init__(self, server: Server, clock: FrozenClock | MemoryClock, shards: int, queue: str) -> None:
        self.clock = clock
        self.queue = queue
        self.shards = ["a", "b"][:shards]
        self.client = Client(shards=dict.fromkeys(self.shards, server.url), source="machine:1")
        self.transport = RememberingTransport(clock)
        self.client.driver.close()
        self.client.driver = self.transport
        self.other = Client(shards=dict.fromkeys(self.shards, server.url), source="machine:1")
        self._raw = server.client()

    def close(self) -> None:
        self.client.close()
        self.other.close()
        self._raw.close()

    def reservations(self, shard: str) -> dict[bytes, bytes]:
        """What a shard keeps of ids that were issued and not loaded."""
        found: Any = self._raw.hgetall(queue_key(self.queue, shard, "reservations"))
        return dict(found)

    def forget_hints(self) -> None:
        """Makes the next dequeue over several shards peek first."""
        for queue_shard in self.client.session.queue_shards(self.queue):
            queue_shard.left_at_s = float("-inf")

    def resend(self, sent: Sent) -> Any:
        """Sends a finished request again, and returns its answer."""

        def flow(deadline_s: float) -> Flow[Any]:
            return (yield from send(sent.server, sent.command, deadline_s=deadline_s))[0]

        self.transport.remembers = False
        try:
            return self.client.run(flow)
        finally:
            self.transport.remembers = True

    def candidates(self, followed: bool) -> list[Sent]:
        """Requests of the last hour, the latest first: lanes live for an hour. followed: another request came after."""
        sent = self.transport.followed if followed else list(self.transport.last.values())
        return [each for each in reversed(sent) if self.clock.now_ms - each.at_ms < HOUR_MS]

    def check_answer(self, sent: Sent, answer: Any, model: Model) -> None:
        """The same answer as before; for a claim the jobs still held; a refusal if the lane has a later request."""
        last = self.transport.last.get(sent.lane)
        if last is None or last.sequence != sent.sequence:
            assert isinstance(answer, ReplyError)
            assert answer.text.startswith("STALE_REQUEST")
        elif sent.verb == "claim" and any(apart(sent.answer)[2][:8]):
            before, after = apart(sent.answer), apart(answer)
            assert after[:2] == before[:2]
            shard = bytes(sent.lane[0]).rpartition(b"}")[0].rpartition(b"/")[2].decode()
            first, again = (decode_claim(each, self.queue, shard).jobs for each in (before, after))
            assert [job.descriptor for job in again] == [job.descriptor for job in first if model.held(job)]
            assert [job.body for job in again] == [_held(model, job).body for job in again]
        else:
            assert answer == sent.answer


def _held(model: Model, job: Job) -> Any:
    held = model.held(job)
    assert held is not None
    return held
