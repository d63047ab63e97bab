"""`pinlater run`, `worker`, `monitor` and `demo`: the roles, each started from its own module.

Promises nothing of its own but the options. Risks: --processes starts this command anew; the servers are handed on in
PINLATER_URL, where other users of the machine can not read a password.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pinlater.cli.commands import Command
from pinlater.cli.output import print_json
from pinlater.cli.settings import Settings, common_options, json_option
from pinlater.store.shards import URL_VARIABLE, resolve_shards

if TYPE_CHECKING:
    from pinlater.running.options import RunOptions


def _shards(settings: Settings) -> dict[str, str]:
    return resolve_shards(*settings.servers())


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
    from pinlater.running.supervisor import run_workers
    from pinlater.worker.worker import WorkerConfig

    config = WorkerConfig(stop_timeout_s=stop_timeout, **options)
    shards = _shards(settings)
    _log_at_least_info(settings)
    _hand_on(shards)
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
@click.argument("app", metavar="MODULE:APP", required=False)
@click.option(
    "--queues",
    metavar="A:3,B",
    help="Only these queues, by weight; A>B: B only while A has nothing. [default: those of the app's tasks]",
)
@click.option("--strict", is_flag=True, default=None, help="The order of the queues holds: as A>B.")
@click.option("--isolate", is_flag=True, default=None, help="Each queue has processes of its own.")
@click.option("--concurrency", type=int, metavar="N", help="Tasks that run at once, in each process. [default: 10]")
@click.option("--processes", type=int, metavar="N", help="Processes, started again if they die. [default: 1]")
@click.option(
    "--task-processes",
    type=int,
    metavar="N",
    help='For tasks with runs_in="process", in each process. [default: the cores]',
)
@click.option("--max-jobs", type=int, metavar="N", help="A process is replaced after so many jobs.")
@click.option(
    "--max-memory", "memory_mb", type=int, metavar="MB", help="A process that uses more is replaced after its jobs."
)
@click.option("--burst", is_flag=True, default=None, help="Stop when nothing is due.")
@click.option("--watch", is_flag=True, default=None, help="Start anew when the app's Python files change.")
@click.option("--stop-timeout", type=float, metavar="SECONDS", help="For tasks to end at a stop. [default: 30]")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="[default: text]")
@click.option("--http", metavar="HOST:PORT", help="Serve /healthz, /readyz and /metrics there.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="These options in TOML. [default: pinlater.toml, or tool.pinlater in pyproject.toml, if there]",
)
@common_options(hidden=True)
@json_option
@click.pass_obj
def run_(settings: Settings, /, config: Path | None, **told: Any) -> int:
    """Run the tasks of MODULE:APP, a PinLater.

    Its queues are made if they are not there. SIGTERM or Ctrl-C stops: running tasks end first. SIGHUP reads code and
    TOML again: several processes are replaced as fresh ones are ready, a lone one ends its tasks first. SIGUSR1 logs
    what runs. The servers are the app's own; where it names none, as for all commands. All of it: docs/running.md.
    """
    from pinlater.worker.stop_signals import ignore_others

    ignore_others()
    from pinlater.running.options import options_of
    from pinlater.running.run_command import run_app
    from pinlater.tasks.loading import load_app
    from pinlater.tasks.logs import set_up

    options = options_of(told, config)
    _name_servers(settings, options, load_app(options.app).clients.named)
    _log_at_least_info(settings)
    set_up(options.log_format)
    code = run_app(options, verbosity=settings.verbosity, read=lambda: options_of(told, config))
    return _ended(settings, "run", code)


def _name_servers(settings: Settings, options: RunOptions, named: bool) -> None:
    """For the app, and for the processes. named: the app names its servers itself."""
    if named and settings.named:
        raise click.UsageError(f"{options.app} names its servers itself: --url and --shard are for apps that do not")
    if settings.named:
        _hand_on(_shards(settings))
    elif not named and not os.environ.get(URL_VARIABLE):  # a file of --config that names none is no reason to read more
        _hand_on(resolve_shards(options.url, options.shards or None))


def _hand_on(shards: dict[str, str]) -> None:
    os.environ[URL_VARIABLE] = ",".join(f"{name}={url}" for name, url in shards.items())


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
    from pinlater.running.supervisor import run_monitor

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
    from pinlater.cli.demo import run_demo

    return _ended(settings, "demo", run_demo(folder, output=output, images=images))
