"""What a supervisor knows of an app, which it does not import: another process does, and ends.

Promises the errors of an import, as if this process had imported the app.
Risk: a module that leaves a thread behind at its import costs LAST_S at the start.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson

from pinlater.model.errors import AppFailed, InvalidArgument
from pinlater.model.tracebacks import of_user
from pinlater.model.urls import hide_urls
from pinlater.running.file_watcher import folder_of
from pinlater.store.shards import URL_VARIABLE
from pinlater.tasks.app import PinLater, parts_of
from pinlater.tasks.app_clients import ClientOptions
from pinlater.tasks.app_parts import chosen_queues
from pinlater.tasks.loading import load_app
from pinlater.worker.os_process import end_with_parent, exit_in_words
from pinlater.worker.stop_signals import OTHER_SIGNALS, ignore

#: The process that imported the app has so long to end by itself, once it has told its facts.
LAST_S: Final = 1.0
_ERRORS: Final = {kind.__name__: kind for kind in (InvalidArgument, AppFailed)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AppFacts:
    """What a supervisor knows of an app.

    tasks: the number of tasks of each queue.
    named: whether the app names its servers itself.
    clients: the settings of its clients.
    url_variable: PINLATER_URL, which the app may have set.
    folder: where its code is.
    """

    tasks: Mapping[str, int]
    named: bool
    clients: ClientOptions
    url_variable: str | None
    folder: str

    def queue_names(self, chosen: Sequence[str] | None) -> list[str]:
        """As AppParts.queue_names."""
        return chosen_queues(self.tasks, chosen)


def facts_of(app: PinLater, name: str) -> AppFacts:
    """The facts of an app that this process has imported as "module:app"."""
    return AppFacts(
        tasks=Counter(task.queue for task in app.tasks.values()),
        named=parts_of(app).clients.named,
        clients=parts_of(app).clients.settings,
        url_variable=os.environ.get(URL_VARIABLE),
        folder=str(folder_of(name)),
    )


def facts_without_import(name: str, include: Sequence[str]) -> AppFacts:
    """The facts of the app "module:app", which another process imports with the modules of `include`. Sets PINLATER_URL
    if the app does.

    Raises as load_app does; SystemExit where the import ends its process; AppFailed where a signal ends it.
    """
    answer = _ask(name, include)
    if "error" in answer:
        sys.stderr.write(answer["traceback"])
        raise _ERRORS[answer["error"]](answer["text"])
    facts = AppFacts(**answer | {"clients": ClientOptions(**answer["clients"])})
    if facts.url_variable is not None:
        os.environ[URL_VARIABLE] = facts.url_variable
    return facts


def _ask(name: str, include: Sequence[str]) -> dict[str, Any]:
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb") as reader, _importing(name, include, theirs) as process:
        line = reader.readline()
        if line:
            return dict(orjson.loads(line))
        code = process.wait()
    if code >= 0:
        raise SystemExit(code)
    raise AppFailed(f"app {name!r}: the process that imports it {exit_in_words(code)}")


@contextmanager
def _importing(name: str, include: Sequence[str], descriptor: int) -> Iterator[subprocess.Popen[bytes]]:
    """The process that imports the app, with this process's arguments. It is killed if it does not end."""
    what = orjson.dumps([descriptor, name, include]).decode()
    command = [sys.executable, "-m", "pinlater.running.app_facts", what, *sys.argv]
    try:
        process = subprocess.Popen(command, pass_fds=[descriptor], preexec_fn=partial(_prepare, os.getpid()))
    finally:
        os.close(descriptor)
    try:
        yield process
        process.wait(LAST_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        process.kill()
        process.wait()


def _prepare(parent: int) -> None:
    """Ctrl-C ends the new process without a traceback, as it reaches its parent too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_with_parent(signal.SIGKILL, parent)


def main(descriptor: int, name: str, include: Sequence[str]) -> None:
    """Imports the app, and writes its facts or the error as a line of JSON."""
    os.set_inheritable(descriptor, False)
    ignore(OTHER_SIGNALS)
    with os.fdopen(descriptor, "wb") as writer:
        writer.write(orjson.dumps(_answer(name, include), default=dict) + b"\n")


def _answer(name: str, include: Sequence[str]) -> AppFacts | dict[str, str]:
    try:
        return facts_of(load_app(name, include), name)
    except (InvalidArgument, AppFailed) as error:
        shown = "" if error.__cause__ is None or not isinstance(error, AppFailed) else of_user(error.__cause__)
        return {"error": type(error).__name__, "text": str(error), "traceback": hide_urls(shown)}


if __name__ == "__main__":
    what_to_import, *sys.argv = sys.argv[1:]
    main(*orjson.loads(what_to_import))
