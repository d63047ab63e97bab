"""The proxy cuts at the chosen point, seen from both sides: what the client gets and what the server executed.

Promises: every kind of cut is shown against a real server, with FIN and with RST.
Risks: a script here has the wire contract's shape (lane, sequence) but is not one of the project's.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.cut_proxy import Cut, CutProxy, is_script
from tests.support.resp import message_end, parse_command
from tests.support.servers import Server, wait_until

LANE = b"session!" + b"\0\1"
COUNT_SCRIPT = "return redis.call('INCR', KEYS[1])"
WORDS_SCRIPT = "return {redis.call('INCR', KEYS[1]), 'a word', {'nested', 'words'}}"
SILENCE_S = 0.2  # a connection without data for this long is silent: a round trip takes under 1 ms


@pytest.fixture
def proxy(server: Server) -> Iterator[CutProxy]:
    with CutProxy(server.port) as new:
        yield new


@pytest.fixture
def client(proxy: CutProxy) -> Iterator[redis.Redis]:
    with redis.Redis(port=proxy.port, retry=Retry(NoBackoff(), 0), socket_timeout=10) as new:
        yield new


def count(client: redis.Redis, sequence: int = 1) -> object:
    return client.eval(COUNT_SCRIPT, 1, "count", LANE, sequence.to_bytes(4, "big"))


def request(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def executed(server: Server) -> int:
    return int(server.call("GET", "count") or 0)


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize(("cut", "executions"), [(Cut.BEFORE, 0), (Cut.AFTER, 1), (Cut.REPLY, 1)])
def test_a_cut_ends_the_connection_once(
    server: Server, proxy: CutProxy, client: redis.Redis, cut: Cut, executions: int, reset: bool
) -> None:
    proxy.arm(cut, reset=reset)
    with pytest.raises(redis.ConnectionError):
        count(client)
    proxy.wait_cut()
    assert executed(server) == executions
    assert count(client) == executions + 1
    assert proxy.cuts == 1
    assert [seen.forwarded for seen in proxy.scripts] == [cut is not Cut.BEFORE, True]


@pytest.mark.parametrize(("reset", "ending"), [(False, b""), (True, ConnectionResetError)], ids=["fin", "rst"])
@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
def test_reset_chooses_how_the_client_sees_the_end(
    proxy: CutProxy, cut: Cut, reset: bool, ending: bytes | type[Exception]
) -> None:
    proxy.arm(cut, reset=reset)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as raw:
        raw.sendall(request(b"EVAL", COUNT_SCRIPT.encode(), b"1", b"count"))
        if isinstance(ending, bytes):
            assert raw.recv(100) == ending
        else:
            with pytest.raises(ending):
                raw.recv(100)


def test_a_cut_inside_the_reply_delivers_exactly_that_many_bytes(server: Server, proxy: CutProxy) -> None:
    call = request(b"EVAL", WORDS_SCRIPT.encode(), b"1", b"count")
    whole = read_all(proxy, call + request(b"QUIT")).removesuffix(b"+OK\r\n")
    assert proxy.reply_sizes == [len(whole)]
    for size in range(len(whole) + 1):
        proxy.arm(Cut.REPLY, reply_bytes=size)
        server.call("SET", "count", 0)
        assert read_all(proxy, call) == whole[:size]
        assert executed(server) == 1
    assert proxy.cuts == len(whole) + 1
    assert proxy.reply_sizes == [len(whole)] * (len(whole) + 2)


def read_all(proxy: CutProxy, data: bytes) -> bytes:
    received = b""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as raw:
        raw.sendall(data)
        while chunk := raw.recv(1000):
            received += chunk
    return received


def test_replies_before_the_cut_arrive(server: Server, proxy: CutProxy) -> None:
    proxy.arm(Cut.BEFORE)
    call = request(b"EVAL", COUNT_SCRIPT.encode(), b"1", b"count")
    assert read_all(proxy, request(b"PING") + request(b"ECHO", b"x" * 100_000) + call) == (
        b"+PONG\r\n$100000\r\n" + b"x" * 100_000 + b"\r\n"
    )
    assert executed(server) == 0


def test_an_arm_waits_for_its_command_and_counts(proxy: CutProxy, client: redis.Redis) -> None:
    proxy.arm(Cut.AFTER, match=lambda command: command[0] == b"INCRBY", nth=2, count=2)
    assert count(client) == 1
    assert client.incr("count") == 2
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            client.incr("count")
    assert client.incr("count") == 5
    assert proxy.cuts == 2


def test_disarm_forgets_what_has_not_fired(proxy: CutProxy, client: redis.Redis) -> None:
    proxy.arm(Cut.BEFORE)
    proxy.disarm()
    assert count(client) == 1
    with pytest.raises(TimeoutError, match="expected 1 cuts"):
        proxy.wait_cut(timeout_s=0)


@pytest.mark.parametrize(("cut", "executions"), [(Cut.BLACKHOLE, 0), (Cut.MUTE, 1)])
def test_a_silent_cut_keeps_the_connection_open(server: Server, proxy: CutProxy, cut: Cut, executions: int) -> None:
    proxy.arm(cut)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=SILENCE_S) as raw:
        raw.sendall(request(b"EVAL", COUNT_SCRIPT.encode(), b"1", b"count"))
        proxy.wait_cut()
        raw.sendall(request(b"PING"))
        with pytest.raises(TimeoutError):
            raw.recv(100)
    assert executed(server) == executions


def test_a_delayed_reply_comes_when_released(server: Server, proxy: CutProxy, client: redis.Redis) -> None:
    proxy.arm(Cut.DELAY)
    replies: list[object] = []
    calling = threading.Thread(target=lambda: replies.append(count(client)))
    calling.start()
    proxy.wait_cut()
    assert (executed(server), replies) == (1, [])
    proxy.release()
    calling.join(10)
    assert replies == [1]


def test_a_delayed_reply_comes_by_itself_after_its_time(proxy: CutProxy, client: redis.Redis) -> None:
    proxy.arm(Cut.DELAY, delay_s=0.01)
    assert count(client) == 1
    assert proxy.cuts == 1


def test_refuse_refuses_connects_until_accept(proxy: CutProxy, client: redis.Redis) -> None:
    assert count(client) == 1
    proxy.refuse()
    with redis.Redis(port=proxy.port, retry=Retry(NoBackoff(), 0)) as late:
        with pytest.raises(redis.ConnectionError, match="refused"):
            late.ping()
        assert count(client) == 2  # an open connection stays
        proxy.cut_all()
        with pytest.raises(redis.ConnectionError):
            count(client)
        proxy.accept()
        assert late.ping()
    assert count(client) == 3


def test_the_log_shows_a_resend(proxy: CutProxy, client: redis.Redis) -> None:
    proxy.arm(Cut.AFTER)
    with pytest.raises(redis.ConnectionError):
        count(client, sequence=7)
    count(client, sequence=7)
    first, second = proxy.scripts
    assert (first.name, first.lane, first.sequence) == ("EVAL", LANE, 7)
    assert (second.lane, second.sequence) == (first.lane, first.sequence)
    assert second.connection != first.connection
    assert (first.cut, second.cut) == (Cut.AFTER, None)


def test_a_dead_server_ends_the_connection(server: Server, proxy: CutProxy, client: redis.Redis) -> None:
    assert count(client) == 1
    server.kill()
    with pytest.raises(redis.ConnectionError):
        count(client)
    server.start()
    assert count(client) == 1


@pytest.mark.parametrize("protocol", [2, 3])
def test_messages_to_a_subscriber_pass(server: Server, proxy: CutProxy, protocol: int) -> None:
    with redis.Redis(port=proxy.port, protocol=protocol) as client, client.pubsub() as subscriber:
        subscriber.subscribe("news")
        wait_until(lambda: server.call("PUBLISH", "news", "hello"), "a subscriber")
        seen = [subscriber.get_message(timeout=10) for _ in range(2)]
    assert [message["type"] for message in seen if message] == ["subscribe", "message"]


@pytest.mark.parametrize(
    "message",
    [
        b"+OK\r\n",
        b":1\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"_\r\n",
        b"$4\r\n\r\n\r\n\r\n",
        b"*2\r\n*1\r\n$1\r\na\r\n:5\r\n",
        b"%1\r\n+k\r\n~2\r\n#t\r\n,1.5\r\n",
        b"|1\r\n+ttl\r\n:1\r\n=7\r\ntxt:abc\r\n",
        b"!5\r\nERR x\r\n",
        b"-ERR no\r\n",
    ],
)
def test_a_message_ends_with_its_last_byte(message: bytes) -> None:
    assert message_end(message + b"+NEXT\r\n") == len(message)
    assert [message_end(message[:size]) for size in range(len(message))] == [None] * len(message)


def test_a_command_is_parsed_to_its_arguments() -> None:
    words = [b"EVALSHA", b"\r\n$3\r\n", b"", b"\0\xff"]
    assert parse_command(request(*words)) == words
    assert [is_script(words), is_script([b"GET", b"EVAL"])] == [True, False]
