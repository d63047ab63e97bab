"""Clients that create and delete one queue at the same time, in every order of their steps.

Promises: ids, versions and epochs of the queue only grow, with a clock that goes forwards or backwards, also if answers
are lost, requests are carried out late, or a client dies. What the queue's own keys forget is in the registry.
Risks: a memory store, and one shard; test_deleted_queues.py has real servers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from pinlater import QueueConfig
from pinlater.model.queue_config import StoredConfig
from pinlater.operations.queues import create_queue, delete_queue
from pinlater.store.effects import Flow
from pinlater.store.keys import queue_key, remnant_field, remnant_keys
from pinlater.store.shards import Session
from tests.support.interleaving import Calls, Fate, Runner, World, every_order

META, PERMIT = (queue_key("q", "1", name) for name in ("meta", "permit"))
REMNANTS = remnant_keys("q", "1")[0]
NEVER = float("inf")
CLOCKS = pytest.mark.parametrize("step_us", [7, -1_000_000], ids=["forwards", "backwards"])


def create(session: Session) -> Flow[bool]:
    return create_queue(session, "q", QueueConfig(), NEVER)


def delete(session: Session) -> Flow[bool]:
    return delete_queue(session, "q", NEVER)


@dataclass(order=True, frozen=True)
class Marks:
    """How far the epochs, versions and ids of a queue are."""

    epoch: int = 0
    version: bytes = b""
    h: bytes = b""

    def max(self, other: Marks) -> Marks:
        return Marks(max(self.epoch, other.epoch), max(self.version, other.version), max(self.h, other.h))

    def all_above(self, other: Marks) -> bool:
        return self.epoch > other.epoch and self.version > other.version and self.h > other.h


class Witness:
    """Looks at the keys after each step."""

    def __init__(self) -> None:
        self.top = Marks()
        self.alive = 0  # the epoch of the queue that is there
        self.lives = 0

    def look(self, world: World) -> None:
        meta: Any = world.store.values.get(META, {})
        remnants: Any = world.store.values.get(REMNANTS, {})
        known = Marks()
        if remnant := remnants.get(remnant_field("q")):
            left = StoredConfig.deleted_as(remnant)
            known = Marks(left.epoch, left.version, remnant[:8])
        if b"config" in meta:
            stored = StoredConfig.unpack(meta[b"config"])
            present = Marks(stored.epoch, stored.version, meta[b"head"][:8])
            if stored.deleted:
                self.alive = 0
            elif stored.epoch != self.alive:
                assert present.all_above(self.top), "an epoch, a version or an id came back"
                self.alive = stored.epoch
                self.lives += 1
            known = known.max(present)
        else:
            self.alive = 0
        self.top = self.top.max(known)
        assert known == self.top, "something was forgotten"


def every(
    step_us: int, before: Calls, make: Callable[[], list[Runner]]
) -> Iterator[tuple[World, Witness, list[Runner]]]:
    """All orders: the end of each, and what was seen on the way."""
    world, witnesses = World(step_us), list[Witness]()

    def witness() -> Callable[[World], None]:
        witnesses[:] = [Witness()]
        return witnesses[0].look

    for runners in every_order(world, before, make, witness):
        yield world, witnesses[0], runners


def is_tidy(world: World) -> bool:
    """Whether a deleted queue has left its remnant alone, and perhaps a permit that expires."""
    return set(world.store.values) <= {REMNANTS, PERMIT}


RACES: dict[str, tuple[Calls, list[Calls]]] = {
    "two create": ([], [[create], [create]]),
    "two create again": ([create, delete], [[create], [create]]),
    "two delete": ([create], [[delete], [delete]]),
    "one creates, one creates and deletes": ([], [[create], [create, delete]]),
    "one creates again, one creates and deletes": ([create, delete], [[create], [create, delete]]),
    "one deletes, one creates": ([create], [[delete], [create]]),
    "one deletes, one creates, one deletes": ([create], [[delete], [create], [delete]]),
}


@CLOCKS
@pytest.mark.parametrize("race", RACES)
def test_nothing_comes_back_in_any_order(race: str, step_us: int) -> None:
    before, calls = RACES[race]
    orders = 0
    for world, witness, runners in every(step_us, before, lambda: [Runner(each) for each in calls]):
        orders += 1
        assert not [result for runner in runners for result in runner.results if not isinstance(result, bool)]
    print(race, orders)
