"""The format of a queue shard, and a configuration whose tail grows from version to version.

Promises: callers of two versions are simulated by what they pack, so no old code is kept for it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest
import redis

from pinlater.model.queue_config import QueueConfig, StoredConfig
from tests.support.servers import Server
from tests.support.wire import Wire, connect, expiries, refused, snapshot
from tests.support.wire_format import NO_CONFIG_VERSION, Job, settings, unpack_config

#: As format 1 packed it: version, generation, lease, flags, priorities, keep, times to live, body limit, epoch.
FIRST_FORMAT = struct.pack(">QIIBBIIIII", 1, 1, 30_000, 0, 3, 0, 3600, 7200, 1 << 20, 1)
FIRST_FORMAT_DELETED = FIRST_FORMAT[:16] + b"\x80" + FIRST_FORMAT[17:]
#: What a newer version may add behind the settings of today.
LATER = (b"\0\0\0\7", b"", b"a setting of tomorrow")


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with connect(server) as client:
        yield Wire(client)


def put_first_format(wire: Wire, packed: bytes = FIRST_FORMAT) -> None:
    wire.client.hset(wire.key("m"), "c", packed)


@pytest.mark.parametrize("verb", ["config", "create"])
def test_a_queue_of_format_one_is_refused(wire: Wire, verb: str) -> None:
    put_first_format(wire)
    before = snapshot(wire)
    with pytest.raises(
        redis.ResponseError, match=r"^FORMAT_UNSUPPORTED found format 1, expected 2: drain and delete the queue with"
    ):
        wire.read("config") if verb == "config" else wire.create()
    assert snapshot(wire) == before


def test_a_queue_that_format_one_deleted_can_be_made(wire: Wire) -> None:
    put_first_format(wire, FIRST_FORMAT_DELETED)
    assert wire.read("config")[0] == b""
    assert wire.create() is True
    assert wire.claim().jobs == []


ANY_CALLS: dict[str, Callable[[Wire], object]] = {
    "config": lambda w: w.read("config"),
    "create": lambda w: w.create(),
    "enqueue": lambda w: w.enqueue(Job()),
    "claim": lambda w: w.claim(),
    "count": lambda w: w.counts(),
    "renew": lambda w: w.renew(bytes(8)),
    "expire": lambda w: w.expire(),
    "collect": lambda w: w.collect(),
    "pass_on": lambda w: w.write("pass_on", b"", version=NO_CONFIG_VERSION),
    "delete_queue": lambda w: w.write("delete_queue", b""),
}


@pytest.mark.parametrize("call", ANY_CALLS)
@pytest.mark.parametrize("flags", [0, 128])
def test_a_queue_of_a_later_format_is_refused_by_every_call(wire: Wire, call: str, flags: int) -> None:
    wire.create()
    packed = wire.read("config")[0]
    wire.client.hset(wire.key("meta"), "config", bytes([3, flags]) + packed[2:])
    before = snapshot(wire)
    with pytest.raises(redis.ResponseError, match=r"^FORMAT_UNSUPPORTED found format 3, expected 2"):
        ANY_CALLS[call](wire)
    assert snapshot(wire) == before


def test_an_older_caller_leaves_settings_it_does_not_know(wire: Wire) -> None:
    wire.create(settings(crash_limit=3, quarantine=b"big", later=LATER))
    assert wire.configure(settings(crash_limit=4)).settings == settings(crash_limit=4, later=LATER)
    assert wire.configure(settings(lease_ms=1)).settings == settings(lease_ms=1, crash_limit=4, later=LATER)


def test_a_newer_caller_adds_settings(wire: Wire) -> None:
    wire.create(settings())
    for later in ((), LATER[:1], LATER):
        assert wire.configure(settings(crash_limit=3, later=later)).settings == settings(crash_limit=3, later=later)


def test_a_crash_limit_holds_with_settings_behind_it(wire: Wire) -> None:
    wire.create(settings(lease_ms=1, crash_limit=1, quarantine=b"big", later=LATER))
    wire.enqueue(Job(allowed=9))
    held = wire.claim()
    wire.client.zadd(wire.key("leases"), dict.fromkeys(expiries(wire), 1.0))
    wire.expire()
    assert [counts[4] for counts in wire.counts()] == [1, 0, 0]
    assert wire.client.hkeys(wire.key("quarantined")) == [b"\1" + held.jobs[0].id]


@pytest.mark.parametrize("bad", [b"\1", b"\2\0", b"\2\0\1\5big", b"\0" * 101], ids=repr)
def test_a_tail_that_is_cut_off_is_refused(wire: Wire, bad: bytes) -> None:
    with refused("BAD_REQUEST"):
        wire.create(settings() + bad)
    assert set(snapshot(wire)) == {"permit"}


def test_a_short_tail_reads_with_defaults(wire: Wire) -> None:
    for packed, expected in (
        (settings(), QueueConfig()),
        (settings(crash_limit=3)[:-1], QueueConfig(crash_limit=3)),
        (settings(crash_limit=3, quarantine=b"big"), QueueConfig(crash_limit=3, quarantine_queue="big")),
    ):
        wire.write("delete_queue", b"") if wire.version else None
        wire.create(packed)
        read = StoredConfig.unpack(wire.read("config")[0])
        assert read.settings == packed
        assert (read.config.crash_limit, read.config.quarantine_queue) == (
            expected.crash_limit,
            expected.quarantine_queue,
        )


def test_a_long_tail_is_read_and_kept(wire: Wire) -> None:
    packed = settings(crash_limit=3, quarantine=b"big", later=LATER)
    wire.create(packed)
    stored = wire.read("config")[0]
    read = StoredConfig.unpack(stored)
    assert (read.config.crash_limit, read.config.quarantine_queue) == (3, "big")
    assert read.settings == unpack_config(stored).settings == packed
