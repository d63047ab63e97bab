"""docs/alerts.yml: each rule names metrics, labels and values that exist, and sees the first event of its counter.

Promises: names are read from the expressions, series from a worker and a supervisor before their first job. Risks: no
Prometheus parses the rules.
"""

from __future__ import annotations

import re

import pytest

from pinlater import PinLater
from pinlater.running.app_worker import worker_of
from pinlater.running.metrics import FAMILIES, samples, text
from pinlater.running.status import SupervisorStatus
from pinlater.tasks.meters import Meter
from pinlater.tasks.runner import TaskRunner
from tests.support.handlers_for_tests import on_loop
from tests.support.pages import page
from tests.support.paths import ROOT
from tests.support.servers import Server

TEXT = (ROOT / "docs" / "alerts.yml").read_text("utf-8")
EXPRESSIONS = dict(re.findall(r"- alert: (\w+)\n +expr: (.+)", TEXT))
ROWS = dict(re.findall(r"^\| `(pinlater_\w+)` \|(.*)$", page("running"), re.MULTILINE))
SERIES = {name for family in FAMILIES for name in (family, f"{family}_bucket", f"{family}_sum", f"{family}_count")}


def problems(expression: str) -> list[str]:
    """What an expression names that does not exist."""
    names = re.findall(r"pinlater_\w+", expression)
    found = [f"metric {name}" for name in names if name not in SERIES]
    rows = " ".join(ROWS.get(name, "") for name in names)
    matched = re.findall(r'(\w+)=~?"([^"]*)"', expression)
    grouped = [label for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(", ")]
    found += [f"label {label}" for label in [*grouped, *(label for label, _ in matched)] if f"`{label}`" not in rows]
    values = [value for _, pattern in matched for value in pattern.split("|")]
    return found + [f"value {value}" for value in values if not re.search(rf"\b{value}\b", rows)]


@pytest.mark.parametrize("alert", EXPRESSIONS)
def test_an_alert_names_what_exists(alert: str) -> None:
    assert "pinlater_" in EXPRESSIONS[alert]
    assert problems(EXPRESSIONS[alert]) == []


def test_every_alert_has_its_expression_on_one_line() -> None:
    assert len(EXPRESSIONS) == TEXT.count("- alert:") == TEXT.count("expr:")
    assert len(EXPRESSIONS) >= 5


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("pinlater_queue_job > 0", "metric pinlater_queue_job"),
        ("sum by (task) (pinlater_queue_jobs)", "label task"),
        ('pinlater_queue_jobs{status="failed"}', "label status"),
        ('pinlater_queue_jobs{state="dead"}', "value dead"),
    ],
)
def test_a_name_that_does_not_exist_is_found(expression: str, problem: str) -> None:
    assert problems(expression) == [problem]


# the first event of a counter

#: Its names come from bodies, so no process knows them before.
FROM_BODIES = "pinlater_unknown_tasks_total"
COUNTED = re.compile(r"(?:increase|rate)\((pinlater_\w+)(\{[^}]*\})?\[15m\]\)")


def has_series(lines: list[str], name: str, matcher: str) -> bool:
    """Whether a metric has a series of 0 for each value of a matcher such as {reason=~"crash|memory"}."""
    wanted = [
        f'{label}="{value}"'
        for label, values in re.findall(r'(\w+)=~?"([^"]*)"', matcher)
        for value in values.split("|")
    ]
    own = [line for line in lines if re.match(rf"{name}[ {{]", line) and line.endswith(" 0")]
    return bool(own) and all(any(label in line for line in own) for label in wanted)


@on_loop
async def test_a_counter_of_a_rule_is_there_before_its_first_event(server: Server) -> None:
    app = PinLater(server.url)

    @app.task(name="mail", queue="out")
    async def mail() -> None: ...

    @app.task(name="raw", queue="in", codec="raw")
    async def raw(body: bytes) -> None: ...

    async with app, worker_of(app) as worker:
        assert isinstance(worker.handler, TaskRunner)
        worker.handler.meters = {name: Meter() for name in app.tasks}
        lines = text(samples(worker, worker.handler)).splitlines()
    lines += SupervisorStatus([]).answers()["/metrics"]().text.splitlines()
    for task, queue in (("mail", "out"), ("raw", "in")):
        assert f'pinlater_failed_by_crash_total{{task="{task}",queue="{queue}"}} 0' in lines
    counted = [found for expression in EXPRESSIONS.values() for found in COUNTED.findall(expression)]
    assert len(counted) >= 8
    missing = [name for name, matcher in counted if not has_series(lines, name, matcher)]
    assert missing == [FROM_BODIES]


@pytest.mark.parametrize("alert", EXPRESSIONS)
def test_a_rule_on_one_event_sees_a_series_that_begins_with_it(alert: str) -> None:
    expression = EXPRESSIONS[alert]
    for whole, by, series in re.findall(r"((sum(?: by \([^)]*\) )?)\(increase\((\S+)\[15m\]\)\) > 0)", expression):
        assert expression == f"{whole} or {by}({series} unless {series} offset 15m) > 0"


def test_every_end_that_is_an_error_has_a_rule() -> None:
    for end in ("failed", "expired"):
        assert any(f'pinlater_jobs_total{{end="{end}"}}' in expression for expression in EXPRESSIONS.values())
