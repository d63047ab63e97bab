"""Whether servers are healthy, by consecutive pings. Flows and plain state, no I/O.

Promises:
- A ping waits PING_S for its answer at most.
- A server is suspect from its first failed ping to its next answered one. New jobs and claims go to the others.
- A server changes its state only after so many pings in a row. An unhealthy one gets pings alone: the drivers refuse
  other requests to it at once.
Risks: a server that answers pings and nothing else counts as healthy. One that works on a script for longer than PING_S
is suspect for a ping.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import Final

from pinlater.model.errors import NoHealthyShards, ShardUnhealthy
from pinlater.model.queue_config import check_integer
from pinlater.store.effects import Flow, NoAnswer, ReplyError, Send
from pinlater.store.servers import Server
from pinlater.store.shards import Session

log: Final = logging.getLogger("pinlater.shards")

#: Seconds that a ping waits for its answer. A script of a call ends long before.
PING_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRules:
    """When a server changes its state.

    failures: so many failed pings in a row make it unhealthy. successes: so many make it healthy again.
    """

    failures: int = 6
    successes: int = 6

    def __post_init__(self) -> None:
        check_integer("failures", self.failures, 1, 1_000)
        check_integer("successes", self.successes, 1, 1_000)


class ShardHealth:
    """The health of one server and of all shards on it."""

    def __init__(self, rules: HealthRules) -> None:
        self._rules = rules
        self.is_healthy = True
        #: Whether the last ping failed.
        self.is_suspect = False
        #: How many pings in a row spoke against its state.
        self._against = 0

    def note(self, answered: bool) -> bool:
        """Notes the outcome of a ping. Returns whether the state has changed."""
        self.is_suspect = not answered
        if answered == self.is_healthy:
            self._against = 0
            return False
        self._against += 1
        if self._against < (self._rules.failures if self.is_healthy else self._rules.successes):
            return False
        self.is_healthy, self._against = answered, 0
        return True


class Health:
    """The health of all servers of a session."""

    def __init__(self, session: Session, rules: HealthRules | None = None) -> None:
        self._session, self._rules = session, rules or HealthRules()
        self._of: dict[Server, ShardHealth] = {}

    @property
    def states(self) -> dict[str, bool]:
        """Whether each shard is healthy, by name."""
        return {name: self._is_healthy(shard.server) for name, shard in self._session.shards.items()}

    def servers(self) -> list[Server]:
        """Those to ping now. Forgets those that no shard uses any more."""
        servers = self._session.servers
        if len(self._of) != len(servers) or any(server not in self._of for server in servers):
            for server in self._of:
                if server not in servers:
                    server.is_pinged = server.suspect = False
            self._of = {server: self._of.get(server) or ShardHealth(self._rules) for server in servers}
            for server in servers:
                server.is_pinged = True
            self._set_outages()
        return servers

    def ping(self, server: Server, deadline_s: float) -> Flow[None]:
        """Pings a server once, and notes the outcome. deadline_s: monotonic seconds."""
        why = yield from _why_no_pong(server, min(deadline_s, time.monotonic() + PING_S))
        health = self._of.get(server)
        if health is None:
            return
        has_changed = health.note(not why)
        was_suspect, server.suspect = server.suspect, health.is_suspect
        if has_changed:
            self._log(server, health, why)
            self._set_outages()
        if not why and (was_suspect or has_changed):
            self._session.answers_again(server)

    def _is_healthy(self, server: Server) -> bool:
        health = self._of.get(server)
        return health is None or health.is_healthy

    def _log(self, server: Server, health: ShardHealth, why: str) -> None:
        if health.is_healthy:
            log.info("shard %s is healthy again: %d pings succeeded", self._names(server), self._rules.successes)
        else:
            what = "shard %s is unhealthy: %d pings failed, at last: %s"
            log.warning(what, self._names(server), self._rules.failures, why)

    def _set_outages(self) -> None:
        servers = self._session.servers
        unhealthy = [server for server in servers if not self._is_healthy(server)]
        kind = NoHealthyShards if len(unhealthy) == len(servers) else ShardUnhealthy
        for server in servers:
            server.outage = partial(kind, self._message(server)) if server in unhealthy else None

    def _message(self, server: Server) -> str:
        return f"shard {self._names(server)} is unhealthy: it gets pings alone until {self._rules.successes} succeed"

    def _names(self, server: Server) -> str:
        names = [name for name, shard in self._session.shards.items() if shard.server is server]
        return f"{', '.join(names)} ({server})"


def _why_no_pong(server: Server, deadline_s: float) -> Flow[str]:
    """Why a ping failed; "" if it succeeded."""
    answer = (yield [Send(server, [("PING",)], deadline_s, ping=True)])[0][0]
    if isinstance(answer, NoAnswer):
        return str(answer.error)
    if isinstance(answer, ReplyError):
        return answer.text
    return ""
