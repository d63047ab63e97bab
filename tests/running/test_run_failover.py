"""`pinlater run` and handles that wait, while a failover moves their server's address and the old primary lives on.

Promises: tasks of each kind that ran meanwhile end and give their results, tasks that come later run, a running task is
cancelled, and a task process enqueues on. PINLATER_CAMPAIGN=1 measures the seconds until all of that has happened.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

import pytest

from pinlater import PinLater, State
from tests.support.app_runs import AppRuns, runs
from tests.support.failover import MakePair, Pair, make_pair
from tests.support.handlers_for_tests import on_loop, until

__all__ = ["make_pair", "runs"]  # fixtures

CAMPAIGN = bool(os.environ.get("PINLATER_CAMPAIGN"))
ROUNDS = 3 if CAMPAIGN else 1
MOST_S = 2.0
WAIT_S = 60.0

TASKS = """
@app.task(name="on_loop", result_ttl=3600)
async def on_loop(path):
    note("began", path)
    while path != "now" and not Path(path).exists():
        await asyncio.sleep(0.01)
    return path

@app.task(name="in_thread", result_ttl=3600)
def in_thread(path):
    note("began", path)
    if path != "now":
        wait_for(path)
    return path

@app.task(name="in_process", result_ttl=3600, runs_in="process")
def in_process(path):
    on_loop.enqueue("now")
    note("began", path)
    if path != "now":
        wait_for(path)
    return on_loop.enqueue("now").descriptor

@app.task(name="cancelled")
async def cancelled(path):
    note("began", path)
    try:
        await asyncio.Event().wait()
    finally:
        note("cancelled", path)
"""
KINDS_OF_TASKS = ("on_loop", "in_thread", "in_process")


@pytest.mark.thorough("processes")
@on_loop
async def test_everything_flows_after_a_failover(make_pair: MakePair, runs: Callable[..., AppRuns]) -> None:
    pair = make_pair()
    run = runs(pair.url, TASKS)
    run.start("--processes", "2")
    async with PinLater(pair.url) as app, PinLater(pair.url) as waiter:
        if CAMPAIGN:
            print(f"without a failover: {await seconds_to_flow(no_failover, pair, run, app, waiter, 'warm'):.2f} s")
        took_s = [
            await seconds_to_flow(pair.fail_over, pair, run, app, waiter, f"end{number}") for number in range(ROUNDS)
        ]
        for one in (app, waiter):
            await asyncio.to_thread(one.close)  # the blocking client; the end of the block closes the loop's
    print(f"seconds until everything flowed: {', '.join(f'{seconds:.2f}' for seconds in took_s)}")
    if CAMPAIGN:
        assert min(took_s) <= MOST_S


def no_failover() -> None:
    """For comparison."""


async def seconds_to_flow(
    happens: Callable[[], None], pair: Pair, run: AppRuns, app: PinLater, waiter: PinLater, end: str
) -> float:
    """Seconds from what happens until everything flowed. waiter: only waits. end: makes the tasks end."""
    long = [await asyncio.to_thread(app.send, name, end) for name in KINDS_OF_TASKS]
    to_cancel = await app.asend("cancelled", end)
    await until(lambda: len(run.notes("began", end)) == len(long) + 1, "running tasks", WAIT_S)
    waits = [waiter.handle(handle.descriptor) for handle in long]
    results = [asyncio.create_task(handle.aresult(WAIT_S)) for handle in waits]
    in_threads = [asyncio.create_task(asyncio.to_thread(handle.result, WAIT_S)) for handle in waits]
    await until(lambda: channels(pair) == len(long), "subscriptions of waits", WAIT_S)
    await asyncio.to_thread(happens)
    moved_s = time.monotonic()
    assert await asyncio.to_thread(to_cancel.cancel)
    sent_in_threads = [asyncio.to_thread(app.send, name, "now") for name in KINDS_OF_TASKS]
    later = await asyncio.gather(*sent_in_threads, *(app.asend(name, "now") for name in KINDS_OF_TASKS))
    await asyncio.gather(*(handle.aresult(WAIT_S) for handle in later))
    (run.folder / end).touch()
    ended = await asyncio.gather(*results)
    assert await asyncio.gather(*in_threads) == ended
    await until(lambda: run.notes("cancelled", end), "a cancelled task", WAIT_S)
    from_process = app.handle(ended[-1])
    assert await from_process.aresult(WAIT_S) == "now"
    took_s = time.monotonic() - moved_s
    assert {await handle.astatus() for handle in [*long, *later]} == {State.SUCCEEDED}
    return took_s


def channels(pair: Pair) -> int:
    return len(pair.primary.call("PUBSUB", "CHANNELS", "pl:{*}:result:*"))
