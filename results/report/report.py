"""Write the report of a sweep: Markdown, CSV, and one HTML page that needs nothing but itself.

Three parts that never mix: measured here, predicted for the cluster, published by others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from results.collect import collect, plan_frame
from results.published import PublishedFigure, chosen_figures
from results.report.blocks_part import blocks_table
from results.report.measured_part import measured_part
from results.report.plots import figures
from results.report.predicted_part import predicted_part
from results.report.published_part import published_table
from results.report.step_terms_part import step_terms_table
from sweeps.reading import TrialReading
from sweeps.sweep import Sweep
from sweeps.trial import SweepRecord
from train_core.whole_files import write_atomically

TEMPLATES = Path(__file__).with_name("templates")


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
    published = chosen_figures(record.spec.published)
    content = _content(record, results, published)
    paths = ReportPaths(folder.report("md"), folder.report("csv"), folder.report("html"))
    write_atomically(paths.markdown, _markdown(content))
    # Without its own dtypes, pandas would show counts as 8.0 in a column where some rows have none.
    table = report_frame(record, results, published).convert_dtypes()
    write_atomically(paths.csv, table.to_csv(index=False, lineterminator="\n"))
    write_atomically(paths.html, _page(content, record, results))
    return paths


def report_frame(
    record: SweepRecord, results: Sequence[TrialReading], published: Sequence[PublishedFigure]
) -> pandas.DataFrame:
    """All parts in one table; the column `part` tells them apart, and no part fills another's columns."""
    # The age of a heartbeat is another one at every reading, and the report is to stay the same.
    trials = collect(results).drop(columns="heartbeat_age_seconds", errors="ignore").assign(part="trial")
    parts = [trials]
    if record.mode == "proxy" and record.plan:
        parts.append(plan_frame(record.plan).assign(part="plan"))
    if published:
        figures_of = [
            {f"published_{name}": value for name, value in figure.model_dump().items()} for figure in published
        ]
        parts.append(pandas.DataFrame(figures_of).assign(part="published"))
    rows = [row for part in parts for row in part.to_dict("records")]
    columns = ["part", *dict.fromkeys(column for part in parts for column in part.columns if column != "part")]
    return pandas.DataFrame(rows, columns=columns)


def _content(
    record: SweepRecord, results: Sequence[TrialReading], published: Sequence[PublishedFigure]
) -> dict[str, Any]:
    """What both templates show."""
    return {
        "record": record,
        "measured": measured_part(record, results),
        "step_terms": step_terms_table(results),
        "blocks": blocks_table(results),
        "predicted": predicted_part(record, results),
        "published": published_table(published),
        "has_unconfirmed": any(figure.confirmed != "yes" for figure in published),
        "rules": _comparison_rules(record, published),
    }


def _comparison_rules(record: SweepRecord, published: Sequence[PublishedFigure]) -> list[str]:
    """Sentences that say which numbers may be compared with which."""
    rules = [
        "Model FLOPs count what the step needs; hardware FLOPs add recomputation. Compare like with like.",
        "Predictions come from a cost model on paper, not from a device.",
    ]
    if any(figure.flops_kind == "hardware" for figure in published):
        rules.append(
            "The published TFLOPS count hardware FLOPs: hold them against a column of hardware TFLOPS, for the same"
            " model and device, and never against model TFLOPS."
        )
    if record.mode == "proxy":
        rules.append(
            "Part 1 measured a small proxy on the machine named there: its TFLOPS may be compared among themselves,"
            " but neither with part 2 nor with part 3, which are about another model on another machine."
        )
    return rules


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(["html"]),  # Markdown would show `&amp;`; its tables escape what they must
        undefined=StrictUndefined,  # a name misspelt in a template is an error and not an empty cell
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["inline_code"] = _inline_code
    return environment


def _inline_code(sentence: str) -> Markup:
    """A sentence for HTML, escaped, with `...` set as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(sentence))))


def _markdown(content: dict[str, Any]) -> str:
    return _environment().get_template("report.md").render(content)


def _page(content: dict[str, Any], record: SweepRecord, results: Sequence[TrialReading]) -> str:
    from plotly.offline import get_plotlyjs  # 5 MB of text, read only when a page is written

    # Inside a script element only "<" could end it early; JSON allows it to be spelled as an escape.
    plots = {name: json.dumps(figure).replace("<", "\\u003c") for name, figure in figures(record, results).items()}
    return _environment().get_template("report.html").render(content, plots=plots, plotlyjs=get_plotlyjs())
