"""Values of the protocol's model (protocol_model.py): what the stores have, who stands where, and what may happen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

#: States of a batch. WITHDRAWN: it has no row in MySQL.
WITHDRAWN, COMMITTED, FINALIZED, ABORTED = "WITHDRAWN", "COMMITTED", "FINALIZED", "ABORTED"
NOWHERE, LINE = "", "line"
#: No restore was ever closed.
NOTHING = -1

#: What happened to a job so far.
UNBORN, PENDING, RUN, RUN_TWICE = "unborn", "pending", "run", "run twice"
#: A deletion was carried out; its client knows that it is on disk; the job ran although its client knew.
DELETED, DELETION_KNOWN, RUN_DELETED = "deleted", "deletion known", "run after its deletion"
#: A deletion answered that there is no such job.
OVERLOOKED = "overlooked"
#: Redis lost its data while the job was there, or while its end was known there alone: it may be lost, or run again.
IN_LOST_REDIS = "in a Redis that lost its data"

#: A step with its arguments: where an archiver or a client stands. IDLE: nowhere.
Request: TypeAlias = tuple[Any, ...]
IDLE: Request = ()


class Redis(NamedTuple):
    """A queue shard. version: of its configuration; each creation draws one.

    places: for each job NOWHERE, LINE, or the batch that it was withdrawn for. batches: (name, ids) in order.
    open: the restores that are OPEN. closed: the highest one that is CLOSED, and with it all below, or NOTHING.
    """

    epoch: int
    version: int
    records: frozenset[int]
    places: tuple[str, ...]
    batches: tuple[tuple[str, tuple[int, ...]], ...] = ()
    open: tuple[int, ...] = ()
    closed: int = NOTHING


class Incarnation(NamedTuple):
    """A row of `incarnations`. lost_epoch: the highest one before Redis lost its data."""

    epoch: int
    lost_epoch: int = 0
    last_restore: int = 0


class Batch(NamedTuple):
    """A row of `batches`. Its number is its place in the table, from 1."""

    name: str
    incarnation: int
    state: str


class Restore(NamedTuple):
    """A row of `restores`."""

    incarnation: int
    number: int
    last_batch: int
    ids: tuple[int, ...]


class MySQL(NamedTuple):
    """incarnations: the last one is current, the others have ended. jobs: (incarnation, id, number of its batch)."""

    incarnations: tuple[Incarnation, ...]
    batches: tuple[Batch, ...] = ()
    restores: frozenset[Restore] = frozenset()
    jobs: frozenset[tuple[int, int, int]] = frozenset()

    def state_of(self, name: str) -> str:
        return next((batch.state for batch in self.batches if batch.name == name), WITHDRAWN)

    def number_of(self, name: str) -> int:
        """0: it has no row."""
        return next((at for at, batch in enumerate(self.batches, 1) if batch.name == name), 0)

    def rows_of(self, incarnation: int, *states: str) -> list[tuple[int, int]]:
        """(id, number of its batch) of the jobs of an incarnation whose batches are in one of these states."""
        return sorted(
            (id_, batch)
            for of, id_, batch in self.jobs
            if of == incarnation and self.batches[batch - 1].state in states
        )


class Known(NamedTuple):
    """What an archiver knows as the current incarnation."""

    number: int
    epoch: int


class Faults(NamedTuple):
    """How often each may still happen. late: a request of a crashed archiver is carried out later."""

    crashes: int = 0
    late: int = 0
    roll_backs: int = 0
    deletions: int = 0
    queue_deletions: int = 0
    losses: int = 0


class World(NamedTuple):
    """unsaved: what Redis was before each write that is not on disk yet, the oldest first. under_way: late requests,
    each with the version that its sender knew. names: batches so far.
    """

    redis: Redis
    unsaved: tuple[Redis, ...]
    mysql: MySQL
    archivers: tuple[Request, ...]
    client: Request
    under_way: tuple[tuple[Request, int], ...]
    jobs: tuple[str, ...]
    names: int
    left: Faults


class Step(NamedTuple):
    """text: what happened. then: where its archiver or client stands afterwards."""

    text: str
    world: World
    then: Request = IDLE


class Move(NamedTuple):
    """A step of anybody. fault: nobody may rely on it to happen."""

    text: str
    world: World
    fault: bool = False


@dataclass(frozen=True)
class Clauses:
    """The clauses of the protocol. A mutant lacks one."""

    # withdraw, commit, finalize, abort
    withdraw_names_epoch: bool = True
    commit_checks_incarnation: bool = True
    #: A batch with a job that an open restore names is not committed.
    commit_leaves_restoring: bool = True
    #: False: a job with a record is taken for one of the batch.
    finalize_checks_owner: bool = True
    finalize_names_missing: bool = True
    missing_rows_dropped: bool = True
    aborted_row_first: bool = True
    # settle
    settled_checks: bool = True
    settled_on_one_connection: bool = True
    # recovery of batches that Redis does not know
    open_batches_left_alone: bool = True
    held_asked: bool = True
    wait_before_held: bool = True
    held_names_epoch: bool = True
    #: `held` may be slow: the batch is FINALIZED meanwhile, and a restore brought the job.
    held_rows_only_while_committed: bool = True
    # restore
    only_finalized_come_back: bool = True
    begin_checks_incarnation: bool = True
    number_in_the_transaction: bool = True
    one_begin_at_a_time: bool = True
    restore_names_epoch: bool = True
    restore_leaves_out_held: bool = True
    disk_before_rows_go: bool = True
    rows_go_by_last_batch: bool = True
    close_names_epoch: bool = True
    closed_remembered: bool = True
    close_leaves_open: bool = True
    # where nothing is closed
    #: Redis takes no restore before those that ended are closed.
    closes_before_restore: bool = True
    closes_what_ended: bool = True
    #: `close` names the version that `restore` answered.
    close_names_version: bool = True
    #: False: another shard gives a Redis that lost its data the version that it had.
    loss_draws_version: bool = True
    last_ended_checks_incarnation: bool = True
    # delete
    #: False: Redis, then MySQL.
    delete_looks_again: bool = True
    #: False: Redis, MySQL, Redis. True: until no restore began between two looks at MySQL.
    delete_repeats_until_still: bool = True
    delete_waits_for_restore: bool = True
    # incarnations
    #: False: an epoch that was read long ago may end an incarnation.
    compare_looks_again: bool = True
    #: False: a batch that was committed since the look does not count.
    compare_sees_commits: bool = True
    epoch_settled: bool = True
    #: Restores of an incarnation have higher numbers than those of earlier ones.
    restores_numbered_apart: bool = True


@dataclass(frozen=True)
class Setting:
    """jobs: so many are there at first. unborn: so many are enqueued later. names: so many batches at most."""

    jobs: int = 1
    unborn: int = 0
    archivers: int = 2
    names: int = 2
    faults: Faults = field(default_factory=Faults)
    clauses: Clauses = field(default_factory=Clauses)
