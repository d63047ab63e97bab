"""The programs of docs/limits.md run as shown and print what the page says; its crontabs and its TOML are right."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pinlater import Client, InvalidArgument, Queue
from pinlater.cli.command_base import DONE
from pinlater.client import settings_file
from pinlater.operations.limits import queue_limits
from tests.conftest import FreshServer
from tests.support.cli_runs import Run, environment, run
from tests.support.pages import page

__all__ = ["environment", "run"]  # fixtures

PAGE = page("limits")
PROGRAMS = dict(re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```\n", PAGE, re.MULTILINE | re.DOTALL))
SHOWN = re.findall(r"^    \$ python (\w+)\.py\n    \$ pinlater (run .*)\n((?:    .*\n)+)", PAGE, re.MULTILINE)
CRONTABS = re.findall(r"^```crontab\n(.*?)^```\n", PAGE, re.MULTILINE | re.DOTALL)


def test_every_program_is_run() -> None:
    assert len(PROGRAMS) == PAGE.count("```python")
    assert [name for name, _, _ in SHOWN] == list(PROGRAMS)


@pytest.mark.thorough("pages")
@pytest.mark.parametrize(("name", "command", "printed"), SHOWN, ids=list(PROGRAMS))
def test_it_prints_what_the_page_says(
    fresh_server: FreshServer, tmp_path: Path, name: str, command: str, printed: str
) -> None:
    (tmp_path / f"{name}.py").write_text(PROGRAMS[name])
    environment = {**os.environ, "PINLATER_URL": fresh_server().url}
    for words in ([f"{name}.py"], ["-m", "pinlater", *command.split()]):
        ran = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
        assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == sorted(re.sub("^    ", "", printed, flags=re.MULTILINE).splitlines())


def test_the_jobs_of_the_api_wait_as_the_page_says(fresh_server: FreshServer, tmp_path: Path) -> None:
    (tmp_path / "weather.py").write_text(PROGRAMS["weather"])
    url = fresh_server().url
    environment = {**os.environ, "PINLATER_URL": url}
    for words in (["weather.py"], ["-m", "pinlater", "run", "weather:app", "--burst", "--concurrency", "1"]):
        subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, check=True, timeout=60)
    with Client(url) as client:
        counts = client.count("weather")
        assert (counts.pending, counts.scheduled) == (1, 1)
        found = client.run(lambda end: queue_limits(client.session, "weather", end))
        assert 0 < found.paused_ms <= 30_000
        assert found.paused_by.endswith(": task weather.fetch raised RateLimited")


@pytest.mark.parametrize("crontab", CRONTABS)
def test_the_crontabs_stop_a_queue_by_day_and_let_it_go_on_at_night(
    fresh_server: FreshServer, run: Run, monkeypatch: pytest.MonkeyPatch, crontab: str
) -> None:
    url = fresh_server().url
    monkeypatch.setenv("PINLATER_URL", url)
    commands = [line.split()[6:] for line in crontab.splitlines()]  # behind the times and `pinlater`
    with Client(url) as client:
        queue = commands[0][2]
        client.create_queue(queue)
        for words in commands:
            assert run(*words).code == DONE
            config = client.queue_config(queue)
            paused_ms = 16 * 3_600_000 if words[1] == "pause" else 0
            assert paused_ms - 60_000 < client.queue_limits(queue).paused_ms <= paused_ms
            if "--rate" in words:
                assert str(config.rate) == words[-1]


def test_the_table_of_the_file(tmp_path: Path) -> None:
    [text] = re.findall(r"^```toml\n(.*?)^```\n", PAGE, re.MULTILINE | re.DOTALL)
    assert settings_file.queues_of("pinlater.toml", tomllib.loads(text)) == {"mail": Queue("mail", rate=100, burst=20)}


def test_the_rates_of_the_page() -> None:
    [row] = [line for line in PAGE.splitlines() if line.startswith("| `rate`")]
    rates = re.findall(r'`"(\S+)"`', row)
    assert len(rates) == 4
    for rate in rates:
        assert str(Queue("mail", rate=rate).rate)
    with pytest.raises(InvalidArgument):
        Queue("mail", rate="often")
