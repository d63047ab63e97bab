"""The original's JSON file of rates, and what gives them to queues.

    {"queues": [{"name": "mail", "queueConfig": {"maxJobsPerSecond": 100}}]}

Promises:
- A mistake changes nothing, and its error has the path of the wrong part, what was expected and what came.
- A queue gets its rate at the start, after a change of the file, and when it is created. An entry that leaves the file
  takes away the rate that the file had set.
- What cannot be set now is tried again.
Risks: what an operator sets meanwhile stays until the entry of the queue changes, or a server starts. A rate whose
entry left the file while no server ran stays.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, TypeAlias

from pinlater.client.async_client import AsyncClient
from pinlater.model.errors import InvalidArgument, PinLaterError, QueueNotFound
from pinlater.model.limits import MAX_RATE, Rate
from pinlater.model.queue_config import MAX_U32, check_queue_name
from pinlater.server.file_watch import LOOK_INTERVAL_S, FileWatch
from pinlater.server.json_file import JsonFile

log: Final = logging.getLogger("pinlater.server")

#: The rates of queues by their names; None: no rate.
Rates: TypeAlias = Mapping[str, Rate | None]
#: Seconds after which what could not be set is tried again.
RETRY_S: Final = 10.0
_QUEUE_KEYS: Final = ("name", "queueConfig")
_CONFIG_KEYS: Final = ("maxJobsPerSecond",)


class QueueConfigFile:
    """A file of rates that may change while the program runs.

    path: "": no file; it sets no rates.
    interval_s: seconds between two looks.
    rates: those of its last good version. changed: set after each new version.
    """

    def __init__(self, path: str, *, interval_s: float = LOOK_INTERVAL_S) -> None:
        self._name = path
        self._watch = FileWatch(Path(path), interval_s=interval_s) if path else None
        self.rates: Rates = {}
        self.changed = asyncio.Event()

    def read(self) -> None:
        """Reads it as it is now. Raises InvalidArgument."""
        if self._watch is not None:
            self.rates = parse_rates(self._watch.read(), self._name)

    def latest(self) -> Rates:
        """The rates as they are now. A version that is wrong does not count."""
        with suppress(InvalidArgument):  # what watches the file logs it
            self.read()
        return self.rates

    def start(self) -> None:
        """Looks for new versions until stop()."""
        if self._watch is not None:
            self._watch.start(self._take)

    async def stop(self) -> None:
        """Ends the looks; unstarted or twice is fine."""
        if self._watch is not None:
            await self._watch.stop()

    async def _take(self, data: bytes) -> None:
        self.rates = parse_rates(data, self._name)
        self.changed.set()


class RateKeeper:
    """Gives the queues of a client the rates of a file.

    retry_s: seconds after which what could not be set is tried again.
    """

    def __init__(self, client: AsyncClient, file: QueueConfigFile, *, retry_s: float = RETRY_S) -> None:
        self._client, self._file, self._retry_s = client, file, retry_s
        #: What the file wanted at the last change, and the queues that do not have it yet.
        self._wanted: dict[str, Rate | None] = {}
        self._pending: dict[str, Rate | None] = {}
        #: The rates that this keeper has set, or found as the file has them.
        self._kept: dict[str, Rate] = {}
        self._logged: set[str] = set()

    async def run(self) -> None:
        """Sets rates until it is cancelled."""
        while True:
            self._file.changed.clear()
            self._plan(self._file.rates)
            await self.set_pending()
            try:
                async with asyncio.timeout(self._retry_s if self._pending else None):
                    await self._file.changed.wait()
            except TimeoutError:
                continue

    def _plan(self, rates: Rates) -> None:
        """Notes what has to be set: what changed in the file."""
        if rates == self._wanted:
            return
        before, self._wanted = self._wanted, dict(rates)
        left = dict.fromkeys(before.keys() - rates.keys(), None)
        changed = {name: rate for name, rate in rates.items() if name not in before or before[name] != rate}
        self._pending = {name: rate for name, rate in self._pending.items() if name in rates} | left | changed
        self._logged.clear()

    async def set_pending(self) -> None:
        """Tries to set what is not set yet."""
        for queue, rate in list(self._pending.items()):
            try:
                await self._set(queue, rate)
            except QueueNotFound:
                self._kept.pop(queue, None)
                if rate is not None:
                    self._log_once(logging.INFO, f"queue {queue} does not exist yet; its rate will be {shown(rate)}")
                    continue  # createQueue gives it the rate; a direct client does not
            except InvalidArgument as error:
                self._log_once(logging.ERROR, f"queue {queue}: its rate was not set: {error}")
            except PinLaterError as error:
                self._log_once(logging.WARNING, f"queue {queue}: its rate is not set yet: {error}")
                continue
            del self._pending[queue]

    async def _set(self, queue: str, rate: Rate | None) -> None:
        current = (await self._client.queue_config(queue)).exact_rate
        if rate is None and current != self._kept.get(queue):
            return  # the file has not set it
        if rate != current:
            await self._client.configure_queue(queue, rate=rate)
            log.info("queue %s: its rate is %s now, it was %s", queue, shown(rate), shown(current))
        if rate is None:
            self._kept.pop(queue, None)
        else:
            self._kept[queue] = rate

    def _log_once(self, level: int, message: str) -> None:
        if message not in self._logged:
            self._logged.add(message)
            log.log(level, "%s", message)


def shown(rate: Rate | None) -> str:
    """A rate for the log, as the number of the file: `0.5/s`, not `30/m`. A number with many digits is rounded, or in
    the way of other messages if that is shorter: `5/m`.
    """
    if rate is None:
        return "none"
    jobs_a_s = Fraction(rate.count * 1000, rate.per_ms)
    number = f"{float(jobs_a_s):.9g}"
    return f"{number}/s" if Fraction(number) == jobs_a_s else min(str(rate), f"{number}/s", key=len)


def parse_rates(data: bytes, name: str) -> Rates:
    """The rates that the JSON has. name: of the file, for messages. Raises InvalidArgument."""
    return _RatesReader(JsonFile(name, data)).rates()


class _RatesReader:
    """Reads the rates of a file."""

    def __init__(self, file: JsonFile) -> None:
        self._file = file

    def rates(self) -> dict[str, Rate | None]:
        file = self._file
        entries = file.table("", file.document, ("queues",)).get("queues")
        if not isinstance(entries, list):
            raise file.wrong("queues", "a list", entries)
        rates: dict[str, Rate | None] = {}
        for index, entry in enumerate(entries):
            path = f"queues[{index}]"
            table = file.table(path, entry, _QUEUE_KEYS)
            queue = file.checked(f"{path}.name", check_queue_name, table.get("name"))
            if queue in rates:
                raise file.wrong(f"{path}.name", "a name that no other queue has", queue)
            config = self._config(f"{path}.queueConfig", table.get("queueConfig"))
            rates[queue] = self._rate(f"{path}.queueConfig.maxJobsPerSecond", config.get("maxJobsPerSecond"))
        return rates

    def _config(self, path: str, value: Any) -> Mapping[str, Any]:
        """The settings of a queue. Beside the rate, unknown ones are ignored, as by the original."""
        has_rate = isinstance(value, dict) and value.keys() >= {*_CONFIG_KEYS}
        return value if has_rate else self._file.table(path, value, _CONFIG_KEYS)

    def _rate(self, path: str, value: Any) -> Rate | None:
        """A rate; None for one that is higher than any queue gets."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise self._file.wrong(path, "jobs a second, 0 or more", value)
        if value > MAX_RATE:
            return None
        jobs_a_ms = Fraction(Decimal(repr(value))) / 1000
        if 0 < jobs_a_ms < Fraction(1, MAX_U32):
            raise self._file.wrong(path, "0, or at least one job in 49 days", value)
        return _rate_of(jobs_a_ms)


def _rate_of(jobs_a_ms: Fraction) -> Rate:
    """The rate; the next lower one of whole numbers below 2^32 for a number with more digits than a rate can have."""
    if jobs_a_ms.numerator > MAX_U32 or jobs_a_ms.denominator > MAX_U32:
        count = min(MAX_U32, int(jobs_a_ms * MAX_U32))
        jobs_a_ms = Fraction(count, math.ceil(count / jobs_a_ms))
    return Rate.of(Rate(jobs_a_ms.numerator, jobs_a_ms.denominator))
