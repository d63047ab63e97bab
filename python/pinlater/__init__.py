"""PinLater: a Redis-native job queue. Atomic Lua transitions, a Rust-accelerated core; nothing acknowledged is lost.

Promises that a program that only talks to queues imports only that: workers and tasks are imported on first use.
"""

import importlib
import typing

from pinlater._core import __version__
from pinlater.client.async_client import AsyncClient
from pinlater.client.client import Client
from pinlater.model.errors import (
    ArchiveDuplicate,
    ArchiveError,
    ArchiveNotReady,
    ArchiveOutcomeUnknown,
    ArchiveRefused,
    ArchiveUnavailable,
    BodyUnreadable,
    CallTimeout,
    ClaimLost,
    ClientClosed,
    ConfigConflict,
    DequeueOnly,
    DequeueRefused,
    EmbeddedServerError,
    EnqueueRefused,
    FormatUnsupported,
    InvalidArgument,
    JobUnknown,
    NoHealthyShards,
    NotAtHome,
    NotOnThrift,
    OutcomeUnknown,
    PartialDelete,
    PartialEnqueue,
    PartialOutcome,
    PinLaterError,
    QueueError,
    QueueFull,
    QueueNotFound,
    ResultGone,
    ResultTimeout,
    ServerError,
    ServerFull,
    ServerRefused,
    ServerReplyError,
    ServerTooOld,
    ServerUnavailable,
    ShardUnhealthy,
    TaskFailed,
    UnknownHome,
)
from pinlater.model.jobs import Ack, Checkpoint, CountsByState, Job, JobInfo, NewJob, State
from pinlater.model.queue_config import QueueConfig
from pinlater.model.queue_options import Queue
from pinlater.model.registry import register as _register
from pinlater.operations.limits import QueueLimits
from pinlater.server.connect import connect

_register("embedded://", "pinlater.embedded.server")
_register("memory://", "pinlater.memory.server")
_register("immediate mode", "pinlater.testing.immediate")

if typing.TYPE_CHECKING:
    from pinlater.server.thrift_client import ThriftClient
    from pinlater.tasks import (
        AsyncTask,
        Cancel,
        Constant,
        Context,
        Depends,
        Execution,
        Expired,
        Exponential,
        Failure,
        Handle,
        Item,
        Linear,
        Middleware,
        PinLater,
        PlainTask,
        ProcessDied,
        Progress,
        RaisedInProcess,
        RateLimited,
        Retry,
        Shared,
        Snooze,
        SyncContext,
        Task,
        TaskInfo,
    )
    from pinlater.worker.monitor import Monitor
    from pinlater.worker.worker import Worker, WorkerConfig
else:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'pinlater' has no attribute {name!r}")
        homes = {
            "Monitor": "worker.monitor",
            "ThriftClient": "server.thrift_client",
            "Worker": "worker.worker",
            "WorkerConfig": "worker.config",
        }
        module = importlib.import_module(f"pinlater.{homes.get(name, 'tasks')}")
        value = globals()[name] = getattr(module, name)
        return value


__all__ = [
    "Ack",
    "ArchiveDuplicate",
    "ArchiveError",
    "ArchiveNotReady",
    "ArchiveOutcomeUnknown",
    "ArchiveRefused",
    "ArchiveUnavailable",
    "AsyncClient",
    "AsyncTask",
    "BodyUnreadable",
    "CallTimeout",
    "Cancel",
    "Checkpoint",
    "ClaimLost",
    "Client",
    "ClientClosed",
    "ConfigConflict",
    "Constant",
    "Context",
    "CountsByState",
    "Depends",
    "DequeueOnly",
    "DequeueRefused",
    "EmbeddedServerError",
    "EnqueueRefused",
    "Execution",
    "Expired",
    "Exponential",
    "Failure",
    "FormatUnsupported",
    "Handle",
    "InvalidArgument",
    "Item",
    "Job",
    "JobInfo",
    "JobUnknown",
    "Linear",
    "Middleware",
    "Monitor",
    "NewJob",
    "NoHealthyShards",
    "NotAtHome",
    "NotOnThrift",
    "OutcomeUnknown",
    "PartialDelete",
    "PartialEnqueue",
    "PartialOutcome",
    "PinLater",
    "PinLaterError",
    "PlainTask",
    "ProcessDied",
    "Progress",
    "Queue",
    "QueueConfig",
    "QueueError",
    "QueueFull",
    "QueueLimits",
    "QueueNotFound",
    "RaisedInProcess",
    "RateLimited",
    "ResultGone",
    "ResultTimeout",
    "Retry",
    "ServerError",
    "ServerFull",
    "ServerRefused",
    "ServerReplyError",
    "ServerTooOld",
    "ServerUnavailable",
    "ShardUnhealthy",
    "Shared",
    "Snooze",
    "State",
    "SyncContext",
    "Task",
    "TaskFailed",
    "TaskInfo",
    "ThriftClient",
    "UnknownHome",
    "Worker",
    "WorkerConfig",
    "__version__",
    "connect",
]
