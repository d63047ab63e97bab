"""What the demo shows: a live view, then a table and commands to go on with."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pinlater.model.jobs import CountsByState


@dataclass(slots=True)
class Progress:
    """The state of the run as the live view shows it."""

    total: int
    counts: CountsByState = field(default_factory=CountsByState)
    workers: dict[int, str] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    started_s: float = field(default_factory=time.monotonic)

    def add_event(self, event: str) -> None:
        """Adds a line to the events."""
        self.events.append(f"{time.monotonic() - self.started_s:6.1f} s  {event}")

    def __rich__(self) -> Group:
        done = self.counts.succeeded + self.counts.failed
        line = Table.grid(padding=(0, 2))
        line.add_row(
            ProgressBar(total=self.total, completed=done, width=40),
            f"{done}/{self.total} done",
            f"{self.counts.in_progress} running",
            f"{self.counts.pending + self.counts.scheduled} waiting",
            f"{self.counts.failed} failed",
        )
        workers = "  ".join(f"worker {pid}: {state}" for pid, state in self.workers.items())
        return Group(line, Text(workers), Text("\n".join(self.events[-8:]), style="dim"))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of the run.

    latencies_ms: from enqueue to end, of succeeded jobs.
    reason: why one job failed.
    faults: why the demo did not pass; empty if it did.
    """

    jobs: int
    succeeded: int
    failed: int
    retries: int
    redeliveries: int
    seconds: float
    latencies_ms: list[int]
    reason: str
    faults: list[str]


def show_outcome(console: Console, outcome: Outcome, output: Path, url: str, queue: str, failed_job: str) -> None:
    """Prints the table, the folder, and commands that show more."""
    console.print()
    table = Table(title="thumbnails", title_justify="left", show_header=False)
    cuts = quantiles(outcome.latencies_ms, n=100) if len(outcome.latencies_ms) > 1 else [0.0] * 99
    for name, value in (
        ("jobs", f"{outcome.jobs}"),
        ("succeeded", f"{outcome.succeeded}"),
        ("failed", f"{outcome.failed}  (for example: {outcome.reason})"),
        ("retries", f"{outcome.retries}"),
        ("redeliveries", f"{outcome.redeliveries}  (jobs of the killed worker that came back)"),
        ("rate", f"{outcome.jobs / outcome.seconds:.0f} jobs/s over {outcome.seconds:.1f} s"),
        ("latency", f"median {cuts[49]:.0f} ms, 99 % under {cuts[98]:.0f} ms, from enqueue to the end"),
    ):
        table.add_row(name, value)
    console.print(table)
    console.print(f"Thumbnails: [bold]{output / 'thumbnails'}[/bold]")
    console.print("Commands that show more:")
    for command in (
        f"export PINLATER_URL='{url}'",
        f"pinlater queue info {queue}",
        f"pinlater job ls {queue} --state failed",
        f"pinlater job lookup {failed_job}",
    ):
        console.print(f"  {command}", soft_wrap=True, highlight=False)
    for fault in outcome.faults:
        console.print(f"[bold red]fault:[/bold red] {fault}")
