"""Shards, and what a client remembers of each queue on each shard.

Promises that clients with the same shards place a key on the same shard (rendezvous hashing), and that a session whose
shards change disturbs no call under way: a call goes on with the shards that it has read. What a client remembers
(configurations, numbers of due jobs) may be out of date; scripts check it.
"""

from __future__ import annotations

import os
import re
import secrets
import weakref
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, TypeAlias

from pinlater._core import CommandHead
from pinlater.model.errors import InvalidArgument
from pinlater.model.queue_config import QueueConfig, StoredConfig, check_queue_name, check_shard_name
from pinlater.model.text import did_you_mean
from pinlater.model.urls import hide_urls, shown_url
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
#: The origin of servers that a program or a command line names, and of those that nobody names.
ARGUMENT: Final = "from an argument"
DEFAULT: Final = "the default"
#: A session forgets unknown queues when it remembers so many queue shards, and twice as many as it kept last time.
MAX_UNKNOWN: Final = 1_000
_NAMED: Final = re.compile(r"(?:^|,)\s*([A-Za-z0-9_-]{1,32}(?::\w*)?)=(?=\w+://)")
#: Stands behind the name of a shard in a text, and is a key of its table.
DEQUEUE_ONLY: Final = "dequeue_only"
_KEYS: Final = ("url", DEQUEUE_ONLY)

#: By the name of each shard its URL, or a table: `{"url": "redis://b:6379", "dequeue_only": True}`.
NamedShards: TypeAlias = Mapping[str, str | Mapping[str, Any]]


class ChosenShards(dict[str, str]):
    """URLs by the names of shards, and where the choice came from.

    origin: a short text for messages: `from an argument`, `from PINLATER_URL`, `from /srv/shop/pinlater.toml`, or
    `the default`.
    dequeue_only: the names of those that take no new jobs.
    """

    def __init__(self, urls: Mapping[str, str], origin: str, dequeue_only: Iterable[str] = ()) -> None:
        super().__init__(urls)
        self.origin = origin
        self.dequeue_only = frozenset(dequeue_only)

    def __str__(self) -> str:
        """For logs: `redis://a:6379 (from PINLATER_URL)`."""
        named = (f"{name}={shown_url(url)}{self._mark(name, ' (dequeue-only)')}" for name, url in self.items())
        shown = shown_url(self["1"]) if [*self] == ["1"] and not self.dequeue_only else ", ".join(named)
        return f"{shown} ({self.origin})"

    def export(self) -> None:
        """Makes this the choice of the processes that this process starts, and of its own clients."""
        names = {name: name + self._mark(name, f":{DEQUEUE_ONLY}") for name in self}
        os.environ[URL_VARIABLE] = url = ",".join(f"{names[name]}={url}" for name, url in self.items())
        os.environ[ORIGIN_VARIABLE] = f"{_checksum(url)} {self.origin}"

    def _mark(self, name: str, mark: str) -> str:
        return mark if name in self.dequeue_only else ""


class Shard:
    """A named namespace on one server.

    dequeue_only: it takes no new jobs. Sessions change it while they run.
    """

    __slots__ = ("dequeue_only", "name", "server")

    def __init__(self, name: str, server: Server, *, dequeue_only: bool = False) -> None:
        self.name = check_shard_name(name)
        self.server = server
        self.dequeue_only = dequeue_only

    def __repr__(self) -> str:
        return f"shard {self.name} ({self.server})"


class QueueShard:
    """A queue on a shard, and what one session remembers of it. All times are monotonic seconds.

    Its lanes have random bytes of their own. So a queue shard that was forgotten and made again repeats no lane.

    - stored: its configuration, as last read.
    - left: due jobs a priority, as of left_at_s.
    - highest_id: the highest id in any reply.
    - job_bytes: of the records of the last claim's jobs, on average.
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
        "job_bytes",
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
        self.job_bytes = 0
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
    def is_known(self) -> bool:
        """Whether the queue exists here, as far as the session knows."""
        return self.stored is not None and not self.stored.deleted

    @property
    def is_kept(self) -> bool:
        """Whether the session must remember it: the queue exists, or a claim or a call waits for something."""
        return self.is_known or bool(self.blocking_list or self.lost_claims.remembered or self.waiters)

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
        #: All shards by name. Those that take new jobs, by name. The servers of all.
        self.shards: dict[str, Shard] = {}
        self.taking: list[str] = []
        self.servers: list[Server] = []
        #: Servers that no shard uses any more. Calls under way may.
        self.former_servers: list[Server] = []
        #: The shards that jobs may be of, by name: with those that were removed, so that their jobs can be ended.
        self.shards_of_jobs: dict[str, Shard] = {}
        #: What keeps pending jobs outside Redis (operations/backlog.py); None: nothing does.
        self.backlog: Any = None
        #: The port of this process in its claim descriptors; 0: it has none, as a client.
        self.port = 0
        self.renew()
        self.change_shards(shards if isinstance(shards, ChosenShards) else ChosenShards(shards, ""))
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

    def change_shards(self, chosen: ChosenShards) -> list[Server]:
        """Uses these shards from now on. Calls under way end with the shards that they have.

        A shard with the name and URL of one until now is that one. Returns the servers that no shard uses any more.
        Raises InvalidArgument, and then nothing has changed.
        """
        shards, before = self._shards_of(chosen), self.servers
        for name, shard in shards.items():
            shard.dequeue_only = name in chosen.dequeue_only
        known = {**self.shards_of_jobs, **shards}
        # in this order: another thread that reads a list that was made anew must find the new shards
        self.shards_of_jobs, self.shards = known, shards
        self.taking = [name for name, shard in shards.items() if not shard.dequeue_only]
        self.chosen = chosen
        self.servers = list(dict.fromkeys(shard.server for shard in shards.values()))
        self._queues = {key: one for key, one in list(self._queues.items()) if one.shard is known.get(key[1])}
        self._queue_shards, self._configured = {}, {}
        every = dict.fromkeys([*self.former_servers, *before])
        self.former_servers = [server for server in every if server not in self.servers]
        for server in every:
            if not server.is_used:
                server.outage = None  # nobody has pinged it meanwhile
            server.is_used = server in self.servers
        return [server for server in before if not server.is_used]

    def candidates(self, chosen: ChosenShards) -> list[Shard]:
        """The shards that a change would add. Until it comes, their servers count as former ones. Raises
        InvalidArgument.
        """
        added = [shard for name, shard in self._shards_of(chosen).items() if self.shards.get(name) is not shard]
        for server in dict.fromkeys(shard.server for shard in added):
            if server not in self.servers:
                server.outage = None  # nobody pings it
                self.former_servers = list(dict.fromkeys([*self.former_servers, server]))
        return added

    def _shards_of(self, chosen: ChosenShards) -> dict[str, Shard]:
        if not chosen:
            raise InvalidArgument("shards: expected at least one name and URL, got none")
        servers = {server.url: server for server in (*self.former_servers, *self.servers)}
        found = {}
        for name, url in chosen.items():
            if url not in servers:
                check_url(url)
                servers[url] = Server(url, chosen.origin)
            known = self.shards_of_jobs.get(name)
            found[name] = known if known is not None and known.server is servers[url] else Shard(name, servers[url])
        return found

    def answers_again(self, server: Server) -> None:
        """Asks the shards of a server at once, which were passed over because it did not answer."""
        for queue_shard in list(self._queues.values()):
            if queue_shard.shard.server is server:
                queue_shard.silent_until_s = float("-inf")

    def queue_shard(self, queue: str, shard: str) -> QueueShard:
        """The queue shard of this queue on this shard. Raises InvalidArgument for a bad name."""
        # another type than str may have no hash
        known = self._queues.get((queue, shard)) if isinstance(queue, str) else None
        if known is None:
            check_queue_name(queue)
            if len(self._queues) >= self._most:
                self._forget_unknown()
            queues = self._queues  # before the shard: after a change it belongs to the new ones
            known = queues.setdefault((queue, shard), QueueShard(queue, self._shard(shard), self.id))
        return known

    def queue_shards(self, queue: str) -> list[QueueShard]:
        """The queue shards of a queue, in the order of the shards. Every caller gets the same list."""
        lists = self._queue_shards  # before the shards: after a change it belongs to the new ones
        known = lists.get(queue) if isinstance(queue, str) else None
        if known is None:
            known = lists[queue] = [self.queue_shard(queue, shard) for shard in self.shards]
        return known

    def known_queues(self) -> list[str]:
        """The names of the queues that this session has read from a shard."""
        return [queue for queue in list(self._queue_shards) if self.known_config(queue) is not None]

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
        shard = self.shards_of_jobs.get(name)
        if shard is None:
            known = ", ".join(self.shards)
            raise InvalidArgument(f"shard: expected one of {known}, got {name!r}")
        return shard


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
    shards: NamedShards | None,
    of_file: Callable[[], ChosenShards | None] = no_file,
) -> ChosenShards:
    """Shard names and their URLs, and where they come from. This is the only place that chooses.

    - url: one URL, or several shards as `1=redis://a:6379,2:dequeue_only=redis://b:6379`.
    - shards: names and URLs, or tables; not together with `url`. ChosenShards keep their origin.
    - of_file: reads the servers of the settings file.

    Without URL and shards, the environment variable PINLATER_URL counts, then the file, then the embedded server.
    `embedded://./data` is resolved against the current working directory.
    """
    if url is not None and shards is not None:
        raise InvalidArgument("expected a URL or shards, got both")
    if isinstance(shards, ChosenShards):
        return shards
    if shards is not None:
        return read_shards(shards, ARGUMENT)
    if url is not None:
        return split_url(url, ARGUMENT)
    if text := os.environ.get(URL_VARIABLE):
        return split_url(text, _origin_of(text))
    return of_file() or split_url(DEFAULT_URL, DEFAULT)


def read_shards(shards: object, origin: str, *, where: str = "", directory: Path | None = None) -> ChosenShards:
    """The shards of a mapping of names to URLs or tables. Raises InvalidArgument.

    where: the start of the message. directory: what relative paths are relative to; None: the working directory.
    """
    if not isinstance(shards, Mapping):
        raise InvalidArgument(f"{where}shards: expected names and URLs, got {shown_url(shards)}")
    urls: dict[str, str] = {}
    closed: list[str] = []
    for name, value in shards.items():
        table = _table(name, value, where)
        urls[name] = absolute(table["url"], directory)
        closed += [name] if table.get(DEQUEUE_ONLY) else []
    return ChosenShards(urls, origin, closed)


def _table(name: object, value: object, where: str) -> Mapping[str, Any]:
    """The table of a shard; that of a URL has nothing else."""
    if isinstance(value, str):
        return {"url": value}
    if not isinstance(value, Mapping):
        raise InvalidArgument(
            f"{where}shards: expected names and URLs, got {hide_urls(str(name))} = {shown_url(value)}"
        )
    part = f"{where}shards.{hide_urls(str(name))}"
    if unknown := [str(key) for key in value if key not in _KEYS]:
        near = did_you_mean(unknown[0], _KEYS)
        expected = f"{near + ' ' if near else ''}expected one of {', '.join(_KEYS)}"
        raise InvalidArgument(f"{part}: unknown key {hide_urls(unknown[0])!r}; {expected}")
    if not isinstance(value.get("url"), str):
        raise InvalidArgument(f"{part}: url: expected a URL, got {shown_url(value.get('url'))}")
    if not isinstance(value.get(DEQUEUE_ONLY, False), bool):
        raise InvalidArgument(f"{part}: {DEQUEUE_ONLY}: expected true or false, got {shown_url(value[DEQUEUE_ONLY])}")
    return value


def split_url(text: object, origin: str, directory: Path | None = None) -> ChosenShards:
    """The shards that the text of a URL names. directory: what relative paths are relative to; None: the working
    directory.
    """
    if not isinstance(text, str):
        raise InvalidArgument(f"server URL: expected a str, got {shown_url(text)}")
    names = list(_NAMED.finditer(text))
    if not names:
        return ChosenShards({"1": absolute(text, directory)}, origin)
    ends = [match.start() for match in names[1:]] + [len(text)]
    urls = [text[match.end() : end].strip().strip(",") for match, end in zip(names, ends, strict=True)]
    named = dict(named_shard(match[1], url) for match, url in zip(names, urls, strict=True))
    return read_shards(named, origin, directory=directory)


def named_shard(name: str, url: str) -> tuple[str, Mapping[str, Any]]:
    """The name and table of a shard, as texts have them. name: `2`, or `2:dequeue_only`. Raises InvalidArgument."""
    shard, colon, mark = name.partition(":")
    if colon and mark != DEQUEUE_ONLY:
        raise InvalidArgument(f"shards: expected NAME=URL or NAME:{DEQUEUE_ONLY}=URL, got {hide_urls(name)}=…")
    return shard, {"url": url, DEQUEUE_ONLY: bool(colon)}


def _origin_of(text: str) -> str:
    """Where the value of PINLATER_URL came from: the variable itself, or what the command that set it read."""
    checksum, _, origin = os.environ.get(ORIGIN_VARIABLE, "").partition(" ")
    return origin if checksum == _checksum(text) else f"from {URL_VARIABLE}"


def _checksum(text: str) -> str:
    return blake2b(text.encode(errors="surrogateescape"), digest_size=8).hexdigest()
