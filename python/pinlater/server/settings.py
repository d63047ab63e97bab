"""The settings of a server.

Promises that a wrong value raises InvalidArgument before the server listens.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field, fields
from typing import Final

from pinlater.client.base import check_seconds
from pinlater.model.errors import InvalidArgument
from pinlater.model.queue_config import MAX_U32, QueueConfig, check_integer
from pinlater.running.probes import parse_address
from pinlater.server.passwords import check_hash

MIB: Final = 1024 * 1024
#: A terabyte.
MAX_BUFFERED: Final = 1024 * 1024 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of a server.

    - host, port: where clients connect. host "": every address. port 0: the system chooses one.
    - processes: how many processes answer.
    - http: HOST:PORT of the admin pages; "": none.
    - shards_file: path of the original's JSON file of shards; "": none.
    - queue_config_file: path of the original's JSON file of rates; "": none.
    - tls_cert, tls_key: paths of a certificate chain and its key, in PEM. Both or none; "": no TLS.
    - priorities, lease_s, succeeded_ttl_s, failed_ttl_s, keep_succeeded, body_limit: settings of queues that
      createQueue makes.
    - password_hash: of the password of deleteQueue; "": no password is right.
    - ack_any_source: an ack ends a running job whoever claimed it.
    - max_frame: bytes of a frame at most.
    - max_buffered: three limits: the bytes of calls that a process carries out at once; the bodies of answers that are
      being made; the bytes of calls that are not complete and of answers that clients have not read.
    - max_connections: connections of a process at most.
    - max_requests: calls that a process carries out at once, at most.
    - idle_s: seconds after which a connection without a call is closed.
    - stop_s: seconds that a stop waits for the calls under way.
    - timeout_s: seconds that a call may take on the Redis servers.
    - health_failures, health_successes: pings in a row after which a shard is unhealthy, or healthy again.
    - health_interval_s: seconds between two pings.
    """

    host: str = ""
    port: int = 9010
    processes: int = 1
    http: str = "127.0.0.1:9999"
    shards_file: str = ""
    queue_config_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    priorities: int = 3
    lease_s: int = 600
    succeeded_ttl_s: int = 24 * 3600
    failed_ttl_s: int = 168 * 3600
    keep_succeeded: int = MAX_U32
    body_limit: int = 32 * MIB
    password_hash: str = field(default="", repr=False)
    ack_any_source: bool = False
    max_frame: int = 64 * MIB
    max_buffered: int = 512 * MIB
    max_connections: int = 10_000
    max_requests: int = 5_000
    idle_s: int = 300
    stop_s: int = 10
    timeout_s: float = 10.0
    health_failures: int = 6
    health_successes: int = 6
    health_interval_s: int = 5

    def __post_init__(self) -> None:
        for name, (least, most) in RANGES.items():
            check_integer(name, getattr(self, name), least, most)
        check_seconds("timeout_s", self.timeout_s)
        for name in (each.name for each in fields(self) if each.type == "str"):
            if not isinstance(getattr(self, name), str):
                raise InvalidArgument(f"{name}: expected a text, got {getattr(self, name)!r:.60}")
        if not isinstance(self.ack_any_source, bool):
            raise InvalidArgument(f"ack_any_source: expected true or false, got {self.ack_any_source!r:.60}")
        if self.http:
            parse_address(self.http)
        if bool(self.tls_cert) != bool(self.tls_key):
            given, missing = ("tls_cert", "tls_key") if self.tls_cert else ("tls_key", "tls_cert")
            raise InvalidArgument(f"TLS: expected tls_cert and tls_key, got {given} without {missing}")
        check_hash(self.password_hash)
        _ = self.queue_config

    @property
    def queue_config(self) -> QueueConfig:
        """The settings of a new queue."""
        return QueueConfig(
            lease_ms=self.lease_s * 1000,
            priorities=self.priorities,
            keep_succeeded=self.keep_succeeded,
            succeeded_ttl_s=self.succeeded_ttl_s,
            failed_ttl_s=self.failed_ttl_s,
            body_limit=self.body_limit,
        )

    def tls_context(self) -> ssl.SSLContext | None:
        """What connections speak TLS with; None: they do not. Raises InvalidArgument, which names the file."""
        if not self.tls_cert:
            return None
        for path in (self.tls_cert, self.tls_key):
            try:
                with open(path, "rb"):  # noqa: PTH123
                    pass
            except OSError as error:
                raise InvalidArgument(f"TLS: {path} can not be read: {error.strerror}") from None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key, password=_no_password)
        except (ssl.SSLError, InvalidArgument) as error:
            why = (error.reason or "got no PEM") if isinstance(error, ssl.SSLError) else str(error)
            expected = f"expected a certificate chain in {self.tls_cert} and its key in {self.tls_key}, both in PEM"
            raise InvalidArgument(f"TLS: {expected}; {why}") from None
        return context


def _no_password() -> str:
    """OpenSSL asks on the terminal otherwise."""
    raise InvalidArgument("the key is encrypted")


#: The least and the most of each number.
RANGES: Final = {
    "port": (0, 65535),
    "processes": (1, 256),
    "lease_s": (1, MAX_U32 // 1000),
    "max_frame": (1024, 1024 * MIB),
    "max_buffered": (1024, MAX_BUFFERED),
    "max_connections": (1, 1_000_000),
    "max_requests": (1, 1_000_000),
    "idle_s": (1, MAX_U32),
    "stop_s": (0, 3600),
    "health_failures": (1, 1000),
    "health_successes": (1, 1000),
    "health_interval_s": (1, 3600),
}
