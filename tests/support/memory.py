"""The memory store in the place of a real server, with the methods that the tests of behaviour use.

Promises that a test sees no difference but the name of the kind. It is not a process: tests that kill, pause or
configure a server take a real one.
"""

from __future__ import annotations

from typing import Any, Final, Literal, Self, TypeAlias

import redis

from pinlater.memory.server import MemoryServer
from pinlater.memory.store import Clock
from tests.support.servers import KINDS

AnyKind: TypeAlias = Literal["valkey", "redis", "memory"]
#: Of server: what tests of behaviour that move its clock run on.
EVERY_KIND: Final[tuple[AnyKind, ...]] = (*KINDS, "memory")
#: The files whose every test that takes `server` runs on it too.
CONFORMANCE: Final = frozenset(
    {
        "test_behaviour",
        "test_batches",
        "test_dependencies",
        "test_monitor",
        "test_worker_ends",
        "test_commands",
        "test_behaviour_clients",
        "test_behaviour_shards",
        "test_body_match",
        "test_dry_runs",
        "test_scans",
        "test_sources",
        "test_scripts",
        "test_scripts_admin",
        "test_scripts_archive",
        "test_scripts_deleted",
        "test_scripts_expiry",
        "test_scripts_full",
        "test_scripts_leases",
        "test_scripts_limits",
        "test_scripts_order",
        "test_scripts_views",
        "test_scripts_wake",
        "test_task_ends",
        "test_tasks",
        "test_worker",
        "test_audit",
        "test_audit_limits",
        "test_drain",
    }
)
#: The files that run on every store each day, for what stores differ in: commands, Lua, replies, errors, subscriptions,
#: logins and rights, the order of jobs. The others do so in `make test-all`.
DAILY_ON_EVERY_STORE: Final = frozenset(
    {
        "test_behaviour",
        "test_behaviour_clients",
        "test_blocking_claims",
        "test_body_match",
        "test_cancel",
        "test_commands",
        "test_doctor",
        "test_quarantine",
        "test_renewer",
        "test_renewer_tls",
        "test_results",
        "test_scans",
        "test_scripts",
        "test_scripts_admin",
        "test_scripts_deleted",
        "test_scripts_crashes",
        "test_scripts_expiry",
        "test_scripts_full",
        "test_scripts_leases",
        "test_scripts_limits",
        "test_scripts_one",
        "test_scripts_order",
        "test_scripts_views",
        "test_scripts_wake",
        "test_server_access",
        "test_server_faults",
        "test_tasks",
        "test_worker",
    }
)


class MemoryKind:
    """Of tests.support.servers.Server: what does not need a process."""

    kind: Literal["memory"] = "memory"

    def __init__(self, clock: Clock | None = None) -> None:
        self.memory = MemoryServer(clock=clock)

    @property
    def url(self) -> str:
        return self.memory.url

    @property
    def unix_url(self) -> str:
        return self.memory.url

    def client(self, **options: Any) -> redis.Redis:
        """A new client (replies are bytes); the caller closes it."""
        return redis.Redis(unix_socket_path=str(self.memory.path), **{"protocol": 2, **options})

    def call(self, *command: str | bytes | int | float) -> Any:
        """One command over a connection of its own."""
        with self.client() as client:
            return client.execute_command(*command)

    def info(self, section: str = "default") -> dict[str, Any]:
        """INFO's fields of one section, numbers as numbers."""
        return dict(self.call("INFO", section))

    def time_ms(self) -> int:
        """The store's TIME in milliseconds."""
        return self.memory.clock.now_us() // 1000

    def jump_clock(self, seconds: float) -> None:
        """Moves the clock alone, as a real server's clock jumps."""
        self.memory.clock.move(seconds)

    def start(self) -> Self:
        """Does nothing: the store runs."""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the store."""
        self.memory.close()
