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
from pinlater.model.urls import hide_urls

_QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_]{1,255}", re.ASCII)
_SHARD_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,32}", re.ASCII)

# format, flags, priorities, version, generation, epoch
_HEAD: Final = struct.Struct(">BBB8sII")
_EPOCH: Final = struct.Struct(">I")
# highest id, generation, epoch. The version follows if it is not the highest id.
_REMNANT: Final = struct.Struct(">8sII")
# lease_ms, keep_succeeded, succeeded_ttl_s, failed_ttl_s, body_limit. The tail follows: crash_limit, quarantine_queue,
# each with its length. A new setting goes behind them.
_SETTINGS: Final = struct.Struct(">IIIII")
_CRASH_LIMIT_BYTES: Final = 2
_PAUSED, _REFUSE_ENQUEUE, _DELETED = 1, 2, 128

MAX_U32: Final = 2**32 - 1


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
        for name in ("paused", "refuse_enqueue"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidArgument(f"{name}: expected True or False, got {getattr(self, name)!r}")

    def pack(self) -> bytes:
        """The settings as the scripts `create` and `configure` take them."""
        flags = (_PAUSED if self.paused else 0) | (_REFUSE_ENQUEUE if self.refuse_enqueue else 0)
        settings = _SETTINGS.pack(
            self.lease_ms, self.keep_succeeded, self.succeeded_ttl_s, self.failed_ttl_s, self.body_limit
        )
        tail = (self.crash_limit.to_bytes(_CRASH_LIMIT_BYTES, "big"), self.quarantine_queue.encode())
        return bytes([flags, self.priorities]) + settings + b"".join(bytes([len(entry)]) + entry for entry in tail)


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
        crash_limit, quarantine_queue, *_ = (*_entries(packed[_HEAD.size + _SETTINGS.size :]), b"", b"")
        config = QueueConfig(
            lease_ms=lease_ms,
            paused=bool(flags & _PAUSED),
            refuse_enqueue=bool(flags & _REFUSE_ENQUEUE),
            priorities=priorities,
            keep_succeeded=keep,
            succeeded_ttl_s=succeeded_ttl_s,
            failed_ttl_s=failed_ttl_s,
            body_limit=body_limit,
            crash_limit=int.from_bytes(crash_limit, "big"),
            quarantine_queue=quarantine_queue.decode(),
        )
        settings = packed[1:3] + packed[_HEAD.size :]
        return cls(version, generation, bool(flags & _DELETED), epoch, settings, config)


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
