"""A reply is lost at every point of every call: the caller gets the real answer, and the call was carried out once.

Promises: each script that a client's method sends is cut before the request, after it, and inside its reply. The resend
uses the same lane and the same number. The daily run cuts the reply at its first and last bytes, the thorough run at
every 32nd byte up to 200, PINLATER_CAMPAIGN=1 at every byte.
Risks: the pause between two tries is shortened.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pinlater import Client
from tests.support.cut_cases import (
    READS,
    REPEATED,
    WRITES,
    Case,
    Make,
    begin,
    direct,
    make,
    of,
    proxy,
    sent,
    whole_reply,
)
from tests.support.cut_proxy import Cut, CutProxy
from tests.support.resp import Command
from tests.support.servers import Server, wait_until

__all__ = ["direct", "make", "proxy"]  # fixtures

CAMPAIGN = bool(os.environ.get("PINLATER_CAMPAIGN"))
MOST_BYTES = 200  # the rest of a reply is bodies
STRIDE = 1 if CAMPAIGN else 32
THOROUGHLY = pytest.param(True, marks=pytest.mark.thorough("inside-replies"), id="inside")
READ_TIMEOUT_S = 0.3  # for a silent server; a call takes under 1 ms, on a loaded machine more

#: Behind these the registry is read in the same pipeline, and those answers are lost too.
REGISTRY_BEHIND = ("config", "permit")

#: A write of each kind: enqueue, claim, end, move.
STANDING = [case for case in WRITES if CAMPAIGN or case.name in ("enqueue", "claim", "ack failed", "retry_jobs")]


def bytes_of(size: int, inside: bool) -> list[int]:
    """Numbers of bytes of a reply after which to cut."""
    return list(range(0, min(MOST_BYTES, size) + 1, STRIDE)) if inside else sorted({0, 1, size - 1, size})


@pytest.mark.parametrize("inside", [pytest.param(False, id="edges"), THOROUGHLY])
@pytest.mark.parametrize("case", [*WRITES, *READS, *REPEATED], ids=lambda case: case.name)
def test_the_answer_is_the_real_one_wherever_the_connection_breaks(
    case: Case, inside: bool, make: Make, direct: Client, proxy: CutProxy
) -> None:
    calls = make()
    size = whole_reply(case, calls, direct, proxy)
    cuts = [(Cut.BEFORE, 0, False), (Cut.BEFORE, 0, True), (Cut.AFTER, 0, False), (Cut.AFTER, 0, True)]
    cuts += [(Cut.REPLY, count, False) for count in bytes_of(size, inside)]
    for number, (cut, count, reset) in enumerate(cuts):
        queue = f"q{number}"
        needed = begin(case, calls, direct, queue)
        before = len(sent(proxy, case, queue))
        proxy.arm(cut, reply_bytes=count, match=of(case, queue), reset=reset)
        answer = case.call(calls, queue, needed)
        proxy.wait_cut(cuts=number + 1)
        assert case.holds(direct, queue, answer, needed), (cut, count)
        tries = sent(proxy, case, queue)[before:]
        whole = count >= size and cut is Cut.REPLY and case.verb not in REGISTRY_BEHIND
        assert len(tries) == (1 if whole else 2), (cut, count)
        if case in WRITES:
            assert len({(seen.lane, seen.sequence) for seen in tries}) == 1, (cut, count)


@pytest.mark.parametrize("cut", [Cut.BLACKHOLE, Cut.MUTE])
@pytest.mark.parametrize("case", [*STANDING, READS[0]], ids=lambda case: case.name)
def test_a_silent_server_is_asked_again_on_the_same_lane(
    case: Case, cut: Cut, make: Make, direct: Client, proxy: CutProxy
) -> None:
    calls = make(read_timeout_s=READ_TIMEOUT_S)
    needed = begin(case, calls, direct, "q")
    before = len(sent(proxy, case, "q"))
    proxy.arm(cut, match=of(case, "q"))
    answer = case.call(calls, "q", needed)
    assert case.holds(direct, "q", answer, needed)
    tries = sent(proxy, case, "q")[before:]
    assert proxy.cuts == 1
    assert len(tries) >= 2
    assert case in READS or len({(seen.lane, seen.sequence) for seen in tries}) == 1


@pytest.mark.parametrize("case", STANDING, ids=lambda case: case.name)
def test_a_paused_server_carries_out_a_call_once(
    case: Case, make: Make, direct: Client, proxy: CutProxy, server: Server
) -> None:
    calls = make(read_timeout_s=READ_TIMEOUT_S, connect_timeout_s=READ_TIMEOUT_S)
    needed = begin(case, calls, direct, "q")
    before = len(proxy.requests)
    with ThreadPoolExecutor(1) as thread:
        server.pause()
        try:
            answer = thread.submit(case.call, calls, "q", needed)
            # the first try and, on connections that the kernel accepts, two more
            wait_until(lambda: len(proxy.requests) >= before + 3, "two resends")
        finally:
            server.resume()
        assert case.holds(direct, "q", answer.result(), needed)


def test_threads_keep_their_answers_apart_while_connections_break(make: Make, direct: Client, proxy: CutProxy) -> None:
    """Eight threads call on one client, and every third reply is lost."""
    calls = make()
    direct.create_queue("q")
    turn = iter(range(10**9))
    lock = threading.Lock()

    def third(command: Command) -> bool:
        with lock:
            return command[:1] == [b"EVALSHA"] and next(turn) % 3 == 0

    proxy.arm(Cut.AFTER, match=third, count=10**9)

    def put_and_look(number: int) -> bool:
        body = b"body %d" % number
        descriptor = calls.enqueue("q", body)
        info = calls.lookup([descriptor], with_body=True)[descriptor]
        return bool(info.body == body)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(put_and_look, range(100)))
    proxy.disarm()
    assert direct.count("q").pending == 100
