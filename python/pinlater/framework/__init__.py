"""The framework: tasks as functions, over the worker engine and the clients.

Promises what docs/tasks.md says of each end of a task. Risks: at-least-once, as the engine below it.
"""

from pinlater.framework.app import PinLater
from pinlater.framework.backoff import Constant, Exponential, Linear
from pinlater.framework.context import Context, SyncContext
from pinlater.framework.ends import Cancel, Expired, Retry, Snooze
from pinlater.framework.handles import Handle, Progress, TaskInfo
from pinlater.framework.reports import Failure
from pinlater.framework.tasks import Task

__all__ = [
    "Cancel",
    "Constant",
    "Context",
    "Expired",
    "Exponential",
    "Failure",
    "Handle",
    "Linear",
    "PinLater",
    "Progress",
    "Retry",
    "Snooze",
    "SyncContext",
    "Task",
    "TaskInfo",
]
