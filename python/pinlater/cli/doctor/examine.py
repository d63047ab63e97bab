"""All checks of all servers and queues."""

from __future__ import annotations

from collections.abc import Sequence

from pinlater.cli.doctor.archive_checks import ArchiveChecks
from pinlater.cli.doctor.check_result import OK, CheckResult
from pinlater.cli.doctor.queue_checks import check_queues
from pinlater.cli.doctor.reached_server import reached_servers
from pinlater.cli.doctor.server_checks import check_server
from pinlater.cli.doctor.shard_checks import check_shards
from pinlater.client.base import ClientSettings


def examine(settings: ClientSettings, queues: Sequence[str] = ()) -> list[CheckResult]:
    """Checks every server, the archive, and the named queues (all if none is named) if all servers answer."""
    results: list[CheckResult] = []
    archive = ArchiveChecks(settings.database)
    with reached_servers(settings, queues) as (reached, reachable):
        for server in settings.session.servers:
            results += [CheckResult(OK, repr(server), "chosen", server.origin), reachable[server]]
            results += check_shards(settings.session, server)
            if server in reached:
                results += check_server(reached[server])
                results += archive.of_server(reached[server])
        results += archive.of_database()
        if len(reached) == len(reachable):
            results += check_queues(settings.session, reached, queues, archive)
    return results
