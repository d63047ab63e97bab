"""Each command with a monitor moves jobs to the archive that its options, its environment or its file name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pinlater import Client, QueueConfig
from pinlater.store.archive_schema import migrate
from tests.conftest import FreshServer
from tests.support.archive import database_of
from tests.support.mariadb import connected, query
from tests.support.servers import wait_until

DEADLINE_S = 60.0
APP = """
from pinlater import Job, PinLater

app = PinLater()


@app.task(queue="idle")
def idle() -> None: ...


def handle(job: Job) -> None: ...
"""
PRINTS = """

import sys
from pinlater.client import settings_file


@app.lifespan
async def shows():
    print("the archive is", settings_file.archive(), file=sys.stderr)
    yield {}
"""
COMMANDS = {
    "monitor": ["monitor"],
    "worker": ["worker", "jobs:handle", "--queue", "mail", "--processes", "2"],
    "run": ["run", "jobs:app", "--queues", "mail", "--create"],
}


@pytest.fixture
def url(fresh_server: FreshServer) -> str:
    """The URL of a server with a queue of which nothing runs, and from which all jobs are to leave."""
    server = fresh_server(config={"appendonly": "yes"})
    with Client(server.url) as client:
        client.create_queue("mail", QueueConfig(paused=True, spill_above=0))
        client.enqueue_many("mail", [b"x"] * 10)
    return server.url


@pytest.fixture
def archive(mysql_url: str) -> str:
    database = database_of(mysql_url)
    migrate(database)
    database.close()
    return mysql_url


def rows(archive: str) -> int:
    with connected(archive) as connection:
        [(count,)] = query(connection, "SELECT COUNT(*) FROM jobs")
    return int(count)


@pytest.mark.parametrize("named_by", ["option", "file"])
@pytest.mark.parametrize("command", COMMANDS)
def test_its_monitor_archives(tmp_path: Path, url: str, archive: str, command: str, named_by: str) -> None:
    (tmp_path / "jobs.py").write_text(APP)
    options = ["--archive", archive]
    if named_by == "file":
        options = ["--config", "other.toml"] if command == "run" else []
        (tmp_path / (options[-1] if options else "pinlater.toml")).write_text(f'url = "{url}"\narchive = "{archive}"\n')
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PINLATER")}
    process = subprocess.Popen(
        [sys.executable, "-m", "pinlater", *COMMANDS[command], *options],
        cwd=tmp_path,
        env=kept | {"PINLATER_URL": url},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: rows(archive) == 10, "the jobs in the archive", DEADLINE_S)
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def test_the_archive_of_another_file_is_not_that_of_the_servers(tmp_path: Path, url: str, archive: str) -> None:
    """`--config` names servers without an archive. That of pinlater.toml is for others."""
    (tmp_path / "jobs.py").write_text(APP + PRINTS)
    (tmp_path / "pinlater.toml").write_text(f'archive = "{archive}"\n')
    (tmp_path / "other.toml").write_text(f'url = "{url}"\n')
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PINLATER")}
    command = [sys.executable, "-m", "pinlater", "run", "jobs:app", "--config", "other.toml", "--burst"]
    ran = subprocess.run(
        command, cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert "the archive is None" in ran.stderr
