"""Every verb in cluster mode, and the keys that scripts really touch.

Promises: in a cluster no verb is refused for its keys; over the calls here every key a header declares is touched, and no other.
Risks: the cluster is one server that holds all slots: MOVED and resharding are not shown here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis
from pinlater.keys import registry_key
from pinlater.scripts import Script, load_scripts

from tests.servers import KINDS, Kind, Server
EACH_KIND = pytest.mark.parametrize("kind", KINDS)
FreshServer = Callable[..., Server]
DEADLINE_S = 60


def use_every_verb(wire: Wire) -> None:
    """Calls of every script, such that each touches every key it declares, on every path that touches one."""
    wire.create(settings(keep=2))
    wire.enqueue(*(Job(b"%d" % i, 1 + i % 3, status=b"s") for i in range(12)))
    wire.client.hdel(wire.key("j"), wire.enqueue(Job(b"bare"))[0])
    wire.dry_run()
    first = wire.claim(channel=b"me")
    wire.replayed_claim()
    wire.claim(5, channel=b"me")
    held = ends(first)
    wire.renew(first.token, own=[held[0]])
    wire.checkpoint(held[0]._replace(status=b"half"), body=b"b", attempts=1)
    wire.claim(channel=b"me")
    wire.checkpoint(held[1], move=(NOW, 0))
    wire.checkpoint(held[2]._replace(token=NO_TOKEN), move=(DELAY, 60_000), source=b"worker")
    wire.claim(channel=b"me")
    wire.enqueue(Job(), Job(b"far", 1, ABSOLUTE, FAR_MS))
    wire.claim(1, channel=b"me")
    wire.claim(channel=b"me")
    wire.release(held[3])
    wire.release(held[4]._replace(token=NO_TOKEN), source=b"worker")
    wire.claim(channel=b"me")
    wire.claim(channel=b"me")
    wire.ack(held[0]._replace(failed=True), *held[5:8], tombstones=True)
    wire.ack(held[8]._replace(failed=True), held[9]._replace(failed=True, delay_ms=9999, token=NO_TOKEN), source=b"worker")
    wire.claim(channel=b"me")
    wire.retry_failed(level=held[0].level)
    wire.retry_failed(level=held[0].level, kind=DELAY, ms=1)
    wire.fail_and_retry_later()
    wire.claim(channel=b"me")
    ticket = wire.prepare(2)
    wire.load(ticket, Job(status=b"s"), Job(b"later", 1, DELAY, 60_000))
    wire.expire(None)
    wire.claim(channel=b"me")
    wire.configure(settings(lease_ms=1, keep=1, flags=1, succeeded_s=0, failed_s=0))
    wire.configure(settings(lease_ms=1, keep=1, succeeded_s=0, failed_s=0))
    fail_all(wire, 1)
    for state in (b"0", b"1", b"2", b"3"):
        wire.scan(state)
        wire.scan(state, future=True)
    wire.read("peek")
