"""The options of `@app.task` that a worker uses: checked, and in the worker's units.

Promises that a wrong option raises InvalidArgument where the task is defined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from pinlater.model.errors import InvalidArgument
from pinlater.model.queue_config import check_integer
from pinlater.model.times import Seconds, milliseconds
from pinlater.tasks.dependencies import refuse_needs
from pinlater.tasks.reports import Failure
from pinlater.tasks.retry_policies import Backoff, Constant
from pinlater.worker.executor import check_function

#: Where a task runs: an async one on the loop, a plain function in a thread or in another process.
Kind: TypeAlias = Literal["loop", "thread", "process"]

#: How long the first job of a batch waits for others.
DEFAULT_BATCH_WAIT_S: Final = 0.05
#: The most jobs that a worker may run at once.
MAX_BATCH: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """How a worker runs a task; see PinLater.task. kind: None: "loop" for an async function, else "thread"."""

    backoff: Backoff
    give_up_on: tuple[type[BaseException], ...]
    timeout_s: float | None
    expires_ms: int | None
    lease_ms: int | None
    result_ttl_ms: int | None
    on_failure: Callable[[Failure], Any] | None
    kind: Kind | None = None
    batch: int | None = None
    batch_wait_s: float = 0.0


def checked_options(
    *,
    backoff: Backoff | Seconds,
    give_up_on: type[BaseException] | tuple[type[BaseException], ...],
    timeout: Seconds | None,
    lease: Seconds | None,
    result_ttl: Seconds | None,
    expires: Seconds | None,
    on_failure: Callable[[Failure], Any] | None,
    runs_in: Kind | None,
    batch: int | None,
    batch_wait: Seconds | None,
) -> TaskOptions:
    """The options that a user gave, in the worker's units. Raises InvalidArgument."""
    timeout_ms = _optional_ms("timeout", timeout, least=0.001)
    return TaskOptions(
        backoff=backoff if callable(backoff) else Constant(milliseconds("backoff", backoff) / 1000),
        give_up_on=_check_give_up_on(give_up_on),
        timeout_s=None if timeout_ms is None else timeout_ms / 1000,
        expires_ms=_optional_ms("expires", expires),
        lease_ms=_optional_ms("lease", lease, least=0.001),
        result_ttl_ms=_optional_ms("result_ttl", result_ttl, least=0.001),
        on_failure=None if on_failure is None else _check_on_failure(on_failure),
        kind=_check_kind(runs_in),
        batch=None if batch is None else check_integer("batch", batch, 1, MAX_BATCH),
        batch_wait_s=_batch_wait_s(batch, batch_wait),
    )


def _optional_ms(name: str, seconds: Seconds | None, *, least: float = 0.0) -> int | None:
    return None if seconds is None else milliseconds(name, seconds, least=least)


def _batch_wait_s(batch: Any, wait: Seconds | None) -> float:
    if wait is None:
        return DEFAULT_BATCH_WAIT_S
    if batch is None:
        raise InvalidArgument("batch_wait: expected batch= beside it, got none")
    return milliseconds("batch_wait", wait) / 1000


def _check_kind(kind: Any) -> Kind | None:
    if kind is not None and kind not in get_args(Kind):
        raise InvalidArgument(f"runs_in: expected one of {', '.join(get_args(Kind))}, got {kind!r:.60}")
    return cast("Kind | None", kind)


def _check_on_failure(hook: Callable[[Failure], Any]) -> Callable[[Failure], Any]:
    check_function("on_failure", hook, "the Failure")
    refuse_needs("on_failure", hook, "it gets the Failure alone: enqueue a task from it that has such parameters")
    return hook


def _check_give_up_on(types: Any) -> tuple[type[BaseException], ...]:
    found = types if isinstance(types, tuple) else (types,)
    for each in found:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise InvalidArgument(f"give_up_on: expected exception types, got {each!r:.60}")
    return found
