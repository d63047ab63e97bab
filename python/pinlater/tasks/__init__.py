"""The framework: tasks as functions, over the worker engine and the clients.

Promises what docs/tasks.md says of each end of a task. Risks: at-least-once, as the engine below it.
"""

from pinlater.tasks.app import PinLater
from pinlater.tasks.batch_tasks import Item
from pinlater.tasks.context import Context, SyncContext
from pinlater.tasks.dependencies import Depends, Shared
from pinlater.tasks.handles import Handle, Progress, TaskInfo
from pinlater.tasks.middleware import Execution, Middleware
from pinlater.tasks.outcomes import Cancel, Expired, ProcessDied, RaisedInProcess, RateLimited, Retry, Snooze
from pinlater.tasks.reports import Failure
from pinlater.tasks.retry_policies import Constant, Exponential, Linear
from pinlater.tasks.task import AsyncTask, PlainTask, Task

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
    "RateLimited",
    "Retry",
    "Shared",
    "Snooze",
    "SyncContext",
    "Task",
    "TaskInfo",
]
