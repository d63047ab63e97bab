"""PinLater: a Redis-native job queue. Atomic Lua transitions, a Rust-accelerated core; nothing acknowledged is lost."""

from pinlater._core import __version__
from pinlater.async_client import AsyncClient
from pinlater.client import Client
from pinlater.config import QueueConfig
from pinlater.errors import (
    BodyUnreadable,
    ClaimLost,
    ConfigConflict,
    EmbeddedServerError,
    EnqueueRefused,
    InvalidArgument,
    OutcomeUnknown,
    PartialDelete,
    PartialEnqueue,
    PartialOutcome,
    PinLaterError,
    QueueError,
    QueueNotFound,
    ServerError,
    ServerFull,
    ServerRefused,
    ServerReplyError,
    ServerTooOld,
    ServerUnavailable,
)
from pinlater.jobs import Ack, Checkpoint, CountsByState, Job, JobInfo, NewJob, State
from pinlater.monitor import Monitor
from pinlater.worker import Worker, WorkerConfig

__all__ = [
    "Ack",
    "AsyncClient",
    "BodyUnreadable",
    "Checkpoint",
    "ClaimLost",
    "Client",
    "ConfigConflict",
    "CountsByState",
    "EmbeddedServerError",
    "EnqueueRefused",
    "InvalidArgument",
    "Job",
    "JobInfo",
    "Monitor",
    "NewJob",
    "OutcomeUnknown",
    "PartialDelete",
    "PartialEnqueue",
    "PartialOutcome",
    "PinLaterError",
    "QueueConfig",
    "QueueError",
    "QueueNotFound",
    "ServerError",
    "ServerFull",
    "ServerRefused",
    "ServerReplyError",
    "ServerTooOld",
    "ServerUnavailable",
    "State",
    "Worker",
    "WorkerConfig",
    "__version__",
]
