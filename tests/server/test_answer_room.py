"""Room for the answers of a process: who waits, in which order, and that a single call always has room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from pinlater.server.answer_room import AnswerRoom
from tests.support.handlers_for_tests import on_loop


@pytest.fixture
def started() -> list[str]:
    return []


def test_calls_start_in_their_order_when_there_is_room(started: list[str]) -> None:
    room = AnswerRoom(10)

    def take(size: int, name: str) -> Callable[[], None]:
        room.take(size, lambda: started.append(name))
        return lambda: room.give(size)

    first, second = take(6, "a"), take(4, "b")
    third, fourth = take(5, "c"), take(1, "d")
    assert (started, room.held_bytes) == (["a", "b"], 10)
    second()
    assert started == ["a", "b"]  # d has room, but c came before it
    first()
    assert (started, room.held_bytes) == (["a", "b", "c", "d"], 6)
    third()
    fourth()
    assert room.held_bytes == 0


def test_a_call_that_is_larger_than_all_room_runs_alone(started: list[str]) -> None:
    room = AnswerRoom(10)
    room.take(99, partial(started.append, "a"))
    room.take(99, partial(started.append, "b"))
    assert started == ["a"]
    room.give(99)
    assert started == ["a", "b"]


@on_loop
async def test_a_block_waits_for_room_and_gives_it_back() -> None:
    room = AnswerRoom(10)

    async def held() -> int:
        async with room.taken(8):
            return room.held_bytes

    async with room.taken(8):
        waits = asyncio.ensure_future(held())
        await asyncio.sleep(0)
        assert not waits.done()
    assert await waits == 8
    assert room.held_bytes == 0
