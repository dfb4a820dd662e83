"""`trisweep doctor`: whether this site is ready, and what to change."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from cli.arguments import AsJson, overrides_of
from cli.output.console import console, print_json
from conf.errors import EXIT_FAILED
from conf.units import count_of

if TYPE_CHECKING:
    from launcher.doctor.node_report import CheckResult

STYLES = {"ok": "green", "warning": "yellow", "problem": "red", "skipped": "dim"}
NAME_COLUMNS = 14

Choice = Annotated[
    list[str] | None,
    typer.Argument(help="cluster=NAME to check; further Hydra overrides."),
]
NoJob = Annotated[bool, typer.Option("--no-job", help="Leave out the small job on the nodes.")]


def doctor(overrides: Choice = None, no_job: NoJob = False, as_json: AsJson = False) -> None:
    """Say whether sweeps will work here, and what to change: in a minute, with one small job on two nodes.

    The exit code is 1 where something will not work.
    """
    from launcher.doctor.examination import Examination, examine
    from train_core.process.git_sha import ROOT, git_sha
    from train_core.process.machine import this_user

    examination = Examination.of(overrides_of(None, overrides), with_job=not no_job)
    about = {"cluster": examination.job.cluster.name, "user": this_user(), "hostname": socket.gethostname()}
    console.print(f"Is {about['hostname']} ready for sweeps on {about['cluster']}? Numbers are measured now.")
    findings = list(_print_each(examine(examination, _tell)))
    counts = Counter(str(finding.status) for finding in findings)
    console.print(_verdict(counts))
    if as_json:
        from importlib.metadata import version

        # Nodes say something only through this look's job.
        had_job = any(finding.name == "job" and finding.status != "skipped" for finding in findings)
        nodes = [report.model_dump() for report in examination.job.folder.read_reports()] if had_job else []
        about |= {"trisweep_version": version("trisweep"), "git_sha": git_sha(), "installed_at": str(ROOT)}
        results = {"counts": counts, "findings": [asdict(each) for each in findings], "nodes": nodes}
        print_json("doctor", about | results)
    if counts["problem"]:
        raise typer.Exit(EXIT_FAILED)


def _print_each(findings: Iterator[CheckResult]) -> Iterator[CheckResult]:
    """Print each finding as soon as it is there, under the name of its part, and pass it on."""
    part = ""
    for finding in findings:
        if finding.part != part:
            part = finding.part
            console.print(Text(f"\n{part[0].upper()}{part[1:]}", style="bold"))
        console.print(_row(finding))
        yield finding


def _row(finding: CheckResult) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=8, no_wrap=True)
    grid.add_column(width=NAME_COLUMNS, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(finding.status, style=STYLES[finding.status]), Text(finding.name), Text(finding.says))
    if finding.remedy:
        grid.add_row("", "", Text(f"-> {finding.remedy}", style="bold"))
    return grid


def _verdict(counts: Counter[str]) -> Text:
    worth_saying = [count_of(counts[status], status) for status in ("problem", "warning") if counts[status]]
    if not worth_saying:
        return Text("\nReady.", style="bold green")
    ready = "Not ready" if counts["problem"] else "Ready"
    return Text(f"\n{ready}: {', '.join(worth_saying)}.", style="bold red" if counts["problem"] else "bold yellow")


def _tell(line: str) -> None:
    """Print what is being waited for, on a terminal alone."""
    if console.is_terminal:
        console.print(Text(f"  {line}", style="dim"), end="\r")
