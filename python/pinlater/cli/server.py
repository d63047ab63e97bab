"""`pinlater server`: the Thrift service.

This module only reads the options. Each process of the server runs this command again, without them: it gets the
settings in its environment.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from pinlater.cli.command_base import Command, usage
from pinlater.cli.long_running import finish, log_at_least_info, log_process_ids
from pinlater.cli.settings import Settings, common_options, json_option
from pinlater.store.archive_url import export_archive


@click.command("server", cls=Command)
@click.option("--host", metavar="HOST", help="The address to listen on. [default: every address]")
@click.option("--port", type=int, help="The port to listen on; 0: any. [default: 9010]")
@click.option("--processes", type=int, metavar="N", help="Number of processes. [default: 1]")
@click.option("--http", metavar="HOST:PORT", help="Serve the admin pages there. [default: 127.0.0.1:9999]")
@click.option("--no-http", "http", flag_value="", help="Serve no admin pages.")
@click.option("--config", type=Path, metavar="FILE", help="The original's server.properties.")
@click.option("--queue-config", "queue_config_file", metavar="FILE", help="The original's JSON file of rates; watched.")
@click.option("--ack-any-source", is_flag=True, default=None, help="Let a client ack jobs that another one dequeued.")
@click.option("--tls-cert", metavar="FILE", help="Speak TLS with this certificate chain (PEM).")
@click.option("--tls-key", metavar="FILE", help="The key of --tls-cert (PEM).")
@click.option("--hash-password", is_flag=True, help="Ask for a password, print the hash to configure, and exit.")
@common_options(hidden=True, shown=["--shards-file"])
@json_option
@click.pass_obj
def server(settings: Settings, /, config: Path | None, hash_password: bool, **options: Any) -> int:
    """Serve PinLater's Thrift interface.

    Clients of the original PinLater work unchanged. --url, --shard and --timeout count too (pinlater --help): name the
    Redis servers by --url or --shard, or by --shards-file, PINLATER_URL or pinlater.toml. If nothing names them, it
    serves on the embedded server, but not with --config. There is no login: run it inside your network. Settings stand
    in [server] of pinlater.toml, in the file of --config, and here; the later ones win. SIGTERM or Ctrl-C stops it;
    calls under way are answered first. SIGHUP reads the settings again and replaces the processes one by one.
    """
    if hash_password:
        return _print_hash()
    from pinlater.worker.stop_signals import OTHER_SIGNALS, ignore

    ignore(OTHER_SIGNALS)
    from pinlater.server.read_settings import read_settings
    from pinlater.server.server_command import run_server
    from pinlater.server.settings import ServerSettings
    from pinlater.server.shard_client import check_named

    flags = {name: value for name, value in options.items() if value is not None}
    if settings.timeout_s != ServerSettings().timeout_s:
        flags["timeout_s"] = settings.timeout_s
    if settings.shards_file is not None:
        flags["shards_file"] = settings.shards_file

    def read() -> ServerSettings:
        found = read_settings(flags, config)
        if found.processes > 1:
            log_process_ids()
        return found

    log_at_least_info(settings)
    found, shards = read(), settings.servers_beside_file()
    check_named(found, shards, config)
    shards.export()
    export_archive(settings.archive())  # the processes read no file
    command = [sys.executable, "-m", "pinlater", *["-v"] * settings.verbosity, "server"]
    return finish(settings, "server", run_server(found, shards, command, read))


def _print_hash() -> int:
    """Prints the hash of a password: of the one that the user types twice, else of the first line of stdin."""
    from pinlater.server.passwords import hash_password

    if sys.stdin.isatty():
        password = click.prompt("Password of deleteQueue", hide_input=True, confirmation_prompt="Again", err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        usage("--hash-password: expected a password, got an empty line")
    click.echo(hash_password(password))
    return 0
