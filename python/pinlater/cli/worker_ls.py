"""`pinlater worker ls`: the worker processes, by what they say of themselves.

Risks: what a process runs is up to 20 s old. A process that died is shown for a minute after its last beat.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

import click

from pinlater.cli.command_base import DONE, Command
from pinlater.cli.output import count, duration, jobs, moment, print_json, print_table, printable, remark, say
from pinlater.cli.settings import Settings, common_options, json_option
from pinlater.operations.workers import WorkerProcess, worker_processes

#: A process whose last beat is older has missed one.
SILENT_MS: Final = 30_000
_HEADINGS: Final = ("host", "process", "queues", "#concurrency", "#running", "version", "started", "last beat")


@click.command("ls", cls=Command)
@click.option(
    "--queue", "queues", multiple=True, metavar="NAME", help="Only this queue; may be repeated. [default: all]"
)
@common_options(hidden=True)
@json_option
@click.pass_obj
def ls(settings: Settings, queues: tuple[str, ...]) -> int:
    """List the worker processes of queues, with the jobs that they run.

    A process says of itself every 20 s what it runs. One that died is listed for a minute.
    """
    with settings.client() as client:
        names = list(queues) or client.queue_names()
        found = client.run(lambda end: worker_processes(client.session, names, end))
    if settings.as_json:
        print_json([asdict(process) for process in found])
    elif not found:
        say("no worker process has said anything in the last minute")
    else:
        print_table(_HEADINGS, map(_row, found))
        if running := [row for process in found for row in _job_rows(process)]:
            say("")
            print_table(("job", "task", "#attempt", "process", "claimed"), running)
        if left := sum(process.running - len(process.jobs) for process in found):
            remark(f"{jobs(left)} more; a process names the 10 that it holds longest")
    return DONE


def _row(process: WorkerProcess) -> tuple[str, ...]:
    silent = ": silent, may be dead" if process.silent_ms > SILENT_MS else ""
    return (
        printable(process.host),
        str(process.process),
        ", ".join(process.queues),
        count(process.concurrency),
        count(process.running),
        printable(process.version),
        moment(process.started_ms),
        f"{duration(process.silent_ms)} ago{silent}",
    )


def _job_rows(process: WorkerProcess) -> Iterator[tuple[str, ...]]:
    for job in process.jobs:
        where = f"{printable(process.host)} {process.process}"
        yield printable(job.descriptor), printable(job.task or "-"), str(job.attempt), where, moment(job.claimed_ms)
