"""The app of tests/tasks/test_processes.py: its tasks run in processes, which import this module.

PINLATER_URL names its servers.
"""

from __future__ import annotations

import ctypes
import datetime
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgpack

from pinlater import Cancel, ClaimLost, Depends, PinLater, RateLimited, Retry, Shared, Snooze, SyncContext

#: The lifespan fails in every process except this one.
ALONE_VARIABLE = "PINLATER_TEST_ALONE"

app = PinLater()


@dataclass
class Folder:
    path: str


@app.lifespan
async def lifespan() -> AsyncIterator[dict[type, Any]]:
    path = os.environ.get("PINLATER_TEST_RECORD", os.devnull)
    if os.environ.get(ALONE_VARIABLE, str(os.getpid())) != str(os.getpid()):
        raise OSError("no database")
    note(path, f"lifespan {os.getpid()}")
    yield {Folder: Folder(path)}
    note(path, f"left {os.getpid()}")


class Abort(BaseException): ...


def note(path: str, text: str) -> None:
    with Path(path).open("a") as file:
        file.write(text + "\n")


def maker(*, folder: Folder = Shared(Folder)) -> Iterator[str]:
    yield folder.path
    note(folder.path, "closed")


@app.task(runs_in="process", queue="kept", result_ttl=60)
def price_on(day: datetime.date, prices: dict[datetime.date, Decimal]) -> Decimal:
    return prices[day]


@app.task(runs_in="process")
def add(path: str, x: int, *, y: int) -> int:
    assert threading.current_thread() is threading.main_thread()
    note(path, f"{x + y} {os.getpid()}")
    return x + y


@app.task(name="limited", runs_in="process", queue="limited")
def limited() -> None:
    raise RateLimited(3600, state="here")


@app.task(runs_in="process", backoff=lambda attempt, error: error.args[1] * attempt, give_up_on=(LookupError, Abort))
def fail(how: str) -> None:
    ends: dict[str, BaseException] = {
        "retry": Retry("why", delay=3600),
        "snooze": Snooze(3600),
        "cancel": Cancel("why"),
        "error": ValueError("no", 3600),
        "lookup": KeyError("no"),
        "abort": Abort("no"),
        "exit": SystemExit("no"),
    }
    raise ends[how]


@app.task(runs_in="process", backoff=3600, timeout=20)
def die(how: str) -> None:
    if how == "segfault":
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        ctypes.string_at(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(7)


@app.task(runs_in="process", timeout=0.5, backoff=3600)
def spin(path: str) -> None:
    note(path, f"started {os.getpid()}")
    while True:
        pass


@app.task(runs_in="process", attempts=2)
def last(path: str) -> None:
    """Runs for a long time."""
    note(path, f"started {os.getpid()}")
    time.sleep(60)


@app.task(runs_in="process", backoff=0)
def checkpointed(context: SyncContext, path: str) -> None:
    note(path, f"{context.attempt} {context.state} {context.trace} {context.deadline_s}")
    if context.attempt == 1:
        context.checkpoint({"at": 1})
        context.checkpoint({"at": 2})
        raise ValueError
    try:
        context.checkpoint(object())
    except ValueError as error:
        note(path, str(error))
    cheap.enqueue(path)


@app.task(queue="cheap")
async def cheap(path: str) -> None: ...


@app.task(runs_in="process", queue="given")
def given(text: str, *, path: str = Depends(maker), folder: Folder = Shared(Folder)) -> None:
    assert path == folder.path
    note(path, f"{text} {os.getpid()}")


@app.task(runs_in="process", queue="kept", result_ttl=60, codec="json")
def square(x: Any) -> Any:
    """None where it cannot be packed."""
    return {"square": x * x} if isinstance(x, int) else object()


@app.task(runs_in="process", queue="kept")
def stateful(context: SyncContext, path: str) -> None:
    note(path, f"{context.state} {context.cancelled}")
    if context.state is None:
        context.progress(1, 2, "half")
        raise Snooze(0, state={"at": 1})


@app.task(runs_in="process", queue="raw", codec="raw")
def raw(body: bytes) -> None:
    note(body.decode(), f"raw {os.getpid()}")


#: msgpack can pack it, but not unpack it: the date is too late.
UNREADABLE = msgpack.Timestamp(2**60, 0)


@app.task(runs_in="process", queue="values", result_ttl=60, attempts=1)
def unreadable(where: str) -> Any:
    if where == "state":
        raise Snooze(0, state=UNREADABLE)
    return UNREADABLE if where == "value" else os.getpid()


@app.task(runs_in="process", queue="values", attempts=1)
def value(what: str) -> Any:
    return {"unreadable": UNREADABLE, "unpackable": object(), "fine": (1, "a")}[what]


@app.task(runs_in="process", queue="kept", result_ttl=60)
def forks(context: SyncContext, how: str) -> Any:
    """The exit code of a fork."""
    if how == "terminate":
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        process.start()
        process.terminate()
        process.join(10)
        code = process.exitcode
        process.kill()
        return code
    if os.fork() == 0:
        if how == "checkpoint":
            context.checkpoint(1)
        return sys.exit(int(how)) if how else None
    return os.waitstatus_to_exitcode(os.wait()[1])


@app.task(runs_in="process", queue="kept", result_ttl=60)
def at_once(context: SyncContext, times: int) -> Any:
    """Checkpoints of many threads."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(context.checkpoint, range(times)))
    return context.state is not None


contexts: list[SyncContext] = []


@app.task(runs_in="process", queue="kept", result_ttl=60)
def outliving(context: SyncContext) -> str:
    """The second job uses the context of the first, as a thread of the first might."""
    contexts.append(context)
    try:
        contexts[0].checkpoint(len(contexts))
    except ClaimLost as error:
        return str(error)
    return ""
