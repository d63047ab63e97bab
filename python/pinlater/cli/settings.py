"""The options of every command: servers, timeout, log level, JSON.

Promises that an option may stand before or after the command's name. If it is given twice, the last one counts.
"""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click

from pinlater.cli.times import SECONDS
from pinlater.client import settings_file
from pinlater.client.base import MAX_TIMEOUT_S, ClientSettings
from pinlater.client.client import Client
from pinlater.model.errors import InvalidArgument, NotOnThrift
from pinlater.model.urls import shown_url
from pinlater.server.connect import thrift_url
from pinlater.server.thrift_url import SCHEMES, is_thrift
from pinlater.store.archive_url import ARCHIVE_VARIABLE, ArchiveUrl, export_archive
from pinlater.store.servers import REMOTE_SCHEMES, check_scheme
from pinlater.store.shards import URL_VARIABLE, ChosenShards, named_shard

if TYPE_CHECKING:
    from pinlater.server.thrift_client import ThriftClient

F = TypeVar("F", bound=Callable[..., Any])

#: What commands of queues and jobs work with.
AnyClient: TypeAlias = "Client | ThriftClient"
#: Schemes that a command takes. It takes memory:// too, but starts with an empty store each time.
REDIS_SCHEMES: Final = (*REMOTE_SCHEMES, "embedded://")
#: Advice for what Thrift servers lack. A command that names one of several shards would act on a part of a queue.
ON_REDIS: Final = (
    "name the Redis servers of the service: --shard 1=redis://host:6379 for each shard, or --shards-file FILE"
)
LOG_LEVELS: Final = (logging.WARNING, logging.INFO, logging.DEBUG)
LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _Plain(logging.Handler):
    """Prints messages on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        sys.stderr.write(record.getMessage() + "\n")


_PLAIN: Final = _Plain()


def show_starts(*, plain: bool) -> None:
    """Whether the start of an empty embedded server is a line on stderr, as a command without -v has no log of it."""
    log = logging.getLogger("pinlater.embedded")
    log.setLevel(logging.INFO if plain else logging.NOTSET)
    log.propagate = not plain
    (log.addHandler if plain else log.removeHandler)(_PLAIN)


@dataclass
class Settings:
    """The options that the user chose."""

    url: str | None = field(default=None, repr=False)
    shards: dict[str, str | Mapping[str, Any]] = field(default_factory=dict, repr=False)
    shards_file: str | None = None
    archive_url: str | None = field(default=None, repr=False)
    timeout_s: float = 10.0
    verbosity: int = 0
    as_json: bool = False

    @property
    def named(self) -> bool:
        """Whether the command line names servers."""
        return self.url is not None or bool(self.shards) or self.shards_file is not None

    def servers(self) -> ChosenShards:
        """The shards of the command line, else of PINLATER_URL, else of TOML, else the default.

        Raises NotOnThrift if they are Thrift servers.
        """
        return check_redis(_with_schemes(self._chosen(), REDIS_SCHEMES))

    def servers_beside_file(self) -> ChosenShards:
        """See servers(); --shards-file does not count. For the command that watches that file."""
        return check_redis(_with_schemes(settings_file.servers(self.url, self.shards or None), REDIS_SCHEMES))

    def _chosen(self) -> ChosenShards:
        if self.shards_file is None:
            return settings_file.servers(self.url, self.shards or None)
        if self.url is not None or self.shards:
            raise InvalidArgument("servers: expected --shards-file, or --url or --shard, got both")
        from pinlater.server.shards_file import ShardsFile  # few commands need it

        return ShardsFile(Path(self.shards_file)).read()

    def _thrift_url(self) -> str | None:
        """The URL of the Thrift servers; None: they are Redis servers."""
        return thrift_url(_with_schemes(self._chosen(), (*REDIS_SCHEMES, *SCHEMES)))

    @property
    def on_thrift(self) -> bool:
        """Whether the servers are Thrift servers."""
        return self._thrift_url() is not None

    def archive(self) -> ArchiveUrl | None:
        """The archive of the command line, else of PINLATER_ARCHIVE_URL, else of TOML, else none."""
        return settings_file.archive(self.archive_url)

    def export_archive(self) -> None:
        """Makes the archive of the command line, if it names one, that of all clients of this process and of those that
        it starts.
        """
        if self.archive_url is not None:
            export_archive(self.archive())

    def client(self) -> Client:
        """A client for one command."""
        return Client(shards=self.servers(), timeout_s=self.timeout_s, archive=self.archive())

    def either_client(self, *lacking: str) -> AnyClient:
        """A client for a command that Thrift servers can carry out too.

        lacking: what the command line has and the Thrift interface lacks, such as `--wait`.
        """
        found = self._thrift_url()
        if found is None:
            return self.client()
        if lacking:
            raise _not_on_thrift(lacking[0])
        from pinlater.server.thrift_client import ThriftClient

        # each command is a process: an ack must have the source of the dequeue before it
        source = f"pinlater-cli:{socket.gethostname()}"
        return ThriftClient(found, source=source, timeout_s=self.timeout_s)

    def client_settings(self) -> ClientSettings:
        """The settings of a client, for commands that make their own clients."""
        return ClientSettings(shards=self.servers(), timeout_s=self.timeout_s, archive=self.archive())


def _with_schemes(chosen: ChosenShards, expected: Sequence[str]) -> ChosenShards:
    """The chosen servers. Raises InvalidArgument for an unknown scheme. expected: those that its message names."""
    for url in chosen.values():
        if not is_thrift(url):
            check_scheme(url, expected)
    return chosen


def check_redis(chosen: ChosenShards) -> ChosenShards:
    """The chosen servers. Raises NotOnThrift if they are Thrift servers."""
    if thrift_url(chosen) is not None:
        raise _not_on_thrift()
    return chosen


def _not_on_thrift(lacking: str = "") -> NotOnThrift:
    """The error of the running command, or of a part of its command line."""
    context = click.get_current_context(silent=True)
    what = "this" if context is None else context.command_path
    return NotOnThrift(f"{what} {lacking}".strip(), ON_REDIS)


def settings_of(context: click.Context) -> Settings:
    """The settings of this run, shared by a command and its groups."""
    settings = context.find_root().ensure_object(Settings)
    assert isinstance(settings, Settings)
    return settings


def check_servers_of_app(settings: Settings, app: str, named: bool) -> None:
    """Raises a usage error if the command line and the app both name servers. named: whether the app does."""
    if named and settings.named:
        raise click.UsageError(f"{app} names its servers itself; leave out --url, --shard and --shards-file")


def common_options(*, hidden: bool, shown: Sequence[str] = ()) -> Callable[[F], F]:
    """Adds --url, --shard, --shards-file, --archive, --timeout and -v.

    hidden: leave them out of the command's help; the main help shows them.
    shown: those that the command's help shows too.
    """
    options = (
        click.option(
            "--url",
            metavar="URL",
            hidden=hidden,
            expose_value=False,
            callback=_set_url,
            help=f"The server: redis://, rediss://, unix:// or embedded://; 1=URL,2=URL for shards; thrift://host:9010 "
            f"for commands of queues and jobs. "
            f"[default: {URL_VARIABLE}, else url in pinlater.toml, else embedded://]",
        ),
        click.option(
            "--shard",
            metavar="NAME=URL",
            multiple=True,
            hidden=hidden,
            expose_value=False,
            callback=_add_shards,
            help="A shard; repeat it for each shard. Replaces --url. NAME:dequeue_only=URL takes no new jobs.",
        ),
        click.option(
            "--shards-file",
            metavar="FILE",
            hidden=hidden and "--shards-file" not in shown,
            expose_value=False,
            callback=_set_shards_file,
            help="The original's JSON file of shards, in place of --url and --shard. `pinlater server` watches it.",
        ),
        click.option(
            "--archive",
            metavar="URL",
            hidden=hidden,
            expose_value=False,
            callback=_set_archive,
            help=f"The MySQL archive: mysql://user@host/database. [default: {ARCHIVE_VARIABLE}, else archive in "
            "pinlater.toml, else none]",
        ),
        click.option(
            "--timeout",
            metavar="TIME",
            type=SECONDS,
            hidden=hidden,
            expose_value=False,
            callback=_set_timeout,
            help="Time limit of each call: 30s, 5m, or seconds. [default: 10s]",
        ),
        click.option(
            "-v",
            "--verbose",
            count=True,
            hidden=hidden,
            expose_value=False,
            callback=_set_verbosity,
            help="Log to stderr; -vv logs more.",
        ),
    )
    return _apply(options)


def json_option(function: F) -> F:
    """Adds --json, which every command and `pinlater` itself have."""
    option = click.option(
        "--json", is_flag=True, expose_value=False, callback=_set_json, help="Print JSON, for programs."
    )
    return option(function)


def _apply(options: tuple[Callable[[F], F], ...]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _set_url(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        settings_of(context).url = value


def _add_shards(context: click.Context, _: click.Parameter, values: tuple[str, ...]) -> None:
    for value in values:
        name, equals, url = value.partition("=")
        if not (name and equals and url):
            raise click.BadParameter(f"expected NAME=URL, such as 1=redis://localhost:6379, got {shown_url(value)}")
        try:
            shard, table = named_shard(name, url)
        except InvalidArgument as error:
            raise click.BadParameter(str(error)) from None
        settings_of(context).shards[shard] = table


def _set_shards_file(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        settings_of(context).shards_file = value


def _set_archive(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        settings_of(context).archive_url = value


def _set_timeout(context: click.Context, _: click.Parameter, value: float | None) -> None:
    if value is not None:
        if not 0 < value <= MAX_TIMEOUT_S:
            raise click.BadParameter(f"expected more than 0 and at most {MAX_TIMEOUT_S:.0f} s, got {value:g} s")
        settings_of(context).timeout_s = value


def _set_verbosity(context: click.Context, _: click.Parameter, value: int) -> None:
    settings = settings_of(context)
    settings.verbosity += value
    level = LOG_LEVELS[min(settings.verbosity, len(LOG_LEVELS) - 1)]
    logging.basicConfig(level=level, format=LOG_FORMAT)
    logging.getLogger().setLevel(level)
    show_starts(plain=level > logging.INFO)


def _set_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        settings_of(context).as_json = True
