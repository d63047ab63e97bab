"""What a deleted queue leaves: permits, remnants, and the registry that keeps them.

Promises: shown by raw calls of the scripts on every store.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from pinlater.store.keys import remnant_field, remnant_keys
from tests.support.servers import Server
from tests.support.wire import Wire, connect, refused, snapshot
from tests.support.wire_format import Job, number, settings, unpack_config

FULL = 500


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with connect(server) as client:
        yield Wire(client)


def remnant(h: int, generation: int, epoch: int, version: int | None = None) -> bytes:
    tail = b"" if version is None else version.to_bytes(8, "big")
    return struct.pack(">QII", h, generation, epoch) + tail


def delete(wire: Wire) -> bytes:
    (left,) = wire.write("delete_queue", b"")
    return bytes(left)


# permits


def test_a_queue_is_created_only_with_the_last_permit(wire: Wire) -> None:
    first, second = wire.permit(), wire.raw("permit", b"other")[1]
    for permit in (first, b"", b"none"):
        with refused("CONFIG_CHANGED"):
            wire.create(permit=permit)
    assert set(snapshot(wire)) == {"permit"}
    assert wire.create(permit=second) is True
    assert set(snapshot(wire)) == {"meta"}
    assert wire.permit() == b""
    assert wire.create(permit=second) is False
    delete(wire)
    with refused("CONFIG_CHANGED"):
        wire.create(permit=second)


def test_a_permit_expires(wire: Wire) -> None:
    wire.permit()
    assert 0 < wire.client.pttl(wire.key("permit")) <= 60_000
    assert wire.create() is True
    assert wire.client.pttl(wire.key("meta")) == -1


def test_what_moves_to_the_registry_ends_a_permit(wire: Wire) -> None:
    wire.create()
    left = delete(wire)
    permit = wire.permit()
    wire.keep(left)
    wire.forget(left)
    assert snapshot(wire) == {}
    with refused("CONFIG_CHANGED"):
        wire.create(permit=permit)


def test_the_end_of_a_deletion_that_leaves_its_tombstone_ends_a_permit(wire: Wire) -> None:
    wire.create()
    delete(wire)
    permit = wire.permit()
    assert wire.forget(b"") == 0
    with refused("CONFIG_CHANGED"):
        wire.create(permit=permit)


# remnants


def test_a_queue_goes_on_from_its_remnant(wire: Wire) -> None:
    wire.create()
    ids = wire.enqueue(Job(), Job())
    version = wire.version
    left = delete(wire)
    config, *_, told = wire.read("config")
    assert told == left == wire.h + config[11:19]
    wire.keep(left)
    wire.forget(left)
    again = Wire(wire.client)
    assert again.create(remnant=left) is True
    assert unpack_config(again.read("config")[0]).epoch == 3
    assert number(again.version) > number(left[:8]) > number(ids[-1]) > number(version)
    assert number(again.enqueue(Job())[0]) > number(left[:8])


@pytest.mark.parametrize("left", [remnant(2**60, 7, 40), remnant(2**60, 7, 40, 2**61)], ids=["h", "h and version"])
def test_every_part_of_a_remnant_counts(wire: Wire, left: bytes) -> None:
    assert wire.create(remnant=left) is True
    config = unpack_config(wire.read("config")[0])
    assert (config.epoch, config.generation) == (41, 7)
    assert number(wire.version) > (2**61 if len(left) > 16 else 2**60)
    assert 2**60 < number(wire.h) < 2**60 + 100  # ids go on from h, not from a version of another clock


def test_a_queue_of_another_shard_is_not_made_below_a_remnant(wire: Wire) -> None:
    carried = (2**62).to_bytes(8, "big")
    with refused("QUEUE_NOT_FOUND"):
        wire.create(carried=carried, epoch=3, remnant=remnant(5, 1, 4))
    assert wire.create(carried=carried, epoch=5, remnant=remnant(5, 1, 4)) is True


def test_what_its_own_keys_and_the_registry_have_is_merged(wire: Wire) -> None:
    wire.create()
    left = delete(wire)
    other = remnant(5, 9, 30)
    assert wire.create(remnant=other) is True
    config = unpack_config(wire.read("config")[0])
    assert (config.epoch, config.generation) == (31, 9)
    assert number(wire.version) > number(left[:8])


@pytest.mark.parametrize("bad", [b"x", bytes(15)])
def test_a_remnant_that_is_cut_off_is_refused(wire: Wire, bad: bytes) -> None:
    with refused("BAD_REQUEST"):
        wire.create(remnant=bad)
    with refused("BAD_REQUEST"):
        wire.keep(bad)
    assert set(snapshot(wire)) == {"permit"}


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (remnant(5, 1, 2), remnant(4, 3, 1), remnant(5, 3, 2)),
        (remnant(5, 1, 2), remnant(4, 1, 4, 9), remnant(5, 1, 4, 9)),
        (remnant(2**62, 1, 2), remnant(2**62 + 1, 1, 2), remnant(2**62 + 1, 1, 2)),
    ],
)
def test_the_registry_keeps_the_greater_of_each_part(wire: Wire, one: bytes, other: bytes, both: bytes) -> None:
    for order in ([one, other], [other, one]):
        wire.client.flushall()
        assert wire.keep(order[0]) == order[0]
        for again in (order[1], *order):
            assert wire.keep(again) == both


def test_a_full_node_passes_new_fields_on_and_keeps_its_own(wire: Wire) -> None:
    keys = remnant_keys(wire.queue, wire.shard)
    full = {value.to_bytes(8, "big"): b"" for value in range(FULL)}
    assert [len(key.rpartition(b":")[2]) for key in keys] == [1, 2, 3]
    for level, key in enumerate(keys):
        left = remnant(5, 1, 2 + level)
        assert wire.keep(left) == left
        for node in keys:
            assert wire.client.hget(node, remnant_field(wire.queue)) == (left if node == key else None)
        wire.client.hset(key, mapping=full)  # type: ignore[arg-type]
        assert wire.keep(left) == left  # it stays where it is
        wire.client.hdel(key, remnant_field(wire.queue))
        if key == keys[-1]:
            assert wire.keep(left) == left


# the end of what is left


def test_only_the_tombstone_that_the_registry_has_is_removed(wire: Wire) -> None:
    wire.create()
    before = snapshot(wire)
    assert wire.forget(remnant(1, 1, 1)) == 1
    assert snapshot(wire) == before
    left = delete(wire)
    tombstone = snapshot(wire)
    assert wire.forget(remnant(1, 1, 2)) == 0
    assert wire.forget(b"") == 0  # the registry got nothing
    assert snapshot(wire) == tombstone
    wire.create()
    assert wire.forget(left) == 1  # it is there again
    newer = delete(wire)
    tombstone = snapshot(wire)
    assert wire.forget(left) == 0  # it was deleted again
    assert snapshot(wire) == tombstone
    for _ in range(2):
        assert wire.forget(newer) == 0
    assert snapshot(wire) == {}


def test_a_deletion_of_an_earlier_epoch_leaves_nothing(wire: Wire) -> None:
    wire.create(settings())
    assert wire.write("delete_queue", 1) == [b""]
