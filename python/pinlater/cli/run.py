"""`pinlater run`: the tasks of an app.

This module only reads the options. With --processes, each process runs this command again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pinlater.cli.command_base import Command
from pinlater.cli.long_running import finish, log_at_least_info
from pinlater.cli.settings import Settings, check_redis, check_servers_of_app, common_options, json_option
from pinlater.cli.times import SECONDS


@click.command("run", cls=Command)
@click.argument("app", metavar="MODULE:APP", required=False)
@click.option(
    "--queues",
    metavar="A:3,B",
    help="Only these queues, by weight; A>B: B only while A has nothing. [default: those of the app's tasks]",
)
@click.option(
    "--strict", is_flag=True, default=None, help="Work on a queue only while those before it have nothing, as A>B."
)
@click.option("--isolate", is_flag=True, default=None, help="Each queue has processes of its own.")
@click.option("--include", metavar="MODULE,MODULE", help="Import these modules too, as they have tasks.")
@click.option("--concurrency", type=int, metavar="N", help="Tasks that run at once in each process. [default: 10]")
@click.option(
    "--processes", type=int, metavar="N", help="Number of processes; one that dies is restarted. [default: 1]"
)
@click.option(
    "--task-processes",
    type=int,
    metavar="N",
    help='Processes for tasks with runs_in="process", under each process. [default: number of cores]',
)
@click.option("--max-jobs", type=int, metavar="N", help="Replace a process after this many jobs.")
@click.option(
    "--max-memory",
    "memory_mb",
    type=int,
    metavar="MB",
    help="Replace a process that uses more, when its jobs have ended.",
)
@click.option("--create", is_flag=True, default=None, help="Create missing queues that no task names.")
@click.option("--burst", is_flag=True, default=None, help="Stop when nothing is due.")
@click.option("--watch", is_flag=True, default=None, help="Reload when the app's Python files change.")
@click.option("--stop-timeout", type=SECONDS, metavar="TIME", help="Time for running tasks at a stop. [default: 30s]")
@click.option(
    "--loop-timeout",
    type=SECONDS,
    metavar="TIME",
    help="End a process whose event loop has not turned for this long, with its stacks in the log. [default: never]",
)
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Format of the log on stderr. [default: text]")
@click.option("--log-success", is_flag=True, default=None, help="Log each job that succeeded.")
@click.option("--http", metavar="HOST:PORT", help="Serve /healthz, /readyz and /metrics there.")
@click.option("--no-http", "http", flag_value="", help="Serve none, whatever TOML says.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read options from this TOML file. [default: pinlater.toml, or tool.pinlater in pyproject.toml]",
)
@common_options(hidden=True)
@json_option
@click.pass_obj
def run_(settings: Settings, /, config: Path | None, **given: Any) -> int:
    """Run the tasks of MODULE:APP, a PinLater.

    Missing queues of its tasks are created. SIGTERM or Ctrl-C stops; running tasks end first. SIGHUP reads code and
    TOML again: with several processes there is no gap, a single one ends its tasks first. SIGUSR1 logs what runs. The
    app names its servers; if it does not, they are those of all commands. More: docs/running.md.
    """
    from pinlater.worker.stop_signals import OTHER_SIGNALS, ignore

    ignore(OTHER_SIGNALS)
    from pinlater.running.read_options import options_of
    from pinlater.running.run_command import find_app, run_app
    from pinlater.tasks.logs import set_up

    options = options_of(given, config)
    facts = find_app(options)
    _name_servers(settings, options.app, config, facts.named)
    log_at_least_info(settings)
    set_up(options.log_format)
    code = run_app(options, facts=facts, verbosity=settings.verbosity, read=lambda: options_of(given, config))
    return finish(settings, "run", code)


def _name_servers(settings: Settings, app: str, config: Path | None, named: bool) -> None:
    """Sets PINLATER_URL and PINLATER_ARCHIVE_URL for the app and for worker processes. named: whether the app names its
    servers itself.
    """
    from pinlater.running.read_options import archive_of, servers_of
    from pinlater.store.archive_url import export_archive

    check_servers_of_app(settings, app, named)
    if settings.named:
        settings.servers().export()
    elif not named:
        check_redis(servers_of(config)).export()
    export_archive(archive_of(config, settings.archive_url))
