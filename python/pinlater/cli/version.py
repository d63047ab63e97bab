"""`pinlater version`: the versions here and on the servers.

Promises exit code 0 even if a server does not answer. Thrift servers are not asked. Risks: with embedded:// the command
starts the server.
"""

from __future__ import annotations

import platform

import click
import redis

import pinlater._core as _core
from pinlater._core import __version__
from pinlater.cli.command_base import DONE, Command
from pinlater.cli.doctor.reached_server import server_versions
from pinlater.cli.output import print_facts, print_json
from pinlater.cli.settings import Settings, common_options, json_option


@click.command("version", cls=Command)
@common_options(hidden=True)
@json_option
@click.pass_obj
def version(settings: Settings) -> int:
    """Print the versions of PinLater, Python, redis-py and the Redis servers."""
    versions = {
        "pinlater": __version__,
        "core": _core.__version__,
        "python": platform.python_version(),
        "redis_py": redis.__version__,
    }
    # the Thrift interface has no versions
    servers = {} if settings.on_thrift else server_versions(settings.client_settings())
    if settings.as_json:
        print_json({**versions, "servers": servers})
    else:
        named = [(name.replace("redis_py", "redis-py"), value) for name, value in versions.items()]
        print_facts([*named, *((url, found or "not reached") for url, found in servers.items())])
    return DONE
