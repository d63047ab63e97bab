"""Two spillers and a restorer at once, zombies, late requests, deletions, queues made again and a Redis that loses its
data, in any order, against a model: each job that was not deleted runs once, as it was.

PINLATER_CAMPAIGN=1 runs it for longer. Risks: each step is whole. test_steps.py cuts them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from pinlater import Client, JobInfo, NewJob, State
from pinlater.archive.archiver import Archiver, Selection
from pinlater.store.effects import Effect
from tests.archive.actors import Actor
from tests.archive.rig import Rig, flow_of_recovery
from tests.archive.stepper import carry_out, name_of
from tests.archive.world import World, small_batches, world

__all__ = ["small_batches", "world"]

CAMPAIGN = bool(os.environ.get("PINLATER_CAMPAIGN"))
EXAMPLES = 2_000 if CAMPAIGN else 8
STEPS = 40
PICKS = st.integers(0, 1_000)
SPILLERS, RESTORERS = (0, 1), (2,)
TIMEOUT_S = 5.0


class ArchiveMachine(RuleBasedStateMachine):
    """jobs: what is pending, by descriptor. every: all that was ever enqueued."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.world.begin()
        self.loop = asyncio.new_event_loop()
        self.actors: dict[int, Actor] = {}
        self.held: list[tuple[Client, Effect]] = []
        self.clients: list[Client] = []
        self.jobs: dict[str, JobInfo] = dict(self.world.before)
        self.every: dict[str, JobInfo] = dict(self.jobs)
        self.number = 0

    @property
    def rig(self) -> Rig:
        return self.world.rig

    # archivers

    @rule(slot=st.sampled_from(SPILLERS), limit=st.integers(1, 6), priority=st.sampled_from([None, 1, 2]))
    def spill(self, slot: int, limit: int, priority: int | None) -> None:
        queue = self.rig.queue
        self._start(slot, lambda archiver: archiver.spill(queue, Selection(limit=limit, priority=priority)))

    @rule(slot=st.sampled_from(RESTORERS), limit=st.sampled_from([1, 3, None]))
    def restore(self, slot: int, limit: int | None) -> None:
        queue = self.rig.queue
        self._start(slot, lambda archiver: archiver.restore(queue, limit))

    @rule(slot=st.sampled_from([*SPILLERS, *RESTORERS]))
    def recover_slowly(self, slot: int) -> None:
        queue = self.rig.queue

        async def act(archiver: Archiver) -> None:
            await archiver.run(lambda end: flow_of_recovery(archiver.session, archiver.database, queue, end))

        self._start(slot, act)

    def _start(self, slot: int, act: Callable[[Archiver], Awaitable[Any]]) -> None:
        actor = self.actors.get(slot)
        if actor is not None and not actor.is_done:
            actor.go_on(100)
        self.actors[slot] = Actor(self.loop, self._client(), act)

    def _client(self) -> Client:
        self.clients.append(Client(shards=self.rig.shards, archive=self.rig.archive_url, timeout_s=TIMEOUT_S))
        return self.clients[-1]

    @precondition(lambda self: self.actors)
    @rule(pick=PICKS, steps=st.integers(1, 9))
    def go_on(self, pick: int, steps: int) -> None:
        actor = self._pick(pick)
        note(f"takes {actor}")
        actor.go_on(steps)

    @precondition(lambda self: self.actors)
    @rule(pick=PICKS, to_the_end=st.just(True))
    def go_to_the_end(self, pick: int, to_the_end: bool) -> None:
        self._pick(pick).go_on(1_000)

    def _pick(self, pick: int) -> Actor:
        return list(self.actors.values())[pick % len(self.actors)]

    @precondition(lambda self: self.actors)
    @rule(pick=PICKS)
    def kill(self, pick: int) -> None:
        """What it was about to send is under way."""
        slot = list(self.actors)[pick % len(self.actors)]
        actor = self.actors.pop(slot)
        self.held += [(actor.client, effect) for effect in actor.kill()]

    @precondition(lambda self: self.held)
    @rule(pick=PICKS, again=st.booleans())
    def come_late(self, pick: int, again: bool) -> None:
        number = pick % len(self.held)
        client, effect = self.held[number] if again else self.held.pop(number)
        note(f"late: {name_of(effect)}")
        carry_out(client, effect)

    @rule()
    def recover(self) -> None:
        """Every archiver at work is a zombie then."""
        self.rig.recover()

    @rule()
    def restore_all(self) -> None:
        self.rig.recover()
        self.rig.restore()

    # clients and workers

    @rule(count=st.integers(1, 5), priority=st.sampled_from([1, 2]), status=st.sampled_from(["", "größer"]))
    def enqueue(self, count: int, priority: int, status: str) -> None:
        self.number += 1
        jobs = [NewJob(b"%d" % self.number, priority=priority, status=status)] * count
        names = self.rig.client.enqueue_many(self.rig.queue, jobs)
        found = self.rig.infos(names)
        self.jobs |= found
        self.every |= found

    @rule(limit=st.integers(1, 4))
    def work(self, limit: int) -> None:
        for job in self.rig.take(limit):
            note(f"runs {job.descriptor}")
            assert self.jobs.pop(job.descriptor).body == job.body

    @precondition(lambda self: self.every)
    @rule(picks=st.lists(PICKS, min_size=1, max_size=3))
    def delete(self, picks: list[int]) -> None:
        names = {list(self.every)[pick % len(self.every)] for pick in picks}
        pending = [name for name in names if self.jobs.pop(name, None)]
        ended = self.rig.client.lookup(names - set(pending))
        note(f"deletes {sorted(names)}")
        assert self.rig.client.delete_jobs(descriptors=names) == len(pending) + len(ended)

    @rule(sure=st.integers(0, 5))
    def make_the_queue_again(self, sure: int) -> None:
        if sure:
            return
        assert self.rig.client.delete_queue(self.rig.queue)
        self.rig.create()
        self.jobs.clear()

    @rule(sure=st.integers(0, 5))
    def lose_redis(self, sure: int) -> None:
        """What has a row comes back, also if it came back or was deleted and nobody had ended the move."""
        if sure:
            return
        self.world.server.call("FLUSHALL")
        self.rig.create()
        rows = self.rig.database.transaction(lambda sql: sql.run_text(ROWS % self.rig.queue))
        ids = {id_ for (id_,) in rows}
        self.jobs = {name: info for name, info in self.every.items() if int(name.rpartition(":")[2]) in ids}

    @invariant()
    def pending_jobs_are_as_they_were(self) -> None:
        found = self.rig.infos(self.every)
        pending = {name: info for name, info in found.items() if info.state is State.PENDING}
        assert pending == self.jobs
        assert self.rig.client.count(self.rig.queue).pending == len(self.jobs)

    def teardown(self) -> None:
        try:
            for actor in self.actors.values():
                self.held += [(actor.client, effect) for effect in actor.kill()]
            for client, effect in self.held:
                carry_out(client, effect)
            self.rig.recover()
            self.rig.restore()
            assert sorted(job.descriptor for job in self.rig.drain()) == sorted(self.jobs)
            self.rig.check()
        finally:
            self.loop.close()
            for client in self.clients:
                client.close()


ROWS = (
    "SELECT DISTINCT id FROM jobs JOIN incarnations ON incarnations.number = jobs.incarnation "
    "WHERE ended = 0 AND queue = '%s'"
)


def run(world: World, examples: int) -> None:
    class Machine(ArchiveMachine):
        pass

    Machine.world = world
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    chosen = settings(
        max_examples=examples, stateful_step_count=STEPS, deadline=None, suppress_health_check=checks, database=None
    )
    run_state_machine_as_test(Machine, settings=chosen)


@pytest.mark.thorough("orders")
@pytest.mark.timeout(1_200)
def test_archivers_at_once(world: World) -> None:
    run(world, EXAMPLES)
