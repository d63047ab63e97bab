"""The demo of the archive: `python -m pinlater.cli.demo.archive [--mib N]`, or `make demo-archive`.

A backlog of four times the memory of Redis comes in. The archiver takes most of it to MariaDB, and is killed on the
way. Then workers drain it all. Promises to end with 0 only if every job ran once and the audit over both stores is
clean.
"""

from __future__ import annotations

import argparse
import os
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pinlater.archive.status import status
from pinlater.cli.demo.archive_process import NUMBER
from pinlater.cli.demo.archive_servers import MAXMEMORY_MIB, check_machine, serving
from pinlater.client.client import Client
from pinlater.model.errors import PinLaterError, ServerFull
from pinlater.model.queue_config import QueueConfig
from pinlater.store.archive_schema import migrate
from pinlater.store.archive_url import ARCHIVE_VARIABLE
from pinlater.store.effects import Flow, send
from pinlater.store.shards import URL_VARIABLE

QUEUE: Final = "backlog"
BODY_BYTES: Final = 2_000
#: Jobs of one enqueue.
BATCH: Final = 100
#: A refused enqueue is tried again after this time.
REFUSED_S: Final = 0.1
#: Jobs that Redis may hold: half of its memory.
SPILL_ABOVE: Final = MAXMEMORY_MIB * 1024 * 1024 // (2 * (BODY_BYTES + 200))
RESTORE_BELOW: Final = SPILL_ABOVE * 3 // 4
WORKERS: Final = 2
#: The archiver is killed once the archive has this share of the jobs.
KILLED_AT: Final = 0.2
#: The demo gives up when nothing changed for this long.
STUCK_S: Final = 60.0
REFRESH_S: Final = 0.25


@dataclass(slots=True)
class Progress:
    """What the live view shows. numbers: by name; their rates are those since the last look."""

    numbers: dict[str, int] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    memory_mib: float = 0.0
    began_s: float = field(default_factory=time.monotonic)
    _seen_s: float = field(default_factory=time.monotonic)

    def note(self, event: str) -> None:
        """Adds a line to the events."""
        self.events.append(f"{time.monotonic() - self.began_s:6.1f} s  {event}")

    def look(self, numbers: dict[str, int]) -> bool:
        """Keeps new numbers. Returns whether they changed."""
        now_s = time.monotonic()
        seconds, self._seen_s = now_s - self._seen_s, now_s
        for name, number in numbers.items():
            now = (number - self.numbers.get(name, 0)) / max(seconds, REFRESH_S)
            self.rates[name] = 0.7 * self.rates.get(name, 0.0) + 0.3 * now
        changed, self.numbers = numbers != self.numbers, numbers
        return changed

    def __rich__(self) -> Group:
        table = Table("", "jobs", "jobs/s", box=None)
        for name, number in self.numbers.items():
            table.add_row(name, f"{number:,}", f"{self.rates[name]:+,.0f}")
        memory = f"memory of Redis: {self.memory_mib:.0f} of {MAXMEMORY_MIB} MiB"
        return Group(table, Text(memory), Text("\n".join(self.events[-8:]), style="dim"))


class Demo:
    """One run. archived: a client with the archive; client: one that sees Redis alone."""

    def __init__(self, console: Console, folder: Path, redis_url: str, archive_url: str, jobs: int) -> None:
        self.console, self.folder, self.jobs = console, folder, jobs
        self.client, self.archived = Client(redis_url), Client(redis_url, archive=archive_url)
        self.environment = {**os.environ, URL_VARIABLE: redis_url, ARCHIVE_VARIABLE: archive_url}
        self.progress = Progress()
        self.enqueued = self.refused = 0
        self.failure: Exception | None = None
        self._processes: list[subprocess.Popen[bytes]] = []

    def run(self) -> list[str]:
        """Returns what is wrong at the end."""
        database = self.archived.settings.database
        assert database is not None
        migrate(database)
        marks = QueueConfig(spill_above=SPILL_ABOVE, restore_below=RESTORE_BELOW)
        self.client.create_queue(QUEUE, marks)
        producer = threading.Thread(target=self._produce, daemon=True)
        try:
            with Live(self.progress, console=self.console, refresh_per_second=4):
                archiver = self._start("archiver")
                self.progress.note(f"archiver {archiver.pid} started; {self.jobs:,} jobs come in")
                producer.start()
                self._watch(lambda numbers: numbers["archived"] >= self.jobs * KILLED_AT and numbers["in open batches"])
                archiver.kill()
                archiver.wait()
                moving = self.progress.numbers["in open batches"]
                self.progress.note(f"archiver {archiver.pid} killed (SIGKILL) while it moved {moving:,} jobs")
                self.progress.note(f"archiver {self._start('archiver').pid} started")
                self._watch(lambda _: not producer.is_alive())
                self.progress.note(f"all enqueued, {self.refused:,} calls were refused and tried again; workers start")
                for number in range(WORKERS):
                    self._start("worker", str(self._file(number)))
                self._watch(lambda numbers: numbers["run"] >= self.jobs and not numbers["archived"])
        finally:
            for process in self._processes:
                process.kill()
                process.wait()
        return self._faults()

    def _start(self, role: str, *more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "pinlater.cli.demo.archive_process", role, QUEUE, *more]
        with (self.folder / f"{role}.log").open("ab") as log:
            process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        self._processes.append(process)
        return process

    def _file(self, number: int) -> Path:
        return self.folder / f"runs-{number}"

    def _produce(self) -> None:
        with Client(self.environment[URL_VARIABLE]) as client:
            while self.enqueued < self.jobs:
                numbers = range(self.enqueued, min(self.enqueued + BATCH, self.jobs))
                bodies = [NUMBER.pack(number).ljust(BODY_BYTES, b".") for number in numbers]
                try:
                    client.enqueue_many(QUEUE, bodies)
                except ServerFull:
                    self.refused += 1
                    time.sleep(REFUSED_S)
                except Exception as error:
                    self.failure = error
                    return
                else:
                    self.enqueued += len(bodies)

    def _watch(self, is_done: Callable[[dict[str, int]], object]) -> None:
        """Shows what goes on until it is done. Raises TimeoutError if nothing goes on."""
        changed_s = time.monotonic()
        while True:
            numbers = self._numbers()
            if self.progress.look(numbers):
                changed_s = time.monotonic()
            if is_done(numbers):
                return
            if self.failure is not None:
                raise self.failure
            if time.monotonic() - changed_s > STUCK_S:
                raise TimeoutError(f"nothing changed for {STUCK_S:.0f} s")
            time.sleep(REFRESH_S)

    def _numbers(self) -> dict[str, int]:
        database = self.archived.settings.database
        assert database is not None
        found = self.archived.run(lambda end: status(self.archived.session, database, QUEUE, end))
        counts = self.client.count(QUEUE)
        self.progress.memory_mib = self.client.run(self._memory) / 2**20
        return {
            "enqueued": self.enqueued,
            "in Redis": counts.pending + counts.scheduled + counts.in_progress,
            "in open batches": found.withdrawn,
            "archived": found.archived,
            "run": sum(file.stat().st_size for file in self._runs()) // NUMBER.size,
        }

    def _runs(self) -> list[Path]:
        return [file for number in range(WORKERS) if (file := self._file(number)).exists()]

    def _memory(self, deadline_s: float) -> Flow[int]:
        [queue_shard] = self.client.session.queue_shards(QUEUE)
        [text] = yield from send(queue_shard.shard.server, ("INFO", "memory"), deadline_s=deadline_s)
        return int(text.split(b"used_memory:")[1].split()[0])

    def _faults(self) -> list[str]:
        runs = Counter(
            number for file in self._runs() for (number,) in struct.iter_unpack(NUMBER.format, file.read_bytes())
        )
        faults = []
        if missing := self.jobs - len(runs):
            faults.append(f"{missing:,} jobs did not run")
        if twice := sum(1 for count in runs.values() if count > 1):
            faults.append(f"{twice:,} jobs ran more than once")
        command = [sys.executable, "-m", "pinlater", "archive", "verify", QUEUE]
        audit = subprocess.run(command, env=self.environment, check=False, capture_output=True, text=True)
        self.console.print("\n" + (audit.stdout + audit.stderr).strip())
        if audit.returncode:
            faults.append("the audit over both stores is not clean")
        return faults


def run_demo(mib: int) -> int:
    """Runs the demo with so many MiB of bodies, and returns the exit code."""
    console, began_s = Console(), time.monotonic()
    try:
        check_machine()
        console.print("Redis and MariaDB start …")
        with TemporaryDirectory(prefix="pinlater-demo-") as folder, serving(Path(folder)) as (redis_url, archive_url):
            run = Demo(console, Path(folder), redis_url, archive_url, mib * 2**20 // BODY_BYTES)
            try:
                faults = run.run()
            finally:
                run.client.close()
                run.archived.close()
    except (PinLaterError, TimeoutError) as error:
        faults = [str(error)]
    for fault in faults:
        console.print(f"[bold red]fault:[/bold red] {fault}")
    if not faults:
        console.print(f"every job ran once; {time.monotonic() - began_s:.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A backlog of four times the memory of Redis, spilled and drained.")
    parser.add_argument("--mib", type=int, default=4 * MAXMEMORY_MIB, help="bytes of bodies, in MiB [default: 256]")
    sys.exit(run_demo(parser.parse_args().mib))
