"""A queue as a program or a settings file names it: its name, and the settings that it is created with.

Promises that a wrong setting raises an error that names it, where the queue is named. Risks: an existing queue keeps
the settings that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Final

from pinlater.model.counts import parse_count
from pinlater.model.errors import InvalidArgument
from pinlater.model.limits import Rate
from pinlater.model.queue_config import LEAST_HORIZON_MS, QueueConfig, check_hard_mark, check_queue_name
from pinlater.model.times import Seconds, milliseconds, parse_duration, written

#: Of a QueueConfig.
_SETTINGS: Final = ("rate", "burst", "max_running", "spill_above", "restore_below", "horizon_ms", "refuse_above")


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue with settings, for `@app.task(queue=Queue("mail", rate="100/s", burst=20, max_running=10))`.

    The queue has them from its creation. A queue that exists keeps its own; `pinlater queue set` changes them.

    name: 1 to 255 letters, digits or underscores.
    rate, burst, max_running: limits, as for QueueConfig. None: no such limit.
    spill_above, restore_below, refuse_above: marks, as for QueueConfig, or as text such as "5M". None: no such mark.
    horizon: jobs that are due later than this wait in the archive: seconds, a timedelta or text such as "24h", at least
        a minute. None: they stay.

    Raises InvalidArgument for a wrong value.
    """

    name: str
    _: KW_ONLY
    rate: Rate | str | float | None = None
    burst: int | None = None
    max_running: int | None = None
    spill_above: int | str | None = None
    restore_below: int | str | None = None
    horizon: Seconds | str | None = None
    refuse_above: int | str | None = None

    def __post_init__(self) -> None:
        check_queue_name(self.name)
        config = self._config()
        check_hard_mark(config)
        object.__setattr__(self, "rate", config.rate)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that it names, as those of a QueueConfig."""
        config = self._config()
        return {name: value for name in _SETTINGS if (value := getattr(config, name)) is not None}

    def _config(self) -> QueueConfig:
        return QueueConfig(
            rate=self.rate,
            burst=self.burst,
            max_running=self.max_running,
            spill_above=_read("spill_above", self.spill_above, parse_count),
            restore_below=_read("restore_below", self.restore_below, parse_count),
            horizon_ms=None if self.horizon is None else _horizon_ms(self.horizon),
            refuse_above=_read("refuse_above", self.refuse_above, parse_count),
        )


#: What the table of a queue in a settings file may name.
QUEUE_KEYS: Final = tuple(each.name for each in fields(Queue) if each.name != "name")


def _horizon_ms(horizon: Any) -> int:
    return milliseconds("horizon", _read("horizon", horizon, parse_duration), least=LEAST_HORIZON_MS / 1000)


def _read(name: str, value: Any, read: Callable[[str], float]) -> Any:
    """The value of a text; any other value as it is."""
    if not isinstance(value, str):
        return value
    try:
        return read(value)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from None


def show_settings(settings: dict[str, Any]) -> str:
    """`rate 100/s, horizon 1d`, of settings of a QueueConfig; `no rate` for None."""
    return ", ".join(f"no {name}" if value is None else f"{name} {value}" for name, value in _texts(settings))


def show_options(settings: dict[str, Any]) -> str:
    """`--rate 100/s --horizon 1d`, as `pinlater queue set` takes settings of a QueueConfig. None of them is None."""
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in _texts(settings))


def _texts(settings: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values as people write them."""
    for name, value in settings.items():
        is_time = name.endswith("_ms")
        yield name.removesuffix("_ms"), written(value) if is_time and value is not None else value
