"""Shards as texts and tables name them, and what a session does when they change. No server is asked.

Promises: each way of naming shards comes back from the others. A wrong one says which part is wrong, and changes
nothing.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from pinlater import InvalidArgument
from pinlater.store.shards import (
    ORIGIN_VARIABLE,
    URL_VARIABLE,
    ChosenShards,
    Session,
    read_shards,
    resolve_shards,
    shard_for_key,
    split_url,
)

A, B, C = "redis://a:1", "redis://b:2", "redis://c:3"


def chosen(urls: dict[str, str], *dequeue_only: str) -> ChosenShards:
    return ChosenShards(urls, "from a test", dequeue_only)


# names


def test_a_dequeue_only_shard_is_named_by_text_and_table_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    of_text = split_url(f"1={A}, 2:dequeue_only={B}", "here")
    of_table = read_shards({"1": A, "2": {"url": B, "dequeue_only": True}}, "here")
    assert of_text == of_table == {"1": A, "2": B}
    assert of_text.dequeue_only == of_table.dequeue_only == {"2"}
    assert str(of_text) == str(of_table) == f"1={A}, 2={B} (dequeue-only) (here)"
    assert not read_shards({"2": {"url": B, "dequeue_only": False}, "3": {"url": C}}, "").dequeue_only

    for variable in (URL_VARIABLE, ORIGIN_VARIABLE):
        monkeypatch.setenv(variable, "")
    of_text.export()
    exported = resolve_shards(None, None)
    assert (exported, exported.dequeue_only, exported.origin) == (of_text, frozenset("2"), "here")


def test_a_lone_dequeue_only_shard_shows_its_name() -> None:
    assert str(chosen({"1": A})) == f"{A} (from a test)"
    assert str(chosen({"1": A}, "1")) == f"1={A} (dequeue-only) (from a test)"


@pytest.mark.parametrize(
    ("shards", "error"),
    [
        ({"2": {"url": B, "dequeue-only": True}}, "shards.2: unknown key 'dequeue-only'; did you mean 'dequeue_only'?"),
        ({"2": {"dequeue_only": True}}, "shards.2: url: expected a URL, got None"),
        ({"2": {"url": 5}}, "shards.2: url: expected a URL, got 5"),
        ({"2": {"url": B, "dequeue_only": 1}}, "shards.2: dequeue_only: expected true or false, got 1"),
        ({"2": {"url": B, "dequeue_only": "redis://:pw@b"}}, "expected true or false, got redis://***@b"),
        ({"2": 5}, "shards: expected names and URLs, got 2 = 5"),
        ([A], "shards: expected names and URLs, got a list"),
    ],
)
def test_a_wrong_table_says_which_part_is_wrong(shards: Any, error: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(error)):
        read_shards(shards, "")


@pytest.mark.parametrize("mark", ["", "dequeueonly", "DEQUEUE_ONLY"])
def test_a_wrong_mark_in_a_text_is_an_error(mark: str) -> None:
    expected = f"shards: expected NAME=URL or NAME:dequeue_only=URL, got 2:{mark}=…"
    with pytest.raises(InvalidArgument, match=f"^{expected}$"):
        split_url(f"1={A},2:{mark}={B}", "")


# placement


def test_only_the_keys_of_a_shard_that_takes_no_jobs_move() -> None:
    keys = [b"%d" % i for i in range(1000)]
    session = Session(chosen({"1": A, "2": B, "3": C}))
    before = {key: shard_for_key(key, session.taking) for key in keys}
    session.change_shards(chosen({"1": A, "2": B, "3": C}, "2"))
    after = {key: shard_for_key(key, session.taking) for key in keys}
    assert {before[key] for key in keys if before[key] != after[key]} == {"2"}
    assert set(after.values()) == {"1", "3"}
    session.change_shards(chosen({"1": A, "2": B, "3": C}))
    assert {key: shard_for_key(key, session.taking) for key in keys} == before


# changes


def test_a_change_keeps_what_stays_the_same() -> None:
    session = Session(chosen({"1": A, "2": A, "3": B}))
    assert len(session.servers) == 2
    one, three = session.queue_shard("q", "1"), session.queue_shard("q", "3")
    assert session.change_shards(chosen({"3": B, "1": A, "4": C}, "3")) == []
    assert session.queue_shards("q") == [three, one, session.queue_shard("q", "4")]
    assert [shard.dequeue_only for shard in session.shards.values()] == [True, False, False]
    assert session.taking == ["1", "4"]
    assert [str(server) for server in session.servers] == [B, A, C]


def test_jobs_of_a_removed_shard_are_still_found_by_its_name() -> None:
    session = Session(chosen({"1": A, "2": B}))
    removed = session.queue_shard("q", "2")
    [left] = session.change_shards(chosen({"1": A}))
    assert left is removed.shard.server
    assert not left.is_used
    assert session.queue_shards("q") == [session.queue_shard("q", "1")]
    assert session.queue_shard("q", "2") is removed
    with pytest.raises(InvalidArgument, match="shard: expected one of 1, got '3'"):
        session.queue_shard("q", "3")

    assert session.change_shards(chosen({"1": A, "2": B})) == []
    assert session.queue_shards("q")[1] is removed
    assert left.is_used
    assert session.former_servers == []


def test_a_name_that_moves_to_another_server_is_another_shard() -> None:
    session = Session(chosen({"1": A, "2": B}))
    before = session.queue_shard("q", "2")
    [left] = session.change_shards(chosen({"1": A, "2": C}))
    after = session.queue_shard("q", "2")
    assert after is not before
    assert (str(left), str(after.shard.server), str(before.shard.server)) == (B, C, B)


def test_a_server_that_comes_back_counts_as_healthy() -> None:
    session = Session(chosen({"1": A, "2": B}))
    server = session.shards["2"].server
    server.outage = ValueError  # type: ignore[assignment]
    session.change_shards(chosen({"1": A}))
    assert server.outage is not None
    session.change_shards(chosen({"1": A, "2": B}))
    assert session.shards["2"].server is server
    assert server.outage is None


@pytest.mark.parametrize(
    ("urls", "error"),
    [
        ({}, "shards: expected at least one name and URL, got none"),
        ({"1": C, "2 2": B}, "shard"),
        ({"1": C, "2": "http://b"}, "server URL"),
    ],
)
def test_a_refused_change_changes_nothing(urls: dict[str, str], error: str) -> None:
    session = Session(chosen({"1": A, "2": B}, "2"))
    known = session.queue_shards("q")
    with pytest.raises(InvalidArgument, match=error):
        session.change_shards(chosen(urls, "1"))
    assert session.queue_shards("q") is known
    assert [*session.shards] == ["1", "2"]
    assert session.taking == ["1"]
    assert str(session.chosen) == f"1={A}, 2={B} (dequeue-only) (from a test)"
