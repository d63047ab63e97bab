"""The lease renewer keeps leases while Python cannot, and loses none that the server still knows.

Promises: shown on real servers of each kind at hand.
Risks: but for one test the script is a stand-in (tests/support/renewing.py), not lua/renew.lua.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis

from pinlater import Client, NewJob, QueueConfig
from pinlater._core import MAX_PRIORITY, LeaseRenewer
from pinlater.model.clocks import boot_s
from pinlater.store.keys import script_keys
from pinlater.store.scripts import load_scripts
from pinlater.worker.lease_renewal import LeaseRenewal
from tests.support.renewing import (
    DEADLINE_S,
    DONE,
    LEASE_MS,
    LEASES,
    LONG_LEASE_MS,
    NEVER,
    RENEW,
    SESSION,
    Make,
    keys,
    make,
    renewed,
    switches,
    take,
    token,
)
from tests.support.servers import Server, wait_until
from tests.support.wire import Wire, connect
from tests.support.wire_format import settings

__all__ = ["make"]  # a fixture


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with server.client() as client:
        yield client


def test_renews_again_and_again(server: Server, client: redis.Redis, make: Make) -> None:
    renewer = make(server)
    take(client, 1)
    renewer.hold(renewer.add_queue(keys()), 1, token(1), token(1), LEASE_MS)
    assert renewer.wait_renewed(4, DEADLINE_S)
    stats = renewer.stats()
    assert stats.renewals >= 4
    assert stats.tokens_renewed >= 4
    assert (stats.failures, stats.last_error, stats.connected, stats.held) == (0, "", True, 1)
    assert int(client.zscore(LEASES, token(1)) or 0) > 1
    assert renewer.take_lost() == []


def test_two_thirds_of_a_lease_are_left_when_it_is_renewed(server: Server, client: redis.Redis, make: Make) -> None:
    renewer = make(server, script=RENEW.replace(b"now + 150", b"now + 3000"))
    take(client, 1)
    renewer.hold(renewer.add_queue(keys()), 1, token(1), token(1), 3_000)
    assert [renewed(client), renewed(client)] == [1, 1]
    # 2 s, but for what a loaded machine takes; the first lease was not given by the script.
    assert int(client.lindex(DONE + b":left", 1) or 0) > 1_000


def test_the_first_renewal_comes_when_the_caller_says(server: Server, client: redis.Redis, make: Make) -> None:
    """The next one after a third of the lease, so calls for another lease do not carry it."""
    renewer = make(server)
    queue = renewer.add_queue(keys())
    take(client, 1, 2)
    renewer.hold(queue, 1, token(1), token(1), LONG_LEASE_MS, 1)
    assert renewer.wait_renewed(1, DEADLINE_S)
    renewer.hold(queue, 1, token(2), token(2), LEASE_MS)
    assert renewer.wait_renewed(4, DEADLINE_S)
    stats = renewer.stats()
    assert stats.tokens_renewed == stats.renewals


def test_the_renew_script_itself(server: Server, client: redis.Redis, make: Make) -> None:
    script = load_scripts()["renew"]
    config = [
        struct.pack(">BBBQIIIIIII", 2, 0, priorities, 1, 1, 1, 60_000, 0, 0, 0, 1 << 20)
        for priorities in (2, MAX_PRIORITY)
    ]
    tag = "pl:{q/s}:"
    client.hset(tag + "meta", mapping={"config": config[0], "head": bytes(15)})
    client.hset(tag + "lease_jobs", mapping={token(1).decode(): b""})
    names = [name.removesuffix("*") for name in script.keys if not name.endswith("*")]
    names += [f"running:{priority}" for priority in range(1, MAX_PRIORITY + 1)]
    renewer = make(server, script=script.source)
    queue = renewer.add_queue([(tag + name).encode() for name in names])
    renewer.hold(queue, 1, token(1), token(1), LEASE_MS)
    renewer.hold(queue, 1, token(2), token(2), LEASE_MS)
    assert renewer.wait_renewed(3, DEADLINE_S), renewer.stats().last_error
    assert renewer.take_lost() == [(queue, token(2))]
    assert client.zrange(tag + "leases", 0, -1) == [token(1)]
    client.hset(tag + "meta", "config", config[1])  # the queue has more priorities now
    assert renewer.wait_renewed(renewer.stats().renewals + 2, DEADLINE_S), renewer.stats().last_error
    client.delete(tag + "meta")
    wait_until(lambda: renewer.stats().held == 0, "the tokens of a deleted queue let go")
    assert renewer.take_lost() == [(queue, token(1))]
    assert renewer.stats().failures == 0


def test_a_claim_of_a_priority_that_the_worker_does_not_know_yet_is_renewed_too(server: Server) -> None:
    lease = QueueConfig(lease_ms=300)
    renewal = LeaseRenewal(5.0)
    with Client(server.url) as client, connect(server) as raw:
        client.create_queue("q", replace(lease, priorities=5))
        client.enqueue_many("q", [NewJob(b"", priority=priority) for priority in (1, 5)])
        jobs = client.dequeue("q", 2)
        try:
            renewal.hold(client.session.queue_shard("q", "1"), jobs, lease, time.monotonic())
            (renewer,) = renewal.renewers.values()
            assert renewer.wait_renewed(2, 30)
            assert raw.zcard("pl:{q/1}:leases") == 1
            assert (renewer.stats().failures, renewer.take_lost()) == (0, [])
        finally:
            renewal.close()


def test_a_claim_whose_answer_came_late_is_renewed_at_once(server: Server) -> None:
    lease = QueueConfig(lease_ms=LONG_LEASE_MS)
    renewal, late_s = LeaseRenewal(5.0), LONG_LEASE_MS / 1000 * 0.9
    with Client(server.url) as client:
        client.create_queue("q", lease)
        client.enqueue("q", b"")
        jobs = client.dequeue("q", 1)
        try:
            # until then the loop was blocked, or the answer was lost: a third of the lease from now would be too late
            renewal.hold(client.session.queue_shard("q", "1"), jobs, lease, boot_s() - late_s)
            (renewer,) = renewal.renewers.values()
            assert renewer.wait_renewed(1, DEADLINE_S), "expected a renewal at once, none came"
        finally:
            renewal.close()


def test_a_job_past_its_limit_leaves_its_claims_lease(server: Server, make: Make) -> None:
    with connect(server) as client:
        wire = Wire(client)
        wire.create(settings(lease_ms=300))
        wire.enqueue_bodies(b"0", b"1", b"2")
        claimed = wire.claim()
        first, second, third = (job.id for job in claimed.jobs)
        renewer = make(server, script=load_scripts()["renew"].source)
        queue = renewer.add_queue(script_keys(wire.queue, wire.shard, load_scripts()["renew"].keys, wire.priorities))
        renewer.hold(queue, 1, first, claimed.token, 300)
        for id_, after_s in ((first, 0.05), (second, 0.05), (third, 3600.0)):
            renewer.limit(queue, 1, id_, claimed.token, after_s)
        renewer.drop_limit(queue, second)
        renewer.drop_limit(queue, bytes(8))
        wire.expire(None)
        wait_until(lambda: wire.expire().retried, "the job past its limit to come back")
        assert [info.crashes for info in wire.lookup([first, second, third]) if info] == [1, 0, 0]
        assert wire.claim().jobs[0].id == first
        # those left part from their lease too: that the server does not know it any more is no news
        renewer.limit(queue, 1, second, claimed.token, 0.0)
        renewer.limit(queue, 1, third, claimed.token, 0.0)
        wait_until(lambda: not client.hexists(wire.key("lease_jobs"), claimed.token), "the end of the claim's lease")
        wait_until(lambda: renewer.stats().held == 0, "the renewer to let it go")
        assert renewer.take_lost() == []
        assert renewer.stats().failures == 0
        for wrong in (
            (9, 1, first, claimed.token, 1.0),
            (queue, 1, b"", claimed.token, 1.0),
            (queue, 1, first, b"", 1),
        ):
            with pytest.raises(ValueError, match="expected"):
                renewer.limit(*wrong)
        with pytest.raises(ValueError, match="expected seconds"):
            renewer.limit(queue, 1, first, claimed.token, -1.0)


def test_a_lane_a_queue_and_sequences_in_a_row(server: Server, client: redis.Redis, make: Make) -> None:
    renewer = make(server)
    for number, name in enumerate((b"a", b"b")):
        take(client, number, key=keys(name)[0])
        renewer.hold(renewer.add_queue(keys(name)), 1, token(number), token(number), LEASE_MS)
    for slot, name in enumerate((b"a", b"b")):
        for sequence in (1, 2, 3):
            popped: Any = client.blpop([keys(name)[1] + b":lanes"], timeout=DEADLINE_S)
            assert popped[1] == SESSION + slot.to_bytes(2) + sequence.to_bytes(4)


def test_the_gil_held_for_many_leases_ends_none(server: Server, client: redis.Redis, make: Make) -> None:
    # waitpid, called without giving up the GIL, returns once the child has seen 12 renewals: 4 leases' worth.
    count = "import sys, redis; c = redis.Redis(port=int(sys.argv[1]))\n"
    count += f"sys.exit(any(c.blpop([sys.argv[2]], timeout={DEADLINE_S}) is None for _ in range(12)))"
    take(client, 1)
    renewer = make(server)
    renewer.hold(renewer.add_queue(keys()), 1, token(1), token(1), LEASE_MS)
    arguments = [sys.executable, "-c", count, str(server.port), DONE.decode()]
    child = os.posix_spawn(sys.executable, arguments, os.environ)
    status = ctypes.c_int(-1)
    assert ctypes.PyDLL(None).waitpid(child, ctypes.byref(status), 0) == child
    assert status.value == 0
    assert renewer.stats().failures == 0


HOLDER = """
import sys
from pinlater._core import LeaseRenewer
from pinlater.model.clocks import boot_s
from pinlater.store.keys import script_keys
from pinlater.store.scripts import load_scripts
address, script, lease_ms, *keys = sys.argv[1:]
renewer = LeaseRenewer(address, [], script.encode(), b"session2")
renewer.hold(renewer.add_queue([key.encode() for key in keys]), 1, (1).to_bytes(8), (1).to_bytes(8), int(lease_ms))
sys.stdin.read()
"""


def test_a_stopped_process_renews_nothing(server: Server, client: redis.Redis) -> None:
    take(client, 1)
    arguments = [f"127.0.0.1:{server.port}", RENEW.decode(), str(LEASE_MS), *(key.decode() for key in keys())]
    with subprocess.Popen([sys.executable, "-c", HOLDER, *arguments], stdin=subprocess.PIPE) as holder:
        renewed(client)
        holder.send_signal(signal.SIGSTOP)
        os.waitpid(holder.pid, os.WUNTRACED)
        client.delete(DONE)
        assert client.blpop([DONE], timeout=8 * LEASE_MS / 1000) is None
        seconds, microseconds = client.time()
        assert (client.zscore(LEASES, token(1)) or 0) < seconds * 1000 + microseconds / 1000
        holder.send_signal(signal.SIGCONT)
        assert renewed(client) == 1


def test_lost_tokens_are_reported_once_and_dropped(server: Server, client: redis.Redis, make: Make) -> None:
    renewer = make(server)
    take(client, 1, 3)
    queue = renewer.add_queue(keys())
    for number in (1, 2, 3, 4):
        renewer.hold(queue, 1, token(number), token(number), LEASE_MS)
    assert renewer.wait_renewed(1, DEADLINE_S)
    assert sorted(renewer.take_lost()) == [(queue, token(2)), (queue, token(4))]
    assert renewer.take_lost() == []
    assert renewer.stats().held == 2
    assert renewed(client) == 4
    assert renewed(client) == 2


def test_a_deleted_queue_loses_all_its_tokens_and_no_other(server: Server, client: redis.Redis, make: Make) -> None:
    renewer = make(server)
    gone, kept = renewer.add_queue(keys(b"gone")), renewer.add_queue(keys(b"kept"))
    client.set(keys(b"gone")[2], "QUEUE_NOT_FOUND no queue gone")
    take(client, 9, key=keys(b"kept")[0])
    renewer.hold(gone, 1, token(1), token(1), LEASE_MS)
    renewer.hold(gone, 1, token(2), token(2), LONG_LEASE_MS)
    renewer.hold(kept, 1, token(9), token(9), LEASE_MS)
    wait_until(lambda: renewer.stats().held == 1, "the gone queue's tokens let go")
    assert sorted(renewer.take_lost()) == [(gone, token(1)), (gone, token(2))]
    assert renewer.wait_renewed(renewer.stats().renewals + 2, DEADLINE_S)
    assert renewer.stats().failures == 0


def test_a_dropped_token_is_not_renewed(server: Server, client: redis.Redis, make: Make) -> None:
    renewer = make(server)
    queue = renewer.add_queue(keys())
    renewer.hold(queue, 1, token(1), token(1), LEASE_MS)
    renewer.drop(queue, token(1))
    renewer.drop(queue, token(1))
    take(client, 2)
    renewer.hold(queue, 1, token(2), token(2), LEASE_MS)
    assert [renewed(client), renewed(client)] == [1, 1]
    assert (renewer.stats().held, renewer.take_lost()) == (1, [])


def test_a_call_carries_at_most_a_thousand_tokens(server: Server, client: redis.Redis, make: Make) -> None:
    renewer = make(server)
    queue = renewer.add_queue(keys())
    take(client, *range(2500))
    for number in range(2500):
        renewer.hold(queue, 1, token(number), token(number), 9_000)  # 3 s until the first is due: all are held by then
    assert sorted(renewed(client) for _ in range(3)) == [500, 1000, 1000]
    assert renewer.take_lost() == []


def test_what_is_nearly_due_joins_a_call(server: Server, client: redis.Redis, make: Make) -> None:
    renewer = make(server)
    queue = renewer.add_queue(keys())
    take(client, 1, 2, 3)
    for number, lease_ms in ((1, 3_000), (2, 3_200), (3, LONG_LEASE_MS)):
        renewer.hold(queue, 1, token(number), token(number), lease_ms)
    assert renewed(client) == 2


def test_with_nothing_held_nothing_is_sent(server: Server, client: redis.Redis, make: Make) -> None:
    renewer = make(server)
    queue = renewer.add_queue(keys())
    take(client, 1)
    renewer.hold(queue, 1, token(1), token(1), LEASE_MS)
    assert renewer.wait_renewed(2, DEADLINE_S)
    renewer.drop(queue, token(1))
    assert not renewer.wait_renewed(renewer.stats().renewals + 2, 2 * LEASE_MS / 1000)
    before = server.info("stats")["total_commands_processed"]
    renewals, slept = renewer.stats().renewals, switches()
    assert len(slept) == 1
    assert not renewer.wait_renewed(NEVER, 8 * LEASE_MS / 1000)
    assert (renewer.stats().renewals, switches()) == (renewals, slept)
    # INFO's own connection sends a few commands (CLIENT SETINFO, INFO): as many as a second one shows.
    between = server.info("stats")["total_commands_processed"]
    after = server.info("stats")["total_commands_processed"]
    assert between - before == after - between
    assert renewer.stats().connected


def test_close_ends_a_read_and_a_wait_under_way(fresh_server: Callable[..., Server], make: Make) -> None:
    server = fresh_server()
    renewer = make(server, timeout_s=3600.0)  # a close that did not wake the read would meet the time limit
    with server.client() as client:
        take(client, 1)
    queue = renewer.add_queue(keys())
    renewer.hold(queue, 1, token(1), token(1), LEASE_MS)
    assert renewer.wait_renewed(1, DEADLINE_S)
    server.pause()
    assert not renewer.wait_renewed(renewer.stats().renewals + 2, 2 * LEASE_MS / 1000)
    waiting = threading.Thread(target=renewer.wait_renewed, args=(NEVER, 3600.0))
    waiting.start()
    renewer.close()
    renewer.close()
    waiting.join()
    server.resume()
    with pytest.raises(RuntimeError, match=r"expected an open LeaseRenewer, came use after close\(\)"):
        renewer.hold(queue, 1, token(2), token(2), LEASE_MS)
    with pytest.raises(RuntimeError, match="after close"):
        renewer.add_queue(keys())
    renewer.drop(queue, token(1))
    assert renewer.stats().held == 0


def test_a_renewer_let_go_ends_its_thread(server: Server) -> None:
    before = len(switches())
    renewer = LeaseRenewer(f"127.0.0.1:{server.port}", [], RENEW, SESSION)
    wait_until(lambda: len(switches()) == before + 1, "the thread's start")
    del renewer
    wait_until(lambda: len(switches()) == before, "the thread's end")


FORKED = """
import os, sys
from pinlater._core import LeaseRenewer
from pinlater.model.clocks import boot_s
from pinlater.store.keys import script_keys
from pinlater.store.scripts import load_scripts
address, script, *keys = sys.argv[1:]
renewer = LeaseRenewer(address, [], script.encode(), b"session3")
queue = renewer.add_queue([key.encode() for key in keys])
renewer.hold(queue, 1, (1).to_bytes(8), (1).to_bytes(8), 150)
assert renewer.wait_renewed(1, 30)
child = os.fork()
if child == 0:
    calls = [lambda: renewer.hold(queue, 1, bytes(8), bytes(8), 1), lambda: renewer.drop(queue, bytes(8))]
    calls += [lambda: renewer.wait_renewed(1, 1), lambda: renewer.add_queue([])]
    calls += [renewer.take_lost, renewer.stats]
    for call in calls:
        try:
            call()
        except RuntimeError as error:
            assert "forked" in str(error) and "make a new one" in str(error), error
        else:
            os._exit(1)
    renewer.close()
    del calls, call, renewer
    again = LeaseRenewer(address, [], script.encode(), b"session4")
    again.hold(again.add_queue([key.encode() for key in keys]), 1, (1).to_bytes(8), (1).to_bytes(8), 150)
    os._exit(0 if again.wait_renewed(1, 30) else 2)
assert os.waitpid(child, 0)[1] == 0
before = renewer.stats()
assert renewer.wait_renewed(before.renewals + 2, 30)
assert renewer.stats().failures == 0, renewer.stats().last_error
"""


def test_a_forked_child_is_refused_and_its_parent_goes_on(server: Server, client: redis.Redis) -> None:
    take(client, 1)
    arguments = [f"127.0.0.1:{server.port}", RENEW.decode(), *(key.decode() for key in keys())]
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED, *arguments],
        capture_output=True,
        text=True,
        timeout=3 * DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"at": "localhost"}, 'expected an address "host:port" or "unix:/path", came "localhost"'),
        ({"at": "localhost:port"}, 'expected an address .*, came "localhost:port"'),
        ({"at": "unix:"}, 'expected an address .*, came "unix:"'),
        ({"session": b"short"}, "expected a session of 8 bytes, came 5 bytes"),
        ({"handshake": [b"AUTH secret\r\n"]}, "expected RESP arrays as handshake commands, came other bytes"),
        ({"timeout_s": 0.0}, "expected a timeout_s above 0 and up to 86400, came 0"),
        ({"timeout_s": float("nan")}, "expected a timeout_s above 0 and up to 86400, came NaN"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options: dict[str, Any], expected: str, make: Make) -> None:
    with pytest.raises(ValueError, match=expected):
        make(**{"at": "127.0.0.1:1", **options})


def test_wrong_holds_are_refused(make: Make) -> None:
    renewer = make("127.0.0.1:1")
    queue = renewer.add_queue(keys())
    with pytest.raises(ValueError, match="expected a token of 8 bytes, came 3 bytes"):
        renewer.hold(queue, 1, token(1), b"abc", LEASE_MS)
    with pytest.raises(ValueError, match="expected a id of 8 bytes, came 2 bytes"):
        renewer.hold(queue, 1, b"ab", token(1), LEASE_MS)
    with pytest.raises(ValueError, match="expected a queue handle below 1, came 1"):
        renewer.hold(queue + 1, 1, token(1), token(1), LEASE_MS)
    with pytest.raises(ValueError, match="expected a lease of at least 1 ms, came 0"):
        renewer.hold(queue, 1, token(1), token(1), 0)
    assert renewer.stats().held == 0


def test_the_handles_end_at_a_slot_of_two_bytes(make: Make) -> None:
    renewer = make("127.0.0.1:1")
    assert [renewer.add_queue([]) for _ in range(65_536)][-1] == 65_535
    with pytest.raises(ValueError, match="expected at most 65536 queues of one renewer, came one more"):
        renewer.add_queue([])
