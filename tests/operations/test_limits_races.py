"""Claims of two clients and changes of a queue's rate, in every order of their steps.

Promises: no job of a queue with a rate is claimed without a token that its account gave, also if an answer is lost or a
request comes late.
Risks: a memory store, and one shard; test_limits_machine.py has several.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from pinlater import QueueConfig
from pinlater.model.queue_config import StoredConfig
from pinlater.operations.claim_round import claim_round
from pinlater.operations.enqueue import enqueue_many
from pinlater.operations.limits import return_tokens
from pinlater.operations.queue_shards import known_queue_shards
from pinlater.operations.queues import configure_queue, create_queue
from pinlater.store.effects import Flow
from pinlater.store.keys import queue_key
from pinlater.store.shards import Session
from tests.support.interleaving import Calls, Fate, Runner, Words, World, every_order, verb_of

META, RUNNING = (queue_key("q", "1", name) for name in ("meta", "running:1"))
NEVER = float("inf")
STEP_US = 1_000  # of the clock a look, so that tokens of the fast rate come
FAST, SLOW = "1000/s", "1/h"


class Ledger(World):
    """A store, and what it gave: tokens, and jobs for which a token was due."""

    def __init__(self) -> None:
        super().__init__(STEP_US)
        self.granted = self.claimed = 0
        self._seen = set[tuple[bytes, bytes]]()

    def clear(self) -> None:
        super().clear()
        self.granted = self.claimed = 0
        self._seen.clear()

    def answer(self, words: Words) -> Any:
        verb, before = verb_of(words), self._running
        packed: Any = self.store.values.get(META, {})
        rate = b"config" in packed and StoredConfig.unpack(packed[b"config"]).config.rate
        answer = super().answer(words)
        if verb == "claim" and rate is not None:
            self.claimed += self._running - before
        if verb == "grant" and isinstance(answer, bytes):
            request = words[3 + int(words[2])], words[4 + int(words[2])]
            if request not in self._seen:
                self._seen.add(request)
                self.granted += int.from_bytes(answer[12:16], "big")
        return answer

    @property
    def _running(self) -> int:
        return len(self.store.values.get(RUNNING, ()))

    def check(self) -> None:
        assert self.claimed <= self.granted, f"{self.claimed} jobs for {self.granted} tokens"


def look(session: Session) -> Flow[Any]:
    """Now the client knows the configuration."""
    return known_queue_shards(session, "q", NEVER)


def claim(session: Session) -> Flow[Any]:
    return claim_round(session, session.queue_shards("q"), 2, False, "test", NEVER)


def rate(value: str | None) -> Callable[[Session], Flow[Any]]:
    return lambda session: configure_queue(session, "q", {"rate": value}, NEVER)


def back(session: Session) -> Flow[Any]:
    return return_tokens(session, "q", NEVER)


def before(value: str | None) -> Calls:
    bodies: list[Any] = [b"x"] * 4
    return [
        lambda session: create_queue(session, "q", QueueConfig(rate=value), NEVER),
        lambda session: enqueue_many(session, "q", bodies, NEVER),
        claim,  # an account begins empty
    ]


MANY = pytest.mark.thorough("orders")
#: So many of the thousands of orders of a long race; None: all.
SAMPLE = None if os.environ.get("PINLATER_CAMPAIGN") else 40


def short(*values: Any, id: str) -> Any:
    return pytest.param(*values, None, id=id)


def long(*values: Any, id: str) -> Any:
    return pytest.param(*values, SAMPLE, id=id, marks=MANY)


RACES: list[Any] = [
    short(None, [[look, claim], [rate(SLOW)]], id="a rate begins"),
    long(None, [[look, claim], [look, claim], [rate(FAST)]], id="a rate begins, two claim"),
    short(FAST, [[look, claim], [rate(None)]], id="a rate ends"),
    short(FAST, [[look, claim], [rate(None), rate(SLOW)]], id="a rate ends, another one begins"),
    short(FAST, [[look, claim, claim], [rate(SLOW)]], id="a rate falls"),
    short(FAST, [[look, claim, back], [look, claim]], id="two claim"),
    long(FAST, [[look, claim, back], [look, claim, back], [rate(SLOW)]], id="two claim, it falls"),
]


@pytest.mark.parametrize(("at_first", "calls", "sample"), RACES)
def test_no_job_is_claimed_without_a_token(at_first: str | None, calls: list[Calls], sample: int | None) -> None:
    assert orders(at_first, lambda: [Runner(each) for each in calls], sample) > 1


@pytest.mark.parametrize("fate", ["answer lost", "late"])
@pytest.mark.parametrize(
    ("changes", "sample"), [short([rate(SLOW)], id="falls"), long([rate(None), rate(SLOW)], id="ends and begins")]
)
@pytest.mark.parametrize("request_", [3, 4])
def test_nor_with_a_lost_answer_or_a_late_request(
    fate: Fate, request_: int, changes: Calls, sample: int | None
) -> None:
    """Request 3 is the grant, 4 the claim."""

    def make() -> list[Runner]:
        return [Runner([look, claim], {request_: fate}), Runner(changes)]

    assert orders(FAST, make, sample) > 1


def orders(at_first: str | None, make: Callable[[], list[Runner]], sample: int | None) -> int:
    """Runs all of them, or so many; returns how many."""
    world, count = Ledger(), 0

    def witness() -> Callable[[World], None]:
        world.claimed = 0 if at_first is None else world.claimed
        return lambda _: world.check()

    for _ in every_order(world, before(at_first), make, witness, sample):
        count += 1
    return count
