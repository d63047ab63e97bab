"""The archive's protocol as a model: every order of the steps of python/pinlater/archive/, of faults and of clients.

A world is a value: what Redis and MySQL have, where each archiver stands in its flow, and what happened to each job.
`explore` visits all worlds breadth-first, so a violation comes with one of the shortest traces that lead to it.

One step is one request to one store: a script, or a transaction of MySQL (the row of the incarnation locks those that
could meet). Steps bear the names of functions and scripts. A flow over a list of batches is modelled as a flow over one
batch. Restores stay a list, which a transaction begins and ends as a whole.

What the model leaves out:
- A second copy of a request of a living process: its request slot recognises it (store/lanes.py).
- The time between a check of `settled` and the end of its wait. A roll back in between breaks the connection that both
  share, and both are repeated. Without one, nothing can tell the check with its wait from one step.
- Disk writes in the background. They only take away from what a roll back may undo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.archive.protocol_worlds import (
    ABORTED,
    COMMITTED,
    DELETED,
    DELETION_KNOWN,
    FINALIZED,
    IDLE,
    IN_LOST_REDIS,
    LINE,
    NOTHING,
    NOWHERE,
    OVERLOOKED,
    PENDING,
    RUN,
    RUN_DELETED,
    RUN_TWICE,
    UNBORN,
    WITHDRAWN,
    Batch,
    Incarnation,
    Known,
    Move,
    MySQL,
    Redis,
    Request,
    Restore,
    Setting,
    Step,
    World,
)

#: Steps whose requests may be carried out after the end of their archiver. The others only read.
WRITES = {
    *("withdraw", "commit", "finalize", "drop_missing", "mark_finalized", "insert_aborted", "abort", "drop_held"),
    *("begin", "restore", "close_ended", "drop_restored", "close", "compare"),
}


class Model:
    """The steps from each world of a setting."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.clauses = setting.clauses
        self.compares = bool(setting.faults.queue_deletions or setting.faults.losses)
        self._order: dict[Request, int] = {}

    def first(self) -> World:
        setting = self.setting
        places = (LINE,) * setting.jobs + (NOWHERE,) * setting.unborn
        redis = Redis(1, 1, frozenset(range(setting.jobs)), places, closed=self._closed_at_first)
        jobs = (PENDING,) * setting.jobs + (UNBORN,) * setting.unborn
        archivers = (IDLE,) * setting.archivers
        mysql = MySQL(() if self.compares else (Incarnation(1),))
        return World(redis, (), mysql, archivers, IDLE, (), jobs, 0, setting.faults)

    @property
    def _first_number(self) -> int:
        """More than an incarnation has restores."""
        return 100 if self.clauses.restores_numbered_apart else 0

    @property
    def _closed_at_first(self) -> int:
        """Where no data are lost and no queue is new, earlier restores have ended: that leaves fewer worlds."""
        return NOTHING if self.compares and self.clauses.closes_before_restore else 0

    def moves(self, world: World) -> Iterator[Move]:
        """All that can happen next."""
        yield from self._archivers_move(world)
        yield from self._client_moves(world)
        yield from self._late_requests(world)
        yield from self._worker_runs(world)
        yield from self._servers_fail(world)

    # -- who moves

    def _archivers_move(self, world: World) -> Iterator[Move]:
        for at, stands in enumerate(world.archivers):
            if at and stands == world.archivers[at - 1]:
                continue  # its twin did
            for request in [stands] if stands and stands[0] != "ready" else self._plans(world, stands):
                for step in self._carry_out(world, request):
                    yield Move(f"archiver {step.text}", self._stand(step.world, at, step.then))
                if world.left.crashes and world.left.late and request[0] in WRITES:
                    left = world.left._replace(crashes=world.left.crashes - 1, late=world.left.late - 1)
                    under_way = (*world.under_way, (request, world.redis.version))
                    names = world.names + (request[0] == "withdraw")
                    crashed = world._replace(left=left, under_way=under_way, names=names)
                    text = f"archiver crashes, {_shown(request)} is under way"
                    yield Move(text, self._stand(crashed, at, IDLE), fault=True)
            if stands and world.left.crashes:
                crashed = world._replace(left=world.left._replace(crashes=world.left.crashes - 1))
                yield Move(f"archiver crashes before {_shown(stands)}", self._stand(crashed, at, IDLE), fault=True)

    def _stand(self, world: World, at: int, request: Request) -> World:
        """Archivers are alike, so their order does not matter."""
        archivers = [*world.archivers[:at], request, *world.archivers[at + 1 :]]
        archivers.sort(key=lambda stands: self._order.setdefault(stands, len(self._order)))
        return world._replace(archivers=tuple(archivers))

    def _plans(self, world: World, stands: Request) -> Iterator[Request]:
        """What an archiver may begin."""
        if self.compares:
            yield ("look",)
            if not stands:
                return
        known = stands[1] if stands else Known(0, 1)
        if world.names < self.setting.names and LINE in world.redis.places:
            name = f"batch {world.names + 1}"
            yield ("withdraw", known, name, self.setting.jobs + self.setting.unborn)
            if world.redis.places.count(LINE) > 1:
                yield ("withdraw", known, name, 1)
        for name, _ in world.redis.batches:
            yield ("state_of", known, name)
        if any(batch.state == COMMITTED for batch in world.mysql.batches):
            yield ("select_committed", known)
        rows = world.mysql.rows_of(known.number, COMMITTED, FINALIZED)
        is_open = any(restore.incarnation == known.number for restore in world.mysql.restores)
        if rows and not (is_open and self.clauses.one_begin_at_a_time):
            yield ("begin" if self.clauses.number_in_the_transaction else "choose_number", known, "together", 0)
            if len(rows) > 1:
                yield ("begin", known, "one", 0)
                yield ("begin", known, "apart", 0)
        if is_open:
            yield ("open_restores", known)
        closed, last = world.redis.closed, world.mysql.incarnations[known.number].last_restore
        if world.redis.open or NOTHING < closed < last:
            yield ("last_restore", known, min([closed, *(number - 1 for number in world.redis.open)]))

    def _carry_out(self, world: World, request: Request) -> Iterator[Step]:
        step: Callable[..., Iterator[Step]] = getattr(self, request[0])
        return step(world, *request[1:])

    def _late_requests(self, world: World) -> Iterator[Move]:
        for at, (request, version) in enumerate(world.under_way):
            waiting = world._replace(under_way=world.under_way[:at] + world.under_way[at + 1 :])
            for step in self._carry_out(waiting, request):
                if step.world.redis != world.redis and version != world.redis.version:
                    yield Move(f"late: Redis refuses {_shown(request)} with CONFIG_CHANGED", waiting, fault=True)
                else:
                    yield Move(f"late: archiver {step.text}", step.world, fault=True)

    def _worker_runs(self, world: World) -> Iterator[Move]:
        """Claims, runs and acks a job; the ack is on disk."""
        for job, place in enumerate(world.redis.places):
            if place == LINE:
                redis = _without(world.redis, [job])
                fate = {DELETION_KNOWN: RUN_DELETED, RUN: RUN_TWICE, IN_LOST_REDIS: IN_LOST_REDIS}.get(
                    world.jobs[job], RUN
                )
                jobs = _put(world.jobs, job, fate)
                yield Move(f"worker runs job {job}", world._replace(redis=redis, unsaved=(), jobs=jobs))

    def _servers_fail(self, world: World) -> Iterator[Move]:
        left = world.left
        if left.roll_backs:
            fewer = left._replace(roll_backs=left.roll_backs - 1)
            for at, redis in enumerate(world.unsaved):
                unsaved = world.unsaved[:at] if fewer.roll_backs else ()
                back = world._replace(redis=redis, unsaved=unsaved, left=fewer)
                text = f"Redis starts again without its last {len(world.unsaved) - at} unsaved writes"
                yield Move(text, back, fault=True)
        if left.losses:
            fewer = left._replace(losses=left.losses - 1)
            empty = self._empty(world, 1, world.redis.version + self.clauses.loss_draws_version)
            archived = {id_ for id_, _ in world.mysql.rows_of(len(world.mysql.incarnations) - 1, COMMITTED, FINALIZED)}
            archived -= {
                job for job, at in enumerate(world.redis.places) if at and world.mysql.state_of(at) != COMMITTED
            }
            jobs = tuple(
                fate if fate == UNBORN or (fate == PENDING and job in archived) else IN_LOST_REDIS
                for job, fate in enumerate(world.jobs)
            )
            lost = world._replace(redis=empty, unsaved=(), jobs=jobs, left=fewer)
            yield Move("Redis loses all its data, and the queue is made again", lost, fault=True)

    def _empty(self, world: World, epoch: int, version: int) -> Redis:
        return Redis(epoch, version, frozenset(), (NOWHERE,) * len(world.jobs), closed=self._closed_at_first)

    # -- incarnations.py

    def look(self, world: World) -> Iterator[Step]:
        epoch = world.redis.epoch
        yield Step(f"reads epoch {epoch}", world, ("compare", epoch, None))

    def compare(self, world: World, epoch: int, seen: tuple[Known, int] | None) -> Iterator[Step]:
        """seen: what MySQL had before the epoch was read, and how many batches; None if nobody looked."""
        rows = world.mysql.incarnations
        known = _current(world.mysql)
        found = f"compares epoch {epoch}"
        if rows and epoch == known.epoch:
            yield Step(f"{found}: incarnation {known.number} goes on", world, ("ready", known))
            return
        now = known, len(world.mysql.batches) if self.clauses.compare_sees_commits else 0
        if rows and self.clauses.compare_looks_again and seen != now:
            yield Step(f"{found}: MySQL has epoch {known.epoch}", world, ("look_again", now))
            return
        if not rows or epoch > max(rows[-1][:2]):
            text = f"{found}: incarnation {known.number + 1} begins"
            rows = (*rows, Incarnation(epoch, last_restore=self._first_number * len(rows)))
        else:
            text = f"{found}: Redis lost its data, incarnation {known.number} goes on"
            rows = (*rows[:-1], rows[-1]._replace(epoch=epoch, lost_epoch=max(rows[-1][:2])))
        mysql = world.mysql._replace(incarnations=rows)
        yield Step(text, world._replace(mysql=mysql), ("ready", _current(mysql)))

    def look_again(self, world: World, seen: tuple[Known, int]) -> Iterator[Step]:
        epoch = world.redis.epoch
        if self.clauses.epoch_settled:
            world = world._replace(unsaved=())
        yield Step(f"settles: the epoch is {epoch}", world, ("compare", epoch, seen))

    @staticmethod
    def _is_other(redis: Redis, known: Known) -> bool:
        """What a script that names the epoch refuses."""
        return redis.epoch != known.epoch

    # -- batches.py

    def withdraw(self, world: World, known: Known, name: str, limit: int) -> Iterator[Step]:
        redis = world.redis
        world = world._replace(names=max(world.names, int(name[6:])))
        ids = tuple(job for job, place in enumerate(redis.places) if place == LINE)[:limit]
        if not ids or (self.clauses.withdraw_names_epoch and self._is_other(redis, known)):
            yield Step("withdraws nothing", world)
            return
        places = tuple(name if job in ids else place for job, place in enumerate(redis.places))
        withdrawn = redis._replace(places=places, batches=tuple(sorted((*redis.batches, (name, ids)))))
        yield Step(f"withdraws {_jobs(ids)} for {name}", _wrote(world, withdrawn), ("read_batch", known, name))

    def read_batch(self, world: World, known: Known, name: str) -> Iterator[Step]:
        if not _has_batch(world.redis, name):
            yield Step(f"reads {name}: Redis does not know it", world)
            return
        ids = tuple(job for job, place in enumerate(world.redis.places) if place == name)
        yield Step(f"reads {name}: {_jobs(ids)}", world, ("settle_withdrawn", known, name, ids))

    def settle_withdrawn(self, world: World, known: Known, name: str, ids: tuple[int, ...]) -> Iterator[Step]:
        done = _has_batch(world.redis, name)
        yield from self._settle(world, done, f"{name} is withdrawn", ("commit", known, name, ids), IDLE)

    def commit(self, world: World, known: Known, name: str, ids: tuple[int, ...]) -> Iterator[Step]:
        mysql = world.mysql
        if self.clauses.commit_checks_incarnation and known != _current(mysql):
            yield Step(f"cannot commit {name}: its incarnation ended", world)
        elif mysql.state_of(name) != WITHDRAWN:
            yield Step(f"cannot commit {name}: it has a row", world, ("state_of", known, name))
        elif self.clauses.commit_leaves_restoring and self._restoring(mysql, known.number).intersection(ids):
            yield Step(f"cannot commit {name}: a job is restoring", world, ("state_of", known, name))
        else:
            rows = {(known.number, id_, len(mysql.batches) + 1) for id_ in ids}
            batches = (*mysql.batches, Batch(name, known.number, COMMITTED))
            stored = world._replace(mysql=mysql._replace(batches=batches, jobs=mysql.jobs | rows))
            yield Step(f"commits {name} with {_jobs(ids)}", stored, ("finalize", name, ()))

    @staticmethod
    def _restoring(mysql: MySQL, incarnation: int) -> set[int]:
        """Jobs that an open restore names."""
        return {id_ for restore in mysql.restores if restore.incarnation == incarnation for id_ in restore.ids}

    def finalize(self, world: World, name: str, removed: tuple[int, ...]) -> Iterator[Step]:
        redis = world.redis
        after: Request = ("settle_finalized", name)
        if not _has_batch(redis, name):
            yield Step(f"finalizes {name}: Redis does not know it", world, after)
            return
        ids = dict(redis.batches)[name]
        owned = [id_ for id_ in ids if redis.places[id_] == name]
        if not self.clauses.finalize_checks_owner:
            owned = [id_ for id_ in ids if id_ in redis.records]
        missing = tuple(id_ for id_ in ids if id_ not in owned and id_ not in removed)
        if missing and self.clauses.finalize_names_missing:
            yield Step(
                f"finalizes {name}, which misses {_jobs(missing)}", world, ("drop_missing", name, missing, removed)
            )
            return
        ended = _without(redis, owned)._replace(batches=tuple(batch for batch in redis.batches if batch[0] != name))
        yield Step(f"finalizes {name}", _wrote(world, ended), after)

    def drop_missing(self, world: World, name: str, ids: tuple[int, ...], removed: tuple[int, ...]) -> Iterator[Step]:
        if self.clauses.missing_rows_dropped:
            world = self._drop_rows(world, name, ids)
        yield Step(f"drops the rows of {_jobs(ids)} of {name}", world, ("finalize", name, (*removed, *ids)))

    def settle_finalized(self, world: World, name: str) -> Iterator[Step]:
        done = not _has_batch(world.redis, name)
        yield from self._settle(
            world, done, f"Redis has ended {name}", ("mark_finalized", name), ("finalize", name, ())
        )

    def mark_finalized(self, world: World, name: str) -> Iterator[Step]:
        batches = tuple(
            batch._replace(state=FINALIZED) if batch.name == name and batch.state == COMMITTED else batch
            for batch in world.mysql.batches
        )
        yield Step(f"marks {name} FINALIZED", world._replace(mysql=world.mysql._replace(batches=batches)))

    def abort(self, world: World, name: str) -> Iterator[Step]:
        redis = world.redis
        places = tuple(LINE if place == name else place for place in redis.places)
        batches = tuple(batch for batch in redis.batches if batch[0] != name)
        yield Step(f"returns the jobs of {name}", _wrote(world, redis._replace(places=places, batches=batches)))

    # -- settle.py

    def _settle(self, world: World, done: bool, what: str, then: Request, otherwise: Request) -> Iterator[Step]:
        if not self.clauses.settled_checks:
            yield Step(f"waits for the disk, without a check whether {what}", world._replace(unsaved=()), then)
        elif not self.clauses.settled_on_one_connection:
            yield Step(f"checks whether {what}: {done}", world, ("wait", then if done else otherwise))
        elif done:
            yield Step(f"settles: {what}", world._replace(unsaved=()), then)
        else:
            yield Step(f"settles: not so that {what}", world, otherwise)

    def wait(self, world: World, then: Request) -> Iterator[Step]:
        """Only of a mutant: on a connection of its own."""
        yield Step("waits for the disk", world._replace(unsaved=()), then)

    # -- recovery.py

    def state_of(self, world: World, known: Known, name: str) -> Iterator[Step]:
        state = world.mysql.state_of(name)
        then: Request = ("finalize", name, ())
        if state == ABORTED:
            then = ("abort", name)
        elif state == WITHDRAWN:
            then = ("insert_aborted", known, name) if self.clauses.aborted_row_first else ("abort", name)
        yield Step(f"reads the state of {name}: {state}", world, then)

    def insert_aborted(self, world: World, known: Known, name: str) -> Iterator[Step]:
        mysql = world.mysql
        if mysql.state_of(name) != WITHDRAWN:
            yield Step(f"cannot insert {name} as ABORTED: it has a row", world, ("state_of", known, name))
            return
        batches = (*mysql.batches, Batch(name, known.number, ABORTED))
        yield Step(f"inserts {name} as ABORTED", world._replace(mysql=mysql._replace(batches=batches)), ("abort", name))

    def select_committed(self, world: World, known: Known) -> Iterator[Step]:
        first = "settle_unknown" if self.clauses.wait_before_held else "select_ids_of_batch"
        for batch in world.mysql.batches:
            if batch.state == COMMITTED and batch.incarnation == known.number:
                yield Step(f"reads that {batch.name} is COMMITTED", world, (first, known, batch.name))

    def settle_unknown(self, world: World, known: Known, name: str, ids: tuple[int, ...] = ()) -> Iterator[Step]:
        done = not _has_batch(world.redis, name) or not self.clauses.open_batches_left_alone
        then: Request = ("select_ids_of_batch", known, name)
        if not self.clauses.held_asked:
            then = ("mark_finalized", name)
        elif not self.clauses.wait_before_held:
            then = ("drop_held", name, ids)
        yield from self._settle(world, done, f"Redis does not know {name}", then, IDLE)

    def select_ids_of_batch(self, world: World, known: Known, name: str) -> Iterator[Step]:
        number = world.mysql.number_of(name)
        ids = tuple(sorted(id_ for _, id_, batch in world.mysql.jobs if batch == number))
        yield Step(f"reads the rows of {name}: {_jobs(ids)}", world, ("held", known, name, ids))

    def held(self, world: World, known: Known, name: str, ids: tuple[int, ...]) -> Iterator[Step]:
        if self.clauses.held_names_epoch and self._is_other(world.redis, known):
            yield Step("asks for records of another epoch", world)
            return
        held = tuple(id_ for id_ in ids if id_ in world.redis.records)
        then: Request = ("drop_held", name, held) if held else ("mark_finalized", name)
        if not self.clauses.wait_before_held:
            then = ("settle_unknown", known, name, held)
        yield Step(f"asks what Redis has of {_jobs(ids)}: {_jobs(held)}", world, then)

    def drop_held(self, world: World, name: str, ids: tuple[int, ...]) -> Iterator[Step]:
        if world.mysql.state_of(name) == COMMITTED or not self.clauses.held_rows_only_while_committed:
            world = self._drop_rows(world, name, ids)
        yield Step(f"drops the rows of {_jobs(ids)} of {name}", world, ("mark_finalized", name))

    @staticmethod
    def _drop_rows(world: World, name: str, ids: tuple[int, ...]) -> World:
        number = world.mysql.number_of(name)
        jobs = frozenset(row for row in world.mysql.jobs if row[2] != number or row[1] not in ids)
        return world._replace(mysql=world.mysql._replace(jobs=jobs))

    def last_restore(self, world: World, known: Known, closed: int) -> Iterator[Step]:
        """`_close_ended`: Redis had closed all up to a number."""
        last = world.mysql.incarnations[known.number].last_restore
        yield Step(f"reads that restore {last} is the last one", world, ("select_still_open", known, closed, last))

    def select_still_open(self, world: World, known: Known, closed: int, last: int) -> Iterator[Step]:
        still = self._first_open(world.mysql, known)
        ended = min(last, still - 1) if still and self.clauses.close_leaves_open else last
        then: Request = ("close", known, ended) if closed < ended else IDLE
        yield Step(f"reads that the restores up to {ended} have ended", world, then)

    @staticmethod
    def _first_open(mysql: MySQL, known: Known) -> int:
        """The lowest number of an open restore; 0 if there is none."""
        return min((of.number for of in mysql.restores if of.incarnation == known.number), default=0)

    # -- restores.py

    def begin(self, world: World, known: Known, how: str, chosen: int) -> Iterator[Step]:
        """how: `one` row, all `together` in one restore, or all `apart`. chosen: the number that a mutant chose."""
        mysql = world.mysql
        if self.clauses.begin_checks_incarnation and known != _current(mysql):
            yield Step("begins no restore: its incarnation ended", world)
            return
        if self.clauses.one_begin_at_a_time and any(of.incarnation == known.number for of in mysql.restores):
            yield Step("begins no restore: others are open", world, ("open_restores", known))
            return
        states = (FINALIZED,) if self.clauses.only_finalized_come_back else (COMMITTED, FINALIZED)
        rows = mysql.rows_of(known.number, *states)
        if not rows:
            yield Step("begins no restore: there are no rows", world)
            return
        last = mysql.incarnations[known.number].last_restore if not chosen else chosen - 1
        restores: list[Restore] = []
        for part in {"one": [rows[:1]], "together": [rows], "apart": [[row] for row in rows]}[how]:
            ids, last_batch = tuple(id_ for id_, _ in part), max(batch for _, batch in part)
            restores.append(Restore(known.number, last + 1 + len(restores), last_batch, ids))
        counted = mysql.incarnations[known.number]._replace(last_restore=restores[-1].number)
        incarnations = _put(mysql.incarnations, known.number, counted)
        started = mysql._replace(restores=mysql.restores | set(restores), incarnations=incarnations)
        then = ("restore", known, tuple(restores), tuple(restores), True)
        yield Step(f"begins {_restores(restores)}", world._replace(mysql=started), then)

    def choose_number(self, world: World, known: Known, how: str, _: int) -> Iterator[Step]:
        """Only of a mutant: in a transaction of its own."""
        number = world.mysql.incarnations[known.number].last_restore + 1
        yield Step(f"chooses number {number} for a restore", world, ("begin", known, how, number))

    def open_restores(self, world: World, known: Known) -> Iterator[Step]:
        found = [
            restore._replace(ids=tuple(id_ for id_ in restore.ids if self._rows_of_restore(world, restore, [id_])))
            for restore in sorted(world.mysql.restores)
            if restore.incarnation == known.number
        ]
        then: Request = ("restore", known, tuple(found), tuple(found), True) if found else IDLE
        yield Step(f"reads what is open: {_restores(found)}", world, then)

    def _rows_of_restore(self, world: World, restore: Restore, ids: list[int]) -> set[tuple[int, int, int]]:
        return {
            (of, id_, batch)
            for of, id_, batch in world.mysql.jobs
            if of == restore.incarnation
            and id_ in ids
            and (batch <= restore.last_batch or not self.clauses.rows_go_by_last_batch)
        }

    def restore(
        self, world: World, known: Known, all_: tuple[Restore, ...], undone: tuple[Restore, ...], loaded: bool
    ) -> Iterator[Step]:
        """undone: those that are sent from here on. loaded: Redis took one of them, or it is the first time."""
        redis, (restore, *rest) = world.redis, undone
        then: Request
        if self.clauses.restore_names_epoch and self._is_other(redis, known):
            yield Step(f"cannot send restore {restore.number}: the epoch changed", world)
            return
        if redis.closed == NOTHING:
            then = ("last_ended", known, redis.version, (all_, undone, loaded))
            yield Step(f"cannot send restore {restore.number}: Redis knows of no closed one", world, then)
            return
        if restore.number <= redis.closed:
            text = f"sends restore {restore.number}: it is closed"
        elif restore.number in redis.open:
            text, loaded = f"sends restore {restore.number}: it was done", True
        else:
            text, loaded = f"sends restore {restore.number} of {_jobs(restore.ids)}", True
            known_here = redis.records if self.clauses.restore_leaves_out_held else frozenset()
            ids = [id_ for id_ in restore.ids if id_ not in known_here]
            places = tuple(LINE if job in ids else place for job, place in enumerate(redis.places))
            numbers = tuple(sorted({*redis.open, restore.number}))
            redis = redis._replace(records=redis.records.union(ids), places=places, open=numbers)
            world = _wrote(world, redis)
        if rest:
            then = ("restore", known, all_, tuple(rest), loaded)
        elif loaded and self.clauses.disk_before_rows_go:
            then = ("settle_restored", known, all_)
        else:
            then = ("drop_restored", known, all_)
        yield Step(text, world, then)

    def last_ended(self, world: World, known: Known, version: int, sent: Request) -> Iterator[Step]:
        """version: what Redis answered. sent: the arguments of `restore`, which is sent again behind it."""
        if self.clauses.last_ended_checks_incarnation and known != _current(world.mysql):
            yield Step("asks which restores ended: the incarnation ended", world)
            return
        still = self._first_open(world.mysql, known) if self.clauses.closes_what_ended else 0
        ended = still - 1 if still else world.mysql.incarnations[known.number].last_restore
        then = ("close_ended", known, version, ended, sent)
        yield Step(f"reads that the restores up to {ended} have ended", world, then)

    def close_ended(self, world: World, known: Known, version: int, number: int, sent: Request) -> Iterator[Step]:
        """`close` where nothing is closed."""
        redis = world.redis
        if self.clauses.close_names_epoch and self._is_other(redis, known):
            yield Step(f"cannot close restore {number}: the epoch changed", world)
            return
        text, closed = f"closes restore {number}", max(redis.closed, number)
        if redis.closed == NOTHING and version != redis.version and self.clauses.close_names_version:
            text, closed = f"cannot close restore {number}: the version changed", NOTHING
        still_open = tuple(other for other in redis.open if other > number)
        world = _wrote(world, redis._replace(open=still_open, closed=closed))
        yield Step(text, world, ("restore", known, *sent))

    def settle_restored(self, world: World, known: Known, restores: tuple[Restore, ...]) -> Iterator[Step]:
        undone = tuple(restore for restore in restores if restore.number not in world.redis.open)
        then = ("drop_restored", known, restores)
        again = ("restore", known, restores, undone, False)
        yield from self._settle(world, not undone, "the restores are done", then, again)

    def drop_restored(self, world: World, known: Known, restores: tuple[Restore, ...]) -> Iterator[Step]:
        mysql = world.mysql
        rows = {row for restore in restores for row in self._rows_of_restore(world, restore, list(restore.ids))}
        numbers = {(restore.incarnation, restore.number) for restore in restores}
        left = frozenset(restore for restore in mysql.restores if restore[:2] not in numbers)
        world = world._replace(mysql=mysql._replace(jobs=mysql.jobs - rows, restores=left))
        last = max(restore.number for restore in restores)
        yield Step(f"drops the rows of {_restores(restores)}", world, ("close", known, last))

    def close(self, world: World, known: Known, number: int) -> Iterator[Step]:
        redis = world.redis
        if self.clauses.close_names_epoch and self._is_other(redis, known):
            yield Step(f"cannot close restore {number}: the epoch changed", world)
            return
        remembers = redis.closed != NOTHING and self.clauses.closed_remembered
        closed = max(redis.closed, number) if remembers else redis.closed
        still_open = tuple(other for other in redis.open if other > number)
        yield Step(f"closes restore {number}", _wrote(world, redis._replace(open=still_open, closed=closed)))

    # -- clients

    def _client_moves(self, world: World) -> Iterator[Move]:
        for step in self._client_steps(world):
            yield Move(f"client {step.text}", step.world._replace(client=step.then))
        left = world.left
        if not world.client and left.deletions:
            started = world._replace(left=left._replace(deletions=left.deletions - 1))
            for job, fate in enumerate(world.jobs):
                if fate == PENDING:
                    for step in self.delete_in_redis(started, job, None):
                        yield Move(f"client {step.text}", step.world._replace(client=step.then), fault=True)
        if not world.client and left.queue_deletions:
            started = world._replace(left=left._replace(queue_deletions=left.queue_deletions - 1))
            for step in self.delete_queue(started):
                yield Move(f"client {step.text}", step.world._replace(client=step.then), fault=True)
        for job, fate in enumerate(world.jobs):
            if fate == UNBORN and not world.left.queue_deletions:
                redis = world.redis
                redis = redis._replace(records=redis.records | {job}, places=_put(redis.places, job, LINE))
                born = world._replace(redis=redis, unsaved=(), jobs=_put(world.jobs, job, PENDING))
                yield Move(f"client enqueues job {job}", born)

    def _client_steps(self, world: World) -> Iterator[Step]:
        return self._carry_out(world, world.client) if world.client else iter(())

    def delete_in_redis(self, world: World, job: int, seen: int | None) -> Iterator[Step]:
        """seen: what MySQL had, None for the first look."""
        if world.redis.places[job] != NOWHERE:
            world = _wrote(world, _without(world.redis, [job]))
            world = world._replace(jobs=_put(world.jobs, job, _deleted(world.jobs[job])))
            yield Step(f"deletes job {job} in Redis", world, ("confirm", (job,), world.left.roll_backs))
        elif seen is not None and not self.clauses.delete_repeats_until_still:
            yield self._overlook(world, job)
        else:
            yield Step(f"does not find job {job} in Redis", world, ("delete_in_mysql", job, seen))

    def delete_in_mysql(self, world: World, job: int, seen: int | None) -> Iterator[Step]:
        """One transaction, which locks the row of the incarnation. seen: the number of the last restore at the last
        look. If none began since, the job cannot have passed from MySQL through Redis to MySQL.
        """
        mysql = world.mysql
        current = len(mysql.incarnations) - 1
        rows = {row for row in mysql.jobs if row[:2] == (current, job)}
        now = mysql.incarnations[-1].last_restore if mysql.incarnations else 0
        if job in self._restoring(mysql, current) and self.clauses.delete_waits_for_restore:
            yield Step(f"waits for the restore of job {job}", world, ("delete_in_redis", job, None))
        elif rows:
            deleted = mysql._replace(jobs=mysql.jobs - rows)
            fates = _put(world.jobs, job, _known_deleted(_deleted(world.jobs[job])))
            yield Step(f"deletes the row of job {job}", world._replace(mysql=deleted, jobs=fates))
        elif not self.clauses.delete_looks_again or seen == now:
            yield self._overlook(world, job)
        else:
            yield Step(f"does not find job {job} in MySQL", world, ("delete_in_redis", job, now))

    @staticmethod
    def _overlook(world: World, job: int) -> Step:
        if world.jobs[job] == PENDING:
            world = world._replace(jobs=_put(world.jobs, job, OVERLOOKED))
        return Step(f"answers that there is no job {job}", world)

    def delete_queue(self, world: World) -> Iterator[Step]:
        empty = self._empty(world, world.redis.epoch + 2, world.redis.version + 1)
        ids = tuple(job for job, fate in enumerate(world.jobs) if fate == PENDING)
        jobs = tuple(_deleted(fate) for fate in world.jobs)
        deleted = _wrote(world._replace(jobs=jobs), empty)
        yield Step("deletes the queue and makes it again", deleted, ("confirm", ids, world.left.roll_backs))

    def confirm(self, world: World, ids: tuple[int, ...], roll_backs: int) -> Iterator[Step]:
        """Waits until a deletion is on disk."""
        if world.left.roll_backs != roll_backs:
            yield Step(f"does not know whether its deletion of {_jobs(ids)} is on disk", world)
            return
        jobs = tuple(_known_deleted(fate) if job in ids else fate for job, fate in enumerate(world.jobs))
        yield Step(f"knows that its deletion of {_jobs(ids)} is on disk", world._replace(unsaved=(), jobs=jobs))


# -- values


def _put(values: tuple[Any, ...], at: int, value: object) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _wrote(world: World, redis: Redis) -> World:
    """The world after a write of Redis that is not on disk yet."""
    if redis == world.redis:
        return world
    unsaved = (*world.unsaved, world.redis) if world.left.roll_backs else ()
    return world._replace(redis=redis, unsaved=unsaved)


def _without(redis: Redis, ids: list[int]) -> Redis:
    places = tuple(NOWHERE if job in ids else place for job, place in enumerate(redis.places))
    return redis._replace(records=redis.records.difference(ids), places=places)


def _has_batch(redis: Redis, name: str) -> bool:
    return any(batch[0] == name for batch in redis.batches)


def _current(mysql: MySQL) -> Known:
    """The current incarnation; number -1 if there is none."""
    if not mysql.incarnations:
        return Known(-1, 0)
    return Known(len(mysql.incarnations) - 1, mysql.incarnations[-1].epoch)


def _deleted(fate: str) -> str:
    return DELETED if fate == PENDING else fate


def _known_deleted(fate: str) -> str:
    return DELETION_KNOWN if fate == DELETED else fate


def _shown(request: Request) -> str:
    values = [value for value in request[1:] if not isinstance(value, Known)]
    return f"{request[0]}({', '.join(map(str, values))})"


def _restores(restores: list[Restore] | tuple[Restore, ...]) -> str:
    return " and ".join(f"restore {restore.number} of {_jobs(restore.ids)}" for restore in restores) or "no restore"


def _jobs(ids: Sequence[int]) -> str:
    return "no job" if not ids else "job " + " and ".join(map(str, ids))


# -- what must hold


def violation(world: World) -> str:
    """What is wrong in a world; '' for nothing."""
    redis, mysql = world.redis, world.mysql
    archived = None
    for job, fate in enumerate(world.jobs):
        place = redis.places[job]
        if fate in (RUN_TWICE, RUN_DELETED, OVERLOOKED):
            return f"job {job}: {fate}"
        if place != NOWHERE and job not in redis.records:
            return f"job {job}: no record, but it is in {place}"
        if place not in (NOWHERE, LINE) and not any(batch == place and job in ids for batch, ids in redis.batches):
            return f"job {job}: withdrawn for {place}, which does not name it"
        if fate == PENDING and place == NOWHERE:
            if archived is None:
                archived = {id_ for id_, _ in mysql.rows_of(len(mysql.incarnations) - 1, COMMITTED, FINALIZED)}
            if job not in archived:
                return f"job {job}: lost"
    return ""


def ended(world: World) -> bool:
    """Whether each job ran or was deleted, and nothing is left to move."""
    mysql, current = world.mysql, len(world.mysql.incarnations) - 1
    return (
        not world.redis.batches
        and not world.redis.open
        and LINE not in world.redis.places
        and PENDING not in world.jobs
        and not any(of == current for of, _, _ in mysql.jobs)
        and not any(restore.incarnation == current for restore in mysql.restores)
        and not any(batch.state == COMMITTED and batch.incarnation == current for batch in mysql.batches)
    )
