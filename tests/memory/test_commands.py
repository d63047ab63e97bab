"""What scripts rely on in a server: conversions between Lua and commands, and edge cases of commands.

Promises: each line holds on Redis, on Valkey and on the memory store.
Risks: the memory store may differ in what neither these tests nor those of the scripts use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.support.servers import Server, wait_until

START = "local c, k = redis.call, KEYS[1] "
#: The code of a script after START, and its result.
SCRIPTS: dict[str, tuple[str, Any]] = {
    "a number is cut to an integer": ("return {1.9, -1.9, 3}", [1, -1, 3]),
    "true is 1, false and nil are nothing": ("return {true, false, 5}", [1, None, 5]),
    "a table ends at its first nil": ("return {1, nil, 3}", [1]),
    "nothing returned": ("local a = 1", None),
    "tables in tables": ("return {{'a'}, {}}", [[b"a"], []]),
    "a status": ("return c('SET', k, 'v')", True),
    "a status is a table": ("return c('SET', k, 'v').ok", b"OK"),
    "what is missing is false": ("return {tostring(c('HGET', k, 'f')), c('HMGET', k, 'f')}", [b"false", [None]]),
    "integers are numbers": ("return c('HSET', k, 'f', 'v') + 1", 2),
    "arguments that are numbers": (
        "c('HSET', k, 'a', 2^53, 'b', 0.5, 'c', -3, 'd', 1e15); return c('HMGET', k, 'a', 'b', 'c', 'd')",
        [b"9007199254740992", b"0.5", b"-3", b"1000000000000000"],
    ),
    "zero bytes in strings": ("return c('HSET', k, 'a\\0b', ARGV[1]) .. c('HGET', k, 'a\\0b')", b"1\xff"),
    "struct": (
        "return {struct.pack('>BI2I4I6c2', 1, 2, 3, 2^40 + 5, 'abc'), "
        "{struct.unpack('>I2c3BI6', ARGV[2], 2)}, struct.size('>I4c8')}",
        [b"\1\0\2\0\0\0\3\1\0\0\0\0\5ab", [258, b"xyz", 9, 2**40, 14], 12],
    ),
    "struct: numbers wrap": ("return {struct.pack('>I2', 65537), struct.pack('B', -1)}", [b"\0\1", b"\xff"]),
    "scores": (
        "c('ZADD', k, 1, 'a', '1.5', 'b', 1e16, 'c', '-inf', 'd'); return c('ZRANGE', k, 0, -1, 'WITHSCORES')",
        [b"d", b"-inf", b"a", b"1", b"b", b"1.5", b"c", b"10000000000000000"],
    ),
    "ties go by bytes": (
        "c('ZADD', k, 1, 'b', 1, '\\255', 1, 'a'); return c('ZRANGE', k, 0, -1)",
        [b"a", b"b", b"\xff"],
    ),
    "ranges": (
        "c('ZADD', k, 1, 'a', 2, 'b', 3, 'c'); "
        "local function by(...) return c('ZRANGE', k, ...) end; "
        "return {by('(1', '+inf', 'BYSCORE'), by('-inf', '(3', 'BYSCORE', 'LIMIT', 1, 1), "
        "by(-2, -1), by(5, 9), by(2, 1), by(0, -9)}",
        [[b"b", b"c"], [b"b"], [b"b", b"c"], [], [], []],
    ),
    "ranges from the greatest score": (
        "c('ZADD', k, 1, 'a', 2, 'b', 2, 'c', 3, 'd'); "
        "local function by(...) return c('ZRANGE', k, ...) end; "
        "return {by('+inf', '(1', 'BYSCORE', 'REV'), by('(3', '-inf', 'BYSCORE', 'REV', 'LIMIT', 1, 2, 'WITHSCORES')}",
        [[b"d", b"c", b"b"], [b"b", b"2", b"a", b"1"]],
    ),
    "the length of a field": (
        "c('HSET', k, 'a', 'abc', 'b', ''); "
        "return {c('HSTRLEN', k, 'a'), c('HSTRLEN', k, 'b'), c('HSTRLEN', k, 'c'), c('HSTRLEN', 'none', 'a')}",
        [3, 0, 0, 0],
    ),
    "greater scores only": (
        "c('ZADD', k, 5, 'a'); return {c('ZADD', k, 'GT', 4, 'a', 4, 'b'), c('ZMSCORE', k, 'a', 'b', 'c')}",
        [1, [b"5", b"4", None]],
    ),
    "what is popped": (
        "c('ZADD', k, 1, 'a', 2, 'b', 3, 'c'); return {c('ZPOPMAX', k), c('ZPOPMIN', k, 5), c('EXISTS', k)}",
        [[b"c", b"3"], [b"a", b"1", b"b", b"2"], 0],
    ),
    "what is removed": (
        "c('ZADD', k, 1, 'a', 2, 'b', 3, 'c', 4, 'd'); return {c('ZREMRANGEBYRANK', k, 0, 0), "
        "c('ZREM', k, 'c', 'x'), c('ZCARD', k)}",
        [1, 1, 2],
    ),
    "an empty key is removed": ("c('HSET', k, 'f', 'v'); return {c('HDEL', k, 'f', 'f', 'g'), c('EXISTS', k)}", [1, 0]),
    "lists": (
        "return {c('RPUSH', k, 'a', 'b'), c('PEXPIRE', k, 60000), c('PEXPIRE', 'none', 1), c('TYPE', k).ok, "
        "c('LLEN', k), c('PTTL', 'none')}",
        [2, 1, 0, b"list", 2, -2],
    ),
    "listeners": ("return c('PUBSUB', 'NUMSUB', k)", [b"key", 0]),
    "counting": ("return {c('HINCRBY', k, 'n', -2), c('HINCRBY', k, 'n', 5), c('HGET', k, 'n')}", [-2, 3, b"3"]),
}

REFUSED: dict[str, tuple[str, str]] = {
    "an error of its own": ("return redis.error_reply('MY_CODE why')", "^MY_CODE why$"),
    "another kind of value": ("c('SET', k, 'v'); return c('HGET', k, 'f')", "^WRONGTYPE "),
    "an unknown command": ("return c('NOSUCH')", "(?i)unknown"),
    "a missing argument": ("return c('HGET', k)", "(?i)wrong number of args|wrong number of arguments"),
    "no float": ("return c('ZADD', k, 'x', 'a')", "value is not a valid float"),
    "no integer": ("return c('HSET', k, 'n', 'x') + c('HINCRBY', k, 'n', 1)", "is not an integer"),
    "a write of a reader": (
        "#!lua flags=no-writes\nreturn redis.call('HSET', 'k', 'f', 'v')",
        "Write commands are not allowed",
    ),
    "an error of Lua": ("return nil + 1", "attempt to perform arithmetic"),
    "no Lua": ("return return", "(?i)error compiling script"),
    "an argument that is none": ("return c('HGET', k, {})", "must be strings or integers"),
    "struct: too short": ("return struct.unpack('>I4', 'abc')", "data string too short"),
}


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with server.client(protocol=2) as client:
        yield client


@pytest.mark.parametrize("name", SCRIPTS)
def test_between_lua_and_commands(client: redis.Redis, name: str) -> None:
    code, expected = SCRIPTS[name]
    answer: Any = client.eval(START + code, 1, "key", b"\xff", b"-\1\2xyz\t\1\0\0\0\0\0")
    assert answer == (b"OK" if expected is True else expected)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(client: redis.Redis, name: str) -> None:
    code, expected = REFUSED[name]
    with pytest.raises(redis.ResponseError, match=expected):
        client.eval(code if code.startswith("#!") else START + code, 1, "key")
    assert client.ping()


def test_scripts_are_known_until_they_are_flushed(client: redis.Redis) -> None:
    digest: Any = client.script_load("return ARGV[1]")
    assert (client.evalsha(digest, 0, "x"), client.script_exists(digest, "0" * 40)) == (b"x", [True, False])
    client.script_flush()
    with pytest.raises(redis.exceptions.NoScriptError):
        client.evalsha(digest, 0, "x")


def test_a_scan_meets_all_that_stays_while_the_rest_changes(client: redis.Redis) -> None:
    stay = {b"stay%d" % number for number in range(1500)}
    client.hset("h", mapping=dict.fromkeys([*stay, *(b"go%d" % number for number in range(500))], 1))
    client.zadd("z", dict.fromkeys(stay, 1.5))
    found, cursor, number = set[bytes](), None, 0
    while cursor != 0:
        page: Any = client.hscan("h", cursor or 0, count=100)
        cursor, fields = page
        found |= set(fields)
        client.hdel("h", b"go%d" % number)
        client.hset("h", b"come%d" % number, 1)
        number += 1
    assert stay <= found
    assert number > 5, "in pages"
    assert {name for name, score in client.zscan_iter("z") if score == 1.5} == stay
    assert set(client.scan_iter(match="[hx]*")) == {b"h"}


def test_messages_reach_subscribers(client: redis.Redis, server: Server) -> None:
    with server.client(protocol=2) as other, other.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe("news")
        pubsub.get_message(timeout=5)
        assert (client.publish("news", b"x"), client.publish("other", b"x")) == (1, 0)
        message = pubsub.get_message(timeout=5)
        assert message is not None
        assert (message["channel"], message["data"]) == (b"news", b"x")
        pubsub.unsubscribe("news")
        pubsub.get_message(timeout=5)
        assert client.publish("news", b"x") == 0


def block(connection: Any, key: str, *then: tuple[str, ...]) -> None:
    """Returns once the connection waits. The commands leave as one packet, so the server starts them together."""
    connection.send_packed_command(connection.pack_commands([("EXISTS", key), ("BLPOP", key, "0"), *then]))
    assert connection.read_response() == 0


def test_blocked_connections_are_served_in_turn_and_then_go_on(client: redis.Redis, server: Server) -> None:
    with server.client(protocol=2, client_name="first") as first, server.client(protocol=2) as second:
        connections = [each.connection_pool.get_connection() for each in (first, second)]
        for connection in connections:
            block(connection, "l", ("RPUSH", "after", "x"), ("BLPOP", "none", "0"))
        assert [connection.can_read(0.05) for connection in connections] == [False, False]
        assert client.rpush("l", "a") == 1
        assert [connections[0].read_response() for _ in range(2)] == [[b"l", b"a"], 1]
        assert client.rpush("l", "b", "c") == 2
        assert [connections[1].read_response() for _ in range(2)] == [[b"l", b"b"], 2]
        assert (client.llen("l"), client.exists("none")) == (1, 0)
        assert "first" in [each["name"] for each in client.client_list()]
        connections[0].disconnect()
        wait_until(lambda: "first" not in [each["name"] for each in client.client_list()], "its end")
        assert client.rpush("none", "d") == 1
        assert connections[1].read_response() == [b"none", b"d"]


def test_connections_that_block_on_keys_of_one_script_are_all_served(client: redis.Redis, server: Server) -> None:
    with server.client(protocol=2) as first, server.client(protocol=2) as second:
        connections = dict(zip("ab", [each.connection_pool.get_connection() for each in (first, second)], strict=True))
        for key, connection in connections.items():
            block(connection, key, ("RPUSH", "after", "x"), ("LLEN", key))
        third: Any = client.connection_pool.get_connection()
        push = "for _, k in ipairs(KEYS) do redis.call('RPUSH', k, 'x', 'y') end"
        third.send_packed_command(third.pack_commands([("EVAL", push, "2", "a", "b"), ("EXISTS", "none")]))
        assert (third.read_response(), third.read_response()) == (None, 0)
        for key, connection in connections.items():
            assert connection.read_response() == [key.encode(), b"x"]
            assert connection.read_response() in (1, 2)
            assert connection.read_response() == 1


@pytest.mark.parametrize("server", ["memory"], indirect=True)
def test_what_the_memory_store_has_counts_as_on_disk(client: redis.Redis) -> None:
    """It outlives its server as long as any disk would: nothing of it does."""
    assert client.execute_command("WAITAOF", 1, 0, 100) == [1, 0]  # type: ignore[no-untyped-call]
    assert client.config_get("appendonly", "appendfsync", "save") == {"appendonly": "yes", "appendfsync": "always"}
