"""Write the report of a sweep: one HTML page that needs nothing but itself, Markdown, and CSV.

A report is a row of sections. None of them ever mixes what was measured, what is predicted and what others published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from results.published import chosen_figures
from results.report.csv_table import csv_text
from results.report.markdown import markdown
from results.report.page import page
from results.report.section import ReportSubject, Section
from results.report.sections import (
    accuracy,
    answer,
    device_types,
    learned,
    memory,
    pareto,
    predicted,
    provenance,
    published,
    timeline,
    trials,
)
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from train_core.whole_files import write_atomically

MakeSection: TypeAlias = Callable[[ReportSubject], Section | None]

TABLE_OF_CONTENTS: tuple[MakeSection, ...] = (
    answer.section,
    trials.section,
    accuracy.section,
    device_types.section,
    predicted.section,
    memory.section,
    timeline.section,
    pareto.section,
    learned.section,
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


def write_report(sweep: Sweep, results: Sequence[TrialReading]) -> ReportPaths:
    """Write all three files. The same sweep with the same results always gives the same text.

    Raises:
        ConfigError: the sweep asks for a published figure that is unknown.
    """
    folder, record = sweep
    sections, legend = sections_of(ReportSubject(sweep, results)), answer.layouts(record)
    paths = ReportPaths(folder.report("md"), folder.report("csv"), folder.report("html"))
    write_atomically(paths.markdown, markdown(record, sections, legend))
    write_atomically(paths.csv, csv_text(record, results, chosen_figures(record.spec.published)))
    write_atomically(paths.html, page(record, sections, legend))
    return paths


def sections_of(subject: ReportSubject) -> list[Section]:
    """The sections that have something to show."""
    return [section for make in TABLE_OF_CONTENTS if (section := make(subject))]
