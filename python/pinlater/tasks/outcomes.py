"""What a task raises to say how its job ends; anything else it raises is a failed attempt. docs/tasks.md has the table.

Promises nothing by itself: the dispatcher reads them. Risks: a task that catches Exception catches these too.
"""

from __future__ import annotations

from typing import Any

from pinlater.worker.executor import Failed


class TaskEnd(Exception):
    """Base of Retry, Snooze and Cancel: not errors of PinLater, but words of a task."""


class Retry(TaskEnd):
    """`raise Retry(delay=5)`: this attempt failed, try again.

    reason: kept in the custom status. delay: seconds until the next attempt; None: as the task's backoff says.
    """

    def __init__(self, reason: str = "", *, delay: float | None = None) -> None:
        super().__init__(reason)
        self.delay = delay


class Snooze(TaskEnd):
    """`raise Snooze(60)`: not now; the same attempt again after so many seconds.

    state: what the context's `state` is then, as of a checkpoint; without one it stays as it is.
    """

    def __init__(self, delay: float, *, state: Any = ...) -> None:
        super().__init__(delay)
        self.delay = delay
        self.state = state
        #: Of the envelope, as they are then: the state, and what the context was told. None: they stay.
        self.headers: dict[str, Any] | None = None if state is ... else {"state": state}


class Cancel(TaskEnd):
    """`raise Cancel("why")`: the job stays failed, whatever attempts it has left."""


class Expired(Exception):
    """The job came too late for its task's `expires`: it was not run, and stays failed."""


class ProcessDied(Exception):
    """The process of a task ended before the task did: a crash, os._exit, or a kill for want of memory."""


class RaisedInProcess(Exception):
    """What a task raised in its process: the text of that, and how it counts there. Its notes have the traceback."""

    def __init__(self, text: str, traceback: str, end: Failed) -> None:
        super().__init__(text)
        self.end = end
        self.add_note(traceback)
