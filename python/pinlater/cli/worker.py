"""`pinlater worker`: one handler on the jobs of queues.

This module only reads the options. With --processes, each process runs this command again.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from pinlater.cli.command_base import Command
from pinlater.cli.long_running import finish, log_at_least_info
from pinlater.cli.settings import Settings, common_options, json_option
from pinlater.cli.times import MILLISECONDS, SECONDS
from pinlater.cli.worker_ls import ls


class _WorkerCommand(Command):
    """`pinlater worker MODULE:HANDLER`, and `pinlater worker ls`: no module has that name, as it has no colon."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context of this command, or of the verb."""
        if args[:1] == ["ls"]:
            return ls.make_context(f"{info_name} ls", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command("worker", cls=_WorkerCommand)
@click.argument("handler", metavar="MODULE:HANDLER")
@click.option(
    "--queue", "queues", multiple=True, required=True, metavar="NAME", help="Work on this queue; may be repeated."
)
@click.option("--concurrency", type=int, default=10, help="Jobs that run at once in each process. [default: 10]")
@click.option(
    "--prefetch", type=int, metavar="N", help="The most claimed jobs that wait in a process. [default: as needed]"
)
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    default=1,
    help="Number of processes; one that dies is restarted. [default: 1]",
)
@click.option(
    "--retry-delay",
    "retry_delay_ms",
    type=MILLISECONDS,
    default="1s",
    metavar="TIME",
    help="Pause before a failed job is tried again. [default: 1s]",
)
@click.option(
    "--stop-timeout",
    type=SECONDS,
    default="30s",
    metavar="TIME",
    help="Time for running jobs at a stop. [default: 30s]",
)
@click.option("--create", is_flag=True, help="Create missing queues.")
@click.option("--monitor/--no-monitor", default=True, help="Also run a monitor for these queues. [default: yes]")
@common_options(hidden=True)
@json_option
@click.pass_obj
def worker(
    settings: Settings,
    /,
    handler: str,
    queues: tuple[str, ...],
    processes: int,
    stop_timeout: float,
    create: bool,
    **options: Any,
) -> int:
    """Run the function MODULE:HANDLER on the jobs of queues.

    The function takes one argument, the job. If it returns, the job has succeeded. If it raises, the job is tried again
    until its attempts are used up. SIGTERM or Ctrl-C stops; running jobs end first. SIGHUP reads the code again.
    SIGUSR1 logs what runs. `pinlater worker ls` lists the worker processes of all machines.
    """
    from pinlater.worker.stop_signals import OTHER_SIGNALS, ignore

    ignore(OTHER_SIGNALS)
    from pinlater.running.worker_command import run_handler
    from pinlater.worker.worker import WorkerConfig

    config = WorkerConfig(stop_timeout_s=stop_timeout, **options)
    shards = settings.servers()
    log_at_least_info(settings)
    shards.export()
    settings.export_archive()
    verbose = ["-v"] * settings.verbosity
    command = [
        sys.executable,
        "-m",
        "pinlater",
        *verbose,
        *_one_process(handler, queues, config),
        *["--create"] * create,
    ]
    code = run_handler(
        handler, queues, shards=shards, config=config, processes=processes, command=command, create=create
    )
    return finish(settings, "worker", code)


def _one_process(handler: str, queues: tuple[str, ...], config: Any) -> list[str]:
    """The arguments of one of several processes."""
    arguments = ["worker", handler, "--processes", "1"]
    for name in ("concurrency", "prefetch"):
        if getattr(config, name) is not None:
            arguments += [f"--{name}", str(getattr(config, name))]
    arguments += ["--retry-delay", f"{config.retry_delay_ms}ms"]
    arguments += ["--stop-timeout", str(config.stop_timeout_s), "--monitor" if config.monitor else "--no-monitor"]
    return [*arguments, *(part for queue in queues for part in ("--queue", queue))]
