"""docs/alerts.yml: each rule names metrics, labels and values that exist.

Promises: names are read from the expressions. Risks: no Prometheus parses the rules.
"""

from __future__ import annotations

import re

import pytest

from pinlater.running.metrics import FAMILIES
from tests.support.pages import page
from tests.support.paths import ROOT

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
