"""`trisweep report`: the report of a sweep, and its runs in MLflow."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cli.arguments import AsJson, OverrideTexts, SweepName, composed
from cli.console import console, leave_stdout_to_json, print_json, print_unwrapped, shown_path

if TYPE_CHECKING:
    from conf.sites import TrackingSpec
    from sweeps.sweep import Sweep


def report(name: SweepName, overrides: OverrideTexts = None, as_json: AsJson = False) -> None:
    """Write the report (Markdown, CSV, HTML) and import the sweep into MLflow."""
    from launcher.where import existing_folder
    from sweeps.sweep import Sweep

    asked = composed(name, overrides)
    if as_json:
        leave_stdout_to_json()
    content = report_on(Sweep.stored_in(existing_folder(asked)), asked.settings.tracking)
    if as_json:
        print_json("report", content)


def report_on(sweep: Sweep, configured: TrackingSpec) -> dict[str, Any]:
    """Write the report, bring MLflow up to date, print the ranked table, and return all of that as plain values.

    Args:
        configured: where MLflow is by the configuration: the record keeps no password, the configuration may.
    """
    from cli.ui import ui_command
    from launcher.job_records import keep_job_records
    from launcher.state import reconciled
    from results.collect import collect
    from results.documents import report_document
    from results.mlflow.sweep_import import import_sweep
    from results.report.report import write_report
    from results.terminal import ranked_table

    readings = reconciled(sweep.read())
    keep_job_records(readings)
    paths = write_report(sweep, readings)
    console.print(ranked_table(collect(readings)))
    console.print(f"Report: {shown_path(paths.html)}\n        {shown_path(paths.markdown)}, {shown_path(paths.csv)}")
    tracking, root = sweep.record.tracking.signed_in_as(configured), sweep.folder.path.parent
    imported = import_sweep(sweep, tracking, root, lambda sweep: reconciled(sweep.read()))
    changed = imported.created + imported.updated
    print_unwrapped(
        f"MLflow: {changed} runs written, {imported.unchanged} unchanged. Look at them with: {ui_command(root)}"
    )
    return report_document(sweep, readings, asdict(paths)) | {"mlflow": asdict(imported)}
