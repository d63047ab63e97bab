"""What gathers calls into script calls: store/call_batches.Coalescer.

Promises: calls that wait together leave together; a flush that hangs or fails holds nobody up; each call gets its own
result.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pinlater.model.errors import PinLaterError
from pinlater.store.call_batches import MAX_ITEMS, Coalescer
from tests.support.handlers_for_tests import on_loop, until


async def gathering(patient: bool) -> tuple[Coalescer[int], list[list[int]], asyncio.Event]:
    """A coalescer, its flushes, and what lets a flush end."""
    flushes: list[list[int]] = []
    goes_on = asyncio.Event()

    async def run(items: list[int]) -> list[int]:
        flushes.append(items)
        await goes_on.wait()
        return items

    return Coalescer(run, set(), patient=patient), flushes, goes_on


@on_loop
async def test_a_patient_coalescer_waits_for_the_flush_under_way() -> None:
    coalescer, flushes, goes_on = await gathering(True)
    futures = [coalescer.add(1, 0)]
    await until(lambda: flushes, "a flush")
    futures += [coalescer.add(each, 0) for each in (2, 3)]
    goes_on.set()
    assert await asyncio.gather(*futures) == [1, 2, 3]
    assert flushes == [[1], [2, 3]]
    assert coalescer.is_empty


@on_loop
async def test_a_flush_that_hangs_holds_nobody_up() -> None:
    coalescer, flushes, goes_on = await gathering(True)
    first = coalescer.add(1, 0)
    await until(lambda: flushes, "a flush")
    coalescer.add(2, 0)
    await until(lambda: len(flushes) == 2, "another flush")
    # as many as one script call takes leave at once
    coalescer.add(3, 0, jobs=MAX_ITEMS)
    last = coalescer.add(4, 0)
    await until(lambda: len(flushes) == 4, "the others")
    assert (flushes, first.done()) == ([[1], [2], [3], [4]], False)
    goes_on.set()
    assert await last == 4


@on_loop
async def test_any_other_coalescer_waits_for_no_flush() -> None:
    coalescer, flushes, goes_on = await gathering(False)
    coalescer.add(1, 0)
    await until(lambda: flushes, "a flush")
    future = coalescer.add(2, 0)
    for _ in range(3):  # turns of the loop: no timer runs
        await asyncio.sleep(0)
    assert flushes == [[1], [2]]
    goes_on.set()
    assert await future == 2


@on_loop
async def test_what_waits_behind_a_flush_that_fails_leaves_all_the_same() -> None:
    calls = []

    async def run(items: list[int]) -> list[int]:
        calls.append(items)
        await asyncio.sleep(0)
        if items == [1]:
            raise PinLaterError("no")
        return items

    coalescer: Coalescer[int] = Coalescer(run, set(), patient=True)
    first = coalescer.add(1, 0)
    await until(lambda: calls, "a flush")
    second = coalescer.add(2, 0)
    with pytest.raises(PinLaterError, match="no"):
        await first
    assert await second == 2


class Taken:
    """A receiver that keeps what it gets. raises: it cannot take a result."""

    def __init__(self, raises: bool = False) -> None:
        self.got: list[Any] = []
        self._raises = raises

    def done(self) -> bool:
        return False

    def set_result(self, result: int) -> None:
        self.got.append(result)
        if self._raises:
            raise RuntimeError("not taken")

    def set_exception(self, error: Exception) -> None:
        self.got.append(error)


@on_loop
async def test_a_receiver_that_raises_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def run(items: list[int]) -> list[int]:
        return items

    coalescer: Coalescer[int] = Coalescer(run, set())
    receivers = [Taken(), Taken(raises=True), Taken()]
    for item, receiver in enumerate(receivers):
        coalescer.add(item, 0, receiver=receiver)
    last = coalescer.add(3, 0)
    assert await last == 3
    assert [receiver.got for receiver in receivers] == [[0], [1], [2]]
    assert "a result was not taken" in caplog.text
