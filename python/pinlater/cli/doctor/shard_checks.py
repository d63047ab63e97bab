"""Checks of shards: which of them take new jobs."""

from __future__ import annotations

from collections.abc import Iterator

from pinlater.cli.doctor.check_result import ERROR, NOTE, CheckResult
from pinlater.store.servers import Server
from pinlater.store.shards import Session


def check_shards(session: Session, server: Server) -> Iterator[CheckResult]:
    """Checks the shards of one server."""
    closed = [name for name, shard in session.shards.items() if shard.server is server and shard.dequeue_only]
    if not closed:
        return
    found = f"shard {', '.join(closed)} takes no new jobs"
    if session.taking:
        yield CheckResult(NOTE, repr(server), "dequeue-only", found)
    else:
        yield CheckResult(ERROR, repr(server), "dequeue-only", f"{found}, and no other does", "add a shard that does")
