"""`pinlater run`, `worker`, `monitor` and `demo`: the roles, each started from its own module.

Promises nothing of its own but the options. Risks: --processes starts this command anew; the servers are handed on in
PINLATER_URL, where other users of the machine can not read a password.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import click

from pinlater.cli.commands import Command
from pinlater.cli.output import print_json
from pinlater.cli.settings import Settings, common_options, json_option
from pinlater.shards import URL_VARIABLE, resolve_shards


def _shards(settings: Settings) -> dict[str, str]:
    return resolve_shards(settings.url, settings.shards or None)


def _log_at_least_info(settings: Settings) -> None:
    """A role that runs for long says what it does."""
    if not settings.verbosity:
        logging.getLogger().setLevel(logging.INFO)


def _ended(settings: Settings, role: str, code: int) -> int:
    if settings.as_json:
        print_json({"role": role, "exit_code": code})
    return code


@click.command("worker", cls=Command)
@click.argument("handler", metavar="MODULE:HANDLER")
@click.option(
    "--queue", "queues", multiple=True, required=True, metavar="NAME", help="Work on this queue; may be repeated."
)
@click.option("--concurrency", type=int, default=10, help="Jobs that run at once, in each process. [default: 10]")
@click.option("--prefetch", type=int, metavar="N", help="Jobs held unstarted at most. [default: by need]")
@click.option(
    "--processes", type=click.IntRange(1, 256), default=1, help="Processes, started again if they die. [default: 1]"
)
@click.option(
    "--retry-delay-ms", type=int, default=1000, metavar="MS", help="Until a failed job is tried again. [default: 1000]"
)
@click.option(
    "--stop-timeout", type=float, default=30.0, metavar="SECONDS", help="For jobs to end at a stop. [default: 30]"
)
@click.option("--monitor/--no-monitor", default=True, help="Also run a monitor for these queues. [default: yes]")
@common_options(hidden=True)
@json_option
@click.pass_obj
def worker(
    settings: Settings, /, handler: str, queues: tuple[str, ...], processes: int, stop_timeout: float, **options: Any
) -> int:
    """Run MODULE:HANDLER on the jobs of queues.

    It is a function of one argument, the job. A job whose function returns succeeded; one that raises is tried again
    until its attempts are used up. SIGTERM or Ctrl-C stops: running jobs end first.
    """
    from pinlater.supervisor import run_workers
    from pinlater.worker import WorkerConfig

    config = WorkerConfig(stop_timeout_s=stop_timeout, **options)
    shards = _shards(settings)
    _log_at_least_info(settings)
    os.environ[URL_VARIABLE] = ",".join(f"{name}={url}" for name, url in shards.items())
    command = [sys.executable, "-m", "pinlater", *_one_process(handler, queues, config)]
    code = run_workers(handler, queues, shards=shards, config=config, processes=processes, command=command)
    return _ended(settings, "worker", code)


def _one_process(handler: str, queues: tuple[str, ...], config: Any) -> list[str]:
    """The command line of one of several processes."""
    arguments = ["worker", handler, "--processes", "1"]
    for name in ("concurrency", "prefetch", "retry_delay_ms"):
        if getattr(config, name) is not None:
            arguments += [f"--{name.replace('_', '-')}", str(getattr(config, name))]
    arguments += ["--stop-timeout", str(config.stop_timeout_s), "--monitor" if config.monitor else "--no-monitor"]
    return [*arguments, *(part for queue in queues for part in ("--queue", queue))]


@click.command("run", cls=Command)
@click.argument("app", metavar="MODULE:APP")
@click.option("--queues", metavar="A,B", help="Only these queues. [default: those of the app's tasks]")
@click.option("--concurrency", type=int, default=10, help="Tasks that run at once, in each process. [default: 10]")
@click.option(
    "--processes", type=click.IntRange(1, 256), default=1, help="Processes, started again if they die. [default: 1]"
)
@click.option(
    "--task-processes",
    type=click.IntRange(1, 256),
    metavar="N",
    help='For tasks with runs_in="process", in each process. [default: the cores]',
)
@click.option("--burst", is_flag=True, help="Stop when nothing is due.")
@click.option(
    "--stop-timeout", type=float, default=30.0, metavar="SECONDS", help="For tasks to end at a stop. [default: 30]"
)
@common_options(hidden=True)
@json_option
@click.pass_obj
def run_(
    settings: Settings,
    /,
    app: str,
    queues: str | None,
    concurrency: int,
    processes: int,
    task_processes: int | None,
    burst: bool,
    stop_timeout: float,
) -> int:
    """Run the tasks of MODULE:APP, a PinLater.

    Its queues are made if they are not there. SIGTERM or Ctrl-C stops: running tasks end first. The servers are the
    app's own; where it names none, those of --url.
    """
    from pinlater.framework.running import load_app, run_app
    from pinlater.worker import WorkerConfig

    config = WorkerConfig(concurrency=concurrency, stop_timeout_s=stop_timeout)
    names = None if queues is None else queues.split(",")
    if settings.url or settings.shards:  # for the app, and for the processes
        if load_app(app).clients.named:
            raise click.UsageError(f"{app} names its servers itself: --url and --shard are for apps that do not")
        os.environ[URL_VARIABLE] = ",".join(f"{name}={url}" for name, url in _shards(settings).items())
    _log_at_least_info(settings)
    command = [sys.executable, "-m", "pinlater", "run", app, "--processes", "1", "--concurrency", str(concurrency)]
    command += ["--stop-timeout", str(stop_timeout), *(["--queues", queues] if queues else []), *["--burst"] * burst]
    command += [] if task_processes is None else ["--task-processes", str(task_processes)]
    code = run_app(
        app, names, config=config, processes=processes, task_processes=task_processes, burst=burst, command=command
    )
    return _ended(settings, "run", code)


@click.command("monitor", cls=Command)
@click.option(
    "--queue", "queues", multiple=True, metavar="NAME", help="Only this queue; may be repeated. [default: all]"
)
@common_options(hidden=True)
@json_option
@click.pass_obj
def monitor(settings: Settings, queues: tuple[str, ...]) -> int:
    """Give back the jobs of dead workers.

    It also removes finished jobs past their time. Workers run one themselves; this is for queues that other clients
    work on. Several may run: one is active. SIGTERM or Ctrl-C stops it.
    """
    from pinlater.supervisor import run_monitor

    _log_at_least_info(settings)
    return _ended(settings, "monitor", run_monitor(list(queues) or None, shards=_shards(settings)))


@click.command("demo", cls=Command)
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), default=Path("demo-output"), help="[default: demo-output]")
@click.option("--images", type=click.IntRange(20), default=200, help="Size of the sample set. [default: 200]")
@common_options(hidden=True)
@json_option
@click.pass_obj
def demo(settings: Settings, folder: Path | None, output: Path, images: int) -> int:
    """See workers make thumbnails, and one be killed.

    Of the images in FOLDER, or of a sample set. It has a server of its own; --url is not used. Exit code 1 if a
    thumbnail is missing at the end.
    """
    from pinlater.demo import run_demo

    return _ended(settings, "demo", run_demo(folder, output=output, images=images))
