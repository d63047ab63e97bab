"""Shards: where the jobs of a queue may be, and what a client knows of each place.

Promises that placement by key is the same in every client that has the same shard names (rendezvous hashing). What it
knows of a queue (its configuration, how much is left) is a memory that scripts correct.
"""

from __future__ import annotations

import os
import re
import secrets
import weakref
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from pinlater._core import CommandHead
from pinlater.model.errors import InvalidArgument, OutcomeUnknown
from pinlater.model.queue_config import QueueConfig, StoredConfig, check_queue_name, check_shard_name
from pinlater.store.keys import wake_channel
from pinlater.store.lanes import LanePool
from pinlater.store.scripts import load_scripts
from pinlater.store.servers import Server, absolute, check_url

URL_VARIABLE: Final = "PINLATER_URL"
DEFAULT_URL: Final = "embedded://"
_NAMED: Final = re.compile(r"(?:^|,)\s*([A-Za-z0-9_-]{1,32})=(?=\w+://)")


class Shard:
    """A named namespace on one server."""

    __slots__ = ("name", "server")

    def __init__(self, name: str, server: Server) -> None:
        self.name = check_shard_name(name)
        self.server = server

    def __repr__(self) -> str:
        return f"shard {self.name} ({self.server})"


class QueueShard:
    """A queue on a shard, as one session knows it.

    stored: its configuration when last read. left, left_at_s: due jobs a level when last told, and when (monotonic). h:
    the highest id answered. silent_until_s: its server did not answer; others are preferred until then (monotonic).
    """

    __slots__ = (
        "_heads",
        "blocking_list",
        "h",
        "lanes",
        "late_claims",
        "left",
        "left_at_s",
        "plain_claims",
        "queue",
        "shard",
        "silent_until_s",
        "stored",
        "unknown_claim",
        "unknown_sent_s",
        "waiters",
    )

    def __init__(self, queue: str, shard: Shard, session: bytes) -> None:
        self.queue = queue
        self.shard = shard
        self.stored: StoredConfig | None = None
        self.lanes = LanePool(session)
        self.left: list[int] = []
        self.left_at_s = float("-inf")
        self.silent_until_s = float("-inf")
        #: Claims in a row that were answered by a plain job: then the next job, too, is most likely there and plain.
        self.plain_claims = 0
        #: A claim whose answer was lost: the next claim asks for it first, so that its jobs do not wait for their lease
        #: to end.
        self.unknown_claim: OutcomeUnknown | None = None
        self.unknown_sent_s = 0.0
        #: Token -> when its claim was sent (monotonic s), of claims whose answer came by a later one: their lease runs
        #: since then. Who takes the jobs takes the entry.
        self.late_claims: dict[bytes, float] = {}
        #: The list on which this client blocks with its next claim behind; b"": it does not.
        self.blocking_list = b""
        #: Calls of this client that wait for a ring from here.
        self.waiters: set[object] = set()
        self.h = b""
        self._heads: dict[tuple[str, int, bool], CommandHead] = {}

    def __repr__(self) -> str:
        return f"queue {self.queue!r} on {self.shard}"

    def keys(self, verb: str, priorities: int, *, common: bool = False) -> tuple[bytes, ...]:
        """KEYS of a script. common: of a call that needs no more than most do."""
        return load_scripts()[verb].names(self.queue, self.shard.name, priorities, common=common)

    def head(self, verb: str, priorities: int, *, common: bool = False) -> CommandHead:
        """EVALSHA of a script, up to its keys: the same in every call."""
        known = self._heads.get((verb, priorities, common))
        if known is None:
            keys = self.keys(verb, priorities, common=common)
            known = CommandHead(("EVALSHA", load_scripts()[verb].sha, len(keys), *keys))
            self._heads[verb, priorities, common] = known
        return known


class Session:
    """One client object in one process: its random name, its shards, and what it knows of queues.

    forked: this process is a fork of the one that it belongs to; renew() makes it this one's.
    """

    def __init__(self, shards: Mapping[str, str]) -> None:
        if not shards:
            raise InvalidArgument("shards: expected at least one name and URL, got none")
        servers: dict[str, Server] = {}
        for url in shards.values():
            if url not in servers:
                check_url(url)
                servers[url] = Server(url)
        self.shards = {name: Shard(name, servers[url]) for name, url in shards.items()}
        self.servers = list(servers.values())
        self.renew()
        _sessions.add(self)

    def renew(self) -> None:
        """Becomes a new session, so that two processes never share a lane."""
        self.id = secrets.token_bytes(8)
        self.channel = wake_channel(self.id)
        self.claims = 0
        self._queues: dict[tuple[str, str], QueueShard] = {}
        self._queue_shards: dict[str, list[QueueShard]] = {}
        self._told: dict[str, QueueShard] = {}
        self.forked = False

    def queue_shard(self, queue: str, shard: str) -> QueueShard:
        """What is known of a queue on a shard."""
        # what is no text may have no hash
        known = self._queues.get((queue, shard)) if isinstance(queue, str) else None
        if known is None:
            made = QueueShard(check_queue_name(queue), self._shard(shard), self.id)
            known = self._queues.setdefault((queue, shard), made)
        return known

    def queue_shards(self, queue: str) -> list[QueueShard]:
        """What is known of a queue, on every shard, in the shards' order. One list for all who ask."""
        known = self._queue_shards.get(queue) if isinstance(queue, str) else None
        if known is None:
            known = self._queue_shards[queue] = [self.queue_shard(queue, shard) for shard in self.shards]
        return known

    def known_config(self, queue: str) -> QueueConfig | None:
        """A queue's configuration, if one of its shards told it."""
        told = self._told.get(queue) if isinstance(queue, str) else None
        if told is not None and told.stored is not None and not told.stored.deleted:
            return told.stored.config
        for queue_shard in self.queue_shards(queue):
            if queue_shard.stored is not None and not queue_shard.stored.deleted:
                self._told[queue] = queue_shard
                return queue_shard.stored.config
        return None

    def _shard(self, name: str) -> Shard:
        try:
            return self.shards[name]
        except KeyError:
            known = ", ".join(self.shards)
            raise InvalidArgument(f"shard: expected one of {known}, got {name!r}") from None


_sessions: Final = weakref.WeakSet[Session]()


def _forked() -> None:
    for session in _sessions:
        session.forked = True


os.register_at_fork(after_in_child=_forked)


def shard_for_key(key: bytes, shards: list[str]) -> str:
    """Rendezvous hashing: the shard on which all jobs of this key are placed."""
    return max(
        shards,
        key=lambda shard: (
            blake2b(key, digest_size=8, person=shard.encode()[:16], salt=shard.encode()[16:]).digest(),
            shard,
        ),
    )


def resolve_shards(url: str | None, shards: Mapping[str, str] | None) -> dict[str, str]:
    """Shard names and URLs from what the caller gave: a URL, a mapping, or nothing (PINLATER_URL, else the embedded
    server).

    A URL may also read `1=redis://a:6379,2=redis://b:6379`. `embedded://./data` is below the working directory of now.
    """
    if url is not None and shards is not None:
        raise InvalidArgument("expected a URL or shards, got both")
    if shards is not None:
        if not isinstance(shards, Mapping):
            raise InvalidArgument(f"shards: expected a mapping of names to URLs, got {shards!r}")
        return {name: absolute(url) for name, url in shards.items()}
    text = url if url is not None else os.environ.get(URL_VARIABLE) or DEFAULT_URL
    if not isinstance(text, str):
        raise InvalidArgument(f"server URL: expected a str, got {text!r}")
    names = list(_NAMED.finditer(text))
    if not names:
        return {"1": absolute(text)}
    ends = [match.start() for match in names[1:]] + [len(text)]
    urls = [text[match.end() : end].strip().strip(",") for match, end in zip(names, ends, strict=True)]
    return {match[1]: absolute(url) for match, url in zip(names, urls, strict=True)}
