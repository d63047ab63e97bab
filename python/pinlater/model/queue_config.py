"""The configuration of a queue, its checks, and its bytes (docs/design.md §3).

Promises that unpacking returns what was packed, and that a bad value raises an error that names it before any request.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Final, Self

import pinlater._core as _core
from pinlater.model.errors import InvalidArgument
from pinlater.model.limits import MAX_BURST, Rate
from pinlater.model.urls import hide_urls

_QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_]{1,255}", re.ASCII)
_SHARD_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,32}", re.ASCII)

# format, flags, priorities, version, generation, epoch
_HEAD: Final = struct.Struct(">BBB8sII")
_EPOCH: Final = struct.Struct(">I")
# highest id, generation, epoch. The version follows if it is not the highest id.
_REMNANT: Final = struct.Struct(">8sII")
# lease_ms, keep_succeeded, succeeded_ttl_s, failed_ttl_s, body_limit. The tail follows: crash_limit, quarantine_queue,
# rate and burst, max_running, home, run_on_home_loss, marks of the archive, refuse_above, each with its length. A new
# setting goes behind them.
_SETTINGS: Final = struct.Struct(">IIIII")
_CRASH_LIMIT_BYTES: Final = 2
_REFUSE_ABOVE_BYTES: Final = 6
# spill_above, restore_below, horizon_ms, each with 1 added; 0: none
_MARKS: Final = struct.Struct(">QQQ")
# count, per_ms, burst (0: the default)
_RATE: Final = struct.Struct(">III")
# Flags. A queue gives no jobs if it is paused, or if its rate is 0. _PAUSED_TOO: if both are so.
_NO_CLAIMS, _REFUSE_ENQUEUE, _PAUSED_TOO, _HAS_MAX_RUNNING = 1, 2, 4, 8
# Set and removed by the scripts of a queue shard, and no part of the settings.
_PAUSED_FOR_A_TIME: Final = 16
_OPEN_WHEN_EMPTY, _HAS_REFUSE_ABOVE, _DELETED = 32, 64, 128
#: Of an account in units, as scripts keep it: burst times the milliseconds of the rate.
MAX_UNITS: Final = 2**48 - 1

MAX_U32: Final = 2**32 - 1
#: The highest mark of a queue.
MAX_MARK: Final = 2**48 - 1
#: Jobs that are due sooner never leave because of their time.
LEAST_HORIZON_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    """Configuration of a queue, the same on every shard.

    - lease_ms: how long a claim lasts without renewal, 100 to 2^32 - 1.
    - paused: workers get no jobs.
    - refuse_enqueue: producers cannot enqueue.
    - priorities: number of priorities, 1 to 100; it can only grow.
    - keep_succeeded: number of succeeded jobs kept on each shard and priority. After it is lowered, a monitor removes
      the surplus within 30 s.
    - succeeded_ttl_s, failed_ttl_s: seconds for which finished jobs are kept.
    - body_limit: largest body in bytes, up to 256 MiB.
    - crash_limit: a job fails after this many crashes of its workers, and a crash costs no attempt. 0: no limit, and
      each crash costs an attempt.
    - quarantine_queue: a monitor moves jobs that reached crash_limit there; "": they stay.
    - rate: how many jobs all clients together may claim, such as "100/s" or "5/m" (see Rate.of); 0 pauses the queue;
      None: any.
    - burst: claims that may come at once after a time without any, up to 1,000,000. None: what the rate gives in a
      second, at least 1.
    - max_running: how many jobs may be in progress at once; None: any. The jobs of such a queue live on its home shard.
    - home: the shard that counts for the limits. "": chosen from the queue's name when it gets its first limit.
    - run_on_home_loss: while the home shard does not answer, go on with the rate, divided by the processes that it
      last saw. By default claims rest until it is back.
    - open_when_empty: accept new jobs again once no job is pending or in progress (with refuse_enqueue).
    - spill_above: while Redis has more pending jobs, a monitor with an archive moves some there, the latest-due and
      lowest-priority ones first. None: it does not.
    - restore_below: while Redis has fewer pending jobs, it brings archived ones back; at most spill_above. None: only
      those that `horizon_ms` brings back.
    - horizon_ms: jobs that are due in more than this leave at once, and are back when half of it is left; at least
      60,000. None: they stay.
    - refuse_above: a shard refuses new jobs (QueueFull) while it holds this many of the queue, in whatever state; more
      than spill_above. A call that comes below the mark comes in whole. None: it refuses none because of their number.
    """

    lease_ms: int = 30_000
    paused: bool = False
    refuse_enqueue: bool = False
    priorities: int = 3
    keep_succeeded: int = 0
    succeeded_ttl_s: int = 24 * 3600
    failed_ttl_s: int = 168 * 3600
    body_limit: int = 1024 * 1024
    crash_limit: int = 0
    quarantine_queue: str = ""
    rate: Rate | str | float | None = None
    burst: int | None = None
    max_running: int | None = None
    home: str = ""
    run_on_home_loss: bool = False
    open_when_empty: bool = False
    spill_above: int | None = None
    restore_below: int | None = None
    horizon_ms: int | None = None
    refuse_above: int | None = None

    def __post_init__(self) -> None:
        _check_integer("lease_ms", self.lease_ms, 100, MAX_U32)
        _check_integer("priorities", self.priorities, 1, _core.MAX_PRIORITY)
        _check_integer("keep_succeeded", self.keep_succeeded, 0, MAX_U32)
        _check_integer("succeeded_ttl_s", self.succeeded_ttl_s, 0, MAX_U32)
        _check_integer("failed_ttl_s", self.failed_ttl_s, 0, MAX_U32)
        _check_integer("body_limit", self.body_limit, 1, 256 * 1024 * 1024)
        _check_integer("crash_limit", self.crash_limit, 0, 0xFFFF)
        if self.quarantine_queue != "":
            check_queue_name(self.quarantine_queue)
        self._check_limits()
        self._check_marks()
        for name in ("paused", "refuse_enqueue", "run_on_home_loss", "open_when_empty"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidArgument(f"{name}: expected True or False, got {getattr(self, name)!r}")

    def _check_limits(self) -> None:
        if self.max_running is not None:
            _check_integer("max_running", self.max_running, 1, MAX_U32)
        if self.home != "":
            check_shard_name(self.home)
        if self.rate is not None and not isinstance(self.rate, Rate):
            object.__setattr__(self, "rate", Rate.of(self.rate))
        if self.burst is not None:
            rate = self.exact_rate
            if rate is None:
                raise InvalidArgument(f"burst: expected a rate beside it, got a burst of {_shorten(self.burst)} alone")
            _check_integer("burst", self.burst, 1, min(MAX_BURST, MAX_UNITS // rate.per_ms))

    def _check_marks(self) -> None:
        if self.spill_above is not None:
            _check_integer("spill_above", self.spill_above, 0, MAX_MARK)
        if self.restore_below is not None:
            _check_integer("restore_below", self.restore_below, 0, MAX_MARK)
            if self.spill_above is not None and self.restore_below > self.spill_above:
                raise InvalidArgument(
                    f"restore_below: expected at most spill_above ({self.spill_above:,}), got {self.restore_below:,}"
                )
        if self.horizon_ms is not None:
            _check_integer("horizon_ms", self.horizon_ms, LEAST_HORIZON_MS, 2**44 - 1)
        if self.refuse_above is not None:
            _check_integer("refuse_above", self.refuse_above, 1, MAX_MARK)

    @property
    def is_archived(self) -> bool:
        """Whether a monitor with an archive moves jobs of the queue by itself."""
        return (self.spill_above, self.restore_below, self.horizon_ms) != (None, None, None)

    @property
    def exact_rate(self) -> Rate | None:
        """The rate, as QueueConfig made it of what it was given."""
        assert self.rate is None or isinstance(self.rate, Rate)
        return self.rate

    @property
    def is_limited(self) -> bool:
        """Whether claims need tokens of the home shard, or a place there."""
        return self.rate is not None or self.max_running is not None

    @property
    def is_stopped(self) -> bool:
        """Whether it gives no jobs: it is paused, or its rate is 0."""
        return self.paused or self._has_rate_0

    @property
    def _has_rate_0(self) -> bool:
        return self.exact_rate is not None and not self.exact_rate.count

    def pack(self) -> bytes:
        """The settings as the scripts `create` and `configure` take them."""
        settings = _SETTINGS.pack(
            self.lease_ms, self.keep_succeeded, self.succeeded_ttl_s, self.failed_ttl_s, self.body_limit
        )
        tail = (
            self.crash_limit.to_bytes(_CRASH_LIMIT_BYTES, "big"),
            self.quarantine_queue.encode(),
            _pack_rate(self.exact_rate, self.burst),
            b"" if self.max_running is None else self.max_running.to_bytes(4, "big"),
            self.home.encode(),
            bytes([self.run_on_home_loss]),
            _pack_marks(self.spill_above, self.restore_below, self.horizon_ms),
            b"" if self.refuse_above is None else self.refuse_above.to_bytes(_REFUSE_ABOVE_BYTES, "big"),
        )
        head = bytes([self._flags(), self.priorities])
        return head + settings + b"".join(bytes([len(entry)]) + entry for entry in tail)

    def _flags(self) -> int:
        flags = {
            _NO_CLAIMS: self.is_stopped,
            _REFUSE_ENQUEUE: self.refuse_enqueue,
            _PAUSED_TOO: self.paused and self._has_rate_0,
            _HAS_MAX_RUNNING: self.max_running is not None,
            _OPEN_WHEN_EMPTY: self.open_when_empty,
            _HAS_REFUSE_ABOVE: self.refuse_above is not None,
        }
        return sum(flag for flag, is_set in flags.items() if is_set)


CONFIG_FIELDS: Final = tuple(field.name for field in fields(QueueConfig))


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """A queue's configuration as one shard has it.

    version: 8 bytes, grows with each change. generation: grows each time the shard lost its data. deleted: whether the
    queue was deleted. epoch: grows with each creation and deletion. settings: as stored, with what a newer version of
    PinLater added.
    """

    version: bytes
    generation: int
    deleted: bool
    epoch: int
    settings: bytes
    config: QueueConfig

    @property
    def age(self) -> tuple[int, bytes]:
        """Greater is newer. The epoch decides first, as versions of two epochs may come from clocks that differ."""
        return self.epoch, self.version

    @property
    def carried(self) -> bytes:
        """Version and epoch, for another shard."""
        return self.version + _EPOCH.pack(self.epoch)

    @classmethod
    def deleted_as(cls, remnant: bytes) -> Self:
        """The configuration of a queue of which only this remnant is left (`lua/lib/remnant.lua`)."""
        h, generation, epoch = _REMNANT.unpack_from(remnant)
        config = QueueConfig()
        return cls(remnant[_REMNANT.size :] or h, generation, True, epoch, config.pack(), config)

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """Reads the field `config` of the key `meta`. A setting that its tail does not have yet has its default."""
        _, flags, priorities, version, generation, epoch = _HEAD.unpack_from(packed)
        lease_ms, keep, succeeded_ttl_s, failed_ttl_s, body_limit = _SETTINGS.unpack_from(packed, _HEAD.size)
        tail = (*_entries(packed[_HEAD.size + _SETTINGS.size :]), *[b""] * 8)
        crash_limit, quarantine_queue, packed_rate, max_running, home, options, packed_marks, refuse_above, *_ = tail
        rate, burst = _unpack_rate(packed_rate)
        spill_above, restore_below, horizon_ms = _unpack_marks(packed_marks)
        stopped = rate is not None and not rate.count
        config = QueueConfig(
            lease_ms=lease_ms,
            paused=bool(flags & _NO_CLAIMS) and (not stopped or bool(flags & _PAUSED_TOO)),
            refuse_enqueue=bool(flags & _REFUSE_ENQUEUE),
            priorities=priorities,
            keep_succeeded=keep,
            succeeded_ttl_s=succeeded_ttl_s,
            failed_ttl_s=failed_ttl_s,
            body_limit=body_limit,
            crash_limit=int.from_bytes(crash_limit, "big"),
            quarantine_queue=quarantine_queue.decode(),
            rate=rate,
            burst=burst,
            max_running=int.from_bytes(max_running, "big") if max_running else None,
            home=home.decode(),
            run_on_home_loss=bool(options[:1].strip(b"\0")),
            open_when_empty=bool(flags & _OPEN_WHEN_EMPTY),
            spill_above=spill_above,
            restore_below=restore_below,
            horizon_ms=horizon_ms,
            refuse_above=int.from_bytes(refuse_above, "big") if refuse_above else None,
        )
        settings = bytes([flags & ~_PAUSED_FOR_A_TIME]) + packed[2:3] + packed[_HEAD.size :]
        return cls(version, generation, bool(flags & _DELETED), epoch, settings, config)


def _pack_rate(rate: Rate | None, burst: int | None) -> bytes:
    return b"" if rate is None else _RATE.pack(rate.count, rate.per_ms, burst or 0)


def _unpack_rate(packed: bytes) -> tuple[Rate | None, int | None]:
    if not packed:
        return None, None
    count, per_ms, burst = _RATE.unpack_from(packed)
    return Rate(count, per_ms), burst or None


def _pack_marks(*marks: int | None) -> bytes:
    return b"" if marks == (None, None, None) else _MARKS.pack(*(0 if mark is None else mark + 1 for mark in marks))


def _unpack_marks(packed: bytes) -> tuple[int | None, ...]:
    marks = _MARKS.unpack_from(packed) if packed else (0, 0, 0)
    return tuple(mark - 1 if mark else None for mark in marks)


def _entries(tail: bytes) -> Iterator[bytes]:
    """The settings of a tail: a length byte each, then so many bytes."""
    at = 0
    while at < len(tail):
        yield tail[at + 1 : at + 1 + tail[at]]
        at += 1 + tail[at]


def check_queue_name(name: object) -> str:
    """Returns the name of a queue, or raises InvalidArgument."""
    if not isinstance(name, str) or not _QUEUE_NAME.fullmatch(name):
        raise InvalidArgument(f"queue name: expected 1 to 255 letters, digits or underscores, got {_shorten(name)}")
    return name


def read_registry(members: Iterable[bytes]) -> tuple[set[str], list[bytes]]:
    """The names of queues in a registry, and its members that are no names. Every user of a server may add some."""
    names, others = set[str](), list[bytes]()
    for member in members:
        name = member.decode("latin-1")
        if _QUEUE_NAME.fullmatch(name):
            names.add(name)
        else:
            others.append(member)
    return names, sorted(others)


def check_source(source: object) -> str:
    """Returns the source of a claim descriptor, or raises InvalidArgument."""
    with suppress(UnicodeEncodeError):  # a lone surrogate
        if isinstance(source, str) and 1 <= len(source.encode()) <= 255:
            return source
    raise InvalidArgument(f"source: expected 1 to 255 bytes of text, got {source!r:.80}")


def check_shard_name(name: object) -> str:
    """Returns the name of a shard, or raises InvalidArgument."""
    if not isinstance(name, str) or not _SHARD_NAME.fullmatch(name):
        raise InvalidArgument(
            f"shard name: expected 1 to 32 letters, digits, underscores or hyphens, got {_shorten(name)}"
        )
    return name


def check_quarantine(queue: str, config: QueueConfig) -> None:
    """Raises InvalidArgument if the quarantine queue is the queue itself, or if no job can reach it."""
    if config.quarantine_queue == queue:
        raise InvalidArgument(f"quarantine_queue: expected another queue than {queue!r} itself")
    if config.quarantine_queue and not config.crash_limit:
        raise InvalidArgument("crash_limit: expected 1 or more with a quarantine_queue, got 0")


def check_hard_mark(config: QueueConfig) -> None:
    """Raises InvalidArgument if new jobs are refused before any can leave for the archive."""
    if config.refuse_above is not None and config.spill_above is not None and config.refuse_above <= config.spill_above:
        raise InvalidArgument(
            f"refuse_above: expected more than spill_above ({config.spill_above:,}), got {config.refuse_above:,}"
        )


def check_integer(name: str, value: object, low: int, high: int) -> int:
    """Returns an int in [low, high], or raises InvalidArgument (bool, float and NaN included)."""
    _check_integer(name, value, low, high)
    assert isinstance(value, int)
    return value


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidArgument(f"{name}: expected an integer from {low:,} to {high:,}, got {_shorten(value)}")


def _shorten(value: object) -> str:
    text = hide_urls(repr(value))
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text):,} characters)"
