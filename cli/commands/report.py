"""`trisweep report`: the report of a sweep, or of two side by side; and runs in MLflow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments import AsJson, OverrideTexts, SweepName
from cli.commands.reindex import chosen_store, write_all_anew
from cli.output.console import bar, complaints, console, print_json, print_sentences, print_unwrapped, shown_path
from cli.output.next_command import folder_words, ui_command
from cli.started_sweep import started_sweep
from conf.credentials import hide_credentials, overrides_for_records
from conf.errors import UsageError
from conf.units import count_of

if TYPE_CHECKING:
    from conf.compose.load import Composition
    from conf.types.sites import TrackingSpec
    from results.analysis.comparison import ComparedPoint
    from results.mlflow.sweep_import import ImportSummary
    from results.report.last_report import LastReport, Said
    from sweeps.later_command import Restriction
    from sweeps.reading import TrialReading
    from sweeps.sweep import Sweep
    from sweeps.trial import SweepRecord

OutFolder = Annotated[
    Path | None,
    typer.Option(
        "--out",
        file_okay=False,
        help="Write the three files there, and nothing else: for a sweep that you may only read.",
    ),
]


def report(
    name: SweepName,
    overrides: OverrideTexts = None,
    out: OutFolder = None,
    as_json: AsJson = False,
) -> None:
    """Write the report (Markdown, CSV, HTML) and import the sweep into MLflow.

    With a second sweep, by its name or its folder, compare the two instead: `trisweep report A B`.
    """
    from sweeps.later_command import restriction_of
    from sweeps.sweep import Sweep

    # The word among the overrides that is none names the other sweep.
    words = [text for text in overrides or () if "=" not in text and not text.startswith(("+", "~"))]
    if len(words) > 1:
        raise UsageError(f"{', '.join(words)}: two sweeps can be compared, and more were named", "Name two.")
    second, overrides = next(iter(words), None), [text for text in overrides or () if text not in words]
    if second is not None:
        _compare(name, second, overrides, out, as_json=as_json)
        return
    folder, composition = started_sweep(name, overrides)
    record = folder.read_record()
    restriction = restriction_of(composition, proxy=record.mode == "proxy")
    _say_without_effect([(record, composition)], restriction)
    sweep, tracking = Sweep.stored_in(folder), composition.settings.tracking
    if out is None:
        content = report_on(sweep, tracking, restriction, chosen_store(composition), as_json=as_json)
    else:
        from launcher.slurm.reconcile import reconcile

        part = restriction.part(sweep) if restriction else sweep
        readings = reconcile(part.read())
        _print_report(part, _write_report_into(out, part, readings), out)
        content = _document(part, readings, out) if as_json else {}
    if as_json:
        print_json("report", content)


def _say_without_effect(asked: Sequence[tuple[SweepRecord, Composition]], restriction: Restriction | None) -> None:
    """Name the overrides that a report cannot follow: what was measured stays what it is."""
    from sweeps.trial import JOB_GROUPS

    followed = restriction.values if restriction else {}
    texts = [
        text
        for record, composition in asked
        for override in composition.overrides.without(JOB_GROUPS | {"cluster"})
        for text in overrides_for_records([override.text])
        if text not in record.overrides and override.key not in followed
    ]
    if texts:
        words = hide_credentials(", ".join(dict.fromkeys(texts)))
        complaints.print(f"{words}: changes nothing, as a report is of what was measured.")


def report_on(
    sweep: Sweep,
    configured: TrackingSpec,
    restriction: Restriction | None = None,
    chosen: TrackingSpec | None = None,
    *,
    as_json: bool = False,
) -> dict[str, Any]:
    """Write the report, bring MLflow (`chosen`, else the record's) up to date, and return what was done.

    Where nothing is new since the last report, its answer is printed again, and nothing is read or written.
    """
    from launcher.slurm.job_records import keep_job_records
    from launcher.slurm.reconcile import reconcile
    from results.mlflow.reachable import DamagedStore
    from results.mlflow.sweep_import import import_sweep
    from results.report.last_report import LastReport

    whole, sweep = sweep, restriction.part(sweep) if restriction else sweep
    last = LastReport.of(sweep, _further_words(sweep))
    said, content = None if as_json else _still_true(last), dict[str, Any]()
    if said is None:
        readings = reconcile(sweep.read())
        keep_job_records(readings)
        records = last.job_records()
        said = _write_report_into(None, sweep, readings)
        last.remember(readings, records, said)
        content = _document(sweep, readings, None) if as_json else content
        del readings  # the import reads them anew, once no other import runs
    _print_report(sweep, said, None)
    tracking, root = chosen or sweep.record.tracking.signed_in_as(configured), sweep.folder.path.parent

    def bring_up_to_date() -> ImportSummary:
        with bar("Writing runs into MLflow") as tell:
            return import_sweep(whole, tracking, root, lambda sweep: reconcile(sweep.read()), tell=tell)

    try:
        imported = bring_up_to_date()
    except DamagedStore as damage:
        print_unwrapped(f"{damage.problem}, so it is made anew from the sweeps' folders:")
        write_all_anew(tracking, None, root)
        imported = bring_up_to_date()
    changed = imported.created + imported.updated
    console.print(f"MLflow: {count_of(changed, 'run')} written, {imported.unchanged} unchanged. Look at them with:")
    print_unwrapped(f"  {ui_command(root, tracking)}")
    return content | {"mlflow": asdict(imported)}


def _still_true(last: LastReport) -> Said | None:
    """What the last report said, where no file and no word of Slurm's accounting is new since; else None."""
    from launcher.slurm.job_records import LATEST_SECONDS, has_record

    if (said := last.said()) is None:
        return None
    late = {job for job, ended in said.awaited.items() if time.time() - ended < LATEST_SECONDS}
    return None if late and has_record(late) else said


def _write_report_into(out: Path | None, sweep: Sweep, readings: Sequence[TrialReading]) -> Said:
    """Write the report into that folder, else into the sweep's, and return what is to be said of it."""
    from launcher.slurm.job_records import awaits_record
    from results.analysis.findings.verdict import verdict
    from results.report.last_report import Said
    from results.report.report import write_report
    from results.tables.sweep_tables import ranking_table
    from sweeps.folder.journal import History
    from sweeps.sweep import points_of

    write_report(sweep, readings, out)
    record, points = sweep.record, points_of(readings)
    table = ranking_table(record, points)
    ended = History.kept_in(sweep.folder).why_cut_short([each.outcome for each in readings])
    answer = verdict(record, readings, _further_words(sweep), ended)
    awaited = {each.job_id or "": each.end_time or 0.0 for each in readings if awaits_record(each)}
    return Said(table.beginning, len(table.rows), answer.paragraphs, awaited)


def _further_words(sweep: Sweep) -> list[str]:
    from results.report.sections.provenance import job_words

    return [*job_words(sweep.folder), *folder_words(sweep.folder.path.parent)]


def _print_report(sweep: Sweep, said: Said, out: Path | None) -> None:
    from results.report.report import ReportPaths

    console.print(said.table)
    if said.num_rows > len(said.table.rows):
        console.print(f"The first {len(said.table.rows)} of {said.num_rows:,} rows; the page has all of them.")
    for paragraph in said.paragraphs:
        print_sentences(paragraph)
    paths = ReportPaths.of(sweep, out)
    console.print(f"Report: {shown_path(paths.html)}\n        {shown_path(paths.markdown)}, {shown_path(paths.csv)}")


def _document(sweep: Sweep, readings: Sequence[TrialReading], out: Path | None) -> dict[str, Any]:
    from results.report.report import ReportPaths
    from results.tables.documents import report_document

    return report_document(sweep, readings, asdict(ReportPaths.of(sweep, out)))


def _compare(first: str, second: str, overrides: Sequence[str], out: Path | None, *, as_json: bool) -> None:
    """Write the page of two sweeps, and say in one sentence what it comes to."""
    from launcher.slurm.reconcile import reconcile
    from results.analysis.comparison import compare_sweeps
    from results.report.comparison_page import finding, sides_of, write_comparison
    from sweeps.sweep import Sweep

    given = [started_sweep(name, overrides) for name in (first, second)]
    sweeps = [Sweep.stored_in(folder) for folder, _ in given]
    _say_without_effect([(sweep.record, asked) for sweep, (_, asked) in zip(sweeps, given, strict=True)], None)
    before, after = sides_of([(sweep, reconcile(sweep.read())) for sweep in sweeps])
    page, markdown = write_comparison(before, after, out)
    both = compare_sweeps(before, after)
    console.print(f"A: {before.name}\nB: {after.name}\n{finding(before, after)}")
    console.print(f"Comparison: {shown_path(page)}\n            {shown_path(markdown)}")
    if as_json:
        points = [_point_values(point) for point in both.points]
        content = {"before": before.name, "after": after.name, "files": {"html": page, "markdown": markdown}}
        only = {"only_before": both.only_before, "only_after": both.only_after}
        print_json("comparison", content | {"points": points} | only)


def _point_values(point: ComparedPoint) -> dict[str, Any]:
    if point.why_not:
        return {"layout": point.label, "not_comparable_because": point.why_not}
    low, high = point.ratio_bounds
    return {"layout": point.label, "ratio": point.ratio, "ratio_low": low, "ratio_high": high}
