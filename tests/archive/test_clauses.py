"""What the clauses of the archive's protocol prevent: a test for each that no step of test_steps.py shows by itself.

Promises: without the clause the test fails (tests/faults.py takes each of them away).
Risks: one moment a clause. protocol_model.py has all of them, in a model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from pinlater import Client, NewJob, QueueConfig
from pinlater.archive import purge
from pinlater.archive.archiver import Archiver, Selection
from pinlater.archive.batches import commit, drop_rows, mark_finalized
from pinlater.archive.incarnations import Incarnation, IncarnationEnded, incarnation_of
from pinlater.archive.moves import moves_of
from pinlater.archive.moving_job import MovingJob
from pinlater.archive.recovery import end_batches, recover, until_finalized
from pinlater.archive.restores import Wanted, begin, close, finish
from pinlater.model.errors import ArchiveDuplicate, ArchiveError
from pinlater.operations import admin, inspect
from pinlater.store import archive_driver
from pinlater.store.archive_driver import ArchiveDatabase
from pinlater.store.archive_errors import ArchiveConflict
from pinlater.store.effects import Flow, Transaction, resume
from pinlater.store.keys import queue_key
from pinlater.store.requests import write
from tests.archive.rig import DURABLE, FAR_MS, PRIORITIES, QUEUE, Rig
from tests.archive.stepper import Fault, Killed, Perform, Stepper
from tests.conftest import FreshServer
from tests.support.archive import COMMITTED, EPOCH, job_row, migrated, new_incarnation, store_batch
from tests.support.servers import Server

WANTED = Wanted(1)
NAME = b"n" * 16
ABORTED = 3
TABLES = ["jobs", "batches", "restores", "incarnations"]
SIZES = (
    "SELECT (SELECT COUNT(*) FROM jobs), (SELECT COUNT(*) FROM batches), (SELECT COUNT(*) FROM restores), "
    "(SELECT COUNT(*) FROM incarnations)"
)


# -- transactions


@pytest.fixture
def database(mysql_url: str) -> Iterator[ArchiveDatabase]:
    made = migrated(mysql_url)
    yield made
    made.close()


@pytest.fixture
def incarnation(database: ArchiveDatabase) -> Incarnation:
    return Incarnation(new_incarnation(database), EPOCH)


def run(flow: Flow[Any]) -> Any:
    """Runs a flow of transactions."""
    try:
        effect = next(flow)
        while True:
            assert isinstance(effect, Transaction)
            effect = resume(flow, effect.outcome())
    except StopIteration as stop:
        return stop.value


def rows_of(database: ArchiveDatabase, *tables: str) -> list[int]:
    """How many rows each table has."""

    [counts] = database.transaction(lambda sql: sql.run_text(SIZES))
    return [counts[TABLES.index(table)] for table in tables]


def job(id_: int) -> MovingJob:
    return MovingJob(id_, 1, 5, 0, 3, None, b"body")


def archived(database: ArchiveDatabase, incarnation: Incarnation, *ids: int) -> tuple[bytes, int]:
    """Stores a FINALIZED batch. Returns its name and its number."""
    return database.transaction(lambda sql: store_batch(sql, incarnation.number, [job_row(id_) for id_ in ids]))


CHANGES = {"it ended": ("end_incarnation", ()), "it has another epoch": ("set_epoch", (EPOCH + 2,))}


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_begins_for_another_incarnation(
    change: str, database: ArchiveDatabase, incarnation: Incarnation
) -> None:
    archived(database, incarnation, 1)
    statement, words = CHANGES[change]
    database.transaction(lambda sql: sql.run(statement, (*words, incarnation.number)))
    before = rows_of(database, "batches", "jobs", "restores")
    for flow in (
        commit(database, incarnation, {NAME: [job(2)]}),
        begin(database, incarnation, WANTED, 10),
    ):
        with pytest.raises(IncarnationEnded):
            run(flow)
    assert rows_of(database, "batches", "jobs", "restores") == before


def test_a_job_of_an_open_restore_is_not_committed(database: ArchiveDatabase, incarnation: Incarnation) -> None:
    """It would have two rows, and run twice if Redis lost its data."""
    archived(database, incarnation, 1, 2)
    run(begin(database, incarnation, WANTED, 10))
    with pytest.raises(ArchiveDuplicate):
        run(commit(database, incarnation, {NAME: [job(3), job(2)]}))
    assert rows_of(database, "batches", "jobs") == [1, 2]
    run(commit(database, incarnation, {NAME: [job(3)]}))


def test_a_batch_has_one_row(database: ArchiveDatabase, incarnation: Incarnation) -> None:
    run(commit(database, incarnation, {NAME: [job(1)]}))
    with pytest.raises(ArchiveDuplicate):
        run(commit(database, incarnation, {NAME: [job(2)]}))
    assert rows_of(database, "batches", "jobs") == [1, 1]


def test_nobody_begins_restores_while_others_are_open(database: ArchiveDatabase, incarnation: Incarnation) -> None:
    archived(database, incarnation, 1, 2)
    first = run(begin(database, incarnation, WANTED, 1))
    assert (first.jobs, [restore.ids for restore in first.restores]) == (1, [[1]])
    assert run(begin(database, incarnation, WANTED, 10)) == (first.restores, 0)
    assert rows_of(database, "restores") == [1]


def test_a_restore_names_its_highest_batch(database: ArchiveDatabase, incarnation: Incarnation) -> None:
    numbers = [archived(database, incarnation, id_)[1] for id_ in (2, 1, 3)]
    [restore] = run(begin(database, incarnation, WANTED, 2)).restores
    assert restore == (1, numbers[1], [1, 2])


def test_rows_of_a_finalized_batch_stay(database: ArchiveDatabase, incarnation: Incarnation) -> None:
    """Its jobs may be on their way back: who found one in Redis saw the restored one."""
    name, _ = archived(database, incarnation, 1, 2)
    run(drop_rows(database, name, [1, 2]))
    assert rows_of(database, "jobs") == [2]
    name, _ = database.transaction(lambda sql: store_batch(sql, incarnation.number, [job_row(3)], COMMITTED))
    run(drop_rows(database, name, [3]))
    assert rows_of(database, "jobs") == [2]


def test_an_ended_incarnation_leaves_nothing(
    database: ArchiveDatabase, incarnation: Incarnation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open restore of it neither, in whatever state it was."""
    monkeypatch.setattr(purge, "PURGED_AT_ONCE", 2)
    archived(database, incarnation, 1, 2, 3)
    run(begin(database, incarnation, WANTED, 2))
    for state in (COMMITTED, ABORTED):
        database.transaction(lambda sql, state=state: store_batch(sql, incarnation.number, [job_row(4)], state))  # type: ignore[misc]
    other = Incarnation(new_incarnation(database, b"other"), EPOCH)
    archived(database, other, 1)
    run(begin(database, other, WANTED, 1))
    assert run(purge.purge(database)) == 0
    assert rows_of(database, *TABLES) == [6, 2, 2, 2]  # FINALIZED ones are old
    database.transaction(lambda sql: sql.run("end_incarnation", (incarnation.number,)))
    assert run(purge.purge(database)) == 5
    assert rows_of(database, *TABLES) == [1, 0, 1, 1]


LOCKS: dict[str, tuple[str, Callable[[ArchiveDatabase, Incarnation, bytes], Flow[Any]]]] = {
    "a restore begins while a batch commits": ("check_shared", lambda at, of, _: begin(at, of, WANTED, 10)),
    "a batch commits while a restore begins": (
        "check_exclusive",
        lambda at, of, _: commit(at, of, {NAME: [job(2)]}),
    ),
    "a batch ends while its rows are removed": ("lock_committed", lambda at, _, name: mark_finalized(at, [name])),
}


@pytest.mark.parametrize("what", LOCKS)
def test_one_waits_for_the_other(
    what: str,
    mysql_url: str,
    database: ArchiveDatabase,
    incarnation: Incarnation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archive_driver, "TRIES", 1)
    statement, waiting = LOCKS[what]
    name, _ = database.transaction(lambda sql: store_batch(sql, incarnation.number, [job_row(1)], COMMITTED))
    other = migrated(mysql_url)
    try:
        other.transaction(lambda sql: sql.run_text("SET SESSION innodb_lock_wait_timeout = 1"))

        def hold(sql: archive_driver.Statements) -> None:
            assert sql.run(statement, (name if statement == "lock_committed" else incarnation.number,))
            with pytest.raises(ArchiveConflict):
                run(waiting(other, incarnation, name))

        database.transaction(hold)
        run(waiting(other, incarnation, name))
    finally:
        other.close()


def test_a_purge_waits_for_no_commit(
    mysql_url: str, database: ArchiveDatabase, incarnation: Incarnation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archiver of any queue may stand still in the middle of one."""
    monkeypatch.setattr(archive_driver, "TRIES", 1)
    archived(database, incarnation, 1)
    other = migrated(mysql_url)
    try:
        other.transaction(lambda sql: sql.run_text("SET SESSION innodb_lock_wait_timeout = 1"))

        def stand_still(sql: archive_driver.Statements) -> None:
            store_batch(sql, incarnation.number, [job_row(2)], COMMITTED)
            run(purge.purge(other))

        database.transaction(stand_still)
    finally:
        other.close()
    assert rows_of(database, "jobs", "batches") == [2, 1]


# -- both stores


@pytest.fixture
def durable(fresh_server: FreshServer) -> Server:
    made: Server = fresh_server(config=DURABLE)
    return made


@pytest.fixture
def rig(durable: Server, mysql_url: str) -> Iterator[Rig]:
    with Rig({"1": durable.url}, mysql_url) as made:
        made.create()
        yield made


def fill(rig: Rig, count: int = 3) -> list[str]:
    return rig.client.enqueue_many(QUEUE, [NewJob(b"%d" % number) for number in range(count)])


def rows(rig: Rig, *tables: str) -> list[int]:
    return rows_of(rig.database, *tables)


def ended(rig: Rig, names: list[str]) -> None:
    """All that is open ends, and these jobs run, each once."""
    rig.recover()
    rig.restore()
    rig.check()
    rig.client.run(lambda _: purge.purge(rig.database))
    assert sorted(done.descriptor for done in rig.drain()) == sorted(names)
    assert rows(rig, "jobs", "restores") == [0, 0]


def at_step(rig: Rig, word: str, fault: Fault, act: Callable[[Any], Any]) -> None:
    """An archiver acts; the fault stands for the first step with this name."""
    stepper = Stepper(rig.client, lambda _, name: word in name.split(), fault)
    try:
        asyncio.run(act(stepper.archiver))
    finally:
        assert stepper.faulty, stepper.steps


def killed(_perform: Perform) -> Any:
    raise Killed


def kill_at(rig: Rig, word: str, act: Callable[[Any], Any]) -> None:
    with pytest.raises(Killed):
        at_step(rig, word, killed, act)


async def spill(archiver: Archiver) -> None:
    await archiver.spill(QUEUE, Selection())


async def restore(archiver: Archiver) -> None:
    await archiver.restore(QUEUE)


def test_a_score_keeps_its_sixteenths(durable: Server, rig: Rig) -> None:
    """They count how often a lease ended."""
    name, _ = fill(rig, 2)
    line, member = queue_key(QUEUE, "1", "ready:1"), int(name.rpartition(":")[2]).to_bytes(8, "big")
    durable.call("ZINCRBY", line, 9 / 16, member)
    before = durable.call("ZRANGE", line, 0, -1, "WITHSCORES")
    assert rig.spill() == rig.restore() == 2
    after = durable.call("ZRANGE", line, 0, -1, "WITHSCORES")
    assert [score for _, score in after] == [score for _, score in before]


def test_rows_stay_until_restored_jobs_are_on_disk(durable: Server, rig: Rig) -> None:
    names = fill(rig)
    rig.spill()
    durable.call("CONFIG", "SET", "appendonly", "no")
    with pytest.raises(ArchiveError, match="appendonly"):
        rig.restore()
    assert rows(rig, "jobs", "restores") == [3, 1]
    durable.call("CONFIG", "SET", "appendonly", "yes")
    ended(rig, names)


def test_a_batch_is_finalized_once_its_end_is_on_disk(durable: Server, rig: Rig) -> None:
    names = fill(rig)

    def no_disk(perform: Perform) -> Any:
        durable.call("CONFIG", "SET", "appendonly", "no")
        return perform()

    with pytest.raises(ArchiveError, match="appendonly"):
        at_step(rig, "finalize", no_disk, spill)
    assert rig.status().committed == 1
    durable.call("CONFIG", "SET", "appendonly", "yes")
    ended(rig, names)


def test_no_job_comes_back_whose_batch_redis_has_again(rig: Rig) -> None:
    """Its end is not on disk: the server went back in time."""
    names = fill(rig)
    kill_at(rig, "finalize", spill)
    [batch] = rig.client.run(lambda end: moves_of(rig.queue_shard, end)).batches

    def beside(perform: Perform) -> Any:
        assert rig.restore() == 0
        return perform()

    stepper = Stepper(rig.client, lambda _, name: name == "finalize", beside)
    asyncio.run(stepper.run(lambda end: until_finalized(rig.queue_shard, rig.database, [batch.name], end)))
    assert stepper.faulty
    ended(rig, names)


def test_a_late_commit_of_an_aborted_batch_stores_nothing(rig: Rig) -> None:
    names = fill(rig)

    def recovered(perform: Perform) -> Any:
        rig.recover()
        return perform()

    at_step(rig, "commit.<locals>.store", recovered, spill)
    assert rows(rig, "jobs") == [0]
    ended(rig, names)


def test_an_aborted_batch_takes_none_of_its_transaction_with_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another archiver ended one of three that are stored together."""
    monkeypatch.setattr("pinlater.archive.batches.BATCH_JOBS", 1)
    names = fill(rig)

    def one_aborted(perform: Perform) -> Any:
        moves = rig.client.run(lambda end: moves_of(rig.queue_shard, end))
        now = rig.client.run(lambda end: incarnation_of(rig.database, rig.queue_shard, end))
        batches = [batch.name for batch in moves.batches]
        assert len(batches) == 3
        rig.client.run(lambda end: end_batches(rig.queue_shard, rig.database, now, batches[1:2], end))
        return perform()

    at_step(rig, "commit.<locals>.store", one_aborted, spill)
    assert (rig.status().committed, rows(rig, "jobs")) == (0, [2])
    assert sum(rig.client.peek(QUEUE).values()) == 1
    ended(rig, names)


def test_the_batch_of_an_owner_that_may_live_is_left_alone(rig: Rig) -> None:
    """MySQL knows it, and Redis still has its jobs."""
    names = fill(rig)
    kill_at(rig, "finalize", spill)
    assert rig.restore() == 0
    assert (rig.status().committed, rows(rig, "jobs")) == (1, [3])
    rig.recover()
    assert (rig.status().committed, rows(rig, "jobs")) == (0, [3])
    ended(rig, names)


def test_a_failover_that_takes_a_withdrawal_back_runs_no_job_twice(rig: Rig) -> None:
    """MySQL has the batch, and Redis has its jobs in their lines as if nothing had been."""
    names = fill(rig)
    kill_at(rig, "finalize", spill)
    [batch] = rig.client.run(lambda end: moves_of(rig.queue_shard, end)).batches
    rig.client.run(lambda end: write(rig.queue_shard, "abort", [batch.name], end))
    rig.recover()
    assert rows(rig, "jobs") == [0]
    ended(rig, names)


def test_a_client_that_remembers_an_earlier_epoch_ends_nothing(rig: Rig) -> None:
    with Rig(rig.shards, rig.archive_url) as stale:
        assert stale.queue_shard.stored is not None
        with Client(shards=rig.shards) as bare:
            bare.delete_queue(QUEUE)
            bare.create_queue(QUEUE, QueueConfig(priorities=PRIORITIES))
        names = fill(rig)
        rig.spill()
        found = stale.client.run(lambda end: incarnation_of(stale.database, stale.queue_shard, end))
        assert found.epoch == 3
    rig.recover()
    assert rig.status().archived == 3
    ended(rig, names)


def test_what_is_committed_after_a_loss_stays_if_an_epoch_of_before_comes_late(durable: Server, rig: Rig) -> None:
    """MySQL did not hear of the deletion, and says what it said before."""
    fill(rig)
    rig.spill()
    with Client(shards=rig.shards) as bare:
        bare.delete_queue(QUEUE)
        bare.create_queue(QUEUE, QueueConfig(priorities=PRIORITIES))
    rig.client.queue_config(QUEUE)
    names: list[str] = []

    def lost(perform: Perform) -> Any:
        durable.call("FLUSHALL")
        rig.create()
        names.extend(fill(rig))
        rig.spill()
        return perform()

    at_step(rig, "_change.<locals>.change", lost, restore)
    rig.restore()
    assert {*names} <= {done.descriptor for done in rig.drain()}


def test_a_restore_of_before_a_deletion_brings_nothing_back_after_a_loss(durable: Server, rig: Rig) -> None:
    """Redis has the epoch again that the restore was meant for."""
    fill(rig)
    rig.spill()
    names: list[str] = []

    def lost(perform: Perform) -> Any:
        rig.client.delete_queue(QUEUE)
        rig.create()
        names.extend(fill(rig))
        rig.spill()
        durable.call("FLUSHALL")
        rig.create()
        incarnation = rig.client.run(lambda end: incarnation_of(rig.database, rig.queue_shard, end))
        [other] = rig.client.run(lambda _: begin(rig.database, incarnation, WANTED, 10)).restores
        at, closed = rig.queue_shard, other.number - 1
        assert at.stored is not None
        known = at.stored.version
        rig.client.run(lambda end: close(at, incarnation, closed, end, known=known))
        return perform()

    with suppress(ArchiveError):
        at_step(rig, "restore", lost, restore)
    ended(rig, names)


def test_a_queue_that_was_deleted_stays_so_when_redis_loses_its_data(durable: Server, rig: Rig) -> None:
    fill(rig)
    rig.spill()
    rig.client.delete_queue(QUEUE)
    durable.call("FLUSHALL")
    rig.create()
    assert rig.restore() == 0
    ended_jobs = fill(rig)
    rig.spill()
    ended(rig, ended_jobs)


def test_a_restore_that_redis_lost_is_carried_out_again(durable: Server, rig: Rig) -> None:
    names = fill(rig)
    rig.spill()
    kill_at(rig, "_drop.<locals>.delete", restore)
    durable.call("FLUSHALL")
    rig.create()
    ended(rig, names)


def test_a_restore_that_ended_before_a_loss_brings_nothing_back(durable: Server, rig: Rig) -> None:
    names = fill(rig)
    rig.spill()

    def lost(perform: Perform) -> Any:
        ended(rig, names)
        durable.call("FLUSHALL")
        rig.create()
        return perform()

    at_step(rig, "restore", lost, restore)
    assert rig.drain() == []
    ended(rig, [])


def test_a_restore_that_ends_late_leaves_the_rows_of_later_batches(rig: Rig) -> None:
    """Its jobs came back, and left again."""
    names = fill(rig)
    rig.spill()

    def left_again(perform: Perform) -> Any:
        rig.recover()
        rig.spill()
        return perform()

    at_step(rig, "_drop.<locals>.delete", left_again, lambda archiver: archiver.restore(QUEUE, len(names)))
    assert rows(rig, "jobs") == [3]
    ended(rig, names)


def at_each_step(rig: Rig, make: Callable[[float], Flow[Any]], meanwhile: Callable[[], Any]) -> Iterator[Any]:
    """A flow runs again and again; before another step each time something else happens. Yields what it returns."""

    def fault(perform: Perform) -> Any:
        meanwhile()
        return perform()

    for number in count():
        stepper = Stepper(rig.client, lambda at, _, number=number: at == number, fault)  # type: ignore[misc]
        result = asyncio.run(stepper.run(make))
        if not stepper.faulty:
            assert number
            return
        yield result


def test_a_recovery_closes_no_restore_that_begins_beside_it(rig: Rig) -> None:
    names = fill(rig, 40)
    rig.spill()
    before = rig.infos(names)
    incarnation = rig.client.run(lambda end: incarnation_of(rig.database, rig.queue_shard, end))

    def begins() -> None:
        assert rig.client.run(lambda _: begin(rig.database, incarnation, WANTED, 1)).restores

    for _ in at_each_step(rig, lambda end: recover(rig.queue_shard, rig.database, incarnation, FAR_MS, end), begins):
        assert rig.infos(names) == before
    ended(rig, names)


def moves(rig: Rig, *path: str) -> Callable[[], None]:
    """All jobs go where they were not, so often."""

    def move() -> None:
        for step in path:
            (rig.spill if step == "spill" else rig.restore)()

    return move


PATHS = [("restore",), ("spill",), ("restore", "spill"), ("spill", "restore")]


@pytest.mark.parametrize("path", PATHS, ids="-".join)
def test_a_deletion_reaches_a_job_that_moves_meanwhile(path: tuple[str, ...], rig: Rig) -> None:
    names = fill(rig, 60)
    others = iter(names)
    if path[0] == "restore":
        rig.spill()

    def delete(end: float) -> Flow[int]:
        return admin.delete_named(rig.client.session, [next(others)], end)

    for removed in at_each_step(rig, delete, moves(rig, *path)):
        assert removed == 1
        if len(path) == 1:
            moves(rig, "spill" if path[0] == "restore" else "restore")()
    ended(rig, list(others))


def test_a_deletion_carries_out_an_open_restore_first(rig: Rig) -> None:
    """Somebody may have read the rows already, and send them later."""
    names = fill(rig)
    rig.spill()

    def deleted(perform: Perform) -> Any:
        assert rig.client.delete_jobs(descriptors=names[:1]) == 1
        return perform()

    at_step(rig, "restore", deleted, restore)
    ended(rig, names[1:])


@pytest.mark.parametrize("path", PATHS, ids="-".join)
def test_a_lookup_finds_a_job_that_moves_meanwhile(path: tuple[str, ...], rig: Rig) -> None:
    names = fill(rig, 2)
    if path[0] == "restore":
        rig.spill()
    before = rig.infos(names)
    for found in at_each_step(rig, lambda end: inspect.lookup(rig.client.session, names, True, end), moves(rig, *path)):
        assert found == before
        if len(path) == 1:
            moves(rig, "spill" if path[0] == "restore" else "restore")()
    ended(rig, names)


def test_a_restore_counts_what_it_chose_and_nothing_else(rig: Rig) -> None:
    """It carries on what another one began beside it: neither its limit nor its number has to do with that."""
    names = fill(rig, 8)
    rig.spill()
    incarnation = rig.client.run(lambda end: incarnation_of(rig.database, rig.queue_shard, end))
    counts: list[int] = []

    def others(perform: Perform) -> Any:
        assert rig.client.run(lambda _: begin(rig.database, incarnation, WANTED, 5)).jobs == 5
        return perform()

    async def act(archiver: Archiver) -> None:
        counts.append(await archiver.restore(QUEUE, 2))

    at_step(rig, "begin.<locals>.start", others, act)
    assert counts == [2]
    assert rows(rig, "jobs", "restores") == [1, 0]
    ended(rig, names)


def test_a_restore_goes_on_after_another_one_ended_what_it_began(rig: Rig) -> None:
    names = fill(rig, 3)
    rig.spill()
    counts: list[int] = []

    def ended_by_another(perform: Perform) -> Any:
        rig.recover()
        rig.spill()
        return perform()

    async def act(archiver: Archiver) -> None:
        counts.append(await archiver.restore(QUEUE, 4))

    at_step(rig, "_drop.<locals>.delete", ended_by_another, act)
    assert counts == [4]
    assert rows(rig, "jobs", "restores") == [2, 0]
    ended(rig, names)


@pytest.mark.parametrize("made_again", [False, True])
def test_another_shard_that_was_away_brings_the_old_epoch_back(
    made_again: bool, durable: Server, fresh_server: FreshServer, mysql_url: str
) -> None:
    """Redis lost its data, so the queue began with epoch 1. That is no deletion, and what it gets later is none."""
    other = fresh_server(config=DURABLE)
    shards = {"1": durable.url, "2": other.url}
    with Rig(shards, mysql_url) as rig:
        rig.create()
        rig.client.delete_queue(QUEUE)
        rig.create()
        names = [name for number in range(40) for name in rig.client.enqueue_many(QUEUE, [b"%d" % number])]
        rig.spill()
    if made_again:
        with Client(shards={"2": other.url}) as bare:  # a deletion that only this shard knows
            bare.delete_queue(QUEUE)
    other.stop()
    durable.call("FLUSHALL")
    with Rig(shards, mysql_url) as rig:
        rig.create()
        rig.recover()
        assert rig.queue_shard.stored is not None
        assert rig.queue_shard.stored.epoch == 1
    other.start()
    with Rig(shards, mysql_url) as rig:
        rig.create()
        assert [each.stored.epoch for each in rig.queue_shards if each.stored] == [5 if made_again else 3] * 2
        kept = [name for name in names if not made_again]
        ended(rig, kept)


LOOKS: dict[str, Callable[[Rig, str, float], Flow[Any]]] = {
    "delete_jobs": lambda rig, name, end: admin.delete_named(rig.client.session, [name], end),
    "lookup": lambda rig, name, end: inspect.lookup(rig.client.session, [name], True, end),
}


@pytest.mark.parametrize("script", LOOKS)
def test_a_job_that_dodges_each_look_is_found_in_the_end(script: str, rig: Rig) -> None:
    """It is archived before each look at Redis, and back before each look at MySQL, twice."""
    [name] = fill(rig, 1)
    looks = 2

    def dodge(_number: int, step: str) -> bool:
        nonlocal looks
        if looks and step == script:
            rig.spill()
        elif looks and "query_in" in step:
            looks -= 1
            rig.restore()
        return False

    assert asyncio.run(Stepper(rig.client, dodge, killed).run(lambda end: LOOKS[script](rig, name, end)))
    assert not looks
    ended(rig, [name] if script == "lookup" else [])


def test_nothing_is_left_open(rig: Rig) -> None:
    names = fill(rig)
    rig.spill()
    rig.restore()
    left = rig.client.run(lambda end: moves_of(rig.queue_shard, end))
    assert (left.batches, left.restores, left.closed > 0) == ([], [], True)
    ended(rig, names)


def test_a_restore_that_is_sent_again_is_waited_for_again(durable: Server, rig: Rig) -> None:
    """Redis went back in time, and the rows are the only copy until its disk has the jobs again."""
    names = fill(rig)
    rig.spill()
    incarnation = rig.client.run(lambda end: incarnation_of(rig.database, rig.queue_shard, end))
    opened = rig.client.run(lambda _: begin(rig.database, incarnation, WANTED, 10)).restores

    def no_disk(perform: Perform) -> Any:
        durable.call("CONFIG", "SET", "appendonly", "no")
        return perform()

    stepper = Stepper(rig.client, lambda _, step: "restore" in step, no_disk)
    with pytest.raises(ArchiveError, match="appendonly"):
        asyncio.run(stepper.run(lambda end: finish(rig.queue_shard, rig.database, incarnation, opened, end)))
    assert rows(rig, "jobs", "restores") == [3, 1]
    durable.call("CONFIG", "SET", "appendonly", "yes")
    ended(rig, names)
