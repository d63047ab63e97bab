"""Runs the demo: makes thumbnails of images, kills a worker meanwhile, and checks everything at the end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.live import Live

from pinlater.cli.demo.samples import make_samples
from pinlater.cli.demo.thumbnails import IMAGE_SUFFIXES, app, is_readable, make_thumbnail
from pinlater.cli.demo.view import Outcome, Progress, show_outcome
from pinlater.client.client import Client
from pinlater.model.errors import InvalidArgument
from pinlater.model.jobs import JobInfo, State
from pinlater.model.queue_config import QueueConfig
from pinlater.store.shards import URL_VARIABLE

QUEUE: Final = make_thumbnail.queue
PROCESSES: Final = 2
#: Images in one enqueue.
BATCH: Final = 20
#: Short, so that the killed worker's jobs come back within seconds.
LEASE_MS: Final = 2_000
#: The demo gives up when no job changed its state for this long.
STUCK_S: Final = 60.0
REFRESH_S: Final = 0.1


def run_demo(folder: Path | None = None, *, output: Path = Path("demo-output"), images: int = 200) -> int:
    """Makes thumbnails, and returns the exit code.

    folder: has the images; by default the demo makes a sample set.
    output: folder for thumbnails, samples, logs and the data of the embedded server.
    images: size of the sample set, at least 20.
    """
    console, output = Console(), output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    image_files = _images_of(folder) if folder is not None else _samples(console, output / "images", images)
    url = f"1=embedded://{output}/server,2=embedded://{output}/server"
    thumbnails = output / "thumbnails"
    shutil.rmtree(thumbnails, ignore_errors=True)
    thumbnails.mkdir()
    os.environ[URL_VARIABLE] = url  # the app reads it, here and in the workers
    with Client() as client, app:
        client.delete_queue(QUEUE)
        client.create_queue(QUEUE, QueueConfig(lease_ms=LEASE_MS, keep_succeeded=len(image_files)))
        descriptors, seconds = _Run(client, console, image_files, thumbnails).run()
        infos = client.lookup(descriptors.values())
    outcome = _judge(image_files, thumbnails, descriptors, infos, seconds)
    failed = next((info.descriptor for info in infos.values() if info.state is State.FAILED), next(iter(infos), ""))
    show_outcome(console, outcome, output, url, QUEUE, failed)
    return 1 if outcome.faults else 0


def _images_of(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InvalidArgument(f"folder: expected a folder with images, got {str(folder)!r}")
    found = sorted(path.resolve() for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    if not found:
        raise InvalidArgument(
            f"folder {str(folder)!r}: expected images ({', '.join(sorted(IMAGE_SUFFIXES))}), found none"
        )
    return found


def _samples(console: Console, folder: Path, count: int) -> list[Path]:
    if count < 20:
        raise InvalidArgument(f"images: expected at least 20, got {count}")
    shutil.rmtree(folder, ignore_errors=True)
    with console.status(f"Making {count} sample images …"):
        return list(make_samples(folder, count))


class _Run:
    """One run: enqueues the jobs, starts the worker processes, and kills one of them."""

    def __init__(self, client: Client, console: Console, image_files: list[Path], thumbnails: Path) -> None:
        self._client = client
        self._console = console
        self._image_files = image_files
        self._thumbnails = thumbnails
        self._command = [sys.executable, "-m", "pinlater.cli.demo.worker", str(thumbnails.parent / "workers.log")]
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._progress = Progress(len(image_files))
        self._killed = False

    def run(self) -> tuple[dict[Path, str], float]:
        """Returns each image's descriptor, and the seconds from the first enqueue to the last end."""
        try:
            with Live(self._progress, console=self._console, refresh_per_second=10):
                for _ in range(PROCESSES):
                    self._start_worker()
                started_s = time.monotonic()
                descriptors = self._enqueue()
                self._watch()
                return descriptors, time.monotonic() - started_s
        finally:
            self._stop_workers()

    def _enqueue(self) -> dict[Path, str]:
        calls = [
            make_thumbnail.args(str(image_file), str(thumbnail_of(image_file, number, self._thumbnails)))
            for number, image_file in enumerate(self._image_files)
        ]
        batches = [calls[first : first + BATCH] for first in range(0, len(calls), BATCH)]
        handles = [handle for batch in batches for handle in make_thumbnail.enqueue_many(batch)]
        self._progress.add_event(f"{len(handles)} jobs enqueued on 2 shards")
        return {image_file: handle.descriptor for image_file, handle in zip(self._image_files, handles, strict=True)}

    def _start_worker(self) -> None:
        process = subprocess.Popen(self._command)
        self._workers[process.pid] = process
        self._progress.workers[process.pid] = "up"
        self._progress.add_event(f"worker {process.pid} started")

    def _watch(self) -> None:
        """Waits until every job has ended. Kills a worker as soon as one runs jobs."""
        changed_s = time.monotonic()
        while True:
            counts = self._client.count(QUEUE)
            if counts != self._progress.counts:
                changed_s = time.monotonic()
            self._progress.counts = counts
            if counts.succeeded + counts.failed == len(self._image_files):
                return
            if time.monotonic() - changed_s > STUCK_S:
                self._progress.add_event(f"no job changed for {STUCK_S:.0f} s: the demo gives up")
                return
            if not self._killed:
                self._kill_a_busy_worker()
            time.sleep(REFRESH_S)

    def _kill_a_busy_worker(self) -> None:
        running: dict[int, int] = {}
        for info in self._client.scan(QUEUE, State.IN_PROGRESS):
            pid = info.claim.split(":")[-2]
            if pid.isdigit():
                running[int(pid)] = running.get(int(pid), 0) + 1
        victim = next((pid for pid in running if pid in self._workers), None)
        if victim is None:
            return
        os.kill(victim, signal.SIGKILL)
        self._workers.pop(victim).wait()
        self._killed = True
        self._progress.workers[victim] = "killed"
        self._progress.add_event(f"worker {victim} killed (SIGKILL) while it held {running[victim]} jobs")
        self._start_worker()

    def _stop_workers(self) -> None:
        for process in self._workers.values():
            process.terminate()
        for process in self._workers.values():
            process.wait()


def thumbnail_of(image_file: Path, number: int, folder: Path) -> Path:
    """The path of an image's thumbnail. It is numbered, as two folders may hold the same name."""
    return folder / f"{number:05}-{image_file.stem}.jpg"


def _judge(
    image_files: list[Path], thumbnails: Path, descriptors: dict[Path, str], infos: dict[str, JobInfo], seconds: float
) -> Outcome:
    faults = []
    for number, image_file in enumerate(image_files):
        info = infos.get(descriptors[image_file])
        made = is_readable(thumbnail_of(image_file, number, thumbnails))
        if is_readable(image_file):
            if not made or info is None or info.state is not State.SUCCEEDED:
                faults.append(f"{image_file.name} has no thumbnail ({info.state.value if info else 'job lost'})")
        elif info is None or info.state is not State.FAILED or not info.status:
            faults.append(f"{image_file.name} is broken, but its job has not failed with a reason")
    ended = list(infos.values())
    succeeded = [info for info in ended if info.state is State.SUCCEEDED]
    failed = [info for info in ended if info.state is State.FAILED]
    redeliveries = sum(info.crashes for info in ended)
    if not redeliveries:
        faults.append("no job was redelivered, though the demo kills a busy worker")
    return Outcome(
        jobs=len(image_files),
        succeeded=len(succeeded),
        failed=len(failed),
        retries=sum(_retries(info) for info in ended),
        redeliveries=redeliveries,
        seconds=seconds,
        latencies_ms=[info.updated_ms - info.created_ms for info in succeeded],
        reason=failed[0].headline if failed else "none",
        faults=faults,
    )


def _retries(info: JobInfo) -> int:
    """Attempts beyond the first that followed a failure, not a crash."""
    used = info.attempts_allowed - info.attempts_remaining - (1 if info.state is State.FAILED else 0)
    return max(0, used - info.crashes)
