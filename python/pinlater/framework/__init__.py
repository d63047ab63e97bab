"""The framework: tasks as functions, over the worker engine and the clients.

Promises what docs/tasks.md says of each end of a task. Risks: at-least-once, as the engine below it.
"""

from pinlater.framework.app import PinLater
from pinlater.framework.backoff import Constant, Exponential, Linear
from pinlater.framework.batches import Item
from pinlater.framework.context import Context, SyncContext
from pinlater.framework.depending import Depends, Shared
from pinlater.framework.ends import Cancel, Expired, ProcessDied, RaisedInProcess, Retry, Snooze
from pinlater.framework.handles import Handle, Progress, TaskInfo
from pinlater.framework.middleware import Execution, Middleware
from pinlater.framework.reports import Failure
from pinlater.framework.tasks import AsyncTask, PlainTask, Task

__all__ = [
    "AsyncTask",
    "Cancel",
    "Constant",
    "Context",
    "Depends",
    "Execution",
    "Expired",
    "Exponential",
    "Failure",
    "Handle",
    "Item",
    "Linear",
    "Middleware",
    "PinLater",
    "PlainTask",
    "ProcessDied",
    "Progress",
    "RaisedInProcess",
    "Retry",
    "Shared",
    "Snooze",
    "SyncContext",
    "Task",
    "TaskInfo",
]
