"""The figures that others have published, as they printed them, beside ours for the same layout, and never merged."""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Sequence
from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict

from conf.errors import ConfigError
from conf.own_files import at_hand
from conf.units import count_of
from costs import Estimate
from results.render.section import Block, NamedTable, Paragraph, ReportSubject, Section
from results.render.table import Cell, Table, number, text
from results.render.units import ABSENT, count, tflops
from sweeps.reading import TrialReading
from sweeps.trial import SweepRecord, Trial
from train_core.trial.measurement import Performance

HARDWARE = (
    "Rows that count hardware FLOPs count recomputation too: compare them with hardware TFLOPS of the same model"
    " and device, never against model TFLOPS."
)
STATED_KNOBS = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "micro_batch_size",
    "global_batch_size",
    "recompute",
)
BESIDE = (
    "What is found here is of the same model, device, layout and batch, and counts FLOPs as the row does. Constants of"
    " predictions were fitted to published rows, so that agreement does not test them."
)


class PublishedFigure(BaseModel):
    """One row of `published.csv`; None where the source does not say.

    Attributes:
        tflops_per_device: 1e12 FLOP/s as printed by the source.
        flops_kind: what the source counts: `hardware` includes recomputation, `model` does not.
        confirmed: `yes`; `partial` where parts of the row are inferred (see notes); `no` where it was recalled from
            memory, and is shown as unconfirmed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    source: str
    arxiv: str
    where: str
    model: str
    device: str
    peak_tflops_per_device: float | None = None
    num_devices: int | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    recompute: str | None = None
    tflops_per_device: float | None = None
    flops_kind: Literal["hardware", "model"] | None = None
    percent_of_peak: float | None = None
    scaling_kind: Literal["strong", "weak"] | None = None
    scaling_efficiency_percent: float | None = None
    confirmed: Literal["yes", "partial", "no"]
    notes: str = ""

    @property
    def confirmation(self) -> str:
        return {"yes": "confirmed", "partial": "partly confirmed", "no": "unconfirmed"}[self.confirmed]


@cache
def published_figures() -> dict[str, PublishedFigure]:
    """The whole table by id, in the order of the file."""
    with at_hand("results/published.csv").open(newline="") as file:
        rows = [{name: cell for name, cell in row.items() if cell} for row in csv.DictReader(file)]
    figures = [PublishedFigure.model_validate(row) for row in rows]
    return {figure.id: figure for figure in figures}


def chosen_figures(ids: Sequence[str]) -> list[PublishedFigure]:
    """The figures that a sweep asks for, in its order.

    Raises:
        ConfigError: an id that the table does not have; lists the known ones.
    """
    figures = published_figures()
    for wanted in ids:
        if wanted not in figures:
            near = difflib.get_close_matches(wanted, figures, n=1)
            remedy = f"Did you mean {near[0]}? " if near else ""
            raise ConfigError(
                "sweep.published", wanted, "is not an id in published.csv", f"{remedy}Known: {', '.join(figures)}."
            )
    return [figures[wanted] for wanted in ids]


def section(subject: ReportSubject) -> Section | None:
    """Return the section, or None if the sweep names no published figures (`sweep.published`).

    Raises:
        ConfigError: the sweep asks for a published figure that is unknown.
    """
    record = subject.sweep.record
    figures = chosen_figures(record.spec.published)
    if not figures:
        return None
    table = published_table(figures, record, subject.results)
    counts_hardware = any(figure.flops_kind == "hardware" for figure in figures)
    blocks: list[Block] = [Paragraph(HARDWARE, is_caution=True)] if counts_hardware else []
    blocks.append(NamedTable("published", table))
    if {"predicted here", "measured here"}.intersection(table.columns):
        blocks.append(Paragraph(BESIDE, is_note=True))
    return Section("published", "Published by others", "published", _finding(figures, table), tuple(blocks))


def _finding(figures: Sequence[PublishedFigure], table: Table) -> str:
    """The number of figures, and the first for which there is one of ours."""
    counted = f"{count_of(len(figures), 'published figure')}, as printed by the sources."
    shown = [dict(zip(table.columns, (cell.text for cell in row), strict=True)) for row in table.rows]
    for kind in ("measured here", "predicted here"):
        for row in shown:
            if row.get(kind, ABSENT) != ABSENT:
                where = f"{row['model']} on {row['devices']}"
                rate = f"{row['TFLOPS per device']} {row['FLOPs']} TFLOPS per device"
                return f"{where}: {rate} published, {row[kind]} {kind}. {counted}"
    return counted


def published_table(figures: Sequence[PublishedFigure], record: SweepRecord, results: Sequence[TrialReading]) -> Table:
    """The figures as their sources print them; beside them ours, where the sweep has the same point."""
    return Table.of([_row(figure, record, results) for figure in figures]).without_empty_columns()


def _row(figure: PublishedFigure, record: SweepRecord, results: Sequence[TrialReading]) -> dict[str, Cell]:
    predicted = next((trial.estimate for trial in record.plan if _is_of(figure, trial)), None)
    is_full_size = record.mode == "cluster"
    measured = next((each.performance for each in results if is_full_size and _is_of(figure, each.trial)), None)
    source = f"{figure.source}, arXiv {figure.arxiv}, {figure.where}: {figure.confirmation}."
    devices = figure.device if figure.num_devices is None else f"{count(figure.num_devices)} {figure.device}"
    scaled = figure.scaling_efficiency_percent
    return {
        "model": Cell(figure.model, note=f"{source} {figure.notes}".strip()),
        "devices": text(devices),
        "layout": text(_layout(figure)),
        "batch": number(count(figure.global_batch_size), figure.global_batch_size),
        "FLOPs": text(figure.flops_kind or ABSENT),
        "TFLOPS per device": number(_printed_number(figure.tflops_per_device), figure.tflops_per_device),
        "predicted here": _rate(figure, predicted),
        "measured here": _rate(figure, measured),
        "% of peak": number(_printed_number(figure.percent_of_peak), figure.percent_of_peak),
        "scaling": text(ABSENT if scaled is None else f"{figure.scaling_kind} {_printed_number(scaled)} %"),
    }


def _rate(figure: PublishedFigure, figures_here: Estimate | Performance | None) -> Cell:
    """Our rate by the FLOPs that the figure counts."""
    if figures_here is None or figure.flops_kind is None:
        return number(ABSENT, None)
    if figure.flops_kind == "hardware":
        rate = figures_here.hardware_flops_per_second_per_device
    else:
        rate = figures_here.model_flops_per_second_per_device
    return number(tflops(rate), rate)


def _is_of(figure: PublishedFigure, trial: Trial) -> bool:
    """True if the point has the model, the device and every size that the source states, the layout among them."""
    experiment = trial.experiment
    if experiment is None or figure.tensor_parallel_size is None or figure.num_devices is None:
        return False
    names = {_letters(experiment.model.name): _letters(figure.model)} | {experiment.cluster.device.name: figure.device}
    stated = {"world_size": figure.num_devices} | {name: getattr(figure, name) for name in STATED_KNOBS}
    alike = all(experiment.knob_value(name) == value for name, value in stated.items() if value is not None)
    return alike and all(ours == theirs for ours, theirs in names.items())


def _letters(name: str) -> str:
    """A model's name without what sources write differently."""
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def _printed_number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:g}"


def _layout(figure: PublishedFigure) -> str:
    named = {
        "tp": figure.tensor_parallel_size,
        "pp": figure.pipeline_parallel_size,
        "dp": figure.data_parallel_size,
        "mb": figure.micro_batch_size,
    }
    parts = [f"{name}{size}" for name, size in named.items() if size is not None]
    parts += [figure.recompute] if figure.recompute else []
    return "-".join(parts) or ABSENT
