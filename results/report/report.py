"""Write the report of a sweep: one HTML page that needs nothing but itself, Markdown, and CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pandas

from conf.errors import FULL_ERRORS, UsageError
from results.render.json_and_csv import csv_cell
from results.render.page import markdown, page
from results.render.section import ReportSubject, Section, head_of
from results.report.recorded_spans import shares_rows
from results.report.sections import (
    accuracy,
    answer,
    cost,
    device_types,
    followed,
    knobs,
    learned,
    memory,
    predicted,
    provenance,
    published,
    scaling,
    sought,
    step_over_time,
    trials,
)
from results.report.sections.published import chosen_figures
from results.tables.trial_rows import TrialRow, collected, columns_of, plan_rows
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepFolder
from train_core.trial.atomic import write_atomically

MakeSection: TypeAlias = Callable[[ReportSubject], Section | None]

ON_PAPER: tuple[MakeSection, ...] = (predicted.section, memory.section, step_over_time.section, cost.section)
OF_TRIALS: tuple[MakeSection, ...] = (
    trials.section,
    followed.section,
    scaling.section,
    accuracy.section,
    device_types.section,
)
OF_HYPERPARAMETERS: tuple[MakeSection, ...] = (
    answer.section,
    sought.section,
    trials.section,
    followed.section,
    learned.section,
    provenance.section,
)
"""The sections of a sweep whose layout is the same everywhere, and which seeks something else than the highest rate."""
LAST: tuple[MakeSection, ...] = (learned.section, knobs.section, published.section, provenance.section)


class ReportNotWritten(UsageError):
    """A file of the report cannot be written, as on a full disk."""


@dataclass(frozen=True)
class ReportPaths:
    """The three files of the report."""

    markdown: Path
    csv: Path
    html: Path

    @classmethod
    def of(cls, sweep: Sweep, out: Path | None) -> ReportPaths:
        """The files in a folder; None takes the sweep's."""
        place = SweepFolder(out) if out else sweep.folder
        return cls(place.report("md"), place.report("csv"), place.report("html"))


def write_report(sweep: Sweep, results: Sequence[TrialReading], out: Path | None = None) -> ReportPaths:
    """Write all three files. The same sweep with the same results always gives the same text.

    Args:
        out: the folder of the files; None takes the sweep's.

    Raises:
        ConfigError: the sweep asks for a published figure that is unknown.
        ReportNotWritten: a file cannot be written.
    """
    record, subject = sweep.record, ReportSubject.of(sweep, results)
    sections, legend, head = sections_of(subject), answer.layouts(record), head_of(sweep)
    paths = ReportPaths.of(sweep, out)
    texts = (markdown(head, sections, legend), csv_text(subject, results), page(head, sections, legend))
    for path, text in zip((paths.markdown, paths.csv, paths.html), texts, strict=True):
        try:
            write_atomically(path, text)
        except OSError as error:
            act = "Free space there, or write" if error.errno in FULL_ERRORS else "Write"
            remedy = f"{act} the report into a folder of your own: trisweep report {record.name} --out FOLDER"
            raise ReportNotWritten(f"{path} cannot be written: {error.strerror}", remedy) from None
    return paths


def report_page(sweep: Sweep, results: Sequence[TrialReading]) -> str:
    sections = sections_of(ReportSubject.of(sweep, results))
    return page(head_of(sweep), sections, answer.layouts(sweep.record))


def sections_of(subject: ReportSubject) -> list[Section]:
    """The sections that have something to show. What the answer is about comes first: a proxy's trials come later."""
    record = subject.sweep.record
    parts = (OF_TRIALS, ON_PAPER) if record.mode == "cluster" else (ON_PAPER, OF_TRIALS)
    contents: tuple[MakeSection, ...] = (answer.section, sought.section, *parts[0], *parts[1], *LAST)
    if not (record.shows_rates and (record.seeks_rate or record.labels.names_layouts)):
        contents = OF_HYPERPARAMETERS
    return [section for make in contents if (section := make(subject))]


def csv_text(subject: ReportSubject, results: Sequence[TrialReading]) -> str:
    """All parts in one table; the column `part` tells them apart, and no part fills another's columns."""
    columns = columns_of(_rows(subject, results))
    # The age of a heartbeat is another one at every reading, and the report is to stay the same.
    columns.pop("heartbeat_age_seconds", None)
    # Without its own dtypes, pandas would show counts as 8.0 in a column where some rows have none.
    table = pandas.DataFrame({name: list(map(csv_cell, cells)) for name, cells in columns.items()}).convert_dtypes()
    return str(table.to_csv(index=False, lineterminator="\n"))


def _rows(subject: ReportSubject, results: Sequence[TrialReading]) -> Iterator[TrialRow]:
    record = subject.sweep.record
    yield from ({"part": "trial"} | row for row in collected(record, results))
    if record.mode == "proxy":
        yield from ({"part": "plan"} | row for row in plan_rows(record))
    for figure in chosen_figures(record.spec.published):
        yield {"part": "published"} | {f"published_{name}": value for name, value in figure.model_dump().items()}
    yield from ({"part": "stage"} | row for row in shares_rows(subject))
