"""Helpers of the commands that run until a signal: run, worker and monitor.

Worker processes get the URLs of the servers in the environment variable PINLATER_URL (ChosenShards.export). Other users
of the machine cannot read the environment of a process, so a password in a URL stays secret.
"""

from __future__ import annotations

import logging

from pinlater.cli.output import print_json
from pinlater.cli.settings import LOG_FORMAT, Settings, show_starts


def log_at_least_info(settings: Settings) -> None:
    """Sets the log level to INFO if the user gave no -v."""
    if not settings.verbosity:
        logging.getLogger().setLevel(logging.INFO)
        show_starts(plain=False)


def log_process_ids() -> None:
    """Adds the id of its process to each line of the log, where several processes write one log."""
    formatter = logging.Formatter(LOG_FORMAT.replace("%(levelname)s", "%(process)d %(levelname)s"))
    for handler in logging.getLogger().handlers:
        handler.setFormatter(formatter)


def finish(settings: Settings, role: str, code: int) -> int:
    """Prints the role and the exit code if the user asked for JSON. Returns the exit code."""
    if settings.as_json:
        print_json({"role": role, "exit_code": code})
    return code
