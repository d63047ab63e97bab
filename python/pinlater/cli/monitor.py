"""`pinlater monitor`: recovers jobs of dead workers, where no worker runs a monitor.

This module only reads the options.
"""

from __future__ import annotations

import click

from pinlater.cli.command_base import Command
from pinlater.cli.long_running import finish, log_at_least_info
from pinlater.cli.settings import Settings, common_options, json_option


@click.command("monitor", cls=Command)
@click.option(
    "--queue", "queues", multiple=True, metavar="NAME", help="Only this queue; may be repeated. [default: all]"
)
@common_options(hidden=True)
@json_option
@click.pass_obj
def monitor(settings: Settings, queues: tuple[str, ...]) -> int:
    """Recover the jobs of dead workers.

    It also removes finished jobs when their time is over, and moves jobs to the archive and back where the queue has
    marks. Each worker runs a monitor itself; this command is for queues
    without workers. Several may run; one is active. SIGTERM or Ctrl-C stops it.
    """
    from pinlater.running.monitor_command import run_monitor

    log_at_least_info(settings)
    settings.export_archive()
    return finish(settings, "monitor", run_monitor(list(queues) or None, shards=settings.servers()))
