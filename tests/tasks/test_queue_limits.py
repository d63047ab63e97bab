"""Queues with limits, as tasks and the settings file name them: what a queue is created with, and what is said of it.

Promises: the queues are those of real servers.
"""

from __future__ import annotations

import dataclasses
import logging
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pinlater import AsyncClient, Client, InvalidArgument, PinLater, Queue, QueueConfig
from pinlater.client import settings_file
from pinlater.model.limits import Rate
from pinlater.running.app_worker import worker_of
from pinlater.running.options import QueueOptions
from pinlater.tasks.app import parts_of
from tests.support.handlers_for_tests import on_loop
from tests.support.servers import Server, wait_until

MAIL = Queue("mail", rate="100/s", burst=20, max_running=10)


NIGHT = Queue("night", spill_above="5M", restore_below=500, horizon="1.5h", refuse_above="5.5M")
MARKS = {"spill_above": 5_000_000, "restore_below": 500, "horizon_ms": 5_400_000, "refuse_above": 5_500_000}


def limits(config: QueueConfig) -> tuple[Any, ...]:
    return config.rate, config.burst, config.max_running


def app_of(server: Server) -> PinLater:
    app = PinLater(server.url)

    @app.task(queue=MAIL)
    def send(to: str) -> None: ...

    @app.task(queue="mail")  # says nothing of its limits
    def check(to: str) -> None: ...

    @app.task(queue=Queue("reports", max_running=1))
    def report() -> None: ...

    return app


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, without a settings file above it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_producer_creates_a_queue_with_its_limits(server: Server, folder: Path) -> None:
    with app_of(server) as app, Client(server.url) as client:
        for task in app.tasks.values():
            assert task.queue in ("mail", "reports")
        app.by_name(next(name for name in app.tasks if name.endswith("check"))).enqueue("a")
        assert limits(client.queue_config("mail")) == (Rate(1, 10), 20, 10)
        app.by_name("elsewhere").using(queue="reports").enqueue()
        assert limits(client.queue_config("reports")) == (None, None, 1)
        app.by_name("elsewhere").using(queue="other").enqueue()
        assert limits(client.queue_config("other")) == (None, None, None)


def marks(config: QueueConfig) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(config).items() if name in MARKS}


def test_a_producer_creates_a_queue_with_its_marks(server: Server, folder: Path) -> None:
    with PinLater(server.url) as app, Client(server.url) as client:

        @app.task(queue=NIGHT)
        def report() -> None: ...

        report.enqueue()
        assert marks(client.queue_config("night")) == MARKS
        (folder / "pinlater.toml").write_text("[queues.other]\nhorizon = '24h'\nrefuse_above = 7")
        report.using(queue="other").enqueue()
        found = {"spill_above": None, "restore_below": None, "horizon_ms": 86_400_000, "refuse_above": 7}
        assert marks(client.queue_config("other")) == found


@pytest.mark.parametrize("horizon", [90, 90.0, timedelta(seconds=90), "90", "1.5m"])
def test_a_horizon_is_a_length_of_time(horizon: Any) -> None:
    assert Queue("mail", horizon=horizon).settings == {"horizon_ms": 90_000}


@on_loop
async def test_a_worker_creates_queues_with_their_limits(server: Server, folder: Path) -> None:
    async with app_of(server) as app, worker_of(app):
        client = parts_of(app).clients.of_loop()
        assert limits(await client.queue_config("mail")) == (Rate(1, 10), 20, 10)
        assert limits(await client.queue_config("reports")) == (None, None, 1)


def test_the_settings_file_takes_the_place_of_what_tasks_name(server: Server, folder: Path) -> None:
    (folder / "pinlater.toml").write_text("[queues.mail]\nrate = '5/m'\n[queues.other]\nmax_running = 2")
    with app_of(server) as app, Client(server.url) as client:
        for queue in ("mail", "other"):
            app.by_name("elsewhere").using(queue=queue).enqueue()
        assert limits(client.queue_config("mail")) == (Rate.of("5/m"), None, None)
        assert limits(client.queue_config("other")) == (None, None, 2)
        (folder / "pinlater.toml").write_text("[queues.reports]\nmax_runing = 2")
        with pytest.raises(InvalidArgument, match="did you mean 'max_running'"):
            app.by_name("elsewhere").using(queue="reports").enqueue()


def test_a_worker_of_a_handler_creates_queues_with_the_limits_of_the_file(server: Server, folder: Path) -> None:
    (folder / "pinlater.toml").write_text("[queues.mail]\nmax_running = 3")
    command = [sys.executable, "-m", "pinlater", "--url", server.url, "worker", "asyncio:sleep", "--queue", "mail"]
    with subprocess.Popen([*command, "--create"], stderr=subprocess.PIPE) as process, Client(server.url) as client:
        assert process.stderr is not None
        try:
            wait_until(lambda: client.queue_names() == ["mail"], "the queue")
            assert limits(client.queue_config("mail")) == (None, None, 3)
        finally:
            process.terminate()
            process.communicate()


@on_loop
async def test_a_queue_with_other_limits_keeps_them_and_a_worker_says_so_once(
    server: Server, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncClient(server.url) as client, app_of(server) as app:
        await client.create_queue("mail", QueueConfig(rate="50/s", burst=20))
        await client.create_queue("reports", QueueConfig(rate="1/s", max_running=1))  # an operator added a rate
        before = await client.queue_config("mail")
        async with worker_of(app):
            pass
        assert await client.queue_config("mail") == before
    assert [each.getMessage() for each in caplog.records if "ask for" in each.getMessage()] == [
        "queue mail: it has rate 50/s, burst 20, no max_running, its tasks ask for rate 100/s, burst 20, "
        "max_running 10: pinlater queue set mail --rate 100/s --burst 20 --max-running 10"
    ]
    assert caplog.records[-1].levelno == logging.WARNING


@on_loop
async def test_a_worker_says_how_to_get_other_marks(
    server: Server, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncClient(server.url) as client, PinLater(server.url) as app:

        @app.task(queue=NIGHT)
        def report() -> None: ...

        await client.create_queue("night", QueueConfig(spill_above=5_000_000, horizon_ms=86_400_000))
        async with worker_of(app):
            pass
    assert [each.getMessage() for each in caplog.records if "ask for" in each.getMessage()] == [
        "queue night: it has spill_above 5000000, no restore_below, horizon 1d, no refuse_above, its tasks ask for "
        "spill_above 5000000, restore_below 500, horizon 90m, refuse_above 5500000: pinlater queue set night "
        "--spill-above 5000000 --restore-below 500 --horizon 90m --refuse-above 5500000"
    ]


def test_tasks_that_name_one_queue_with_other_limits_are_refused() -> None:
    app = PinLater("redis://nowhere")

    @app.task(queue=Queue("mail", rate="60/m"))
    def send() -> None: ...

    @app.task(queue=Queue("mail", rate=1))  # the same rate
    def again() -> None: ...

    with pytest.raises(
        InvalidArgument,
        match=r"other': queue 'mail' is named with other settings: expected rate 1/s, got rate 1/s, burst 5$",
    ):

        @app.task(name="other", queue=Queue("mail", rate=1, burst=5))
        def other() -> None: ...

    assert "other" not in app.tasks


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "a b"},
        {"name": 5},
        {"name": "mail", "rate": "often"},
        {"name": "mail", "rate": float("nan")},
        {"name": "mail", "rate": -1},
        {"name": "mail", "burst": 5},
        {"name": "mail", "rate": 1, "burst": 2**62},
        {"name": "mail", "max_running": 0},
        {"name": "mail", "max_running": "10"},
    ],
)
def test_a_wrong_queue_is_refused_where_it_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Queue(**wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"spill_above": "5X"}, "spill_above: expected a number such as 5M, 500k or 1000, got '5X'"),
        ({"spill_above": -1}, "spill_above: expected an integer from 0 to"),
        ({"spill_above": 5, "restore_below": "5k"}, r"restore_below: expected at most spill_above \(5\), got 5,000"),
        ({"refuse_above": 1.5}, "refuse_above: expected an integer from 1 to"),
        ({"refuse_above": "5M", "spill_above": "5M"}, r"refuse_above: expected more than spill_above \(5,000,000\)"),
        ({"horizon": "1 week"}, "horizon: expected a time such as 30s, 5m, 2h or 1d, or seconds, got '1 week'"),
        ({"horizon": 59}, "horizon: expected seconds or a timedelta, 60 or more, got 59"),
        ({"horizon": "59s"}, "horizon: expected seconds or a timedelta, 60 or more, got 59"),
        ({"horizon": b"1h"}, "horizon: expected seconds or a timedelta"),
    ],
)
def test_a_wrong_mark_is_refused_by_its_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{message}"):
        Queue("mail", **wrong)


@pytest.mark.parametrize("wrong", [None, 5, "a b", ["mail"]])
def test_a_wrong_name_of_a_queue_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="queue name: expected 1 to 255 letters"):
        PinLater("redis://nowhere").task(queue=wrong)


def test_the_file_knows_every_option_of_a_queue_of_a_run() -> None:
    assert tuple(QueueOptions.__slots__) == settings_file.WORKER_KEYS
