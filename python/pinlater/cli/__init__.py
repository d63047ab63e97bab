"""The command `pinlater`: nouns, then verbs.

Promises the exit codes that its help lists, results on stdout, and all other output on stderr. Risks: a command may
change something and then fail. Its message says what it changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from pinlater.cli.archive import archive
from pinlater.cli.command_base import DONE, Group, run_command_line
from pinlater.cli.demo.command import demo
from pinlater.cli.doctor.command import doctor
from pinlater.cli.enqueue import enqueue
from pinlater.cli.job import job
from pinlater.cli.monitor import monitor
from pinlater.cli.queue import queue
from pinlater.cli.run import run_
from pinlater.cli.server import server
from pinlater.cli.settings import Settings, common_options, json_option
from pinlater.cli.task import task
from pinlater.cli.version import version
from pinlater.cli.worker import worker

__all__ = ["main"]

FIRST_STEPS = """PinLater, a job queue on Redis. Three commands to try, no server needed:

  pinlater queue create mail
  pinlater job enqueue mail 'hello'
  pinlater job dequeue mail

They start a server of their own (embedded://). To use yours: --url redis://host:6379
All commands: pinlater --help
"""

EPILOG = """\b
Exit codes: 0 done. 1 the answer is no: no such queue or job, an ack refused,
doctor or audit found errors. 2 wrong usage or input; nothing was sent. 3 no
server, or it refused. 4 outcome unknown: the request was sent, no answer came.
"""


@click.group("pinlater", cls=Group, invoke_without_command=True, epilog=EPILOG)
@common_options(hidden=False)
@json_option
@click.pass_context
def cli(context: click.Context) -> int:
    """PinLater: a job queue on Redis. Nouns, then verbs: pinlater queue ls.

    These options may also follow the command. An error is one line on stderr; PINLATER_DEBUG=1 shows the traceback.
    """
    context.ensure_object(Settings)
    if context.invoked_subcommand is None:
        click.echo(FIRST_STEPS, nl=False)
    return DONE


job.add_command(enqueue)
for command in (queue, job, task, run_, worker, monitor, server, archive, demo, doctor, version):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line (default: this process's); returns the exit code."""
    return run_command_line(cli, None if arguments is None else list(arguments))
