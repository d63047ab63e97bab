"""What a task raises to say how its job ends. Anything else it raises is a failed attempt. docs/tasks.md has the table.

Risks: a task that catches Exception catches these too.
"""

from __future__ import annotations

from typing import Any

from pinlater.model.times import Seconds, as_seconds, milliseconds
from pinlater.worker.executor import Failed


class TaskEnd(Exception):
    """Base of Retry, Snooze, RateLimited and Cancel. These are no PinLaterErrors: a task raises them on purpose."""


class Retry(TaskEnd):
    """This attempt failed, try again: `raise Retry("busy", delay=5)`. It costs an attempt.

    reason: text for the job's custom status.
    delay: until the next attempt, in seconds or as a timedelta; None: as the task's backoff says.
    Raises InvalidArgument for another delay.
    """

    def __init__(self, reason: str = "", *, delay: Seconds | None = None) -> None:
        super().__init__(reason)
        self.delay = None if delay is None else _delay_s("Retry", delay)


class Snooze(TaskEnd):
    """Not now, run this attempt again later: `raise Snooze(60)`. It costs no attempt.

    delay: until then, in seconds or as a timedelta.
    state: what `context.state` is then, as after a checkpoint. Without it the state stays as it is.
    Raises InvalidArgument for another delay.
    """

    def __init__(self, delay: Seconds, *, state: Any = ...) -> None:
        super().__init__(delay)
        self.delay = self._seconds(delay)
        self.state = state
        #: The headers to write into the envelope: the state and the last progress. None: leave them as they are.
        self.headers: dict[str, Any] | None = None if state is ... else {"state": state}

    def _seconds(self, delay: Seconds) -> float:
        return _delay_s("Snooze", delay)


class RateLimited(Snooze):
    """What this task calls wants no more calls for a time: `raise RateLimited(60)`. It costs no attempt.

    The claims of the job's queue pause for so long, on every shard, and the job runs again after that. Jobs of the
    queue that already run go on.

    delay: how long, in seconds or as a timedelta; a millisecond at least.
    state: as for Snooze.
    Raises InvalidArgument for another delay.
    """

    def _seconds(self, delay: Seconds) -> float:
        return _delay_s("RateLimited", delay, least=0.001)


def _delay_s(what: str, delay: Seconds, *, least: float = 0.0) -> float:
    """Seconds of a delay. Raises InvalidArgument."""
    milliseconds(f"{what}: delay", delay, least=least)
    return as_seconds(delay)


class Cancel(TaskEnd):
    """The job is failed for good, whatever attempts it has left: `raise Cancel("why")`."""


class Expired(Exception):
    """The job came later than its task's `expires` allows. It was not run and is failed for good."""


class ProcessDied(Exception):
    """The process of a task ended before the task did: by a crash, by os._exit, or killed when memory ran out."""


class RaisedInProcess(Exception):
    """What a task raised in its process.

    text: the error as text.
    traceback: its traceback as text, from the task's own frames on; added as a note. "": it has none.
    end: how it ends the job, as the process judged.
    """

    def __init__(self, text: str, traceback: str, end: Failed) -> None:
        super().__init__(text)
        self.end, self.traceback = end, traceback
        if traceback:
            self.add_note(traceback)
