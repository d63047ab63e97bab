"""The native part of PinLater: bytes in, values out. Formats: docs/design.md, section 4."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Self, TypeAlias, final

from typing_extensions import Buffer

__all__ = [
    "MAX_ATTEMPTS",
    "MAX_BATCH",
    "MAX_PRIORITY",
    "MAX_STATUS_BYTES",
    "MAX_TIME_MS",
    "AckBatch",
    "Claim",
    "CommandHead",
    "Job",
    "LeaseRenewer",
    "NewJob",
    "PlainCalls",
    "RenewerStats",
    "TokenBucket",
    "__version__",
    "decode_claim",
    "format_descriptor",
    "format_descriptors",
    "group_acks",
    "group_descriptors",
    "group_releases",
    "is_plain_value",
    "new_jobs",
    "pack_commands",
    "pack_jobs",
    "parse_descriptor",
    "unpack_info",
    "unpack_record",
]

__version__: Final[str]

MAX_STATUS_BYTES: Final[int]
MAX_PRIORITY: Final[int]
MAX_ATTEMPTS: Final[int]
MAX_TIME_MS: Final[int]
MAX_BATCH: Final[int]

_Target: TypeAlias = Job | str | tuple[str, bytes | None]
_Ack: TypeAlias = _Target | tuple[_Target, str, int]
_DescriptorGroup: TypeAlias = tuple[str, str, bytes, list[bytes], list[int]]
_JobInfo: TypeAlias = tuple[int, int, int, int, int, int, int, int, str, str, bytes | None]

@final
class PlainCalls:
    def __new__(cls, binary: bool) -> Self: ...
    def fits(self, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> None: ...
    def knows(self, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> bool: ...

@final
class NewJob:
    def __new__(
        cls,
        body: Buffer,
        *,
        priority: int = 1,
        run_after_ms: int | None = None,
        delay_ms: int | None = None,
        attempts: int = 2,
        status: str = "",
        key: str | bytes | None = None,
    ) -> NewJob: ...
    @property
    def body(self) -> bytes: ...
    @property
    def priority(self) -> int: ...
    @property
    def run_after_ms(self) -> int | None: ...
    @property
    def delay_ms(self) -> int | None: ...
    @property
    def attempts(self) -> int: ...
    @property
    def status(self) -> str: ...
    @property
    def key(self) -> bytes | None: ...
    def with_body(self, body: Buffer) -> NewJob: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Job:
    def __new__(
        cls,
        queue: str,
        shard: str,
        priority: int,
        id: int,
        body: Buffer,
        token: bytes,
        attempts_allowed: int,
        attempts_remaining: int,
    ) -> Job: ...
    @property
    def queue(self) -> str: ...
    @property
    def shard(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def id(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def token(self) -> bytes: ...
    @property
    def attempts_allowed(self) -> int: ...
    @property
    def attempts_remaining(self) -> int: ...
    @property
    def crashed(self) -> bool: ...
    @property
    def descriptor(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def created_ms(self) -> int: ...
    @property
    def claimed_ms(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Claim:
    @property
    def token(self) -> bytes: ...
    @property
    def jobs(self) -> list[Job]: ...
    @property
    def left(self) -> list[int]: ...
    @property
    def due_in_ms(self) -> int: ...
    @property
    def limited(self) -> int: ...
    @property
    def crashed(self) -> bool: ...

@final
class AckBatch:
    @property
    def queue(self) -> str: ...
    @property
    def shard(self) -> str: ...
    @property
    def flags(self) -> bytes: ...
    @property
    def groups(self) -> bytes: ...
    @property
    def statuses(self) -> bytes: ...
    @property
    def ids(self) -> list[bytes]: ...
    @property
    def positions(self) -> list[int]: ...
    @property
    def tokenless(self) -> bool: ...

@final
class CommandHead:
    def __new__(cls, arguments: Iterable[bytes | str | int]) -> CommandHead: ...
    def command(self, arguments: Iterable[bytes | str | int]) -> bytes: ...

@final
class TokenBucket:
    """Tokens that a process may use: of a grant, which ends, or of a rate that flows in.

    A new one is empty. Times are ms of any one monotonic clock; a time behind the latest one seen counts as the latest.
    Numbers of tokens and times: 0 to 2**63 - 1.
    Every method raises ValueError for a number out of range, TypeError for what is no int, and then changes nothing.
    """

    def __new__(cls) -> TokenBucket: ...
    @property
    def held(self) -> int:
        """Whole tokens held as of the last call."""
    def grant(self, n: int, until_ms: int) -> None:
        """Hold these n tokens until then (exclusive), instead of all that it held. Nothing flows in any more."""
    def flow(self, count: int, per_ms: int, burst: int, now_ms: int) -> None:
        """From now on `count` tokens flow in every per_ms, up to burst.

        It starts empty after a grant, which it drops. A flow that changes keeps its tokens and its part of a token,
        up to burst; what the new per_ms cannot express exactly is rounded down.
        count: 0 to 2**32 - 1; 0 is a pause, in which `take` gives none. per_ms: 1 to 2**32 - 1.
        burst: 1 to 1,000,000.
        """
    def take(self, n: int, now_ms: int) -> int:
        """Take up to n tokens. Returns how many."""
    def give_back(self, n: int) -> None:
        """Return n unused tokens: at most up to what was granted (less what `empty` took), or up to the burst."""
    def empty(self, now_ms: int) -> int:
        """Take all whole tokens that are left and valid, in a pause too. Returns how many."""
    def wait_ms(self, n: int, now_ms: int) -> int | None:
        """The ms until `take(n)` gives n. None: it never does without another grant or flow."""

def format_descriptor(queue: str, shard: str, priority: int, id: int) -> str: ...
def format_descriptors(queue: str, shard: str, priorities: bytes | int, first_id: int, count: int) -> list[str]: ...
def parse_descriptor(text: str) -> tuple[str, str, int, int]: ...
def is_plain_value(value: Any, binary: bool, /) -> bool: ...
def group_descriptors(descriptors: Iterable[str]) -> list[_DescriptorGroup]: ...
def pack_jobs(
    jobs: Iterable[Buffer | NewJob], body_limit: int, priorities: int, first: int = 0, total: int | None = None
) -> tuple[bytes, bytes, list[bytes]]: ...
def new_jobs(bodies: Iterable[Buffer], **options: Any) -> list[NewJob]: ...
def pack_commands(commands: Iterable[tuple[bytes | str | int, ...] | bytes]) -> bytes: ...
def unpack_record(record: bytes) -> tuple[int, int, bytes]: ...
def decode_claim(reply: list[Any], queue: str, shard: str) -> Claim: ...
def group_acks(
    succeeded: Iterable[_Ack], failed: Iterable[_Ack], tombstone: bool = False, most: int = ...
) -> list[AckBatch]: ...
def group_releases(jobs: Iterable[_Target], most: int = ...) -> list[AckBatch]: ...
def unpack_info(info: bytes) -> _JobInfo: ...

@final
class RenewerStats:
    """What a LeaseRenewer has done so far; a snapshot."""

    @property
    def renewals(self) -> int:
        """Calls the server carried out."""
    @property
    def tokens_renewed(self) -> int:
        """Tokens of those calls that still had their lease."""
    @property
    def failures(self) -> int:
        """Connects and calls that failed or were refused."""
    @property
    def last_error(self) -> str:
        """The last of them; empty before the first, kept after a recovery. Holds no handshake command."""
    @property
    def connected(self) -> bool:
        """Whether the last try found a working connection."""
    @property
    def held(self) -> int:
        """Tokens held now."""

@final
class LeaseRenewer:
    """Renews held leases on a thread that needs no GIL: no busy loop or long C call ends one, SIGSTOP does.

    A token is renewed when a third of its lease has passed; what is due of a queue goes in one call (at most
    1,000 tokens). Failures are counted and tried again after 50 ms, doubled up to 2 s. With nothing held
    nothing is sent.
    Drop a token before the ack of its last job is sent: a renewal that crosses the ack reports it as lost.
    Not carried over a fork: in the child everything but close() raises RuntimeError.
    """

    def __new__(
        cls,
        address: str,
        handshake: Sequence[bytes],
        script: bytes,
        session: bytes,
        *,
        tls: Mapping[str, str | bool | None] | None = None,
        timeout_s: float = 5.0,
    ) -> Self:
        """Start the thread; it connects with the first renewal.

        address: "host:port" or "unix:/path". handshake: RESP-encoded commands (AUTH, HELLO 2, SELECT) sent
        after each connect; an error reply to one fails the connect. script: source of the renew script.
        session: 8 random bytes of this renewer alone. tls, all six: ca_certs, cert, key (PEM paths or None;
        ca_certs None = the system's), server_name, verify ("required" or "none"), check_hostname.
        timeout_s: for a connect, each read and each write.
        Raises ValueError for what cannot work, certificate files included; KeyError for a missing tls entry.
        """
    def add_queue(self, keys: Sequence[bytes]) -> int:
        """A handle for the queue-shard whose renew script has these KEYS.

        They stay: name every priority the queue may ever have, or renewals end with CONFIG_CHANGED once it
        has more.
        Raises ValueError past 65,536 of them, RuntimeError once closed.
        """
    def hold(
        self, queue: int, priority: int, id: bytes, token: bytes, lease_ms: int, first_ms: int | None = None
    ) -> None:
        """Keep the lease of `token` (8 bytes) renewed from now on; lease_ms (from 1) is its full length.

        first_ms: when it is first renewed. None: after a third of that length.

        Raises ValueError for another size or handle, RuntimeError once closed.
        """
    def drop(self, queue: int, token: bytes) -> None:
        """Stop renewing `token`; no error if it is not held."""
    def limit(self, queue: int, priority: int, id: bytes, token: bytes, after_s: float) -> None:
        """After so many seconds the running job (id and token: 8 bytes each) leaves its claim's lease.

        It gets a lease of its own, as long, which is not renewed. Raises as hold.
        """
    def drop_limit(self, queue: int, id: bytes) -> None:
        """The job ended; no error if it has no limit."""
    def take_lost(self) -> list[tuple[int, bytes]]:
        """The (handle, token) pairs that the server no longer had since the last call. They are no longer held."""
    def stats(self) -> RenewerStats:
        """Totals since the start, and the present state."""
    def wait_renewed(self, n: int, timeout_s: float) -> bool:
        """Wait until n renewal calls in all have succeeded; False after timeout_s or a close.

        The GIL is released, but signal handlers run only afterwards.
        """
    def close(self) -> None:
        """End the thread and wait for it, at most for a connect under way (timeout_s); twice is fine.

        In a forked child it does nothing. A garbage-collected renewer ends its thread without waiting.
        """
