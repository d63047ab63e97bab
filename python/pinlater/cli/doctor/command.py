"""`pinlater doctor`: the command.

Promises exit code 1 if there is an error, and 0 if there is none. Risks: --audit reads every job.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any, Final

import click

from pinlater.cli.command_base import DONE, NO, Command
from pinlater.cli.doctor.check_result import ERROR, NOTE, OK, WARNING, CheckResult
from pinlater.cli.doctor.examine import examine
from pinlater.cli.output import jobs, print_json, print_table, say
from pinlater.cli.queue import total_of
from pinlater.cli.settings import Settings, common_options, json_option
from pinlater.operations import audit as audits
from pinlater.operations.audit import AuditReport

_STYLES: Final = {OK: "green", NOTE: "cyan", WARNING: "yellow", ERROR: "bold red"}


@click.command("doctor", cls=Command)
@click.option("--audit", is_flag=True, help="Also check that every job is in exactly one state. Reads all jobs.")
@click.option(
    "--queue", "queues", multiple=True, metavar="NAME", help="Only this queue; may be repeated. [default: all]"
)
@common_options(hidden=True)
@json_option
@click.pass_obj
def doctor(settings: Settings, audit: bool, queues: tuple[str, ...]) -> int:
    """Check every server and queue, and say what to do.

    Changes nothing. Exit code 1 if there is an error; warnings and notes are no errors.
    """
    results = examine(settings.client_settings(), queues)
    reports = _audit(settings, queues) if audit and not _unreachable(results) else []
    ok = not any(result.level == ERROR for result in results) and all(report.ok for report in reports)
    if settings.as_json:
        document: dict[str, Any] = {"ok": ok, "findings": [asdict(result) for result in results]}
        print_json(
            {**document, "audits": [asdict(report) | {"ok": report.ok} for report in reports]} if audit else document
        )
    else:
        _print_results(results)
        _print_reports(reports)
        _print_summary(results, reports)
    return DONE if ok else NO


def _unreachable(results: list[CheckResult]) -> bool:
    return any(result.check == "reachable" and result.level == ERROR for result in results)


def _audit(settings: Settings, queues: tuple[str, ...]) -> list[AuditReport]:
    """Audits the named queues that exist. The checks report the missing ones."""
    with settings.client() as client:
        named = [queue for queue in client.queue_names() if not queues or queue in queues]
        return [client.run(partial(audits.audit, client.session, queue)) for queue in named]


def _print_results(results: list[CheckResult]) -> None:
    """Prints a table for each subject, in the order of the results."""
    for subject in dict.fromkeys(result.subject for result in results):
        say(subject)
        rows = [
            (result.level, result.check, result.found + (f"\n→ {result.advice}" if result.advice else ""))
            for result in results
            if result.subject == subject
        ]
        print_table(("", "", ""), rows, styles=_STYLES, indent=2)
        say("")


def _print_reports(reports: list[AuditReport]) -> None:
    for report in reports:
        say(f"audit of queue {report.queue}")
        passed = f"{jobs(total_of(report.jobs))}, each in exactly one state, with its record"
        rows = [(ERROR, str(finding)) for finding in report.findings] or [(OK, passed)]
        print_table(("", ""), rows, styles=_STYLES, indent=2)
        say("")


def _print_summary(results: list[CheckResult], reports: list[AuditReport]) -> None:
    errors = sum(result.level == ERROR for result in results) + sum(not report.ok for report in reports)
    warnings = sum(result.level == WARNING for result in results)
    if not errors and not warnings:
        say("all is well")
    else:
        say(f"{errors} error{'' if errors == 1 else 's'}, {warnings} warning{'' if warnings == 1 else 's'}")
