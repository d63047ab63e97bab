"""Ids that are issued first and loaded later, for the state machine: prepare and load, which no client's method sends.

Promises: a reservation is good for one load of as many jobs as it was issued for, whatever happens in between; its jobs
run in the order in which it was issued; a reservation that was used, collected or deleted with its queue does not come
back. Risks: the two scripts are called by flows, as the service to come will.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from pinlater import NewJob, QueueConfig
from pinlater.model.errors import EnqueueRefused, InvalidArgument, QueueError
from pinlater.operations.enqueue import pack_jobs
from pinlater.store.requests import write
from tests.support.machine_working import JOBS, RARELY, WorkingMachine
from tests.support.model import Reservation

MOST_LEVELS = QueueConfig(priorities=100)  # so that it is the script that refuses a priority


class ReservationMachine(WorkingMachine):
    """Rules for prepare and load."""

    @precondition(WorkingMachine.exists)
    @rule(jobs=st.integers(1, 4), pick=st.integers(0, 1))
    def prepare(self, jobs: int, pick: int) -> None:
        shard = self.rig.shards[pick % len(self.rig.shards)]
        if self.model.settings.refuse_enqueue:
            with pytest.raises(EnqueueRefused):
                self.ask(shard, "prepare", [jobs])
            return
        self.model.prepare(
            Reservation(shard, int.from_bytes(self.ask(shard, "prepare", [jobs]), "big"), jobs), self.now_ms
        )

    @precondition(WorkingMachine.exists)
    @rule(drawn=st.lists(JOBS, min_size=1, max_size=4), pick=st.integers(0, 5), more=RARELY, gone=RARELY)
    def load(self, drawn: list[Any], pick: int, more: bool, gone: bool) -> None:
        """more: by one than the reservation is for. gone: a reservation that is."""
        if not self.model.reservations:
            self.prepare(len(drawn), pick % 2)
        reservations = self.model.gone_reservations if gone else self.model.reservations
        if not reservations:
            return
        reservation = reservations[-1 - pick % len(reservations)]
        jobs = [self.new_job(drawn[i % len(drawn)]) for i in range(reservation.jobs + more)]
        refusal = self.refusal(reservation, jobs)
        if refusal is not None:
            with pytest.raises(refusal):
                self.send_load(reservation, jobs)
            return
        assert self.send_load(reservation, jobs) == reservation.first
        self.model.load(reservation, self.queue, jobs, self.now_ms)

    def refusal(self, reservation: Reservation, jobs: list[NewJob]) -> type[Exception] | None:
        """What the script says to a load, in the order in which it looks."""
        if self.model.settings.refuse_enqueue:
            return EnqueueRefused
        if reservation not in self.model.reservations:
            return QueueError
        wrong = len(jobs) != reservation.jobs or any(job.priority > self.model.settings.priorities for job in jobs)
        return InvalidArgument if wrong else None

    def send_load(self, reservation: Reservation, jobs: list[NewJob]) -> int:
        spec, statuses, records = pack_jobs(jobs, MOST_LEVELS)
        reply = self.ask(reservation.shard, "load", [reservation.first.to_bytes(8, "big"), spec, statuses, *records])
        return int.from_bytes(reply, "big")

    def ask(self, shard: str, verb: str, arguments: list[Any]) -> bytes:
        """The payload of a writing script's reply."""
        place = self.client.session.queue_shard(self.queue, shard)
        reply: bytes = self.client.run(lambda end: write(place, verb, arguments, end))[2]
        return reply
