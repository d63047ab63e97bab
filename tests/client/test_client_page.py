"""docs/client.md: its programs print what it shows, and its tables have every method, setting and error. A page for
users has every public name.

Risks: whether a table describes a name correctly is shown by the tests of that name, not here.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pinlater
import pinlater.testing
from pinlater import (
    AsyncClient,
    Client,
    JobInfo,
    Monitor,
    NewJob,
    OutcomeUnknown,
    PinLater,
    PinLaterError,
    QueueConfig,
    State,
    Worker,
    WorkerConfig,
)
from pinlater.model import errors
from pinlater.model.jobs import Checkpoint, CountsByState
from tests.conftest import FreshServer
from tests.support.cut_proxy import Cut, CutProxy
from tests.support.pages import page, table
from tests.support.paths import ROOT
from tests.support.servers import Server

PAGE = page("client")
PROGRAMS = dict(re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```\n", PAGE, re.MULTILINE | re.DOTALL))
SHOWN = dict(re.findall(r"^    \$ python (\w+)\.py\n((?:    .*\n)+)", PAGE, re.MULTILINE))


def test_every_program_is_shown_with_its_output() -> None:
    assert len(PROGRAMS) == PAGE.count("```python")
    assert list(SHOWN) == list(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_prints_what_the_page_says(fresh_server: FreshServer, tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text(PROGRAMS[name])
    environment = {**os.environ, "PINLATER_URL": fresh_server().url}
    ran = subprocess.run(
        [sys.executable, f"{name}.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == re.sub("^    ", "", SHOWN[name], flags=re.MULTILINE)


@pytest.mark.parametrize("cut", [Cut.AFTER, Cut.BEFORE], ids=["was carried out", "was not"])
def test_its_careful_producer_enqueues_each_job_once(server: Server, monkeypatch: pytest.MonkeyPatch, cut: Cut) -> None:
    program: dict[str, Any] = {"__name__": "careful"}
    exec(PROGRAMS["careful"], program)  # noqa: S102
    resolve, resolved = OutcomeUnknown.resolve, list[OutcomeUnknown]()
    with Client(server.url) as direct, CutProxy(server.port) as proxy, Client(proxy.url) as client:
        client.create_queue("careful")

        def at_last(error: OutcomeUnknown) -> Any:
            proxy.disarm()
            client.settings.timeout_s = 10.0
            resolved.append(error)
            return resolve(error)

        monkeypatch.setattr(OutcomeUnknown, "resolve", at_last)
        for put, jobs in (("put", b"x"), ("put_all", [b"x"] * 10), ("put_all", [b"x"] * 3000)):
            before, asked = direct.count("careful").pending, len(resolved)
            proxy.arm(cut, count=10**9)
            client.settings.timeout_s = 0.2
            answer = program[put](client, jobs)
            assert len(resolved) > asked
            assert answer == [] or direct.lookup([answer])
            assert direct.count("careful").pending - before == (1 if put == "put" else len(jobs))


def rows() -> list[list[str]]:
    """The cells of all tables of the page."""
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in PAGE.splitlines() if line[:2] == "| "]


def named(cell: str) -> list[str]:
    """`a`, `b(…)` → a, b."""
    return [re.split(r"\W", code.removeprefix("await "))[0] for code in re.findall(r"`([^`]+)`", cell)]


def public(kind: type) -> Iterator[str]:
    return (name for name in vars(kind) if not name.startswith("_"))


#: Public for other rooms of the package. Programs do not need them.
INSIDE = {
    "run",
    "enqueue_job",
    "cancelling",
    "config",
    "held_bytes",
    "jobs",
    "limited",
    "look",
}


def test_every_method_is_in_a_table() -> None:
    documented = {name for row in rows() for name in named(row[0])}
    for kind in (Client, AsyncClient, Worker):
        assert [name for name in public(kind) if name not in documented | INSIDE] == []
    assert [name for name in public(Monitor) if f"`{name}" not in PAGE and name not in INSIDE | {"run_once"}] == []
    for name in (*inspect.signature(Client).parameters, *PUBLIC_ENQUEUE):
        assert name in PAGE


PUBLIC_ENQUEUE = [name for name in inspect.signature(Client.enqueue).parameters if name != "self"]


def test_the_table_has_every_argument_with_its_default() -> None:
    for row in rows():
        for call in re.findall(r"`(?:await )?(\w+\([^`]*\))`", row[0]):
            method = getattr(Client, call.partition("(")[0], None)
            if method in (None, Client.run) or "…" in call:
                continue
            parameters = inspect.signature(method).parameters
            for name, default in re.findall(r"(\w+)=(\([^)]*\)|\"[^\"]*\"|[^,)]+)", call):
                known = parameters[name].default
                shown = known.value if isinstance(known, State) else known
                assert repr(shown).replace("'", '"') == default, call
            assert [name for name in parameters if name not in call and name not in ("self", "descriptors")] == [], call


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_help_shows_what_a_method_returns(kind: type) -> None:
    results = {name: inspect.signature(getattr(kind, name)).return_annotation for name in public(kind)}
    assert results["dequeue"] == "list[Job]"
    assert results["purge"] == "int"
    assert [name for name, result in results.items() if "MakeFlow" in result] == []


def test_the_tables_have_every_setting_with_its_default() -> None:
    settings = [*table(PAGE, "queue-config"), *table(PAGE, "worker-config")]
    defaults = {named(cell)[0]: default for cell, default, *_ in settings}
    for config in (QueueConfig(), WorkerConfig()):
        for field in dataclasses.fields(config):
            value: Any = getattr(config, field.name)
            shown = f"{value:,}" if type(value) is int else '""' if value == "" else repr(value)
            assert defaults[field.name] == shown or field.name == "order", field.name
    for kind in (JobInfo, CountsByState, Checkpoint):
        for field in dataclasses.fields(kind):
            assert f"`{field.name}`" in PAGE or f"`{field.name}=" in PAGE or f"({field.name}=" in PAGE, field.name
    assert [name for name in public(NewJob) if name not in PAGE] == []


def test_the_table_of_errors_has_them_all() -> None:
    listed = [named(row[0])[0] for row in table(PAGE, "errors")]
    known = [name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, PinLaterError)]
    assert sorted([*listed, "PinLaterError"]) == sorted(known)


def pages() -> str:
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    return "".join(file.read_text("utf-8") for file in files if file.name != "design.md")


def test_every_public_name_is_on_a_page_for_users() -> None:
    text = pages()
    names = [*pinlater.__all__, *pinlater.testing.__all__]
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []
    arguments = inspect.signature(PinLater).parameters
    assert [name for name in arguments if f"`{name}" not in page("tasks")] == []
