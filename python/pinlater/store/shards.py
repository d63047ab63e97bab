"""Shards, and what a client remembers of each queue on each shard.

Promises that clients with the same shard names place a key on the same shard (rendezvous hashing). What a client
remembers (configurations, numbers of due jobs) may be out of date; scripts check it.
"""

from __future__ import annotations

import os
import re
import secrets
import weakref
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from pinlater._core import CommandHead
from pinlater.model.errors import InvalidArgument
from pinlater.model.queue_config import QueueConfig, StoredConfig, check_queue_name, check_shard_name
from pinlater.model.urls import shown_url
from pinlater.store.allowance import Allowance
from pinlater.store.keys import LIST_MARK, wake_channel
from pinlater.store.lanes import LanePool
from pinlater.store.lost_claims import LostClaims
from pinlater.store.scripts import load_scripts
from pinlater.store.servers import Server, absolute, check_url

URL_VARIABLE: Final = "PINLATER_URL"
#: Where a command found the servers that it put into PINLATER_URL, behind a checksum of that value.
ORIGIN_VARIABLE: Final = "PINLATER_URL_ORIGIN"
DEFAULT_URL: Final = "embedded://"
#: The origin of servers that a program or a command line names.
ARGUMENT: Final = "from an argument"
#: A session forgets unknown queues when it remembers so many queue shards, and twice as many as it kept last time.
MAX_UNKNOWN: Final = 1_000
_NAMED: Final = re.compile(r"(?:^|,)\s*([A-Za-z0-9_-]{1,32})=(?=\w+://)")


class ChosenShards(dict[str, str]):
    """URLs by the names of shards, and where the choice came from.

    origin: a short text for messages: `from an argument`, `from PINLATER_URL`, `from /srv/shop/pinlater.toml`, or
    `the default`.
    """

    def __init__(self, urls: Mapping[str, str], origin: str) -> None:
        super().__init__(urls)
        self.origin = origin

    def __str__(self) -> str:
        """For logs: `redis://a:6379 (from PINLATER_URL)`."""
        named = (f"{name}={shown_url(url)}" for name, url in self.items())
        shown = shown_url(self["1"]) if [*self] == ["1"] else ", ".join(named)
        return f"{shown} ({self.origin})"

    def export(self) -> None:
        """Makes this the choice of the processes that this process starts, and of its own clients."""
        os.environ[URL_VARIABLE] = url = ",".join(f"{name}={url}" for name, url in self.items())
        os.environ[ORIGIN_VARIABLE] = f"{_checksum(url)} {self.origin}"


class Shard:
    """A named namespace on one server."""

    __slots__ = ("name", "server")

    def __init__(self, name: str, server: Server) -> None:
        self.name = check_shard_name(name)
        self.server = server

    def __repr__(self) -> str:
        return f"shard {self.name} ({self.server})"


class QueueShard:
    """A queue on a shard, and what one session remembers of it. All times are monotonic seconds.

    Its lanes have random bytes of their own. So a queue shard that was forgotten and made again repeats no lane.

    - stored: its configuration, as last read.
    - left: due jobs a priority, as of left_at_s.
    - highest_id: the highest id in any reply.
    - silent_until_s: its server did not answer; the session prefers other shards until then.
    - simple_claims: how many claims in a row got one simple job; the next job is then most likely a simple one too.
    - lost_claims: claims whose answers were lost.
    - allowance: if this is the home shard of the queue's limits: the tokens of this client.
    - blocking_list: the list on which this client's blocking claim waits; b"" if it makes none.
    - channel: the channel on which this client is notified.
    - waiters: calls of this client that wait for a notification from here.
    """

    __slots__ = (
        "_heads",
        "_session",
        "allowance",
        "blocking_list",
        "channel",
        "highest_id",
        "lanes",
        "left",
        "left_at_s",
        "lost_claims",
        "queue",
        "shard",
        "silent_until_s",
        "simple_claims",
        "stored",
        "waiters",
    )

    def __init__(self, queue: str, shard: Shard, session: bytes) -> None:
        self.queue = queue
        self.shard = shard
        self.stored: StoredConfig | None = None
        self.lanes = LanePool(secrets.token_bytes(8))
        self.left: list[int] = []
        self.left_at_s = float("-inf")
        self.silent_until_s = float("-inf")
        self.simple_claims = 0
        self.lost_claims = LostClaims()
        self.allowance = Allowance()
        self.blocking_list = b""
        self.channel = wake_channel(queue, shard.name, session)
        self._session = session.hex().encode()
        self.waiters: set[object] = set()
        self.highest_id = b""
        self._heads: dict[tuple[str, int, bool], CommandHead] = {}

    def __repr__(self) -> str:
        return f"queue {self.queue!r} on {self.shard}"

    @property
    def waiter(self) -> bytes:
        """The name by which this client waits for jobs. Scripts make its channel or its list of it."""
        return self._session + LIST_MARK if self.blocking_list else self._session

    @property
    def is_kept(self) -> bool:
        """Whether the session must remember it: the queue exists, or a claim or a call waits for something."""
        exists = self.stored is not None and not self.stored.deleted
        return exists or bool(self.blocking_list or self.lost_claims.remembered or self.waiters)

    def keys(self, verb: str, priorities: int, *, common: bool = False) -> tuple[bytes, ...]:
        """KEYS of a script. common: only the keys that most calls need."""
        return load_scripts()[verb].names(self.queue, self.shard.name, priorities, common=common)

    def head(self, verb: str, priorities: int, *, common: bool = False) -> CommandHead:
        """The start of a script's EVALSHA, up to the keys: the same in every call. common: as for `keys`."""
        known = self._heads.get((verb, priorities, common))
        if known is None:
            keys = self.keys(verb, priorities, common=common)
            known = CommandHead(("EVALSHA", load_scripts()[verb].sha, len(keys), *keys))
            self._heads[verb, priorities, common] = known
        return known


class Session:
    """One client object in one process: its random name, its shards, and what it remembers of queues.

    forked: this process is a fork, and the session is still its parent's; renew() makes a new one.
    """

    def __init__(self, shards: Mapping[str, str]) -> None:
        if not shards:
            raise InvalidArgument("shards: expected at least one name and URL, got none")
        servers: dict[str, Server] = {}
        origin = shards.origin if isinstance(shards, ChosenShards) else ""
        for url in shards.values():
            if url not in servers:
                check_url(url)
                servers[url] = Server(url, origin)
        self.shards = {name: Shard(name, servers[url]) for name, url in shards.items()}
        self.servers = list(servers.values())
        #: What keeps pending jobs outside Redis (operations/backlog.py); None: nothing does.
        self.backlog: Any = None
        self.renew()
        _sessions.add(self)

    def renew(self) -> None:
        """Starts a new session, so that two processes never share a lane."""
        self.id = secrets.token_bytes(8)
        self.claims = 0
        self._queues: dict[tuple[str, str], QueueShard] = {}
        self._queue_shards: dict[str, list[QueueShard]] = {}
        self._configured: dict[str, QueueShard] = {}
        self._most = MAX_UNKNOWN
        self.forked = False

    def queue_shard(self, queue: str, shard: str) -> QueueShard:
        """The queue shard of this queue on this shard. Raises InvalidArgument for a bad name."""
        # another type than str may have no hash
        known = self._queues.get((queue, shard)) if isinstance(queue, str) else None
        if known is None:
            new = QueueShard(check_queue_name(queue), self._shard(shard), self.id)
            if len(self._queues) >= self._most:
                self._forget_unknown()
            known = self._queues.setdefault((queue, shard), new)
        return known

    def queue_shards(self, queue: str) -> list[QueueShard]:
        """The queue shards of a queue, in the order of the shards. Every caller gets the same list."""
        known = self._queue_shards.get(queue) if isinstance(queue, str) else None
        if known is None:
            known = self._queue_shards[queue] = [self.queue_shard(queue, shard) for shard in self.shards]
        return known

    def known_config(self, queue: str) -> QueueConfig | None:
        """A queue's configuration, if this session has read it from a shard."""
        found = self._configured.get(queue) if isinstance(queue, str) else None
        if found is not None and found.stored is not None and not found.stored.deleted:
            return found.stored.config
        for queue_shard in self.queue_shards(queue):
            if queue_shard.stored is not None and not queue_shard.stored.deleted:
                self._configured[queue] = queue_shard
                return queue_shard.stored.config
        return None

    def _forget_unknown(self) -> None:
        """Forgets queues that were not found or were deleted, so that names which a caller makes up take no memory for
        ever. A call that uses one of them goes on with it.
        """
        kept = {queue_shard.queue for queue_shard in list(self._queues.values()) if queue_shard.is_kept}
        self._queues = {key: known for key, known in list(self._queues.items()) if key[0] in kept}
        self._queue_shards = {queue: known for queue, known in list(self._queue_shards.items()) if queue in kept}
        self._configured = {queue: known for queue, known in list(self._configured.items()) if queue in kept}
        self._most = max(MAX_UNKNOWN, 2 * len(self._queues))

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
    """The shard of all jobs with this key (rendezvous hashing)."""
    return max(
        shards,
        key=lambda shard: (
            blake2b(key, digest_size=8, person=shard.encode()[:16], salt=shard.encode()[16:]).digest(),
            shard,
        ),
    )


def no_file() -> ChosenShards | None:
    """Stands for a settings file that names no servers."""
    return None


def resolve_shards(
    url: str | None,
    shards: Mapping[str, str] | None,
    of_file: Callable[[], ChosenShards | None] = no_file,
) -> ChosenShards:
    """Shard names and their URLs, and where they come from. This is the only place that chooses.

    - url: one URL, or several shards as `1=redis://a:6379,2=redis://b:6379`.
    - shards: names and URLs; not together with `url`. ChosenShards keep their origin.
    - of_file: reads the servers of the settings file.

    Without URL and shards, the environment variable PINLATER_URL counts, then the file, then the embedded server.
    `embedded://./data` is resolved against the current working directory.
    """
    if url is not None and shards is not None:
        raise InvalidArgument("expected a URL or shards, got both")
    if isinstance(shards, ChosenShards):
        return shards
    if shards is not None:
        if not isinstance(shards, Mapping):
            raise InvalidArgument(f"shards: expected a mapping of names to URLs, got {shown_url(shards)}")
        return ChosenShards({name: absolute(url) for name, url in shards.items()}, ARGUMENT)
    if url is not None:
        return ChosenShards(split_url(url), ARGUMENT)
    if text := os.environ.get(URL_VARIABLE):
        return ChosenShards(split_url(text), _origin_of(text))
    return of_file() or ChosenShards(split_url(DEFAULT_URL), "the default")


def split_url(text: object, directory: Path | None = None) -> dict[str, str]:
    """The shards that the text of a URL names. directory: what relative paths are relative to; None: the working
    directory.
    """
    if not isinstance(text, str):
        raise InvalidArgument(f"server URL: expected a str, got {shown_url(text)}")
    names = list(_NAMED.finditer(text))
    if not names:
        return {"1": absolute(text, directory)}
    ends = [match.start() for match in names[1:]] + [len(text)]
    urls = [text[match.end() : end].strip().strip(",") for match, end in zip(names, ends, strict=True)]
    return {match[1]: absolute(url, directory) for match, url in zip(names, urls, strict=True)}


def _origin_of(text: str) -> str:
    """Where the value of PINLATER_URL came from: the variable itself, or what the command that set it read."""
    checksum, _, origin = os.environ.get(ORIGIN_VARIABLE, "").partition(" ")
    return origin if checksum == _checksum(text) else f"from {URL_VARIABLE}"


def _checksum(text: str) -> str:
    return blake2b(text.encode(errors="surrogateescape"), digest_size=8).hexdigest()
