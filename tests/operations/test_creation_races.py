"""Clients that create and delete one queue at the same time, in every order of their steps.

Promises: ids, versions and epochs of the queue only grow, with a clock that goes forwards or backwards, also if answers
are lost, requests are carried out late, or a client dies. What the queue's own keys forget is in the registry. A queue
that is : a memory store, and one shard; test_deleted_queues.py has real servers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pytest

from pinlater import QueueConfig
from pinlater.model.queue_config import StoredConfig
from pinlater.operations.queues import create_queue, delete_queue
from pinlater.store.effects import Flow
from pinlater.store.keys import queue_key, registry_key, remnant_field, remnant_keys
from pinlater.store.shards import Session
from tests.support.interleaving import Calls, Fate, Runner, World, every_order, run_alone

NAMES = registry_key("1")
META, PERMIT = (queue_key("q", "1", name) for name in ("meta", "permit"))
REMNANTS = remnant_keys("q", "1")[0]
NEVER = float("inf")
CLOCKS = pytest.mark.parametrize("step_us", [7, -1_000_000], ids=["forwards", "backwards"])


unpacked = lru_cache(StoredConfig.unpack)


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

    def look(self, world: World) -> None:
        meta: Any = world.store.values.get(META, {})
        remnants: Any = world.store.values.get(REMNANTS, {})
        known = Marks()
        if remnant := remnants.get(remnant_field("q")):
            left = StoredConfig.deleted_as(remnant)
            known = Marks(left.epoch, left.version, remnant[:8])
        if b"config" in meta:
            stored = unpacked(meta[b"config"])
            present = Marks(stored.epoch, stored.version, meta[b"head"][:8])
            if stored.deleted:
                self.alive = 0
            elif stored.epoch != self.alive:
                assert present.all_above(self.top), "an epoch, a version or an id came back"
                self.alive = stored.epoch
            known = known.max(present)
        else:
            self.alive = 0
        self.top = self.top.max(known)
        assert known == self.top, "something was forgotten"


def every(
    step_us: int, before: Calls, make: Callable[[], list[Runner]], sample: int | None = None
) -> Iterator[tuple[World, Witness, list[Runner]]]:
    """All orders, or so many of them: the end of each, and what was seen on the way."""
    world, witnesses = World(step_us), list[Witness]()

    def witness() -> Callable[[World], None]:
        witnesses[:] = [Witness()]
        return witnesses[0].look

    for runners in every_order(world, before, make, witness, sample):
        yield world, witnesses[0], runners


def is_there(world: World) -> bool:
    packed = world.store.values.get(META, {}).get(b"config")  # type: ignore[union-attr]
    return packed is not None and not unpacked(packed).deleted


def has_name(world: World) -> bool:
    return b"q" in world.store.values.get(NAMES, ())  # type: ignore[operator]


def is_tidy(world: World) -> bool:
    """Whether a deleted queue has left its remnant alone, and perhaps a permit that expires."""
    return set(world.store.values) <= {REMNANTS, PERMIT}


MANY_ORDERS = pytest.mark.thorough("orders")
CAMPAIGN = bool(os.environ.get("PINLATER_CAMPAIGN"))
#: So many of the thousands of orders of a long race; None: all.
SAMPLE = None if CAMPAIGN else 40


def short(*values: Any, id: str) -> Any:
    return pytest.param(*values, None, id=id)


def long(*values: Any, id: str) -> Any:
    return pytest.param(*values, SAMPLE, id=id, marks=(MANY_ORDERS, pytest.mark.timeout(3600 if CAMPAIGN else 300)))


RACES: list[Any] = [
    short([], [[create], [create]], id="two create"),
    short([create, delete], [[create], [create]], id="two create again"),
    short([create], [[delete], [delete]], id="two delete"),
    short([create], [[delete], [create]], id="one deletes, one creates"),
    short([], [[create], [create, delete]], id="one creates, one creates and deletes"),
    long([create, delete], [[create], [create, delete]], id="the same of a deleted queue"),
    long([create], [[delete], [create], [delete]], id="two delete, one creates"),
]


@pytest.mark.thorough("orders")
@CLOCKS
@pytest.mark.parametrize(("before", "calls", "sample"), RACES)
def test_nothing_comes_back_in_any_order(before: Calls, calls: list[Calls], sample: int | None, step_us: int) -> None:
    orders = 0
    for world, _, runners in every(step_us, before, lambda: [Runner(each) for each in calls], sample):
        orders += 1
        assert all(isinstance(result, bool) for runner in runners for result in runner.results)
        check_the_end(world, runners)
    assert orders > 10


def check_the_end(world: World, runners: list[Runner]) -> None:
    """A queue that is there has its name in the registry. Where all creations came before a deletion by the same
    client, the queue is gone, and its keys too.
    """
    assert has_name(world) or not is_there(world), "a queue is there, but not its name"
    if all(runner.calls[-1] is delete and not runner.died for runner in runners):
        assert is_tidy(world)


#: Before, a client's calls, another's, and what happens to the first one's requests: 1 reads, 2 is a permit or a
#: deletion, 3 a creation or a remnant, 4 the end of a deletion. A repeated one has the next number.
LATE: list[Any] = [
    short([create, delete], [create], [delete], {2: "late"}, id="a permit"),
    short([create, delete], [create], [delete], {3: "late"}, id="a creation"),
    long([create, delete], [create], [delete], {2: "late", 4: "late"}, id="a permit and its creation"),
    short([create, delete], [create], [delete], {2: "answer lost"}, id="the answer to a permit"),
    short([create, delete], [create], [delete], {3: "answer lost"}, id="the answer to a creation"),
    short([create], [delete], [create], {2: "late"}, id="a deletion"),
    short([create], [delete], [create], {3: "late"}, id="a remnant"),
    short([create], [delete], [create], {4: "late"}, id="the end of a deletion"),
    short([create], [delete], [create], {2: "answer lost"}, id="the answer to a deletion"),
    short([create], [delete], [create], {3: "answer lost"}, id="the answer to a remnant"),
    long([create, delete], [create], [create, delete], {3: "late"}, id="a creation of two"),
    long([create], [delete], [create, delete], {2: "late"}, id="a deletion of two"),
    long([create], [delete], [create, delete], {3: "late"}, id="a remnant of two"),
    long([create], [delete], [create, delete], {4: "late"}, id="an end of two"),
]


@pytest.mark.thorough("orders")
@CLOCKS
@pytest.mark.parametrize(("before", "calls", "others", "fates", "sample"), LATE)
def test_nothing_comes_back_by_a_request_that_is_late_or_whose_answer_is_lost(
    before: Calls, calls: Calls, others: Calls, fates: dict[int, Fate], sample: int | None, step_us: int
) -> None:
    orders = 0
    for _ in every(step_us, before, lambda: [Runner(calls, fates), Runner(others)], sample):
        orders += 1
    assert orders > 5


@CLOCKS
@pytest.mark.parametrize("after", range(1, 12))
def test_nothing_comes_back_after_a_client_that_dies_at_any_step(after: int, step_us: int) -> None:
    """The next client that deletes the queue takes up what the dead one left."""
    for world, witness, _ in every(step_us, [create], lambda: [Runner([delete, create], dies_after=after)]):
        for call in (delete, create, delete):
            run_alone(world, [call])
            witness.look(world)
        assert is_tidy(world)


@MANY_ORDERS
@CLOCKS
@pytest.mark.parametrize("after", range(1, 12))
def test_nothing_comes_back_after_a_client_that_dies_beside_another(after: int, step_us: int) -> None:
    for world, witness, _ in every(
        step_us, [create], lambda: [Runner([delete, create], dies_after=after), Runner([delete])], SAMPLE
    ):
        for call in (delete, create, delete):
            run_alone(world, [call])
            witness.look(world)
        assert is_tidy(world)
