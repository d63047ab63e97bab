"""The figures of the archive: how fast jobs leave and come back, what that costs others, and how much space they take.

    python benches/archive.py [--only 1,2,3,4] [--rounds 5] [--jobs 100000] [--quick] [--json FILE]

1. Spill, jobs/s, compared with a plain multi-row INSERT of the same rows on one connection.
2. Restore, jobs/s, compared with SELECT and one UPDATE of the same rows on one connection. Comes with 1.
3. The longest script while `--jobs` jobs are spilled, by the slow log of Redis, and the bytes that each takes in MySQL.
   Up to three rounds make the same calls, and a call's time is its best: others take the core away at random.
4. A worker that drains the queue meanwhile, compared with its rate alone.

Base lines work on 500 rows a statement and transaction. That of the ratio is our driver's run_many; PyMySQL's
executemany is the other one. The server is a Valkey with `appendonly yes` and `appendfsync everysec`, MySQL a MariaDB
that writes each COMMIT to disk. Every job has 100 bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benches.support import BODY, Figure, Options, figure, interleave, print_table, ratios, write_json
from pinlater import AsyncClient, Client
from pinlater.archive.archiver import SWITCH_S, Archiver, Selection
from pinlater.store.archive_driver import ArchiveDatabase
from pinlater.store.archive_schema import migrate
from pinlater.store.scripts import load_scripts
from tests.support.archive import database_of
from tests.support.mariadb import MariaDB, connected, made_database, query
from tests.support.servers import Server

#: Jobs of one enqueue, of one turn of figures 1 and 2, and of figures 3 and 4.
ENQUEUED, TURN, MANY = 1_000, 150_000, 200_000
#: Rows of a statement and transaction of the base lines.
TOGETHER = 500
#: The worker drains alone for so long before a spill begins.
ALONE_S = 3.0
#: The incarnation of rows that a base line stores; no queue has it.
PLAIN = 4_000_000
COLUMNS = "batch, id, priority, run_after_ms, sixteenths, attempts, attempts_left, updated_ms, crashes, status, body"
#: A worker reports its jobs so often.
REPORT_S = 0.05
WORKER = f"""
import asyncio, os, sys, time
from pinlater import AsyncClient
from pinlater.worker.worker import Worker, WorkerConfig

done = 0

async def handler(job):
    global done
    done += 1

async def main():
    async with AsyncClient(sys.argv[1]) as client, Worker(client, "q", handler, WorkerConfig(monitor=False)):
        while True:
            os.write(1, b"%.4f %d\\n" % (time.time(), done))
            await asyncio.sleep({REPORT_S})

asyncio.run(main())
"""


class Stage:
    """Both servers, with a queue `q`."""

    def __init__(self, server: Server, url: str) -> None:
        self.server, self.url = server, url
        self.database: ArchiveDatabase = database_of(url)
        migrate(self.database)
        self.client = Client(server.url)
        self.client.create_queue("q")

    def close(self) -> None:
        self.client.close()
        self.database.close()

    def enqueue(self, jobs: int) -> None:
        for _ in range(0, jobs, ENQUEUED):
            self.client.enqueue_many("q", [BODY] * ENQUEUED)

    def archive(self, work: Callable[[Archiver], Any]) -> float:
        """Seconds that an archiver takes for its work."""

        async def run() -> float:
            async with AsyncClient(self.server.url, archive=self.url) as client:
                database = client.settings.database
                assert database is not None
                sys.setswitchinterval(SWITCH_S)  # as `pinlater archive` does
                began_s = time.perf_counter()
                await work(Archiver(client.run, client.session, database))
                return time.perf_counter() - began_s

        return asyncio.run(run())

    def spill(self, limit: int | None = None) -> float:
        return self.archive(lambda archiver: archiver.spill("q", Selection(limit=limit)))

    def restore(self) -> float:
        return self.archive(lambda archiver: archiver.restore("q"))

    def rows(self) -> list[tuple[Any, ...]]:
        """What the archive has of the queue, in the order in which it was stored."""
        return self.query(f"SELECT {COLUMNS} FROM jobs WHERE incarnation <> {PLAIN} ORDER BY batch, id DESC")  # noqa: S608

    def query(self, text: str) -> list[tuple[Any, ...]]:
        with connected(self.url) as connection:
            return list(query(connection, text))

    def clear(self) -> None:
        """No rows, and no jobs in Redis."""
        self.query("TRUNCATE jobs")
        self.client.delete_queue("q")
        self.client.create_queue("q")


@contextmanager
def stage(mariadb: MariaDB) -> Iterator[Stage]:
    """A Valkey and a database of its own."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="pinlater-bench-")))
        config = {"appendonly": "yes", "appendfsync": "everysec"}
        server = stack.enter_context(Server("valkey", directory, config=config))
        url = stack.enter_context(made_database(mariadb.url))
        made = Stage(server, url)
        stack.callback(made.close)
        yield made


def groups(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """As many rows as one statement and transaction has."""
    return (rows[first : first + TOGETHER] for first in range(0, len(rows), TOGETHER))


# 1 and 2. rates


def rates(mariadb: MariaDB, options: Options) -> list[Figure]:
    """Spill and restore of the same jobs, and their base lines."""
    jobs = options.scaled(TURN, 2_000)
    with stage(mariadb) as on:
        on.enqueue(jobs)
        on.spill()
        rows = [(PLAIN, *row) for row in on.rows()]
        on.clear()
        assert len(rows) == jobs

        def spill() -> float:
            on.enqueue(jobs)
            return jobs / on.spill()

        def restore() -> float:
            rate = jobs / on.restore()
            on.clear()
            return rate

        def turn(work: Callable[[], float]) -> float:
            rate = jobs / work()
            on.query("TRUNCATE jobs")
            return rate

        moved: list[float] = []

        def there() -> float:
            moved.append(spill())
            return moved[-1]

        found = interleave(
            {
                "spill and restore": lambda: there() * 0 + restore(),
                "insert": lambda: turn(lambda: insert(on, rows)),
                "executemany": lambda: turn(lambda: executemany(on, rows)),
                "update": lambda: turn(lambda: insert(on, rows) * 0 + update(on, rows)),
            },
            options.rounds,
        )
    return [
        _ratio("1 spill / INSERT (run_many)", moved, found["insert"], 0.5, 0.8),
        _ratio("1 … / INSERT (executemany)", moved, found["executemany"], None, None),
        _ratio("2 restore / SELECT and UPDATE", found["spill and restore"], found["update"], 0.5, 0.8),
    ]


def _ratio(name: str, ours: Sequence[float], base: Sequence[float], bar: float | None, aim: float | None) -> Figure:
    note = f"{_thousands(ours)} jobs/s, base line {_thousands(base)} rows/s"
    return figure(name, "valkey", ratios(ours, base), bar, aim, at_least=True, note=note)


def _thousands(rates: Sequence[float]) -> str:
    return f"{sorted(rates)[len(rates) // 2] / 1_000:.1f} k"


def insert(on: Stage, rows: Sequence[tuple[Any, ...]]) -> float:
    """Seconds that run_many takes to store the rows."""
    parts = [[_columns(row) for row in part] for part in groups(rows)]
    on.database.transaction(lambda sql: sql.run("last_restore", (1,)))  # connected
    began_s = time.perf_counter()
    for part in parts:
        on.database.transaction(lambda sql, part=part: sql.run_many("insert_jobs", part))  # type: ignore[misc]
    return time.perf_counter() - began_s


def _columns(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """As the driver takes them: bytes and numbers."""
    return tuple(bytes(value) if isinstance(value, bytearray) else value for value in row)


def executemany(on: Stage, rows: Sequence[tuple[Any, ...]]) -> float:
    """Seconds that PyMySQL takes to store the rows."""
    text = f"INSERT INTO jobs (incarnation, {COLUMNS}) VALUES ({', '.join(['%s'] * len(rows[0]))})"  # noqa: S608
    with connected(on.url, autocommit=False) as connection, connection.cursor() as cursor:
        began_s = time.perf_counter()
        for part in groups(rows):
            cursor.executemany(text, part)
            connection.commit()
        return time.perf_counter() - began_s


def update(on: Stage, rows: Sequence[tuple[Any, ...]]) -> float:
    """Seconds that it takes to read and change the rows, which are there."""
    parts = [[row[2] for row in part] for part in groups(rows)]
    change = f"UPDATE jobs SET attempts = attempts + 1 WHERE incarnation = {PLAIN} AND id IN ({{}})"  # noqa: S608
    began_s = time.perf_counter()
    for ids in parts:

        def work(sql: Any, ids: list[int] = ids) -> None:
            assert len(sql.run_in("select_jobs_by_id", (PLAIN, 2**31), ids)) == len(ids)
            sql.run_text(change.format(",".join(map(str, ids))))

        on.database.transaction(work)
    return time.perf_counter() - began_s


# 3. the longest script, and space


def longest(mariadb: MariaDB, options: Options) -> list[Figure]:
    """Spills of many jobs. Each round makes the same calls; a call's time is its best of the rounds."""
    jobs = options.scaled(options_jobs, 2_000)
    rounds = [_one_spill(mariadb, jobs) for _ in range(min(3, options.rounds))]
    found = {verb: best_of([calls[verb] for calls, _, _ in rounds]) for verb in ("withdraw", "read_batch", "finalize")}
    medians = ", ".join(f"{verb} {sorted(times)[len(times) // 2]:.1f}" for verb, times in found.items())
    once = max(ms for calls, _, _ in rounds for times in calls.values() for ms in times)
    note = f"{jobs:,} jobs in {rounds[0][1]:.1f} s; medians {medians}; longest of any round {once:.1f}"
    worst = max(max(times) for times in found.values())
    return [
        Figure("3 longest script of a spill", "valkey", worst, 5.0, 2.0, unit="ms", note=note),
        Figure("3 bytes a job in MySQL", "mariadb", rounds[0][2], 350, 250, unit="B", note="data and indexes"),
    ]


options_jobs = MANY


def _one_spill(mariadb: MariaDB, jobs: int) -> tuple[dict[str, list[float]], float, float]:
    """ms of each script's calls in their order, the seconds of the spill, and bytes a job in MySQL."""
    with stage(mariadb) as on:
        on.enqueue(jobs)
        with suppress(PermissionError):  # else another process that takes its core away counts
            os.setpriority(os.PRIO_PROCESS, on.server.pid, -20)
        on.server.call("CONFIG", "SET", "slowlog-log-slower-than", 0)
        on.server.call("CONFIG", "SET", "slowlog-max-len", 1_000_000)
        on.server.call("SLOWLOG", "RESET")
        seconds = on.spill()
        calls = timed_calls(on.server)
        on.query("ANALYZE TABLE jobs")
        [(size, count)] = on.query(
            "SELECT (SELECT SUM(data_length + index_length) FROM information_schema.tables"
            " WHERE table_schema = DATABASE()), (SELECT COUNT(*) FROM jobs)"
        )
        assert count == jobs
    return calls, seconds, float(size) / jobs


def timed_calls(server: Server) -> dict[str, list[float]]:
    """ms of the calls of each script that the slow log has, in their order."""
    verbs = {script.sha: verb for verb, script in load_scripts().items()}
    with server.client() as raw:
        entries: list[Any] = raw.slowlog_get(1_000_000)
    found: dict[str, list[float]] = {}
    for entry in reversed(entries):
        words = entry["command"].split(b" ", 2)
        if words[0] == b"EVALSHA" and words[1] in verbs:
            found.setdefault(verbs[words[1]], []).append(entry["duration"] / 1_000)
    return found


def best_of(rounds: list[list[float]]) -> list[float]:
    """Of the calls that each round made."""
    return [min(times) for times in zip(*rounds, strict=False)]


# 4. a worker meanwhile


def meanwhile(mariadb: MariaDB, options: Options) -> list[Figure]:
    """One worker process, alone and during a spill, which leaves it enough jobs."""
    shares, alone, beside = [], [], []
    spilled = options.scaled(MANY, 40_000) // 4
    for _ in range(options.scaled(min(3, options.rounds), 1)):
        with stage(mariadb) as on:
            on.enqueue(20 * spilled)
            worker = subprocess.Popen([sys.executable, "-c", WORKER, on.server.url], stdout=subprocess.PIPE, text=True)
            try:
                assert worker.stdout is not None
                worker.stdout.readline()
                time.sleep(options.scaled(1, 0) + 0.5)
                began_s = time.time()
                time.sleep(options.scaled(int(ALONE_S), 1))
                spilled_s = time.time()
                on.spill(spilled)
                ended_s = time.time()
                time.sleep(2 * REPORT_S)  # what the worker reports next is after the end
                busy = any(on.client.peek("q").values())
            finally:
                worker.kill()
            lines = [line.split() for line in worker.stdout.readlines()]
            worker.wait()
            points = [(float(line[0]), int(line[1])) for line in lines if len(line) == 2]
        alone.append(_rate(points, began_s, spilled_s))
        beside.append(_rate(points, spilled_s, ended_s))
        shares.append(beside[-1] / alone[-1])
        assert busy, "the worker had nothing left to do"
    note = (
        f"{_thousands(beside)} jobs/s, alone {_thousands(alone)}; "
        f"{spilled:,} jobs spilled in {ended_s - spilled_s:.1f} s"
    )
    return [figure("4 worker during a spill / alone", "valkey", shares, 0.7, 0.85, at_least=True, note=note)]


def _rate(points: Sequence[tuple[float, int]], first_s: float, last_s: float) -> float:
    """Jobs/s of a worker that has reported (time, jobs done)."""
    return (_done(points, last_s) - _done(points, first_s)) / (last_s - first_s)


def _done(points: Sequence[tuple[float, int]], at_s: float) -> float:
    """Jobs done by then, between two reports by their straight line."""
    after = next(place for place, (when_s, _) in enumerate(points) if when_s > at_s)
    (before_s, before), (after_s, later) = points[after - 1], points[after]
    return before + (later - before) * (at_s - before_s) / (after_s - before_s)


MEASURES = {"1": rates, "2": rates, "3": longest, "4": meanwhile}


def _measures(numbers: str) -> list[Callable[[MariaDB, Options], list[Figure]]]:
    """What `--only` names, each once."""
    given = [number.strip() for number in numbers.split(",")]
    if unknown := [number for number in given if number not in MEASURES]:
        raise argparse.ArgumentTypeError(f"expected numbers of {', '.join(MEASURES)}, got {unknown[0]!r}")
    return list(dict.fromkeys(MEASURES[number] for number in given))


def main() -> int:
    """Exit code 1 if a bar is not met."""
    global options_jobs
    parser = argparse.ArgumentParser(description="The figures of the archive.")
    parser.add_argument("--only", default="1,2,3,4", metavar="1,2,…", type=_measures)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=MANY, help=f"of figure 3, by default {MANY}")
    parser.add_argument("--quick", action="store_true", help="fewer jobs, to check that it works")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    options = Options(given.rounds, given.quick)
    options_jobs = given.jobs
    with (
        TemporaryDirectory(prefix="pinlater-bench-") as directory,
        MariaDB(Path(directory) / "mariadb", options=("innodb-buffer-pool-size=512M",)) as mariadb,
    ):
        figures = [each for measure in given.only for each in measure(mariadb, options)]
    print_table(figures)
    if given.json:
        write_json(given.json, figures, options, {})
    return int(any(each.is_met is False for each in figures))


if __name__ == "__main__":
    sys.exit(main())
