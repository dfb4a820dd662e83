"""`trisweep report`: the report of a sweep, and its runs in MLflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.arguments import OverrideTexts, Sweep, composed
from cli.console import console, shown_path

if TYPE_CHECKING:
    from conf.schema import TrackingSpec
    from sweeps.trial import SweepFolder, SweepRecord


def report(name: Sweep, overrides: OverrideTexts = None) -> None:
    """Write the report (Markdown, CSV, HTML) and import the sweep into MLflow."""
    from launcher.state import reconcile
    from launcher.where import existing_folder

    asked = composed(name, overrides)
    folder = existing_folder(asked)
    record = folder.read_record()
    reconcile(folder.trials_of(record))
    report_on(folder, record, asked.settings.tracking)


def report_on(folder: SweepFolder, record: SweepRecord, configured: TrackingSpec) -> None:
    """The ranked table, the report's paths, and MLflow brought up to date.

    Args:
        configured: where MLflow is by the configuration: the record keeps no password, the configuration may.
    """
    from results.collect import collect
    from results.mlflow.sweep_import import import_sweep
    from results.report.report import write_report
    from results.terminal import ranked_table

    paths = write_report(folder, record)
    console.print(ranked_table(collect(folder, record)))
    console.print(f"Report: {shown_path(paths.html)}\n        {shown_path(paths.markdown)}, {shown_path(paths.csv)}")
    imported = import_sweep(folder, record, record.tracking.signed_in_as(configured), folder.path.parent)
    changed = imported.created + imported.updated
    console.print(f"MLflow: {changed} runs written, {imported.unchanged} unchanged. Look at them with: make ui")
