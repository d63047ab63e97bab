"""The archive's protocol in every order of its steps, with crashes, late requests, roll backs, deletions and lost data.

Promises: no job is lost, runs twice, or runs after a deletion that its client knows to be on disk; a deletion overlooks
no pending job; no id is in a line without its record; and from each state the work can be ended. Without any single
clause of the protocol one of these is broken, but for the clauses of UNNEEDED.
Risks: a model, with one job or two, two archivers and few faults at a time. PINLATER_CAMPAIGN=1 runs it with more,
which takes minutes and 1 GB.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from dataclasses import fields

import pytest

from tests.archive.protocol_model import Model, violation
from tests.archive.protocol_worlds import LINE, NOWHERE, Clauses, Faults, Redis, Setting
from tests.archive.search import explore

CAMPAIGN = bool(os.environ.get("PINLATER_CAMPAIGN"))
pytestmark = pytest.mark.timeout(3600 if CAMPAIGN else 300)

SMALL = {
    "two jobs": Setting(jobs=2),
    "a crash and a roll back": Setting(faults=Faults(crashes=1, late=1, roll_backs=1)),
    "a deletion and a roll back": Setting(faults=Faults(deletions=1, roll_backs=1)),
    "the queue is deleted": Setting(unborn=1, faults=Faults(queue_deletions=1)),
    "Redis loses its data": Setting(faults=Faults(losses=1)),
}
LARGE = {
    "three archivers, three batches": Setting(archivers=3, names=3),
    "two jobs, three batches": Setting(jobs=2, names=3),
    "two jobs and a crash": Setting(jobs=2, faults=Faults(crashes=1, late=1)),
    "two jobs and a roll back": Setting(jobs=2, faults=Faults(roll_backs=1)),
    "two jobs and two deletions": Setting(jobs=2, faults=Faults(deletions=2)),
    "two crashes": Setting(faults=Faults(crashes=2, late=2)),
    "a crash and two roll backs": Setting(faults=Faults(crashes=1, roll_backs=2)),
    "a deletion, three batches": Setting(names=3, faults=Faults(deletions=1)),
    "a deletion and a crash": Setting(faults=Faults(deletions=1, crashes=1, late=1)),
    "the queue is deleted twice": Setting(unborn=1, faults=Faults(queue_deletions=2)),
    "the queue is deleted, and a roll back": Setting(unborn=1, faults=Faults(queue_deletions=1, roll_backs=1)),
    "the queue is deleted, and a crash": Setting(unborn=1, faults=Faults(queue_deletions=1, crashes=1, late=1)),
    "Redis loses its data, and a crash": Setting(faults=Faults(losses=1, crashes=1, late=1)),
    "a deletion, a crash and a roll back": Setting(faults=Faults(deletions=1, crashes=1, late=1, roll_backs=1)),
    "the queue is deleted twice, and a roll back": Setting(unborn=1, faults=Faults(queue_deletions=2, roll_backs=1)),
    "the queue is deleted, and Redis loses its data": Setting(unborn=1, faults=Faults(queue_deletions=1, losses=1)),
    "Redis loses its data, two jobs": Setting(jobs=2, faults=Faults(losses=1)),
    "Redis loses its data, and a roll back": Setting(faults=Faults(losses=1, roll_backs=1)),
    "Redis loses its data twice": Setting(faults=Faults(losses=2)),
}

LOST, LOST_NEW = "job 0: lost", "job 1: lost"
TWICE, DELETED, OVERLOOKED = "job 0: run twice", "job 0: run after its deletion", "job 0: overlooked"

#: For each clause: which faults show that it is needed, and what happens without it.
NEEDED = {
    "only_finalized_come_back": (Faults(), LOST),
    "aborted_row_first": (Faults(), TWICE),
    "disk_before_rows_go": (Faults(roll_backs=1), LOST),
    "settled_checks": (Faults(roll_backs=1), LOST),
    "settled_on_one_connection": (Faults(roll_backs=1), TWICE),
    "number_in_the_transaction": (Faults(), LOST),
    "one_begin_at_a_time": (Faults(), TWICE),
    "closed_remembered": (Faults(), TWICE),
    "rows_go_by_last_batch": (Faults(), LOST),
    "wait_before_held": (Faults(), LOST),
    "open_batches_left_alone": (Faults(), LOST),
    "held_rows_only_while_committed": (Faults(roll_backs=1), LOST),
    "finalize_names_missing": (Faults(deletions=1), DELETED),
    "missing_rows_dropped": (Faults(deletions=1), DELETED),
    "delete_looks_again": (Faults(deletions=1), OVERLOOKED),
    "delete_repeats_until_still": (Faults(deletions=1), OVERLOOKED),
    "delete_waits_for_restore": (Faults(deletions=1), DELETED),
    "withdraw_names_epoch": (Faults(queue_deletions=1), LOST_NEW),
    "compare_looks_again": (Faults(queue_deletions=1, losses=1), LOST_NEW),
    "compare_sees_commits": (Faults(queue_deletions=1, losses=1), LOST_NEW),
    "restores_numbered_apart": (Faults(queue_deletions=1, losses=1), LOST_NEW),
    "commit_leaves_restoring": (Faults(losses=1), TWICE),
    "close_leaves_open": (Faults(), LOST),
    "closes_before_restore": (Faults(losses=1), TWICE),
    "closes_what_ended": (Faults(losses=1), LOST),
    "close_names_version": (Faults(losses=1), TWICE),
    "loss_draws_version": (Faults(losses=1), TWICE),
}

#: Clauses that no world of this model needs: the faults that come nearest, and why they do not need them.
UNNEEDED = {
    "held_asked": (
        Faults(roll_backs=1),
        "a COMMITTED batch was withdrawn on disk, so only finalize can have ended it: Redis has none of its jobs. After"
        " a failover to a replica that lacks the withdrawal it keeps jobs from running twice, and proves nothing",
    ),
    "held_names_epoch": (Faults(losses=1), "whatever becomes of the batch, rows of an ended incarnation stay away"),
    "restore_leaves_out_held": (
        Faults(losses=1),
        "while a row can come back, Redis has no such job; as for held_asked",
    ),
    "finalize_checks_owner": (Faults(deletions=1), "while Redis has a batch, its jobs are in it or have no record"),
    "commit_checks_incarnation": (Faults(losses=1), "rows of an ended incarnation stay away, and Redis lost the jobs"),
    "begin_checks_incarnation": (Faults(losses=1), "Redis refuses a restore of an ended incarnation"),
    "last_ended_checks_incarnation": (Faults(losses=1), "Redis refuses a `close` for an ended incarnation"),
    "restore_names_epoch": (
        Faults(queue_deletions=1),
        "restores of an ended incarnation have lower numbers than any that the queue's Redis has closed",
    ),
    "close_names_epoch": (Faults(queue_deletions=1), "it closes lower numbers alone, for the same reason"),
    "epoch_settled": (
        Faults(queue_deletions=1),
        "an epoch that a roll back takes away ends nothing that was committed since (compare_sees_commits), and the"
        " deletion that drew it took the jobs of before",
    ),
}

SETTINGS = SMALL | LARGE if CAMPAIGN else SMALL


@pytest.fixture(autouse=True)
def no_garbage_collector() -> Iterator[None]:
    """Worlds are values without cycles: there is nothing for it to find, and it would look at them again and again."""
    gc.disable()
    yield
    gc.enable()


def without(clause: str, faults: Faults) -> Setting:
    """A queue that is deleted gets a new job."""
    return Setting(unborn=min(1, faults.queue_deletions), faults=faults, clauses=Clauses(**{clause: False}))


@pytest.mark.parametrize("name", SETTINGS)
def test_each_job_runs_once_or_is_deleted(name: str) -> None:
    result = explore(SETTINGS[name])
    assert not result.problem, str(result)
    assert result.complete


#: What happens without it is far away: 20 s of a core, five times what all others take together.
FAR = "restores_numbered_apart"


@pytest.mark.parametrize(
    "clause", [pytest.param(each, marks=[pytest.mark.thorough("archive-clauses")] * (each == FAR)) for each in NEEDED]
)
def test_what_happens_without_a_clause(clause: str) -> None:
    faults, problem = NEEDED[clause]
    assert explore(without(clause, faults)).problem == problem


@pytest.mark.campaign("archive-clauses")
@pytest.mark.parametrize("clause", UNNEEDED)
def test_nothing_happens_without_an_unneeded_clause(clause: str) -> None:
    """If a new world needs one, it belongs into NEEDED."""
    faults, _ = UNNEEDED[clause]
    for tried in [setting.faults for setting in SMALL.values()] if CAMPAIGN else [faults]:
        result = explore(without(clause, tried))
        assert not result.problem, str(result)


def test_each_clause_is_tried() -> None:
    assert {field.name for field in fields(Clauses)} == NEEDED.keys() | UNNEEDED.keys()


def test_a_trace_is_a_list_of_sentences() -> None:
    assert explore(without("only_finalized_come_back", Faults())).trace == [
        "archiver withdraws job 0 for batch 1",
        "archiver reads batch 1: job 0",
        "archiver settles: batch 1 is withdrawn",
        "archiver commits batch 1 with job 0",
        "archiver begins restore 1 of job 0",
        "archiver sends restore 1 of job 0",
        "archiver finalizes batch 1",
        "archiver settles: the restores are done",
        "archiver drops the rows of restore 1 of job 0",
    ]


@pytest.mark.parametrize(
    ("redis", "problem"),
    [
        (Redis(1, 1, frozenset({0}), (LINE,)), ""),
        (Redis(1, 1, frozenset(), (LINE,)), "job 0: no record, but it is in line"),
        (Redis(1, 1, frozenset({0}), ("batch 1",)), "job 0: withdrawn for batch 1, which does not name it"),
        (Redis(1, 1, frozenset(), (NOWHERE,)), LOST),
    ],
)
def test_what_is_wrong(redis: Redis, problem: str) -> None:
    assert violation(Model(Setting()).first()._replace(redis=redis)) == problem
