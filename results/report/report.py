"""Write the report of a sweep: one HTML page that needs nothing but itself, Markdown, and CSV.

A report is a row of sections. None of them ever mixes what was measured, what is predicted and what others published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from conf.errors import UsageError
from results.published import chosen_figures
from results.report.head import head_of
from results.report.render.csv_table import csv_text
from results.report.render.markdown import markdown
from results.report.render.page import page
from results.report.section import ReportSubject, Section
from results.report.sections import (
    accuracy,
    answer,
    device_types,
    energy,
    knobs,
    learned,
    memory,
    pareto,
    predicted,
    provenance,
    published,
    scaling,
    timeline,
    trials,
)
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from train_core.whole_files import write_atomically

MakeSection: TypeAlias = Callable[[ReportSubject], Section | None]

TABLE_OF_CONTENTS: tuple[MakeSection, ...] = (
    answer.section,
    trials.section,
    scaling.section,
    accuracy.section,
    device_types.section,
    predicted.section,
    memory.section,
    timeline.section,
    pareto.section,
    learned.section,
    knobs.section,
    energy.section,
    published.section,
    provenance.section,
)
"""The sections in the order of the report. One that has nothing to show is left out."""


@dataclass(frozen=True)
class ReportPaths:
    """The three files of the report."""

    markdown: Path
    csv: Path
    html: Path


def write_report(sweep: Sweep, results: Sequence[TrialReading], out: Path | None = None) -> ReportPaths:
    """Write all three files. The same sweep with the same results always gives the same text.

    Args:
        out: the folder of the files; None takes the sweep's.

    Raises:
        ConfigError: the sweep asks for a published figure that is unknown.
        UsageError: a file cannot be written.
    """
    folder, record = sweep
    sections, legend, head = sections_of(ReportSubject(sweep, results)), answer.layouts(record), head_of(record)
    place = SweepFolder(out) if out else folder
    paths = ReportPaths(place.report("md"), place.report("csv"), place.report("html"))
    texts = (
        markdown(head, sections, legend),
        csv_text(record, results, chosen_figures(record.spec.published)),
        page(head, sections, legend),
    )
    for path, text in zip((paths.markdown, paths.csv, paths.html), texts, strict=True):
        _write(path, text, record.name)
    return paths


def report_page(sweep: Sweep, results: Sequence[TrialReading]) -> str:
    """The HTML page alone, as text."""
    sections = sections_of(ReportSubject(sweep, results))
    return page(head_of(sweep.record), sections, answer.layouts(sweep.record))


def _write(path: Path, text: str, sweep: str) -> None:
    try:
        write_atomically(path, text)
    except OSError as error:
        remedy = f"Write the report into a folder of your own: trisweep report {sweep} --out FOLDER"
        raise UsageError(f"{path} cannot be written: {error.strerror}", remedy) from None


def sections_of(subject: ReportSubject) -> list[Section]:
    """The sections that have something to show."""
    return [section for make in TABLE_OF_CONTENTS if (section := make(subject))]
