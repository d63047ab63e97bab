"""The native part of PinLater: bytes in, values out. Formats: docs/design.md, section 4."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Self, TypeAlias, final

from typing_extensions import Buffer

__all__ = [
    "MAX_ATTEMPTS",
    "MAX_BATCH",
    "MAX_PRIORITY",
    "MAX_STATUS_BYTES",
    "MAX_TIME_MS",
    "AckBatch",
    "AckCall",
    "BadMessage",
    "BadReply",
    "BodyPattern",
    "Claim",
    "CommandHead",
    "DequeueCall",
    "EnqueueCall",
    "Job",
    "LeaseRenewer",
    "MissingField",
    "NewJob",
    "PlainCalls",
    "PriorityNotSupported",
    "Records",
    "RenewerStats",
    "ReplyReader",
    "TokenBucket",
    "__version__",
    "check_message",
    "claim_answer",
    "count_acks",
    "decode_claim",
    "dequeue_answer",
    "enqueue_answer",
    "enqueue_answers",
    "format_descriptor",
    "format_descriptors",
    "group_ack_calls",
    "group_acks",
    "group_descriptors",
    "group_releases",
    "is_frame",
    "is_plain_value",
    "new_jobs",
    "pack_commands",
    "pack_enqueues",
    "pack_jobs",
    "parse_descriptor",
    "read_ack",
    "read_claims",
    "read_dequeue",
    "read_enqueue",
    "read_hot_call",
    "unpack_info",
    "unpack_record",
    "void_answer",
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
    def count(self) -> int:
        """How many jobs it has."""
    @property
    def shard(self) -> str: ...
    @property
    def first_wait_ms(self) -> int | None:
        """From the enqueue of its middle job to this claim. None if there is none, or if it was no first attempt."""
    @property
    def left(self) -> list[int]: ...
    @property
    def due_in_ms(self) -> int: ...
    @property
    def limited(self) -> int: ...
    @property
    def crashed(self) -> bool: ...
    @property
    def size(self) -> int:
        """Bytes of the records of its jobs."""
    def split(self, limits: list[int]) -> list[Claim]:
        """Claims of its jobs in order, each of so many of them as long as there are some.

        What they say beside their jobs (`left`, `due_in_ms`, `limited`) is that of this claim.
        """

class BadReply(ValueError):
    """Bytes that are no reply of RESP 2."""

@final
class ReplyReader:
    """Cuts what a connection receives into replies. make_error: makes the value of an error reply from its text."""

    def __new__(cls, make_error: Callable[[str], object]) -> Self: ...
    def read(self, data: bytes) -> list[Any]:
        """The replies that are complete with these bytes.

        A string is bytes, an array a list, and nothing None. An array of strings in an array is Records.
        Raises BadReply; then the reader is of no more use.
        """
    def end(self, replies: list[Any], count: int) -> None:
        """Checks that nothing came behind the last of `count` replies.

        Raises BadReply if something did; then what is too much is taken out of `replies`.
        """

@final
class Records:
    """Strings that came together. Immutable."""

    def __len__(self) -> int: ...
    def sizes(self) -> list[int]:
        """The bytes of each."""
    def __getitem__(self, position: int, /) -> bytes: ...
    def __iter__(self) -> Iterator[bytes]: ...

@final
class BodyPattern:
    def __new__(cls, pattern: str) -> Self: ...
    def matches(self, body: bytes) -> bool: ...

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
    def sources(self) -> bytes:
        """Of a batch of calls: u8 length, bytes each. Empty of any other, or if the source does not matter."""
    @property
    def statuses(self) -> bytes: ...
    @property
    def ids(self) -> Records: ...
    @property
    def positions(self) -> list[int]: ...
    @property
    def tokenless(self) -> bool: ...
    @property
    def fails(self) -> bool:
        """Whether some of the jobs failed."""

@final
class CommandHead:
    def __new__(cls, arguments: Iterable[bytes | str | int]) -> CommandHead: ...
    def command(self, arguments: Iterable[bytes | str | int | Records]) -> bytes: ...

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
) -> tuple[bytes, bytes, Records]: ...
def new_jobs(bodies: Iterable[Buffer], **options: Any) -> list[NewJob]: ...
def pack_commands(commands: Iterable[tuple[bytes | str | int, ...] | bytes]) -> bytes: ...
def unpack_record(record: bytes) -> tuple[int, int, bytes]: ...
def decode_claim(reply: list[Any], queue: str, shard: str) -> Claim:
    """reply: `[sequence, highest id, head, lists of records…]`. ValueError if it is malformed."""

def read_claims(
    answers: list[Any], sequences: list[bytes], queue: str, shard: str
) -> tuple[bytes, list[Claim | ValueError | None]]:
    """The highest id that the answers to several calls name, or b"", and their claims.

    sequences: of the calls. None: the answer is no reply to its call. ValueError: the reply is malformed.
    """

def group_acks(
    succeeded: Iterable[_Ack], failed: Iterable[_Ack], tombstone: bool = False, most: int = ...
) -> list[AckBatch]: ...
def group_releases(jobs: Iterable[_Target], most: int = ...) -> list[AckBatch]: ...
def unpack_info(info: bytes) -> _JobInfo: ...

# The Thrift service: messages are those of python/pinlater/server/pinlater.thrift, `start` is where the struct of the
# arguments begins, behind the message's head.

class BadMessage(ValueError):
    """The bytes are no message of Thrift's binary protocol, or break a limit of it."""

class MissingField(ValueError):
    """A required field is not there."""

class PriorityNotSupported(ValueError):
    """A job has a priority that its queue does not have."""

def check_message(message: bytes, start: int, max_depth: int = ...) -> None:
    """Look through the arguments of any method. It keeps nothing, and takes time in proportion to the bytes.

    Raises BadMessage for what is cut off, for an unknown type, a bool that is neither 0 nor 1, a container with more
    elements than bytes are left, for more than 100,000 elements of all containers, and for more than max_depth structs
    and containers in one another (0 to 255; 64 by default). Bytes behind the arguments do not matter.
    """

def is_frame(data: bytes, limit: int) -> bool:
    """Whether these bytes are one whole frame. limit: bytes of a frame at most, without its length."""

def read_hot_call(frame: bytes) -> tuple[int, EnqueueCall | DequeueCall | AckCall] | None:
    """The sequence of the call in a frame (with its length), and the call. None if its method is another one, or its
    head is not strict.

    Raises as read_enqueue, read_dequeue and read_ack.
    """

def read_enqueue(message: bytes, start: int) -> EnqueueCall:
    """A call of enqueueJobs. Fields may come in any order, the last of a number counts, unknown ones are skipped.

    What cannot be kept is changed: a run-after time before 0 is now, one past 2**44 - 1 is that; attempts are 1 to
    65,535; a status is cut to 3,000 bytes, and bytes that are no UTF-8 are replaced. Bodies stay as they are.
    Raises BadMessage as check_message, MissingField for context, source, request, queueName, jobs or a body.
    """

@final
class EnqueueCall:
    """A call of enqueueJobs. It keeps the message, of which its bodies are parts."""

    @property
    def source(self) -> str:
        """Cut to 255 bytes."""
    @property
    def queue(self) -> str:
        """As it came: it may be no name of a queue."""
    @property
    def count(self) -> int:
        """How many jobs it has."""
    @property
    def size(self) -> int:
        """Bytes of its bodies and statuses."""
    def jobs(self) -> list[NewJob]:
        """The same jobs, for a call that is sent in parts.

        Raises PriorityNotSupported if one has none of 1 to 100: `check` comes first.
        """
    def check(self, body_limit: int, priorities: int) -> None:
        """Raise what pack_enqueues would raise for this call alone.

        body_limit: bytes of a body. priorities: of the queue. Raises PriorityNotSupported, or another ValueError for a
        body that is too large; the message begins "job 3 of 10: ", or "job: " if there is one.
        """
    def fits(self, body_limit: int, priorities: int, most_jobs: int, most_bytes: int) -> bool:
        """Whether it can join others in one script call: it has jobs, no more than most_jobs and most_bytes of bodies
        and statuses, and check() would raise nothing.
        """

def pack_enqueues(calls: Sequence[EnqueueCall], body_limit: int, priorities: int) -> tuple[bytes, bytes, list[bytes]]:
    """The jobs of calls, one behind the other, as pack_jobs packs them. So do their ids follow one another.

    Raises as EnqueueCall.check, and ValueError for more than 1,000 jobs in all.
    """

def enqueue_answers(
    calls: Sequence[EnqueueCall], sequences: Sequence[int], shard: str, first_id: int
) -> tuple[list[bytes], int]:
    """The framed answers of calls whose jobs were packed together, and how many jobs they have in all.

    sequences: of the calls; 32 bits with a sign. first_id: of the first job; the ids of the others follow it. Raises as
    format_descriptors, and as EnqueueCall.jobs.
    """

def enqueue_answer(sequence: int, descriptors: Sequence[str]) -> bytes:
    """The framed answer of a call that was sent in parts."""

def read_ack(message: bytes, start: int) -> AckCall:
    """A call of ackDequeuedJobs. Fields as of read_enqueue.

    Well-formed descriptors of jobs that cannot exist, and of another queue, are left out. A retry delay is 0 to
    2**44 - 1 ms, a status is cut to 3,000 bytes. Raises BadMessage as check_message, MissingField for a required field,
    another ValueError for a malformed descriptor: "succeeded job <n>: " or "failed job <n>: " (from 0), what was
    expected, what came.
    """

@final
class AckCall:
    """The acks of a call, those that succeeded first. It keeps the message."""

    @property
    def source(self) -> str:
        """Cut to 255 bytes."""
    @property
    def queue(self) -> str:
        """As it came: it may be no name of a queue."""
    @property
    def count(self) -> int:
        """How many jobs can be acked. One that is named twice counts twice."""
    @property
    def succeeded(self) -> int:
        """How many of them succeeded."""
    @property
    def size(self) -> int:
        """Bytes of their statuses, as they came."""
    def shards(self) -> list[str]:
        """The names of the shards of all its descriptors, also of those that were left out."""
    def keys(self) -> frozenset[int]:
        """A number for each job. Two calls without a common number have no job in common."""

def count_acks(calls: Sequence[AckCall]) -> tuple[int, int]:
    """How many jobs of these calls succeeded, and how many failed."""

def group_ack_calls(calls: Sequence[AckCall], any_source: bool, most: int) -> list[AckBatch]:
    """Batches of at most `most` jobs (1,000 at most) a queue and shard. Each job names the source of its call.

    positions: for each id its place among the jobs of all calls; in a call those that succeeded come first. A job that
    one source names twice is acked once: as its first call says, and in one call succeeded wins. A job that two sources
    name stands there for each, and the server knows whose it is.
    any_source: a job ends whoever claimed it, so all calls count as those of one source.
    """

def read_dequeue(message: bytes, start: int) -> DequeueCall:
    """A call of dequeueJobs. Raises as read_ack."""

@final
class DequeueCall:
    """A call of dequeueJobs."""

    @property
    def source(self) -> str:
        """Cut to 255 bytes."""
    @property
    def queue(self) -> str:
        """As it came: it may be no name of a queue."""
    @property
    def limit(self) -> int:
        """As it came: 32 bits with a sign."""
    @property
    def dry_run(self) -> bool: ...
    @property
    def coverage(self) -> float:
        """As it came: any float, NaN too. 1.0 if it is unset."""
    @property
    def acks(self) -> AckCall | None:
        """The acks that ride on it. They may be of another queue. Their source is that of this call."""
    @property
    def jobs(self) -> int:
        """How many jobs it names, at least 1: the more of those that it asks for and those that it acks."""
    @property
    def size(self) -> int:
        """Bytes of the statuses of its acks."""
    def is_of(self, shards: list[str], most: int) -> bool:
        """Whether it can share a claim: it takes jobs of all shards, no more than a claim has (most), and its acks are
        of the same queue and of these shards.
        """

def claim_answer(sequence: int, claim: Claim) -> bytes:
    """The framed answer with the jobs of a claim."""

def dequeue_answer(sequence: int, jobs: Sequence[Job]) -> bytes:
    """The framed answer with these jobs. Without jobs both of its maps are unset."""

def void_answer(method: str, sequence: int) -> bytes:
    """The framed answer of a method that returns nothing."""

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
